"""A runtime that is registered runs, is read, attributed, reported and looked at by doctor: nothing else knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import opscope
from fakes import FakeClock
from made_runtime import NANOSECONDS, TRACE, MadeRuntime
from opscope.api import Settings, doctor
from opscope.core.errors import TraceFormatError, UsageError
from opscope.readers.compressed import inflated
from opscope.runtimes.registry import RUNTIMES

OPERATORS = ["Relu", "Softmax", "Neg", "Relu"]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The runtime beside the others."""
    made = MadeRuntime()
    RUNTIMES.append(made)
    yield
    RUNTIMES.remove(made)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Four operators on sixteen numbers."""
    file = tmp_path / "net.made"
    file.write_text(json.dumps({"sizes": [1, 16], "operators": OPERATORS}))
    return file


def test_its_program_is_profiled_analysed_and_reported(program: Path, tmp_path: Path) -> None:
    """Every operator has its place in the program, and its time."""
    out = tmp_path / "out"
    opscope.profile(program, settings=Settings(rounds=3, runs=4, warmup=1), out=out, clock=FakeClock())
    found = opscope.analyze(out)
    assert found.trace.format == "made-trace"
    own = [one for one in found.operators if one.kind != "framework"]
    assert [(one.instruction, one.name, one.time_ns, one.shape) for one in own] == [
        (number, f"{name}: {number}", NANOSECONDS[name], (1, 16)) for number, name in enumerate(OPERATORS)
    ]
    assert {one.attribution for one in own} == {"exact"}
    assert "Softmax: 1" in (out / "report.md").read_text()
    assert opscope.validate(out).valid


def test_its_trace_is_read_by_itself_and_with_the_program(program: Path, tmp_path: Path) -> None:
    """The reader is found by content; a damaged file is refused."""
    opscope.profile(program, settings=Settings(rounds=1, runs=2, warmup=0), out=tmp_path / "out", clock=FakeClock())
    kept = next((tmp_path / "out").rglob(f"{TRACE}.zst"))
    assert opscope.analyze(kept).program is None
    trace = tmp_path / TRACE
    trace.write_bytes(inflated(kept.read_bytes(), kept))
    assert opscope.analyze(trace).program is None
    assert opscope.analyze(trace, program=program).program is not None
    trace.write_text(trace.read_text()[:-3])
    with pytest.raises(TraceFormatError, match="not a made trace"):
        opscope.analyze(trace)


def test_what_it_does_not_do_is_refused(program: Path, tmp_path: Path) -> None:
    """In words that name it."""
    for settings, said in (
        (Settings(target="ssh:board"), "Made models run on this machine only"),
        (Settings(delegate="none"), "only a LiteRT model"),
        (Settings(data="w.ptd"), "a .made names its own weights file"),
    ):
        with pytest.raises(UsageError, match=said):
            opscope.profile(program, settings=settings, out=tmp_path / "out")


def test_doctor_tells_of_it() -> None:
    """Its version, beside those of the others."""
    assert ("made", "1") in [(check.name, check.found) for check in doctor()]
