"""Whether a published rate or speedup of decoding can be: against what the machine's memory and arithmetic allow.

A token reads every weight of a dense model once, and the keys and values before it, so that it takes at least these
bytes by the bandwidth; it takes at least its multiplications by the peak rate. Bandwidth and peak are measured ones:
another kernel could reach more, and a cache that holds the weights does.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.tokens.growth import Estimated
from opscope.analysis.tokens.ledger import MOST, ByteUse, number_bits
from opscope.core.units import interval_text, rate_text, ratio_text
from opscope.program.phases import PhaseKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.analysis.latency.methods import MethodTime
    from opscope.analysis.tokens.ledger import TokenLedger
    from opscope.program.ceilings import Ceilings

BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "int8": 8.0, "int4": 4.0}
"""Of a weight, without scales."""


class Plausibility(str, enum.Enum):
    """What can be said of a claim."""

    POSSIBLE = "possible"
    """It is at most the bound, at the low end of the bound's interval."""
    ABOVE = "above"
    """It is more than the bound, at the high end of the bound's interval."""
    UNDECIDABLE = "undecidable"
    """It lies inside of the bound's interval."""


class TokenWork(msgspec.Struct, frozen=True):
    """What a token needs.

    Attributes:
        weights: bytes of weights that it reads, with their scales; of a mixture of experts those of its experts alone.
        cache: bytes of keys and values that it reads.
        macs: multiply-accumulates; null where they are not known, and then arithmetic bounds nothing.
    """

    weights: float
    cache: float = 0.0
    macs: float | None = None


class TokenBound(msgspec.Struct, frozen=True):
    """The most that a machine can do.

    Attributes:
        tokens_per_second: with the interval of the rate that it comes from.
        by: ``memory`` or ``arithmetic``.
    """

    tokens_per_second: Estimated
    by: str


class Claim(msgspec.Struct, frozen=True):
    """A claim against its bound.

    Attributes:
        stated: the rate or the speedup.
        largest: that can be, with its interval.
        excess: ``stated`` by the largest one.
        plausibility: what can be said.
        evidence: one sentence.
        method: of the program, of which it is stated; null where it is of no measured one.
        weights: number type of the weights that it is stated for; null for the measured ones.
    """

    stated: float
    largest: Estimated
    excess: float
    plausibility: Plausibility
    evidence: str
    method: str | None = None
    weights: str | None = None


def weight_bytes(parameters: Mapping[str, float], group: int | None = None, scale_bits: float = 16.0) -> float:
    """Bytes of weights by number type, with a scale for each so many weights of 8 or 4 bits.

    >>> weight_bytes({"int4": 32, "f16": 2}, group=32)
    22.0
    """
    scales = scale_bits / group if group else 0.0
    return (
        sum(count * (BITS[kind] + (scales if kind.startswith("int") else 0.0)) for kind, count in parameters.items())
        / 8
    )


def token_bound(work: TokenWork, bandwidth: Estimated, peak: Estimated | None = None) -> TokenBound:
    """The most tokens per second, from bytes per second and multiply-accumulates per second.

    Raises:
        ValueError: a token that reads nothing.
    """
    if work.weights + work.cache <= 0:
        raise ValueError("a token reads some bytes")
    memory = _by(bandwidth, work.weights + work.cache)
    if peak is None or not work.macs:
        return TokenBound(memory, "memory")
    arithmetic = _by(peak, work.macs)
    return TokenBound(memory, "memory") if memory.value <= arithmetic.value else TokenBound(arithmetic, "arithmetic")


def rate_claim(tokens_per_second: float, bound: TokenBound) -> Claim:
    """A stated number of tokens per second."""
    return _claim(tokens_per_second, bound.tokens_per_second, _tokens_text, bound.by)


def speedup_claim(speedup: float, before: Estimated, bound: TokenBound) -> Claim:
    """A stated speedup of decoding, from measured tokens per second before it and the bound after it."""
    (low, high), (least, most) = _ends(bound.tokens_per_second), _ends(before)
    interval = None if bound.tokens_per_second.ci95 is None and before.ci95 is None else (low / most, high / least)
    return _claim(speedup, Estimated(bound.tokens_per_second.value / before.value, interval), ratio_text, bound.by)


def measured_claim(
    phase: tuple[MethodTime, TokenLedger],
    ceilings: Ceilings,
    stated: float,
    *,
    speedup: bool,
    weights: str | None = None,
    group: int | None = None,
) -> Claim:
    """A rate or a speedup that is stated of a measured phase, against the measured ceilings of its machine.

    With ``weights``, of the same model with all its weights in that number type, a scale for each ``group`` of them.
    The interval of the bound ends at what no share of a measured bandwidth can exceed. Arithmetic is taken at the
    fastest kernel of any kind.

    Raises:
        ValueError: the weights of the model, its rate or a bandwidth are not known.
    """
    method, ledger = phase
    tokens, stored = ledger.phase.tokens or 1, _stored(ledger, weights, group)
    cache = sum(one.bytes for one in ledger.bytes if one.use is ByteUse.CACHE)
    reached = ceilings.bandwidth(stored + cache)  # of all that a call passes over
    if ledger.unknown or not stored or not reached or method.tokens_per_second is None:
        raise ValueError(f"the weights of {ledger.method} or the bandwidth of the machine are not known")
    peaks = [one.rate.best for one in ceilings.compute if one.rate]
    peak = Estimated(max(peaks), (max(peaks), max(peaks) * MOST)) if peaks else None
    work = TokenWork(stored / tokens, cache / tokens, ledger.macs / tokens)
    bound = token_bound(work, Estimated(reached, (reached, reached * MOST)), peak)
    before = Estimated(method.tokens_per_second, method.tokens_ci95)
    claim = speedup_claim(stated, before, bound) if speedup else rate_claim(stated, bound)
    text = f"{ledger.method}{f' with {weights} weights' if weights else ''}: {claim.evidence}"
    return msgspec.structs.replace(claim, method=ledger.method, weights=weights, evidence=text)


def _stored(ledger: TokenLedger, weights: str | None, group: int | None) -> float:
    """Bytes of weights of a call, with their scales, as they are or in another number type."""
    if weights is None:
        return sum(one.bytes for one in ledger.bytes if one.use in {ByteUse.WEIGHTS, ByteUse.SCALES})
    count = 0.0
    for one in ledger.bytes:
        if one.use is ByteUse.WEIGHTS:
            bits = number_bits(one.dtype)
            if bits is None:
                raise ValueError(f"how many weights {ledger.method} has is not known: {one.dtype} has no known width")
            count += one.bytes * 8 / bits
    return weight_bytes({weights: count}, group)


def claimed_phase(
    methods: Sequence[MethodTime], ledgers: Sequence[TokenLedger], name: str | None
) -> tuple[MethodTime, TokenLedger] | None:
    """The phase of this name, or the earliest token; None where none was measured."""
    token_ledgers = [one for one in ledgers if (_is_named(one, name) if name else one.phase.kind is PhaseKind.DECODE)]
    ledger = min(token_ledgers, key=lambda one: one.phase.position or 0, default=None)
    return None if ledger is None else (next(one for one in methods if one.method == ledger.method), ledger)


def _is_named(ledger: TokenLedger, name: str) -> bool:
    """As it was asked for: what is known of its cache may be left out."""
    return ledger.method == name or ledger.method.startswith(f"{name}_of_")


def _by(rate: Estimated, needed: float) -> Estimated:
    between = None if rate.ci95 is None else (rate.ci95[0] / needed, rate.ci95[1] / needed)
    return Estimated(rate.value / needed, between)


def _ends(figure: Estimated) -> tuple[float, float]:
    return figure.ci95 or (figure.value, figure.value)


def _claim(stated: float, largest: Estimated, form: Callable[[float], str], by: str) -> Claim:
    low, high = _ends(largest)
    plausibility = Plausibility.UNDECIDABLE
    if stated <= low:
        plausibility = Plausibility.POSSIBLE
    elif stated > high:
        plausibility = Plausibility.ABOVE
    between = f" {interval_text((low, high), form)}" if largest.ci95 else ""
    most = f"{by} allows at most {form(largest.value)}{between}"
    words = {
        Plausibility.POSSIBLE: f"{form(stated)} is possible: {most}",
        Plausibility.ABOVE: f"{form(stated)} is {stated / largest.value:.2f} times the bound: {most}",
        Plausibility.UNDECIDABLE: f"{form(stated)} cannot be judged: {most}",
    }
    return Claim(stated, largest, stated / largest.value, plausibility, words[plausibility])


def _tokens_text(rate: float) -> str:
    return f"{rate_text(rate)} tokens/s"
