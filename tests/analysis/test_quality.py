"""The verdict on a measurement: what limits it is found, what is in order is said, what is not known too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from opscope.analysis.compare.compare import EndToEnd
from opscope.analysis.findings.message import Grade, Message, MessageKind, Quality, grade_left, judge
from opscope.analysis.latency.latency import latency_of
from opscope.analysis.quality.quality import DRIFT, DRIFT_P, QualityEvidence, describe_timing, examine_measurement
from opscope.analysis.quality.quality_machine import Circumstances, examine_machine
from opscope.core.stats.effect import Verdict

QUIET = Circumstances(
    known=True,
    usable_cpus=(8, 8),
    load=0.5,
    clock_mhz=(3_000.0, 3_010.0),
    temperature=50.0,
    governor="performance",
    virtual=False,
    largest_pool=2,
    planned=20,
    failed=0,
    missing=0,
)


def series(
    medians: list[float], *, runs: int = 40, noise: float = 0.01, warmup: int = 0, **more: Any
) -> QualityEvidence:
    """One variant with these process medians, steady but for the noise."""
    generator = np.random.default_rng(4)
    samples = [median * np.exp(generator.normal(0, noise, runs + warmup)) for median in medians]
    return of([[int(x) for x in own] for own in samples], warmup, **more)


def of(samples: list[list[int]], warmup: int = 0, **more: Any) -> QualityEvidence:
    """One variant with these inferences."""
    found = latency_of(
        "traced", [own[warmup:] for own in samples], [own[:warmup] for own in samples], [None] * len(samples)
    )
    return QualityEvidence([describe_timing("accelerated", found)], **more)


def judged(evidence: QualityEvidence) -> Quality:
    """The verdict on what was timed."""
    return judge(examine_measurement(evidence))


def limits(quality: Quality) -> dict[str, Grade]:
    """What limits it, and to what."""
    return {reason.rule: grade_left(reason) for reason in quality.reasons}


def of_kind(quality: Quality, kind: MessageKind) -> list[Message]:
    """What was ruled out that is of a kind."""
    return [one for one in quality.ruled_out if one.kind is kind]


def end_to_end(low: float, high: float) -> EndToEnd:
    """A comparison with this interval."""
    return EndToEnd(2e6, 1e6, (low + high) / 2, (low, high), Verdict.FASTER, 0.03, 0.01, "paired", 8, 8)


TEN = [1e6, 1.01e6, 0.99e6, 1e6, 1.02e6, 1e6, 0.98e6, 1.01e6, 1e6, 0.99e6]


def test_a_quiet_experiment_is_good() -> None:
    """Everything that can be checked is in order; what cannot is named."""
    found = judged(series(TEN, verdicts={"": end_to_end(1.98, 2.02)}, outputs="", tracing=1.02))
    assert (found.grade, found.reasons, of_kind(found, MessageKind.NOT_CHECKED)) == (Grade.GOOD, [], [])
    assert judge(examine_machine(QUIET)).grade is Grade.GOOD


@pytest.mark.parametrize(
    ("evidence", "check", "grade"),
    [
        (series(TEN[:1]), "enough_processes", Grade.USABLE),
        (series(TEN[:3], verdicts={"": end_to_end(1.9, 2.1)}), "enough_processes", Grade.DO_NOT_TRUST),
        (series(TEN[:1], verdicts={"": end_to_end(1.8, 1.9)}), "enough_processes", Grade.DO_NOT_TRUST),
        (series(TEN[:1], verdicts={"": end_to_end(3.8, 4.0)}), "enough_processes", Grade.USABLE),
        (series(TEN[:1], verdicts={"": end_to_end(0.25, 0.3)}), "enough_processes", Grade.USABLE),
        (series([1e6, 1.2e6, 1e6, 0.9e6, 1e6, 1.1e6]), "processes_agree", Grade.USABLE),
        (series([1e6, 3e6, 1e6, 1e6, 3e6, 1e6]), "processes_agree", Grade.DO_NOT_TRUST),
        (series(TEN, noise=0.25), "inferences_agree", Grade.USABLE),
        (series(TEN, verdicts={"": end_to_end(1.8, 2.2)}), "precise", Grade.USABLE),
        (series(TEN, verdicts={"": end_to_end(1.0, 3.0)}), "precise", Grade.DO_NOT_TRUST),
        (series(TEN, runs=5), "enough_runs", Grade.USABLE),
        (series(TEN, outputs="they differ"), "outputs_alike", Grade.DO_NOT_TRUST),
        (series(TEN, tracing=1.4), "tracing_light", Grade.USABLE),
        (series([m * (1 + 0.02 * i) for i, m in enumerate([1e6] * 20)]), "same_all_along", Grade.USABLE),
    ],
)
def test_each_flaw_is_found(evidence: QualityEvidence, check: str, grade: Grade) -> None:
    """It limits the grade as far as it should."""
    found = judged(evidence)
    assert limits(found)[check] is grade
    assert all(reason.next_step for reason in found.reasons)


def test_a_late_warmup_names_how_much_to_set_aside() -> None:
    """Twelve slow inferences where two were set aside."""
    generator = np.random.default_rng(1)
    slow = np.r_[np.full(12, 1.5), np.ones(48)]
    samples = [[int(x) for x in 1e6 * slow * np.exp(generator.normal(0, 0.01, 60))] for _ in range(8)]
    reason = next(reason for reason in judged(of(samples, 2)).reasons if reason.rule == "settled")
    assert reason.next_step == "--warmup 12"
    assert limits(judged(of(samples, 12))) == {}


def test_processes_that_slow_down_are_found() -> None:
    """A fifth slower from begin to end, as a device that throttles."""
    generator = np.random.default_rng(1)
    ramp = np.linspace(1, 1.2, 100)
    samples = [[int(x) for x in 1e6 * ramp * np.exp(generator.normal(0, 0.01, 100))] for _ in range(8)]
    found = judged(of(samples))
    assert found.grade is not Grade.GOOD
    assert {"steady", "settled"} & set(limits(found))


@pytest.mark.parametrize(("p_value", "limited"), [(DRIFT_P, True), (np.nextafter(DRIFT_P, 1), False)])
def test_a_trend_counts_up_to_the_stated_p_value(p_value: float, limited: bool) -> None:
    """A change of that size alone may be chance."""
    evidence = series(TEN)
    (quiet,) = evidence.variants
    drifting = quiet._replace(series=[replace(one, drift=2 * DRIFT, drift_p=p_value) for one in quiet.series])
    assert ("steady" in limits(judged(evidence._replace(variants=[drifting])))) is limited


def test_two_speeds_are_found() -> None:
    """Three inferences in ten are half as fast, in any order."""
    generator = np.random.default_rng(1)
    samples = [
        [int(x) for x in generator.choice([1e6, 2e6], 100, p=[0.7, 0.3]) * np.exp(generator.normal(0, 0.01, 100))]
        for _ in range(8)
    ]
    assert "one_mode" in limits(judged(of(samples)))


def test_inferences_that_follow_each_other_are_worth_less() -> None:
    """Each one is nearly the one before."""
    generator = np.random.default_rng(1)
    samples = []
    for _ in range(8):
        walk = [0.0]
        for step in generator.normal(0, 0.01, 59):
            walk.append(0.95 * walk[-1] + step)
        samples.append([int(1e6 * np.exp(value)) for value in walk])
    assert "independent" in limits(judged(of(samples)))


@pytest.mark.parametrize(
    ("change", "check", "grade"),
    [
        ({"load": 9.0}, "idle", Grade.USABLE),
        ({"load": 20.0}, "idle", Grade.DO_NOT_TRUST),
        ({"usable_cpus": (4, 8)}, "same_cpus", Grade.DO_NOT_TRUST),
        ({"largest_pool": 8}, "threads_fit", Grade.USABLE),
        ({"largest_pool": 9}, "threads_fit", Grade.DO_NOT_TRUST),
        ({"governor": "powersave"}, "steady_clock", Grade.USABLE),
        ({"clock_mhz": (1_000.0, 3_000.0)}, "steady_clock", Grade.USABLE),
        ({"temperature": 95.0}, "cool", Grade.USABLE),
        ({"failed": 1}, "complete", Grade.USABLE),
        ({"failed": 3, "missing": 8}, "complete", Grade.DO_NOT_TRUST),
    ],
)
def test_the_state_of_the_machine_counts(change: dict[str, Any], check: str, grade: Grade) -> None:
    """Each of its flaws limits the grade."""
    assert limits(judge(examine_machine(QUIET._replace(**change)))) == {check: grade}


def test_what_cannot_be_read_is_not_in_order() -> None:
    """It is listed as unknown, never as passed."""
    nothing = Circumstances(*[True, *[None] * 7], planned=20, failed=0, missing=0)
    found = judge(examine_machine(nothing))
    assert {row.rule for row in of_kind(found, MessageKind.NOT_CHECKED)} == {
        "idle",
        "same_cpus",
        "threads_fit",
        "steady_clock",
        "cool",
        "alone",
    }
    assert [row.rule for row in of_kind(found, MessageKind.PASSED)] == ["complete"]
    assert of_kind(judge(examine_machine(nothing._replace(known=False))), MessageKind.NOT_CHECKED)[0].rule == "machine"


def test_a_short_single_series_breaks_nothing() -> None:
    """One inference of one process: not much is known, and that is said."""
    found = judged(of([[1_000_000]]))
    assert found.grade is Grade.USABLE
    assert {row.rule for row in of_kind(found, MessageKind.NOT_CHECKED)} >= {
        "settled",
        "steady",
        "precise",
        "independent",
    }


@pytest.mark.parametrize(
    ("status", "limits", "grade"),
    [
        (0, (2_000.0, 2_000.0), None),
        (1, None, None),
        (2, (2_000.0, 2_000.0), Grade.DO_NOT_TRUST),
        (None, (1_500.0, 2_000.0), Grade.USABLE),
    ],
)
def test_a_device_that_throttles_says_so_itself(status, limits, grade):
    """From a moderate thermal status on, or where the limit of a clock fell; else that is ruled out."""
    quality = judge(examine_machine(QUIET._replace(thermal_status=status, limit_mhz=limits)))
    told = [grade_left(reason) for reason in quality.reasons if reason.rule == "not_throttled"]
    assert told == ([grade] if grade else [])
    assert ("not_throttled" in [one.rule for one in of_kind(quality, MessageKind.PASSED)]) is (grade is None)


def test_a_machine_without_a_thermal_status_is_not_asked_for_one():
    """Other machines are judged by their temperature and their clock."""
    quality = judge(examine_machine(QUIET))
    assert "not_throttled" not in [one.rule for one in of_kind(quality, MessageKind.PASSED)]
