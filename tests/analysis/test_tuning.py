"""Statistics of a search for settings: gains by round, what is dropped, what is confirmed, what may win."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from opscope.analysis.tuning import (
    DEFAULT,
    NULL,
    CandidateResult,
    ConfirmedGain,
    OutputClass,
    TuningCandidate,
    TuningSample,
    choose_winner,
    confirm_gain,
    find_disturbance,
    find_visible_gain,
    helped_alone,
    join_candidates,
    log_gains,
    needs_more_rounds,
    select_survivors,
    thread_candidates,
)


def samples_of(times: Mapping[str, list[float]], foreign: float | None = None) -> list[TuningSample]:
    """Samples by candidate, one a round."""
    return [
        TuningSample(name, number, ns, None, foreign, None, None)
        for name, values in times.items()
        for number, ns in enumerate(values)
    ]


def test_a_gain_is_that_of_its_own_round() -> None:
    """A slow round slows the default, too; the default of a round is the mean of both of its processes."""
    samples = samples_of({DEFAULT: [100, 200], NULL: [100, 200], "fast": [50, 100]})
    assert log_gains(samples, "fast") == pytest.approx([math.log(2)] * 2)
    assert log_gains(samples, NULL) == pytest.approx([0, 0])
    assert len(log_gains(samples, "absent")) == 0


def test_far_slower_settings_go_after_a_sample_and_the_slower_half_after_three() -> None:
    """Ordered by their gain; never fewer than the finalists."""
    candidates = [TuningCandidate(name) for name in "abcdefgh"]
    times = {name: [100.0 + 5 * place] for place, name in enumerate("abcdefg")} | {"h": [400.0]}
    once = {DEFAULT: [100.0]} | times
    assert [one.name for one in select_survivors(samples_of(once), candidates)] == list("abcdefg")
    thrice = {name: values * 3 for name, values in once.items()}
    assert [one.name for one in select_survivors(samples_of(thrice), candidates)] == list("abcd")
    assert [one.name for one in select_survivors(samples_of(thrice), candidates[:4])] == list("abc")


def test_only_settings_that_helped_alone_are_joined() -> None:
    """By more than two per cent, both of them."""
    (joined,) = join_candidates([TuningCandidate("a", 2)], [TuningCandidate("b", options={"x": "1"}, lines=["l"])])
    assert (joined.threads, joined.options, joined.lines, joined.parts) == (2, {"x": "1"}, ["l"], ["a", "b"])
    both = {DEFAULT: [100.0] * 3, "a": [80.0] * 3, "b": [90.0] * 3}
    assert helped_alone(samples_of(both), joined)
    assert not helped_alone(samples_of(both | {"b": [99.0] * 3}), joined)


def test_threads_are_powers_of_two_and_the_cpus() -> None:
    """Without the runtime's own count."""
    assert [one.threads for one in thread_candidates(6, 0, "n={threads}")] == [1, 2, 4, 6]
    assert [one.threads for one in thread_candidates(2, 1, "n={threads}")] == [2]
    assert thread_candidates(4, 0, "n={threads}")[2].lines == ["n=4"]


def test_the_interval_is_students_and_corrected_for_what_is_told() -> None:
    """Quantiles of Student's t with 3 degrees: 3.1824 at 97.5 %, 4.1765 at 98.75 %."""
    gains = np.array([0.1, 0.2, 0.1, 0.2])
    error = gains.std(ddof=1) / 2
    alone, of_two = confirm_gain(gains, 1), confirm_gain(gains, 2)
    assert alone is not None
    assert of_two is not None
    assert alone.speedup == pytest.approx(math.exp(0.15))
    assert math.log(alone.high / alone.speedup) == pytest.approx(3.1824 * error, rel=1e-4)
    assert math.log(of_two.speedup / of_two.low) == pytest.approx(4.1765 * error, rel=1e-4)
    assert confirm_gain(gains[:2], 1) is None


def test_rounds_are_added_while_an_interval_holds_one() -> None:
    """Of any finalist."""
    sure, unsure = np.array([0.3, 0.31, 0.29, 0.3]), np.array([0.1, -0.1, 0.05, 0.0])
    assert not needs_more_rounds({"a": sure})
    assert needs_more_rounds({"a": sure, "b": unsure})


def result_of(name: str, low: float, *, outputs: OutputClass = OutputClass.SAME_BITS) -> CandidateResult:
    """A finalist whose gain is 5 % above its lower end."""
    gain = ConfirmedGain(low * 1.05, low, low * 1.1, 1.05, 8)
    return CandidateResult(TuningCandidate(name), "", confirmed=gain, outputs=outputs)


QUIET = ConfirmedGain(1.0, 0.98, 1.02, 1.03, 8)


@pytest.mark.parametrize(
    ("results", "null", "disturbed", "winner"),
    [
        ([result_of("a", 1.2), result_of("b", 1.4)], QUIET, None, "b"),
        ([result_of("a", 0.99)], QUIET, None, None),
        ([result_of("a", 1.01)], QUIET, None, None),
        ([result_of("a", 1.2)], ConfirmedGain(1.1, 0.9, 1.3, 1.4, 8), None, None),
        ([result_of("a", 1.2, outputs=OutputClass.OTHER_NUMBERS)], QUIET, None, None),
        ([result_of("a", 1.2, outputs=OutputClass.ROUNDING)], QUIET, None, "a"),
        ([result_of("a", 1.2)], QUIET, "other processes", None),
        ([], None, None, None),
    ],
    ids=["fastest", "holds 1", "within the null", "noisy null", "other numbers", "rounding", "disturbed", "none"],
)
def test_what_may_win(
    results: list[CandidateResult], null: ConfirmedGain | None, disturbed: str | None, winner: str | None
) -> None:
    """A setting whose interval lies above 1 and above the null's, with equal outputs, of an undisturbed run."""
    assert choose_winner(results, null, disturbed) == winner


def test_other_processes_disturb() -> None:
    """From 0.15 CPUs on; where the system does not tell, nothing is said."""
    assert find_disturbance(samples_of({DEFAULT: [1.0, 1.0]}, foreign=0.1)) is None
    assert find_disturbance(samples_of({DEFAULT: [1.0, 1.0]})) is None
    assert "0.60" in (find_disturbance(samples_of({DEFAULT: [1.0, 1.0]}, foreign=0.6)) or "")


def test_the_visible_gain_is_that_of_the_noisiest_finalist_above_the_null() -> None:
    """Smaller gains of quieter finalists are not promised, and a null that looks faster hides more."""
    quiet, noisy, null = (ConfirmedGain(1.0, 0.99, 1.01, smallest, 8) for smallest in (1.02, 1.08, 1.02))
    results = [
        CandidateResult(TuningCandidate(name), "", confirmed=gain) for name, gain in (("a", quiet), ("b", noisy))
    ]
    assert find_visible_gain(results, null) == pytest.approx(1.08 * 1.01)
    assert find_visible_gain([CandidateResult(TuningCandidate("c"), "dropped")], null) is None
