"""A bundle that a worker measured is the one that would have been measured here, field by field."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dask_cluster import Cluster
from opscope.api import analyze
from opscope.bundle.bundle import Bundle
from opscope.core.errors import UsageError
from opscope.experiment.config_rules import read_own
from opscope.experiment.planned import Experiment
from opscope.experiment.target_names import parse_target
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.parallel.carried import Parcel, keep_here, missing_here, placed, unpacked
from opscope.workflows.measure.running import read_experiments, run

DATA = Path(__file__).parents[1] / "data"
MEASURED = {
    "created",
    "started",
    "seconds",
    "measurement",
    "before",
    "after",
    "locks",
    "config",
    "usage",
    "peak_rss_bytes",
}
"""What two runs differ in, wherever they were."""
_HEAD = """
rounds = 1
runs = 3
warmup = 1
ceilings = false
out = "here"
{more}
[devices.board]
target = "native"
"""
_TWO_RUNTIMES = """
[[variants]]
name = "litert"
model = "models/images.tflite"

[[variants]]
name = "onnxruntime"
model = "models/images.onnx"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with its nanny, whose files and current directory are its own."""
    home = tmp_path_factory.mktemp("worker")
    with Cluster(0) as running:
        running.add_worker("device:board=1", ["--local-directory", str(home)], {"OPSCOPE_CACHE": str(home / "cache")})
        yield running


def both(file: Path, cluster: Cluster) -> dict[str, tuple[Path, Path]]:
    """The bundles of a file, by experiment: measured here, and by the worker."""
    found = {}
    for place, means in (("here", Means()), ("there", Means(scheduler=cluster.address))):
        report = run(file, out=file.parent / place, means=means)
        assert [(result.name, result.error) for result in report.experiments if result.error] == []
        found[place] = {result.name: Path(result.path) for result in report.experiments}
    return {name: (path, found["there"][name]) for name, path in found["here"].items()}


def stated(value: Any, at: str = "") -> dict[str, Any]:
    """A manifest without what is measured: each value by its place."""
    if isinstance(value, dict):
        kept = {f"{at}/{key}": own for key, own in value.items() if key not in MEASURED and "sha256" not in key}
    elif isinstance(value, list):
        kept = {f"{at}/{number}": own for number, own in enumerate(value)}
    else:
        return {at: value}
    return {place: one for key, own in kept.items() for place, one in stated(own, key).items()}


def check_alike(here: Path, there: Path) -> None:
    """Same files, same models, same manifest."""
    files = [{str(file.relative_to(one)) for file in one.rglob("*") if file.is_file()} for one in (here, there)]
    assert files[0] - {".lock"} == files[1] - {".lock"}
    manifests = [stated(msgspec.to_builtins(Bundle.open(one).manifest)) for one in (here, there)]
    assert manifests[0] == manifests[1]
    for model in Bundle.open(here).manifest.models.values():
        contents = [hashlib.sha256((one / model.program).read_bytes()).hexdigest() for one in (here, there)]
        assert contents[0] == contents[1]


@pytest.mark.skipif(
    find_spec("ai_edge_litert") is None or find_spec("onnxruntime") is None, reason="a runtime is not installed"
)
def test_models_of_variants_travel(cluster: Cluster, tmp_path: Path) -> None:
    """Two runtimes with a program each; what was named relative to the file is named so in the bundle."""
    (tmp_path / "models").mkdir()
    for file in ("tflite/images.tflite", "onnx/images.onnx"):
        shutil.copy(DATA / file, tmp_path / "models")
    file = tmp_path / "lab.toml"
    file.write_text(_HEAD.format(more="") + _TWO_RUNTIMES)
    for here, there in both(file, cluster).values():
        check_alike(here, there)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
@pytest.mark.skipif(find_spec("executorch") is None, reason="executorch is not installed")
def test_records_weights_and_inputs_travel(cluster: Cluster, tmp_path: Path) -> None:
    """A model that is exported has its layers; a program with weights apart runs on the arrays of a file."""
    from elsewhere import written_apart

    written_apart("looked", tmp_path)
    np.savez(tmp_path / "tokens.npz", arr_0=np.arange(16, dtype=np.int64).reshape(1, 16))
    for name, more in (
        ("exported", 'models = ["toy_cnn"]'),
        ("apart", 'models = ["looked.pte"]\ninputs = "tokens.npz"'),
    ):
        file = tmp_path / f"{name}.toml"
        file.write_text(_HEAD.format(more=more).replace("here", f"{name}-here"))
        for here, there in both(file, cluster).values():
            check_alike(here, there)
            modules = [[module.path for module in analyze(one).modules] for one in (here, there)]
            assert modules[0] == modules[1]
            assert ("stem" in modules[0]) is (name == "exported"), "its layers are known"


def test_a_file_that_is_not_here_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Its name is told; a worker would look for it in vain."""
    shutil.copy(DATA / "tflite/images.tflite", tmp_path)
    file = tmp_path / "lab.toml"
    file.write_text(_HEAD.format(more='models = ["images.tflite"]\ninputs = "gone.npz"'))
    (experiment,) = read_experiments(file).experiments
    with pytest.raises(UsageError, match="no such file") as caught:
        Parcel(experiment, tmp_path / "exports")
    assert str(caught.value.where).endswith("gone.npz")


def test_a_worker_trusts_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file under a hash that is not its own is not kept, and none is laid out beside its folder."""
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    shutil.copy(DATA / "tflite/images.tflite", tmp_path)
    file = tmp_path / "lab.toml"
    file.write_text(_HEAD.format(more='models = ["images.tflite"]'))
    (experiment,) = read_own({"models": [str(tmp_path / "images.tflite")]}, file).experiments
    parcel = Parcel(experiment, tmp_path / "exports")
    assert missing_here(parcel.carried) == parcel.hashes
    with pytest.raises(UsageError, match="arrived damaged"):
        keep_here(dict.fromkeys(parcel.hashes, b"something else"))
    keep_here(parcel.contents(parcel.hashes))
    assert missing_here(parcel.carried) == set()
    (carried,) = parcel.carried
    away = carried._replace(files=tuple(file._replace(name="../../away") for file in carried.files))
    with pytest.raises(UsageError, match="outside its folder"):
        unpacked([away], tmp_path / "work")


def test_the_build_that_a_target_names_travels(tmp_path: Path) -> None:
    """Also one whose path has characters that an address writes in another way."""
    runner = tmp_path / "my runner & co"
    runner.write_text("#!/bin/sh\n")
    runner.chmod(0o755)
    shutil.copy(DATA / "tflite/images.tflite", tmp_path)
    named = parse_target("ssh:board?runner=x").running(str(runner)).text
    experiment = Experiment(name="lab", model=str(tmp_path / "images.tflite"), target=named)
    parcel = Parcel(experiment, tmp_path / "exports")
    (carried,) = (one for one in parcel.carried if one.named == str(runner))
    assert carried.files[0].executable
    there = placed(experiment, {one.named: f"/there/{number}" for number, one in enumerate(parcel.carried)})
    assert parse_target(there.target).runner == "/there/1"
    assert there.model == "/there/0"
