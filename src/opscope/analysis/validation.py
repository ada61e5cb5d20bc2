"""Stated figures against computed ones: two documents side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json: TypeAlias = Any
    """A decoded document of any shape."""

RELATIVE = 1e-9
"""Largest relative difference that the order of additions explains: of 1e5 summands of 53 bits, with much to spare."""
_SMALLEST_NS, _SMALLEST = 1e-6, 1e-12
_SHOWN = 60


class Difference(NamedTuple):
    """A place at which two documents differ, and how."""

    at: str
    message: str


def differences(stated: Json, computed: Json, at: str = "") -> Iterator[Difference]:
    """Where what is stated is not what was computed.

    Whole numbers and texts must be equal, others to a relative 1e-9. Fields that one of the two lacks are not compared:
    whether they may be absent is a question of the schema.
    """
    if isinstance(stated, dict) and isinstance(computed, dict):
        for name in stated:
            if name in computed:
                yield from differences(stated[name], computed[name], f"{at}.{name}" if at else name)
    elif isinstance(stated, list) and isinstance(computed, list):
        if len(stated) != len(computed):
            yield Difference(at, f"states {len(stated):,} entries, there are {len(computed):,}")
            return
        for number, (one, other) in enumerate(zip(stated, computed, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif not _equal(stated, computed, at):
        yield Difference(at, unlike(stated, computed))


def unlike(stated: Json, computed: Json) -> str:
    """Two values in a sentence; of long texts the part where they begin to differ."""
    if isinstance(stated, str) and isinstance(computed, str) and len(stated) + len(computed) > _SHOWN:
        pairs = enumerate(zip(stated, computed, strict=False))
        first = next((number for number, (one, other) in pairs if one != other), min(len(stated), len(computed)))
        begin = max(0, first - _SHOWN // 3)
        dots = "…" if begin else ""
        return f"states {dots}{shown(stated[begin:])!r}, it is {dots}{shown(computed[begin:])!r}"
    return f"states {shown(stated)}, it is {shown(computed)}"


def _equal(stated: Json, computed: Json, at: str) -> bool:
    kinds = type(stated), type(computed)
    if kinds == (float, float):
        # A difference of two durations keeps their rounding error, however small it is itself.
        smallest = _SMALLEST_NS if "_ns" in at.rpartition(".")[2] else _SMALLEST
        return math.isclose(stated, computed, rel_tol=RELATIVE, abs_tol=smallest)
    return kinds[0] is kinds[1] and bool(stated == computed)


def shown(value: Json) -> str:
    """A value in a message."""
    if isinstance(value, dict | list):
        return f"{len(value)} entries"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
