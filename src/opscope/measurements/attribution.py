"""Attribution of a trace's operators to a program that the user names or the bundle holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.analysis import IMPOSSIBLE_TIMES, ProgramInfo, ProgramKnowledge
from opscope.analysis.findings.message import part_warning
from opscope.core.errors import InvalidBundleError, MismatchError, NotFoundError, OpscopeError, reading
from opscope.core.files import sha256_of
from opscope.core.parts import failures_heard, part
from opscope.core.table import TraceWarning
from opscope.core.table.places import OperatorKey
from opscope.core.units import macs_text, time_text
from opscope.program.ceilings import Ceilings, NoCeilings
from opscope.readers.lifecycle import PORTABLE
from opscope.runtimes.registry import EXPORTER, runtime_attributing, runtime_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opscope.analysis.operators.attribution import Attributions
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Model
    from opscope.runtimes.side import Side

_FASTEST_KERNEL, _FASTEST_DEVICE = 5_000, 500_000
"""Multiply-accumulates per ns that nothing reaches: by a kernel of ExecuTorch, and behind a delegate.

An Apple M4 does 1,000 with its matrix unit, an accelerator of 1,000 TOPS (int8) 500,000.
"""
_OTHER = "give the program that ran: its operators must match the trace"
_OTHER_RECORD = "give the record of the same export, or omit it"


def with_program(side: Side, program: Path, etrecord: Path | None) -> Side:
    """Return a side attributed with a program that the user named.

    A record that cannot be used costs the layers: the reason is a warning of the table.
    """
    expected = side.model.sha256 if side.model else None
    if expected and sha256_of(program) != expected:
        raise MismatchError("the bundle was measured with another program", where=program, hint=_OTHER)
    if etrecord is not None and not etrecord.exists():
        raise NotFoundError("no such file", where=etrecord, hint=_OTHER_RECORD)
    return _attribute_or_warn(
        side, lambda: _attribute_with_named_program(side, program, etrecord, verified=expected is not None)
    )


def _attribute_or_warn(side: Side, attribute: Callable[[], Side]) -> Side:
    """Return an attributed side; its warnings say what a bug in opscope leaves unknown."""
    with failures_heard() as failures:
        attributed_side = part("the attribution of operators", attribute, side)
    return (
        attributed_side._replace(table=attributed_side.table.with_warnings(*map(part_warning, failures)))
        if failures
        else attributed_side
    )


def _attribute_with_named_program(side: Side, program: Path, etrecord: Path | None, *, verified: bool) -> Side:
    renamed, attributions, etrecord, problem = runtime_attributing(side.format, program).attributed(
        side, program, etrecord
    )
    if attributions.conflict:
        raise MismatchError(
            f"the trace belongs to another program: {attributions.conflict}", where=program, hint=_OTHER
        )
    phases = side.phases or runtime_of(program).phases(program)
    methods = set(renamed.table.inference_times().method.texts)
    renamed = renamed._replace(phases={method: phase for method, phase in phases.items() if method in methods})
    return _add_attribution(
        renamed, attributions, _program_info(program, etrecord, problem, verified=verified), problem
    )


def with_bundled_program(side: Side) -> Side:
    """Return a side attributed with the program and the record that its bundle holds.

    A warning says what is missing or unusable; operators are then known by name only.
    """
    recorded = side.model
    assert side.bundle is not None  # noqa: S101 - only called for sides of bundles
    assert recorded is not None  # noqa: S101 - only called for sides of bundles
    _check_hashes(side.bundle, recorded)
    bundle = side.bundle
    return _attribute_or_warn(side, lambda: _attribute_with_recorded_program(side, bundle, recorded))


def _attribute_with_recorded_program(side: Side, bundle: Bundle, recorded: Model) -> Side:
    program = bundle.path / recorded.program
    etrecord = bundle.path / recorded.etrecord if recorded.etrecord else None
    try:
        if _hash_of(program) != recorded.sha256:
            raise MismatchError("it is not the program that ran", where=program)
        renamed, attributions, etrecord, problem = runtime_attributing(side.format, program).attributed(
            side, program, etrecord
        )
    except InvalidBundleError:
        raise
    except OpscopeError as error:
        text = bundle.without_place(str(error))
        return _add_warning(side, "program_unusable", f"operators are known by name only: {text}")
    if attributions.conflict:
        return _add_warning(side, "program_unusable", f"operators are known by name only: {attributions.conflict}")
    return _add_attribution(renamed, attributions, _program_info(program, etrecord, problem, verified=True), problem)


def _check_hashes(bundle: Bundle, recorded: Model) -> None:
    for file, stated in ((recorded.program, recorded.sha256), (recorded.etrecord, recorded.etrecord_sha256)):
        if file is not None and (bundle.path / file).exists():
            bundle.check_hash(file, _hash_of(bundle.path / file), stated)


def _hash_of(path: Path) -> str:
    with reading(path):
        return sha256_of(path)


def _program_info(program: Path, etrecord: Path | None, problem: OpscopeError | None, *, verified: bool) -> ProgramInfo:
    record, record_hash = (str(etrecord), sha256_of(etrecord)) if etrecord else (None, None)
    return ProgramInfo(
        str(program), sha256_of(program), record, record_hash, verified, problem.problem if problem else None
    )


def _add_attribution(side: Side, attributions: Attributions, info: ProgramInfo, problem: OpscopeError | None) -> Side:
    """Add what its program says to a side; ``problem``: why the record of the export could not be used."""
    warnings = [_call_warning(call.instruction, call.problem) for call in attributions.calls if call.problem]
    warnings += [
        TraceWarning(
            "dynamic_shapes",
            f"the shapes of {method!r} differ between calls and its inputs were not recorded: costs are unknown",
            "profile the model into a bundle, which records the shapes of its inputs",
        )
        for method in attributions.unknown_shapes
    ]
    warnings += [
        TraceWarning(
            "undecided_method", f"{text}: its operators are known by name only", "give a program of one method"
        )
        for text in attributions.undecided
    ]
    warnings += _impossible_rates(side, attributions)
    ceilings, missing = _read_ceilings(side)
    known = ProgramKnowledge(info, attributions, ceilings)
    attributed = side._replace(table=side.table.with_warnings(*warnings, *missing), known=known)
    if problem is None:
        return attributed
    text = side.bundle.without_place(str(problem)) if side.bundle else str(problem)
    return _add_warning(attributed, "record_unusable", f"layers and source lines are unknown: {text}")


def _impossible_rates(side: Side, attributions: Attributions) -> list[TraceWarning]:
    """Return the warning that operators took less time than any processor needs; empty where none did.

    Only formats that leave the unit of their times to whoever wrote them are looked at.
    """
    if EXPORTER.trace_format != side.format:
        return []
    for process in side.table.self_times:
        for key, spent in process.items():
            if key.instruction is None or key.position is None:
                continue
            facts = attributions.operators.get(OperatorKey(key.method or "", key.instruction, key.position))
            macs = facts.cost.macs * spent.events if facts and facts.cost else 0
            time_ns = spent.self_time + spent.unresolved
            if macs > time_ns * (_FASTEST_KERNEL if spent.backend == PORTABLE else _FASTEST_DEVICE):
                message = f"the times are not nanoseconds: {macs_text(macs)} of {spent.name} in {time_text(time_ns)}"
                return [TraceWarning(IMPOSSIBLE_TIMES, message, "give the runner's clock with --ticks, such as 200MHz")]
    return []


def _read_ceilings(side: Side) -> tuple[Ceilings | None, list[TraceWarning]]:
    """Return the ceilings of a variant, or a warning why there are none although somebody tried to measure them."""
    if side.bundle is None or side.variant is None:
        return None, []
    try:
        ceilings = side.bundle.ceilings(side.variant.name)
    except InvalidBundleError:
        raise
    except OpscopeError as error:
        return None, [_ceilings_warning(side.bundle.without_place(str(error)))]
    return (None, [_ceilings_warning(ceilings.reason)]) if isinstance(ceilings, NoCeilings) else (ceilings, [])


def _ceilings_warning(reason: str) -> TraceWarning:
    message = f"no ceilings to compare operators with: {reason}"
    return TraceWarning("no_ceilings", message, "measure them with --resume")


def _call_warning(instruction: int, problem: str) -> TraceWarning:
    message = f"the delegate of instruction {instruction} is not attributed exactly: {problem}"
    return TraceWarning("attribution", message, "layers marked aligned or ambiguous are likely, not certain")


def _add_warning(side: Side, code: str, message: str) -> Side:
    warning = TraceWarning(code, message, "give the files of the export that ran, with --program and --etrecord")
    return side._replace(table=side.table.with_warnings(warning))
