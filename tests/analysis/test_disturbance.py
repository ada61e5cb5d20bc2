"""What other processes took from the inferences: marked, named as the cause, and named when it is not even."""

from __future__ import annotations

import numpy as np
import pytest

from opscope.analysis.findings.message import Grade, Message, MessageKind, grade_left, judge
from opscope.analysis.latency.latency import CallTimes, preempted_calls
from opscope.analysis.quality.disturbance import ProcessCalls, VariantCalls, examine_disturbance, withheld_reason
from opscope.core.system.usage import ProcessUsage

SLICE = 4_000_000
CALL = 1_000_000


def usage(wall: int, waited: int = 0, stolen: int = 0) -> ProcessUsage:
    """What the system counted beside these calls."""
    return ProcessUsage(wall, wall - waited - stolen, 0, 0, 0, 0, run_delay_ns=waited, cpus=1, steal_ns=stolen)


def process(preempted_share: float, *, count: int = 40, stolen: bool = False, known: bool = True) -> ProcessCalls:
    """Calls of 1 ms, of which this share lost a slice of 4 ms each, to another process or to a hypervisor."""
    hit = np.arange(count) < round(preempted_share * count)
    off = np.where(hit, SLICE, 1_000)
    lost = int(off.sum())
    wall = (CALL + off).tolist()
    told = usage(sum(wall), 0 if stolen else lost, lost if stolen else 0) if known else None
    return ProcessCalls(wall, off.tolist(), told)


def variant(*shares: float, name: str = "accelerated", **more: bool) -> VariantCalls:
    """Processes with these shares of preempted calls."""
    return VariantCalls(name, [process(share, **more) for share in shares])


def told(*variants: VariantCalls) -> dict[str, Message]:
    """What the checks say, by their names."""
    return {message.rule: message for message in examine_disturbance(variants)}


def limits(*variants: VariantCalls) -> dict[str, Grade]:
    """What limits the grade, and to what."""
    return {reason.rule: grade_left(reason) for reason in judge(examine_disturbance(variants)).reasons}


def test_a_call_is_preempted_when_it_was_off_the_cpu_for_more_than_a_twentieth() -> None:
    """The definition, at its edge."""
    assert preempted_calls([1_000, 1_000, 1_000, 1_000], [0, 50, 51, 1_000]) == [False, False, True, True]


def test_quiet_rounds_pass_and_the_count_is_told() -> None:
    """No inference of 240 was preempted."""
    found = told(variant(*[0.0] * 6), variant(*[0.0] * 6, name="baseline"))
    assert {message.kind for message in found.values()} == {MessageKind.PASSED}
    assert found["preemption"].title == "0 of 480 inferences preempted, steal 0.0 %"


def test_the_cause_its_size_and_what_was_done_are_named() -> None:
    """Three of six processes shared their CPU: every second inference in them lost a slice."""
    found = told(variant(0, 0, 0, 0.5, 0.5, 0.5))["preemption"]
    assert found.title == (
        "another process took 50.0 % of the CPU time (60 of 240 inferences preempted, steal 0.0 %); "
        "excluded from latency and comparison"
    )
    assert found.next_step


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        (variant(*[0.5] * 6), "another process took"),
        (variant(*[0.5] * 6, stolen=True), "the hypervisor took"),
        (variant(*[0.5] * 6, known=False), "something else took"),
        (
            VariantCalls("a", [ProcessCalls([CALL + SLICE], [SLICE], usage(CALL + SLICE))] * 6),
            "waiting for storage or another program took",
        ),
    ],
)
def test_who_took_the_time_is_what_the_kernel_counted(own: VariantCalls, cause: str) -> None:
    """Waiting for a CPU, time that a hypervisor stole, neither of the two, or not known."""
    assert told(own)["preemption"].title.startswith(cause)


@pytest.mark.parametrize(
    ("shares", "grade"),
    [
        ([0.0] * 6, None),
        ([0.05] * 6, None),
        ([0.2] * 6, Grade.USABLE),
        ([0, 0, 0, 0, 0, 0.5], Grade.USABLE),
        ([0, 0, 0, 0.4, 0.4, 0.4], Grade.USABLE),
        ([0, 0, 0.5, 0.5, 0.5, 0.5], Grade.DO_NOT_TRUST),
        ([0, 0, 0, 0, 0.95, 0.95], Grade.DO_NOT_TRUST),
    ],
)
def test_the_more_was_taken_the_less_they_are_trusted(shares: list[float], grade: Grade | None) -> None:
    """A few marked inferences do not matter; half of the CPU time, or processes without a quiet inference, decide."""
    assert limits(variant(*shares)).get("preemption") is grade


def test_contention_that_hits_one_variant_more_is_named() -> None:
    """Long calls of the baseline are hit nearly always, so that none of them can be left out; short ones seldom."""
    fast = variant(*[0.1] * 6)
    slow = variant(*[0.95] * 6, name="baseline")
    found = told(slow, fast)["even_contention"]
    assert found.title == (
        "contention slowed baseline by 5.00x and accelerated by 1.00x, which interleaving cannot cancel"
    )
    assert limits(slow, fast)["even_contention"] is Grade.DO_NOT_TRUST


def test_contention_that_hits_all_alike_is_cancelled() -> None:
    """Both variants lost the same share: the absolute latency suffers, the ratio does not."""
    both = [variant(*[0.8] * 6), variant(*[0.8] * 6, name="baseline")]
    assert limits(*both) == {"preemption": Grade.DO_NOT_TRUST}


def test_what_was_not_recorded_is_not_passed() -> None:
    """Bundles from before, runners that cannot be asked, and rounds of both kinds in one bundle."""
    older = VariantCalls("baseline", [], unrecorded=6)
    mixed = VariantCalls("baseline", [process(0.0)], unrecorded=5)
    for other in (older, mixed):
        found = told(variant(*[0.0] * 6), other)
        assert {message.kind for message in found.values()} == {MessageKind.NOT_CHECKED}
        assert "not recorded" in found["preemption"].title


def test_one_variant_has_nothing_to_compare() -> None:
    """Whether contention was even is not asked."""
    assert list(told(variant(0.0))) == ["preemption"]


def test_preempted_calls_are_left_out_where_others_remain() -> None:
    """Behind the warm-up, of each round that has a record; a process with hardly a quiet call keeps all of them."""
    walls = [9, 100, 160, 100, 100, 100, 101]
    rounds = {0: walls, 1: walls, 2: walls}
    calls = CallTimes(rounds, {}, 1, {}, off_cpu={1: [9, 0, 60, 0, 0, 0, 5], 2: [9, 0, 60, 60, 60, 60, 0]})
    assert calls.settled() == {0: walls[1:], 1: [100, 100, 100, 100, 101], 2: walls[1:]}
    assert [own.tolist() for own in calls.durations([1])] == [[100, 100, 100, 100, 101]]


def test_the_calls_of_a_method_stay_its_own_when_others_are_left_out() -> None:
    """The order of methods counts calls from the first one, preempted ones too."""
    walls = [10, 20, 11, 90, 12, 22, 13, 23]
    off_cpu = {0: [0, 0, 0, 70, 0, 0, 0, 0]}
    calls = CallTimes({0: walls}, {}, 0, {}, ("prefill", "decode"), off_cpu=off_cpu)
    assert calls.settled("prefill") == {0: [10, 11, 12, 13]}
    assert calls.settled("decode") == {0: [20, 22, 23]}


@pytest.mark.parametrize(
    ("baseline", "candidate", "reason"),
    [
        ([0.1] * 6, [0.0] * 6, None),
        ([0.2] * 6, [0.2] * 6, None),
        ([0.6] * 6, [0.1] * 6, "other processes took 70.6 % of the CPU time of baseline"),
    ],
)
def test_when_a_ratio_is_withheld(baseline: list[float], candidate: list[float], reason: str | None) -> None:
    """Where quiet inferences remain they make the ratio; where others had the CPU there is none."""
    assert withheld_reason([variant(*baseline, name="baseline"), variant(*candidate)]) == reason


def test_processes_without_a_quiet_inference_withhold_the_ratio() -> None:
    """Little was taken, but of every inference: nothing is left to rest on."""
    crowded = ProcessCalls([CALL + 100_000] * 40, [100_000] * 40)
    mixed = VariantCalls("accelerated", [crowded, crowded, *[process(0.0)] * 4])
    told = "2 of 6 processes of accelerated were interrupted in nearly every inference"
    assert withheld_reason([variant(*[0.0] * 6, name="baseline"), mixed]) == told


def test_a_method_without_a_quiet_inference_withholds_the_ratio() -> None:
    """Most inferences are another method's and were left alone: of this one nothing is left to rest on."""
    methods = ["prefill", *["decode"] * 9] * 4
    off_cpu = [100_000 if name == "prefill" else 0 for name in methods]
    interrupted = ProcessCalls([CALL + own for own in off_cpu], off_cpu, methods=methods)
    assert (interrupted.interrupted, ProcessCalls(interrupted.wall_ns, off_cpu).crowded) == ("prefill", False)
    sides = [variant(*[0.0] * 6, name="baseline"), VariantCalls("accelerated", [interrupted] * 6)]
    reason = "6 of 6 processes of accelerated were interrupted in nearly every inference of prefill"
    assert withheld_reason(sides) == reason
    found = {message.rule: message for message in examine_disturbance(sides)}["preemption"]
    assert grade_left(found) is Grade.DO_NOT_TRUST
    assert "which leaves hardly any of prefill in 6 of 12 processes" in found.title


def test_what_was_not_recorded_withholds_nothing() -> None:
    """Of a phone or a bundle without a record nothing is known."""
    unknown = VariantCalls("baseline", [], unrecorded=6)
    assert withheld_reason([unknown, variant(*[0.0] * 6)]) is None
