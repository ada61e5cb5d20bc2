"""The preflight of a program on a terminal: within 80 columns, the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from opscope.analysis.findings.finding import message_of
from opscope.core.grouping import grouped
from opscope.core.units import count_text, counted_text, macs_text, share_text, size_text
from opscope.reports.document.console import NameCell, Text
from opscope.reports.document.terminal import message_lines, plain_table
from opscope.reports.document.text import plain
from opscope.reports.inspected import MOST_FINDINGS
from opscope.runtimes.registry import EXPORTER, RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from opscope.analysis.preflight.forecast import Forecast
    from opscope.analysis.preflight.parts import GroupWork, MatrixGroup
    from opscope.analysis.preflight.preflight import MethodPreflight, Preflight

_MOST_ROWS = 8
_NAME = 44
_KNOWN = "SME and SME2"


def preflight_summary(preflight: Preflight, here: str | None = None) -> RenderableType:
    """What a person reads after `opscope preflight`."""
    runtime = next((one for one in RUNTIMES if preflight.partition_rules.startswith(one.title)), EXPORTER)
    kind = runtime.suffix.removeprefix(".")
    parts: list[RenderableType] = [Text(f"{plain(preflight.path)} ({kind})", style="dim")]
    for method in preflight.methods:
        parts += _method(method, elsewhere=here is not None)
    rules = f"rules of {preflight.acceleration_rules}; the partitioner's of {preflight.partition_rules}"
    parts.append(Text(f"note: nothing was run; {rules}. SME also takes a CPU that has it.", style="dim"))
    if here:
        parts.append(Text(plain(here, 300), style="dim"))
    return Group(*parts)


def headline(method: MethodPreflight, *, elsewhere: bool = False) -> str:
    """Whether a method will be accelerated, and what share of it."""
    matrix = method.matrix
    name = plain(method.name, _NAME)
    if matrix.share is None or matrix.highest_share is None:
        if method.partition.unread:
            return f"{name}: what can run with {_KNOWN} is not known, delegates have no payload"
        if method.partition.other_backends:
            return f"{name}: what can run with {_KNOWN} is not known; not looked into: {', '.join(_others(method))}"
        return f"{name}: it has no multiply-accumulates, so there is nothing for {_KNOWN}"
    share = share_text(matrix.share)
    if matrix.highest_share > matrix.share:
        share = f"{share} to {share_text(matrix.highest_share)}"
    bound = "at most " if method.dynamic else ""
    rest = f"; not looked into: {', '.join(_others(method))}" if method.partition.other_backends else ""
    missing = ", which this machine does not have" if elsewhere else ""
    return f"{name}: {share} of {bound}{macs_text(matrix.macs)} can run with {_KNOWN}{missing}{rest}"


def _others(method: MethodPreflight) -> list[str]:
    """Delegates of other backends, counted by name."""
    rows = method.partition.other_backends
    return [f"{counted_text(other.count, 'delegate')} of {plain(other.name, 30)}" for other in rows]


def partition_line(method: MethodPreflight) -> str:
    """What is delegated, in one sentence."""
    partition = method.partition
    calls = counted_text(partition.calls, "call") + " of XNNPACK"
    parts = [f"{counted_text(partition.delegated_operators, 'operator')} in {calls}"]
    if partition.unread:
        parts = [calls, f"{counted_text(partition.unread, 'delegate')} without payload"]
    return f"{', '.join([*parts, *_others(method)])}; {counted_text(partition.portable_operators, 'portable operator')}"


def forecast_line(found: Forecast) -> str:
    """Which part will take most of the time, in one sentence."""
    parts = {row.part: row for row in found.parts}
    first = parts[found.bottleneck]
    before = max(found.parts, key=lambda row: row.share)
    text = f"on a CPU with {_KNOWN} most time goes to {first.part.value} ({share_text(first.share_accelerated)})"
    if before.part is not first.part:
        text += f", without to {before.part.value} ({share_text(before.share)})"
    return f"prediction from nominal rates: {text}"


def _method(method: MethodPreflight, *, elsewhere: bool) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(headline(method, elsewhere=elsewhere), style="bold"),
        Text(partition_line(method)),
    ]
    if method.forecast:
        lines.append(Text(forecast_line(method.forecast)))
    lines += [*message_lines(map(message_of, method.findings), MOST_FINDINGS), Text()]
    if method.work:
        lines += [_work(method), Text()]
    if method.matrix.groups:
        lines += [_matrix(method), Text()]
    if method.portable:
        lines += [_portable(method), Text()]
    if method.forecast:
        lines += [_forecast(method.forecast), Text()]
    if method.borders.calls:
        lines += [*(Text(line) for line in _passing(method)), Text()]
    return lines


def _work(method: MethodPreflight) -> Table:
    table = plain_table("category", "delegated", "MAC", "bytes", "portable", "MAC", "bytes")
    for row in method.work:
        table.add_row(row.category.value, *group_cells(row.delegated), *group_cells(row.portable))
    return table


def group_cells(work: GroupWork) -> tuple[str, str, str]:
    """Operators, multiply-accumulates and bytes of a group of operators."""
    if not work.operators:
        return "-", "", ""
    if work.unknown == work.operators:
        return str(work.operators), "?", "?"
    unknown = "?" if work.unknown else ""
    return str(work.operators), count_text(work.macs) + unknown, size_text(work.bytes) + unknown


def _matrix(method: MethodPreflight) -> Table:
    table = plain_table("matrix work", "types", "SME", "count", "share", text={"matrix work", "types", "SME"})
    # Groups differ in reasons, too, which the table does not show: those that look alike are one row of it.
    rows = grouped(method.matrix.groups, lambda group: (group.form, plain(group.types), _verdict(group)))
    counted = [(key, *_sums(groups)) for key, groups in rows.items()]
    for key, count, share in counted[:_MOST_ROWS]:
        table.add_row(*key, str(count), share_text(share))
    rest = counted[_MOST_ROWS:]
    if rest:
        count, share = sum(row[1] for row in rest), sum(row[2] for row in rest)
        table.add_row(f"{len(rest)} more kinds", "", "", str(count), share_text(share))
    return table


def _sums(groups: Sequence[MatrixGroup]) -> tuple[int, float]:
    """Operators of groups, and their share."""
    return sum(group.operators for group in groups), sum(group.share for group in groups)


def _verdict(group: MatrixGroup) -> str:
    word = {"eligible": "yes", "not eligible": "no"}.get(group.verdict.value, "unknown")
    return word if group.tried or word == "unknown" else f"{word}, untried"


def _portable(method: MethodPreflight) -> Table:
    table = plain_table("portable operator", "count", "bytes", "why", text={"portable operator", "why"})
    for group in method.portable[:_MOST_ROWS]:
        moved = size_text(group.work.bytes) if not group.work.unknown else "?"
        shown = f" ({plain(group.reason.evidence)})" if group.reason.evidence else ""
        table.add_row(NameCell(group.operator), str(group.work.operators), moved, f"{group.reason.text}{shown}")
    rest = method.portable[_MOST_ROWS:]
    if rest:
        work = sum(group.work.operators for group in rest), sum(group.work.bytes for group in rest)
        table.add_row(f"{len(rest)} more kinds", str(work[0]), size_text(work[1]), "")
    return table


def _forecast(found: Forecast) -> Table:
    table = plain_table("predicted time, nominal rates", "without SME", "with SME")
    for row in found.parts:
        table.add_row(row.part.value, share_text(row.share), share_text(row.share_accelerated))
    return table


def _passing(method: MethodPreflight) -> list[str]:
    moved, passing = method.layout, method.borders
    share = f" ({share_text(moved.share)} of all bytes)" if moved.share else ""
    transposes = counted_text(moved.transposes, "added transpose")
    conversions = counted_text(moved.conversions, "conversion")
    passed, inner = (counted_text(count, "tensor") for count in (passing.tensors, passing.inner_tensors))
    calls = counted_text(passing.calls, "call")
    placed = f"{transposes}, {moved.at_border} at delegate boundaries"
    layout = f"layout: {placed}, {conversions}; {size_text(moved.bytes)}{share}"
    borders = f"boundaries: {calls} of delegates, {passed}, {size_text(passing.bytes)}"
    return [layout, f"{borders}; of these within the method {inner}, {size_text(passing.inner_bytes)}"]
