"""Speculative decoding as a verdict: a small model drafts tokens, the large one verifies all of them in one call.

What is measured are the times of a drafted token, of a call that verifies K drafted tokens and the one before them, of
choosing what is kept, and of decoding alone. A round of K drafted tokens costs ``K * draft + verify + accept``.
With each drafted token kept with probability A, whatever stands before it, a round yields ``(1 - A^(K+1)) / (1 - A)``
tokens: the kept ones and one of the large model. Speculation pays where that is more than the round costs in tokens
decoded alone. In reality A falls with the position in the round and differs between texts; the model here has one A.

Source: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, equation 1
and theorem 3.8. The interval of the break-even rate is that of the mean logarithm of a round's cost over processes, by
Student's t, at either end of which the rate is taken: a bootstrap over processes covers the truth in 93 to 94 of 100
made experiments with 6 to 10 processes, this in 95. That of A is a score interval of the mean number kept in a round,
whose variance is the model's; with one drafted token it is Wilson's (J. Am. Statist. Assoc. 22, 1927).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import t_quantile
from opscope.core.stats.effect import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.latency.methods import MethodTime

    Floats: TypeAlias = NDArray[np.float64]

_NAME = re.compile(r"(?P<part>draft|decode|accept|verify_(?P<tokens>[1-9]\d{0,3}))(?:_at_(?P<position>\d{1,7}))?\Z")
FEWEST = 6
"""Processes that an interval needs, as everywhere."""
RATES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptance rates for which a speedup is listed."""
_TWO_SIDED = 0.975
_NORMAL = 1.959963984540054
_HALVINGS = 60


class DraftLength(msgspec.Struct, frozen=True):
    """Rounds of one draft length.

    Attributes:
        drafted: tokens drafted in a round.
        relative_cost: time of a round, in tokens decoded alone.
        break_even: acceptance rate from which on rounds are faster than decoding alone; 1: no rate is enough.
        break_even_ci95: 95 % interval of it; null with fewer than six processes.
        break_even_share: drafted tokens that must be kept, as a share of all drafted ones, behind a rejected one too;
            this is the figure that counters of accepted and drafted tokens give, and it assumes nothing.
        speedups: against decoding alone, for the acceptance rates of ``RATES``.
    """

    drafted: int
    relative_cost: float
    break_even: float
    break_even_ci95: tuple[float, float] | None
    break_even_share: float
    speedups: list[float]


class Judged(msgspec.Struct, frozen=True):
    """What an acceptance rate that was counted means for a draft length.

    Attributes:
        drafted: the draft length.
        speedup: at the acceptance rate.
        verdict: faster or slower where the interval of the acceptance rate lies on one side of that of the break-even
            rate; else undecidable.
    """

    drafted: int
    speedup: float
    verdict: Verdict


class Acceptance(msgspec.Struct, frozen=True):
    """What was counted.

    Attributes:
        accepted: drafted tokens that were kept.
        offered: drafted tokens in all, those behind a rejected one too.
        drafted: the draft length of the rounds.
        rate: the acceptance rate of a token.
        rate_ci95: 95 % interval of it.
        judged: every draft length that was measured.
        best: the draft length with the largest speedup at the rate.
    """

    accepted: int
    offered: int
    drafted: int
    rate: float
    rate_ci95: tuple[float, float]
    judged: list[Judged]
    best: int


class Speculation(msgspec.Struct, frozen=True):
    """Speculative decoding from measured times, each a geometric mean of the medians of processes.

    Attributes:
        position: of the tokens; null where the methods' names have none.
        draft_ns: a drafted token.
        decode_ns: a token decoded alone.
        accept_ns: choosing what is kept; null where it was not measured, and counted as nothing.
        processes: that ran all of the methods.
        lengths: every draft length that was measured, ascending.
        acceptance: what a counted acceptance rate means; null where none was given.
    """

    position: int | None
    draft_ns: float
    decode_ns: float
    accept_ns: float | None
    processes: int
    lengths: list[DraftLength]
    acceptance: Acceptance | None = None


def expected_tokens(rate: Floats | float, drafted: int) -> Floats:
    """Tokens that a round yields at an acceptance rate, the large model's own included."""
    powers = np.asarray(rate, np.float64)[..., None] ** np.arange(drafted + 1)
    yielded: Floats = powers.sum(axis=-1)
    return yielded


def break_even_rate(cost: Floats | float, drafted: int) -> Floats:
    """Acceptance rate at which a round yields as many tokens as it costs in tokens decoded alone.

    0 where any rate does, 1 where none does.
    """
    return _where(lambda rate: expected_tokens(rate, drafted), np.asarray(cost, np.float64))


def acceptance_interval(accepted: int, offered: int, drafted: int) -> tuple[float, float, float]:
    """The acceptance rate of a token, and its 95 % interval, from counts over rounds of one draft length."""
    rounds, kept = offered / drafted, accepted * drafted / offered
    rate = _where(lambda one: expected_tokens(one, drafted) - 1, np.asarray(kept))

    def beyond(one: Floats, sign: float) -> Floats:
        mean = expected_tokens(one, drafted) - 1
        return mean + sign * _NORMAL * np.sqrt(_variance(one, drafted) / rounds)

    low = _first(lambda one: beyond(one, 1.0) >= kept)
    high = 1 - _first(lambda one: beyond(1 - one, -1.0) <= kept)
    return float(rate), min(low, float(rate)), max(high, float(rate))


def speculations(methods: Sequence[MethodTime]) -> list[Speculation]:
    """For each position: methods ``draft``, ``verify_N`` of N tokens, ``decode``, and ``accept`` where it is there.

    ``verify_5_at_100`` belongs to ``draft_at_100`` and ``decode_at_100``. N tokens are N - 1 drafted ones and the one
    before them.
    """
    found: dict[int | None, dict[str, MethodTime]] = {}
    for one in methods:
        if form := _NAME.match(one.method):
            position = None if form["position"] is None else int(form["position"])
            found.setdefault(position, {})[form["part"]] = one
    whole = {
        at: method_times
        for at, method_times in found.items()
        if {"draft", "decode"} <= method_times.keys() and len(_verifying(method_times)) > 0
    }
    return [judged for at, method_times in whole.items() if (judged := _speculation(at, method_times)) is not None]


def with_acceptance(speculation: Speculation, accepted: int, offered: int, drafted: int) -> Speculation:
    """The same with what counts of accepted tokens mean for it.

    Raises:
        ValueError: counts that cannot be.
    """
    if not 0 <= accepted <= offered or drafted < 1 or offered < drafted:
        raise ValueError(f"{accepted} of {offered} drafted tokens in rounds of {drafted} cannot be")
    rate, low, high = acceptance_interval(accepted, offered, drafted)
    judged = [_judged(one, rate, (low, high)) for one in speculation.lengths]
    best = max(judged, key=lambda one: one.speedup).drafted
    return msgspec.structs.replace(
        speculation, acceptance=Acceptance(accepted, offered, drafted, rate, (low, high), judged, best)
    )


def _verifying(parts: dict[str, MethodTime]) -> dict[int, MethodTime]:
    """Calls that verify by the number of tokens drafted for them; one token verifies nothing."""
    named = {int(name.partition("_")[2]) - 1: one for name, one in parts.items() if name.startswith("verify")}
    return {drafted: named[drafted] for drafted in sorted(named) if drafted}


def _speculation(position: int | None, parts: dict[str, MethodTime]) -> Speculation | None:
    verifying, accept = _verifying(parts), parts.get("accept")
    called = [parts["draft"], parts["decode"], *([accept] if accept else []), *verifying.values()]
    medians = [{own.process: own.median_ns for own in one.latency.processes} for one in called]
    shared = sorted(set.intersection(*map(set, medians)))
    times = np.array([[own[process] for own in medians] for process in shared], np.float64)
    if not len(times) or not (times > 0).all():
        return None
    point = np.exp(np.log(times).mean(axis=0))
    first = len(called) - len(verifying)
    return Speculation(
        position=position,
        draft_ns=float(point[0]),
        decode_ns=float(point[1]),
        accept_ns=float(point[2]) if accept else None,
        processes=len(shared),
        lengths=[
            _length(drafted, times[:, first + number] + (times[:, 2] if accept else 0.0), times)
            for number, drafted in enumerate(verifying)
        ],
    )


def _length(drafted: int, verified: Floats, times: Floats) -> DraftLength:
    """Rounds of a length, by what its verification takes in each process, and the times of drafts and of decoding."""
    costs = np.log((drafted * times[:, 0] + verified) / times[:, 1])
    mean, count = float(costs.mean()), len(costs)
    interval = None
    if count >= FEWEST:
        half = t_quantile(_TWO_SIDED, count - 1) * float(costs.std(ddof=1)) / count**0.5
        low, high = break_even_rate(np.exp([mean - half, mean + half]), drafted).tolist()
        interval = low, high
    cost = math.exp(mean)
    return DraftLength(
        drafted=drafted,
        relative_cost=cost,
        break_even=float(break_even_rate(cost, drafted)),
        break_even_ci95=interval,
        break_even_share=min(max((cost - 1) / drafted, 0.0), 1.0),
        speedups=[float(expected_tokens(rate, drafted)) / cost for rate in RATES],
    )


def _judged(length: DraftLength, rate: float, interval: tuple[float, float]) -> Judged:
    speedup = float(expected_tokens(rate, length.drafted)) / length.relative_cost
    verdict, known = Verdict.UNDECIDABLE, length.break_even_ci95
    if known is not None and interval[0] > known[1]:
        verdict = Verdict.FASTER
    elif known is not None and interval[1] < known[0]:
        verdict = Verdict.SLOWER
    return Judged(length.drafted, speedup, verdict)


def _variance(rate: Floats, drafted: int) -> Floats:
    """Variance of the number of drafted tokens that a round keeps."""
    steps = np.arange(1, drafted + 1)
    reached = np.asarray(rate, np.float64)[..., None] ** steps
    mean, square = reached.sum(axis=-1), ((2 * steps - 1) * reached).sum(axis=-1)
    spread: Floats = np.maximum(square - mean**2, 0.0)
    return spread


def _where(value: Callable[[Floats], Floats], wanted: Floats) -> Floats:
    """Where in [0, 1] an increasing function reaches a value, by bisection; an end where it does nowhere."""
    low, high = np.zeros_like(wanted), np.ones_like(wanted)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = value(middle) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(value(np.zeros_like(wanted)) >= wanted, 0.0, (low + high) / 2)


def _first(holds: Callable[[Floats], NDArray[np.bool_]]) -> float:
    """The smallest of many values in [0, 1] for which something holds; 1 where it never does."""
    grid = np.linspace(0.0, 1.0, 20_001)
    held = holds(grid)
    return float(grid[int(held.argmax())]) if held.any() else 1.0
