"""JSON documents of a bundle against their schema: types, missing fields, unknown ones, other versions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.core.json import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json: TypeAlias = Any
    """A decoded document: it is compared with its schema and with other documents, never used as it is."""

_AT = re.compile(r" - at `(?:key in )?\$?\.?(.*)`\Z", re.DOTALL)


class Fault(NamedTuple):
    """Where a document breaks its schema, and how."""

    at: str
    message: str


class JsonDocument(NamedTuple):
    """A document as it stands in its file."""

    value: Json  # decoded without its type; None when it is not JSON
    typed: Any  # decoded with its type; None when it does not fit
    faults: list[Fault]  # against the schema; empty when there are none
    absent: frozenset[str] = frozenset()  # optional fields that are not there, with `[]` for any entry of a list

    @property
    def foreign(self) -> bool:
        """Whether it is not JSON or of another schema, so that nothing in it can be compared."""
        return any(fault.at in {"", "schema"} for fault in self.faults) and self.typed is None


def examined(content: bytes, *kinds: type[msgspec.Struct]) -> JsonDocument:
    """A document with what is wrong with it."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return JsonDocument(None, None, [Fault("", f"not valid JSON: {error}")])
    except RecursionError:
        return JsonDocument(None, None, [Fault("", "not readable JSON: it is nested too deeply")])
    fault = _schema_fault(value, [str(kind.__struct_config__.tag) for kind in kinds])
    if fault:
        return JsonDocument(value, None, [fault])
    kind = next(kind for kind in kinds if kind.__struct_config__.tag == value["schema"])
    try:
        typed = from_json(content, kind)
    except msgspec.MsgspecError as error:
        message = str(error)
        match = _AT.search(message)
        return JsonDocument(value, None, [Fault(match[1], message[: match.start()]) if match else Fault("", message)])
    known = msgspec.json.decode(msgspec.json.encode(typed))
    faults = [Fault(at, "a field unknown to this opscope") for at in _extra(value, known)]
    absent = frozenset(re.sub(r"\[\d+\]", "[]", at) for at in _extra(known, value))
    return JsonDocument(value, typed, faults, absent)


def _schema_fault(value: Json, tags: list[str]) -> Fault | None:
    if not isinstance(value, dict):
        return Fault("", "not a JSON object")
    schema = value.get("schema")
    if schema in tags:
        return None
    if schema is None:
        return Fault("schema", f"has no schema; expected {tags[0]}")
    if isinstance(schema, str) and schema.partition("/")[0] in {tag.partition("/")[0] for tag in tags}:
        return Fault("schema", f"written as {schema}; this opscope reads {tags[0]}: upgrade opscope")
    return Fault("schema", f"has {schema!r}; expected {' or '.join(tags)}")


def _extra(value: Json, known: Json, at: str = "") -> Iterator[str]:
    """Places of fields that one document has and the other lacks."""
    if isinstance(value, dict) and isinstance(known, dict):
        for name, own in value.items():
            place = f"{at}.{name}" if at else name
            if name in known:
                yield from _extra(own, known[name], place)
            else:
                yield place
    elif isinstance(value, list) and isinstance(known, list):
        for number, (one, other) in enumerate(zip(value, known, strict=False)):
            yield from _extra(one, other, f"{at}[{number}]")
