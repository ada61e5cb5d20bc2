"""The order of repetitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opscope.experiment.engine import interleave_rounds

names = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=5, unique=True)


@given(names, st.integers(1, 20), st.integers(0, 1000))
def test_every_round_runs_every_variant_once(variants: list[str], rounds: int, seed: int) -> None:
    """A round is a permutation of the variants, and the same seed gives the same order."""
    order = interleave_rounds(variants, rounds, seed)
    assert len(order) == rounds
    assert all(sorted(one) == sorted(variants) for one in order)
    assert order == interleave_rounds(variants, rounds, seed)


def test_the_order_changes_between_rounds() -> None:
    """Over twenty rounds of two variants both orders occur: drift does not favour one of them."""
    assert len({tuple(one) for one in interleave_rounds(["a", "b"], 20, seed=0)}) == 2
