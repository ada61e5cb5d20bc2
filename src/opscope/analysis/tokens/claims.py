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

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """

    stated: float
    largest: Estimated
    excess: float
    plausibility: Plausibility
    evidence: str


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
    return _claim(tokens_per_second, bound.tokens_per_second, " tokens/s", bound.by)


def speedup_claim(speedup: float, before: Estimated, bound: TokenBound) -> Claim:
    """A stated speedup of decoding, from measured tokens per second before it and the bound after it."""
    (low, high), (least, most) = _ends(bound.tokens_per_second), _ends(before)
    interval = None if bound.tokens_per_second.ci95 is None and before.ci95 is None else (low / most, high / least)
    return _claim(speedup, Estimated(bound.tokens_per_second.value / before.value, interval), "x", bound.by)


def _by(rate: Estimated, needed: float) -> Estimated:
    between = None if rate.ci95 is None else (rate.ci95[0] / needed, rate.ci95[1] / needed)
    return Estimated(rate.value / needed, between)


def _ends(figure: Estimated) -> tuple[float, float]:
    return figure.ci95 or (figure.value, figure.value)


def _claim(stated: float, largest: Estimated, unit: str, by: str) -> Claim:
    low, high = _ends(largest)
    found = Plausibility.UNDECIDABLE
    if stated <= low:
        found = Plausibility.POSSIBLE
    elif stated > high:
        found = Plausibility.ABOVE
    between = f" [{low:.3g}, {high:.3g}]" if largest.ci95 else ""
    most = f"{by} allows at most {largest.value:.3g}{unit}{between}"
    words = {
        Plausibility.POSSIBLE: f"{stated:.3g}{unit} is possible: {most}",
        Plausibility.ABOVE: f"{stated:.3g}{unit} is {stated / largest.value:.2f} times the bound: {most}",
        Plausibility.UNDECIDABLE: f"{stated:.3g}{unit} cannot be judged: {most}",
    }
    return Claim(stated, largest, stated / largest.value, found, words[found])
