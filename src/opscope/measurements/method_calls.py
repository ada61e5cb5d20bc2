"""Which methods of a program a process calls, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError, did_you_mean
from opscope.measurements.export_record import record_of_export
from opscope.measurements.programs import kind_of_program
from opscope.program.structure.plan import PlannedTensor
from opscope.runtimes.executorch.pte import read_executable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.analysis.preflight.exported import ExportRecord
    from opscope.program.structure.signature import Signature

LOOP_CALLS = 16
"""Calls of the method that makes one token, behind one call of each other method."""
_MOST_CALLS = 10_000


def planned_calls(program: Path, asked: Sequence[str]) -> list[str]:
    """The methods that a process calls over and over; empty for a program with one method.

    Without a wish every method that runs anything and takes tensors only is called once, in the order of the export
    where its record stands beside the program; one that makes a single token is called ``LOOP_CALLS`` times, as a
    decode loop does.

    Args:
        program: the .pte, .tflite or .onnx; signatures of a .tflite are its methods.
        asked: ``NAME`` or ``NAME:COUNT``, in order; empty for no wish.

    Raises:
        UsageError: the program has no such method, or the count is not a number.
        TraceFormatError: the program is damaged.
    """
    kind = kind_of_program(program)
    if kind is not None:
        return _planned_signatures(kind.signatures(program), asked)
    plans = [plan for plan in read_executable(program).plans if plan.chains and plan.chains[0].steps]
    if asked:
        return [name for text in asked for name in _asked(text, [plan.name for plan in plans])]
    names = [
        plan.name for plan in plans if all(isinstance(plan.values[number], PlannedTensor) for number in plan.inputs)
    ]
    if len(names) < 2:  # noqa: PLR2004 - one method needs no order
        return []
    record = record_of_export(program)
    return [name for method in _ordered(names, record) for name in [method] * _times(method, record)]


def _planned_signatures(signatures: Sequence[Signature], asked: Sequence[str]) -> list[str]:
    names = [one.name for one in signatures]
    if asked:
        return [name for text in asked for name in _asked(text, names)]
    return names if len(names) > 1 else []


def _asked(text: str, names: Sequence[str]) -> list[str]:
    name, colon, count = text.partition(":")
    if name not in names:
        raise UsageError(f"the program has no method {name!r}", where="--methods", hint=did_you_mean(name, names))
    if colon and not (count.isdecimal() and 1 <= int(count) <= _MOST_CALLS):
        hint = f"a number from 1 to {_MOST_CALLS:,}; for example --methods prefill,decode:16"
        raise UsageError(f"{count!r} is not a number of calls", where="--methods", hint=hint)
    return [name] * (int(count) if colon else 1)


def _ordered(names: Sequence[str], record: ExportRecord | None) -> list[str]:
    """Names in the order of the export, else of the program."""
    recorded = [one.method.name for one in record.methods] if record else []
    return [name for name in recorded if name in names] + [name for name in names if name not in recorded]


def _times(method: str, record: ExportRecord | None) -> int:
    tokens = {one.method.name: one.method.tokens for one in record.methods} if record else {}
    return LOOP_CALLS if tokens.get(method) == 1 else 1
