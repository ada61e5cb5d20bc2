"""What is known of the kernels: operators by algorithm, number types and microkernel, with their time together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.operators.operators import sums
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.units import range_text, rate_text, ratio_of_times
from opscope.program.operators.kinds import Category
from opscope.reports.content.content import top_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.reports.content.content import OperatorRow, ReportContent

_EVENT = re.compile(r"(?P<operator>[^(#]+?)(?: \((?P<types>[^)#]*)\)(?: (?P<algorithm>[^#]+?))?)?(?: #\d+)?\Z")
_PACKED = ("PF", "PQS")
"""How XNNPACK names types that it packs for KleidiAI's kernels of the SME family."""


class KernelRow(msgspec.Struct, frozen=True):
    """Operators of one kind."""

    operator: str  # as the backend calls it
    category: Category  # upper level of the taxonomy
    kind: str  # lower level
    backend: str  # that ran it
    algorithm: str | None  # that the name tells; null where it tells none
    types: str | None  # number types of inputs and weights, by the name or else by the program; null when neither tells
    evidence: str | None  # what the name or a record shows of the kernels; null when nothing
    kernel: str | None  # the microkernel; null when not known
    count: int  # of operators
    time_ns: float | None  # together, per inference; null where only shares are known
    share: float  # of the headline
    rate: str  # multiply-accumulates per ns, in words, for the times that are possible; empty where they are not known
    baseline_ns: float | None  # on the baseline; null where one of them is not there
    withheld: bool = False  # whether other processes disturbed the sides so much that no ratio is told

    @property
    def speedup(self) -> float | None:
        """Baseline over candidate; null without either, where one is too short to be shown, or where withheld."""
        return None if self.withheld else ratio_of_times(self.baseline_ns, self.time_ns)


def kernel_rows(content: ReportContent) -> list[KernelRow]:
    """Every sort of operator of the shown variant, longest first; the framework's own time is in none."""
    groups = grouped(top_operators(content), _sort)
    return sorted((_row(sort, rows) for sort, rows in groups.items()), key=lambda row: -row.share)


def _sort(row: OperatorRow) -> tuple[str | None, ...]:
    """What operators of one kind have in common."""
    own = row.operator
    form = _EVENT.match(own.name)
    name = form["operator"] if form else own.name
    algorithm, types = (form["algorithm"], form["types"]) if form else (None, None)
    named = ", ".join((types or "").split(", ")[1:])  # behind the layout
    by_program = " x ".join(part for part in (own.dtype, own.weights) if part)
    return name, own.category.value, own.kind, own.backend, algorithm, named or by_program or None, own.kernel


def _row(sort: tuple[str | None, ...], rows: Sequence[OperatorRow]) -> KernelRow:
    name, _, kind, backend, algorithm, types, kernel = sort
    time_ns, share = sums(row.operator for row in rows)
    before = [row.change.baseline_ns if row.change else None for row in rows]
    withheld = any(row.change is not None and row.change.verdict is Verdict.WITHHELD for row in rows)
    return KernelRow(
        operator=(name or "").removeprefix("native_call_"),
        category=rows[0].operator.category,
        kind=kind or "",
        backend=backend or "",
        algorithm=algorithm,
        types=types,
        evidence=_evidence(types, kernel),
        kernel=kernel,
        count=len(rows),
        time_ns=time_ns,
        share=share,
        rate=_rate([row.operator for row in rows]),
        baseline_ns=None if None in before else sum(each or 0.0 for each in before),
        withheld=withheld,
    )


def _rate(rows: Sequence[Operator]) -> str:
    macs, least = sum(row.macs or 0 for row in rows), sum(row.shown_ns for row in rows)
    if not macs or not least or any(row.macs is None for row in rows):
        return ""
    low, high = rate_text(macs / (least + sum(row.uncertainty_ns for row in rows))), rate_text(macs / least)
    return range_text(low, high)


def _evidence(types: str | None, kernel: str | None) -> str | None:
    if kernel:
        return "recorded"
    packed = any(word.startswith(_PACKED) for word in (types or "").split(", "))
    return "SME family, by its packed types" if packed else None
