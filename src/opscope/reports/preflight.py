"""Preflight of a program as a document, the answer first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from opscope.core.grouping import grouped
from opscope.core.units import count_text, counted_text, macs_text, share_text, size_text
from opscope.program.partition.verdicts import Form
from opscope.reports.content.places import CATEGORY
from opscope.reports.document.blocks import (
    Block,
    Bullets,
    Closing,
    Document,
    Format,
    Messages,
    Section,
    Sentence,
    Tone,
    column,
    table,
)
from opscope.reports.document.text import plain
from opscope.runtimes.registry import EXPORTER, RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.preflight.forecast import Forecast
    from opscope.analysis.preflight.parts import GroupWork, MatrixGroup, PortableGroup
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight, PreflightCpu
    from opscope.reports.document.blocks import TableBlock, Value

_MOST_ROWS = 8
_NAME = 44


def preflight_document(preflight: Preflight) -> Document:
    """Return what a processor accelerates of each method, what its work is, and the command that measures it."""
    rules = preflight.partition_rules or preflight.acceleration_rules
    runtime = next((candidate for candidate in RUNTIMES if rules.startswith(candidate.title)), EXPORTER)
    notes = [f"note: {preflight.ran}" if preflight.ran else "", _cpu_text(preflight.cpu)]
    sections = [Section(method.name, _method_blocks(method, preflight.cpu)) for method in preflight.methods]
    return Document(
        title=preflight.path,
        heading=f"{preflight.path} ({runtime.suffix.removeprefix('.')})",
        answer="; ".join(headline(method, preflight.cpu) for method in preflight.methods),
        blocks=[
            *(sections[0].blocks if len(sections) == 1 else sections),
            *(Sentence(note, Tone.DIM) for note in notes),
        ],
        sections=[],
    )


def _cpu_text(cpu: PreflightCpu | None) -> str:
    """Return a sentence on the features of the processor, and how to ask for another."""
    if cpu is None:
        return "this machine's CPU does not tell its features: name one with --cpu"
    return f"{cpu.name}: {', '.join(cpu.features) or 'no switchable features'}; for another: --cpu apple-m4"


def headline(method: MethodPreflight, cpu: PreflightCpu | None) -> str:
    """Return what share of a method's work gets which kernels on a processor."""
    matrix, name = method.matrix, plain(method.name, _NAME)
    cpu_text = f" on {cpu.name}" if cpu else ""
    if matrix.share is None:
        return f"{name}: {_no_kernels(method)}"
    shares: dict[str, float] = {}
    for group in matrix.groups:
        kernel = "portable code" if group.form is Form.PORTABLE else group.kernel or "unknown kernels"
        shares[kernel] = shares.get(kernel, 0.0) + group.share
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    kernels = ", ".join(f"{share_text(share)} with {kernel}" for kernel, share in ordered)
    bound = "at most " if method.dynamic else ""
    rest = f"; not inspected: {', '.join(_other_delegates(method))}" if method.partition.other_backends else ""
    return f"{name}: {bound}{macs_text(matrix.macs)}{cpu_text}, {kernels}{rest}"


def _no_kernels(method: MethodPreflight) -> str:
    """Return why nothing is said of the kernels of a method."""
    if method.partition.unread:
        return "kernels unknown: delegates have no payload"
    if method.partition.other_backends:
        return f"not inspected: {', '.join(_other_delegates(method))}"
    unknown = sum(side.unknown for row in method.work for side in (row.delegated, row.portable))
    if unknown:
        return f"kernels unknown, and the work of {counted_text(unknown, 'operator')}"
    return "no multiply-accumulates, so there is nothing for matrix kernels"


def _other_delegates(method: MethodPreflight) -> list[str]:
    """Return the delegates of other backends, counted by name."""
    rows = method.partition.other_backends
    return [f"{counted_text(backend.count, 'delegate')} of {plain(backend.name, 30)}" for backend in rows]


def partition_line(method: MethodPreflight) -> str:
    """Return what is delegated, in one sentence."""
    partition = method.partition
    if not partition.calls + partition.portable_operators + len(partition.other_backends):
        return counted_text(partition.delegated_operators, "operator")
    calls = counted_text(partition.calls, "XNNPACK call")
    parts = [f"{counted_text(partition.delegated_operators, 'operator')} in {calls}"]
    if partition.unread:
        parts = [calls, f"{counted_text(partition.unread, 'delegate')} without payload"]
    portable = counted_text(partition.portable_operators, "portable operator")
    return f"{', '.join([*parts, *_other_delegates(method)])}; {portable}"


def forecast_line(forecast: Forecast, cpu: PreflightCpu) -> str:
    """Return a sentence on which part will take most of the time, with and without the ablated features."""
    parts = {row.part: row for row in forecast.parts}
    first = parts[forecast.bottleneck]
    before = max(forecast.parts, key=lambda row: row.share)
    text = f"{first.part.value} would dominate ({share_text(first.share_accelerated)})"
    if cpu.ablated and before.part is not first.part:
        text += f"; without {cpu.ablated}, {before.part.value} would ({share_text(before.share)})"
    return f"prediction from nominal rates: {text}"


def _method_blocks(method: MethodPreflight, cpu: PreflightCpu | None) -> list[Block]:
    prediction = (method.forecast, cpu) if method.forecast and cpu else None
    return [
        Sentence(partition_line(method)),
        Sentence(forecast_line(*prediction) if prediction else ""),
        Messages(method.findings, brief=True),
        work_table(method),
        _matrix_table(method, cpu),
        _portable_table(method),
        *([_forecast_table(*prediction)] if prediction else []),
        Bullets(_boundary_lines(method) if method.borders.calls else []),
    ]


def work_table(method: MethodPreflight) -> TableBlock:
    """Return the work by category; portable work has columns of its own if there is any."""
    sides = {"delegated": "delegated", "portable": "portable"}
    if not any(row.portable.operators for row in method.work):
        sides = {"delegated": "operators"}
    return table(
        method.work,
        CATEGORY,
        *(
            column(head, Format.FIGURE, partial(_group_cell, side, number))
            for side, word in sides.items()
            for number, head in enumerate((word, "MAC", "bytes"))
        ),
    )


def _group_cell(side: str, number: int, row: object) -> str:
    return group_cells(getattr(row, side))[number]


def group_cells(work: GroupWork) -> tuple[str, str, str]:
    """Return operators, multiply-accumulates and bytes of a group of operators as texts."""
    if not work.operators:
        return "-", "", ""
    if work.unknown == work.operators:
        return str(work.operators), "?", "?"
    unknown = "?" if work.unknown else ""
    return str(work.operators), count_text(work.macs) + unknown, size_text(work.bytes) + unknown


def _matrix_table(method: MethodPreflight, cpu: PreflightCpu | None) -> TableBlock:
    # Groups differ in reasons, too, which the table does not show: those that look alike are one row of it.
    rows = grouped(method.matrix.groups, lambda group: (group.form.value, group.types, _kernel_text(group, cpu)))
    counted = [(key, *_sum_groups(groups)) for key, groups in rows.items()]
    rest = counted[_MOST_ROWS:]
    more = {"count": sum(row[1] for row in rest), "share": sum(row[2] for row in rest)}
    return table(
        counted[:_MOST_ROWS],
        column("matrix work", Format.TEXT, lambda row: row[0][0]),
        column("types", Format.NAME, lambda row: row[0][1]),
        column("kernel", Format.TEXT, lambda row: row[0][2]),
        column("count", Format.COUNT, lambda row: row[1]),
        column("share", Format.SHARE, lambda row: row[2]),
        closing=[Closing(counted_text(len(rest), "more kind"), more)] if rest else [],
    )


def _sum_groups(groups: Sequence[MatrixGroup]) -> tuple[int, float]:
    """Return the number of operators of groups, and their share."""
    return sum(group.operators for group in groups), sum(group.share for group in groups)


def _kernel_text(group: MatrixGroup, cpu: PreflightCpu | None) -> str:
    """Return the kernel of a group; a rule of SME that was read and not tried is marked."""
    if group.form is Form.PORTABLE:
        return "portable"
    if group.kernel is None:
        return "unknown"
    is_untried = cpu is not None and "sme" in cpu.features and not group.tried
    return f"{group.kernel}, untried" if is_untried else group.kernel


def _portable_table(method: MethodPreflight) -> TableBlock:
    rest = method.portable[_MOST_ROWS:]
    counts: dict[str, Value] = {
        "count": sum(portable_group.work.operators for portable_group in rest),
        "bytes": size_text(sum(portable_group.work.bytes for portable_group in rest)),
    }
    return table(
        method.portable[:_MOST_ROWS],
        column("portable operator", Format.NAME, lambda group: group.operator),
        column("count", Format.COUNT, lambda group: group.work.operators),
        column("bytes", Format.FIGURE, lambda group: "?" if group.work.unknown else size_text(group.work.bytes)),
        column("why", Format.TEXT, _reason_text),
        closing=[Closing(counted_text(len(rest), "more kind"), counts)] if rest else [],
    )


def _reason_text(group: PortableGroup) -> str:
    return f"{group.reason.text} ({group.reason.evidence})" if group.reason.evidence else group.reason.text


def _forecast_table(forecast: Forecast, cpu: PreflightCpu) -> TableBlock:
    without = [column(f"without {cpu.ablated}", Format.SHARE, lambda row: row.share)] if cpu.ablated else []
    return table(
        forecast.parts,
        column("predicted time, nominal rates", Format.TEXT, lambda row: row.part.value),
        *without,
        column(f"with {cpu.ablated}" if cpu.ablated else "share", Format.SHARE, lambda row: row.share_accelerated),
    )


def _boundary_lines(method: MethodPreflight) -> list[str]:
    moved, passing = method.layout, method.borders
    share = f" ({share_text(moved.share)} of all bytes)" if moved.share else ""
    counts = ((moved.transposes, "added transpose"), (moved.conversions, "conversion"))
    layout = ", ".join(counted_text(count, noun) for count, noun in counts if count)
    passed = counted_text(passing.tensors, "tensor")
    calls = counted_text(passing.calls, "delegate call")
    inner = f"; {passing.inner_tensors} of these between delegates" if passing.inner_tensors else ""
    borders = f"boundaries: {calls}, {passed}, {size_text(passing.bytes)}{inner}"
    return [*([f"layout: {layout}; {size_text(moved.bytes)}{share}"] if layout else []), borders]
