"""Results as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


def to_json(value: msgspec.Struct | Sequence[msgspec.Struct], indent: int = 1) -> bytes:
    """A result, or a list of them, as indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"
