"""Bundles that a worker of a cluster brings: in place whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import ClusterError, TraceFormatError
from opscope.experiment.planned import Experiment, Experiments
from opscope.workflows.measure.parallel.cluster import Brought, _kept
from opscope.workflows.measure.parallel.workers import Lost
from opscope.workflows.measure.run_report import ExperimentResult

EXPERIMENT = Experiment(name="lab", model="one.pte", target="local")
THERE = ExperimentResult("lab", "/on/the/worker/lab")


def asked(directory: Path) -> Experiments:
    """What a file of one experiment asks for; its bundles go to a directory that is not there yet."""
    return Experiments(directory / "lab.toml", directory / "runs", (EXPERIMENT,))


def test_a_bundle_is_put_in_its_place(tmp_path: Path) -> None:
    """With its files and nothing else; the result names this place, and the worker's notes are kept."""
    notes = ["before"]
    files = {"manifest.json": b"{}", "variants/a/round-00/trace.etdump": b"trace"}
    result = _kept(asked(tmp_path), EXPERIMENT, Brought(THERE, files, ["hot"]), notes)
    place = tmp_path / "runs" / "lab"
    assert (result.path, result.error, notes) == (str(place), None, ["before", "hot"])
    assert {str(one.relative_to(place)): one.read_bytes() for one in place.rglob("*") if one.is_file()} == files
    assert list(place.parent.iterdir()) == [place]


def test_a_worker_cannot_write_elsewhere(tmp_path: Path) -> None:
    """A file that leads out of the bundle is refused, and nothing of the others stays."""
    files = {"manifest.json": b"{}", "../../mine": b""}
    with pytest.raises(TraceFormatError, match=r"outside its bundle: '\.\./\.\./mine'"):
        _kept(asked(tmp_path), EXPERIMENT, Brought(THERE, files, []), [])
    assert [*tmp_path.rglob("*")] == [tmp_path / "runs"]


def test_what_no_worker_finished_is_a_failed_experiment(tmp_path: Path) -> None:
    """With the reason and the exit code of a cluster."""
    result = _kept(asked(tmp_path), EXPERIMENT, Lost("it died"), [])
    assert (result.error, result.exit_code, result.content) == ("it died", ClusterError.exit_code, None)
    assert not (tmp_path / "runs").exists()
