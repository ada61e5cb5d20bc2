"""Arguments that make no sense end in a message and a documented code, in every command that takes them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import typer

from ended import Command, Ended
from opscope.cli.main import app
from opscope.core.errors import OpscopeError, kinds
from programs import write_tiny_program
from texts import UNUSABLE_SIZE
from traces import etdump

KEPT = Path(__file__).parents[1] / "data" / "bundles" / "flat-rooms"
TRACE = """
    Method::execute 100000
      OPERATOR_CALL @0 20000
        native_call_add.out 19000
"""
DOCUMENTED = {kind.exit_code for kind in kinds()} - {OpscopeError.exit_code}
MEASURING_NUMBERS = (
    *("--rounds", "--runs", "--warmup", "--threads", "--seed", "--timeout", "--min-seconds", "--until"),
    *("--max-rounds", "--cooldown-seconds", "--max-temperature", "--lock-limit"),
)
"""Options of how to measure that take a number."""
NO_NUMBERS = ("-1", "1e30", "nan", "inf", "word")
"""What no option for a number takes: each is of the wrong sign, size or kind."""
NOT_ZERO = {"--timeout", "--until", "--rounds", "--runs", "--threads", "--max-temperature"}
"""Options whose number is divided by."""
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


def check_refused(done: Ended) -> None:
    """Make sure that a command ended with a documented code and a message, whoever refused it."""
    assert done.returncode in DOCUMENTED, done.stderr
    assert "rror" in done.stderr


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("option", MEASURING_NUMBERS)
def test_what_is_no_number_of_its_kind_is_refused(command: Command, option: str, value: str) -> None:
    """Refuse it before anything runs, and write nothing; no time, width or repetition may be zero either."""
    for words in (("profile", "m.pte"), ("check", "m.pte", "--against", "m.pte")):
        check_refused(command(*words, "--out", "out", f"{option}={value}"))
    if option in NOT_ZERO:
        check_refused(command("profile", "m.pte", "--out", "out", option, "0"))
    assert not Path("out").exists()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("value", ["nan", "-1", "word", ""])
def test_warmup_and_threshold_of_analyses_are_numbers(command: Command, value: str) -> None:
    """Take auto as well, where a command can find it out."""
    check_refused(command("analyze", "t.etdump", f"--warmup={value}"))
    check_refused(command("compare", "t.etdump", "t.etdump", f"--warmup={value}"))
    check_refused(command("check", "bundle", "--against", "bundle", f"--threshold={value}"))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize(
    "words",
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
def test_a_path_that_cannot_be_read_is_refused(command: Command, words: tuple[str, ...], path: str) -> None:
    """Wait for nothing, and read nothing without an end."""
    check_refused(command(*words, path))


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "", "word", "1e30"])
def test_the_limit_of_memory_is_a_size(command: Command, value: str) -> None:
    """Name the option in the message."""
    done = command(f"--max-memory={value}", "models")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --max-memory: {value!r} {UNUSABLE_SIZE}")


def test_every_option_for_a_number_was_looked_at() -> None:
    """A new one belongs into the tests above, or into this list with the reason."""
    group = typer.main.get_command(app)
    found = {
        f"{name} {option.opts[0]}"
        for name in ("profile", "check")
        for option in group.commands[name].params  # type: ignore[attr-defined]
        if str(option.type) in {"INT", "FLOAT"}
    }
    tested = {*MEASURING_NUMBERS, "--nice"} - {"--threads"}  # several numbers of threads are a text
    assert found == {f"{name} {option}" for name in ("profile", "check") for option in tested} - {"check --warmup"}


def test_a_current_directory_that_is_gone_is_said(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Say so where another process removed it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    done = command("convert", ".", "--to", "csv", "--out", "out.csv")
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "error: the current directory no longer exists")


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
    command: Command, words: tuple[str, ...], where: str, problem: str, hint: str
) -> None:
    """Say what contradicts what, with the commands to type as the hint."""
    done = command("check", *words)
    assert (done.returncode, done.stderr.splitlines()) == (2, [f"error: {where}: {problem}", f"hint:  {hint}"])
