"""Convolutions and products by the kernels that ran them, with the variants of one number of threads side by side."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.kernels.kernel_sources import EvidenceKind, KernelState
from opscope.analysis.kernels.ladder import Answer, EvidenceLevel, evidence_level_counts
from opscope.analysis.operators.operators import PORTABLE_BACKEND
from opscope.core.grouping import grouped
from opscope.core.parts import part
from opscope.core.table.places import OperatorKey
from opscope.core.units import counted_text
from opscope.program.kernels.symbols import isa_text
from opscope.reports.content.content import kernel_answers, ladders_beside, switched_off, top_operators
from opscope.reports.content.kernel_use import calls_text, kernel_use, names_of, variant_text, without_sme
from opscope.reports.document.blocks import (
    Beside,
    Bullets,
    Format,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    table,
)
from opscope.reports.document.text import plain
from opscope.reports.sections.kernel_view import groups_blocks, kernel_sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.kernels.kernel_sources import KernelColumn
    from opscope.analysis.kernels.kernels import KernelCell, KernelLine
    from opscope.analysis.kernels.ladder import OperatorLadder, VariantLadder
    from opscope.reports.content.content import ReportContent
    from opscope.reports.content.kernel_use import UsedKernel
    from opscope.reports.document.blocks import Block, TableBlock, TableColumn

_NAMES = 6
_LONG = 80
_KERNELS = 40
KIND_TEXTS = {
    EvidenceKind.COUNTED: "calls counted",
    EvidenceKind.NAMED: "named by the runtime",
    EvidenceKind.REGISTERED: "registered, not necessarily run",
}
_COUNT = "count them: opscope kernels BUNDLE --count"
_COUNTED = ".pte"
"""Suffix of the programs whose runtime lets calls be counted; the libraries of others hide their functions."""
_BY_NAME = "Kernels are known only from operator names: calls cannot be counted in this runtime's library."


class OperatorKernels(NamedTuple):
    """Operators of one kind, whose kernels are the same: what they are, how many, and one cell for each variant."""

    operator: str
    layers: str
    number: int
    cells: list[UsedKernel | None]  # the calls are those of all of them


class KernelSection(NamedTuple):
    """What a report shows of kernels before any time."""

    variants: list[str]  # whose columns stand side by side, with what is off in them
    answers: list[str]  # what the columns come to, one sentence for each variant
    not_accelerated: list[str]  # what ran without SME, sentences
    uncounted: list[str]  # that nothing was counted where it can be, and how; empty where it was
    operators: list[OperatorKernels]  # of these variants; empty where nothing tells any kernel
    levels: list[tuple[str, list[tuple[int, int, int]]]]  # questions with yes, no and not known of every variant
    sources: list[str]  # of the kernels' names, what each is of and how it knows
    kernels: list[KernelLine]  # that any source names, the strongest instruction set first; only so many
    further: int  # how many more there are
    legend: str  # what stands in the columns of these
    problems: list[str]  # what could not be shown

    @property
    def sentences(self) -> list[str]:
        """What the tables come to."""
        return [*self.answers, *self.uncounted, *self.not_accelerated]


def kernel_section(content: ReportContent) -> KernelSection | None:
    """The kernels of the shown variant and of those it is compared with; None where nothing is known of any."""
    view = content.kernels
    if view is None:
        return None
    ladders = ladders_beside(content)
    known = any(use.level for ladder in ladders for use in map(kernel_use, ladder.operators))
    return KernelSection(
        variants=[variant_text(ladder.variant, switched_off(content, ladder)) for ladder in ladders],
        answers=[f"{line}." for line in kernel_answers(content, ladders)],
        not_accelerated=_not_accelerated(content, ladders),
        uncounted=_uncounted(content, ladders),
        operators=_operators(ladders) if known else [],
        levels=_levels(ladders) if known else [],
        sources=[_source(column) for column in view.columns],
        kernels=view.kernels[:_KERNELS],
        further=max(0, len(view.kernels) - _KERNELS),
        legend=_legend(view.columns),
        problems=view.notes,
    )


def _uncounted(content: ReportContent, ladders: Sequence[VariantLadder]) -> list[str]:
    """That nothing was counted where it can be."""
    columns = content.kernels.columns if content.kernels else []
    counted = {column.variant for column in columns if column.kind is EvidenceKind.COUNTED}
    arm = content.manifest.environment.machine in {"aarch64", "arm64"}
    silent = [ladder.variant for ladder in ladders if ladder.operators and ladder.variant not in counted]
    if not arm or not silent:
        return []
    counts = any(Path(content.manifest.model_of(variant).program).suffix == _COUNTED for variant in silent)
    return [f"No calls were counted, so no kernel is known to have run; {_COUNT}." if counts else _BY_NAME]


def _not_accelerated(content: ReportContent, ladders: Sequence[VariantLadder]) -> list[str]:
    """What ran without SME where SME was on, and what no delegate ran."""
    lines = []
    if ladders and any(kernel_use(ladder).accelerated is Answer.YES for ladder in ladders[0].operators):
        lines.append(f"Without SME although it was on: {_listed(without_sme(ladders[0]))}.")
    portable = [row.operator for row in top_operators(content) if row.operator.backend == PORTABLE_BACKEND]
    if portable:
        names = list(dict.fromkeys(row.name.removeprefix("native_call_") for row in portable))
        text = counted_text(len(portable), "operator")
        lines.append(f"Not delegated, run by portable kernels: {text} ({_listed(names)}).")
    return lines


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(plain(name, _LONG) for name in names[:_NAMES]) or "none"
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown


def _operators(ladders: Sequence[VariantLadder]) -> list[OperatorKernels]:
    """Operators whose kernels are the same in every variant are one row; most calls first."""
    places = list(dict.fromkeys(_place(own) for ladder in ladders for own in ladder.operators))
    by_place = [{_place(own): own for own in ladder.operators} for ladder in ladders]
    rows = [[own.get(place) for own in by_place] for place in places]
    return [_row(group) for group in grouped(rows, _sort).values()]


def _place(ladder: OperatorLadder) -> OperatorKey:
    return OperatorKey(ladder.method, ladder.instruction, ladder.position)


def _sort(row: Sequence[OperatorLadder | None]) -> tuple[object, ...]:
    """What operators of one row have in common: name without types and number, and kernels and evidence."""
    uses = [kernel_use(ladder) if ladder else None for ladder in row]
    known = [(use.kernel, tuple(name for name, _ in use.calls), use.evidence) if use else None for use in uses]
    return (_operator(row), *known)


def _operator(row: Iterable[OperatorLadder | None]) -> str:
    """The backend's word for it, without layout, types and number, which may differ between variants."""
    name = next(ladder.name for ladder in row if ladder)
    front, _, rest = name.partition(" (")
    algorithm = rest.partition(")")[2].partition(" #")[0].strip()
    return " ".join(filter(None, (front.partition(" #")[0], algorithm)))


def _row(rows: Sequence[Sequence[OperatorLadder | None]]) -> OperatorKernels:
    layers = [next(ladder.module or "" for ladder in row if ladder) for row in rows]
    columns = [[ladder for ladder in column if ladder] for column in zip(*rows, strict=True)]
    cells = [_together([kernel_use(ladder) for ladder in column]) if column else None for column in columns]
    named = [name for name in layers if name]
    return OperatorKernels(_operator(rows[0]), _listed(named) if named else "", len(rows), cells)


def _together(uses: Sequence[UsedKernel]) -> UsedKernel:
    """Uses of the same kernel as one, with the calls of all of them."""
    return uses[0]._replace(calls=tuple(names_of(uses).items()))


def _levels(ladders: Sequence[VariantLadder]) -> list[tuple[str, list[tuple[int, int, int]]]]:
    """Answers by question; the one that times would answer is left out where these mean nothing."""
    counts = [evidence_level_counts(ladder) for ladder in ladders]
    return [
        (rows[0].rung.value, [(row.yes, row.no, row.unknown) for row in rows])
        for rows in zip(*counts, strict=True)
        if rows[0].rung is not EvidenceLevel.FASTER or not ladders[0].emulated
    ]


def _legend(columns: Sequence[KernelColumn]) -> str:
    kinds = {column.kind for column in columns}
    lines = {
        EvidenceKind.COUNTED: "numbers are calls in the whole process, including kernels that only pack data; 0 means "
        "counted but never called",
        EvidenceKind.NAMED: "numbers are operators of one inference that the runtime says a kernel ran",
        EvidenceKind.REGISTERED: "present and absent show registration when the library was loaded, not what ran",
    }
    told = "; ".join(text for kind, text in lines.items() if kind in kinds)
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def _source(column: KernelColumn) -> str:
    role = f", {column.role}" if column.role and column.role != column.variant else ""
    threads = f", {counted_text(column.threads, 'thread')}" if column.threads is not None else ""
    note = f"; {column.note}" if column.note else ""
    return f"{column.variant}{role}{threads}: {KIND_TEXTS[column.kind]}, {column.path}{note}"


def cell_text(cell: KernelCell) -> str:
    """A cell of a table of kernels: the amount where there is one, else what is known."""
    if cell.state is KernelState.UNKNOWN:
        return "?"
    known = cell.state is KernelState.COUNTED and cell.amount is not None
    return f"{cell.amount:,}" if known else str(cell.state.value)


_HOW_KNOWN = (
    "Calls are per inference and count compute kernels only. Evidence is the strongest available: executed "
    "(counted or named), selected (the library's choice, by the operator's name), eligible (possible by type "
    "and shape)."
)


def by_operator_table(section: KernelSection) -> TableBlock:
    """Convolutions and products by the kernels that ran them, variants side by side."""
    columns = [
        each
        for number, name in enumerate(section.variants)
        for each in (
            column(name, Format.NAME, partial(_kernel_cell, number)),
            column("calls", Format.FIGURE, partial(_calls_cell, number)),
            column("evidence", Format.TEXT, partial(_evidence_cell, number), wide=True),
        )
    ]
    return table(
        section.operators,
        column("operator", Format.NAME, lambda row: TableCell(row.operator, row.layers)),
        column("operators", Format.COUNT, lambda row: row.number),
        *columns,
    )


def _calls_cell(number: int, row: OperatorKernels) -> str:
    cell = row.cells[number]
    if cell is None:
        return ""
    none = cell.level is EvidenceLevel.EXECUTED and cell.accelerated is Answer.NO
    return calls_text(sum(count for _, count in cell.calls)) if cell.calls else "SME: 0" if none else ""


def _evidence_cell(number: int, row: OperatorKernels) -> str:
    cell = row.cells[number]
    return cell.evidence if cell else ""


def _kernel_cell(number: int, row: OperatorKernels) -> TableCell:
    cell = row.cells[number]
    if cell is None:
        return TableCell("no such operator", tone=Tone.DIM)
    strong = cell.accelerated is Answer.YES
    return TableCell(cell.kernel, ", ".join(name for name, _ in cell.calls), tone=Tone.STRONG if strong else Tone.PLAIN)


def by_name_blocks(section: KernelSection) -> list[Block]:
    """Kernels by name, with what each source tells of them."""
    rows = table(
        section.kernels,
        column("kernel", Format.NAME, lambda row: row.name),
        column("instruction set", Format.TEXT, lambda row: isa_text(row.isa)),
        *source_columns(len(section.sources)),
    )
    more = [f"{section.further} more: opscope kernels PATH."] if section.further else []
    sources = [f"[{number}] {source}." for number, source in enumerate(section.sources, 1)]
    texts = [*more, *sources, section.legend, *(f"Not shown: {line}." for line in section.problems)]
    return [rows, *(Sentence(line, Tone.DIM) for line in texts if line)]


def source_columns(count: int) -> list[TableColumn]:
    """What each source tells of a kernel: a number, ``present``, ``absent``, or ``?``."""
    return [column(f"[{number + 1}]", Format.FIGURE, partial(_source_cell, number)) for number in range(count)]


def _source_cell(number: int, line: KernelLine) -> str:
    return cell_text(line.cells[number])


def _counts_of(number: int, row: tuple[str, list[tuple[int, int, int]]]) -> str:
    return " / ".join(map(str, row[1][number]))


def levels_table(section: KernelSection) -> TableBlock:
    """How far the evidence goes: answers by question."""
    return table(
        section.levels,
        column("SME: yes / no / not known", Format.TEXT, lambda row: row[0]),
        *(column(name, Format.FIGURE, partial(_counts_of, number)) for number, name in enumerate(section.variants)),
    )


def kernels_first(section: KernelSection, on_the_device: str) -> list[Block]:
    """The first screen of a run on an emulated CPU: which kernels ran, and no time."""
    unaccelerated = section.not_accelerated or ["Nothing known."]
    steps = [*section.uncounted, f"Timings come from an emulator: {on_the_device}."]
    return [
        Section("Convolutions and products by kernel", [by_operator_table(section)]),
        Beside(
            [
                Section("What was not accelerated", [Bullets(unaccelerated)]),
                Section("Recommendations", [Bullets(steps)]),
            ],
            [Section("How far the evidence goes", [levels_table(section)])],
        ),
    ]


def kernels_section(content: ReportContent, section: KernelSection | None, *, first: bool) -> Section:
    """What is known of the kernels; ``first``: whether the first screen has shown those of the operators."""
    blocks: list[Block] = [Bullets(part("sentences on kernels", lambda: kernel_sentences(content), list[str]()))]
    if section is not None:
        if section.operators and not first:
            told: list[Block] = [Bullets(section.sentences), by_operator_table(section), Sentence(_HOW_KNOWN, Tone.DIM)]
            blocks.append(Section("Convolutions and products by kernel", [*told, levels_table(section)]))
        if section.kernels or section.problems:
            blocks.append(Section("Kernels by name", by_name_blocks(section)))
    blocks.append(Section("All operators by kernel", groups_blocks(content)))
    ladders = content.kernels.ladders if content.kernels else []
    answer = f"of {counted_text(len(ladders), 'variant')}, with how each is known" if ladders else _BY_ALGORITHM
    return Section("Kernel Insights", blocks, "kernels", "Kernels", answer, folded=True)


_BY_ALGORITHM = "by algorithm and number types"
