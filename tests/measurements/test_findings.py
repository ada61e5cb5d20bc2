"""What findings know of an experiment: which features differ between two variants."""

from __future__ import annotations

import pytest

from opscope.bundle.manifest import Role, Variant
from opscope.measurements.findings import group_by_threads, switched_features


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


def test_a_variant_at_other_thread_counts_differs_in_nothing_else() -> None:
    """What has other features off, or runs in another runtime, tells nothing of threads; its own count comes first."""
    shown = Variant("two", Role.ACCELERATED, [], [], 2)
    others = [
        Variant("one", Role.ACCELERATED, [], [], 1),
        shown,
        Variant("again", Role.ACCELERATED, [], [], 1),
        Variant("four", Role.BASELINE, ["avx512"], ["avx512f"], 4),
        Variant("elsewhere", Role.ACCELERATED, [], [], 8, runtime="onnxruntime"),
        Variant("lost", Role.ACCELERATED, [], [], 16),
    ]
    found = {one.name: f"of {one.name}" for one in others[:-1]}
    assert list(group_by_threads(shown, others, found).items()) == [(2, "of two"), (1, "of one")]


@pytest.mark.parametrize(
    "own", [None, Variant("two", None, None, [], None), Variant("lost", Role.ACCELERATED, [], [], 2)]
)
def test_threads_of_a_variant_that_is_not_known_are_not_compared(own: Variant | None) -> None:
    """A directory of another tool names no threads, and a variant without a result has nothing to compare."""
    assert group_by_threads(own, [], {"two": ""}) == {}
