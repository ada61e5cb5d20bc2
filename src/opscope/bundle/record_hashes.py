"""Hashes of records: what a repetition measured without a trace is in the manifest alone, and is hashed there."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.core.json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.bundle.manifest import Repetition

    Json: TypeAlias = Any
    """A decoded document of any shape."""

FIELD = "record_sha256"
_NO_HASH = "none: it is nested too deeply"


class RecordHash(NamedTuple):
    """The hash of a record of a manifest beside the one that it states."""

    number: int  # its place among the repetitions
    variant: str  # whose repetition it is; empty where that cannot be told
    true: str  # of what stands there now
    stated: str | None  # what it was when it was written; None in manifests of earlier opscopes

    @property
    def changed(self) -> bool:
        """Whether the record is not the one that was written."""
        return self.stated not in {None, self.true}

    @property
    def difference(self) -> str:
        """Both hashes in words."""
        return f"its SHA-256 is {self.true:.12}…, {FIELD} states {self.stated:.12}…"


def hashed_record(repetition: Repetition) -> Repetition:
    """The record with its hash."""
    document = msgspec.json.decode(to_json(repetition))
    return msgspec.structs.replace(repetition, record_sha256=_sha256(document))


def record_hashes(manifest: Json) -> Iterator[RecordHash]:
    """The hashes of all records of a manifest that was decoded without a schema, so that no field is lost."""
    records = manifest.get("repetitions") if isinstance(manifest, dict) else None
    for number, record in enumerate(records if isinstance(records, list) else []):
        if isinstance(record, dict):
            stated, variant = record.get(FIELD), record.get("variant")
            told = None if stated is None else str(stated)
            yield RecordHash(number, variant if isinstance(variant, str) else "", _sha256(record), told)


def _sha256(record: Json) -> str:
    """Hash of a record's canonical encoding: JSON without blanks, fields by name, without this hash.

    Fields that are null or empty are left out, so that a record keeps its hash when an opscope that knows more of them
    writes it again; every field that is added has such a default.
    """
    try:
        told = _told({name: value for name, value in record.items() if name != FIELD})
    except RecursionError:
        return _NO_HASH  # nested more deeply than any record that was written
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()


def _told(value: Json) -> Json:
    if isinstance(value, dict):
        told = {name: _told(own) for name, own in value.items()}
        return {name: own for name, own in told.items() if own is not None and own not in ([], {}, "")}
    return [_told(own) for own in value] if isinstance(value, list) else value
