"""The corpus: models that others published end in a report, or in a refusal that the runtime makes, too."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec
import pytest
from corpus.__main__ import try_models
from corpus.catalogue import PACKAGES, NotDownloadedError
from corpus.page import RESULTS, read_results, sections
from corpus.trial import ROOT, Trial, tried

from installed import needs_onnxruntime

if TYPE_CHECKING:
    from pathlib import Path

    from corpus.catalogue import Package

MODELS = ROOT / "tests" / "data"
LEAST = 60


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the wheels of these tests."""
    return tmp_path_factory.mktemp("wheels")


@pytest.mark.nightly  # downloads 300 MB, and runs models of up to 19 GMAC
@pytest.mark.skipif(
    find_spec("onnxruntime") is None or find_spec("ai_edge_litert") is None, reason="a runtime is not installed"
)
@pytest.mark.parametrize("package", PACKAGES, ids=[package.name for package in PACKAGES])
def test_every_model_of_a_package_ends_as_it_has_to(package: Package, wheels: Path) -> None:
    """With at most one retry, and with the same work with acceleration on and off."""
    try:
        trials = list(try_models(package, wheels))
    except NotDownloadedError as error:
        pytest.skip(str(error))
    assert trials
    assert [trial.refusal for trial in trials if not trial.kept] == []
    assert [trial.model for trial in trials if trial.measured and len(trial.measured.macs) > 1] == []


@needs_onnxruntime
def test_trials_say_what_happened(tmp_path: Path) -> None:
    """A report at once, one with the guess that the refusal names, and a refusal that is held against the runtime."""
    first = tried("own", MODELS / "onnx" / "cnn.onnx", "")
    assert first.kept
    assert first.measured is not None
    assert (first.commands, first.measured.exact, first.measured.agree) == (1, 1.0, True)
    second = tried("own", MODELS / "onnx" / "open_sizes.onnx", "")
    assert (second.kept, second.commands, second.inputs) == (True, 2, ["x=float32[1,8]"])
    strange = tmp_path / "strange.onnx"
    strange.write_bytes((MODELS / "onnx" / "products.onnx").read_bytes().replace(b"Tanh", b"Tank"))
    refused = tried("own", strange, "")
    assert refused.kept
    assert refused.measured is None
    assert "Tank" in (refused.refusal or "")
    assert "Tank" in (refused.runtime or "")
    assert str(tmp_path) not in f"{refused.refusal} {refused.runtime}"
    assert not msgspec.structs.replace(refused, runtime="").kept


def test_the_page_is_of_the_committed_run() -> None:
    """Enough models, and none that was refused although the runtime runs it."""
    results = read_results()
    text = "\n".join(sections())
    assert RESULTS.exists()
    assert len(results.trials) >= LEAST
    assert [trial.model for trial in results.trials if not trial.kept] == []
    assert all(trial.model in text for trial in results.trials)
    assert {trial.package.split()[0] for trial in results.trials} <= {package.name for package in PACKAGES}
    assert all(isinstance(trial, Trial) for trial in results.trials)
