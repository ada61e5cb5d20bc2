"""ETDumps of runners whose clock counts something other than nanoseconds."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from command_line import opscope
from opscope.analysis.analysis import IMPOSSIBLE_TIMES, UNKNOWN_TICKS
from opscope.api import analyze, compare, convert, read
from opscope.core.errors import UsageError
from opscope.core.table.ticks import convert_ticks, read_tick_length
from opscope.workflows.reports.conversion import ConvertOptions
from traces import etdump, table

DATA = Path(__file__).parents[1] / "data"
CYCLES = DATA / "wild" / "cycles.etdp"
"""Eight calls of 50,000 ticks, of which each of three kernels takes 15,000."""


def clock_warnings(trace: Path, **options: str | Path) -> list[str]:
    """Return the codes of the warnings about the clock of a trace."""
    codes = (warning.code for warning in analyze(trace, **options).trace.warnings)
    return [code for code in codes if code in {IMPOSSIBLE_TIMES, UNKNOWN_TICKS}]


@pytest.mark.parametrize(
    ("ticks", "call_ns"),
    [("200MHz", 250_000), ("1 GHz", 50_000), ("us", 50_000_000), ("ns", 50_000), ("52ns", 2_600_000)],
)
def test_ticks_become_nanoseconds(ticks: str, call_ns: int) -> None:
    """The split keeps its shares, and nothing is said about the clock any more."""
    analysis = analyze(CYCLES, ticks=ticks)
    assert analysis.headline_ns == call_ns
    assert sum(row.time_ns for row in analysis.operators) == pytest.approx(call_ns)
    assert analysis.operators[0].share == pytest.approx(0.3)
    assert clock_warnings(CYCLES, ticks=ticks) == []


def test_impossible_times_are_not_trusted() -> None:
    """A call that records a kernel takes 20 ticks longer than the kernel."""
    assert clock_warnings(CYCLES) == [IMPOSSIBLE_TIMES]
    quality = analyze(CYCLES).quality
    assert quality is not None
    assert quality.grade.value == "do_not_trust"
    assert quality.reasons[0].rule == IMPOSSIBLE_TIMES


def test_traces_of_devices_that_count_cycles_are_doubted() -> None:
    """The delegate tells what it ran on, its times do not tell their unit."""
    assert clock_warnings(DATA / "wild" / "ethos.etdp") == [UNKNOWN_TICKS]


def test_real_nanoseconds_are_not_doubted() -> None:
    """On the machine that wrote this file a call takes 400 ns longer than its kernel, in the middle."""
    assert clock_warnings(DATA / "toy_cnn.etdump") == []


def test_work_that_no_processor_does_in_the_time_is_impossible(tmp_path: Path) -> None:
    """A convolution of 14.2 million multiply-accumulates in 7 ns."""
    bundle = DATA / "bundles" / "with-ceilings"
    (program,) = (bundle / "model").glob("*.pte")
    frame = read(bundle / "variants" / "baseline" / "round-00" / "trace.etdump").frame
    operators = frame.filter((frame["inference"] == 1) & frame["scope"].is_in(["delegate_op", "kernel"]))
    lines = ["Method::execute 100000"]
    for (instruction, scope), rows in operators.group_by("instruction", "scope", maintain_order=True):
        call = "DELEGATE_CALL" if scope == "delegate_op" else "OPERATOR_CALL"
        lines += [f"  {call} @{instruction} 1000", *(f"    {name} 7" for name in rows["name"])]
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(etdump("\n".join(lines), repeat=4))
    assert clock_warnings(trace) == []
    assert clock_warnings(trace, program=program) == [IMPOSSIBLE_TIMES]
    assert clock_warnings(trace, program=program, ticks="1MHz") == []


@pytest.mark.parametrize(
    "ticks", ["", "200", "MHz", "0Hz", "0ns", "20GHz", "50Hz", "20ms", "-1MHz", "nan MHz", "1e9Hz"]
)
def test_what_no_clock_has_is_refused_before_anything_is_read(ticks: str) -> None:
    """The file need not be there."""
    with pytest.raises(UsageError, match="--ticks"):
        analyze("absent.etdump", ticks=ticks)


@pytest.mark.parametrize("name", ["wild/litert25_gpu.txt", "bundles/flat-rooms", "wild/conv_lin.pte"])
def test_ticks_are_for_traces_without_a_unit(name: str) -> None:
    """Other formats and bundles state theirs, and programs have no times."""
    run = opscope("analyze", DATA / name, "--ticks", "200MHz")
    assert run.returncode == 2
    assert "--ticks" in run.stderr


def test_compare_and_convert_take_ticks(tmp_path: Path) -> None:
    """Both sides are on one clock."""
    comparison = compare(CYCLES, CYCLES, ticks="200MHz")
    assert comparison.end_to_end.baseline_ns == comparison.end_to_end.candidate_ns == 250_000
    (file,) = convert(CYCLES, "csv", out=tmp_path / "events.csv", options=ConvertOptions(ticks="200MHz"))
    times = read(file).inferences()["duration"]
    assert set(times) == {250_000}


@pytest.mark.parametrize("tick_ns", [Fraction(625, 12), Fraction(1, 3), Fraction(7, 5)])
def test_events_that_lie_in_each_other_still_do(tick_ns: Fraction) -> None:
    """Whatever is rounded, no self time is negative, and they add up to the call."""
    random = np.random.default_rng(3)
    for _ in range(40):
        durations = random.integers(0, 9, 5).tolist()
        inner = "".join(f"    Convolution (NHWC, F32) IGEMM #{number} {ns}\n" for number, ns in enumerate(durations))
        text = f"Method::execute {sum(durations) + 3}\n  DELEGATE_CALL @0 {sum(durations)}\n{inner}"
        (segments,) = convert_ticks(table(text, repeat=3), tick_ns, "trace.etdump").traces
        for segment in segments:
            assert segment.self_time().min() >= 0
            assert segment.self_time().sum() == segment.duration[:, segment.roots].sum()


def test_a_tick_is_a_frequency_or_a_time() -> None:
    """Both are exact."""
    assert read_tick_length("19.2 mhz") == Fraction(625, 12)
    assert read_tick_length("32768Hz") == Fraction(10**9, 32768)
    assert read_tick_length("µs") == read_tick_length("1us") == 1000
