"""Summaries, styles and progress on real terminals of several widths, and in pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.reports.document.console import styled
from programs import write_tiny_program
from pseudo_terminal import on_terminal
from traces import etdump

LONG = "Fully Connected (NC, QD8, F32, QC8W) of a name that is as long as some names of kernels are GEMM #17"
TRACE = f"""
    Program::load_method 900
    Method::execute 100000
      DELEGATE_CALL @0 70000
        {LONG} 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with an operator of a hundred letters."""
    path = tmp_path_factory.mktemp("terminal") / "trace.etdump"
    path.write_bytes(etdump(TRACE, repeat=4))
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle of six rounds."""
    directory = tmp_path_factory.mktemp("terminal")
    program = write_tiny_program(directory)
    settings = Settings(rounds=6, runs=2)
    profile(str(program), settings=settings, out=directory / "out", target=FakeTarget(), clock=FakeClock())
    return directory / "out"


@pytest.mark.parametrize(("columns", "whole"), [(80, False), (120, False), (160, True)])
def test_a_table_uses_the_columns_that_there_are(trace: Path, columns: int, whole: bool) -> None:
    """A name is cut in the middle where it does not fit, both ends seen; no line is wider than the terminal."""
    done = on_terminal("analyze", trace, columns=columns)
    row = next(line for line in done.lines if line.startswith("Fully Connected"))
    assert (LONG in row) is whole
    assert row.split()[-1] == "%"
    assert whole or ("…" in row and "GEMM #17" in row)
    assert max(map(len, done.lines)) <= columns


def test_a_pipe_has_whole_names_and_lines(trace: Path, bundle: Path) -> None:
    """Nothing is cut or wrapped, whatever width the shell's variable tells, and no line ends in blanks."""
    done = subprocess.run(
        [sys.executable, "-m", "opscope", "analyze", str(trace)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "40"},
    )
    assert LONG in done.stdout
    assert "\x1b" not in done.stdout
    compared = opscope("compare", f"{bundle}#baseline", bundle).stdout
    assert any(len(line) > 80 for line in compared.splitlines())
    assert all(line == line.rstrip() for line in (done.stdout + compared).splitlines())


def test_one_blank_line_between_tables(trace: Path, bundle: Path) -> None:
    """None is doubled, none is at the start or the end."""
    for words in (("analyze", trace), ("compare", f"{bundle}#baseline", bundle), ("kernels", bundle)):
        done = opscope(*words)
        assert "\n\n\n" not in done.stdout
        assert not done.stdout.startswith("\n")
        assert not done.stdout.endswith("\n\n")
    lines = opscope("analyze", trace).stdout.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith(("category ", "operator "))]
    assert len(heads) == 2
    assert all(lines[number - 1] == "" for number in heads)


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
    """NO_COLOR first, then what asks for colour, then what a terminal can do."""
    assert styled(variables, terminal=terminal) is expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"CLICOLOR": "0"}, False), ({"TERM": "dumb"}, False)],
)
def test_styles_on_a_terminal(trace: Path, variables: dict[str, str], expected: bool) -> None:
    """The variables are obeyed by the command; without styles not one escape sequence is written."""
    assert ("\x1b" in on_terminal("analyze", trace, **variables).raw) is expected


def test_forced_colour_in_a_pipe(trace: Path) -> None:
    """Styles, and still whole names."""
    done = subprocess.run(
        [sys.executable, "-m", "opscope", "analyze", str(trace)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FORCE_COLOR": "1"},
    )
    assert "\x1b[1m" in done.stdout
    assert LONG in done.stdout


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said on standard error, notes apart, which other runs on the machine may cause."""
    return [line for line in done.stderr.splitlines() if not line.startswith(("note:", "report:"))]


def test_a_pipe_hears_one_line_a_stage(tmp_path: Path) -> None:
    """Not one a repetition; a failure is said; nothing with --quiet, and results stay on standard output."""
    program = write_tiny_program(tmp_path)
    runner = tmp_path / "runner"
    runner.write_text("#!/bin/sh\nexit 3\n")
    runner.chmod(0o755)
    words = ("profile", program, "--target", f"runner:{runner}", "--rounds", "2")
    done = opscope(*words, "--out", tmp_path / "one")
    told = lines_of(done)
    assert told[0] == "running 4 processes"
    assert all("failed: " in line for line in told[1:3])
    assert told[3:-2] == ["analysing"]
    assert told[-2].startswith("error: ")
    assert "running" not in opscope(*words, "--out", tmp_path / "two", "--quiet").stderr


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_the_stages_of_a_real_run(toy_program: Path, tmp_path: Path) -> None:
    """In a pipe a line each, in their order; without a compiler one line says what that means for the figures."""
    words = [sys.executable, "-m", "opscope", "profile", str(toy_program), "--rounds", "2", "--runs", "2"]
    variables = {**os.environ, "CXX": str(tmp_path / "no-compiler")}
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in lines_of(done)] == ["running", "measuring", "analysing", "writing"]
    note = [line for line in done.stderr.splitlines() if "cannot build the native runner" in line]
    assert len(note) == 1
    assert "memory and start-up include Python and torch" in note[0]
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
