"""Sections on every operator of the shown variant, and on one inference as it ran."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.analysis.operators.operators import limit_without
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.core.units import counted_text, share_text, time_text
from opscope.program.operators.kinds import Attribution, Category
from opscope.program.operators.taxonomy import aten_operator
from opscope.reports.content.content import (
    SHARES_ONLY,
    category_rows,
    closing_rows,
    instruction_count_sentence,
    listed_operators,
    missing_time_text,
    operator_rows,
    split_sentence,
)
from opscope.reports.content.places import CATEGORY, layer_text, method_prefix
from opscope.reports.document.blocks import Format, Picture, Section, Sentence, TableCell, Tone, column, table
from opscope.reports.document.html import legend
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain
from opscope.reports.sections.kernel_view import kernel_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.reports.content.content import OperatorRow, ReportContent
    from opscope.reports.document.blocks import TableBlock, TableColumn
    from opscope.reports.sections.kernel_view import KernelRow

INSTRUCTIONS = "instructions"
_NAME = 60
_EXPORTED = re.compile(r"^native_|_legit.*$|_with_indices$")
_LIKELY = {Attribution.ALIGNED, Attribution.AMBIGUOUS}


def inference_section(analysis: Analysis) -> Section:
    """Return one inference as icicle pictures; pages only."""
    blocks = [
        Picture(lambda: legend((category.value, category) for category in Category)),
        Section("By instruction", [picture("one inference by instruction", lambda: _draw_by_program(analysis))]),
    ]
    if analysis.modules:
        blocks.append(Section("By module", [picture("one inference by module", lambda: _draw_by_module(analysis))]))
    answer = f"where its {time_text(analysis.headline_ns)} go"
    return Section("One inference", blocks, "inference", "One inference", answer, folded=True)


def _draw_by_program(analysis: Analysis) -> str:
    from opscope.reports.pictures import icicle

    return icicle.draw_icicle(
        icicle.build_program_boxes(analysis), "One inference by instruction and operator", analysis.headline_ns
    )


def _draw_by_module(analysis: Analysis) -> str:
    from opscope.reports.pictures import icicle

    modules = icicle.build_module_boxes(analysis)
    return icicle.draw_icicle(modules, "One inference by module and operator", analysis.headline_ns) if modules else ""


def bottlenecks_section(content: ReportContent) -> Section:
    """List categories, and operators grouped by kernel, longest first.

    Each has its speedup limit: the speedup if it took no time (Amdahl's law).
    """
    categories = table(
        sorted(category_rows(content), key=lambda row: -row.share),
        CATEGORY,
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        column("limit if removed", Format.RATIO, lambda row: limit_without(row.share)),
    )
    heavy = [row for row in kernel_rows(content) if row.share > LEAST_SHARE]
    above = f"above {share_text(LEAST_SHARE)} of the latency"
    operators = table(
        heavy,
        column("operator", Format.NAME, lambda row: TableCell(_kernel_name(row), row.kind, row.category)),
        column("backend", Format.NAME, lambda row: row.backend),
        column("instances", Format.COUNT, lambda row: row.count),
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        column("limit if removed", Format.RATIO, lambda row: limit_without(row.share)),
        column("speedup", Format.RATIO, lambda row: row.speedup) if content.primary else None,
    )
    answer = f"{counted_text(len(heavy), 'kernel')} {above}"
    section = Section(f"Operators {above}, all instances of a kernel together", [operators])
    blocks = [categories, section if heavy else Sentence(f"No kernel {above}, all instances together.")]
    return Section("Bottlenecks", blocks, "bottlenecks", answer=answer, folded=True)


def _kernel_name(row: KernelRow) -> str:
    """Name what the instances of a kernel have in common, such as ``Convolution IGEMM (F32)``."""
    types = f"({row.types})" if row.types else ""
    return " ".join(filter(None, (row.operator, row.algorithm, types)))


def operators_section(content: ReportContent, analysis: Analysis) -> Section:
    """Return the section with every operator, longest first."""
    rows = operator_rows(content)
    first = next((row.operator for row in rows if row.operator.kind != "framework"), None)
    longest = (
        f"; the longest is {plain(layer_text(first) or first.name, _NAME)}, {share_text(first.share)}" if first else ""
    )
    text = (
        f"Self time per inference: {split_sentence(analysis)}. Other = Method::execute - (Convolution + GEMM + "
        "Elementwise + Data Movement without the copies of inputs and outputs). Cumulative: share of this operator and "
        "all longer ones."
    )
    answer = f"{counted_text(len(rows), 'row')}{longest}"
    counted = instruction_count_sentence(content.work if any(row.instructions is not None for row in rows) else None)
    blocks = [Sentence(f"{text} {counted}".strip(), Tone.DIM), _operators_table(content, analysis)]
    return Section("All Operators", blocks, "operators", "Operators", answer, folded=True)


def _operators_table(content: ReportContent, analysis: Analysis) -> TableBlock:
    (rows, short), compared, method_of = listed_operators(content), content.primary is not None, method_prefix(analysis)
    return table(
        rows,
        column("operator", Format.NAME, lambda row: f"{method_of(row.operator)}{row.operator.name}"),
        column("layer", Format.TEXT, _layer_cell) if analysis.program else None,
        column(
            "category",
            Format.TEXT,
            lambda row: TableCell(row.operator.category.value, category=row.operator.category),
            pick=True,
        ),
        column("kind", Format.TEXT, lambda row: row.operator.kind),
        column("backend", Format.NAME, lambda row: row.operator.backend, pick=True),
        column("instruction", Format.FIGURE, lambda row: _instruction_text(row.operator)),
        column(
            "baseline ms",
            Format.MS,
            lambda row: row.change.baseline_ns if row.change else None,
            absent=missing_time_text(content.primary),
        )
        if content.primary
        else None,
        column("ms", Format.MS, lambda row: row.operator.time_ns, total=True, absent=SHARES_ONLY),
        spread_column(rows),
        column("share", Format.SHARE, lambda row: row.operator.share, total=True),
        column("cumulative", Format.SHARE, lambda row: row.cumulative),
        column(INSTRUCTIONS, Format.LARGE, lambda row: row.instructions, total=True)
        if any(row.instructions is not None for row in rows)
        else None,
        column("speedup", Format.RATIO, lambda row: row.change.speedup if row.change else None) if compared else None,
        column("verdict", Format.VERDICT, lambda row: row.change.verdict if row.change else None, pick=True)
        if compared
        else None,
        closing=[*short, *closing_rows(content, copies=True)],
        sortable=True,
        filterable=True,
        label="All operators",
    )


def spread_column(rows: Iterable[OperatorRow]) -> TableColumn | None:
    """Return the column of 10th to 90th percentiles; None if no operator has them."""
    if all(row.operator.spread_ns is None for row in rows):
        return None
    return column("p10 to p90", Format.MS, lambda row: row.operator.spread_ns, spare=True, roomy=True)


def _layer_cell(row: OperatorRow) -> TableCell:
    operator = row.operator
    notes = [f"with {fused_text(operator.fused)}"] if operator.fused else []
    notes += [operator.attribution.value] if operator.attribution in _LIKELY else []
    return TableCell(layer_text(operator), ", ".join(notes))


def fused_text(names: Sequence[str]) -> str:
    """Return the Aten operators that were fused into another one, without the exporter's prefixes and suffixes."""
    return ", ".join(_EXPORTED.sub("", aten_operator(name)) for name in names)


def _instruction_text(operator: Operator) -> str:
    if operator.instruction is None:
        return ""
    return f"{operator.instruction}" if operator.position is None else f"{operator.instruction}.{operator.position}"
