"""Two groups of processes compared: estimate, interval, test and verdict, worked out by hand where that is possible."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from opscope.core.stats.effect import (
    Effect,
    Verdict,
    adjust_for_many,
    paired_effects,
    unpaired_effects,
)

MIRRORED = {
    Verdict.FASTER: Verdict.SLOWER,
    Verdict.SLOWER: Verdict.FASTER,
    Verdict.NO_DIFFERENCE: Verdict.NO_DIFFERENCE,
    Verdict.UNDECIDABLE: Verdict.UNDECIDABLE,
}
TIMES = st.integers(1, 10**7)
TENTHS = st.integers(0, 500)
COMPARISONS = 400
# 20 of 400 are expected at 5 %. More than 34 come by chance in 1 of 1,000 experiments: the upper tail of the binomial
# distribution with n = 400 and p = 0.05 beyond 34 is 0.0010.
MOST_FALSE_CALLS = 34


def column(*values: float) -> np.ndarray:
    """One quantity, one row a process."""
    return np.array(values, np.float64)[:, None]


def paired(differences: tuple[float, ...]) -> Effect:
    """The effect of rounds whose candidate takes 100 and whose baseline takes that much more."""
    candidate = np.full(len(differences), 100.0)
    return paired_effects(column(*(candidate + differences)), column(*candidate))[0]


def unpaired(baseline: tuple[float, ...], candidate: tuple[float, ...]) -> Effect:
    """The effect of two groups of processes."""
    return unpaired_effects(column(*baseline), column(*candidate))[0]


def effect(**changes: float) -> Effect:
    """A clear gain of ten rounds, with changes."""
    clear = {"estimate": 5, "low": 4, "high": 6, "p_value": 0.01, "minimum_detectable": 1, "smallest_p": 0.002}
    return Effect(**{**clear, **changes})


def called(effects: list[Effect]) -> int:
    """How many effects are called a difference."""
    return sum(found.verdict() in {Verdict.FASTER, Verdict.SLOWER} for found in effects)


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise as the textbook has it."""
    return rng.normal(0, 2, shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise with rare, very large values: Student's t with two degrees of freedom has no variance."""
    return rng.standard_t(2, shape)


def bimodal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Noise of processes that land in one of two states, one of them twice as slow."""
    return rng.choice([0.0, 100.0], shape) + rng.normal(0, 2, shape)


NOISES = pytest.mark.parametrize("noise", [normal, heavy_tailed, bimodal])


def test_the_estimate_is_the_difference_of_means():
    """Positive when the candidate takes less."""
    assert paired((1, 2, 3, 4, 5, 9)).estimate == pytest.approx(4)
    assert unpaired((10, 20), (4, 5, 6)).estimate == pytest.approx(10)


def test_paired_p_value_when_all_rounds_agree():
    """Of the 64 patterns of signs only the observed one and its mirror image are as extreme."""
    assert paired((1, 2, 3, 4, 5, 6)).p_value == pytest.approx(2 / 64)


def test_paired_p_value_when_the_smallest_round_disagrees():
    """The sum is 19 of at most 21: no flip, one flip of the smallest, and their mirror images reach it."""
    assert paired((-1, 2, 3, 4, 5, 6)).p_value == pytest.approx(4 / 64)


def test_paired_p_value_with_ties():
    """Sums of 1, 1 and 1 are 3 or 1: the observed 1 is reached by all 8 patterns."""
    assert paired((1, 1, -1)).p_value == pytest.approx(1)


def test_unpaired_p_value_when_the_groups_do_not_overlap():
    """Of the 70 ways to pick 4 of 8 only the observed one and the opposite one are as extreme."""
    assert unpaired((5, 6, 7, 8), (1, 2, 3, 4)).p_value == pytest.approx(2 / 70)


def test_unpaired_p_value_when_the_groups_overlap():
    """Of the 20 ways to pick 3 of 1 to 6, {3 5 6}, {4 5 6}, {1 2 3} and {1 2 4} are as extreme as {3 5 6}."""
    assert unpaired((3, 5, 6), (1, 2, 4)).p_value == pytest.approx(4 / 20)


def test_unpaired_p_value_of_groups_of_different_sizes():
    """Of the 15 ways to pick 2 of 1 to 6, {5 6} and {1 2} are as extreme as {5 6}."""
    assert unpaired((5, 6), (1, 2, 3, 4)).p_value == pytest.approx(2 / 15)


def test_equal_sides_have_p_value_one():
    """Nothing differs, so every exchange is as extreme."""
    assert paired((0,) * 8).p_value == 1
    assert unpaired((5, 5, 5, 5), (5, 5, 5, 5)).p_value == 1


def test_the_interval_encloses_the_estimate_and_widens_with_noise():
    """Ten rounds with a tenth of the noise give an interval of a tenth of the width."""
    noise = (-3, 2, -1, 4, -2, 1, 3, -4, 0, 0)
    wide = paired(tuple(50 + value for value in noise))
    narrow = paired(tuple(50 + value / 10 for value in noise))
    assert wide.low < wide.estimate < wide.high
    assert narrow.high - narrow.low == pytest.approx((wide.high - wide.low) / 10)


def test_the_interval_has_no_width_where_all_rounds_agree():
    """Six times the same difference."""
    found = paired((7,) * 6)
    assert (found.low, found.high) == pytest.approx((7, 7))


def test_the_interval_is_near_students_for_normal_noise():
    """Differences 1 to 10: Student's interval is 5.5 plus or minus 2.262 * 3.0277 / sqrt(10), 3.334 to 7.666."""
    found = paired(tuple(range(1, 11)))
    assert (found.low, found.high) == pytest.approx((3.334, 7.666), abs=0.3)


def test_the_smallest_detectable_difference():
    """Differences 1, 2, 3, 4: standard error sqrt(5/3)/2, times t(0.975; 3) = 3.1824 plus t(0.8; 3) = 0.9785."""
    assert paired((1, 2, 3, 4)).minimum_detectable == pytest.approx(math.sqrt(5 / 3) / 2 * (3.1824 + 0.9785), rel=1e-4)


def test_the_smallest_detectable_difference_of_unpaired_groups():
    """Variances 1 and 4 of three each: standard error sqrt(1/3 + 4/3), times t(0.975; 2) + t(0.8; 2)."""
    found = unpaired((1, 2, 3), (2, 4, 6))
    assert found.minimum_detectable == pytest.approx(math.sqrt(5 / 3) * (4.3027 + 1.0607), rel=1e-4)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5])
def test_fewer_than_six_pairs_are_undecidable(rounds):
    """Even a tenfold gain in every round happens by chance in 2 of 32 experiments of five rounds."""
    assert paired((900,) * rounds).verdict() is Verdict.UNDECIDABLE


def test_six_pairs_that_agree_are_enough():
    """2 of 64 is less than 5 %."""
    found = paired((5, 6, 7, 5, 6, 7))
    assert (found.smallest_p, found.verdict()) == (2 / 64, Verdict.FASTER)


def test_three_against_three_processes_are_undecidable():
    """2 of 20 is more than 5 %; four against four, 2 of 70, are enough."""
    assert unpaired((90, 91, 92), (1, 2, 3)).verdict() is Verdict.UNDECIDABLE
    assert unpaired((90, 91, 92, 93), (1, 2, 3, 4)).verdict() is Verdict.FASTER


@pytest.mark.parametrize("found", [paired((5,)), unpaired((5,), (3, 4, 5))], ids=["paired", "unpaired"])
def test_one_process_a_side_has_an_estimate_and_nothing_else(found):
    """No interval, no p-value and no smallest effect can be computed from one number."""
    assert (found.low, found.high, found.p_value, found.minimum_detectable) == (None, None, None, None)
    assert found.smallest_p == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Verdict.FASTER),
        ({"estimate": -5, "low": -6, "high": -4}, Verdict.SLOWER),
        ({"p_value": 0.05}, Verdict.FASTER),
        ({"p_value": 0.051}, Verdict.NO_DIFFERENCE),
        ({"low": -0.1}, Verdict.NO_DIFFERENCE),
        ({"low": 0}, Verdict.NO_DIFFERENCE),
        ({"smallest_p": 0.051}, Verdict.UNDECIDABLE),
        ({"p_value": None}, Verdict.UNDECIDABLE),
    ],
    ids=["gain", "loss", "at 5 %", "above 5 %", "interval holds 0", "interval ends at 0", "too few", "no test"],
)
def test_a_difference_needs_the_test_and_the_interval(changes, expected):
    """Both must agree before a difference is called."""
    assert effect(**changes).verdict() is expected


def test_a_corrected_p_value_replaces_the_own():
    """After correction for many comparisons a difference may be none."""
    assert effect().verdict(corrected=0.04) is Verdict.FASTER
    assert effect().verdict(corrected=0.06) is Verdict.NO_DIFFERENCE


def test_a_correction_that_no_data_could_satisfy_is_undecidable():
    """All six rounds agree, and more than that they cannot do."""
    found = paired((5, 6, 7, 5, 6, 7))
    assert found.p_value == found.smallest_p
    assert found.verdict(corrected=0.06) is Verdict.UNDECIDABLE


# halving, so that the same case is called "no difference".
def test_a_correction_that_no_data_could_satisfy_is_undecidable_with_many_rounds():
    """All twenty rounds agree, and more than that they cannot do either."""
    assert paired(tuple(range(1, 21))).verdict(corrected=0.06) is Verdict.UNDECIDABLE


def test_the_smallest_p_value_of_groups_of_different_sizes():
    """Two against seven that do not overlap: of the 36 ways to pick 2 of 9 only the observed one is as extreme."""
    found = unpaired((100, 101), (1, 2, 3, 4, 5, 6, 7))
    assert found.p_value == pytest.approx(1 / 36)
    assert found.smallest_p == pytest.approx(1 / 36)


# tolerance for ties, so that not even the observed labelling counts as being as extreme as itself: p is 0. How sums are
# rounded depends on the number of columns and on the CPU.
def test_the_p_value_does_not_depend_on_other_quantities():
    """Five against five processes around 1,000,000 ns that do not overlap: 2 of the 252 ways are as extreme."""
    baseline = column(1_000_101, 1_000_103, 1_000_101, 1_000_104, 1_000_103)
    candidate = column(1_000_007, 1_000_007, 1_000_001, 1_000_004, 1_000_009)
    for quantities in (1, 2, 50):
        found = unpaired_effects(np.repeat(baseline, quantities, axis=1), np.repeat(candidate, quantities, axis=1))
        assert [one.p_value for one in found] == pytest.approx([2 / 252] * quantities)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(TENTHS, TENTHS), min_size=4, max_size=6))
def test_no_unpaired_p_value_is_smaller_than_the_smallest(processes):
    """The observed labelling and its mirror image are always as extreme as the observed one."""
    baseline, candidate = (1e6 + np.array(side)[:, None] / [10, 30] for side in zip(*processes, strict=True))
    for found in unpaired_effects(baseline + 100, candidate):
        assert found.p_value >= found.smallest_p * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(st.lists(TIMES, min_size=2, max_size=10))
def test_no_paired_p_value_is_smaller_than_the_smallest(differences):
    """The observed signs and their mirror image are always as extreme as the observed ones."""
    found = paired(tuple(differences))
    assert found.p_value >= found.smallest_p
    assert found.smallest_p == pytest.approx(2 / 2 ** len(differences))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=10))
def test_swapping_paired_sides_flips_the_sign_and_the_verdict(rounds):
    """The baseline as the candidate: what was faster is slower by as much."""
    baseline, candidate = (column(*side) for side in zip(*rounds, strict=True))
    there, back = paired_effects(baseline, candidate)[0], paired_effects(candidate, baseline)[0]
    assert back.estimate == -there.estimate
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert (back.p_value, back.minimum_detectable) == (there.p_value, there.minimum_detectable)
    assert back.verdict() is MIRRORED[there.verdict()]


@settings(deadline=None, max_examples=60)
@given(st.lists(TIMES, min_size=2, max_size=6), st.lists(TIMES, min_size=2, max_size=6))
def test_swapping_unpaired_sides_flips_the_sign(first, second):
    """Also for groups of different sizes; the p-value stays."""
    there, back = unpaired(tuple(first), tuple(second)), unpaired(tuple(second), tuple(first))
    assert back.estimate == pytest.approx(-there.estimate)
    assert (back.smallest_p, back.minimum_detectable) == pytest.approx((there.smallest_p, there.minimum_detectable))


# that swapping the sides gives another interval; near the border it gives another verdict.
def test_swapping_unpaired_sides_flips_the_verdict():
    """Of many pairs of groups, a few of which lie near the border, none depends on which is the baseline."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(103, 2, (5, COMPARISONS)), rng.normal(100, 2, (5, COMPARISONS))
    there, back = unpaired_effects(first, second), unpaired_effects(second, first)
    assert [found.verdict() for found in back] == [MIRRORED[found.verdict()] for found in there]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=10), st.randoms(use_true_random=False))
def test_the_order_of_rounds_does_not_matter(rounds, random):
    """Estimate and p-value are of a set of rounds."""
    shuffled = random.sample(rounds, len(rounds))
    there, again = (paired_effects(*(column(*side) for side in zip(*r, strict=True)))[0] for r in (rounds, shuffled))
    assert again.estimate == pytest.approx(there.estimate, abs=1e-6)
    assert again.p_value == there.p_value


def test_quantities_do_not_see_each_other():
    """Many columns at once give what each gives alone."""
    rng = np.random.default_rng(1)
    baseline, candidate = rng.normal(100, 2, (8, 5)), rng.normal(95, 2, (8, 5))
    together = paired_effects(baseline, candidate)
    for quantity, found in enumerate(together):
        alone = paired_effects(baseline[:, [quantity]], candidate[:, [quantity]])[0]
        assert (found.estimate, found.low, found.high) == pytest.approx((alone.estimate, alone.low, alone.high))
        assert (found.p_value, found.verdict()) == (alone.p_value, alone.verdict())


@NOISES
def test_paired_comparisons_of_a_thing_with_itself_call_few_differences(noise):
    """At most 5 in 100 plus the slack of chance, whatever the noise, also when rounds differ from each other."""
    rng = np.random.default_rng(7)
    rounds = rng.normal(1_000, 50, (10, 1))
    sides = (rounds + noise(rng, (10, COMPARISONS)) for _ in range(2))
    assert called(paired_effects(*sides)) <= MOST_FALSE_CALLS


@NOISES
def test_unpaired_comparisons_of_a_thing_with_itself_call_few_differences(noise):
    """At most 5 in 100 plus the slack of chance, whatever the noise."""
    rng = np.random.default_rng(11)
    sides = (1_000 + noise(rng, (size, COMPARISONS)) for size in (6, 8))
    assert called(unpaired_effects(*sides)) <= MOST_FALSE_CALLS


def test_a_gain_of_a_fifth_is_found_in_ten_noisy_rounds():
    """20 % with 2 % noise: in all of 100 comparisons, with an interval around it."""
    rng = np.random.default_rng(3)
    baseline, candidate = rng.normal(100, 2, (10, 100)), rng.normal(80, 2, (10, 100))
    for effects in (paired_effects(baseline, candidate), unpaired_effects(baseline, candidate)):
        assert {found.verdict() for found in effects} == {Verdict.FASTER}
        assert all(15 < found.low < found.high < 25 for found in effects)


def test_a_true_difference_of_the_detectable_size_is_found_as_often_as_promised():
    """In 80 of 100 experiments; 400 of them deviate from that by less than 8 in 100 (four standard errors)."""
    rng = np.random.default_rng(5)
    size = 2 / math.sqrt(12) * (2.2010 + 0.8755)
    candidate = np.full((12, COMPARISONS), 100.0)
    effects = paired_effects(candidate + rng.normal(size, 2, (12, COMPARISONS)), candidate)
    assert called(effects) / COMPARISONS == pytest.approx(0.8, abs=0.08)


def test_the_worked_example_of_benjamini_and_hochberg():
    """Section 3.2 of their paper of 1995: of 15 p-values the four smallest are rejected at 5 %."""
    p_values = """
        0.0001 0.0004 0.0019 0.0095 0.0201 0.0278 0.0298 0.0344 0.0459 0.3240 0.4262 0.5719 0.6528 0.7590 1.0000
    """
    adjusted = adjust_for_many([float(p) for p in p_values.split()])
    assert [p <= 0.05 for p in adjusted] == [True] * 4 + [False] * 11
    assert adjusted[:5] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625, 0.0603])


def test_corrected_p_values_by_hand():
    """Sorted 0.005, 0.01, 0.03, 0.04, times 4/1, 4/2, 4/3, 4/4: 0.02, 0.02, 0.04, 0.04, in the order given."""
    assert adjust_for_many([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


def test_a_corrected_p_value_is_never_larger_than_that_of_a_larger_one():
    """0.02 times 3/1 would be 0.06, but 0.021 times 3/2 is less, and that holds for both."""
    assert adjust_for_many([0.02, 0.021, 0.9]) == pytest.approx([0.0315, 0.0315, 0.9])


def test_one_comparison_needs_no_correction():
    """Nor do none."""
    assert adjust_for_many([0.03]) == [0.03]
    assert adjust_for_many([]) == []


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_correction_keeps_the_order_and_never_helps(p_values):
    """Corrected values are at least the own ones, at most 1, and sorted alike."""
    assume(all(p == 0 or p > 1e-300 for p in p_values))
    adjusted = adjust_for_many(p_values)
    assert all(before * (1 - 1e-12) <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    by_size = [after for _, after in sorted(zip(p_values, adjusted, strict=True))]
    assert by_size == sorted(by_size)
