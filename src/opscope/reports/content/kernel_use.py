"""Kernels that ran an operator, in the words of a report: which, how often, and how that is known.

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
"""Instruction sets of XNNPACK's other kernels for 64-bit Arm, of which it exports hardly any name."""


class UsedKernel(NamedTuple):
    """Kernels of one operator in one variant, as far as they are known."""

    kernel: str  # the instruction set in words, or what is known in its place
    # of the kernels that computed, in one run of the operator; empty where none were counted
    calls: tuple[tuple[str, float], ...]
    level: EvidenceLevel | None  # the question of the evidence ladder that tells it; None where nothing does
    evidence: str  # the same in words
    accelerated: Answer  # whether it is a kernel of the SME family


def kernel_use(ladder: OperatorLadder) -> UsedKernel:
    """Return the kernels of an operator by the highest level of its evidence ladder that has an answer."""
    steps = {step.rung: step for step in ladder.steps}
    answer = next((steps[rung] for rung in _ORDER if steps[rung].answer is not Answer.UNKNOWN), None)
    if answer is None:
        return UsedKernel("not known", (), None, steps[EvidenceLevel.EXECUTED].detail, Answer.UNKNOWN)
    return UsedKernel(
        _kernel_text(answer), _calls_per_run(answer), answer.rung, _evidence_text(answer), _is_accelerated(answer)
    )


def _is_accelerated(step: LevelAnswer) -> Answer:
    """Return whether an SME kernel ran; unknown if one was only eligible, since another may have been selected."""
    possible = step.rung is EvidenceLevel.ELIGIBLE and step.answer is Answer.YES
    return Answer.UNKNOWN if possible else step.answer


def _kernel_text(step: LevelAnswer) -> str:
    if step.calls:
        return ", ".join(dict.fromkeys(map(_isa_of_symbol, step.calls)))
    if step.isa:
        return isa_text(step.isa)
    return _ACCELERATED[step.rung] if step.answer is Answer.YES else _PLAIN


def _isa_of_symbol(name: str) -> str:
    symbol = parse_symbol(name)
    return isa_text(symbol.isa) if symbol else name


def _calls_per_run(step: LevelAnswer) -> tuple[tuple[str, float], ...]:
    return tuple((name, count / (step.runs or 1)) for name, count in step.calls.items())


def _evidence_text(step: LevelAnswer) -> str:
    if step.rung is EvidenceLevel.EXECUTED:
        known = BY_RUNTIME if step.source == BY_RUNTIME else "calls counted"
        return f"{step.rung.value}, {known}"
    text = f"{step.rung.value}, {_SOURCES[step.rung]}"
    return text if step.answer is Answer.YES else f"not {text}"


def kernels_text(ladder: VariantLadder, off: str, *, short: bool = False) -> str:
    """Return how many convolutions and products of a variant ran SME kernels, and how that is known."""
    uses, name = (
        [kernel_use(operator_ladder) for operator_ladder in ladder.operators],
        variant_text(ladder.variant, off),
    )
    if not uses:
        return f"{name}: no convolution or product in a delegate"
    known = [use for use in uses if use.accelerated is not Answer.UNKNOWN]
    total = str(len(uses)) if short else products_text(len(uses))
    parts = [text for level in _ORDER if (text := _level_text(level, known, total))]
    unknown = len(uses) - len(known)
    if not parts:
        return f"{name}: unknown which kernels ran its {products_text(unknown)}"
    return f"{name}: {'; '.join([*parts, *([f'{unknown} unknown'] if unknown else [])])}"


def variant_text(name: str, off: str) -> str:
    """Return a variant's name with what is switched off in it, if known."""
    return f"{plain(name, _NAME)} ({off})" if off else plain(name, _NAME)


def _level_text(level: EvidenceLevel, known: Sequence[UsedKernel], total: str) -> str:
    """Return what one evidence level says of the operators it decides; empty if it decides none."""
    kernels = [use for use in known if use.level is level]
    yes = [use for use in kernels if use.accelerated is Answer.YES]
    products = f"{len(yes)} of {total}"
    if not kernels:
        return ""
    if level is EvidenceLevel.EXECUTED:
        calls = calls_by_kernel(yes)
        count = f", {calls_text(sum(calls.values()))} calls per inference" if calls else ""
        count = "" if all(use.evidence.endswith(BY_RUNTIME) for use in yes) else count
        return f"{products} ran {' and '.join(dict.fromkeys(map(_isa_of_symbol, calls))) or 'SME'} kernels{count}"
    if level is EvidenceLevel.SELECTED:
        return f"SME or SME2 kernels selected for {products}"
    return f"no SME kernel can run {len(kernels)} of {total}"


def products_text(count: int) -> str:
    """Return a number of convolutions and products in words."""
    return "1 convolution or product" if count == 1 else f"{count} convolutions and products"


def calls_text(count: float) -> str:
    """Return a number of calls, without decimals if it is whole."""
    return f"{round(count):,}" if count == round(count) else f"{count:,.1f}"


def calls_by_kernel(uses: Iterable[UsedKernel]) -> dict[str, float]:
    """Sum the calls of several operators by kernel name."""
    names: dict[str, float] = {}
    for use in uses:
        for name, count in use.calls:
            names[name] = names.get(name, 0) + count
    return names


def layers_without_sme(ladder: VariantLadder) -> list[str]:
    """Return the modules, or names, of operators that are known to have run without SME."""
    return [
        operator_ladder.module or operator_ladder.name
        for operator_ladder in ladder.operators
        if kernel_use(operator_ladder).accelerated is Answer.NO
    ]
