"""How far outputs differ on the same inputs, as sentences and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.units import counted_text, share_text

if TYPE_CHECKING:
    from opscope.analysis.compare.accuracy import Accuracy, OutputDifference, Proportion, Top1

_MOST_ROWS = 16
_UNDEFINED = "not defined"


class AccuracyRow(NamedTuple):
    """One output, every cell in words."""

    output: str
    values: str
    max_abs: str
    max_rel: str
    rms_rel: str
    cosine: str
    nonfinite: str


class AccuracySection(NamedTuple):
    """Sentences, the answer first, and a row for each output that was compared."""

    sentences: list[str]
    rows: list[AccuracyRow]


def accuracy_section(found: Accuracy | None) -> AccuracySection | None:
    """What a report says of the outputs of two sides; None where they are no question."""
    if found is None:
        return None
    rows = [_row(output) for output in found.outputs[:_MOST_ROWS] if output.problem is None]
    return AccuracySection(accuracy_sentences(found), [] if found.equal else rows)


def accuracy_sentences(found: Accuracy) -> list[str]:
    """The answer in a few sentences, without a full stop: how far, on how many inputs, or why that is not known."""
    hint = f"; {found.hint}" if found.hint else ""
    if not found.inputs:
        return [f"Outputs not compared: {found.reason}{hint}"]
    lines = [_answer(found)]
    lines += [f"Output {own.output} not compared: {own.problem}" for own in found.outputs if own.problem]
    lines += _nonfinite(found.outputs)
    lines += _top1_sentences(found.top1) if found.top1 else []
    lines += [found.note[:1].upper() + found.note[1:]] if found.note else []
    return [*lines, *([f"{found.reason[:1].upper()}{found.reason[1:]}{hint}"] if found.reason else [])]


def _answer(found: Accuracy) -> str:
    inputs = _inputs(found.inputs)
    if found.equal:
        return f"Outputs on {inputs} are equal"
    known = [own for own in found.outputs if own.max_abs is not None]
    if not known:
        return f"Outputs on {inputs}: no value is finite on both sides"
    worst = max(known, key=lambda own: (own.max_rel is None, own.max_rel or 0.0))
    which = f" of output {worst.output}" if len(found.outputs) > 1 else ""
    relative = "" if worst.max_rel is None else f", {share_text(worst.max_rel)} of the baseline's largest value"
    cosine = "" if worst.cosine is None else f"; cosine similarity {_cosine(worst.cosine)}"
    return f"Outputs on {inputs}: largest difference{which} {_number(worst.max_abs)}{relative}{cosine}"


def _inputs(count: int) -> str:
    return "one input" if count == 1 else f"{count} inputs"


def _nonfinite(outputs: list[OutputDifference]) -> list[str]:
    return [
        f"Output {own.output} has NaN or infinite values: {own.baseline_nonfinite:,} of {own.values:,} on the baseline "
        f"and {own.candidate_nonfinite:,} on the candidate; {_unlike(own.unlike_nonfinite)}"
        for own in outputs
        if own.baseline_nonfinite or own.candidate_nonfinite
    ]


def _unlike(count: int) -> str:
    return f"{counted_text(count, 'value')} not the same on both sides" if count else "they are the same on both"


def _top1_sentences(found: Top1) -> list[str]:
    lines = [f"Same top-1 class on {_proportion(found.agreement)}"]
    if found.baseline is not None and found.candidate is not None:
        lines.append(
            f"Top-1 accuracy of the baseline {_proportion(found.baseline)}, of the candidate "
            f"{_proportion(found.candidate)}"
        )
    return lines


def _proportion(found: Proportion) -> str:
    share, (low, high) = share_text(found.count / found.n), map(share_text, found.ci95)
    return f"{found.count} of {counted_text(found.n, 'input')} ({share}, 95 % interval {low} to {high})"


def _row(output: OutputDifference) -> AccuracyRow:
    return AccuracyRow(
        str(output.output),
        f"{output.values:,}",
        _number(output.max_abs),
        _UNDEFINED if output.max_rel is None else share_text(output.max_rel),
        _UNDEFINED if output.rms_rel is None else share_text(output.rms_rel),
        _UNDEFINED if output.cosine is None else _cosine(output.cosine),
        f"{output.baseline_nonfinite:,} and {output.candidate_nonfinite:,}",
    )


def _number(value: float | None) -> str:
    return _UNDEFINED if value is None else f"{value:.3g}"


def _cosine(value: float) -> str:
    """With so many nines that what is not 1 does not read as 1, up to six decimals."""
    return next((text for places in (4, 5, 6) if float(text := f"{value:.{places}f}") < 1), f"{value:.6f}")
