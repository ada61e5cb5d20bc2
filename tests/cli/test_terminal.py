"""Summaries, styles and progress on real terminals of several widths, and in pipes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ended import Command
from opscope.reports.document.console import should_style
from programs import write_tiny_program
from pseudo_terminal import on_terminal
from traces import etdump

LONG = "Fully Connected (NC, QD8, F32, QC8W) of a name that is as long as some names of kernels are GEMM #17"
WHOLE = LONG[:60]
TRACE = f"""
    Program::load_method 900
    Method::execute 100000
      DELEGATE_CALL @0 70000
        {LONG} 40000
        {WHOLE} 10000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with an operator of a hundred letters."""
    path = tmp_path_factory.mktemp("terminal") / "trace.etdump"
    path.write_bytes(etdump(TRACE, repeat=4))
    return path


@pytest.mark.parametrize(("columns", "whole"), [(80, False), (120, False), (160, True)])
def test_a_table_uses_the_columns_that_there_are(trace: Path, columns: int, whole: bool) -> None:
    """A name is cut in the middle where it does not fit, both ends seen; no line is wider than the terminal."""
    done = on_terminal("analyze", trace, columns=columns)
    row = next(line for line in done.lines if line.startswith("Fully Connected"))
    assert (LONG in row) is whole
    assert row.split()[-1] == "%"
    assert whole or ("…" in row and "GEMM #17" in row)
    assert max(map(len, done.lines)) <= columns


def test_a_pipe_has_whole_names_and_lines(
    command: Command, trace: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrap nothing, whatever width the shell's variable tells; no line ends in blanks.

    Names of up to 72 columns are whole, also where colour is forced; of longer ones both ends are seen. One blank line
    stands between tables, none at the start or the end.
    """
    monkeypatch.setenv("COLUMNS", "40")
    analysed, compared, kernels = (
        command(*words).stdout
        for words in (("analyze", trace), ("compare", f"{bundle}#baseline", bundle), ("kernels", bundle))
    )
    cut = next(line for line in analysed.splitlines() if "GEMM #17" in line).partition("  ")[0]
    assert 60 < len(cut) <= 72
    assert WHOLE in analysed
    assert "\x1b" not in analysed
    assert any(len(line) > 80 for line in compared.splitlines())
    assert all(line == line.rstrip() for line in (analysed + compared).splitlines())
    for text in (analysed, compared, kernels):
        assert not re.search(r"\n\n\n|\A\n|\n\n\Z", text)
    lines = analysed.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith(("category ", "operator "))]
    assert [lines[number - 1] for number in heads] == ["", ""]
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = command("analyze", trace).stdout
    assert "\x1b[1m" in coloured
    assert cut in coloured
    assert WHOLE in coloured


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": ""}, False, False),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"CLICOLOR_FORCE": "0"}, False, False),
        ({"CLICOLOR": "0"}, True, False),
        ({"CLICOLOR": "1"}, True, True),
        ({"CLICOLOR": "1"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "unknown"}, True, False),
    ],
)
def test_who_gets_styles(variables: dict[str, str], terminal: bool, expected: bool) -> None:
    """Obey NO_COLOR first, then what asks for colour, then what a terminal can do."""
    assert should_style(variables, terminal=terminal) is expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"CLICOLOR": "0"}, False), ({"TERM": "dumb"}, False)],
)
def test_styles_on_a_terminal(trace: Path, variables: dict[str, str], expected: bool) -> None:
    """The variables are obeyed by the command; without styles not one escape sequence is written."""
    assert ("\x1b" in on_terminal("analyze", trace, **variables).raw) is expected


def lines_of(errors: str) -> list[str]:
    """What was said on standard error, notes apart, which other runs on the machine may cause."""
    return [line for line in errors.splitlines() if not line.startswith(("note:", "report:"))]


def test_a_pipe_hears_one_line_a_stage(command: Command, tmp_path: Path) -> None:
    """Write no line a repetition, but one for a failure, and none with --quiet."""
    program = write_tiny_program(tmp_path)
    runner = tmp_path / "runner"
    runner.write_text("#!/bin/sh\nexit 3\n")
    runner.chmod(0o755)
    words = ("profile", program, "--target", f"runner:{runner}", "--rounds", "2")
    told = lines_of(command(*words, "--out", tmp_path / "one").stderr)
    assert told[0] == "running 4 processes"
    assert all("failed: " in line for line in told[1:3])
    assert (told[3:-2], told[-2].partition(": ")[0]) == (["analysing"], "error")
    assert "running" not in command(*words, "--out", tmp_path / "two", "--quiet").stderr


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_the_stages_of_a_real_run(
    command: Command, toy_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write a line each in a pipe, in their order; without a compiler one line says what that means for the figures."""
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    done = command("profile", toy_program, "--rounds", "2", "--runs", "2", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    stages = [line.partition(" ")[0] for line in lines_of(done.stderr)]
    assert stages == ["running", "measuring", "analysing", "writing"]
    (note,) = [line for line in done.stderr.splitlines() if "cannot build the native runner" in line]
    assert "memory and start-up include Python and torch" in note
    assert "cannot build the native runner" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_the_bar_on_a_terminal(toy_program: Path, tmp_path: Path) -> None:
    """It tells the stage and which repetition runs, of how many; where no cursor moves there are lines."""
    words = ("profile", toy_program, "--rounds", "2", "--runs", "2", "--no-ceilings", "--ablate", "none")
    done = on_terminal(*words, "--out", tmp_path / "one", columns=120)
    assert done.returncode == 0, done.text
    for stage in ("preparing", "running 1 of 4 processes", "; so far accelerated ", "analysing", "writing reports"):
        assert stage in done.text
    assert "/?" not in done.text
    dumb = on_terminal(*words, "--out", tmp_path / "two", TERM="dumb")
    assert "\x1b" not in dumb.raw
    assert [line for line in dumb.lines if line.startswith(("running", "analysing", "writing"))] == [
        "running 4 processes",
        "analysing",
        "writing reports",
    ]


def test_an_encoding_without_the_signs_gets_them_spelt(trace: Path) -> None:
    """Microseconds are ``us`` in ASCII, and letters of a name are escaped."""
    path = trace.with_name("größe.etdump")
    path.write_bytes(trace.read_bytes())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "opscope", "analyze", str(path)]
    done = subprocess.run(words, env=environment, capture_output=True, check=True)
    text = done.stdout.decode("ascii")
    assert "100 us per inference" in text
    assert "gr\\xf6\\xdfe" in text
