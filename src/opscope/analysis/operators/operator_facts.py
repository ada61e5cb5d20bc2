"""What is known of one operator besides its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.cache import CacheUse
from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import AttentionPart, Attribution
from opscope.program.operators.taxonomy import OperatorClass
from opscope.program.partition.verdicts import Eligibility

if TYPE_CHECKING:
    from opscope.program.origin import OperatorOrigin


GIVEN = "input of the model"
"""Before a layout change, in place of an operator: what is changed is given by the caller."""


class LayoutChange(msgspec.Struct, frozen=True):
    """Why data are moved or converted though the model does not ask for it.

    Attributes:
        cause: ``partitioner`` for what it added to the payload, ``runtime`` for what XNNPACK inserted, ``exporter``
            for copies between memory formats outside of delegates.
        before: the layers whose output is changed, or what the delegate is given.
        after: the layers that want it changed, or who gets it from the delegate.
    """

    cause: str
    before: list[str]
    after: list[str]


class OperatorFacts(msgspec.Struct, frozen=True):
    """What is known of one operator besides its time."""

    operator_class: OperatorClass | None = None  # category and kind by the program; None where only the name tells
    attribution: Attribution = Attribution.NAME  # how the operator is known
    handles: tuple[int, ...] = ()  # debug handles of the nodes it computed
    aten: str | None = None  # the aten operator that caused it; None when not known, and likewise below
    module: str | None = None  # path of its module
    module_type: str | None = None  # class of the module
    source: str | None = None  # ``file:line``
    code: str | None = None  # the text of that line
    computes: tuple[str, ...] = ()  # kinds of the nodes it computed, in their order
    fused: tuple[str, ...] = ()  # aten operators that no node carries, fused into it by the exporter
    candidates: tuple[str, ...] = ()  # layers that it may be, when there are several
    dtype: str | None = None  # number type of its first input
    weights: str | None = None  # number type of its weights
    shape: tuple[int, ...] | None = None  # of its output
    cost: Cost | None = None  # of one call
    change: LayoutChange | None = None  # why data are moved, for operators that the model does not ask for
    activation: bool = False  # it is only the activation of the operator before it
    elements: int | None = None  # of its first input, or of its output when that is larger; of one call
    taps: int | None = None  # positions of a depthwise filter
    sme: Eligibility | None = None  # whether XNNPACK can run it with SME; None when it is not a product, or not known
    # what it does for an attention as a kernel outside of delegates; None for all others
    attention: AttentionPart | None = None
    kernel: str | None = None  # that ran it, where the runtime names it
    cache: CacheUse | None = None  # what it does with keys and values that are kept; None for all others


def with_origin(facts: OperatorFacts, origin: OperatorOrigin, *, aten: bool = True) -> OperatorFacts:
    """The same with what caused it; an operator that was added belongs to a layer but is not its aten operator."""
    frame = origin.frame
    return msgspec.structs.replace(
        facts,
        aten=origin.aten if aten else None,
        module=origin.module,
        module_type=origin.module_type,
        source=f"{frame.file}:{frame.line}" if frame else None,
        code=frame.code or None if frame else None,
    )
