"""What is known of one operator besides its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import AttentionPart, Attribution
from opscope.program.operators.taxonomy import OperatorClass
from opscope.program.partition.sme_support import Eligibility

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
    """What is known of one operator besides its time.

    Attributes:
        operator_class: category and kind by the program; None where only the name tells.
        attribution: how the operator is known.
        handles: debug handles of the nodes it computed.
        aten: the aten operator that caused it; None when not known, and likewise below.
        module: path of its module.
        module_type: class of the module.
        source: ``file:line``.
        code: the text of that line.
        computes: kinds of the nodes it computed, in their order.
        fused: aten operators that no node carries, fused into it by the exporter.
        candidates: layers that it may be, when there are several.
        dtype: number type of its first input.
        weights: number type of its weights.
        shape: of its output.
        cost: of one call.
        change: why data are moved, for operators that the model does not ask for.
        activation: it is only the activation of the operator before it.
        elements: of its first input, or of its output when that is larger; of one call.
        taps: positions of a depthwise filter.
        sme: whether XNNPACK can run it with SME; None when it is not a product, or not known.
        attention: what it does for an attention as a kernel outside of delegates; None for all others.
    """

    operator_class: OperatorClass | None = None
    attribution: Attribution = Attribution.NAME
    handles: tuple[int, ...] = ()
    aten: str | None = None
    module: str | None = None
    module_type: str | None = None
    source: str | None = None
    code: str | None = None
    computes: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    dtype: str | None = None
    weights: str | None = None
    shape: tuple[int, ...] | None = None
    cost: Cost | None = None
    change: LayoutChange | None = None
    activation: bool = False
    elements: int | None = None
    taps: int | None = None
    sme: Eligibility | None = None
    attention: AttentionPart | None = None


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
