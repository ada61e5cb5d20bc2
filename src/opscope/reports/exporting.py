"""What a person reads after `opscope export`: what was made, what was delegated, how well it agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from opscope.core.units import counted_text, macs_text, share_text, size_text
from opscope.reports.document.console import NameCell, Text
from opscope.reports.document.terminal import plain_table
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from opscope.analysis.compare.outputs import OutputAgreement
    from opscope.analysis.preflight.exported import Delegation, ExportRecord, MethodExport

_MOST_ROWS = 12


def export_summary(record: ExportRecord, directory: str) -> RenderableType:
    """The record of an export, within 80 columns."""
    parts: list[RenderableType] = [
        Text(f"{plain(directory)}/{plain(record.program.name)}, {size_text(record.program.size)}", style="bold"),
    ]
    for one in record.methods:
        parts += _method(one, several=len(record.methods) > 1)
    versions = ", ".join(f"{plain(name)} {plain(found)}" for name, found in record.versions.items())
    usable = "; the .etrecord reads back and fits it" if record.etrecord_problem is None else ""
    parts.append(Text(f"loads and runs{usable}; {versions}", style="dim"))
    if record.etrecord_problem is not None:
        parts.append(Text(f"warning: layers and source lines will not be known: {plain(record.etrecord_problem, 400)}"))
    return Group(*parts)


def _method(one: MethodExport, *, several: bool) -> list[RenderableType]:
    method = one.method
    given, got = (
        ", ".join(f"{plain(t.dtype)} {plain(str(t.shape))}" for t in side) for side in (method.inputs, method.outputs)
    )
    lines: list[RenderableType] = [Text(f"{plain(method.name)}({given}) -> {got}", style="bold" if several else "")]
    lines += [Text(delegation_line(one.delegation)), Text(agreement_line("the model in PyTorch", one.eager))]
    if one.graph is not None:
        lines.append(Text(agreement_line("the quantised graph in PyTorch", one.graph)))
    if method.calibration is not None:
        made = ", made from the example inputs: they say nothing about accuracy" if method.calibration_made else ""
        lines.append(Text(f"calibrated on {counted_text(method.calibration, 'input')}{made}"))
    if one.delegation.portable:
        lines.append(_portable(one.delegation))
    return lines


def delegation_line(found: Delegation) -> str:
    """What was delegated, in one sentence."""
    operators = counted_text(found.operators, "operator")
    text = f"delegated: {operators} in {counted_text(found.calls, 'call')} of XNNPACK"
    if not found.calls:
        text = "delegated: nothing"
    elif found.share is not None:
        text += f", {share_text(found.share)} of {macs_text(found.macs)}"
    stayed = f"; {counted_text(found.portable_operators, 'portable operator')}"
    unknown = f"; the work of {found.unknown} is not known" if found.unknown else ""
    return f"{text}{stayed}{unknown}"


def agreement_line(other: str, found: OutputAgreement) -> str:
    """How far the outputs are from others, in one sentence."""
    if found.max_rel_error is None:
        return f"outputs do not compare with {other}: {plain(found.problem or '', 200)}"
    word = "agree" if found.agree else "do NOT agree"
    return f"outputs {word} with {other}: error {found.max_rel_error:.1e}, tolerance {found.tolerance:.0e}"


def _portable(found: Delegation) -> Table:
    table = plain_table("not delegated", "count", "why", text={"not delegated", "why"})
    for group in found.portable[:_MOST_ROWS]:
        table.add_row(NameCell(group.operator), str(group.work.operators), plain(group.reason.text, 200))
    rest = found.portable[_MOST_ROWS:]
    if rest:
        table.add_row(f"{len(rest)} more kinds", str(sum(group.work.operators for group in rest)), "")
    return table
