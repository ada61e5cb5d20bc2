"""Convolutions and products by the kernels that ran them, with variants of one thread count side by side."""

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
from opscope.reports.content.kernel_use import calls_by_kernel, calls_text, kernel_use, layers_without_sme, variant_text
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
"""Suffix of programs whose runtime lets calls be counted; other runtimes' libraries hide their functions."""
_BY_NAME = "Kernels are known only from operator names: calls cannot be counted in this runtime's library."


class OperatorKernels(NamedTuple):
    """Operators that share their kernels in every variant: name, layers, number, and a cell per variant."""

    operator: str
    layers: str
    number: int
    cells: list[UsedKernel | None]  # a cell per variant, its calls summed over these operators


class KernelSection(NamedTuple):
    """Content of a report on kernels, before any time."""

    variants: list[str]  # names with what is off, one column each
    answers: list[str]  # one sentence for each variant
    not_accelerated: list[str]  # sentences on what ran without SME
    uncounted: list[str]  # how to count calls; empty if they were counted
    operators: list[OperatorKernels]  # operators of these variants; empty if no kernel is known
    levels: list[tuple[str, list[tuple[int, int, int]]]]  # level, and yes, no, unknown of each variant
    sources: list[str]  # sources of kernel names, in words
    kernels: list[KernelLine]  # the first ones, strongest instruction set first
    further: int  # number of kernels left out
    legend: str  # meaning of the columns of kernels
    problems: list[str]  # what could not be shown

    @property
    def sentences(self) -> list[str]:
        """Sentences that sum up the tables."""
        return [*self.answers, *self.uncounted, *self.not_accelerated]


def kernel_section(content: ReportContent) -> KernelSection | None:
    """Return the kernels of the shown variant and of variants with its thread count; None if nobody looked."""
    view = content.kernels
    if view is None:
        return None
    ladders = ladders_beside(content)
    known = any(use.level for ladder in ladders for use in map(kernel_use, ladder.operators))
    return KernelSection(
        variants=[variant_text(ladder.variant, switched_off(content, ladder)) for ladder in ladders],
        answers=[f"{line}." for line in kernel_answers(content, ladders)],
        not_accelerated=_unaccelerated_sentences(content, ladders),
        uncounted=_counting_advice(content, ladders),
        operators=_operator_kernel_rows(ladders) if known else [],
        levels=_level_rows(ladders) if known else [],
        sources=[_source_text(column) for column in view.columns],
        kernels=view.kernels[:_KERNELS],
        further=max(0, len(view.kernels) - _KERNELS),
        legend=_legend_text(view.columns),
        problems=view.notes,
    )


def _counting_advice(content: ReportContent, ladders: Sequence[VariantLadder]) -> list[str]:
    """Return the advice to count calls if this machine could have and did not; else empty."""
    columns = content.kernels.columns if content.kernels else []
    counted = {column.variant for column in columns if column.kind is EvidenceKind.COUNTED}
    arm = content.manifest.environment.machine in {"aarch64", "arm64"}
    silent = [ladder.variant for ladder in ladders if ladder.operators and ladder.variant not in counted]
    if not arm or not silent:
        return []
    counts = any(Path(content.manifest.model_of(variant).program).suffix == _COUNTED for variant in silent)
    return [f"No calls were counted, so no kernel is known to have run; {_COUNT}." if counts else _BY_NAME]


def _unaccelerated_sentences(content: ReportContent, ladders: Sequence[VariantLadder]) -> list[str]:
    """Return what ran without SME although SME was on, and what no delegate ran."""
    lines = []
    if ladders and any(kernel_use(ladder).accelerated is Answer.YES for ladder in ladders[0].operators):
        lines.append(f"Without SME although it was on: {_list_names(layers_without_sme(ladders[0]))}.")
    portable = [row.operator for row in top_operators(content) if row.operator.backend == PORTABLE_BACKEND]
    if portable:
        names = list(dict.fromkeys(row.name.removeprefix("native_call_") for row in portable))
        text = counted_text(len(portable), "operator")
        lines.append(f"Not delegated, run by portable kernels: {text} ({_list_names(names)}).")
    return lines


def _list_names(names: Sequence[str]) -> str:
    text = ", ".join(plain(name, _LONG) for name in names[:_NAMES]) or "none"
    return f"{text} and {len(names) - _NAMES} more" if len(names) > _NAMES else text


def _operator_kernel_rows(ladders: Sequence[VariantLadder]) -> list[OperatorKernels]:
    """Return a row for each set of operators whose kernels agree in every variant."""
    keys = list(dict.fromkeys(_operator_key(operator) for ladder in ladders for operator in ladder.operators))
    by_key = [{_operator_key(operator): operator for operator in ladder.operators} for ladder in ladders]
    rows = [[operators_by_key.get(key) for operators_by_key in by_key] for key in keys]
    return [_kernels_row(group) for group in grouped(rows, _row_key).values()]


def _operator_key(ladder: OperatorLadder) -> OperatorKey:
    return OperatorKey(ladder.method, ladder.instruction, ladder.position)


def _row_key(row: Sequence[OperatorLadder | None]) -> tuple[object, ...]:
    """Return what operators of one row share: name without types and number, kernels, and evidence."""
    uses = [kernel_use(ladder) if ladder else None for ladder in row]
    known = [(use.kernel, tuple(name for name, _ in use.calls), use.evidence) if use else None for use in uses]
    return (_operator_name(row), *known)


def _operator_name(row: Iterable[OperatorLadder | None]) -> str:
    """Return the backend's name without layout, types and number, which may differ between variants."""
    name = next(ladder.name for ladder in row if ladder)
    front, _, rest = name.partition(" (")
    algorithm = rest.partition(")")[2].partition(" #")[0].strip()
    return " ".join(filter(None, (front.partition(" #")[0], algorithm)))


def _kernels_row(rows: Sequence[Sequence[OperatorLadder | None]]) -> OperatorKernels:
    layers = [next(ladder.module or "" for ladder in row if ladder) for row in rows]
    columns = [[ladder for ladder in column if ladder] for column in zip(*rows, strict=True)]
    cells = [_merge_uses([kernel_use(ladder) for ladder in column]) if column else None for column in columns]
    known_layers = [name for name in layers if name]
    return OperatorKernels(_operator_name(rows[0]), _list_names(known_layers) if known_layers else "", len(rows), cells)


def _merge_uses(uses: Sequence[UsedKernel]) -> UsedKernel:
    """Merge uses of the same kernel into one, with the calls of all of them."""
    return uses[0]._replace(calls=tuple(calls_by_kernel(uses).items()))


def _level_rows(ladders: Sequence[VariantLadder]) -> list[tuple[str, list[tuple[int, int, int]]]]:
    """Return the answers by evidence level, without the level that only times can answer on an emulated CPU."""
    counts = [evidence_level_counts(ladder) for ladder in ladders]
    return [
        (rows[0].rung.value, [(row.yes, row.no, row.unknown) for row in rows])
        for rows in zip(*counts, strict=True)
        if rows[0].rung is not EvidenceLevel.FASTER or not ladders[0].emulated
    ]


def _legend_text(columns: Sequence[KernelColumn]) -> str:
    kinds = {column.kind for column in columns}
    lines = {
        EvidenceKind.COUNTED: "numbers are calls in the whole process, including kernels that only pack data; 0 means "
        "counted but never called",
        EvidenceKind.NAMED: "numbers are operators of one inference that the runtime says a kernel ran",
        EvidenceKind.REGISTERED: "present and absent show registration when the library was loaded, not what ran",
    }
    text = "; ".join(text for kind, text in lines.items() if kind in kinds)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _source_text(column: KernelColumn) -> str:
    role = f", {column.role}" if column.role and column.role != column.variant else ""
    threads = f", {counted_text(column.threads, 'thread')}" if column.threads is not None else ""
    note = f"; {column.note}" if column.note else ""
    return f"{column.variant}{role}{threads}: {KIND_TEXTS[column.kind]}, {column.path}{note}"


def cell_text(cell: KernelCell) -> str:
    """Return a cell of a table of kernels: the amount if there is one, else the state."""
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
    """Return convolutions and products by the kernels that ran them, variants side by side."""
    columns = [
        variant_column
        for number, name in enumerate(section.variants)
        for variant_column in (
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
    """Return kernels by name, with what each source says of them."""
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
    """Return a column per source of kernel names: a number, ``present``, ``absent``, or ``?``."""
    return [column(f"[{number + 1}]", Format.FIGURE, partial(_source_cell, number)) for number in range(count)]


def _source_cell(number: int, line: KernelLine) -> str:
    return cell_text(line.cells[number])


def _level_counts_text(number: int, row: tuple[str, list[tuple[int, int, int]]]) -> str:
    return " / ".join(map(str, row[1][number]))


def levels_table(section: KernelSection) -> TableBlock:
    """Return how far the evidence goes: answers by level."""
    return table(
        section.levels,
        column("SME: yes / no / not known", Format.TEXT, lambda row: row[0]),
        *(
            column(name, Format.FIGURE, partial(_level_counts_text, number))
            for number, name in enumerate(section.variants)
        ),
    )


def kernels_first(section: KernelSection, on_the_device: str) -> list[Block]:
    """Return the first screen of a run on an emulated CPU: which kernels ran, without times."""
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
    """Return the section on kernels; ``first``: whether the first screen already shows those of operators."""
    blocks: list[Block] = [Bullets(part("sentences on kernels", lambda: kernel_sentences(content), list[str]()))]
    if section is not None:
        if section.operators and not first:
            details: list[Block] = [
                Bullets(section.sentences),
                by_operator_table(section),
                Sentence(_HOW_KNOWN, Tone.DIM),
            ]
            blocks.append(Section("Convolutions and products by kernel", [*details, levels_table(section)]))
        if section.kernels or section.problems:
            blocks.append(Section("Kernels by name", by_name_blocks(section)))
    blocks.append(Section("All operators by kernel", groups_blocks(content)))
    ladders = content.kernels.ladders if content.kernels else []
    answer = f"of {counted_text(len(ladders), 'variant')}, with how each is known" if ladders else _BY_ALGORITHM
    return Section("Kernel Insights", blocks, "kernels", "Kernels", answer, folded=True)


_BY_ALGORITHM = "by algorithm and number types"
