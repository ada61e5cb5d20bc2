"""Summary after ``opscope analyze`` of any file: a trace, a program, a record of an export, or a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from opscope.analysis.analysis import IMPOSSIBLE_TIMES, LOST_ROWS, UNKNOWN_TICKS, Analysis
from opscope.analysis.findings.message import PART_FAILED, advice_of, warning
from opscope.analysis.preflight.contents import KernelSummary, ProgramSummary, RecordSummary
from opscope.core.units import counted_text, size_text, time_text
from opscope.reports.content.content import headline_text, is_of_calls
from opscope.reports.document.blocks import (
    NOTEBOOK_ROWS,
    Bullets,
    Document,
    Format,
    Messages,
    Sentence,
    Tone,
    column,
    rest_sentence,
    table,
    words_table,
)
from opscope.reports.document.messages import LATENCY
from opscope.reports.report import quality_line
from opscope.reports.sections.first import analysed_split, first_step
from opscope.reports.sections.latency import methods_table, tokens_text
from opscope.reports.sections.program import coverage_sentence, delegate_values_table
from opscope.runtimes.registry import EXPORTER, runtime_of_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.analysis.latency.methods import MethodTime
    from opscope.analysis.preflight.contents import Count, DelegateSummary, MethodSummary
    from opscope.core.table import EventTable
    from opscope.reports.document.blocks import Block, TableBlock


_NOTES = 1
_FEW = 2
_NAMED_CONSTANTS = 6


Inspected: TypeAlias = Analysis | ProgramSummary | RecordSummary | KernelSummary
"""Answers of :func:`opscope.workflows.analyze.analyses.inspect`."""


def inspected_document(value: Inspected) -> Document:
    """Return what was found in a file."""
    if isinstance(value, ProgramSummary):
        running = [method for method in value.methods if method.instructions]
        constants = [method.name for method in value.methods if not method.instructions]
        blocks = [block for method in _method_blocks(value, running) for block in method]
        blocks.append(Sentence(_constants_line(constants)))
        return Document(
            value.path,
            counted_text(len(running), "method")
            + (f", {counted_text(len(constants), 'constant')}" if constants else ""),
            blocks,
            [],
            f"{value.path} ({value.format or 'pte'})",
        )
    if isinstance(value, RecordSummary):
        answer = (
            f"{counted_text(len(value.methods), 'method')}, {counted_text(value.handles, 'debug handle')}, "
            f"{counted_text(value.with_source, 'node')} with a source line"
        )
        return Document(value.path, answer, [_counts_table("node", value.nodes)], [], f"{value.path} (etrecord)")
    if isinstance(value, KernelSummary):
        answer = f"{counted_text(len(value.kernels), 'registered kernel')}; the log does not show which ran"
        blocks = [_counts_table("category", value.categories), Bullets(value.kernels)]
        return Document(value.path, answer, blocks, [], f"{value.path} (XNNPACK log)")
    return analysis_document(value)


_LOSSES = {LOST_ROWS, "truncated"}
_CLOCK_DOUBTS = {IMPOSSIBLE_TIMES, UNKNOWN_TICKS}


def analysis_document(analysis: Analysis) -> Document:
    """Return latency, categories and operators of a trace by itself."""
    latency, trace = analysis.latency, analysis.trace
    interval = None if is_of_calls(analysis) else latency.ci95_median_ns
    between = f"95 % interval of the median {time_text(interval[0])} to {time_text(interval[1])}; " if interval else ""
    processes = "process" if len(trace.files) == 1 else "processes"
    losses = [message for message in trace.warnings if message.code in _LOSSES]
    clock_doubts = [message for message in trace.warnings if message.code in _CLOCK_DOUBTS]
    other_warnings = (message for message in trace.warnings if message not in [*losses, *clock_doubts])
    notes = sorted(other_warnings, key=lambda message: message.code != PART_FAILED)  # what is not known comes first
    phases = [row for row in analysis.methods if row.tokens_per_second]
    has_only_rates = not analysis.has_split and bool(phases)
    note_count = len(notes) if has_only_rates else _NOTES
    more = len(notes) - note_count
    trust = [
        *(Sentence(message.hint, Tone.BAD) for message in losses),
        *(Sentence(f"{message.message}; {message.hint}", Tone.BAD) for message in clock_doubts),
        *([] if has_only_rates or is_of_calls(analysis) else [Sentence(f"{between}p90 {time_text(latency.p90_ns)}")]),
        Sentence(
            f"{counted_text(trace.inferences, 'inference')}, {trace.warmup} warm-up, {len(trace.files)} {processes}"
        ),
        Sentence(*quality_line(analysis.quality, [(LATENCY, analysis.quality)])),
    ]
    blocks: list[Block] = [
        methods_table(analysis.methods),
        *(analysed_split(analysis) if analysis.has_split else []),
        *([delegate_values_table(analysis.delegate_values)] if analysis.delegate_values else []),
        *first_step(analysis.quality),
        Messages(advice_of(analysis.findings), brief=True),
        Sentence(_attribution_text(analysis) if analysis.has_split else "", Tone.DIM),
        Messages([warning(trace_warning) for trace_warning in notes[:note_count]], brief=True),
        Sentence(f"{counted_text(more, 'more note')} in the JSON" if more > 0 else "", Tone.DIM),
    ]
    answer = _rates_text(phases) if has_only_rates else headline_text(analysis)
    if losses:
        answer = f"Lost input: {'; '.join(message.message for message in losses)}. Of what is left: {answer}"
    return Document(trace.path, answer, blocks, [], f"{trace.path} ({trace.format})", trust=trust)


def events_document(table: EventTable, path: str) -> Document:
    """Return how much traces hold, and their first inferences."""
    inferences = table.inference_times()
    counts = ((table.events, "event"), (len(inferences.duration), "inference"), (table.processes, "trace file"))
    columns = (inferences.process, inferences.inference, inferences.warmup, inferences.duration)
    rows = [
        [str(file), str(inference), "warm-up" if is_warmup else "measured", f"{duration:,}"]
        for file, inference, is_warmup, duration in zip(
            *(values[:NOTEBOOK_ROWS].tolist() for values in columns), strict=True
        )
    ]
    inference_table = words_table(("file", "inference", "counts as", f"duration {table.clock.value}"), rows, texts=3)
    answer = ", ".join(counted_text(count, noun) for count, noun in counts)
    return Document(
        path,
        answer,
        [
            inference_table,
            rest_sentence(len(rows), len(inferences.duration)),
            Messages([warning(trace_warning) for trace_warning in table.warnings]),
        ],
        [],
    )


def _rates_text(phases: Sequence[MethodTime]) -> str:
    """Return the tokens per second of one or two phases, or how many phases there are: the table has their rates."""
    if len(phases) > _FEW:
        return counted_text(len(phases), "phase")
    return ", ".join(f"{tokens_text(row)} tokens per second in {row.method}" for row in phases)


def _attribution_text(analysis: Analysis) -> str:
    if analysis.program is not None:
        return f"layers: {coverage_sentence(analysis).partition(': ')[0]}"
    known = "layers: operators are known by name only"
    return f"{known}; {(runtime_of_format(analysis.trace.format) or EXPORTER).program_hint}"


def _constants_line(names: Sequence[str]) -> str:
    """Return a sentence about methods that have no instructions and return values of the export; empty without any."""
    if not names:
        return ""
    more = len(names) - _NAMED_CONSTANTS
    rest = f" and {more} more" if more > 0 else ""
    return f"constants, methods without an instruction: {', '.join(names[:_NAMED_CONSTANTS])}{rest}"


def _method_blocks(program: ProgramSummary, methods: Sequence[MethodSummary]) -> Iterator[list[Block]]:
    for method in methods:
        inputs, outputs = (
            ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in side) for side in (method.inputs, method.outputs)
        )
        # A .tflite holds no plan of its memory: the runtime makes one.
        planned = "" if program.format == "tflite" else f", {size_text(method.planned_bytes)} planned"
        yield [
            Sentence(f"{method.name}({inputs}) -> {outputs}", Tone.STRONG),
            Sentence(
                f"{counted_text(method.instructions, 'instruction')}, "
                f"{counted_text(len(method.delegates), 'delegate')}{planned}"
            ),
            _counts_table("portable operator", method.portable),
            *(_delegate_block(number, delegate) for number, delegate in enumerate(method.delegates)),
        ]


def _delegate_block(number: int, delegate: DelegateSummary) -> Block:
    title = f"delegate {number}: {delegate.backend}"
    return _counts_table(title, delegate.nodes) if delegate.nodes else Sentence(f"{title}, nodes unknown")


def _counts_table(heading: str, rows: Sequence[Count]) -> TableBlock:
    return table(
        rows,
        column(heading, Format.NAME, lambda row: row.name),
        column("count", Format.COUNT, lambda row: row.count),
    )
