"""The first screen of a report: the figures, where the time goes, the operators, and what to do next."""

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
    counted_text_of,
    counted_together,
    largest_before,
    missing,
    no_split_sentence,
    off_text,
    one_process_a_side,
    operator_rows,
    side_latencies,
    side_names,
    speedup_text,
    split_sentence,
    steps_together,
    threads_text,
    trust_text,
)
from opscope.reports.content.places import CATEGORY, is_delegated, layer_text
from opscope.reports.content.ranking import called, listed, ranked, ranking_figures, runtime_title
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
    """Everything below the answer that a stranger needs."""
    incomplete = [f"Incomplete: {line}" for line in missing(content)]
    blocks: list[Block] = [Sentence(line, Tone.BAD) for line in incomplete]
    figures = part("the figures of the first screen", lambda: _figures(content), list[HeadlineFigure]())
    blocks.append(Figures(figures, variants_table(content, brief=True)))
    blocks += part("what a token costs", lambda: token_blocks(content.shown) if content.shown else [], list[Block]())
    blocks += part("the answer in short", lambda: _in_short(content), list[Bullets]())
    return [*blocks, Beside(split_blocks(content), [next_steps(content)])]


def split_blocks(content: ReportContent) -> list[Block]:
    """Where the time goes, by category and by operator, or why that is not known."""
    if content.shown is None or not content.has_split:
        return [
            Section("Operator Category Breakdown", [Sentence(no_split_sentence(content) or "Nothing was measured.")])
        ]
    several = len({variant.threads for variant in content.manifest.variants}) > 1
    result = content.result(content.shown.variant or "") if several else None
    of = [Sentence(f"With {threads_text(result.variant.threads)}, as {result.variant.name}:")] if result else []
    if ranked(content) and content.primary:
        names = [called(content, side.label) for side in (content.primary.candidate, content.primary.baseline)]
        of = [Sentence(f"{names[0]}, with {names[1]} as the baseline:")]
    rows, closing = operator_rows(content), closing_rows(content, copies=True)
    joined = any(row.instructions is not None for row in rows)
    counted = [Sentence(counted_text_of(content.work), Tone.DIM)] if joined else []
    return [
        Section(
            "Operator Category Breakdown",
            [
                *of,
                picture("split by category", lambda: category_shift(content)),
                category_table(category_rows(content), closing_rows(content, copies=False)),
                Sentence(_how_split(content.shown), Tone.DIM, wide=True),
            ],
        ),
        Section("Top operators", [operator_table(rows, closing), *counted]),
    ]


def category_table(rows: Sequence[CategoryShift], closing: Iterable[Closing] = ()) -> TableBlock:
    """The split by category, beside the baseline where there is one."""
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
    """The longest operators, the rest in a line, the framework's own time in another, and what leads to the sum.

    ``kernels``: with the kernel of each, where any is known.

    The steps of a recurrence are one row; each operator has its own in the table of all operators.
    """
    work = steps_together([row for row in rows if row.operator.kind != "framework"])
    framework = [row for row in rows if row.operator.kind == "framework"]
    more = counted_text(sum(row.members for row in work[_TOP:]), "more operator")
    rest = [(more, work[_TOP:]), ("framework, no operator", framework)]
    below = [_together(name, own) for name, own in rest if own]
    counted = any(row.instructions is not None for row in rows)
    compared = any(row.change and row.change.speedup for row in work[:_TOP])
    several = len({row.operator.method for row in work}) > 1
    return table(
        work[:_TOP],
        column("operator", Format.NAME, lambda row: _named(row, several=several)),
        column("backend", Format.NAME, lambda row: row.operator.backend, spare=True),
        column("kernel", Format.NAME, lambda row: row.operator.kernel, spare=True) if kernels else None,
        column("ms", Format.MS, lambda row: row.operator.time_ns),
        spread_column(rows),
        column("share", Format.SHARE, lambda row: row.operator.share),
        column("speedup", Format.RATIO, lambda row: row.change.speedup if row.change else None) if compared else None,
        column(INSTRUCTIONS, Format.LARGE, lambda row: row.instructions, spare=True) if counted else None,
        closing=[*below, *closing],
    )


def _together(name: str, rows: Sequence[OperatorRow]) -> Closing:
    together = sums(row.operator for row in rows)
    counted = counted_together([row.instructions for row in rows])
    return Closing(name, {"ms": together.time_ns, "share": together.share, INSTRUCTIONS: counted})


def analysed_split(analysis: Analysis) -> list[Block]:
    """The same two tables of a trace alone."""
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
        Sentence(_scaled(analysis), Tone.DIM, wide=True),
        operator_table(
            rows,
            closing_rows_of(analysis, copies=True),
            kernels=analysis.variant is None and any(row.operator.kernel for row in rows),
        ),
    ]


def _named(row: OperatorRow, *, several: bool) -> TableCell:
    """With its method where several ran."""
    operator = row.operator
    kind = f"{counted_text(row.steps, 'step')}, {counted_text(row.members, 'operator')}" if row.steps else operator.kind
    return TableCell(
        layer_text(operator) or operator.name, f"{kind} in {operator.method}" if several else kind, operator.category
    )


def _how_split(shown: Analysis) -> str:
    return _scaled(shown) if shown.timed else f"{split_sentence(shown)}."


def _scaled(shown: Analysis) -> str:
    return f"The traced inferences of this split {shown.took_text}." if shown.took_text else ""


def next_steps(content: ReportContent) -> Section:
    """What to do, first."""
    messages = content.advice
    again = "" if one_process_a_side(content) else measure_again(content.quality)
    blocks: list[Block] = [Sentence(f"{again}.", Tone.BAD)] if again else []
    unchecked = unchecked_sentence(content.findings, content.ruled_out)
    blocks.append(Messages(messages, _FIRST, brief=True) if messages else Sentence("" if unchecked else "No findings."))
    return Section("Recommendations", [*blocks, Sentence(unchecked, wide=bool(messages))])


def first_step(quality: Quality | None) -> list[Block]:
    """Measuring again, where the figures cannot be trusted: it stands before all findings."""
    again = measure_again(quality)
    return [Sentence(again, Tone.BAD)] if again else []


def _figures(content: ReportContent) -> list[HeadlineFigure]:
    analysis, comparison = content.shown, content.primary
    if analysis is None:
        return []
    if phases := token_figures(analysis):
        return [*phases, *(_shares(analysis) if analysis.has_split else [])]
    note = f"p90 {time_text(analysis.latency.p90_ns)}"
    if ranked(content):
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
            HeadlineFigure(baseline, time_text(times[0]), _off(content)),
            HeadlineFigure("speedup", speedup_text(result), interval),
        ]
    return [*figures, *(_shares(analysis) if analysis.has_split else [])]


def _shares(analysis: Analysis) -> Iterator[HeadlineFigure]:
    of = "of the latency"
    portable = sum(row.share for row in analysis.backends if row.backend == "portable")
    delegated = sum(row.share for row in analysis.backends if row.backend not in {"portable", "framework"})
    if is_delegated(analysis):
        yield HeadlineFigure("delegated", share_text(delegated), of)
        yield HeadlineFigure("portable", share_text(portable), of)
    moving = sum(row.share for row in analysis.categories if row.category is Category.DATA_MOVEMENT)
    yield HeadlineFigure(
        "data movement", share_text(moving), f"{of}, including inputs and outputs" if analysis.copies else of
    )


def _off(content: ReportContent) -> str:
    baselines = content.manifest.with_role(Role.BASELINE)
    return off_text(baselines[0]) if baselines and baselines[0].ablated is not None else ""


def _in_short(content: ReportContent) -> list[Bullets]:
    """What was the largest before acceleration, and what is slow now; the framework's own time left out.

    A terminal has the one of the two that tells more: that another category is the largest, else what is slow.
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
    before = None if ranked(content) else largest_before(content.primary)
    if before is None:
        return [Bullets([now])]
    name, shares = largest.category.value, (share_text(before[1]), share_text(largest.share))
    same = before[0] is largest.category
    text = f"{name} still dominates: {shares[0]} before, {shares[1]} after."
    if not same:
        text = f"{before[0].value} dominated before ({shares[0]}); {name} dominates after ({shares[1]})."
    return [Bullets([f"What changed: {text}"], wide=same), Bullets([now], wide=not same)]


def heading(content: ReportContent) -> str:
    """What ran, on what."""
    manifest = content.manifest
    titles = list(dict.fromkeys(runtime_title(manifest, one) for one in manifest.variants))
    if len(manifest.variants) > _PAIR and len(titles) > 1:
        models = (manifest.model, *manifest.other_models)
        words = [_one_of({model.name: None for model in models}), _one_of({model.dtype: None for model in models})]
        return plain(f"{' '.join(filter(None, words))} in {listed(titles)}", 300)
    words = [manifest.title(manifest.model), manifest.model.dtype or ""]
    for own in manifest.other_models:
        words += ["against", manifest.title(own), own.dtype or ""]
    return plain(" ".join(filter(None, words)), 300)


def _one_of(names: Iterable[str | None]) -> str:
    return listed(list(filter(None, names)))
