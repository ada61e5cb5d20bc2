"""Commands that need no runtime, on a Python that takes this machine for a Mac; see tests/support/darwin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DARWIN, DATA = ROOT / "tests" / "support" / "darwin", ROOT / "tests" / "data"
BUNDLE = DATA / "bundles" / "with-ceilings"
PROGRAM = DATA / "two_methods.pte"
COMMANDS = (
    ("--help",),
    ("analyze", DATA / "toy_cnn.etdump"),
    ("report", BUNDLE, "--out", "report"),
    ("compare", f"{BUNDLE}#baseline", f"{BUNDLE}#accelerated"),
    ("convert", BUNDLE, "--to", "csv", "--out", "operators.csv"),
    ("validate", BUNDLE),
    ("store", "add", BUNDLE, "--store", "store"),
    ("preflight", PROGRAM),
)


def run_on_a_mac(*words: object, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a command there, without the locale and the cache of this machine's user."""
    path = f"{DARWIN}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(place), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "opscope", *map(str, words)]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: str(words[0]))
def test_a_command_works(words: tuple[object, ...], tmp_path: Path) -> None:
    """With the exit code that it has on Linux, and without a word on standard error."""
    done = run_on_a_mac(*words, place=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    "words",
    [("count", DATA / "programs" / "toy_cnn-fp32.pte"), ("kernels", BUNDLE, "--count")],
    ids=lambda words: words[0],
)
def test_what_needs_linux_says_so(words: tuple[object, ...], tmp_path: Path) -> None:
    """Before anything is looked for that cannot be had there."""
    done = run_on_a_mac(*words, place=tmp_path)
    assert done.returncode == 6
    assert "Linux" in done.stderr
    assert "apt" not in done.stderr


def test_doctor_says_what_is_missing(tmp_path: Path) -> None:
    """The wheel that is installed here is Linux's; no hint names Debian's packages alone."""
    done = run_on_a_mac("doctor", place=tmp_path)
    assert done.returncode == 12
    assert "macOS: xcode-select --install" in done.stdout
