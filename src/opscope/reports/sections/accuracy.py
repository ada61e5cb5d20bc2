"""How far outputs differ on the same inputs, as sentences and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.units import counted_text, share_text
from opscope.reports.content.ranking import outputs_beside, outputs_sentences
from opscope.reports.document.blocks import Bullets, Format, Section, Sentence, Tone, column, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.analysis.compare.outputs import Accuracy, OutputDifference, Proportion, Top1
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Block, TableBlock, Value

_MOST_ROWS = 16
_UNDEFINED = "not defined"
_ALIKE = 0.99
"""Cosine similarity from which outputs that differ by more than rounding still "differ slightly"."""


_NOTE = (
    "Differences are relative to the largest magnitude of the baseline's output, RMS to the baseline's RMS. NaN "
    "and infinite values are counted separately and excluded from the other columns. Figures hold only for the "
    "inputs that ran."
)


def accuracy_section(accuracy: Accuracy | None) -> Section | None:
    """Return the section on the outputs of two sides; None if outputs were not asked for."""
    if accuracy is None:
        return None
    texts = accuracy_sentences(accuracy)
    blocks: list[Block] = [Bullets([f"{line}." for line in texts])]
    rows = [output for output in accuracy.outputs[:_MOST_ROWS] if output.problem is None]
    if rows and not accuracy.equal:
        blocks += [_differences_table(rows), Sentence(_NOTE, Tone.DIM)]
    return Section("Outputs", blocks, "accuracy", "Outputs", texts[0], folded=True)


def outputs_section(content: ReportContent) -> Section | None:
    """Return the section on outputs: of the first pair, or of all variants beside the fastest one if ranked."""
    accuracies = outputs_beside(content)
    if not accuracies:
        return accuracy_section(content.primary.accuracy) if content.primary else None
    texts = outputs_sentences(content)
    rows = [(name, accuracy.worst) for name, accuracy in accuracies.items() if accuracy.worst]
    compared = table(
        rows,
        column("variant", Format.NAME, lambda row: row[0]),
        *(column(head, form, _apply_to_second(value), absent=_UNDEFINED) for head, form, value in _FIGURES),
    )
    note = f"Differences from the outputs of {content.fastest[0]}. {_NOTE}"
    blocks: list[Block] = [Bullets([f"{line}." for line in texts]), compared, Sentence(note, Tone.DIM)]
    return Section("Outputs", blocks, "accuracy", "Outputs", texts[0], folded=True)


def _apply_to_second(value: Callable[[OutputDifference], Value]) -> Callable[[tuple[str, OutputDifference]], Value]:
    return lambda row: value(row[1])


def _differences_table(rows: list[OutputDifference]) -> TableBlock:
    return table(
        rows,
        column("output", Format.TEXT, lambda row: str(row.output)),
        *(column(head, form, value, absent=_UNDEFINED) for head, form, value in _FIGURES),
    )


_FIGURES: list[tuple[str, Format, Callable[[OutputDifference], Value]]] = [
    ("values", Format.FIGURE, lambda row: f"{row.values:,}"),
    ("largest difference", Format.FIGURE, lambda row: _number_text(row.max_abs)),
    ("relative", Format.SHARE, lambda row: row.max_rel),
    ("RMS, relative", Format.SHARE, lambda row: row.rms_rel),
    ("cosine", Format.FIGURE, lambda row: _UNDEFINED if row.cosine is None else _cosine_text(row.cosine)),
    ("NaN or infinite", Format.FIGURE, lambda row: f"{row.baseline_nonfinite:,} and {row.candidate_nonfinite:,}"),
]


def accuracy_sentences(accuracy: Accuracy) -> list[str]:
    """Return the answer in sentences without a full stop: how far outputs differ, or why that is unknown."""
    hint = f"; {accuracy.hint}" if accuracy.hint else ""
    if not accuracy.inputs:
        return [f"Outputs not compared: {accuracy.reason}{hint}"]
    lines = [_answer_sentence(accuracy)]
    lines += [
        f"Output {difference.output} not compared: {difference.problem}"
        for difference in accuracy.outputs
        if difference.problem
    ]
    lines += _nonfinite_sentences(accuracy.outputs)
    lines += _top1_sentences(accuracy.top1) if accuracy.top1 else []
    lines += [accuracy.note[:1].upper() + accuracy.note[1:]] if accuracy.note else []
    return [*lines, *([f"{accuracy.reason[:1].upper()}{accuracy.reason[1:]}{hint}"] if accuracy.reason else [])]


def _answer_sentence(accuracy: Accuracy) -> str:
    inputs = _inputs_text(accuracy.inputs)
    if accuracy.equal:
        return f"Outputs on {inputs} are equal"
    known = [difference for difference in accuracy.outputs if difference.max_abs is not None]
    if not known:
        return f"Outputs on {inputs}: no value is finite on both sides"
    worst = max(known, key=lambda difference: (difference.max_rel is None, difference.max_rel or 0.0))
    which = f" of output {worst.output}" if len(accuracy.outputs) > 1 else ""
    relative = "" if worst.max_rel is None else f", {share_text(worst.max_rel)} of the baseline's largest value"
    cosine = "" if worst.cosine is None else f"; cosine similarity {_cosine_text(worst.cosine)}"
    if accuracy.agrees:
        verdict = "agree within rounding"
    elif (worst.cosine or 0.0) >= _ALIKE and not any(output.unlike_nonfinite for output in accuracy.outputs):
        verdict = "differ slightly"
    else:
        verdict = "differ"
    return f"Outputs on {inputs} {verdict}: largest difference{which} {_number_text(worst.max_abs)}{relative}{cosine}"


def _inputs_text(count: int) -> str:
    return "one input" if count == 1 else counted_text(count, "input")


def _nonfinite_sentences(outputs: list[OutputDifference]) -> list[str]:
    return [
        f"Output {difference.output} has NaN or infinite values: {difference.baseline_nonfinite:,} of "
        f"{difference.values:,} in the baseline and {difference.candidate_nonfinite:,} in the candidate; "
        f"{_nonfinite_difference_text(difference.unlike_nonfinite)}"
        for difference in outputs
        if difference.baseline_nonfinite or difference.candidate_nonfinite
    ]


def _nonfinite_difference_text(count: int) -> str:
    return f"{counted_text(count, 'value')} differing between the sides" if count else "the same on both sides"


def _top1_sentences(top1: Top1) -> list[str]:
    lines = [f"Same top-1 class on {_proportion_text(top1.agreement)}"]
    if top1.baseline is not None and top1.candidate is not None:
        lines.append(
            f"Top-1 accuracy of the baseline {_proportion_text(top1.baseline)}, of the candidate "
            f"{_proportion_text(top1.candidate)}"
        )
    return lines


def _proportion_text(proportion: Proportion) -> str:
    share, (low, high) = share_text(proportion.count / proportion.n), map(share_text, proportion.ci95)
    return f"{proportion.count} of {counted_text(proportion.n, 'input')} ({share}, 95 % interval {low} to {high})"


def _number_text(value: float | None) -> str:
    return _UNDEFINED if value is None else f"{value:.3g}"


def _cosine_text(value: float) -> str:
    """Return a cosine with four to six decimals: as few as keep a value below 1 from reading as 1."""
    return next((text for decimals in (4, 5, 6) if float(text := f"{value:.{decimals}f}") < 1), f"{value:.6f}")
