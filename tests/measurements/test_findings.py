"""What findings know of an experiment: which features differ between two variants."""

from __future__ import annotations

import pytest

from opscope.bundle.manifest import Role, Variant
from opscope.measurements.findings import switched_features


def variant(*ablated: str, cleared: tuple[str, ...] = ()) -> Variant:
    """A variant with these groups off, by these fields."""
    return Variant("one", Role.BASELINE, list(ablated), list(cleared), 1)


OFF, ON = variant("avx2", cleared=("avx2", "fma3")), variant()


@pytest.mark.parametrize(
    ("baseline", "candidate", "features", "switched"),
    [
        (OFF, ON, ["avx2", "avx"], ("avx2",)),
        (OFF, ON, None, ("avx2",)),
        (OFF, OFF, ["avx2", "avx"], ()),
        (ON, ON, ["avx2", "avx"], ()),
        (variant("avx512", cleared=("avx512f",)), ON, ["avx2", "avx"], ()),
        (variant("avx2", cleared=("avx2",)), variant("fma", cleared=("avx2",)), None, ()),
        (variant("sme2"), ON, None, ("sme2",)),
        (Variant("one", Role.BASELINE, None, [], 1), ON, None, None),
        (None, ON, None, None),
    ],
)
def test_switched_is_what_only_one_side_has(
    baseline: Variant | None, candidate: Variant, features: list[str] | None, switched: tuple[str, ...] | None
) -> None:
    """Neither a group that the CPU lacks, nor one under another name; of builds what is said of them."""
    assert switched_features(baseline, candidate, features) == switched
