"""Results as JSON, and typed values from it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_Value = TypeVar("_Value")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_building = threading.Lock()


def to_json(value: msgspec.Struct | Sequence[msgspec.Struct], indent: int = 1) -> bytes:
    """A result, or a list of them, as indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"


def array_parts(values: Iterable[Any], indent: int = 1) -> Iterator[bytes]:
    """What :func:`to_json` makes of a list, one value at a time. What JSON does not know is written as its text."""
    before, ahead = b"[", b"\n" + b" " * indent
    for value in values:
        one = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=indent)
        yield before + ahead + one.replace(b"\n", ahead)  # a text in JSON has no line breaks of its own
        before = b","
    yield b"[]\n" if before == b"[" else b"\n]\n"


@overload
def from_json(content: bytes | str, kind: type[_Value]) -> _Value: ...


@overload
def from_json(content: bytes | str, kind: Any) -> Any: ...  # noqa: ANN401 - a union has no type of its own


def from_json(content: bytes | str, kind: Any) -> Any:
    """The value of a type that JSON holds.

    Threads may call it at once: msgspec keeps what it knows of a type where another thread finds it half made, and the
    process ends by a segmentation fault (msgspec 0.22). Here one thread at a time makes it.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder.decode(content)
