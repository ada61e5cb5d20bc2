"""LiteRT-LM's files (.litertlm): sections behind a header, one of which is the .tflite that makes tokens.

Source of the layout: ``litertlm_core.py`` and the schema of the header of litert-lm-builder 0.18.1. A mark of 8 bytes
and the version are followed at byte 24 by where the header ends, and at byte 32 by the FlatBuffer that lists sections.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MismatchError, TraceFormatError
from opscope.readers.flatbuffer import FlatBuffer, nested, referred, texts, union

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.readers.flatbuffer import Tables

MARK = b"LITERTLM"
_END, _HEADER = 24, 32
_SECTIONS, _OBJECTS = 1, 0
_ITEMS, _BEGIN, _STOP, _TYPE = range(4)
_KEY, _VALUE = range(2)
_MODEL, _WEIGHTS, _TEXT = 3, 7, 9  # types of sections, and of a value
_MAKES_TOKENS = "tf_lite_prefill_decode"
_NOT_SAID = "a model of no stated use"


class PackedModel(NamedTuple):
    """The model of a file that makes tokens."""

    program: memoryview  # a .tflite
    others: tuple[str, ...]  # what its other models are for


def packed_model(data: memoryview, path: Path) -> PackedModel | None:
    """The model that makes tokens, the first of several; None where a file is not LiteRT-LM's.

    Raises:
        TraceFormatError: the header is damaged, or says that the model lies outside of the file.
        MismatchError: it has no such model, or keeps its weights apart.
    """
    if data[: len(MARK)] != MARK:
        return None
    end = struct.unpack_from("<Q", data, _END)[0] if len(data) > _HEADER else 0
    if not _HEADER < end <= len(data):
        raise TraceFormatError("the header is cut off", where=path, offset=_END, hint="copy or download it again")
    sections, _ = nested(referred(FlatBuffer(data[:end], str(path), _HEADER).root(), _SECTIONS)[0], _OBJECTS)
    uses = _uses(sections)
    models = [row for row, kind in enumerate(sections.uint8(_TYPE).tolist()) if kind == _MODEL]
    made = [row for row in models if uses.get(row) == _MAKES_TOKENS]
    if not made:
        held = ", ".join(sorted({uses.get(row, _NOT_SAID) for row in models})) or "no model"
        raise MismatchError("it has no model that reads prompts and makes tokens", where=path, hint=f"it has {held}")
    if _WEIGHTS in sections.uint8(_TYPE):
        hint = "pack it with its weights in the model"
        raise MismatchError("its weights are apart from its model, which opscope does not run", where=path, hint=hint)
    begin, stop = (int(sections.uint64(slot)[made[0]]) for slot in (_BEGIN, _STOP))
    if not end <= begin < stop <= len(data):
        problem = f"its model should be at bytes {begin:,} to {stop:,} of {len(data):,}"
        raise TraceFormatError(problem, where=path, hint="copy or download it again")
    return PackedModel(data[begin:stop], tuple(uses.get(row, _NOT_SAID) for row in models if row != made[0]))


def _uses(sections: Tables) -> dict[int, str]:
    """What sections are for, by their numbers."""
    items, owners = nested(sections, _ITEMS)
    keys, uses = texts(items, _KEY), dict[int, str]()
    for member in union(items, _VALUE):
        if member.number == _TEXT:
            values = zip(member.rows, texts(member.tables, 0), strict=True)
            uses |= {int(owners[row]): value for row, value in values if keys[row] == "model_type"}
    return uses
