"""Why an operator was not delegated, as it is told; :mod:`opscope.program.partition.partition_reasons` finds it."""

from __future__ import annotations

import enum

import msgspec


class Cause(str, enum.Enum):
    """Sorts of reasons."""

    NO_RULE = "no rule"
    NUMBER_TYPE = "number type"
    MIXED_TYPES = "mixed number types"
    EMPTY = "empty tensor"
    OPTION = "option"
    COMPUTED_WEIGHTS = "computed weights"
    DYNAMIC_SHAPE = "dynamic shape"
    NESTED = "inside a branch or loop"
    SIZES = "computes sizes"
    NOT_LOWERED = "not lowered"
    SWITCHED_OFF = "delegate switched off"
    NOT_KNOWN = "not known"


class PortableReason(msgspec.Struct, frozen=True):
    """Why an operator was not delegated.

    Attributes:
        cause: sort of the reason.
        text: the rule, in words.
        evidence: what the program shows; None where the name is all it takes.
        source: file of ExecuTorch that holds the rule; None when the reason is not known.
    """

    cause: Cause
    text: str
    evidence: str | None = None
    source: str | None = None
