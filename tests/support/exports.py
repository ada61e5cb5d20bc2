"""Exports by the real exporter: in the process of the test, or once for all tests of a session."""

from __future__ import annotations

from pathlib import Path

from opscope.analysis.preflight.exported import ExportRecord
from opscope.runtimes.executorch.export.choices import Choice
from opscope.runtimes.executorch.export.process import Exported
from opscope.runtimes.executorch.export.protocol import ExportFinished, ExportRequest
from opscope.workflows.export.exporting import checked
from session_files import made_once


def served(directory: Path, model: str, dtype: str = "fp32", backend: str = "xnnpack") -> Exported:
    """What the exporting process does, in this one: importing torch costs more than the export."""
    from opscope.runtimes.executorch.export.child import serve

    directory.mkdir(exist_ok=True)
    done: ExportFinished = serve(ExportRequest(model, "m", None, dtype, backend, str(directory)), lambda _: None)
    stem = f"m_{backend}_{dtype}"
    etrecord = None if done.etrecord_problem else directory / f"{stem}.etrecord"
    return Exported(directory / f"{stem}.pte", etrecord, "m", done)


def record_of(directory: Path, model: str, dtype: str = "fp32", backend: str = "xnnpack") -> ExportRecord:
    """The record of such an export."""
    return checked(served(directory, model, dtype, backend), model, Choice(dtype, backend))


def shared_export(model: str, dtype: str) -> Path:
    """The .pte of a registered model, exported in its own process, once in a session; the record is beside it."""
    from opscope.runtimes.executorch.export.process import export_model

    directory = made_once(f"programs/{model}-{dtype}", lambda place: export_model(model, dtype, place))
    return next(directory.glob("*.pte"))
