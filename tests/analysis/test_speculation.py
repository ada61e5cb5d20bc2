"""Speculative decoding: what it needs to pay, from measured times; made experiments with planted truths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opscope.analysis.latency.latency import latency_of
from opscope.analysis.latency.methods import MethodTime
from opscope.analysis.tokens.speculation import (
    RATES,
    acceptance_interval,
    break_even_rate,
    expected_tokens,
    speculations,
    with_acceptance,
)
from opscope.core.stats.effect import Verdict

TRIALS = 200


def method(name: str, processes: list[list[int]]) -> MethodTime:
    """A method with calls by process."""
    latency = latency_of("untraced", processes, [[]] * len(processes), [None] * len(processes))
    return MethodTime(name, latency.n, 1.0, latency, None, [], None, None, None)


def measured(
    times: dict[str, float], processes: int = 8, noise: float = 0.0, seed: int = 0, calls: int = 9
) -> list[MethodTime]:
    """Methods with these true times; a process slows all of its methods, and each of them on its own."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, noise, processes)
    own = {name: shared + rng.normal(0, noise, processes) for name in times}
    return [
        method(
            name,
            [[round(time * math.exp(level + rng.normal(0, noise))) for _ in range(calls)] for level in own[name]],
        )
        for name, time in times.items()
    ]


def kept(rate: float, drafted: int, rounds: int, seed: int) -> int:
    """Drafted tokens that are kept in so many rounds: those before the first rejection of each."""
    draws = np.random.default_rng(seed).random((rounds, drafted)) < rate
    return int(np.minimum.accumulate(draws, axis=1).sum())


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("drafted", [1, 4, 7])
def test_a_round_yields_what_the_closed_form_says(rate: float, drafted: int) -> None:
    """(1 - A^(K+1)) / (1 - A), equation 1; at 1 every drafted token and one more."""
    assert expected_tokens(rate, drafted) == pytest.approx((1 - rate ** (drafted + 1)) / (1 - rate))
    assert expected_tokens(1.0, drafted) == drafted + 1


def test_the_break_even_rate_is_where_the_speedup_is_one() -> None:
    """Drafts of a tenth of a token, verified at the cost of one and a half."""
    (found,) = speculations(measured({"draft": 1e5, "verify_5": 1.5e6, "decode": 1e6}))
    (length,) = found.lengths
    assert (length.drafted, length.relative_cost) == (4, pytest.approx(1.9))
    assert expected_tokens(length.break_even, 4) == pytest.approx(1.9, rel=1e-6)
    assert length.break_even_share == pytest.approx(0.9 / 4)
    assert length.speedups == pytest.approx([float(expected_tokens(rate, 4)) / 1.9 for rate in RATES])


def test_accepting_costs_where_it_is_measured() -> None:
    """And is null where it is not."""
    times = {"draft": 1e5, "verify_5": 1.5e6, "decode": 1e6}
    without, with_it = speculations(measured(times))[0], speculations(measured(times | {"accept": 2e5}))[0]
    assert (without.accept_ns, with_it.accept_ns) == (None, pytest.approx(2e5))
    assert with_it.lengths[0].relative_cost == pytest.approx(without.lengths[0].relative_cost + 0.2)


@pytest.mark.parametrize(("verify", "expected"), [(5e5, 0.0), (6e6, 1.0)])
def test_some_rounds_always_pay_and_some_never(verify: float, expected: float) -> None:
    """A round cheaper than a token, and one that costs more than the most it yields."""
    (found,) = speculations(measured({"draft": 1e5, "verify_5": verify, "decode": 1e6}))
    assert found.lengths[0].break_even == pytest.approx(expected)
    assert found.lengths[0].break_even_share == expected


def test_positions_and_draft_lengths_are_told_apart() -> None:
    """Each position has its methods; a call that verifies one token drafts nothing."""
    times = {
        "draft_at_10": 1e5,
        "decode_at_10": 1e6,
        "verify_3_at_10": 1.2e6,
        "verify_9_at_10": 2e6,
        "decode_at_90": 2e6,
    }
    (found,) = speculations(measured(times | {"verify_1_at_10": 1e6}))
    assert (found.position, [one.drafted for one in found.lengths]) == (10, [2, 8])
    assert speculations(measured({"draft": 1e5, "decode": 1e6})) == []


def test_few_processes_have_no_interval() -> None:
    """And so no verdict."""
    (found,) = speculations(measured({"draft": 1e5, "verify_5": 1.5e6, "decode": 1e6}, processes=5))
    assert found.lengths[0].break_even_ci95 is None
    assert with_acceptance(found, 990, 1000, 4).acceptance.judged[0].verdict is Verdict.UNDECIDABLE


def test_the_true_break_even_rate_is_inside_of_the_interval() -> None:
    """In 19 of 20 made experiments at least, and the interval is no wider than what the noise makes of it.

    The logarithm of a round's cost scatters by about noise * sqrt(2) in a process beyond what its methods share.
    """
    rng = np.random.default_rng(17)
    inside, widths, trials = 0, [], 5 * TRIALS
    for seed in range(trials):
        drafted, rate = int(rng.integers(1, 8)), float(rng.uniform(0.2, 0.9))
        cost, draft = float(expected_tokens(rate, drafted)), float(rng.uniform(0.02, 0.12))
        times = {"draft": draft * 1e6, f"verify_{drafted + 1}": (cost - drafted * draft) * 1e6, "decode": 1e6}
        (found,) = speculations(measured(times, processes=10, noise=0.03, seed=seed, calls=3))
        low, high = found.lengths[0].break_even_ci95
        inside += low <= rate <= high
        spread = 1.96 * 0.03 * math.sqrt(2 / 10)
        least, most = (float(break_even_rate(cost * math.exp(end), drafted)) for end in (-spread, spread))
        widths.append((high - low) / (most - least))
    assert 0.95 * trials <= inside <= 0.98 * trials
    assert 0.7 < float(np.median(widths)) < 1.6


def test_the_planted_acceptance_rate_is_inside_of_its_interval() -> None:
    """From the counts that tools print: accepted and drafted tokens, those behind a rejected one too."""
    rng = np.random.default_rng(5)
    inside, widths = 0, []
    for seed in range(TRIALS):
        drafted, rate = int(rng.integers(1, 8)), float(rng.uniform(0.1, 0.95))
        accepted = kept(rate, drafted, 200, seed)
        estimate, low, high = acceptance_interval(accepted, 200 * drafted, drafted)
        assert low <= estimate <= high
        inside += low <= rate <= high
        widths.append(high - low)
    assert 0.93 * TRIALS <= inside < TRIALS
    assert float(np.median(widths)) < 0.12


def test_with_one_drafted_token_it_is_wilsons_interval() -> None:
    """85 of 100: 0.7672 to 0.9069."""
    estimate, low, high = acceptance_interval(85, 100, 1)
    assert (estimate, low, high) == pytest.approx((0.85, 0.7672, 0.9069), abs=2e-4)


def test_verdicts_are_wrong_at_most_once_in_twenty() -> None:
    """At the break-even rate itself nothing is faster or slower; far from it the verdict is the right one."""
    times, drafted = {"draft": 1e5, "verify_5": 1.5e6, "decode": 1e6}, 4
    border = float(break_even_rate(1.9, drafted))
    wrong, right = 0, 0
    for seed in range(TRIALS):
        (found,) = speculations(measured(times, noise=0.03, seed=seed))
        same, better, worse = (
            with_acceptance(found, kept(rate, drafted, 400, seed), 1600, drafted).acceptance.judged[0].verdict
            for rate in (border, border + 0.2, border - 0.2)
        )
        wrong += same is not Verdict.UNDECIDABLE
        right += (better, worse) == (Verdict.FASTER, Verdict.SLOWER)
    assert wrong <= TRIALS / 20
    assert right >= 0.95 * TRIALS


def test_the_best_draft_length_depends_on_the_acceptance_rate() -> None:
    """Long drafts pay where most are kept."""
    times = {"draft": 1e5, "verify_3": 1.1e6, "verify_9": 1.5e6, "decode": 1e6}
    (found,) = speculations(measured(times))
    assert with_acceptance(found, kept(0.95, 8, 500, 1), 4000, 8).acceptance.best == 8
    assert with_acceptance(found, kept(0.4, 8, 500, 1), 4000, 8).acceptance.best == 2


@pytest.mark.parametrize(("accepted", "offered", "drafted"), [(-1, 10, 2), (11, 10, 2), (1, 1, 2), (1, 10, 0)])
def test_counts_that_cannot_be_are_refused(accepted: int, offered: int, drafted: int) -> None:
    """No rate is made of them."""
    (found,) = speculations(measured({"draft": 1e5, "verify_5": 1.5e6, "decode": 1e6}))
    with pytest.raises(ValueError, match="cannot be"):
        with_acceptance(found, accepted, offered, drafted)
