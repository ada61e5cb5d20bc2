"""Finding the program of a trace, and attributing the trace's operators with it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.analysis.analysis import ProgramInfo, ProgramKnowledge
from opscope.analysis.findings.message import part_warning
from opscope.analysis.operators.attribution import attribute, method_names
from opscope.core.errors import InvalidBundleError, MismatchError, NotFoundError, OpscopeError, reading
from opscope.core.files import head_of, sha256_of
from opscope.core.parts import failures_heard, part
from opscope.core.table import TraceWarning
from opscope.measurements.onnx_attribution import session_graph_of, with_onnx_operators
from opscope.program.model import ProgramModel
from opscope.program.peak_rates.peak_rates import NoPeakRates, PeakRates
from opscope.program.structure.plan import InstructionKind, PlannedTensor
from opscope.runtimes.executorch.etrecord.etrecord import read_etrecord
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.xnnpack.payload import read_xnn_graphs
from opscope.runtimes.export_record import recorded_tokens
from opscope.runtimes.litert.benchmark_proto import BenchmarkProtoReader
from opscope.runtimes.litert.benchmark_text import BenchmarkTextReader
from opscope.runtimes.litert.lowering import read_tflite_model
from opscope.runtimes.litert.tflite import is_tflite_program
from opscope.runtimes.litert.trace import LitertTraceReader
from opscope.runtimes.onnxruntime.profile import OnnxRuntimeProfileReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.operators.attribution import Attributions
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Model
    from opscope.measurements.side import Side

_HEAD = 8
_OTHER = "give the program that was run: its operators must match the trace"
_NO_DELEGATE = "none"
"""Of a variant that ran without the delegate: its operators are those of the file, each on its own."""
_OTHER_RECORD = "give the record of the same export, or omit it"


def read_model(program: Path, etrecord: Path | None = None, *, delegated: bool = True) -> ProgramModel:
    """The typed picture of a model from its files.

    Args:
        program: the .pte or .tflite.
        etrecord: the ETRecord of the same export; None: modules and source lines are not known.
        delegated: whether a runtime that chooses its delegate when it loads the model has one.

    Raises:
        NotFoundError: a file is absent.
        TraceFormatError: a file is damaged.
        MismatchError: the record is of another model, or was made after lowering.
    """
    files = [program] if etrecord is None else [program, etrecord]
    stamps = tuple((str(path), path.stat().st_mtime_ns if path.exists() else 0) for path in files)
    model = _model(*stamps, delegated=delegated)
    if model.conflict:
        raise MismatchError(model.conflict, where=etrecord, hint=_OTHER_RECORD)
    return model


def with_program(side: Side, program: Path, etrecord: Path | None) -> Side:
    """A side attributed with a program that the user named.

    A record that cannot be used costs the layers: the reason is a warning of the table.

    Raises:
        NotFoundError: a file is absent.
        TraceFormatError: the program is damaged.
        MismatchError: the program is not the one that was traced.
    """
    expected = side.model.sha256 if side.model else None
    if expected and sha256_of(program) != expected:
        raise MismatchError("the bundle was made with another program", where=program, hint=_OTHER)
    if etrecord is not None and not etrecord.exists():
        raise NotFoundError("no such file", where=etrecord, hint=_OTHER_RECORD)
    return _as_far_as_known(side, lambda: _with_named_program(side, program, etrecord, verified=expected is not None))


def _as_far_as_known(side: Side, attributed: Callable[[], Side]) -> Side:
    """A side as it is attributed, with what a bug of ours leaves unknown in its warnings: all of it, or a cost."""
    with failures_heard() as failures:
        found = part("the attribution of operators", attributed, side)
    return found._replace(table=found.table.with_warnings(*map(part_warning, failures))) if failures else found


def _with_named_program(side: Side, program: Path, etrecord: Path | None, *, verified: bool) -> Side:
    if side.format == OnnxRuntimeProfileReader.name:
        etrecord, problem = None, None
        named, found = with_onnx_operators(side, program, session_graph_of(side))
    else:
        model, etrecord, problem = usable_model(program, etrecord, delegated=_is_delegated(side))
        found, named = _attributions(side, model)
    if found.conflict:
        raise MismatchError(f"the trace is not of this program: {found.conflict}", where=program, hint=_OTHER)
    tokens = side.tokens or recorded_tokens(program)
    called = set(named.table.inference_times().method.texts)
    named = named._replace(tokens={method: count for method, count in tokens.items() if method in called})
    return _attributed(named, found, _info(program, etrecord, problem, verified=verified), problem)


def with_bundled_program(side: Side) -> Side:
    """A side of a bundle attributed with the program and the record that the bundle holds.

    What is missing or cannot be used is said in a warning, and the names are all there is.

    Raises:
        InvalidBundleError: a file is not the one whose hash the manifest states.
    """
    recorded = side.model
    assert side.bundle is not None  # noqa: S101 - only called for sides of bundles
    assert recorded is not None  # noqa: S101 - likewise
    _check_hashes(side.bundle, recorded)
    bundle = side.bundle
    return _as_far_as_known(side, lambda: _with_recorded_program(side, bundle, recorded))


def _with_recorded_program(side: Side, bundle: Bundle, recorded: Model) -> Side:
    program = bundle.path / recorded.program
    etrecord = bundle.path / recorded.etrecord if recorded.etrecord else None
    try:
        if _hash_of(program) != recorded.sha256:
            raise MismatchError("it is not the program that was run", where=program)
        if side.format == OnnxRuntimeProfileReader.name:
            named, found = with_onnx_operators(side, program, session_graph_of(side))
            return _attributed(named, found, _info(program, None, None, verified=True), None)
        model, etrecord, problem = usable_model(program, etrecord, delegated=_is_delegated(side))
        found, named = _attributions(side, model)
    except InvalidBundleError:
        raise
    except OpscopeError as error:
        return _warned(side, "program_unusable", f"operators are known by name only: {error}")
    if found.conflict:
        return _warned(side, "program_unusable", f"operators are known by name only: {found.conflict}")
    return _attributed(named, found, _info(program, etrecord, problem, verified=True), problem)


def _is_delegated(side: Side) -> bool:
    return side.variant is None or side.variant.delegate != _NO_DELEGATE


def _check_hashes(bundle: Bundle, recorded: Model) -> None:
    for file, stated in ((recorded.program, recorded.sha256), (recorded.etrecord, recorded.etrecord_sha256)):
        if file is not None and (bundle.path / file).exists():
            bundle.check_hash(file, _hash_of(bundle.path / file), stated)


def _hash_of(path: Path) -> str:
    with reading(path):
        return sha256_of(path)


def usable_model(
    program: Path, etrecord: Path | None, *, delegated: bool = True
) -> tuple[ProgramModel, Path | None, OpscopeError | None]:
    """The typed picture of a model, its record when it can be used, and why it cannot.

    ``delegated`` is false for a run in which the runtime was told to leave its delegate out.

    Raises:
        NotFoundError: the program is absent.
        TraceFormatError: it is damaged.
    """
    try:
        return read_model(program, etrecord, delegated=delegated), etrecord, None
    except OpscopeError as error:
        if etrecord is None or error.where != str(etrecord):
            raise
        return read_model(program, delegated=delegated), None, error


@lru_cache(maxsize=4)
def _model(program: tuple[str, int], etrecord: tuple[str, int] | None = None, *, delegated: bool) -> ProgramModel:
    """Variants of a bundle share a model; a file that changed is read again."""
    path = Path(program[0])
    if is_tflite_program(head_of(path, _HEAD)):
        return read_tflite_model(path, delegated=delegated)
    executable = read_executable(path)
    # A program may be kept without the payloads of its delegates.
    whole = all(delegate.data for plan in executable.plans for delegate in plan.delegates)
    graphs = read_xnn_graphs(path) if whole else ()
    return ProgramModel(executable, graphs, read_etrecord(Path(etrecord[0])) if etrecord else None)


def _attributions(side: Side, model: ProgramModel) -> tuple[Attributions, Side]:
    side = side._replace(table=side.table.with_delegate_calls_from(_first_calls(side, model)))
    table = side.table.with_method_names(method_names(side.table, model))
    return attribute(table, model, _inputs(side, model)), side._replace(table=table)


_COUNTED_CALLS = (LitertTraceReader.name, BenchmarkTextReader.name, BenchmarkProtoReader.name)
"""Formats that count the parts that a delegate took, and do not say where in the graph they are."""


def _first_calls(side: Side, model: ProgramModel) -> dict[str, int]:
    """Instruction of the first delegate call of each method, for traces that count these calls from 0."""
    if side.format not in _COUNTED_CALLS:
        return {}
    kinds = {name: [step.kind for step in own.plan.chains[0].steps] for name, own in model.methods.items()}
    return {name: own.index(InstructionKind.DELEGATE) for name, own in kinds.items() if InstructionKind.DELEGATE in own}


def _inputs(side: Side, model: ProgramModel) -> dict[str, Sequence[tuple[int, ...]]]:
    """Shapes of the inputs that were recorded beside the trace, by method."""
    if side.bundle is None or side.variant is None:
        return {}
    measured = [r.measurement for r in side.bundle.manifest.completed(side.variant.name) if r.measurement]
    if not measured:
        return {}
    shapes = [tuple(tensor.shape) for tensor in measured[0].inputs]
    called = list(dict.fromkeys(side.bundle.manifest.plan.of(side.variant.name).calls))
    if not called:
        return dict.fromkeys(model.methods, shapes)
    found: dict[str, Sequence[tuple[int, ...]]] = {}
    for method in called:
        plan = model.methods[method].plan if method in model.methods else None
        count = sum(isinstance(plan.values[number], PlannedTensor) for number in plan.inputs) if plan else 0
        found[method], shapes = shapes[:count], shapes[count:]
    return found


def _info(program: Path, etrecord: Path | None, problem: OpscopeError | None, *, verified: bool) -> ProgramInfo:
    record, record_hash = (str(etrecord), sha256_of(etrecord)) if etrecord else (None, None)
    return ProgramInfo(
        str(program), sha256_of(program), record, record_hash, verified, problem.problem if problem else None
    )


def _attributed(side: Side, found: Attributions, info: ProgramInfo, problem: OpscopeError | None) -> Side:
    """A side with what its program says; ``problem`` is why the record of the export could not be used."""
    warnings = [_call_warning(call.instruction, call.problem) for call in found.calls if call.problem]
    warnings += [
        TraceWarning(
            "dynamic_shapes",
            f"the shapes of {method!r} differ between calls and its inputs were not recorded: costs are not known",
            "profile the model into a bundle, which records the shapes of its inputs",
        )
        for method in found.unknown_shapes
    ]
    roofs, missing = _roofs(side)
    known = ProgramKnowledge(info, found, roofs)
    done = side._replace(table=side.table.with_warnings(*warnings, *missing), known=known)
    return _warned(done, "record_unusable", f"layers and source lines are not known: {problem}") if problem else done


def _roofs(side: Side) -> tuple[PeakRates | None, list[TraceWarning]]:
    """The ceilings of a variant, or why there are none though somebody tried to measure them.

    Raises:
        InvalidBundleError: they are not those that were measured.
    """
    if side.bundle is None or side.variant is None:
        return None, []
    try:
        found = side.bundle.roofs(side.variant.name)
    except InvalidBundleError:
        raise
    except OpscopeError as error:
        return None, [_roofs_warning(str(error))]
    return (None, [_roofs_warning(found.reason)]) if isinstance(found, NoPeakRates) else (found, [])


def _roofs_warning(reason: str) -> TraceWarning:
    message = f"there are no ceilings to compare operators with: {reason}"
    return TraceWarning("no_ceilings", message, "measure them with --resume")


def _call_warning(instruction: int, problem: str) -> TraceWarning:
    message = f"the delegate of instruction {instruction} is not attributed exactly: {problem}"
    return TraceWarning("attribution", message, "layers marked aligned or ambiguous are likely, not certain")


def _warned(side: Side, code: str, message: str) -> Side:
    warning = TraceWarning(code, message, "give the files of the export that was run with --program and --etrecord")
    return side._replace(table=side.table.with_warnings(warning))
