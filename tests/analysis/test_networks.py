"""Two networks that are compared by mistake are told from two versions of one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from large_content import large_content
from opscope.analysis.compare.matching import different_networks
from opscope.analysis.operators.operators import OperatorFacts
from opscope.core.table.places import OperatorKey
from opscope.program.cost.operator_cost import Cost
from opscope.reports.comparison import comparison_document
from opscope.reports.document.blocks import Sentence, Tone


def network(*macs: int) -> dict[OperatorKey, OperatorFacts]:
    """Operators that multiply so often; 0 of one that does not."""
    return {
        OperatorKey("forward", 0, place): OperatorFacts(cost=Cost(count, 2 * count, 4, 4, 4))
        for place, count in enumerate(macs)
    }


def test_a_comparison_says_so_before_all_else(tmp_path: Path) -> None:
    """On its first screen, in a tone that cannot be overlooked; null in JSON where there is nothing to say."""
    (found,) = large_content(tmp_path, operators=20, inferences=4).comparisons
    assert found.networks is None
    document = comparison_document(msgspec.structs.replace(found, networks="These look like different networks."))
    assert document.trust[0] == Sentence("These look like different networks.", Tone.BAD)


FIRST = network(100, 0, 200, 300, 300)


def test_networks_without_common_work_are_told() -> None:
    """With what both have, so that a reader sees which is which."""
    told = different_networks(FIRST, network(7, 70, 700, 0, 7000, 70000))
    assert told is not None
    assert "4 convolutions and matrix products of 900 MACs on the baseline" in told
    assert "5 of 77.8 k MACs on the candidate" in told


@pytest.mark.parametrize(
    "other",
    [
        network(100, 200, 300, 300),
        network(100, 200, 300, 300, 5000),
        network(300, 300),
        network(400, 800, 1200, 1200),
        network(50, 60),
        {OperatorKey("forward", 0, place): OperatorFacts() for place in range(9)},
    ],
    ids=["the same", "a layer more", "half of it", "another resolution", "too few to tell", "no work known"],
)
def test_versions_of_a_network_are_not(other: dict[OperatorKey, OperatorFacts]) -> None:
    """Nor what is not known."""
    assert different_networks(FIRST, other) is None
    assert different_networks(other, FIRST) is None
