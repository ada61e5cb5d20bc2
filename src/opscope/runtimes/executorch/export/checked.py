"""Check an exported program: it is read back, run, compared and described before it counts as done."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.analysis.preflight.exported import (
    ExportRecord,
    MethodExport,
    agreement_with_eager,
    agreement_with_graph,
    delegation,
    usual_tolerance,
)
from opscope.analysis.preflight.preflight import preflight
from opscope.core.errors import ExportError, OpscopeError, UsageError
from opscope.core.files import sha256_of
from opscope.core.json import to_json
from opscope.core.version import __version__
from opscope.core.writing import write_atomically
from opscope.machine.clock import SystemClock
from opscope.readers.outputs import read_outputs
from opscope.runtimes.executorch.etrecord import slim_etrecord
from opscope.runtimes.executorch.export.eager import EagerModel
from opscope.runtimes.executorch.export.lower import export
from opscope.runtimes.executorch.export.process import check_installed
from opscope.runtimes.executorch.export.protocol import CHECKS, outputs_file
from opscope.runtimes.exports import EXPORT_LOG, FP16, FP32, QUANTISED, RECORD, Choice, check_dtype, exported_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.analysis.compare.outputs import Array, OutputAgreement
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight
    from opscope.runtimes.executorch.export.process import Exported
    from opscope.runtimes.runtime import Runtime


GRAPH = "graph.json"
LAYER_NORM = "aten::native_layer_norm.out"


def checked(
    runtime: Runtime, exported: Exported, model: str, choice: Choice, tolerance: float | None = None
) -> ExportRecord:
    """Check what an export wrote, and write the export record beside it. Raises ExportError if the program is wrong."""
    directory = exported.program.parent
    predicted, problem = _read_back(runtime, exported)
    methods = [
        _check_method(number, exported, {m.name: m for m in predicted.methods}, choice, tolerance, directory)
        for number in range(len(exported.finished.methods))
    ]
    record = ExportRecord(
        opscope=__version__,
        created=SystemClock().now().isoformat(timespec="seconds"),
        source=model,
        name=exported.name,
        dtype=choice.dtype,
        backend=choice.backend,
        program=exported_file(exported.program),
        etrecord=exported_file(exported.etrecord) if exported.etrecord else None,
        graph=exported_file(directory / GRAPH),
        methods=methods,
        versions=exported.finished.versions,
        partition_rules=predicted.partition_rules,
        etrecord_problem=problem,
        stages=exported.stages,
    )
    _check_agreement(record, directory / EXPORT_LOG)
    shutil.rmtree(directory / CHECKS, ignore_errors=True)
    write_atomically(directory / RECORD, to_json(record))
    return record


def with_slim_record(record: ExportRecord, directory: Path) -> ExportRecord:
    """Remove the weights from an export's .etrecord, and return the new record.

    An unreadable .etrecord stays as it is.
    """
    if record.etrecord is None or record.etrecord_problem:
        return record
    etrecord = directory / record.etrecord.name
    write_atomically(etrecord, slim_etrecord(etrecord))
    slim = msgspec.structs.replace(record, etrecord=exported_file(etrecord))
    write_atomically(directory / RECORD, to_json(slim))
    return slim


def _read_back(runtime: Runtime, exported: Exported) -> tuple[Preflight, str | None]:
    """Predict the program from its files, read back with its record; and say why the record cannot be used."""
    try:
        model, _, problem = runtime.usable_model(exported.program, exported.etrecord)
        predicted = preflight(model, exported.program.name, sha256_of(exported.program), cpu=None)
    except OpscopeError as error:
        text = f"the export does not read back: {error.problem}"
        hint = "this is a bug in opscope or in ExecuTorch's exporter; please report it with the log"
        raise ExportError(text, where=error.where, hint=hint) from error
    return predicted, exported.finished.etrecord_problem or (problem.problem if problem else None)


def _check_method(
    number: int,
    exported: Exported,
    preflights: dict[str, MethodPreflight],
    choice: Choice,
    tolerance: float | None,
    directory: Path,
) -> MethodExport:
    method = exported.finished.methods[number]
    eager, computed = (_read_outputs(directory, kind, number) for kind in ("eager", "program"))
    graph: OutputAgreement | None = None
    if choice.dtype in QUANTISED:
        graph = agreement_with_graph(_read_outputs(directory, "graph", number), computed, choice.dtype)
    share = delegation(preflights[method.name])
    operators = share.operators + share.portable_operators
    limit = usual_tolerance(choice.dtype, method.inputs, operators) if tolerance is None else tolerance
    return MethodExport(method, share, agreement_with_eager(eager, computed, choice.dtype, limit), graph)


def _read_outputs(directory: Path, kind: str, number: int) -> Sequence[Array]:
    return read_outputs(directory / CHECKS / outputs_file(kind, number)) or []


def _check_agreement(record: ExportRecord, log: Path) -> None:
    """Raise ExportError if the program computes something else than the model."""
    for method in record.methods:
        if method.agrees:
            continue
        reference = "the model in PyTorch" if not method.eager.agree else "the quantised graph in PyTorch"
        problem = method.eager.problem if not method.eager.agree else method.graph.problem if method.graph else None
        problem_text = f"{record.source} ({method.method.name}) disagrees with {reference}: {problem}"
        raise ExportError(
            problem_text, where=log, hint=f"{_disagreement_advice(record, method)}; --tolerance accepts a larger error"
        )


def _disagreement_advice(record: ExportRecord, method: MethodExport) -> str:
    """Return advice on outputs that disagree."""
    if record.dtype in QUANTISED:
        return "calibrate with real inputs, or keep sensitive submodules in fp32: Quantisation(calibration=, skip=)"
    stayed = {group.operator for group in method.delegation.portable}
    if record.dtype == FP16 and LAYER_NORM in stayed:
        return (
            "in executorch 1.5.1, half-precision layer norms over 256 or more elements are wrong: wrap them with "
            "opscope.runtimes.executorch.export.patterns.NormInFp32"
        )
    first_step = "" if record.dtype == FP32 else "try --dtype fp32; if that fails too, "
    return f"{first_step}compare parts of the model with PyTorch, to find the operator that is wrong"


def export_live(module: Any, inputs: Any, dtype: str, directory: Path) -> Path:  # noqa: ANN401 - torch is not typed here
    """Export a PyTorch module in this process, from a copy; the module itself is left unchanged.

    Returns the .pte.
    """
    check_installed()
    check_dtype(dtype)
    name = re.sub(r"[^A-Za-z0-9_]", "_", type(module).__name__)
    choice = Choice(dtype)
    program = directory / f"{choice.stem(name)}.pte"
    export(_copy_model(module, inputs), name, choice, program, lambda _, __: None)
    return program


def _copy_model(module: Any, inputs: Any) -> EagerModel:  # noqa: ANN401 - likewise
    import copy

    import torch

    if not isinstance(module, torch.nn.Module):
        hint = "give a torch.nn.Module, a registered name, or the path of a .pte"
        raise UsageError(f"a {type(module).__name__} is not a model", where="model", hint=hint)
    example_inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    if not example_inputs or not all(isinstance(value, torch.Tensor) for value in example_inputs):
        raise UsageError("module inputs must be a tensor or a tuple of tensors", where="inputs")
    try:
        return EagerModel.of(copy.deepcopy(module).eval(), example_inputs)
    except (RuntimeError, TypeError) as error:
        hint = "rebuild it without running it, or export it to a .pte yourself"
        raise ExportError(f"cannot copy the module: {error}", where="model", hint=hint) from error
