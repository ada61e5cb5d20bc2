"""Operators grouped by algorithm, number types and microkernel, with the total time of each group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.compare.compare import NOT_FASTER, shown_not_faster
from opscope.analysis.kernels.kernel_sources import EvidenceKind
from opscope.analysis.operators.headline import TimeShare
from opscope.analysis.operators.operators import sums
from opscope.analysis.rules.acceleration import HEAVY
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, range_text, rate_text, ratio_of_times, ratio_text, share_text
from opscope.reports.content.content import SHARES_ONLY, SHORTEST_NS, missing_time_text, top_operators
from opscope.reports.content.kernel_use import products_text
from opscope.reports.document.blocks import Closing, Format, Sentence, TableCell, Tone, column, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.program.operators.kinds import Category
    from opscope.reports.content.content import OperatorRow, ReportContent
    from opscope.reports.document.blocks import Block

_EVENT = re.compile(r"(?P<operator>[^(#]+?)(?: \((?P<types>[^)#]*)\)(?: (?P<algorithm>[^#]+?))?)?(?: #\d+)?\Z")
_PACKED = ("PF", "PQS")
"""Prefixes of the types that XNNPACK packs for KleidiAI's SME kernels."""


class KernelRow(TimeShare, frozen=True):
    """Operators of one kind that run the same kernel."""

    operator: str  # name in the backend's words
    category: Category  # upper level of the taxonomy
    kind: str  # lower level
    backend: str  # backend that ran the operators
    algorithm: str | None  # algorithm as the operator's name states it; null if it states none
    types: str | None  # number types of inputs and weights, by the name or else by the program; null when neither tells
    evidence: str | None  # what the name or a record shows of the kernels; null when nothing
    kernel: str | None  # the microkernel; null if unknown
    count: int  # number of operators
    rate: str  # multiply-accumulates per ns, in words, for the times that are possible; empty if unknown
    baseline_ns: float | None  # time on the baseline; null where one of them is not there
    withheld: bool = False  # whether other processes disturbed the sides so much that no ratio is told

    @property
    def speedup(self) -> float | None:
        """Baseline over candidate; null if either is unknown, too short to be shown, or withheld."""
        return None if self.withheld else ratio_of_times(self.baseline_ns, self.time_ns)


def kernel_rows(content: ReportContent) -> list[KernelRow]:
    """Return the groups of operators of the shown variant, longest first, without the framework's own time."""
    groups = grouped(top_operators(content), _group_key)
    return sorted((_kernel_row(sort, rows) for sort, rows in groups.items()), key=lambda row: -row.share)


def _group_key(row: OperatorRow) -> tuple[str | None, ...]:
    """Return the properties that the operators of one group share."""
    operator = row.operator
    form = _EVENT.match(operator.name)
    name = form["operator"] if form else operator.name
    algorithm, types = (form["algorithm"], form["types"]) if form else (None, None)
    types_in_name = ", ".join((types or "").split(", ")[1:])  # behind the layout
    by_program = " x ".join(part for part in (operator.dtype, operator.weights) if part)
    return (
        name,
        operator.category.value,
        operator.kind,
        operator.backend,
        algorithm,
        types_in_name or by_program or None,
        operator.kernel,
    )


def _kernel_row(sort: tuple[str | None, ...], rows: Sequence[OperatorRow]) -> KernelRow:
    name, _, kind, backend, algorithm, types, kernel = sort
    before = [row.change.baseline_ns if row.change else None for row in rows]
    withheld = any(row.change is not None and row.change.verdict is Verdict.WITHHELD for row in rows)
    return KernelRow(
        operator=(name or "").removeprefix("native_call_"),
        category=rows[0].operator.category,
        kind=kind or "",
        backend=backend or "",
        algorithm=algorithm,
        types=types,
        evidence=_evidence_text(types, kernel),
        kernel=kernel,
        count=len(rows),
        **msgspec.structs.asdict(sums(row.operator for row in rows)),
        rate=_rate_text([row.operator for row in rows]),
        baseline_ns=None if None in before else sum(before_ns or 0.0 for before_ns in before),
        withheld=withheld,
    )


def _rate_text(rows: Sequence[Operator]) -> str:
    macs, least = sum(row.macs or 0 for row in rows), sum(row.shown_ns for row in rows)
    if not macs or not least or any(row.macs is None for row in rows):
        return ""
    low, high = rate_text(macs / (least + sum(row.uncertainty_ns for row in rows))), rate_text(macs / least)
    return range_text(low, high)


def _evidence_text(types: str | None, kernel: str | None) -> str | None:
    if kernel:
        return "recorded"
    packed = any(word.startswith(_PACKED) for word in (types or "").split(", "))
    return "SME family, by its packed types" if packed else None


def groups_blocks(content: ReportContent) -> list[Block]:
    """Return a table of operators grouped by name, kind and number type: many short ones add up."""
    compared = bool(content.comparisons)
    rows = kernel_rows(content)
    listed = [row for row in rows if row.time_ns is None or row.time_ns >= SHORTEST_NS]
    rest = rows[len(listed) :]
    together = sums(rest)
    totals = {"operators": sum(r.count for r in rest), "ms": together.time_ns, "share": together.share}
    name = f"{counted_text(len(rest), 'further group')} below {SHORTEST_NS // 1_000} µs, together"
    block = table(
        listed,
        column("operator", Format.NAME, lambda row: TableCell(row.operator, category=row.category)),
        column("kind", Format.TEXT, lambda row: row.kind),
        column("backend", Format.NAME, lambda row: row.backend),
        column("algorithm", Format.NAME, lambda row: row.algorithm),
        column("types", Format.NAME, lambda row: row.types),
        column("microkernel", Format.NAME, lambda row: TableCell(row.kernel, row.evidence or "")),
        column("operators", Format.COUNT, lambda row: row.count),
        column("baseline ms", Format.MS, lambda row: row.baseline_ns, absent=missing_time_text(content.primary))
        if content.primary
        else None,
        column("ms", Format.MS, lambda row: row.time_ns, total=True, absent=SHARES_ONLY),
        column("share", Format.SHARE, lambda row: row.share),
        column("GMAC/s", Format.FIGURE, lambda row: row.rate),
        column("speedup", Format.RATIO, lambda row: row.speedup) if compared else None,
        closing=[Closing(name, totals)] if rest else [],
        sortable=True,
    )
    text = "Algorithm and number types come from the operator's name, or else from the program."
    if not names_kernels(content):
        text = f"{text} A trace does not record which microkernel ran."
    return [block, Sentence(text, Tone.DIM)]


def names_kernels(content: ReportContent) -> bool:
    """Return whether the runtime names the kernels of the shown variant."""
    columns = content.kernels.columns if content.kernels else []
    return any(column.kind is EvidenceKind.NAMED for column in columns)


def kernel_sentences(content: ReportContent) -> list[str]:
    """Return what names, switched features and logs say of the kernels, and what they cannot say."""
    heavy = [row for row in kernel_rows(content) if row.category in HEAVY and row.backend != "portable"]
    lines = [*_name_sentences(content, heavy), *_switching_sentences(content)]
    if not any(row.kernel for row in heavy):
        lines.append("The microkernel is unknown: neither the trace nor the delegate records it.")
    if content.kernel_logs:
        lines.append("The log lists kernels that were registered; it does not show which ran.")
    return lines


_COUNTED = "called kernels that were counted in separate runs"


def _name_sentences(content: ReportContent, heavy: Sequence[KernelRow]) -> list[str]:
    if not heavy:
        return ["No convolution or matrix product ran in a delegate."]
    counted = [row for row in heavy if row.kernel]
    packed = [row for row in heavy if row.evidence and not row.kernel]
    plain = [row for row in heavy if not row.evidence]
    lines = []
    if counted:
        how = "have kernels that the runtime names" if names_kernels(content) else _COUNTED
        text = counted_text(sum(row.count for row in counted), "operator")
        lines.append(f"{text} with {_total_share_text(counted)} of the latency {how}.")
    if packed:
        lines.append(
            f"{counted_text(sum(row.count for row in packed), 'operator')} with {_total_share_text(packed)} of the "
            "latency have names with packed number types (PF16, PF32, PQS8): XNNPACK chose SME-family kernels for "
            "them. SME and SME2 have the same names."
        )
    if plain:
        lines.append(
            f"For {products_text(sum(row.count for row in plain))} with {_total_share_text(plain)} of the "
            f"latency, the name does not show the kernel. {_what_plain_means(content)}"
        )
    return lines


def _total_share_text(rows: Sequence[KernelRow]) -> str:
    return share_text(sum(row.share for row in rows))


def _what_plain_means(content: ReportContent) -> str:
    machine = content.manifest.environment.machine
    if machine in {"x86_64", "AMD64"}:
        return "On x86-64 names are the same for every instruction set."
    if machine in {"aarch64", "arm64"}:
        return (
            "On Arm, names without packed types suggest that SME was not used, except for types quantised at run time."
        )
    return "On Arm this suggests that SME was not used, except for types quantised at run time; on x86-64, nothing."


def _switching_sentences(content: ReportContent) -> list[str]:
    """Return how many heavy operators are faster with the features on: evidence that needs no name."""
    comparison = content.primary
    if comparison is None or content.manifest.programs:
        return []
    heavy = [
        change
        for change in comparison.operators
        if change.category in HEAVY and change.backend not in {"portable", "framework"}
    ]
    if not heavy:
        return []
    faster = sum(1 for change in heavy if change.verdict is Verdict.FASTER)
    undecided = sum(1 for change in heavy if change.verdict is Verdict.UNDECIDABLE)
    excluded = sum(1 for change in heavy if shown_not_faster(change))
    withheld = sum(1 for change in heavy if change.verdict is Verdict.WITHHELD)
    open_ = len(heavy) - faster - undecided - excluded - withheld
    parts = [f"{faster} shown to be faster"] if faster else []
    parts += [f"{excluded} are not (a speedup of {ratio_text(NOT_FASTER)} is ruled out)"] if excluded else []
    parts += [f"{open_} with no difference detected"] if open_ else []
    parts += [f"{withheld} withheld, since the run was disturbed"] if withheld else []
    parts += [f"{undecided} with too few rounds for a verdict on a single operator"] if undecided else []
    return [f"{products_text(len(heavy))} of delegates, with the features and without: {'; '.join(parts)}."]
