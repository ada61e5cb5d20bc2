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
    """Whether a node can run with SME or SME2, and how that is known.

    Attributes:
        verdict: whether.
        form: what XNNPACK makes of the node.
        types: its number types, as XNNPACK names them where a rule is known.
        reason: why.
        source: file and function of XNNPACK that decides; None when no rule is known.
        tried: the rule was tried under an emulator.
        advice: what would make it eligible; None when nothing simple does.
    """

    verdict: SmeSupport
    form: Form
    types: str
    reason: str
    source: str | None
    tried: bool
    advice: str | None = None
