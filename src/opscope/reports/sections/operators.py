"""Every operator of the shown variant, and one inference as it ran."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opscope.analysis.operators.operators import limit_without
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.core.units import counted_text, share_text, time_text
from opscope.program.operators.kinds import Attribution, Category
from opscope.program.operators.taxonomy import aten_operator
from opscope.reports.content.content import (
    category_rows,
    closing_rows,
    counted_text_of,
    listed_operators,
    operator_rows,
    split_sentence,
    top_operators,
)
from opscope.reports.content.places import CATEGORY, layer_text, method_of
from opscope.reports.document.blocks import Format, Picture, Section, Sentence, TableCell, Tone, column, table
from opscope.reports.document.html import legend
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.reports.content.content import OperatorRow, ReportContent
    from opscope.reports.document.blocks import TableBlock, TableColumn

INSTRUCTIONS = "instructions"
_NAME, _HEAVY = 60, 8
_EXPORTED = re.compile(r"^native_|_legit.*$|_with_indices$")
_LIKELY = {Attribution.ALIGNED, Attribution.AMBIGUOUS}


def inference_section(shown: Analysis) -> Section:
    """One inference as icicles; pages only."""
    blocks = [
        Picture(lambda: legend((category.value, category) for category in Category)),
        Section("By instruction", [picture("one inference by instruction", lambda: _by_program(shown))]),
    ]
    if shown.modules:
        blocks.append(Section("By module", [picture("one inference by module", lambda: _by_module(shown))]))
    answer = f"where its {time_text(shown.headline_ns)} go"
    return Section("One inference", blocks, "inference", "One inference", answer, folded=True)


def _by_program(shown: Analysis) -> str:
    from opscope.reports.pictures import icicle

    return icicle.draw(icicle.by_program(shown), "One inference by instruction and operator", shown.headline_ns)


def _by_module(shown: Analysis) -> str:
    from opscope.reports.pictures import icicle

    modules = icicle.by_module(shown)
    return icicle.draw(modules, "One inference by module and operator", shown.headline_ns) if modules else ""


def bottlenecks_section(content: ReportContent) -> Section:
    """Every category as it is now, longest first, with the speedup that is left in it; operators that weigh."""
    heavy = [row.operator for row in top_operators(content) if row.operator.share > LEAST_SHARE]
    names = [f"{layer_text(one) or one.name} {share_text(one.share)}" for one in heavy[:_HEAVY]]
    more = f" and {len(heavy) - _HEAVY} more" if len(heavy) > _HEAVY else ""
    least = share_text(LEAST_SHARE)
    answer = f"{counted_text(len(heavy), 'operator')} above {least} of the latency"
    text = f"{answer}: {', '.join(names)}{more}." if heavy else f"No operator takes more than {least}."
    rows = table(
        sorted(category_rows(content), key=lambda row: -row.share),
        CATEGORY,
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        column("limit if removed", Format.RATIO, lambda row: limit_without(row.share)),
    )
    return Section("Bottlenecks", [rows, Sentence(text)], "bottlenecks", answer=answer, folded=True)


def operators_section(content: ReportContent, shown: Analysis) -> Section:
    """Every operator, longest first."""
    rows = operator_rows(content)
    first = next((row.operator for row in rows if row.operator.kind != "framework"), None)
    longest = (
        f"; the longest is {plain(layer_text(first) or first.name, _NAME)}, {share_text(first.share)}" if first else ""
    )
    text = (
        f"Self time per inference: {split_sentence(shown)}. Other = Method::execute - (Convolution + GEMM + "
        "Elementwise + Data Movement without the copies of inputs and outputs). Cumulative: share of this operator and "
        "all longer ones."
    )
    answer = f"{counted_text(len(rows), 'row')}{longest}"
    counted = counted_text_of(content.work if any(row.instructions is not None for row in rows) else None)
    blocks = [Sentence(f"{text} {counted}".strip(), Tone.DIM), _table(content, shown)]
    return Section("All Operators", blocks, "operators", "Operators", answer, folded=True)


def _table(content: ReportContent, shown: Analysis) -> TableBlock:
    (rows, short), compared, of = listed_operators(content), content.primary is not None, method_of(shown)
    return table(
        rows,
        column("operator", Format.NAME, lambda row: f"{of(row.operator)}{row.operator.name}"),
        column("layer", Format.TEXT, _layer) if shown.program else None,
        column(
            "category",
            Format.TEXT,
            lambda row: TableCell(row.operator.category.value, category=row.operator.category),
            pick=True,
        ),
        column("kind", Format.TEXT, lambda row: row.operator.kind),
        column("backend", Format.NAME, lambda row: row.operator.backend, pick=True),
        column("instruction", Format.FIGURE, lambda row: _place(row.operator)),
        column("baseline ms", Format.MS, lambda row: row.change.baseline_ns if row.change else None)
        if compared
        else None,
        column("ms", Format.MS, lambda row: row.operator.time_ns, total=True),
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
    """Percentiles beside the times; None where none are known."""
    if all(row.operator.spread_ns is None for row in rows):
        return None
    return column("p10 to p90", Format.MS, lambda row: row.operator.spread_ns, spare=True, roomy=True)


def _layer(row: OperatorRow) -> TableCell:
    operator = row.operator
    notes = [f"with {fused_text(operator.fused)}"] if operator.fused else []
    notes += [operator.attribution.value] if operator.attribution in _LIKELY else []
    return TableCell(layer_text(operator), ", ".join(notes))


def fused_text(names: Sequence[str]) -> str:
    """Aten operators that were fused into another one, without what only the exporter's form of them adds."""
    return ", ".join(_EXPORTED.sub("", aten_operator(name)) for name in names)


def _place(operator: Operator) -> str:
    if operator.instruction is None:
        return ""
    return f"{operator.instruction}" if operator.position is None else f"{operator.instruction}.{operator.position}"
