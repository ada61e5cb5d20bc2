"""What is told of an operator: why it was not delegated, and whether it can run with SME.

:mod:`opscope.program.partition.partition_reasons` and :mod:`opscope.program.partition.sme_rules` find it.
"""

from __future__ import annotations

import enum

import msgspec


class SmeSupport(str, enum.Enum):
    """Whether an operator can run with SME or SME2."""

    ELIGIBLE = "eligible"
    NOT_ELIGIBLE = "not eligible"
    UNKNOWN = "unknown"


class Form(str, enum.Enum):
    """What XNNPACK makes of a node that multiplies and accumulates."""

    PRODUCT = "matrix product"
    BATCH_PRODUCT = "batch matrix product"
    CONVOLUTION = "convolution"
    DEPTHWISE = "depthwise convolution"
    DECONVOLUTION = "transposed convolution"
    ATTENTION = "attention"


class Eligibility(msgspec.Struct, frozen=True):
    """Whether a node can run with SME or SME2, and how that is known."""

    verdict: SmeSupport  # whether
    form: Form  # what XNNPACK makes of the node
    types: str  # its number types, as XNNPACK names them where a rule is known
    reason: str  # why
    source: str | None  # file and function of XNNPACK that decides; None when no rule is known
    tried: bool  # the rule was tried under an emulator
    advice: str | None = None  # what would make it eligible; None when nothing simple does


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
