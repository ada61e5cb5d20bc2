"""The evidence ladder of an operator: could an accelerated kernel run it, is one there, chosen, run, and faster?

Each rung has its own source, and none follows from another: a kernel that is in the library need not be chosen, one
that is chosen need not be faster. What no source tells is "not known here", with the reason. The questions are about
one instruction set, the one that the experiment switches: SME on Arm, where rules for operators are known, or a group
of x86-64, where only the last rung can be answered from timings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analyze.findings import Place
from opscope.analyze.ladder_steps import eligible, executed, faster, in_binary, selected
from opscope.analyze.rungs import Answer, Rung, Step
from opscope.program.taxonomy import Category
from opscope.units import share_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analyze.operators import Operator
    from opscope.analyze.rungs import Known

_HEAVY = (Category.CONVOLUTION, Category.GEMM)
_NOT_DELEGATED = ("portable", "framework")
# Number types of a program by the families that kernels are chosen by; those that are their own family are left out.
_FAMILIES = dict.fromkeys(("qint8", "quint8", "qdint8", "qduint8", "qcint8", "qpint8"), "int8")


class OperatorLadder(msgspec.Struct, frozen=True):
    """All rungs of one operator in one variant.

    Attributes:
        method: of the program.
        instruction: of its chain.
        position: order within the instruction's call.
        name: as recorded.
        module: the layer, null where it is not known.
        dtype: number type of its first input, likewise.
        share: of end-to-end latency.
        steps: one for each rung, in their order.
    """

    method: str
    instruction: int
    position: int
    name: str
    module: str | None
    dtype: str | None
    share: float
    steps: list[Step]

    def answer(self, rung: Rung) -> Answer:
        """The answer at a rung."""
        return next(step.answer for step in self.steps if step.rung is rung)


class VariantLadder(msgspec.Struct, frozen=True):
    """The ladders of a variant.

    Attributes:
        variant: its name.
        threads: size of its thread pool; null where it is not known.
        about: the instruction sets in question.
        operators: convolutions and matrix products of delegates, longest first.
        problem: why calls could not be given to operators; null when they could, or nothing was counted.
        emulated: whether an emulator ran it, so that shares of latency mean nothing.
    """

    variant: str
    threads: int | None
    about: str
    operators: list[OperatorLadder]
    problem: str | None = None
    emulated: bool = False


def variant_ladder(known: Known) -> VariantLadder:
    """The ladders of every convolution and matrix product of a variant's delegates."""
    rows = [row for row in known.operators if _asked(row)]
    ladders = [_ladder(known, row) for row in sorted(rows, key=lambda row: -row.time_ns)]
    return VariantLadder(known.variant, known.threads, known.about, ladders, known.problem, known.emulated)


def _asked(row: Operator) -> bool:
    """Whether the questions make sense: a product in a delegate, alone or with what is fused into it."""
    heavy = row.category in _HEAVY and row.backend not in _NOT_DELEGATED
    return heavy and row.instruction is not None and row.position is not None


def _ladder(known: Known, row: Operator) -> OperatorLadder:
    place = Place(row.method, row.instruction or 0, row.position or 0)
    steps = [
        eligible(known, place),
        in_binary(known, place),
        selected(known, row),
        executed(known, place),
        faster(known, place),
    ]
    return OperatorLadder(*place, row.name, row.module, row.dtype, row.share, steps)


def chosen(ladder: VariantLadder, dtypes: Sequence[str], operators: Sequence[str]) -> VariantLadder:
    """The ladder with those operators that are wanted; empty choices take all.

    Args:
        ladder: of a variant.
        dtypes: families of number types, or words of the operators' names such as ``PF32``.
        operators: parts of the names of operators, of layers, or of kernels that ran.
    """
    rows = [own for own in ladder.operators if _of_types(own, dtypes) and _called(own, operators)]
    return msgspec.structs.replace(ladder, operators=rows)


def _of_types(own: OperatorLadder, dtypes: Sequence[str]) -> bool:
    words = own.name.replace("(", " ").replace(")", " ").replace(",", " ").lower().split()
    families = {_FAMILIES.get(own.dtype or "", own.dtype or "")}
    return not dtypes or any(dtype.lower() in {*words, *families} for dtype in dtypes)


def _called(own: OperatorLadder, operators: Sequence[str]) -> bool:
    ran = next(step.detail for step in own.steps if step.rung is Rung.EXECUTED)
    text = f"{own.name} {own.module or ''} {ran}".lower()
    return not operators or any(part.lower() in text for part in operators)


class RungCount(NamedTuple):
    """How many operators have each answer at a rung.

    Attributes:
        rung: the question.
        yes: operators with this answer.
        no: likewise.
        unknown: likewise.
        share: of latency, of those with a yes, in words; empty where times mean nothing.
    """

    rung: Rung
    yes: int
    no: int
    unknown: int
    share: str


def rung_counts(ladder: VariantLadder) -> list[RungCount]:
    """The ladder of a variant in five lines."""
    return [_count(ladder, rung) for rung in Rung]


def _count(ladder: VariantLadder, rung: Rung) -> RungCount:
    answers = [own.answer(rung) for own in ladder.operators]
    share = sum(own.share for own in ladder.operators if own.answer(rung) is Answer.YES)
    yes, no, unknown = (answers.count(answer) for answer in (Answer.YES, Answer.NO, Answer.UNKNOWN))
    return RungCount(rung, yes, no, unknown, "" if ladder.emulated else share_text(share))
