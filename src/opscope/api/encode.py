"""Results as JSON."""

from __future__ import annotations

import msgspec


def to_json(value: msgspec.Struct) -> bytes:
    """A result as indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
