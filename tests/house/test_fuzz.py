"""A brief fuzzing of every reader, and of readers whose fault is known; at length it is ``make fuzz``."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from opscope.core.errors import TraceFormatError

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
fuzzed = pytest.importorskip("fuzz.targets", reason="the fuzzer is not part of a source distribution")
corpus = pytest.importorskip("fuzz.corpus", reason="the fuzzer is not part of a source distribution")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    """The command line of the fuzzer, with the planted faults in reach."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "fuzz", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.nightly  # two seconds for each of thirty readers
@pytest.mark.parametrize("name", fuzzed.targets())
def test_a_reader_refuses_damage_and_nothing_worse(name: str, tmp_path: Path) -> None:
    """A hundred inputs, with a fixed seed: no other exception, crash, hang, flood of memory, or wrong table."""
    done = run(name, "--seconds", "1", "--least", "101", "--seed", "1", "--findings", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    inputs = int(re.search(r"([\d,]+) inputs", done.stdout)[1].replace(",", ""))
    assert inputs > 100


@pytest.mark.parametrize("name", fuzzed.targets())
def test_fuzzing_starts_from_valid_inputs(name: str) -> None:
    """Each is read whole; otherwise damage would never get beyond the first check."""
    target = fuzzed.target_named(name)
    for seed in target.seeds():
        target.read(seed)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raises", "KeyError"),
        ("hangs", "hang"),
        pytest.param(
            "grows", "MemoryError|memory", marks=pytest.mark.skipif(sys.platform != "linux", reason="no limit")
        ),
        ("crashes", "crash by SIG"),
    ],
)
def test_a_planted_fault_is_found_and_made_small(fault: str, expected: str, tmp_path: Path) -> None:
    """The run ends with 1, names the fault, and leaves the smallest input that shows it."""
    done = run(f"planted_faults:{fault}", "--seconds", "1", "--findings", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "") or fault == "crashes"
    assert re.search(expected, done.stdout), done.stdout + done.stderr
    inputs = [path for path in tmp_path.iterdir() if path.suffix != ".txt"]
    assert b"" in [path.read_bytes() for path in inputs]
    assert re.search(expected, inputs[0].with_name(f"{inputs[0].name}.txt").read_text("utf-8"))


def test_a_sound_reader_has_no_finding(tmp_path: Path) -> None:
    """The run ends with 0 and writes nothing."""
    done = run("planted_faults:sound", "--seconds", "1", "--findings", str(tmp_path / "findings"))
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "findings").exists()


def test_a_finding_is_read_again(tmp_path: Path) -> None:
    """With the exit code that tells whether it still fails."""
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"short")
    again = run("planted_faults:raises", "--input", str(damaged))
    assert (again.returncode, again.stdout.startswith("failed KeyError")) == (1, True)
    damaged.write_bytes(b"another_input")
    assert run("planted_faults:raises", "--input", str(damaged)).returncode == 0


def test_a_row_of_blanks_takes_time_that_fits_its_size(tmp_path: Path) -> None:
    """In a table of ``benchmark_model``: each blank could be where a column begins."""
    lines = fuzzed.target_named("benchmark-text").seeds()[0].splitlines(keepends=True)
    heading = next(number for number, line in enumerate(lines) if b"[node type]" in line or b"node type," in line)
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"".join([*lines[: heading + 1], b" " * (1 << 14) + b"x\n", *lines[heading + 1 :]]))
    done = run("benchmark-text", "--input", str(damaged))
    assert (done.returncode, done.stdout.partition(" ")[0]) == (0, "refused")


def test_an_unknown_target_is_refused() -> None:
    """The known ones are listed."""
    done = run("etdumb", "--seconds", "1")
    assert done.returncode != 0
    assert "etdump" in done.stderr


def test_lines_that_an_input_reaches_are_seen(tmp_path: Path) -> None:
    """Otherwise nothing tells which damage leads on, and fuzzing is blind."""
    done = run("etdump", "--seconds", "0", "--least", "30", "--findings", str(tmp_path))
    assert int(re.search(r"(\d+) lines covered", done.stdout)[1]) > 200


@pytest.mark.parametrize("name", [name for name, target in fuzzed.targets().items() if target.structure])
def test_structures_are_mostly_read_and_often_refused(name: str) -> None:
    """Both go deep: what is whole and odd is read, and what contradicts itself is refused by its meaning."""
    target, rng = fuzzed.target_named(name), random.Random(7)
    structure, outcomes = target.structure, Counter()
    values = list(structure.starts())
    for value in values:
        target.read(structure.written(value))
    for _ in range(60):
        changed = structure.changed(rng, rng.choice(values), rng.choice(values))
        try:
            target.read(structure.written(changed))
            outcomes["read"] += 1
        except TraceFormatError:
            outcomes["refused"] += 1
    assert outcomes["read"] > 20
    assert outcomes["refused"] > 0


def test_what_is_kept_is_small() -> None:
    """The corpus stands in the repository: some tens of KB, and no target has more than its share."""
    archives = list(corpus.DIRECTORY.glob("*.zip"))
    assert {path.stem for path in archives} <= set(fuzzed.targets())
    assert 0 < sum(path.stat().st_size for path in archives) < 100_000
    for path in archives:
        inputs = corpus.kept(path.stem)
        assert 0 < len(inputs) <= corpus.MOST_INPUTS
        assert sum(map(len, inputs)) <= corpus.MOST_BYTES
