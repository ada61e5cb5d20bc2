"""A bundle that a worker measured is the one that would have been measured here, and is brought whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dask_cluster import Cluster
from installed import needs_executorch
from opscope.api import analyze
from opscope.bundle.bundle import Bundle
from opscope.core.errors import ClusterError, TraceFormatError, UsageError
from opscope.experiment.config_rules import read_opscope_config
from opscope.experiment.planned import Experiment, Experiments
from opscope.experiment.target_names import parse_target
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.parallel.remote_experiments import (
    Brought,
    keep_bundle,
    pack_files,
    unpack_files,
    with_local_paths,
)
from opscope.workflows.measure.parallel.workers import UnfinishedTask
from opscope.workflows.measure.run_report import ExperimentResult
from opscope.workflows.measure.running import read_experiments, run
from runners import write_runner

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
LAB = Experiment(name="lab", model="one.pte", target="local")
THERE = ExperimentResult("lab", "/on/the/worker/lab")


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
    """Make sure that both have the same files, models and manifest."""

    def told(bundle: Path) -> tuple[set[str], dict[str, Any], list[bytes]]:
        files = {str(file.relative_to(bundle)) for file in bundle.rglob("*") if file.is_file()}
        manifest = Bundle.open(bundle).manifest
        models = [(bundle / model.program).read_bytes() for model in manifest.models.values()]
        return files - {".lock"}, stated(msgspec.to_builtins(manifest)), models

    assert told(here) == told(there)


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
@needs_executorch
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
    """Tell its name; a worker would look for it in vain."""
    shutil.copy(DATA / "tflite/images.tflite", tmp_path)
    file = tmp_path / "lab.toml"
    file.write_text(_HEAD.format(more='models = ["images.tflite"]\ninputs = "gone.npz"'))
    (experiment,) = read_experiments(file).experiments
    with pytest.raises(UsageError, match="no such file") as caught:
        list(pack_files(experiment, tmp_path / "exports"))
    assert str(caught.value.where).endswith("gone.npz")


def test_a_worker_writes_no_file_beside_its_folder(tmp_path: Path) -> None:
    """A file whose name leads elsewhere is refused."""
    shutil.copy(DATA / "tflite/images.tflite", tmp_path)
    (experiment,) = read_opscope_config(
        {"models": [str(tmp_path / "images.tflite")]}, tmp_path / "lab.toml"
    ).experiments
    (sent,) = pack_files(experiment, tmp_path / "exports")
    paths = unpack_files([sent], tmp_path / "work")
    assert Path(paths[sent.original]).read_bytes() == (DATA / "tflite/images.tflite").read_bytes()
    away = sent._replace(files={"../../away": next(iter(sent.files.values()))})
    with pytest.raises(UsageError, match="outside its folder"):
        unpack_files([away], tmp_path / "work")


def test_the_build_that_a_target_names_travels(tmp_path: Path) -> None:
    """Also one whose path has characters that an address writes in another way."""
    runner = write_runner(tmp_path, name="my runner & co")
    shutil.copy(DATA / "tflite/images.tflite", tmp_path)
    named = parse_target("ssh:board?runner=x").running(str(runner)).text
    experiment = Experiment(name="lab", model=str(tmp_path / "images.tflite"), target=named)
    items = list(pack_files(experiment, tmp_path / "exports"))
    (build,) = (item for item in items if item.original == str(runner))
    assert build.files[runner.name].is_executable
    there = with_local_paths(experiment, {item.original: f"/there/{number}" for number, item in enumerate(items)})
    assert parse_target(there.target).runner == "/there/1"
    assert there.model == "/there/0"


def asked(directory: Path) -> Experiments:
    """What a file of one experiment asks for; its bundles go to a directory that is not there yet."""
    return Experiments(directory / "lab.toml", directory / "runs", (LAB,))


def test_a_bundle_is_put_in_its_place(tmp_path: Path) -> None:
    """Keep its files and nothing else, and the worker's notes; what no worker finished is a failed experiment."""
    notes = ["before"]
    lost = keep_bundle(asked(tmp_path), LAB, UnfinishedTask("it died"), notes)
    assert (lost.error, lost.exit_code, lost.content) == ("it died", ClusterError.exit_code, None)
    assert not (tmp_path / "runs").exists()
    files = {"manifest.json": b"{}", "variants/a/round-00/trace.etdump": b"trace"}
    result = keep_bundle(asked(tmp_path), LAB, Brought(THERE, files, ["hot"]), notes)
    place = tmp_path / "runs" / "lab"
    assert (result.path, result.error, notes) == (str(place), None, ["before", "hot"])
    assert {str(one.relative_to(place)): one.read_bytes() for one in place.rglob("*") if one.is_file()} == files
    assert list(place.parent.iterdir()) == [place]


def test_a_worker_cannot_write_elsewhere(tmp_path: Path) -> None:
    """A file that leads out of the bundle is refused, and nothing of the bundle is written."""
    files = {"manifest.json": b"{}", "../../mine": b""}
    with pytest.raises(TraceFormatError, match=r"outside its bundle: '\.\./\.\./mine'"):
        keep_bundle(asked(tmp_path), LAB, Brought(THERE, files, []), [])
    assert not [*tmp_path.rglob("*")]
