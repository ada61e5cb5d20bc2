"""Programs with several methods: how inferences are named, timed and compared one method at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fakes import FakeClock, FakeTarget, PhasesTarget
from opscope.analysis.analysis import TraceSource, analyse
from opscope.analysis.compare.compare import RelatedData, compare
from opscope.analysis.gate.decision import Outcome
from opscope.analysis.gate.gate import Thresholds, gate
from opscope.analysis.latency.latency import CallTimes
from opscope.analysis.latency.methods import durations_by_method
from opscope.api import Settings, check, content, profile
from opscope.core.errors import MismatchError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.core.table import Clock, EventTable
from opscope.core.table.calls import named_by_calls
from opscope.program.phases import Phase, PhaseKind
from opscope.readers.registry import read_trace
from opscope.reports.content.content import latency_ns
from opscope.reports.gate import comparison_text
from opscope.reports.report import markdown_report
from opscope.reports.sections.latency import calls_text
from opscope.runtimes.executorch.program_files import planned_calls
from traces import Node, encode, etdump

pytestmark = pytest.mark.usefixtures("small_repeats")

TWO_METHODS = Path(__file__).parents[1] / "data" / "two_methods.pte"
CALLS = ("prefill", "decode", "decode")


def table(tmp_path: Path, *durations: int, warmup: int = 0, order: Sequence[str] = CALLS) -> EventTable:
    """One process whose inferences all look alike, so that nothing but the order tells their methods."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(encode([("Execute", [Node("Method::execute", duration)]) for duration in durations]))
    return named_by_calls(read_trace(path).table, order).with_warmup(warmup)


def test_twins_are_told_apart_by_the_order_of_their_calls(tmp_path: Path) -> None:
    """Methods with the same instructions look alike in a trace."""
    named = table(tmp_path, 900, 100, 120, 910, 110, 130)
    found = named.inference_times()
    assert [found.method[row] for row in range(6)] == ["prefill", "decode", "decode"] * 2
    assert found.duration.tolist() == [900, 100, 120, 910, 110, 130]
    assert found.inference.tolist() == list(range(6))


def test_inferences_in_one_piece_are_named_too() -> None:
    """A trace that was not decoded as repeats of one structure has all its inferences in one segment."""
    durations = [900, 100, 120, 910]
    columns = {
        "run": np.arange(4),
        "scope": ["execute"] * 4,
        "name": ["Method::execute"] * 4,
        "start": np.cumsum([0, *durations[:-1]]),
        "duration": np.array(durations),
        "parent": np.full(4, -1),
    }
    found = named_by_calls(EventTable.build(columns, Clock.NS), CALLS).inference_times()
    assert [found.method[row] for row in range(4)] == ["prefill", "decode", "decode", "prefill"]


def test_each_method_has_its_own_figures(tmp_path: Path) -> None:
    """Latency, share of the time, categories that add up to a call, and tokens per second."""
    named = table(tmp_path, 900, 100, 120, 900, 100, 120, 900, 100, 120, warmup=3)
    source = TraceSource("t", "etdump", [("t", "0")])
    found = analyse(
        named, source, phases={"prefill": Phase(PhaseKind.PREFILL, 16), "decode": Phase(PhaseKind.DECODE, 1)}
    )
    prefill, decode = found.methods
    assert (prefill.method, prefill.calls, prefill.latency.median_ns) == ("prefill", 2, 900)
    assert (decode.method, decode.calls, decode.latency.median_ns) == ("decode", 4, 110)
    assert prefill.share + decode.share == pytest.approx(1)
    assert prefill.share == pytest.approx(1800 / 2240)
    assert sum(row.time_ns for row in decode.categories) == pytest.approx(110)
    assert sum(row.share for row in decode.categories) == pytest.approx(1)
    assert decode.tokens_per_second == pytest.approx(1e9 / 110)
    assert prefill.tokens_per_second == pytest.approx(16e9 / 900)
    assert decode.latency.source == "traced"


def test_tokens_per_second_come_from_calls_without_tracing(tmp_path: Path) -> None:
    """Behind the warm-up, by the order of the calls; an unknown number of tokens gives no rate."""
    named = table(tmp_path, 900, 100, 120, 900, 100, 120, warmup=3)
    calls = CallTimes({0: [1, 1, 1, 800, 90, 110]}, {}, 3, {}, CALLS)
    prefill, decode = analyse(
        named, TraceSource("t", "etdump", [("t", "0")]), None, None, calls, {"decode": Phase(PhaseKind.DECODE, 1)}
    ).methods
    assert decode.traced is not None
    assert decode.latency.samples_ns == [90, 110]
    assert decode.tokens_per_second == pytest.approx(1e9 / 100)
    assert decode.latency.source == "untraced"
    assert (prefill.phase, prefill.tokens_per_second) == (None, None)


def test_one_method_without_tokens_needs_no_rows(tmp_path: Path) -> None:
    """It is the whole."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump("Method::execute 100", repeat=3))
    assert analyse(read_trace(path).table, TraceSource("t", "etdump", [("t", "0")])).methods == []


def test_a_method_is_compared_with_itself(tmp_path: Path) -> None:
    """Decode became faster and prefill did not: each has a verdict of its own."""
    old, new = sides(tmp_path, (90_000, 90_000), (10_000, 8_000))
    compared = compare(old, new, labels=(("b", "b"), ("c", "c")), paired=True)
    verdicts = {one.method: one.end_to_end for one in compared.methods}
    assert verdicts["decode"].verdict is Verdict.FASTER
    assert verdicts["decode"].speedup == pytest.approx(1.25, rel=0.01)
    assert verdicts["prefill"].verdict is not Verdict.FASTER


def sides(directory: Path, *before_after: tuple[int, int]) -> list[EventTable]:
    """Eight processes a side of four rounds of prefill and two of decode, each with the two times in ns."""
    rng = np.random.default_rng(0)
    times = [[own[side] for own in before_after] for side in range(2)]
    return [
        EventTable.concat(
            [
                table(directory, *(int(d * rng.normal(1, 0.002)) for _ in range(4) for d in (own[0], own[1], own[1])))
                for _ in range(8)
            ]
        )
        for own in times
    ]


def test_a_slower_prefill_is_no_pass_because_decode_is_the_more_frequent_call(tmp_path: Path) -> None:
    """Each method is a criterion of its own, with its own limit where one is set; the text names the one that fails."""
    old, new = sides(tmp_path, (90_000, 117_000), (10_000, 10_000))
    split = [durations_by_method(side) for side in (old, new)]
    untraced = {name: tuple([own.astype(float) for own in side[name]] for side in split) for name in split[0]}
    together = tuple([np.concatenate(own).astype(float) for own in zip(*side.values(), strict=True)] for side in split)
    beside = RelatedData(untraced=together, methods=untraced)
    compared = compare(old, new, labels=(("b", "b"), ("c", "c")), paired=True, related=beside)
    assert compared.end_to_end.speedup == pytest.approx(1, abs=0.01)
    decision = gate(compared)
    first, second = decision.criteria
    assert [(one.method, one.outcome) for one in decision.criteria] == [
        ("prefill", Outcome.REGRESSION),
        ("decode", Outcome.PASSED),
    ]
    assert (first.name, first.measured) == ("latency of prefill against the baseline", pytest.approx(0.3, abs=0.01))
    assert second.candidate_ns == pytest.approx(10_000, rel=0.01)
    text = comparison_text(decision)
    assert text.answer.startswith("the candidate is slower in prefill (+30")
    assert text.sentence.startswith("prefill 117 µs, speedup 0.77x; decode 10.0 µs")
    assert text.properties["slowdown of prefill"].startswith("0.3")
    assert gate(compared, thresholds=Thresholds(methods={"prefill": 0.4})).outcome is Outcome.PASSED


def test_a_ratio_of_mixtures_of_other_calls_is_withheld(tmp_path: Path) -> None:
    """Where the sides call other methods, or the same ones in other proportions; shared methods are still compared."""
    old, new = sides(tmp_path, (90_000, 90_000), (10_000, 10_000))
    alone = EventTable.concat([table(tmp_path, *(90_000 + n for n in range(4)), order=("prefill",)) for _ in range(8)])
    compared = compare(old, alone, labels=(("b", "b"), ("c", "c")), paired=True)
    assert compared.end_to_end.speedup is None
    assert compared.end_to_end.reason == "the two sides call different methods: decode, prefill and prefill"
    assert [one.method for one in compared.methods] == ["prefill"]
    often = EventTable.concat(
        [table(tmp_path, *[90_000, 10_000, 10_000, 10_000] * 3, order=("prefill", *["decode"] * 3)) for _ in range(8)]
    )
    compared = compare(new, often, labels=(("b", "b"), ("c", "c")), paired=True)
    assert compared.end_to_end.reason == "the two sides call their methods in different proportions"
    assert {one.method: one.end_to_end.speedup is None for one in compared.methods} == {
        "prefill": False,
        "decode": False,
    }


def test_the_order_of_calls_is_planned_and_written_down(tmp_path: Path) -> None:
    """Every process calls both methods in turn, runs and warm-up are rounds of calls, the reports have a table."""
    target = FakeTarget()
    settings = Settings(rounds=6, runs=4, warmup=2, ceilings=False, methods=("prefill", "decode:3"))
    done = profile(str(program(tmp_path)), settings=settings, out=tmp_path / "out", target=target, clock=FakeClock())
    plan = done.content.manifest.plan
    assert (plan.calls, plan.runs, plan.warmup) == (["prefill", "decode", "decode", "decode"], 16, 8)
    assert target.jobs[0].calls == tuple(plan.calls)
    assert target.jobs[0].inferences == 24
    analysis = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert [(row["method"], row["calls"]) for row in analysis["methods"]] == [("prefill", 24), ("decode", 72)]
    shown = content(tmp_path / "out")
    assert shown.shown is not None
    assert shown.shown.headline_of() == shown.shown.headline_ns
    assert shown.shown.headline_of("prefill") == pytest.approx(latency_ns(shown, "accelerated", "prefill"), rel=0.1)
    report = markdown_report(shown)
    assert "## Methods" in report
    assert "prefill, then decode 3 times" in report
    assert "--runs 4 --warmup 2 --methods prefill,decode:3" in report
    assert 'id="methods"' in (tmp_path / "out" / "report.html").read_text()


def bundle(directory: Path, *methods: str) -> Path:
    """A bundle of two variants that calls these methods."""
    settings = Settings(rounds=6, runs=4, warmup=2, ceilings=False, methods=methods)
    target, out = FakeTarget(), directory / "-".join(methods).replace(":", "x")
    profile(str(program(directory)), settings=settings, out=out, target=target, clock=FakeClock())
    return out


def test_a_budget_limits_methods_by_name(tmp_path: Path) -> None:
    """Each with its own limits; one for all calls together is refused, and so is a name that is not called."""
    measured, file = bundle(tmp_path, "prefill", "decode:3"), tmp_path / "budget.toml"
    sides = f"{measured}#accelerated", f"{measured}#baseline"
    file.write_text('[[method]]\nname = "decode"\nmax_ms = 0.000001\nmax_slower = 0.5\n')
    criteria = check(*sides, budget=file).criteria
    assert [(one.name, one.method) for one in criteria] == [
        ("latency of prefill against the baseline", "prefill"),
        ("latency of decode against the baseline", "decode"),
        ("latency of decode", "decode"),
    ]
    assert [one.limit for one in criteria] == pytest.approx([0.03, 0.5, 1.0])
    assert criteria[2].outcome is Outcome.REGRESSION
    for text, place in (
        ("[end_to_end]\nmax_ms = 1", "end_to_end.max_ms"),
        ('[[method]]\nname = "decod"\nmax_ms = 1', "method[0].name"),
        ('[[method]]\nname = "decode"', "method[0]"),
        ('[[method]]\nname = "decode"\nmax_ms = 1\n[[method]]\nname = "decode"\nmax_ms = 2', "method[1].name"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError) as caught:
            check(*sides, budget=file)
        assert place in str(caught.value.where or caught.value)


def test_acceleration_that_slows_one_method_is_found(tmp_path: Path) -> None:
    """Though it helps the other one; figures of both are in the evidence."""
    settings = Settings(rounds=6, runs=4, warmup=1, ceilings=False, methods=("prefill", "decode:3"))
    target = PhasesTarget(0, slowdown=1.0)
    slowed = {("prefill", False): 1.0, ("prefill", True): 2.0, ("decode", False): 1.5, ("decode", True): 1.0}
    target.phase = lambda job, name: slowed[name, bool(job.clear)]
    done = profile(str(program(tmp_path)), settings=settings, out=tmp_path / "out", target=target, clock=FakeClock())
    (message,) = [one for one in done.content.findings if one.rule == "acceleration_effect"]
    assert message.title == "Acceleration makes decode slower"
    assert message.evidence.startswith("prefill 1.9")
    assert "; decode 0.7" in message.evidence


def test_sides_that_call_other_methods_are_not_comparable(tmp_path: Path) -> None:
    """Unless it is forced; then the methods that both call are."""
    both, one = bundle(tmp_path, "prefill", "decode:3"), bundle(tmp_path, "decode")
    with pytest.raises(MismatchError, match="only one of the sides calls prefill"):
        check(f"{one}#accelerated", f"{both}#accelerated")
    forced = check(f"{one}#accelerated", f"{both}#accelerated", force=True)
    assert [criterion.method for criterion in forced.criteria] == ["decode"]


def program(directory: Path) -> Path:
    """A real program with the methods prefill and decode."""
    path = directory / "two.pte"
    path.write_bytes(TWO_METHODS.read_bytes())
    return path


def test_every_method_is_called_unless_one_is_wanted(tmp_path: Path) -> None:
    """In the order of the program where no record of the export tells another."""
    two = program(tmp_path)
    assert sorted(planned_calls(two, ())) == ["decode", "prefill"]
    assert planned_calls(two, ("decode:2",)) == ["decode", "decode"]
    for asked, told in (("decod", "did you mean decode"), ("decode:0", "from 1"), ("decode:x", "from 1")):
        with pytest.raises(UsageError) as raised:
            planned_calls(two, (asked,))
        assert told in (raised.value.hint or "")


def test_an_order_of_calls_reads_as_the_option_does() -> None:
    """Repeated calls are counted."""
    assert calls_text(["prefill", "decode", "decode", "prefill"]) == "prefill,decode:2,prefill"


def test_the_first_inference_is_held_against_calls_of_its_own_method(tmp_path: Path) -> None:
    """A prompt that takes nine times as long as a token is no slow start."""
    named = table(tmp_path, *(900, 100, 100) * 6, warmup=3)
    found = analyse(named, TraceSource("t", "etdump", [("t", "0")]))
    assert "slow_first_inference" not in {one.rule for one in found.findings}
    slow = table(tmp_path, 5000, 100, 100, *(900, 100, 100) * 5, warmup=3)
    found = analyse(slow, TraceSource("t", "etdump", [("t", "0")]))
    assert "slow_first_inference" in {one.rule for one in found.findings}
