"""The summary on a terminal: in 80 columns or in all that there are, the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding

from opscope.analysis.findings.finding import message_of
from opscope.analysis.findings.message import MessageKind, Severity, note, warning
from opscope.analysis.findings.quality import Grade
from opscope.analysis.operators.operators import sums
from opscope.analysis.preflight.contents import KernelSummary, ProgramSummary, RecordSummary
from opscope.analysis.quality.quality_machine import ON_THE_DEVICE
from opscope.core.parts import part
from opscope.core.stats.effect import Verdict
from opscope.core.units import (
    counted_text,
    milliseconds,
    milliseconds_if_known,
    ratio_text,
    share_text,
    size_text,
    time_text,
)
from opscope.reports.content.content import (
    NOT_BETWEEN,
    NOT_KNOWN,
    all_threads_text,
    category_rows,
    closing_rows,
    closing_rows_of,
    headline,
    is_of_calls,
    missing,
    no_difference_text,
    no_split_sentence,
    off_text,
    operator_rows,
    side_latencies,
    speedup_text,
    threads_text,
    unit_of,
    variant_latencies,
    verdict_text,
)
from opscope.reports.content.switch import switch_messages
from opscope.reports.document.console import NameCell, Text, TextTable
from opscope.reports.document.messages import measure_again, quality_sentence, sentence
from opscope.reports.document.text import plain
from opscope.reports.sections.accuracy import accuracy_sentences
from opscope.reports.sections.methods import MethodRow, method_rows, tokens_text
from opscope.reports.sections.operator_kernels import kernel_section
from opscope.reports.sections.program import coverage_sentence, layer_text
from opscope.reports.sections.shift import closing_changes, matched_text, shift_section
from opscope.runtimes.registry import EXPORTER, runtime_of_format

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison, OperatorChange
    from opscope.analysis.findings.message import Message
    from opscope.analysis.findings.quality import Quality
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.preflight.contents import Count
    from opscope.bundle.manifest import Manifest, Variant
    from opscope.reports.content.content import ClosingRow, Headline
from opscope.reports.content.content import ReportContent

_TOP = 8
MOST_FINDINGS = 8
_LINE, _LONG = 200, 600
_BELOW = (0, 0, 0, 3)
"""Indent of what stands below the title of a finding."""


def summary(content: ReportContent) -> RenderableType:
    """What a person reads after `opscope profile`."""
    answer = headline(content)
    manifest = content.manifest
    cpu = manifest.environment.cpu or manifest.environment.machine or NOT_KNOWN
    threads = all_threads_text(manifest.variants) if _several_threads(manifest.variants) else None
    nothing: list[RenderableType] = []
    where = ", ".join(filter(None, (manifest.device, cpu, manifest.target.kind, threads)))
    parts: list[RenderableType] = [
        Text(" ".join(filter(None, (*_programs(manifest), "on", where))), style="dim"),
        _graded(answer),
        Text(answer.trust),
        *accuracy_lines(content.primary),
        *(Text(plain(sentence(told), _LONG)) for told in switch_messages(content)),
        *part("the tables of the summary", lambda: _kernels(content) or _times(content), nothing),
    ]
    parts += [Text(f"missing: {line}", style="yellow") for line in missing(content)]
    parts += [Text(plain(one.message, _LONG), style="yellow") for one in content.failed]
    return Group(*parts)


def _graded(answer: Headline) -> Text:
    """The answer, behind the grade of a measurement that must not be acted on."""
    return Text(f"{answer.grade}: {answer.text}", style="bold red") if answer.grade else Text(answer.text, style="bold")


def _times(content: ReportContent) -> list[RenderableType]:
    """How long everything takes, how far that can be trusted, and what to do."""
    return [
        *quality_text(content.quality),
        Text(),
        _variants(content),
        *_methods(method_rows(content)),
        *_split(content),
        *first_step(content.quality),
        *message_lines(map(message_of, content.advice), MOST_FINDINGS),
    ]


def _kernels(content: ReportContent) -> list[RenderableType]:
    """Which kernels ran on an emulated CPU, whose times say nothing; empty elsewhere, or where no kernel is known."""
    section = kernel_section(content) if content.manifest.target.emulated else None
    if section is None or not section.operators:
        return []
    heads = [head for name in section.variants for head in (name.partition(" (")[0], "calls")]
    table = plain_table("operator", "number", *heads, text={"operator", *heads[::2]})
    for row in section.operators:
        cells = [text for cell in row.cells for text in ((cell.kernel, cell.calls) if cell else ("-", ""))]
        table.add_row(NameCell(row.operator), str(row.number), *cells)
    told = [*section.not_accelerated, *section.uncounted, f"Timings come from an emulator: {ON_THE_DEVICE}."]
    return [Text(), table, *map(Text, told)]


def _programs(manifest: Manifest) -> Iterator[str | None]:
    """What ran, in words."""
    yield from (manifest.title(manifest.model), manifest.model.dtype)
    for own in manifest.other_models:
        yield from ("against", manifest.title(own), own.dtype)


def _split(content: ReportContent) -> list[RenderableType]:
    """Where the time goes, or why that is not known."""
    if content.shown is not None and not content.has_split:
        return [Text(no_split_sentence(content))]
    rows = [row.operator for row in operator_rows(content)]
    beside = _scaled(content.shown) if content.shown else []
    split = [*_split_of(content), _categories(content), *beside]
    return [*split, _operators(rows, closing_rows(content, copies=True))]


def _split_of(content: ReportContent) -> list[RenderableType]:
    """Which thread count the tables below are of, where there are several."""
    result = content.result(content.shown.variant or "") if content.shown else None
    if result is None or not _several_threads(content.manifest.variants):
        return []
    return [Text(), Text(f"with {threads_text(result.variant.threads)} ({plain(result.variant.name, _LINE)}):")]


def _several_threads(variants: Sequence[Variant]) -> bool:
    return len({variant.threads for variant in variants}) > 1


def analysis_summary(analysis: Analysis) -> RenderableType:
    """What a person reads after `opscope analyze`."""
    latency = analysis.latency
    interval = None if is_of_calls(analysis) else latency.ci95_median_ns
    between = f", 95 % interval {time_text(interval[0])} to {time_text(interval[1])}" if interval else ""
    trace = analysis.trace
    warm = f"{trace.inferences} inferences, {trace.warmup} of them warm-up, {len(trace.files)} process"
    spread = f"p90 {time_text(latency.p90_ns)}, min {time_text(latency.min_ns)}, max {time_text(latency.max_ns)}"
    return Group(
        Text(f"{plain(trace.path)} ({trace.format})", style="dim"),
        Text(f"{time_text(analysis.headline_ns)} per {unit_of(analysis)}", style="bold"),
        Text(f"median {time_text(latency.median_ns)}{between}; {spread}"),
        Text(f"{warm}{'es' if len(trace.files) != 1 else ''}"),
        *quality_text(analysis.quality),
        Text(),
        *_methods([MethodRow(row, row.latency, None) for row in analysis.methods]),
        *_analysed_split(analysis),
        *first_step(analysis.quality),
        *message_lines((message_of(found) for found in analysis.findings if not found.is_limit), MOST_FINDINGS),
        *message_lines(note(f"{found.title}: {found.evidence}") for found in analysis.findings if found.is_limit),
        *([Text(_how_known(analysis), style="dim")] if analysis.has_split else []),
        *message_lines(map(warning, trace.warnings)),
    )


def _analysed_split(analysis: Analysis) -> list[RenderableType]:
    """Categories and operators; nothing where there is no split, which a note says."""
    if not analysis.has_split:
        return []
    categories = plain_table("category", "ms", "share")
    for row in analysis.categories:
        categories.add_row(row.category.value, milliseconds_if_known(row.time_ns), share_text(row.share))
    for last in closing_rows_of(analysis, copies=False):
        categories.add_row(last.name, milliseconds_if_known(last.time_ns), share_text(last.share))
    rows = sorted(analysis.operators, key=lambda o: -o.shown_ns)
    return [categories, *_scaled(analysis), _operators(rows, closing_rows_of(analysis, copies=True))]


def _scaled(analysis: Analysis) -> list[RenderableType]:
    """What was done to the times of the trace, where anything was, between the two tables."""
    return [Text(analysis.traced_text, style="dim"), Text()] if analysis.traced_text else []


def _how_known(analysis: Analysis) -> str:
    if analysis.program is not None:
        return f"layers: {coverage_sentence(analysis)}"
    known = "layers: operators are known by name only"
    return f"{known}; {(runtime_of_format(analysis.trace.format) or EXPORTER).program_hint}"


def inspected_summary(value: Analysis | ProgramSummary | RecordSummary | KernelSummary) -> RenderableType:
    """What a person reads after `opscope analyze` of any file."""
    if isinstance(value, ProgramSummary):
        return _program_summary(value)
    if isinstance(value, RecordSummary):
        heading = (
            f"{len(value.methods)} methods, {value.handles} debug handles, {value.with_source} nodes name their line"
        )
        return Group(Text(f"{plain(value.path)} (etrecord)", style="dim"), Text(heading), _counts("node", value.nodes))
    if isinstance(value, KernelSummary):
        heading = f"{len(value.kernels)} kernels were registered; the log does not show which ran"
        return Group(Text(f"{plain(value.path)} (XNNPACK log)", style="dim"), Text(heading), *_kernel_parts(value))
    return analysis_summary(value)


def _program_summary(program: ProgramSummary) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{plain(program.path)} ({program.format or 'pte'})", style="dim")]
    for method in program.methods:
        given, got = (", ".join(f"{t.dtype} {t.shape}" for t in side) for side in (method.inputs, method.outputs))
        parts.append(Text(f"{plain(method.name)}({plain(given)}) -> {plain(got)}", style="bold"))
        # A .tflite holds no plan of its memory: the runtime makes one.
        planned = "" if program.format == "tflite" else f", {size_text(method.planned_bytes)} planned"
        parts.append(Text(f"{method.instructions} instructions, {len(method.delegates)} delegates{planned}"))
        parts.append(_counts("portable operator", method.portable))
        for number, delegate in enumerate(method.delegates):
            parts.append(_counts(f"delegate {number}: {plain(delegate.backend)}", delegate.nodes))
    return Group(*parts)


def _kernel_parts(kernels: KernelSummary) -> list[RenderableType]:
    names = [Text(plain(name)) for name in kernels.kernels]
    return [_counts("category", kernels.categories), *names]


def _counts(heading: str, rows: Sequence[Count]) -> TextTable:
    table = plain_table(heading, "count")
    for row in rows:
        table.add_row(NameCell(row.name), str(row.count))
    return table


def comparison_summary(comparison: Comparison) -> RenderableType:
    """What a person reads after `opscope compare`: both values, the ratio with its uncertainty, where it comes from."""
    result = comparison.end_to_end
    interval = f"[{ratio_text(result.ci95[0])}, {ratio_text(result.ci95[1])}]" if result.ci95 else "no interval"
    latencies = side_latencies(result)
    sides = (
        Text(f"baseline   {time_text(latencies[0]):>10}  {plain(comparison.baseline.label, _LINE)}"),
        Text(f"candidate  {time_text(latencies[1]):>10}  {plain(comparison.candidate.label, _LINE)}"),
    )
    verdict = (
        f"candidate {verdict_text(result.verdict)}" if result.verdict.value in _DECIDED else _undecided(comparison)
    )
    answer = Text(f"speedup {speedup_text(result)} {interval}: {verdict}", style="bold")
    split = _changed_operators(comparison) if comparison.has_split else [Text(_no_split(comparison))]
    return Group(
        *sides,
        answer,
        *accuracy_lines(comparison),
        *quality_text(comparison.quality),
        Text(),
        *split,
        *message_lines(map(note, comparison.notes)),
    )


def accuracy_lines(comparison: Comparison | None) -> list[RenderableType]:
    """How far the outputs of both sides differ, where that is a question."""
    found = comparison.accuracy if comparison else None
    return [Text(plain(line, _LONG)) for line in accuracy_sentences(found)] if found else []


def _no_split(comparison: Comparison) -> str:
    reason = comparison.no_split.message if comparison.no_split else "nothing was traced"
    return f"the difference is not split into operators: {reason}"


def _changed_operators(comparison: Comparison) -> list[RenderableType]:
    changed = sorted(comparison.operators, key=lambda change: -abs(change.saved_ns))
    section = shift_section(comparison)
    told = [Text(line) for line in section.sentences] if section else []
    return [_changes(changed, comparison), *told]


_DECIDED = {"faster", "slower"}


def _undecided(comparison: Comparison) -> str:
    result = comparison.end_to_end
    if result.reason:
        return result.reason
    if result.verdict.value == "undecidable" or result.minimum_detectable is None:
        single = result.baseline_processes == result.candidate_processes == 1
        return f"{verdict_text(result.verdict)}: {NOT_BETWEEN if single else 'too few processes'}"
    return f"{no_difference_text(result)}; cannot detect changes below {share_text(result.minimum_detectable)}"


def _variants(content: ReportContent) -> TextTable:
    table = plain_table("variant", "median ms", "p90", "mean", "processes", "features", text={"variant", "features"})
    for result in variant_latencies(content):
        latency = result.latency
        figures = (
            [milliseconds(value) for value in (latency.median_ns, latency.p90_ns, latency.mean_ns)]
            if latency
            else [result.arm, "", ""]
        )
        count = str(len(latency.processes)) if latency else "0"
        table.add_row(NameCell(result.variant.name), *figures, count, off_text(result.variant))
    return table


def _methods(rows: Sequence[MethodRow]) -> list[RenderableType]:
    """The methods one by one; nothing where one stands for all and no tokens are known."""
    if not rows:
        return []
    table = plain_table("method", "calls", "share", "median ms", "p90", "speedup", "tokens/s")
    for row in rows:
        figures = [milliseconds(value) for value in (row.latency.median_ns, row.latency.p90_ns)]
        speedup = speedup_text(row.verdict) if row.verdict else ""
        cells = str(row.method.calls), share_text(row.method.share), *figures, speedup, tokens_text(row.method)
        table.add_row(NameCell(row.method.method), *cells)
    return [table]


def _categories(content: ReportContent) -> TextTable:
    with_baseline = content.primary is not None
    judged = ["baseline ms", "ms", "share", "speedup", "verdict"]
    head = ["category", *(judged if with_baseline else ["ms", "share"])]
    table = plain_table(*head, text={"category", "verdict"}, whole={"verdict"})
    for row in category_rows(content):
        cells: list[RenderableType] = [
            NameCell(row.category.value),
            milliseconds_if_known(row.time_ns),
            share_text(row.share),
        ]
        if with_baseline:
            cells.insert(1, milliseconds_if_known(row.baseline_ns))
            cells += [ratio_text(row.speedup), _verdict(row.verdict)] if row.speedup else []
        table.add_row(*cells)
    for last in closing_rows(content, copies=False):
        before = [milliseconds(last.baseline_ns) if last.baseline_ns is not None else ""] if with_baseline else []
        table.add_row(NameCell(last.name), *before, milliseconds_if_known(last.time_ns), share_text(last.share))
    return table


def _verdict(verdict: Verdict | None) -> Text:
    """A verdict in the words of the report; empty where there is none."""
    return Text("") if verdict is None else Text(verdict_text(verdict), _VERDICT_STYLES.get(verdict, ""))


_VERDICT_STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "red"}


def _operators(rows: Sequence[Operator], closing: Sequence[ClosingRow]) -> TextTable:
    """The longest operators, the rest in one line, the framework's own time in another, and what leads to the sum."""
    work = [operator for operator in rows if operator.kind != "framework"]
    known = any(operator.aten or operator.module for operator in work)
    heads = ("layer", "operator") if known else ("operator", "category")
    table = plain_table(*heads, "backend", "ms", "share", text={*heads, "backend"})
    for operator in work[:_TOP]:
        own, figures = NameCell(operator.name), (milliseconds_if_known(operator.time_ns), share_text(operator.share))
        names = (NameCell(layer_text(operator)), own) if known else (own, Text(operator.category.value))
        table.add_row(*names, operator.backend, *figures)
    framework = [operator for operator in rows if operator.kind == "framework"]
    for name, rest in ((f"{len(work) - _TOP} more operators", work[_TOP:]), ("framework, no operator", framework)):
        if rest:
            time, share = sums(rest)
            table.add_row(name, "", "", milliseconds_if_known(time), share_text(share))
    for last in closing:
        table.add_row(last.name, "", "", milliseconds_if_known(last.time_ns), share_text(last.share))
    return table


def _changes(rows: Sequence[OperatorChange], comparison: Comparison) -> TextTable:
    heads = ("operator", "baseline ms", "ms", "saved ms", "verdict")
    table = plain_table(*heads, text={"operator", "verdict"}, whole={"verdict"})
    for change in rows[:_TOP]:
        sides = [milliseconds(side) if side is not None else "-" for side in (change.baseline_ns, change.candidate_ns)]
        name = change.module if change.module and change.aten else change.name  # added operators belong to no layer
        verdict = _verdict(change.verdict if change.is_judged else None)
        if matched := matched_text(change):
            verdict.append(f", {matched}" if verdict.plain else matched)
        table.add_row(NameCell(name), *sides, milliseconds(change.saved_ns), verdict)
    for last in closing_changes(comparison, rows[_TOP:]):
        table.add_row(last.name, *map(milliseconds, (last.baseline_ns, last.candidate_ns, last.saved_ns)), "")
    return table


def quality_text(quality: Quality | None) -> list[RenderableType]:
    """How far the measurement can be trusted; red when it cannot."""
    if quality is None:
        return []
    style = "bold red" if quality.grade is Grade.DO_NOT_TRUST else ""
    return [Text(quality_sentence(quality), style=style)]


def first_step(quality: Quality | None) -> list[RenderableType]:
    """Measuring again, where the figures cannot be trusted: it stands before all findings."""
    again = measure_again(quality)
    return [Text(again, style="bold red")] if again else []


def message_lines(messages: Iterable[Message], most: int | None = None) -> list[RenderableType]:
    """Messages on a terminal: findings numbered, in full, the others in a line each."""
    listed = list(messages)
    lines = [line for number, told in enumerate(listed[:most], 1) for line in _message(told, number)]
    rest = listed[most:] if most else []
    if rest:
        rules = ", ".join(dict.fromkeys(told.rule for told in rest))
        lines.append(Text(f"{counted_text(len(rest), 'more finding')}: {plain(rules, 200)}", style="dim"))
    return lines


def _message(told: Message, number: int) -> list[RenderableType]:
    if told.kind is not MessageKind.FINDING:
        mark = "note: " if told.kind is MessageKind.WARNING else ""
        return [Text(f"{mark}{plain(sentence(told), _LONG)}", style="dim")]
    basis = f", {plain(told.saving.basis, 120)}" if told.saving.basis else ""
    saving = f" (would save {time_text(told.saving.ns)}{basis})" if told.saving.ns else ""
    place = f" ({plain(told.place)})" if told.place else ""
    recipe = f" (recipe: {plain(told.recipe)})" if told.recipe else ""
    return [
        Text(f"{number}. {plain(told.title, _LONG)}{place}{saving}", "bold" if told.severity is Severity.HIGH else ""),
        Padding(Text(plain(told.evidence, _LONG), style="dim"), _BELOW),
        Padding(Text(f"next: {plain(told.next_step, _LONG)}{recipe}"), _BELOW),
    ]


def plain_table(*columns: str, text: Collection[str] = (), whole: Collection[str] = ()) -> TextTable:
    """A table without lines; columns of figures stand to the right and never wrap."""
    left = text or {columns[0]}
    table = TextTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        fixed = column not in left or column in whole
        table.add_column(column, justify="left" if column in left else "right", no_wrap=fixed)
    return table
