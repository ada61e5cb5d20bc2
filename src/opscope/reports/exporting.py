"""Summary after ``opscope export``: what was made, what was delegated, and how well the outputs agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.operators.modules import MIN_STEPS
from opscope.core.units import counted_text, macs_text, share_text, size_text, time_text
from opscope.reports.document.blocks import Block, Closing, Document, Format, Sentence, Tone, column, table
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.outputs import OutputAgreement
    from opscope.analysis.preflight.exported import Delegation, ExportRecord, ExportStage, MethodExport
    from opscope.program.structure.exported import UnrolledLayer
    from opscope.reports.document.blocks import TableBlock

_MOST_ROWS = 12
_WEIGHTY = 0.03
"""Share of an export's time from which a stage is named."""
_MOST_STAGES = 5
_SHORTER = (
    "to shorten the export, use opscope.patterns.replace_recurrent(model), whose steps fit in one delegate; or "
    "export a few steps with the state as input and output, and call them in a loop"
)
_MINUTES = 180
"""Seconds from which a time is given in minutes."""


def export_document(record: ExportRecord, directory: str) -> Document:
    """Return the record of an export as a document."""
    blocks = [block for method in record.methods for block in _method_blocks(method)]
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    usable = "; the .etrecord reads back and matches" if record.etrecord_problem is None else ""
    sentences = [Sentence(f"loads and runs{usable}; {versions}", Tone.DIM)]
    if record.etrecord_problem is not None:
        sentences.append(Sentence(f"warning: layers and source lines will be unknown: {record.etrecord_problem}"))
    if record.stages:
        sentences.append(Sentence(stages_line(record.stages), Tone.DIM))
    sentences += [Sentence(line) for method in record.methods for line in _unrolled_sentences(method)]
    path = f"{directory}/{record.program.name}"
    return Document(path, f"{path}, {size_text(record.program.size)}", [*blocks, *sentences], [])


def _method_blocks(export: MethodExport) -> list[Block]:
    method = export.method
    inputs, outputs = (
        ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in side) for side in (method.inputs, method.outputs)
    )
    lines = [delegation_line(export.delegation)]
    lines.append(agreement_line("the model in PyTorch", export.eager))
    if export.graph is not None:
        lines.append(agreement_line("the quantised graph in PyTorch", export.graph))
    if method.calibration is not None:
        derived = ", derived from the example inputs: they do not show accuracy" if method.calibration_made else ""
        lines.append(f"calibrated on {counted_text(method.calibration, 'input')}{derived}")
    signature = Sentence(f"{method.name}({inputs}) -> {outputs}", Tone.STRONG)
    return [signature, *map(Sentence, lines), _portable_table(export.delegation)]


def delegation_line(delegation: Delegation) -> str:
    """Return what was delegated, in one sentence."""
    operators = counted_text(delegation.operators, "operator")
    text = f"delegated: {operators} in {counted_text(delegation.calls, 'XNNPACK call')}"
    if not delegation.calls:
        text = "delegated: nothing"
    elif delegation.share is not None:
        text += f", {share_text(delegation.share)} of {macs_text(delegation.macs)}"
    stayed = f"; {counted_text(delegation.portable_operators, 'portable operator')}"
    unknown = f"; the work of {delegation.unknown} is unknown" if delegation.unknown else ""
    return f"{text}{stayed}{unknown}"


def stages_line(stages: Sequence[ExportStage]) -> str:
    """Return how long the export took and its longest stages, in one sentence."""
    total = sum(stage.seconds for stage in stages)
    longest = [
        stage for stage in sorted(stages, key=lambda stage: -stage.seconds) if stage.seconds >= _WEIGHTY * total
    ][:_MOST_STAGES]
    return (
        f"took {_seconds_text(total)}: {', '.join(f'{stage.name} {_seconds_text(stage.seconds)}' for stage in longest)}"
    )


def _seconds_text(seconds: float) -> str:
    return time_text(seconds * 1e9) if seconds < _MINUTES else f"{seconds / 60:.1f} min"


def _unrolled_sentences(export: MethodExport) -> list[str]:
    """Return why the export of a recurrent layer takes long, and what shortens it; empty without one."""
    layers = [layer for layer in export.method.unrolled if layer.steps is None or layer.steps >= MIN_STEPS]
    if not layers:
        return []
    layers_text = ", ".join(
        f"{plain(layer.module, 60) or 'the model'} ({layer.kind}, {_steps_text(layer)})" for layer in layers
    )
    work = export.delegation.operators + export.delegation.portable_operators
    became = f"{counted_text(work, 'operator')} in {counted_text(export.delegation.calls, 'delegate call')}"
    return [f"unrolled: {layers_text}: {became}; every exporter pass visits all of them", _SHORTER]


def _steps_text(layer: UnrolledLayer) -> str:
    return "dynamic steps" if layer.steps is None else counted_text(layer.steps, "step")


def agreement_line(reference: str, agreement: OutputAgreement) -> str:
    """Return how far the outputs are from the reference outputs, in one sentence."""
    if agreement.max_rel_error is None:
        return f"outputs do not compare with {reference}: {plain(agreement.problem or '', 200)}"
    word = "agree" if agreement.agree else "do NOT agree"
    return f"outputs {word} with {reference}: error {agreement.max_rel_error:.1e}, tolerance {agreement.tolerance:.0e}"


def _portable_table(delegation: Delegation) -> TableBlock:
    rest = delegation.portable[_MOST_ROWS:]
    more = Closing(counted_text(len(rest), "more kind"), {"count": sum(group.work.operators for group in rest)})
    return table(
        delegation.portable[:_MOST_ROWS],
        column("not delegated", Format.NAME, lambda group: group.operator),
        column("count", Format.COUNT, lambda group: group.work.operators),
        column("why", Format.TEXT, lambda group: group.reason.text),
        closing=[more] if rest else [],
    )
