"""Kernels by source, and the evidence ladders, as a document."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from opscope.analysis.findings.message import note
from opscope.analysis.kernels.ladder import Answer, EvidenceLevel, evidence_level_counts
from opscope.core.units import counted_text
from opscope.reports.document.blocks import (
    Block,
    Bullets,
    Closing,
    Document,
    Format,
    Messages,
    Section,
    Sentence,
    column,
    table,
)
from opscope.reports.document.text import plain
from opscope.reports.sections.operator_kernels import KIND_TEXTS, source_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.analysis.kernels.kernel_sources import KernelColumn
    from opscope.analysis.kernels.kernels import KernelPair, KernelView
    from opscope.analysis.kernels.ladder import LevelAnswer, OperatorLadder, VariantLadder
    from opscope.reports.document.blocks import TableBlock

_ANSWERS = {Answer.YES: "yes", Answer.NO: "no", Answer.UNKNOWN: "?"}
_OPERATORS = 20
_NOTHING = "none of them has such a kernel"


def kernel_document(view: KernelView) -> Document:
    """Return which kernels each source names, and what is known of each operator."""
    kernels = [kernel_table(view)] if view.kernels else [Sentence(_NOTHING)] if view.columns else []
    blocks: list[Block] = [
        Bullets([_column_line(number, source) for number, source in enumerate(view.columns, 1)]),
        *kernels,
    ]
    blocks.append(Bullets([_pair_line(view, pair) for pair in view.pairs]))
    blocks += [Section(_ladder_heading(ladder), _ladder_blocks(ladder)) for ladder in view.ladders]
    return Document(
        title="Kernels",
        answer=kernels_answer(view),
        blocks=[*blocks, Messages(list(map(note, view.notes)))],
        sections=list(_write_sections(view)),
    )


def kernels_answer(view: KernelView) -> str:
    """Return how many kernels are known, and from how many sources."""
    return f"{counted_text(len(view.kernels), 'kernel')} in {counted_text(len(view.columns), 'source')}"


def _column_line(number: int, column: KernelColumn) -> str:
    parts = [
        plain(column.variant),
        column.role if column.role != column.variant else None,
        _threads_text(column.threads),
    ]
    source = ", ".join(part for part in parts if part)
    note = f"; {column.note}" if column.note else ""
    kernels = counted_text(column.kernels, "kernel")
    return f"[{number}] {source}: {kernels}, {KIND_TEXTS[column.kind]} ({plain(column.path)}){note}"


def _threads_text(count: int | None) -> str | None:
    return None if count is None else counted_text(count, "thread")


def kernel_table(view: KernelView) -> TableBlock:
    """Return what each source says of each kernel."""
    return table(
        view.kernels,
        column("kernel", Format.NAME, lambda line: line.name),
        column("operator", Format.NAME, lambda line: line.operator, wide=True),
        column("types", Format.NAME, lambda line: line.types, wide=True),
        column("tile", Format.NAME, lambda line: line.tile, wide=True),
        column("ISA", Format.TEXT, lambda line: line.isa.value),
        *source_columns(len(view.columns)),
    )


def _pair_line(view: KernelView, pair: KernelPair) -> str:
    first, second = pair.left + 1, pair.right + 1
    threads = _threads_text(view.columns[pair.left].threads)
    threads_suffix = f" at {threads}" if threads else ""
    return (
        f"[{first}] and [{second}]{threads_suffix}: {len(pair.only_left)} only in [{first}], "
        f"{len(pair.only_right)} only in [{second}], {len(pair.both)} in both"
    )


def _ladder_heading(ladder: VariantLadder) -> str:
    threads = _threads_text(ladder.threads)
    threads_suffix = f", {threads}" if threads else ""
    products = f"{len(ladder.operators)} convolutions and products in delegates"
    return f"{plain(ladder.variant)}{threads_suffix}: {ladder.about}, {products}"


def _ladder_blocks(ladder: VariantLadder) -> list[Block]:
    """Return the levels with an answer as tables, and the others with their reasons in one line."""
    answered = [
        number
        for number in range(len(EvidenceLevel))
        if any(operator.steps[number].answer is not Answer.UNKNOWN for operator in ladder.operators)
    ]
    unknown = Sentence(
        _unknown_text(ladder, [number for number in range(len(EvidenceLevel)) if number not in answered])
    )
    return [_levels_table(ladder), _operators_table(ladder, answered), unknown] if answered else [unknown]


def _unknown_text(ladder: VariantLadder, numbers: Sequence[int]) -> str:
    """Return what the platform cannot tell, each reason once with its questions. Empty if it tells everything."""
    by_reason: dict[str, list[str]] = {}
    for number in numbers:
        details = Counter(operator.steps[number].detail.partition(":")[0] for operator in ladder.operators)
        for reason, _ in details.most_common(1):
            by_reason.setdefault(reason, []).append(tuple(EvidenceLevel)[number].value)
    reasons = "; ".join(f"{' and '.join(questions)} ({reason})" for reason, questions in by_reason.items())
    return f"Not known here: {reasons}." if reasons else ""


_SHARE = "share of latency answered yes"


def _levels_table(ladder: VariantLadder) -> TableBlock:
    """Return the answers by level; without shares of latency on an emulated CPU, whose times mean nothing."""
    return table(
        evidence_level_counts(ladder),
        column("question", Format.TEXT, lambda row: row.rung.value),
        column("yes", Format.COUNT, lambda row: row.yes),
        column("no", Format.COUNT, lambda row: row.no),
        column(Answer.UNKNOWN.value, Format.COUNT, lambda row: row.unknown),
        None if ladder.emulated else column(_SHARE, Format.FIGURE, lambda row: row.share),
    )


def _operators_table(ladder: VariantLadder, numbers: Sequence[int]) -> TableBlock:
    """Return the answers by operator, of the levels with these numbers."""
    omitted = len(ladder.operators) - _OPERATORS
    return table(
        ladder.operators[:_OPERATORS],
        column("operator", Format.NAME, lambda operator: operator.module or operator.name),
        None if ladder.emulated else column("share", Format.SHARE, lambda operator: operator.share),
        *(
            column(tuple(EvidenceLevel)[number].value, Format.FIGURE, partial(_answer_at_level, number))
            for number in numbers
        ),
        closing=[Closing(f"and {omitted} more, see --md or --json", {})] if omitted > 0 else [],
    )


def _answer_at_level(number: int, ladder: OperatorLadder) -> str:
    return _answer_text(ladder.steps[number])


def _answer_text(step: LevelAnswer) -> str:
    return step.isa.value if step.isa and step.answer is Answer.YES else _ANSWERS[step.answer]


def _write_sections(view: KernelView) -> Iterator[Section]:
    """Yield what a terminal has no room for: names by source, and the source or reason of every answer."""
    for pair in view.pairs:
        sides = ((pair.left, pair.only_left), (pair.right, pair.only_right))
        lists = [f"only in {view.columns[number].variant}: {', '.join(names)}" for number, names in sides if names]
        if lists:
            yield Section(_pair_line(view, pair), [Bullets(lists)])
    for ladder in view.ladders:
        problem = f"Calls are not attributed to operators: {ladder.problem}." if ladder.problem else ""
        steps = [
            (operator_ladder, step, number == 0)
            for operator_ladder in ladder.operators
            for number, step in enumerate(operator_ladder.steps)
        ]
        yield Section(
            f"Answers of {_ladder_heading(ladder)}",
            [Sentence(problem), _answers_table(steps, emulated=ladder.emulated)],
        )


_AnswerRow: TypeAlias = "tuple[OperatorLadder, LevelAnswer, bool]"


def _answers_table(steps: Sequence[_AnswerRow], *, emulated: bool) -> TableBlock:
    return table(
        steps,
        column("operator", Format.NAME, lambda row: row[0].name if row[2] else ""),
        column("layer", Format.NAME, lambda row: row[0].module if row[2] else ""),
        None if emulated else column("share", Format.SHARE, lambda row: row[0].share if row[2] else None),
        column("question", Format.TEXT, lambda row: row[1].rung.value),
        column("answer", Format.TEXT, lambda row: row[1].answer.value),
        column("because", Format.TEXT, lambda row: row[1].detail),
        column("source", Format.TEXT, lambda row: row[1].source),
    )
