"""EdgeTAM's image encoder: the adapter with a stand-in, and what is said when upstream's files are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import MissingDependencyError, NotFoundError

pytestmark = [
    pytest.mark.nightly,  # exports a large model
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore"),
]  # torch warns of itself


def clone(directory: Path) -> Path:
    """A directory with the one file by which a clone is known; what is in it is not upstream's."""
    config = directory / "sam2" / "configs" / "edgetam.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("model: {image_encoder: {}}\n")
    return directory


def test_the_adapter_gives_three_levels_of_features_and_no_positions() -> None:
    """As large as upstream's: a 4th, an 8th and a 16th of 1024x1024; the stand-in has fewer channels."""
    from opscope.runtimes.executorch.export.registry import build

    model = build("edgetam_standin")
    assert tuple(model.inputs[0].shape) == (1, 3, 1024, 1024)
    features = model.module(*model.inputs)
    assert [tuple(level.shape) for level in features] == [(1, 32, 256, 256), (1, 32, 128, 128), (1, 32, 64, 64)]


def test_the_stand_in_has_upstreams_interface() -> None:
    """A dictionary with these keys; positions have the shapes of the features; the adapter keeps their values."""
    import torch

    from opscope.runtimes.executorch.export.models.edgetam import EdgeTamImageEncoder
    from opscope.runtimes.executorch.export.models.edgetam_standin import StandIn

    encoder = StandIn().eval()
    image = torch.randn(1, 3, 64, 64)
    before = encoder(image)
    assert list(before) == ["vision_features", "vision_pos_enc", "backbone_fpn"]
    assert [p.shape for p in before["vision_pos_enc"]] == [f.shape for f in before["backbone_fpn"]]
    adapted = EdgeTamImageEncoder(encoder, 64)
    for level, feature in zip(adapted(image), before["backbone_fpn"], strict=True):
        torch.testing.assert_close(level, feature)
    for now, then in zip(encoder(image)["vision_pos_enc"], before["vision_pos_enc"], strict=True):
        torch.testing.assert_close(now, then)


def test_positions_are_constants_in_the_program(tmp_path: Path) -> None:
    """Exported at the full size: all multiply-accumulates are delegated, and enlarging is what stays."""
    from exports import record_of

    record = record_of(tmp_path, "edgetam_standin")
    (method,) = record.methods
    assert method.agrees
    assert [spec.shape for spec in method.method.inputs] == [[1, 3, 1024, 1024]]
    assert method.delegation.share == 1.0
    assert [group.operator for group in method.delegation.portable] == ["aten::upsample_nearest2d.vec_out"]


def test_what_is_missing_of_upstream_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone, its checkpoint, a package: each with the next step."""
    from opscope.runtimes.executorch.export.models.edgetam import build

    monkeypatch.delenv("OPSCOPE_EDGETAM", raising=False)
    with pytest.raises(NotFoundError, match="this model needs EdgeTAM's code") as raised:
        build()
    assert "edgetam_standin" in (raised.value.hint or "")
    monkeypatch.setenv("OPSCOPE_EDGETAM", str(tmp_path))
    with pytest.raises(NotFoundError, match="no EdgeTAM clone found"):
        build()
    monkeypatch.setenv("OPSCOPE_EDGETAM", str(clone(tmp_path)))
    with pytest.raises(NotFoundError, match="checkpoint is missing"):
        build()
    (tmp_path / "weights.pt").write_bytes(b"")
    monkeypatch.setenv("OPSCOPE_EDGETAM_CHECKPOINT", str(tmp_path / "weights.pt"))
    pytest.importorskip("hydra")
    with pytest.raises(MissingDependencyError, match="timm"):
        build()
