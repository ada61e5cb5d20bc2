"""Files of a bundle by what they are, so that bundles of other models and rounds can be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.bundle.bundle import Bundle
from opscope.bundle.documents import file_roles

BUNDLE = Path(__file__).parents[1] / "data" / "bundles" / "flat-rooms"


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("model/toy.pte", "model/*.pte"),
        ("model/export.log", "model/export.log"),
        ("model/LICENSE", "model/LICENSE"),
        ("model/baseline/other.pte", "model/(baseline)/*.pte"),
        ("model/baseline/LICENSE", "model/baseline/LICENSE"),
        ("comparisons/one.json", "comparisons/*.json"),
        ("variants/accelerated/round-07/trace.etdump", "variants/(accelerated)/round-*/trace.etdump"),
        ("variants/accelerated/round-07/trace.etdump.zst", "variants/(accelerated)/round-*/trace.etdump"),
        ("variants/another/outputs.npz", "variants/(unknown)/outputs.npz"),
        ("report.html", "report.html"),
    ],
)
def test_a_file_is_known_by_its_role(path: str, role: str) -> None:
    """Names of models, variants and rounds are left out; what has no ending is itself."""
    assert file_roles(Bundle.open(BUNDLE).manifest, [path, "variants/.hidden"]) == {role}
