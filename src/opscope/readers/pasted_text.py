"""Texts that somebody pasted, logged or redirected: their encoding."""

from __future__ import annotations


def decode_text(data: bytes) -> str:
    """Return a text of UTF-8 or UTF-16, which begins with a mark of its order or has a zero in every second byte."""
    if data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return data.decode("utf-16", "replace")
    if data[:1] != b"\0" and data[1:2] == b"\0":
        return data.decode("utf-16-le", "replace")
    return data.decode("utf-8-sig", "replace")
