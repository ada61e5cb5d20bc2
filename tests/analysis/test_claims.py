"""Published rates and speedups of decoding against what memory and arithmetic allow."""

from __future__ import annotations

import pytest

from opscope.analysis.tokens.claims import (
    Plausibility,
    TokenWork,
    rate_claim,
    speedup_claim,
    token_bound,
    weight_bytes,
)
from opscope.analysis.tokens.growth import Estimated

GB = 1e9
SEVEN = weight_bytes({"int4": 7e9}, group=32)
"""Bytes of seven billion weights of 4.5 bits."""


def test_weights_are_counted_with_their_scales() -> None:
    """A scale of 16 bits for 32 weights is half a bit each; weights in floating point have none."""
    assert pytest.approx(7e9 * 4.5 / 8) == SEVEN
    assert weight_bytes({"f16": 1000, "int8": 1000}, group=128) == 2000 + 1000 + 1000 * 2 / 128
    assert weight_bytes({"f32": 10}) == 40


def test_seven_billion_weights_at_50_gb_a_second_make_thirteen_tokens_at_most() -> None:
    """3.9 GB a token."""
    bound = token_bound(TokenWork(SEVEN), Estimated(50 * GB, None))
    assert bound.by == "memory"
    assert bound.tokens_per_second.value == pytest.approx(12.698, abs=1e-3)
    assert rate_claim(12.0, bound).plausibility is Plausibility.POSSIBLE
    above = rate_claim(20.0, bound)
    assert (above.plausibility, above.excess) == (Plausibility.ABOVE, pytest.approx(20 / 12.698, rel=1e-3))
    assert above.evidence == "20.0 tokens/s is 1.58 times the bound: memory allows at most 12.7 tokens/s"


def test_keys_and_values_lower_the_bound() -> None:
    """A token behind many others reads them as well."""
    alone, behind = (token_bound(TokenWork(SEVEN, cache), Estimated(50 * GB, None)) for cache in (0.0, SEVEN))
    assert behind.tokens_per_second.value == pytest.approx(alone.tokens_per_second.value / 2)


def test_inside_of_the_interval_nothing_is_decided() -> None:
    """The bound of a bandwidth of 45 to 55 GB/s lies between 11.4 and 14 tokens."""
    bound = token_bound(TokenWork(SEVEN), Estimated(50 * GB, (45 * GB, 55 * GB)))
    verdicts = [rate_claim(rate, bound).plausibility for rate in (11.0, 12.0, 13.5, 14.5)]
    assert verdicts == [
        Plausibility.POSSIBLE,
        Plausibility.UNDECIDABLE,
        Plausibility.UNDECIDABLE,
        Plausibility.ABOVE,
    ]


def test_arithmetic_bounds_where_it_is_slower_than_memory() -> None:
    """One multiplication for each weight on a slow core with fast memory."""
    work = TokenWork(SEVEN, macs=7e9)
    bound = token_bound(work, Estimated(200 * GB, None), Estimated(70e9, (60e9, 80e9)))
    assert (bound.by, bound.tokens_per_second.value) == ("arithmetic", pytest.approx(10.0))
    assert token_bound(work, Estimated(20 * GB, None), Estimated(70e9, None)).by == "memory"


def test_int4_cannot_speed_a_memory_bound_decode_up_by_more_than_the_bytes_that_it_saves() -> None:
    """From 16 to 4.5 bits: 3.56 times at most where the 16 bits ran at the bandwidth, so 4.2 times cannot be."""
    bandwidth = Estimated(50 * GB, None)
    before = token_bound(TokenWork(weight_bytes({"f16": 7e9})), bandwidth).tokens_per_second
    claim = speedup_claim(4.2, before, token_bound(TokenWork(SEVEN), bandwidth))
    assert claim.plausibility is Plausibility.ABOVE
    assert claim.largest.value == pytest.approx(16 / 4.5)
    slow = Estimated(before.value / 2, None)
    assert speedup_claim(4.2, slow, token_bound(TokenWork(SEVEN), bandwidth)).plausibility is Plausibility.POSSIBLE


def test_an_instruction_set_cannot_speed_up_what_waits_for_memory() -> None:
    """Decode that reads weights at 90 % of the bandwidth cannot become three times as fast by multiplying faster."""
    bound = token_bound(TokenWork(SEVEN), Estimated(50 * GB, (48 * GB, 52 * GB)))
    before = Estimated(bound.tokens_per_second.value * 0.9, None)
    claim = speedup_claim(3.0, before, bound)
    assert (claim.plausibility, claim.largest.value) == (Plausibility.ABOVE, pytest.approx(1 / 0.9))
    assert claim.largest.ci95 == pytest.approx((48 / 50 / 0.9, 52 / 50 / 0.9))


def test_a_token_that_reads_nothing_is_refused() -> None:
    """It would have no bound."""
    with pytest.raises(ValueError, match="reads"):
        token_bound(TokenWork(0), Estimated(1.0, None))
