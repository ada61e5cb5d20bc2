"""Whether two programs are of one network, by the work of their operators."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from opscope.core.units import count_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.analysis.operators.operator_facts import OperatorFacts
    from opscope.core.table.places import OperatorKey

_FEWEST = 3
"""Convolutions and matrix products of each side, below which a layer that was changed looks like another network."""
_ALIKE = 0.1
"""Share of the multiply-accumulates of either side from which on the sides may be one network."""


def different_networks(
    baseline: Mapping[OperatorKey, OperatorFacts], candidate: Mapping[OperatorKey, OperatorFacts]
) -> str | None:
    """Why two sides look like different networks, as a sentence; None where they do not, or their work is not known.

    Versions of a network share most operators, whatever their number type or runtime: these multiply as often. At
    another resolution all do other work, but there are as many.
    """
    sides = [_products(facts) for facts in (baseline, candidate)]
    counts = [side.total() for side in sides]
    if min(counts) < _FEWEST or counts[0] == counts[1]:
        return None
    work = [sum(macs * number for macs, number in side.items()) for side in sides]
    common = sum(macs * number for macs, number in (sides[0] & sides[1]).items())
    if common >= _ALIKE * min(work):
        return None
    told = [
        f"of {count_text(macs)} MACs on the {side}" for macs, side in zip(work, ("baseline", "candidate"), strict=True)
    ]
    return (
        f"These look like different networks: {counts[0]} convolutions and matrix products {told[0]}, {counts[1]} "
        f"{told[1]}, hardly one alike. Their latency ratio says nothing about either."
    )


def _products(facts: Mapping[OperatorKey, OperatorFacts]) -> Counter[int]:
    """How many operators multiply so often."""
    known = (fact.cost.macs for fact in facts.values() if fact.cost is not None)
    return Counter(macs for macs in known if macs)
