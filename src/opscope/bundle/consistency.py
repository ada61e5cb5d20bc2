"""Whether a manifest agrees with itself: its plan, its variants, its records. Only the manifest is read.

Measurements of untraced repetitions stand in the manifest alone, so each record is hashed there.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.manifest import Manifest, Role, Status
from opscope.bundle.validation import Problem
from opscope.core.json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.bundle.manifest import PlanSlot, Repetition

    Json: TypeAlias = Any
    """A decoded document of any shape."""


FILE = "manifest.json"
FIELD = "record_sha256"
_NO_HASH = "none: it is nested too deeply"


def path_fault(path: str) -> str | None:
    """Return why a path cannot lie within a bundle; None if it can, whether or not the file exists."""
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or re.match(r"[A-Za-z]:", path):
        return "is not a path within the bundle"
    if ".." in parts:
        return "points outside the bundle"
    return "is not a path" if "\0" in path or "" in parts or "." in parts else None


class Content(enum.Enum):
    """Content of a file that its stated hash covers."""

    BYTES = enum.auto()
    INFLATED = enum.auto()
    VALUES = enum.auto()
    """The values of its arrays, one after the other."""


class StatedFile(NamedTuple):
    """File that a manifest names."""

    json_path: str  # JSON path of its place in the manifest
    path: str
    sha256: str | None  # None if the manifest states no hash
    content: Content = Content.BYTES


def stated_files(manifest: Manifest) -> Iterator[StatedFile]:
    """Yield the files that a manifest names: programs, inputs, traces, and what processes left beside their traces."""
    for at, model in manifest.models.items():
        hashes = {"program": model.sha256, "etrecord": model.etrecord_sha256, "data": model.data_sha256}
        for name, sha256 in hashes.items():
            if (path := getattr(model, name)) is not None:
                yield StatedFile(f"{at}.{name}", path, sha256)
    plan = manifest.plan
    values = [("plan.values", plan.values, plan.values_sha256)]
    for name, inputs in plan.inputs_of.items():
        values.append((f"plan.inputs_of.{name}.values", inputs.values, inputs.values_sha256))
    yield from (StatedFile(at, path, sha256) for at, path, sha256 in values if path is not None)
    for number, repetition in enumerate(manifest.repetitions):
        if repetition.trace is not None:
            yield StatedFile(
                f"repetitions[{number}].trace", repetition.trace, repetition.trace_sha256, Content.INFLATED
            )
        for name, sha256 in repetition.files_sha256.items():
            yield StatedFile(f"repetitions[{number}].files_sha256", f"{repetition.directory}/{name}", sha256)


def stated_paths(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the place in the manifest and the path of every file and directory that it names."""
    for number, variant in enumerate(manifest.variants):
        yield f"variants[{number}].name", variant.name
    for number, repetition in enumerate(manifest.repetitions):
        yield f"repetitions[{number}].directory", repetition.directory
    yield from ((file.json_path, file.path) for file in stated_files(manifest))


def unusable(manifest: Manifest) -> Iterator[str]:
    """Yield why nothing can be read of a bundle: it has no variants, or its paths lead out of it."""
    if not manifest.variants:
        yield "it has no variants"
    for at, path in stated_paths(manifest):
        if fault := path_fault(path):
            yield f"{at} {fault}"


def absent_facts(manifest: Manifest) -> Iterator[Problem]:
    """Yield the facts that a manifest always states and the given one lacks."""
    facts: dict[str, object] = {
        f"{at}.{name}": getattr(model, name)
        for at, model in manifest.models.items()
        for name in ("sha256", "size", "methods")
    }
    for name in ("rounds", "runs", "warmup", "seed", "timeout_seconds"):
        facts[f"plan.{name}"] = getattr(manifest.plan, name)
    for number, variant in enumerate(manifest.variants):
        facts |= {f"variants[{number}].{name}": getattr(variant, name) for name in ("role", "threads")}
    for at, value in facts.items():
        if value is None:
            yield Problem(FILE, at, "is null, which only reports on other tools' directories may have")


def plan_problems(manifest: Manifest) -> Iterator[Problem]:
    """Yield contradictions between variants, plan and repetitions. Hashes tell whether a record was changed."""
    for name, count in Counter(variant.name for variant in manifest.variants).items():
        if count > 1:
            yield Problem(FILE, "variants", f"{count} are called {name}")
    for number, variant in enumerate(manifest.variants):
        if variant.role is Role.CONTROL and (variant.cleared or variant.switch):
            yield Problem(FILE, f"variants[{number}].role", "is control, which must run without a switch")
    planned = set(manifest.planned())
    successes = Counter(repetition.place for repetition in manifest.repetitions if repetition.ok)
    for number, repetition in enumerate(manifest.repetitions):
        at, slot = f"repetitions[{number}]", repetition.place
        if slot not in planned:
            yield Problem(FILE, at, f"{_describe_slot(slot)} is not in the plan")
        if repetition.ok and successes[slot] > 1:
            yield Problem(FILE, at, f"{_describe_slot(slot)} succeeded {successes[slot]} times")


def completeness_problems(manifest: Manifest) -> Iterator[Problem]:
    """Yield what the plan asks for and no record gives."""
    if manifest.status is not Status.COMPLETE:
        yield Problem(FILE, "status", f"is {manifest.status.value}")
    failures = {repetition.place: repetition.failure for repetition in manifest.failures()}
    for slot in manifest.pending():
        failure = failures.get(slot)
        reason = f"failed: {failure.message}" if failure else "was not run"
        yield Problem(FILE, "repetitions", f"{_describe_slot(slot)}, {reason}")


def _describe_slot(slot: PlanSlot) -> str:
    return f"round {slot.round} of {slot.variant}, {slot.arm.value}"


class RecordHash(NamedTuple):
    """Hash of a repetition's record beside the hash that the manifest states."""

    number: int  # its place among the repetitions
    variant: str  # variant of the repetition; "" if the record names none
    true: str  # of what stands there now
    stated: str | None  # None if the manifest states no hash

    @property
    def changed(self) -> bool:
        """Return whether the record is not the one that was written, or has no hash to tell."""
        return self.stated != self.true

    @property
    def fault(self) -> str:
        """Fault of a changed record, without its subject: ``was changed after ...``."""
        if self.stated is None:
            return f"has no {FIELD}: it cannot be told whether it was changed after it was measured"
        return f"was changed after it was measured: its SHA-256 is {self.true:.12}…, {FIELD} states {self.stated:.12}…"


def hashed_record(repetition: Repetition) -> Repetition:
    """Return the record with its hash."""
    document = msgspec.json.decode(to_json(repetition))
    return msgspec.structs.replace(repetition, record_sha256=_hash_record(document))


def record_hashes(manifest: Json) -> Iterator[RecordHash]:
    """Yield the hash of each record of a manifest that was decoded without a schema, so that no field is lost."""
    records = manifest.get("repetitions") if isinstance(manifest, dict) else None
    for number, record in enumerate(records if isinstance(records, list) else []):
        if isinstance(record, dict):
            stated, variant = record.get(FIELD), record.get("variant")
            stated_text = None if stated is None else str(stated)
            yield RecordHash(number, variant if isinstance(variant, str) else "", _hash_record(record), stated_text)


def _hash_record(record: Json) -> str:
    """Hash a record's canonical encoding: JSON without blanks, fields by name, without the field of the hash.

    Fields that are null or empty are left out, so that a record keeps its hash when an opscope that knows more fields
    writes it again; every field that is added has such a default.
    """
    try:
        present = _without_absent({name: value for name, value in record.items() if name != FIELD})
    except RecursionError:
        return _NO_HASH  # nested more deeply than any record that was written
    return hashlib.sha256(msgspec.json.encode(present, order="sorted")).hexdigest()


def _without_absent(value: Json) -> Json:
    if isinstance(value, dict):
        fields = {name: _without_absent(field) for name, field in value.items()}
        return {name: field for name, field in fields.items() if field is not None and field not in ([], {}, "")}
    return [_without_absent(entry) for entry in value] if isinstance(value, list) else value
