"""The tool that measures what tests notice: which changes it makes, and where."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from mutants.__main__ import ROOMS, Trial, fixed, passes, table, tried
from mutants.mutations import Mutant, mutants
from mutants.trial import ROOT, Copy, nearest_first

SOURCE = '''"""A module."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING and os.name == "posix":
    import json


def larger(é: int, b: int) -> int | None:
    """Not even this: 1 < 2."""
    found: int | None = max(é, b) if é != b else None
    if not found:
        raise ValueError("no" if é < 0 else f"{é + b}")
    return found + 1


class Pair:
    def __repr__(self) -> str:
        return "a" if self.x else "b"

    def same(self) -> bool:
        return "a" + self.x == self.y and self.x is self.y
'''


def changes(source: str, count: int = 100) -> set[tuple[str, str]]:
    """What the mutants of a source change."""
    return {(one.before, one.after) for one in mutants(source, count)}


def test_expressions_of_functions_are_changed_one_at_a_time() -> None:
    """Neither types, texts, errors nor representations, which nobody has to notice; each is a module again."""
    assert changes(SOURCE) == {
        ("max(é, b) if é != b else None", "None if é != b else max(é, b)"),
        ("é != b", "é == b"),
        ("not found", "bool(found)"),
        ("found + 1", "found - 1"),
        ("'a' + self.x == self.y and self.x is self.y", "'a' + self.x == self.y or self.x is self.y"),
        ("'a' + self.x == self.y", "'a' + self.x != self.y"),
        ("self.x is self.y", "self.x is not self.y"),
    }
    for one in mutants(SOURCE, 100):
        unlike = [pair for pair in zip(SOURCE.splitlines(), one.source.splitlines(), strict=True) if pair[0] != pair[1]]
        assert len(unlike) == 1
        ast.parse(one.source)


def test_few_are_spread_over_functions_and_stay_where_code_moves() -> None:
    """The first of each function come first; lines before them change nothing."""
    few = mutants(SOURCE, 2)
    assert [one.line > 17 for one in few] == [False, True]
    assert changes(SOURCE.replace("class Pair", "def other():\n    pass\n\n\nclass Pair"), 2) == changes(SOURCE, 2)


def test_the_fixed_set_is_sixty_in_twelve_rooms() -> None:
    """Five modules each."""
    chosen = list(fixed(ROOMS))
    assert [sum(trial.room == room for trial in chosen) for room in ROOMS] == [5] * 12
    assert len({trial.module for trial in chosen}) == 60


def test_the_table_names_the_survivors() -> None:
    """With their place and what was changed."""
    mutant = Mutant(7, "a < b", "a <= b", "")
    said = table([Trial("src/opscope/core/one.py", mutant, "a test"), Trial("src/opscope/core/two.py", mutant)])
    assert said.split() == "core 1 of 2 together 1 of 2 src/opscope/core/two.py:7: a < b -> a <= b".split()


def test_five_in_six_pass() -> None:
    """Where every room was tried."""
    killed, survived, untried = (
        Trial("src/opscope/core/one.py", Mutant(7, "a < b", "a <= b", ""), *ended)
        for ended in (["a test"], [None], [None, "another"])
    )
    assert passes([*[killed] * 5, survived])
    assert not passes([*[killed] * 4, survived])
    assert not passes([*[killed] * 60, untried])


def test_tests_that_name_the_module_come_first() -> None:
    """By an import of it, or from it."""
    near, others = nearest_first(ROOT, "src/opscope/measurements/findings.py")
    assert [file.name for file in near] == ["test_findings.py"]
    assert ROOT / "tests/measurements/test_litert_attribution.py" in others


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of this checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    return Copy(tmp_path_factory.mktemp("copy"))


@pytest.mark.parametrize(
    ("edit", "seconds", "failure"),
    [
        (("", ""), 60, "None"),
        (("def switched_features", "import torch\ndef switched_features"), 60, "tests/measurements/test_findings.py"),
        (("def switched_features", "while True: pass\ndef switched_features"), 3, "pytest ended with -"),
    ],
    ids=["unchanged", "without-torch", "endless"],
)
def test_a_change_is_tried_in_a_copy(copy: Copy, edit: tuple[str, str], seconds: int, failure: str) -> None:
    """Where torch is not there, and an endless loop ends; the copy is as before, and the checkout always was."""
    module = "src/opscope/measurements/findings.py"
    before = (ROOT / module).read_bytes()
    with copy.changed(module, before.decode().replace(*edit, 1)):
        assert str(copy.failure(module, seconds)).startswith(failure)
        assert (ROOT / module).read_bytes() == before
    assert (Path(copy.root) / module).read_bytes() == before


def write_tests(copy: Copy, room: str, text: str) -> None:
    """Have these tests alone in a room of a copy."""
    tests = copy.root / "tests" / room
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    (tests / "test_value.py").write_text(text, "utf-8")


def test_a_test_may_bring_a_torch_of_its_own(copy: Copy) -> None:
    """Only the installed one is hidden."""
    module = "src/opscope/patterns/value.py"
    own = "def test_it(tmp_path, monkeypatch):\n    (tmp_path / 'torch.py').touch()\n"
    write_tests(copy, "patterns", own + "    monkeypatch.syspath_prepend(tmp_path)\n    import torch\n")
    assert copy.failure(module, 60) is None
    write_tests(copy, "patterns", "def test_it():\n    import torch\n")
    assert copy.failure(module, 60) == "tests/patterns/test_value.py::test_it"


def test_a_room_that_fails_unchanged_is_a_finding_and_the_others_are_tried(copy: Copy) -> None:
    """It is named with the test that fails, and says nothing of its mutants; the run does not pass."""
    for room, wanted in (("patterns", 1), ("kit", 0)):
        (copy.root / "src/opscope" / room / "value.py").write_text("VALUE = 0\n", "utf-8")
        asserted = f"def test_value():\n    assert VALUE == {wanted}\n"
        write_tests(copy, room, f"from opscope.{room}.value import VALUE\n\n\n{asserted}")
    mutant = Mutant(1, "0", "2", "VALUE = 2\n")
    trials = [Trial(f"src/opscope/{room}/value.py", mutant) for room in ("patterns", "kit")]
    found = list(tried(trials, [copy]))
    test = "tests/{}/test_value.py::test_value"
    assert found == [
        trials[0]._replace(broken=test.format("patterns")),
        trials[1]._replace(killer=test.format("kit")),
    ]
    assert table(found).split("\n")[1:4] == [
        "patterns         0 of 1  not tried: tests/patterns/test_value.py::test_value fails unchanged",
        "kit              1 of 1",
        "together         1 of 2",
    ]
    assert not passes(found)
