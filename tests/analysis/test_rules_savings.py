"""What a finding says it would save: on what that rests, how sure it is, and which findings count the same time."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.analysis.findings import message as messages
from opscope.analysis.findings.message import (
    Message,
    MessageKind,
    Saving,
    Severity,
    order_findings,
    passed,
    with_overlaps,
)
from opscope.analysis.roofline import Bound, Interval, Placement, Roofline
from opscope.analysis.rules.evidence import Evidence, display_name
from opscope.analysis.rules.rules import examine, merge_findings
from opscope.core.table import EventTable
from opscope.core.table.places import OperatorKey
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])


def trace(norm: int) -> str:
    """An inference of 1,000 us: 400 + 300 + 200 us of convolutions, the rest in a portable operator."""
    return f"""
        Method::execute {(900 + norm) * 1000}
          DELEGATE_CALL @0 900000
            Convolution (NHWC, F32) IGEMM #1 400000
            Convolution (NHWC, F32) IGEMM #2 300000
            Convolution (NHWC, F32) IGEMM #3 200000
          OPERATOR_CALL @1 {norm * 1000}
            native_call_native_layer_norm.out {norm * 1000}
    """


def processes(*norms: int) -> EventTable:
    """One process for each of these times of the portable operator."""
    return EventTable.concat([table(trace(norm), repeat=2) for norm in norms])


def analysed(events: EventTable) -> Analysis:
    """Its analysis."""
    return analyse(events, SOURCE)


def found(analysis: Analysis, rule: str) -> Message:
    """The finding of a rule."""
    return next(finding for finding in analysis.findings if finding.rule == rule)


def test_without_ceilings_a_saving_is_the_limit() -> None:
    """What Amdahl's law leaves: the whole time of the operator, and no more is claimed than at most."""
    portable = found(analysed(processes(90, 100, 110)), "portable_operators")
    assert portable.saving_ns == 100_000
    assert portable.saving_basis == "at most, if removed entirely"


def test_the_interval_is_that_of_the_measurement() -> None:
    """It holds the mean and is as wide as processes differ; a single process says nothing about others."""
    low, high = found(analysed(processes(90, 100, 110)), "portable_operators").saving_ci95_ns or (0, 0)
    assert 60_000 < low <= 90_000
    assert 110_000 <= high < 140_000
    assert found(analysed(processes(100)), "portable_operators").saving_ci95_ns is None


def roofline(analysis: Analysis, ceilings: dict[str, float]) -> Roofline:
    """A roofline with these ceilings in us by name."""
    placed = [
        Placement(
            method=o.method,
            instruction=o.instruction,
            position=o.position,
            bound=Bound.COMPUTE,
            ceiling="ceiling",
            compute_ns=ceilings[o.name] * 1000,
            memory_ns=0.0,
            ceiling_ns=ceilings[o.name] * 1000,
            overhead_ns=None,
            macs_per_s=None,
            bytes_per_s=None,
            fraction=Interval(ceilings[o.name] * 1000 / o.time_ns, None),
            headroom_ns=Interval(o.time_ns - ceilings[o.name] * 1000, o.time_ns - ceilings[o.name] * 1000),
            above_ceiling=False,
            note=None,
        )
        for o in analysis.operators
        if o.name in ceilings
    ]
    return Roofline(placed, [], 0.0, 0.0, 0.0, Interval(0.0, 0.0), 0, None, 0.5, 0.0)


CEILINGS = {
    "Convolution (NHWC, F32) IGEMM #1": 320.0,
    "Convolution (NHWC, F32) IGEMM #2": 240.0,
    "Convolution (NHWC, F32) IGEMM #3": 160.0,
    "native_call_native_layer_norm.out": 20.0,
}


def evidence(ceilings: dict[str, float]) -> Evidence:
    """Two processes with the ceilings given."""
    analysis = analysed(processes(100, 100))
    times = np.array([[o.time_ns for o in analysis.operators]] * 2)
    return Evidence(analysis.latency, analysis.operators, roofline=roofline(analysis, ceilings), times=times)


def test_with_ceilings_a_portable_operator_is_held_against_what_delegates_reach() -> None:
    """Delegates reach 80 % of their ceilings, so an operator whose ceiling is 20 us would take 25 us of its 100."""
    findings, _ = examine(evidence(CEILINGS))
    portable = next(finding for finding in findings if finding.rule == "portable_operators")
    assert portable.saving_ns == pytest.approx(75_000)
    assert portable.saving_ci95_ns == pytest.approx((75_000, 80_000))
    assert "as near to the machine's ceilings as its own operators: 80.0 %" in (portable.saving_basis or "")


def test_the_bottleneck_near_its_ceilings_promises_nothing() -> None:
    """Convolutions at 80 % of what the machine was seen to reach: only less work helps, which was not measured."""
    findings, _ = examine(evidence(CEILINGS))
    bottleneck = next(finding for finding in findings if finding.rule == "bottleneck")
    assert "80.0 % of that" in bottleneck.evidence
    assert bottleneck.saving_ns is None
    assert (bottleneck.saving_basis or "").startswith("not reported: it runs near its ceilings")
    assert "int8" in bottleneck.next_step


def test_the_bottleneck_far_from_its_ceilings_says_what_they_would_save() -> None:
    """Convolutions at half of it: the rest is the most that better use of the machine could save."""
    findings, _ = examine(evidence(CEILINGS | {"Convolution (NHWC, F32) IGEMM #1": 50.0}))
    bottleneck = next(finding for finding in findings if finding.rule == "bottleneck")
    assert bottleneck.saving_ns == pytest.approx(450_000)
    assert "shapes" in bottleneck.next_step


def finding(
    rule: str, severity: Severity, saving: float | None, low: float | None = None, places: int = 0, step: str = ""
) -> Message:
    """A finding about the first operators."""
    interval = None if low is None else (low, low * 10)
    about = [OperatorKey("forward", number, 0) for number in range(places)]
    return messages.finding(
        rule, severity, (rule, "figures", step or f"step of {rule}"), Saving(saving, interval), about
    )


def test_findings_come_by_severity_then_by_what_is_sure_to_be_saved() -> None:
    """The lower end of the saving decides, not its middle; what makes others meaningless comes first."""
    listed = [
        finding("certain", Severity.MEDIUM, 50.0, 40.0),
        finding("vague", Severity.MEDIUM, 90.0, 1.0),
        finding("nothing", Severity.MEDIUM, None),
        finding("severe", Severity.HIGH, 10.0, 5.0),
        finding("decisive", Severity.HIGH, None),
    ]
    order = [one.rule for one in order_findings(listed, ("decisive",))]
    assert order == ["decisive", "severe", "certain", "vague", "nothing"]


TIMES = {OperatorKey("forward", number, 0): 1e6 for number in range(4)}


def test_time_that_an_earlier_finding_counts_is_said() -> None:
    """Nobody adds up the same milliseconds twice: wholly or in part, the later finding says so."""
    first, part, whole = (finding(name, Severity.HIGH, 1e6, places=n) for name, n in (("a", 2), ("b", 4), ("c", 2)))
    told = [one.evidence for one in with_overlaps([first, part, whole], [], TIMES)[0]]
    assert told[0] == "figures"
    assert told[1] == "figures; 2.000 ms of the time of these operators also counts in a: do not add the savings"
    assert told[2] == "figures; the time of these operators also counts in a: do not add the savings"


def test_the_same_advice_about_mostly_the_same_time_is_given_once() -> None:
    """Two thirds of the time are of the first; half of it is not enough, nor is it where something else is advised."""
    first, more, other = (
        finding("a", Severity.HIGH, 1e6, places=2, step="fuse them"),
        finding("b", Severity.HIGH, 1e6, places=3, step="fuse them"),
        finding("c", Severity.HIGH, 1e6, places=2, step="drop them"),
    )
    half = finding("d", Severity.HIGH, 1e6, places=4, step="fuse them")
    kept, repeated = with_overlaps([first, more, other, half], [], TIMES)
    assert [one.rule for one in kept] == ["a", "c", "d"]
    assert [(one.kind, one.rule, one.title) for one in repeated] == [
        (MessageKind.PASSED, "b", "b: same operators as a")
    ]


def test_findings_of_other_sources_are_held_against_the_first() -> None:
    """A finding of the comparison about operators that the variant's own findings count says so, too."""
    group = ([finding("a", Severity.MEDIUM, 4e6, places=4)], [passed("b", "fine")])
    other = ([finding("c", Severity.HIGH, 1e6, places=1)], [passed("d", "fine")])
    findings, ruled_out = merge_findings([group, other], TIMES)
    assert [one.rule for one in findings] == ["c", "a"]
    assert "also counts in a" in findings[0].evidence
    assert [item.rule for item in ruled_out] == ["b", "d"]


def test_a_rule_that_could_not_be_checked_is_told_from_one_that_passed() -> None:
    """Without ceilings, nothing is said about them; the portable share was looked at."""
    ruled_out = {item.rule: item for item in analysed(processes(1, 1)).ruled_out}
    assert ruled_out["headroom"].kind is MessageKind.NOT_CHECKED
    assert ruled_out["portable_operators"].kind is MessageKind.PASSED


def test_findings_survive_json() -> None:
    """Interval, basis and operators are part of what is published."""
    portable = found(analysed(processes(90, 100, 110)), "portable_operators")
    assert msgspec.json.decode(msgspec.json.encode(portable), type=Message) == portable
    assert portable.operators == (OperatorKey(portable.operators[0].method, 1, 0),)


@pytest.mark.parametrize("name", ["a|b`c", "<script>", "x" * 61, "line\nbreak", "1st", ""])
def test_names_from_files_do_not_get_into_advice(name: str) -> None:
    """What a person should do is our own text; a name that is no plain word stays out of it."""
    assert display_name(name) == "the operator"
    assert display_name("native_layer_norm.out") == "native_layer_norm.out"
