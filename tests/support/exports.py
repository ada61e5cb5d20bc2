"""Programs of the real exporter: committed ones, those that a test exports in its process, and how to make them anew.

``python tests/support/exports.py`` writes ``tests/data/programs`` anew, after a change of a model or of the exporter.
The name of a directory ends with a hash of the model's source and of the versions that exported it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from opscope.analysis.preflight.exported import ExportRecord
from opscope.runtimes.executorch.export.checked import checked
from opscope.runtimes.executorch.export.process import Exported, export_model
from opscope.runtimes.executorch.export.protocol import ExportFinished, ExportRequest
from opscope.runtimes.exports import Choice
from opscope.runtimes.registry import EXPORTER
from scrub import plain
from session_files import made_once

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "data" / "programs"
INDEX = PROGRAMS / "index.json"
EXPORTERS = ("torch", "executorch", "torchao")


class Committed(NamedTuple):
    """A program that is committed: the model as the exporter is asked for it, its number type, and its source."""

    model: str
    dtype: str
    source: Path


_MODELS = TESTS.parent / "src" / "opscope" / "runtimes" / "executorch" / "export" / "models"
COMMITTED = {
    "toy_cnn-fp32": Committed("toy_cnn", "fp32", _MODELS / "toy_cnn.py"),
    "toy_cnn-int8": Committed("toy_cnn", "int8", _MODELS / "toy_cnn.py"),
    "paired_cnn-fp32": Committed(str(TESTS / "support" / "paired_cnn.py"), "fp32", TESTS / "support" / "paired_cnn.py"),
}


def program(name: str) -> Path:
    """The .pte of a committed program; its slim .etrecord is beside it."""
    found = PROGRAMS / directory_name(name, json.loads(INDEX.read_text("utf-8"))[name])
    assert found.is_dir(), f"{found.name}: the model or the exporter changed: python tests/support/exports.py"
    return next(found.glob("*.pte"))


def directory_name(name: str, versions: Mapping[str, str]) -> str:
    """Of a committed program: its name and a hash of what it was exported from and by."""
    said = json.dumps(versions, sort_keys=True).encode()
    return f"{name}-{hashlib.sha256(COMMITTED[name].source.read_bytes() + said).hexdigest()[:12]}"


def write_anew() -> None:
    """Export all of them and write the directory anew."""
    from opscope.runtimes.executorch.etrecord import slim_etrecord

    versions = {package: version(package).partition("+")[0] for package in EXPORTERS}
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / "programs"
        for name, one in COMMITTED.items():
            exporting, place = Path(work) / name, made / directory_name(name, versions)
            exporting.mkdir()
            place.mkdir(parents=True)
            exported, etrecord = export_model(one.model, one.dtype, exporting)
            shutil.copy(exported, place)
            (place / etrecord.name).write_bytes(plain(slim_etrecord(etrecord)))
        (made / INDEX.name).write_text(json.dumps(dict.fromkeys(COMMITTED, versions), indent=1) + "\n", "utf-8")
        shutil.rmtree(PROGRAMS, ignore_errors=True)
        shutil.copytree(made, PROGRAMS)


def served(directory: Path, model: str, dtype: str = "fp32", backend: str = "xnnpack") -> Exported:
    """What the exporting process does, in this one: importing torch costs more than the export."""
    from opscope.runtimes.executorch.export.child import serve

    directory.mkdir(exist_ok=True)
    done: ExportFinished = serve(ExportRequest(model, "m", None, dtype, backend, str(directory)), lambda _, __: None)
    stem = f"m_{backend}_{dtype}"
    etrecord = None if done.etrecord_problem else directory / f"{stem}.etrecord"
    return Exported(directory / f"{stem}.pte", etrecord, "m", done)


def record_of(directory: Path, model: str, dtype: str = "fp32", backend: str = "xnnpack") -> ExportRecord:
    """The record of such an export."""
    return checked(EXPORTER, served(directory, model, dtype, backend), model, Choice(dtype, backend))


def shared_export(model: str, dtype: str) -> Path:
    """The .pte of a registered model, exported in its own process, once in a session; its whole record is beside it."""
    directory = made_once(f"programs/{model}-{dtype}", lambda place: export_model(model, dtype, place))
    return next(directory.glob("*.pte"))


if __name__ == "__main__":
    write_anew()
