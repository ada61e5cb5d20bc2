"""First screen of a report: the figures, where the time goes, the operators, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.operators.operators import dominant, limit_without, longest_first, sums
from opscope.bundle.manifest import Role
from opscope.core.parts import part
from opscope.core.units import counted_text, ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.reports.content.content import (
    OperatorRow,
    category_rows,
    closing_rows,
    closing_rows_of,
    instruction_count_sentence,
    largest_before,
    merge_recurrences,
    missing_sentences,
    no_split_sentence,
    off_text,
    one_process_a_side,
    operator_rows,
    side_latencies,
    side_names,
    speedup_text,
    split_sentence,
    sum_complete_counts,
    threads_text,
    trust_text,
)
from opscope.reports.content.places import CATEGORY, is_delegated, layer_text
from opscope.reports.content.ranking import join_names, ranked_variants, ranking_figures, runtime_title, variant_title
from opscope.reports.document.blocks import (
    Beside,
    Block,
    Bullets,
    Closing,
    Figures,
    Format,
    HeadlineFigure,
    Messages,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    table,
)
from opscope.reports.document.messages import measure_again, unchecked_sentence
from opscope.reports.document.template import picture
from opscope.reports.document.text import plain
from opscope.reports.pictures.bars import category_shift
from opscope.reports.sections.latency import method_figures, variants_table
from opscope.reports.sections.operators import INSTRUCTIONS, spread_column
from opscope.reports.sections.tokens import token_blocks, token_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.findings.message import Quality
    from opscope.reports.content.content import CategoryShift, ReportContent
    from opscope.reports.document.blocks import TableBlock

_PAIR = 2
_TOP = 10
_FIRST = 4
"""Findings that the first screen shows in full."""


def first_screen(content: ReportContent) -> list[Block]:
    """Return the blocks below the answer that a newcomer needs."""
    incomplete = [f"Incomplete: {line}" for line in missing_sentences(content)]
    blocks: list[Block] = [Sentence(line, Tone.BAD) for line in incomplete]
    figures = part("the figures of the first screen", lambda: _headline_figures(content), list[HeadlineFigure]())
    blocks.append(Figures(figures, variants_table(content, brief=True)))
    blocks += part("what a token costs", lambda: token_blocks(content.shown) if content.shown else [], list[Block]())
    blocks += part("the answer in short", lambda: _bottleneck_bullets(content), list[Bullets]())
    return [*blocks, Beside(split_blocks(content), [next_steps(content)])]


def split_blocks(content: ReportContent) -> list[Block]:
    """Return where the time goes, by category and by operator, or why that is unknown."""
    if content.shown is None or not content.has_split:
        return [
            Section("Operator Category Breakdown", [Sentence(no_split_sentence(content) or "Nothing was measured.")])
        ]
    several = len({variant.threads for variant in content.manifest.variants}) > 1
    result = content.result(content.shown.variant or "") if several else None
    heading_blocks = (
        [Sentence(f"With {threads_text(result.variant.threads)}, as {result.variant.name}:")] if result else []
    )
    if ranked_variants(content) and content.primary:
        names = [variant_title(content, side.label) for side in (content.primary.candidate, content.primary.baseline)]
        heading_blocks = [Sentence(f"{names[0]}, with {names[1]} as the baseline:")]
    rows, closing = operator_rows(content), closing_rows(content, copies=True)
    joined = any(row.instructions is not None for row in rows)
    counted = [Sentence(instruction_count_sentence(content.work), Tone.DIM)] if joined else []
    return [
        Section(
            "Operator Category Breakdown",
            [
                *heading_blocks,
                picture("split by category", lambda: category_shift(content)),
                category_table(category_rows(content), closing_rows(content, copies=False)),
                Sentence(_split_note(content.shown), Tone.DIM, wide=True),
            ],
        ),
        Section("Top operators", [operator_table(rows, closing), *counted]),
    ]


def category_table(rows: Sequence[CategoryShift], closing: Iterable[Closing] = ()) -> TableBlock:
    """Return the split by category, beside the baseline if there is one."""
    compared = any(row.baseline_share is not None for row in rows)
    timed = any(row.time_ns is not None for row in rows)
    return table(
        rows,
        CATEGORY,
        column("baseline ms", Format.MS, lambda row: row.baseline_ns, spare=True, roomy=True) if compared else None,
        column("share before", Format.SHARE, lambda row: row.baseline_share, spare=True) if compared else None,
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share, spare=compared and timed),
        column("speedup", Format.RATIO, lambda row: row.speedup) if any(row.speedup for row in rows) else None,
        column("verdict", Format.VERDICT, lambda row: row.verdict) if any(row.verdict for row in rows) else None,
        closing=closing,
    )


def operator_table(rows: Sequence[OperatorRow], closing: Iterable[Closing], *, kernels: bool = False) -> TableBlock:
    """Return a table of the longest operators, with lines for the rest, the framework and what leads to the sum.

    The steps of a recurrence are one row; the table of all operators has a row for each.

    ``kernels``: whether to show the kernel of each operator.
    """
    work = merge_recurrences([row for row in rows if row.operator.kind != "framework"])
    framework = [row for row in rows if row.operator.kind == "framework"]
    more = counted_text(sum(row.members for row in work[_TOP:]), "more operator")
    rest = [(more, work[_TOP:]), ("framework, no operator", framework)]
    below = [_summing_line(name, group) for name, group in rest if group]
    counted = any(row.instructions is not None for row in rows)
    compared = any(row.change and row.change.speedup for row in work[:_TOP])
    several = len({row.operator.method for row in work}) > 1
    return table(
        work[:_TOP],
        column("operator", Format.NAME, lambda row: _operator_cell(row, several=several)),
        column("backend", Format.NAME, lambda row: row.operator.backend, spare=True),
        column("kernel", Format.NAME, lambda row: row.operator.kernel, spare=True) if kernels else None,
        column("ms", Format.MS, lambda row: row.operator.time_ns),
        spread_column(rows),
        column("share", Format.SHARE, lambda row: row.operator.share),
        column("speedup", Format.RATIO, lambda row: row.change.speedup if row.change else None) if compared else None,
        column(INSTRUCTIONS, Format.LARGE, lambda row: row.instructions, spare=True) if counted else None,
        closing=[*below, *closing],
    )


def _summing_line(name: str, rows: Sequence[OperatorRow]) -> Closing:
    together = sums(row.operator for row in rows)
    counted = sum_complete_counts([row.instructions for row in rows])
    return Closing(name, {"ms": together.time_ns, "share": together.share, INSTRUCTIONS: counted})


def analysed_split(analysis: Analysis) -> list[Block]:
    """Return the tables by category and by operator for a trace analysed by itself."""
    categories = table(
        analysis.categories,
        CATEGORY,
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        closing=closing_rows_of(analysis, copies=False),
    )
    rows = [OperatorRow(row, 0.0, None) for row in longest_first(analysis.operators)]
    return [
        categories,
        Sentence(_tracing_slowdown_sentence(analysis), Tone.DIM, wide=True),
        operator_table(
            rows,
            closing_rows_of(analysis, copies=True),
            kernels=analysis.variant is None and any(row.operator.kernel for row in rows),
        ),
    ]


def _operator_cell(row: OperatorRow, *, several: bool) -> TableCell:
    """Return the name of a row's layer or operator, with its method if several ran."""
    operator = row.operator
    kind = f"{counted_text(row.steps, 'step')}, {counted_text(row.members, 'operator')}" if row.steps else operator.kind
    return TableCell(
        layer_text(operator) or operator.name, f"{kind} in {operator.method}" if several else kind, operator.category
    )


def _split_note(analysis: Analysis) -> str:
    return _tracing_slowdown_sentence(analysis) if analysis.timed else f"{split_sentence(analysis)}."


def _tracing_slowdown_sentence(analysis: Analysis) -> str:
    return f"The traced inferences of this split {analysis.took_text}." if analysis.took_text else ""


def next_steps(content: ReportContent) -> Section:
    """Return the section on what to do next, the most useful first."""
    messages = content.advice
    again = "" if one_process_a_side(content) else measure_again(content.quality)
    blocks: list[Block] = [Sentence(f"{again}.", Tone.BAD)] if again else []
    unchecked = unchecked_sentence(content.findings, content.ruled_out)
    blocks.append(Messages(messages, _FIRST, brief=True) if messages else Sentence("" if unchecked else "No findings."))
    return Section("Recommendations", [*blocks, Sentence(unchecked, wide=bool(messages))])


def first_step(quality: Quality | None) -> list[Block]:
    """Return the advice to measure again, shown before all findings; empty if the figures can be trusted."""
    again = measure_again(quality)
    return [Sentence(again, Tone.BAD)] if again else []


def _headline_figures(content: ReportContent) -> list[HeadlineFigure]:
    analysis, comparison = content.shown, content.primary
    if analysis is None:
        return []
    if phases := token_figures(analysis):
        return [*phases, *(_share_figures(analysis) if analysis.has_split else [])]
    note = f"p90 {time_text(analysis.latency.p90_ns)}"
    if ranked_variants(content):
        figures = list(ranking_figures(content))
    elif comparison is None:
        figures = [HeadlineFigure("latency", time_text(analysis.headline_ns), note)]
    elif comparison.methods:
        figures = method_figures(comparison)
    else:
        result = comparison.end_to_end
        candidate, baseline = side_names(content)
        times = side_latencies(result)
        interval = f"{result.ci95[0]:.2f} to {result.ci95[1]:.2f}" if result.ci95 else trust_text(result)
        figures = [
            HeadlineFigure(candidate, time_text(times[1]), note),
            HeadlineFigure(baseline, time_text(times[0]), _baseline_off_text(content)),
            HeadlineFigure("speedup", speedup_text(result), interval),
        ]
    return [*figures, *(_share_figures(analysis) if analysis.has_split else [])]


def _share_figures(analysis: Analysis) -> Iterator[HeadlineFigure]:
    note = "of the latency"
    portable = sum(row.share for row in analysis.backends if row.backend == "portable")
    delegated = sum(row.share for row in analysis.backends if row.backend not in {"portable", "framework"})
    if is_delegated(analysis):
        yield HeadlineFigure("delegated", share_text(delegated), note)
        yield HeadlineFigure("portable", share_text(portable), note)
    moving = sum(row.share for row in analysis.categories if row.category is Category.DATA_MOVEMENT)
    yield HeadlineFigure(
        "data movement", share_text(moving), f"{note}, including inputs and outputs" if analysis.copies else note
    )


def _baseline_off_text(content: ReportContent) -> str:
    baselines = content.manifest.with_role(Role.BASELINE)
    return off_text(baselines[0]) if baselines and baselines[0].ablated is not None else ""


def _bottleneck_bullets(content: ReportContent) -> list[Bullets]:
    """Return which category dominated before acceleration and which does now, without framework time.

    A terminal shows only one of the two: the change if another category dominates now, else the bottleneck.
    """
    if not content.has_split or content.shown is None or content.manifest.target.emulated or content.shown.tokens:
        return []
    largest = dominant(content.shown.operators, content.shown.copies)
    if largest is None:
        return [Bullets(["Bottleneck: unknown, the trace contains no operators."])]
    most = limit_without(largest.share)
    rest = content.shown.headline_ns * (1 - largest.share)
    limit = f"; without it: {time_text(rest)} ({ratio_text(most)} faster)" if most else ""
    now = f"Bottleneck: {largest.category.value}, {share_text(largest.share)} of the latency{limit}."
    before = None if ranked_variants(content) else largest_before(content.primary)
    if before is None:
        return [Bullets([now])]
    name, shares = largest.category.value, (share_text(before[1]), share_text(largest.share))
    same = before[0] is largest.category
    text = f"{name} still dominates: {shares[0]} before, {shares[1]} after."
    if not same:
        text = f"{before[0].value} dominated before ({shares[0]}); {name} dominates after ({shares[1]})."
    return [Bullets([f"What changed: {text}"], wide=same), Bullets([now], wide=not same)]


def heading(content: ReportContent) -> str:
    """Return what ran, in words: models, number types and runtimes."""
    manifest = content.manifest
    titles = list(dict.fromkeys(runtime_title(manifest, variant) for variant in manifest.variants))
    if len(manifest.variants) > _PAIR and len(titles) > 1:
        models = (manifest.model, *manifest.other_models)
        words = [
            _join_known_names({model.name: None for model in models}),
            _join_known_names({model.dtype: None for model in models}),
        ]
        return plain(f"{' '.join(filter(None, words))} in {join_names(titles)}", 300)
    words = [manifest.title(manifest.model), manifest.model.dtype or ""]
    for other_model in manifest.other_models:
        words += ["against", manifest.title(other_model), other_model.dtype or ""]
    return plain(" ".join(filter(None, words)), 300)


def _join_known_names(names: Iterable[str | None]) -> str:
    return join_names(list(filter(None, names)))
