"""Whether SME can run an operator, as it is told; :mod:`opscope.program.partition.sme_rules` decides it."""

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
