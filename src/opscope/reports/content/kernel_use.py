"""What is known of the kernels that ran an operator, in the words of a report: which, how often, and how that is known.

The word for how it is known is the highest question of the evidence ladder that has an answer: a kernel that was
counted was executed, one that only the operator's name tells was selected, one that only rules tell is eligible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.kernels.ladder import BY_RUNTIME, Answer, EvidenceLevel
from opscope.program.kernels.symbols import isa_text, parse_symbol
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.kernels.ladder import LevelAnswer, OperatorLadder, VariantLadder

_ORDER = (EvidenceLevel.EXECUTED, EvidenceLevel.SELECTED, EvidenceLevel.ELIGIBLE)
_SOURCES = {
    EvidenceLevel.SELECTED: "by the types in its name",
    EvidenceLevel.ELIGIBLE: "by its types and shape",
}
_ACCELERATED = {
    EvidenceLevel.EXECUTED: "SME family",
    EvidenceLevel.SELECTED: "SME or SME2",
    EvidenceLevel.ELIGIBLE: "possibly SME or SME2",
}
_NAME = 60
_PLAIN = "NEON or scalar"
"""What XNNPACK has for 64-bit Arm besides the SME family; it exports the names of hardly any of these."""


class UsedKernel(NamedTuple):
    """What is known of the kernels of one operator in one variant."""

    kernel: str  # the instruction set in words, or what is known in its place
    # of the kernels that computed, in one run of the operator; empty where none were counted
    calls: tuple[tuple[str, float], ...]
    level: EvidenceLevel | None  # the question of the evidence ladder that tells it; None where nothing does
    evidence: str  # the same in words
    accelerated: Answer  # whether it is a kernel of the SME family


def kernel_use(ladder: OperatorLadder) -> UsedKernel:
    """What the ladder of an operator tells of its kernels, by its highest answer."""
    steps = {step.rung: step for step in ladder.steps}
    answer = next((steps[rung] for rung in _ORDER if steps[rung].answer is not Answer.UNKNOWN), None)
    if answer is None:
        return UsedKernel("not known", (), None, steps[EvidenceLevel.EXECUTED].detail, Answer.UNKNOWN)
    return UsedKernel(_kernel(answer), _calls(answer), answer.rung, _evidence(answer), _accelerated(answer))


def _accelerated(step: LevelAnswer) -> Answer:
    """What could have been chosen need not have been."""
    possible = step.rung is EvidenceLevel.ELIGIBLE and step.answer is Answer.YES
    return Answer.UNKNOWN if possible else step.answer


def _kernel(step: LevelAnswer) -> str:
    if step.calls:
        return ", ".join(dict.fromkeys(map(_isa, step.calls)))
    if step.isa:
        return isa_text(step.isa)
    return _ACCELERATED[step.rung] if step.answer is Answer.YES else _PLAIN


def _isa(name: str) -> str:
    symbol = parse_symbol(name)
    return isa_text(symbol.isa) if symbol else name


def _calls(step: LevelAnswer) -> tuple[tuple[str, float], ...]:
    return tuple((name, count / (step.runs or 1)) for name, count in step.calls.items())


def _evidence(step: LevelAnswer) -> str:
    if step.rung is EvidenceLevel.EXECUTED:
        known = BY_RUNTIME if step.source == BY_RUNTIME else "calls counted"
        return f"{step.rung.value}, {known}"
    text = f"{step.rung.value}, {_SOURCES[step.rung]}"
    return text if step.answer is Answer.YES else f"not {text}"


def kernels_text(ladder: VariantLadder, off: str, *, short: bool = False) -> str:
    """How many convolutions and products of a variant ran kernels of the SME family, and how that is known."""
    uses, name = (
        [kernel_use(operator_ladder) for operator_ladder in ladder.operators],
        variant_text(ladder.variant, off),
    )
    if not uses:
        return f"{name}: no convolution or product in a delegate"
    known = [use for use in uses if use.accelerated is not Answer.UNKNOWN]
    whole = str(len(uses)) if short else products_text(len(uses))
    parts = [text for level in _ORDER if (text := _of_level(level, known, whole))]
    unknown = len(uses) - len(known)
    if not parts:
        return f"{name}: unknown which kernels ran its {products_text(unknown)}"
    return f"{name}: {'; '.join([*parts, *([f'{unknown} unknown'] if unknown else [])])}"


def variant_text(name: str, off: str) -> str:
    """A variant, and what is switched off in it where that is known."""
    return f"{plain(name, _NAME)} ({off})" if off else plain(name, _NAME)


def _of_level(level: EvidenceLevel, known: Sequence[UsedKernel], whole: str) -> str:
    """What one question tells, of the operators whose kernels it tells; empty where it tells none."""
    kernels = [use for use in known if use.level is level]
    yes = [use for use in kernels if use.accelerated is Answer.YES]
    products = f"{len(yes)} of {whole}"
    if not kernels:
        return ""
    if level is EvidenceLevel.EXECUTED:
        calls = names_of(yes)
        count = f", {calls_text(sum(calls.values()))} calls per inference" if calls else ""
        count = "" if all(use.evidence.endswith(BY_RUNTIME) for use in yes) else count
        return f"{products} ran {' and '.join(dict.fromkeys(map(_isa, calls))) or 'SME'} kernels{count}"
    if level is EvidenceLevel.SELECTED:
        return f"SME or SME2 kernels selected for {products}"
    return f"no SME kernel can run {len(kernels)} of {whole}"


def products_text(count: int) -> str:
    """So many convolutions and products."""
    return "1 convolution or product" if count == 1 else f"{count} convolutions and products"


def calls_text(count: float) -> str:
    """A number of calls: whole where it is."""
    return f"{round(count):,}" if count == round(count) else f"{count:,.1f}"


def names_of(uses: Iterable[UsedKernel]) -> dict[str, float]:
    """Calls by the name of the kernel, of several operators together."""
    names: dict[str, float] = {}
    for use in uses:
        for name, count in use.calls:
            names[name] = names.get(name, 0) + count
    return names


def without_sme(ladder: VariantLadder) -> list[str]:
    """Layers, or names, of operators that are known to have run without SME."""
    return [
        operator_ladder.module or operator_ladder.name
        for operator_ladder in ladder.operators
        if kernel_use(operator_ladder).accelerated is Answer.NO
    ]
