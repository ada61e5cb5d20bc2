"""Arguments that make no sense end in a message and a documented code, in every command that takes them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from opscope.cli.main import app, main
from opscope.core.errors import OpscopeError, kinds
from programs import write_tiny_program
from texts import UNUSABLE_SIZE
from traces import etdump

Ended = Callable[..., tuple[int, str]]
KEPT = Path(__file__).parents[1] / "data" / "bundles" / "flat-rooms"
TRACE = """
    Method::execute 100000
      OPERATOR_CALL @0 20000
        native_call_add.out 19000
"""
DOCUMENTED = {kind.exit_code for kind in kinds()} - {OpscopeError.exit_code}
NO_NUMBERS = ("-1", "1e30", "nan", "inf", "word")
"""What no option for a number takes: each is of the wrong sign, size or kind."""
PATHS = {
    "long": "/absent/" + "/".join(["y" * 300] * 20),
    "not UTF-8": "/absent/\udcff\udcfe",
    "device": "/dev/zero",
    "pipe": "pipe",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program, a trace, a bundle and a pipe that nobody writes to, in the current directory."""
    write_tiny_program(tmp_path).rename(tmp_path / "m.pte")
    (tmp_path / "t.etdump").write_bytes(etdump(TRACE, repeat=3))
    shutil.copytree(KEPT, tmp_path / "bundle")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Ended]:
    """What a command line ends with: its exit code, and what it says on standard error."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["opscope", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0), capsys.readouterr().err

    yield run
    signal.signal(signal.SIGTERM, before)


def check_refused(answer: tuple[int, str]) -> None:
    """Make sure that a command ended with a documented code and a message, whoever refused it."""
    code, said = answer
    assert code in DOCUMENTED, said
    assert "rror" in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "option",
    [
        *("--rounds", "--runs", "--warmup", "--threads", "--seed", "--timeout", "--min-seconds", "--until"),
        *("--max-rounds", "--cooldown-seconds", "--max-temperature", "--lock-limit"),
    ],
)
def test_profile_refuses_what_is_no_number_of_its_kind(ended: Ended, option: str, value: str) -> None:
    """Before anything runs, and nothing is written."""
    check_refused(ended("profile", "m.pte", "--out", "out", f"{option}={value}"))
    assert not Path("out").exists()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "option",
    ["--rounds"],
)
def test_check_of_programs_refuses_what_is_no_number_of_its_kind(ended: Ended, option: str, value: str) -> None:
    """As profile does."""
    check_refused(ended("check", "m.pte", "--against", "m.pte", "--out", "out", f"{option}={value}"))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("option", ["--timeout", "--until", "--rounds", "--runs", "--threads", "--max-temperature"])
def test_zero_is_refused_where_something_is_divided_by_it(ended: Ended, option: str) -> None:
    """No time, no width, no repetition."""
    check_refused(ended("profile", "m.pte", "--out", "out", option, "0"))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("value", ["nan", "-1", "word", ""])
def test_warmup_and_threshold_of_analyses_are_numbers(ended: Ended, value: str) -> None:
    """Or auto, where a command can find it out."""
    check_refused(ended("analyze", "t.etdump", f"--warmup={value}"))
    check_refused(ended("compare", "t.etdump", "t.etdump", f"--warmup={value}"))
    check_refused(ended("check", "bundle", "--against", "bundle", f"--threshold={value}"))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize(
    "command",
    [
        ("analyze",),
        ("analyze", "t.etdump", "--program"),
        ("analyze", "t.etdump", "--etrecord"),
        ("compare", "t.etdump"),
        ("check", "bundle", "--against"),
        ("check", "bundle", "--against", "bundle", "--budget"),
        ("run",),
        ("validate",),
        ("preflight",),
        ("kernels",),
        ("kernels", "bundle", "--library"),
        ("aie",),
        ("convert", "--to", "csv", "--out", "out.csv"),
        ("report", "--out", "out"),
        ("profile", "m.pte", "--out", "out", "--inputs"),
        ("profile", "m.pte", "--out", "out", "--data"),
        ("profile", "--out", "out"),
    ],
    ids=" ".join,
)
def test_a_path_that_cannot_be_read_is_refused(ended: Ended, command: tuple[str, ...], path: str) -> None:
    """Nothing is waited for, and nothing without an end is read."""
    check_refused(ended(*command, path))


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "", "word", "1e30"])
def test_the_limit_of_memory_is_a_size(ended: Ended, value: str) -> None:
    """The message names the option."""
    code, said = ended(f"--max-memory={value}", "models")
    assert code == 2
    assert said.startswith(f"error: --max-memory: {value!r} {UNUSABLE_SIZE}")


def test_every_option_for_a_number_was_looked_at() -> None:
    """A new one belongs into the tests above, or into this list with the reason."""
    group = typer.main.get_command(app)
    found = {
        f"{name} {option.opts[0]}"
        for name in ("profile", "check")
        for option in group.commands[name].params  # type: ignore[attr-defined]
        if str(option.type) in {"INT", "FLOAT"}
    }
    assert found == {
        *(f"profile --{name}" for name in ("rounds", "runs", "warmup", "min-seconds", "until", "max-rounds")),
        *(
            f"profile --{name}"
            for name in ("cooldown-seconds", "lock-limit", "max-temperature", "seed", "timeout", "nice")
        ),
        "check --rounds",
    }


def test_a_current_directory_that_is_gone_is_said(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removed it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    code, said = ended("convert", ".", "--to", "csv", "--out", "out.csv")
    assert (code, said.splitlines()[0]) == (3, "error: the current directory no longer exists")


_SIDES = "leave it out; it needs two sides: opscope check NEW --against OLD"


@pytest.mark.parametrize(
    ("words", "where", "problem", "hint"),
    [
        (
            ("A", "--against", "B", "--new", "2026-01-31"),
            "--new",
            "it judges all series of a store by their own histories and takes no sides: A --against B",
            "for the store: opscope check --new 2026-01-31 --store STORE; for two sides: opscope check A --against B",
        ),
        (
            ("--new", "2026-01-31", "--rounds", "3"),
            "--rounds",
            "it does not apply when all series of a store are judged",
            _SIDES,
        ),
        (
            ("A", "--against", "store:model=x", "--force"),
            "--force",
            "it does not apply when a stored history is the baseline",
            _SIDES,
        ),
    ],
)
def test_options_of_two_checks_are_told_apart(
    ended: Ended, words: tuple[str, ...], where: str, problem: str, hint: str
) -> None:
    """The message says what contradicts what; the hint holds the commands to type."""
    code, told = ended("check", *words)
    assert (code, told.splitlines()) == (2, [f"error: {where}: {problem}", f"hint:  {hint}"])
