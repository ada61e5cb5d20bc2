"""Receipt of counted work: what was counted, how it was requested, and a digest; schema ``opscope.work-receipt/1``.

Whoever has the program and the runtime counts again and finds the same operators, on another day and another machine.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.work.work import Work
from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.work.work import CountedOperator


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a count.

    Attributes:
        inputs: inputs as of ``--input``.
        dims: sizes as of ``--dim``.
        methods: methods as of ``--methods``.
        ablate: feature groups of the second run.
        ladder: whether groups went off one after the other.
        target: ``native`` or ``qemu-aarch64``.
        sve_bits: length of the vectors of SVE there.
        sme_bits: length of the vectors of SME there.
    """

    inputs: list[str] = []
    dims: dict[str, int] = {}
    methods: list[str] = []
    ablate: list[str] = []
    ladder: bool = False
    target: str
    sve_bits: int
    sme_bits: int


class WorkReceipt(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.work-receipt/1"):
    """Counted work that can be counted again.

    Attributes:
        digest: SHA-256 of the program's hash, the runtime, the processor, the request and all operators.
        request: how it was asked for.
        work: what was counted.
    """

    digest: str
    request: CountRequest
    work: Work


def receipt_of(work: Work, request: CountRequest) -> WorkReceipt:
    """Return the receipt of a count."""
    return WorkReceipt(_digest_of(work, request), request, work)


def read_receipt(content: bytes, where: str) -> WorkReceipt:
    """Return the receipt that a file holds; ``where`` names it in messages.

    Raises TraceFormatError if the file is no receipt, or its figures do not match its digest.
    """
    hint = "opscope count MODEL --receipt FILE writes one"
    try:
        receipt = from_json(content, WorkReceipt)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a receipt of counted work: {error}", where=where, hint=hint) from error
    if _digest_of(receipt.work, receipt.request) != receipt.digest:
        raise TraceFormatError("its figures were changed: they do not match its digest", where=where, hint=hint)
    return receipt


def differences(stated: Work, counted: Work) -> list[str]:
    """Return what a second count found differently, operators in execution order."""
    if [work.off for work in stated.others] != [work.off for work in counted.others]:
        return ["feature groups: this run switched off other ones than the receipt"]
    return [
        line
        for pair in zip(_all_variants(stated), _all_variants(counted), strict=True)
        for line in _work_differences(*pair)
    ]


def _work_differences(stated: Work, counted: Work) -> Iterator[str]:
    for name in ("sha256", "runtime", "processor"):
        stated_value, counted_value = getattr(stated, name), getattr(counted, name)
        if stated_value != counted_value:
            yield f"{'program' if name == 'sha256' else name}: {stated_value} in the receipt, {counted_value} here"
    off = f" without {', '.join(stated.off)}" if stated.off else ""
    if len(stated.operators) != len(counted.operators):
        yield f"{counted_text(len(stated.operators), 'operator')} in the receipt, {len(counted.operators)} here{off}"
        return
    for before, after in zip(stated.operators, counted.operators, strict=True):
        if before != after:
            yield f"{before.layer or before.name}: {_first_difference(before, after)}{off}"


def _first_difference(before: CountedOperator, after: CountedOperator) -> str:
    """Return the first field of an operator that differs, instructions before all others."""
    fields = ("instructions", *(name for name in before.__struct_fields__ if name != "instructions"))
    name = next(name for name in fields if getattr(before, name) != getattr(after, name))
    return f"{name} {getattr(before, name)} in the receipt, {getattr(after, name)} here"


def other_files(stated: Work, counted: Work) -> list[str]:
    """Return files that executed in both counts and differ: they may explain a difference."""
    return sorted(name for name, digest in stated.files.items() if counted.files.get(name, digest) != digest)


def _all_variants(work: Work) -> list[Work]:
    return [work, *work.others]


def _digest_of(work: Work, request: CountRequest) -> str:
    digested = [
        (variant.sha256, variant.runtime, variant.processor, variant.off, variant.operators)
        for variant in _all_variants(work)
    ]
    return hashlib.sha256(msgspec.json.encode((request, digested))).hexdigest()
