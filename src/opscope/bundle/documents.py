"""JSON documents of a bundle: against their schema, beside rewritten ones, and beside those of a known-good bundle."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.validation import Problem
from opscope.core.json import from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opscope.bundle.manifest import Manifest

    Json: TypeAlias = Any
    """A decoded document of any shape."""

Fault: TypeAlias = tuple[str, str]
"""Place where a document breaks its schema or differs from another one, and how."""
_PLACE_IN_MESSAGE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`\Z", re.DOTALL)
_RELATIVE_TOLERANCE = 1e-9
"""The order of additions explains no larger relative difference: of 1e5 summands of 53 bits, with much to spare."""
_ABSOLUTE_TOLERANCE_NS, _ABSOLUTE_TOLERANCE = 1e-6, 1e-12
_MAX_SHOWN = 60
_JSON_TYPES = {dict: "object", list: "array", str: "text", bool: "boolean", int: "integer", float: "number"}
_NULL = "null"
_MAPPINGS = {"versions"}
"""Fields whose keys are data: names of packages."""


class JsonDocument(NamedTuple):
    """Document as it stands in its file."""

    value: Json  # decoded without a type; None if it is not JSON
    typed: Any  # decoded with its type; None if it does not fit
    faults: list[Fault]  # against the schema
    absent: frozenset[str] = frozenset()  # optional fields that are not there, with `[]` for any entry of a list


def read_document(content: bytes, *kinds: type[msgspec.Struct]) -> JsonDocument:
    """Decode a document whose schema is that of one of the given kinds, and find what breaks its schema."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return JsonDocument(None, None, [("", f"not valid JSON: {error}")])
    except RecursionError:
        return JsonDocument(None, None, [("", "not readable JSON: it is nested too deeply")])
    types = {str(kind.__struct_config__.tag): kind for kind in kinds}
    if fault := _find_schema_fault(value, list(types)):
        return JsonDocument(value, None, [fault])
    try:
        typed = from_json(content, types[value["schema"]])
    except msgspec.MsgspecError as error:
        message = str(error)
        match = _PLACE_IN_MESSAGE.search(message)
        return JsonDocument(value, None, [(match[1], message[: match.start()]) if match else ("", message)])
    known = msgspec.json.decode(msgspec.json.encode(typed))
    faults = [(at, "a field unknown to this opscope") for at in _find_extra_fields(value, known)]
    absent = frozenset(re.sub(r"\[\d+\]", "[]", at) for at in _find_extra_fields(known, value))
    return JsonDocument(value, typed, faults, absent)


def _find_schema_fault(value: Json, tags: list[str]) -> Fault | None:
    if not isinstance(value, dict):
        return ("", "not a JSON object")
    schema = value.get("schema")
    if schema in tags:
        return None
    if schema is None:
        return ("schema", f"has no schema; expected {tags[0]}")
    for tag in tags:
        kind, _, version = tag.partition("/")
        if isinstance(schema, str) and schema.partition("/")[0] == kind:
            written = schema.partition("/")[2]
            is_older = written.isdecimal() and int(written) < int(version)
            step = "an earlier opscope wrote it" if is_older else "upgrade opscope"
            return ("schema", f"written as {schema}; this opscope reads {tag}: {step}")
    return ("schema", f"has {schema!r}; expected {' or '.join(tags)}")


def _find_extra_fields(value: Json, known: Json, at: str = "") -> Iterator[str]:
    """Yield the places of fields that the first document has and the second one lacks."""
    if isinstance(value, dict) and isinstance(known, dict):
        for name, field in value.items():
            field_path = f"{at}.{name}" if at else name
            if name in known:
                yield from _find_extra_fields(field, known[name], field_path)
            else:
                yield field_path
    elif isinstance(value, list) and isinstance(known, list):
        for number, (entry, known_entry) in enumerate(zip(value, known, strict=False)):
            yield from _find_extra_fields(entry, known_entry, f"{at}[{number}]")


def find_differences(stated: Json, computed: Json, at: str = "") -> Iterator[Fault]:
    """Yield where a stated document is not the computed one.

    Whole numbers and texts must be equal, others to a relative 1e-9. Fields that only one of the two has are not
    compared: the schema says whether they may be absent.
    """
    if isinstance(stated, dict) and isinstance(computed, dict):
        for name in stated:
            if name in computed:
                yield from find_differences(stated[name], computed[name], f"{at}.{name}" if at else name)
    elif isinstance(stated, list) and isinstance(computed, list):
        if len(stated) != len(computed):
            yield (at, f"states {len(stated):,} entries, there are {len(computed):,}")
            return
        for number, (entry, computed_entry) in enumerate(zip(stated, computed, strict=True)):
            yield from find_differences(entry, computed_entry, f"{at}[{number}]")
    elif not _is_equal(stated, computed, at):
        yield (at, difference_text(stated, computed))


def _is_equal(stated: Json, computed: Json, at: str) -> bool:
    if type(stated) is float and type(computed) is float:
        # A difference of two durations keeps their rounding error, however small it is itself.
        tolerance = _ABSOLUTE_TOLERANCE_NS if "_ns" in at.rpartition(".")[2] else _ABSOLUTE_TOLERANCE
        return math.isclose(stated, computed, rel_tol=_RELATIVE_TOLERANCE, abs_tol=tolerance)
    return type(stated) is type(computed) and bool(stated == computed)


def difference_text(stated: Json, computed: Json) -> str:
    """Return two values in a sentence; of long texts the part where they begin to differ."""
    if isinstance(stated, str) and isinstance(computed, str) and len(stated) + len(computed) > _MAX_SHOWN:
        pairs = enumerate(zip(stated, computed, strict=False))
        first = next(
            (at for at, (character, computed_character) in pairs if character != computed_character),
            min(len(stated), len(computed)),
        )
        begin = max(0, first - _MAX_SHOWN // 3)
        dots = "…" if begin else ""
        return f"states {dots}{value_text(stated[begin:])!r}, it is {dots}{value_text(computed[begin:])!r}"
    return f"states {value_text(stated)}, it is {value_text(computed)}"


def value_text(value: Json) -> str:
    """Return a value as messages show it."""
    if isinstance(value, dict | list):
        return f"{len(value)} entries"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def field_types(documents: Iterable[Json]) -> dict[str, set[str]]:
    """Return the JSON types of every field of the documents of one kind, by place, with `[]` for any entry of a list.

    The schema of a document is the type of its field `schema`.
    """
    types: dict[str, set[str]] = {}
    for document in documents:
        _add_field_types(document, "", types)
    return types


def _add_field_types(value: Json, at: str, types: dict[str, set[str]]) -> None:
    name = value if at == "schema" and isinstance(value, str) else _JSON_TYPES.get(type(value), _NULL)
    types.setdefault(at, set()).add(name)
    if isinstance(value, dict):
        is_mapping = at.rpartition(".")[2] in _MAPPINGS
        for key, field in value.items():
            key_name = "*" if is_mapping else key
            _add_field_types(field, f"{at}.{key_name}" if at else key_name, types)
    elif isinstance(value, list):
        for entry in value:
            _add_field_types(entry, f"{at}[]", types)


def structure_problems(file: str, types: Mapping[str, set[str]], good: Mapping[str, set[str]]) -> Iterator[Problem]:
    """Yield how the fields of one kind of document differ from those of a known-good bundle.

    A field that one side lacks counts only if that side has the object it belongs to. Null tells nothing of a type.
    """
    for at in sorted({*types, *good}):
        parent, _, name = at.rpartition(".")
        texts = [" or ".join(sorted(side[at])) if at in side else "" for side in (types, good)]
        if all(texts):
            seen = [side[at] - {_NULL} for side in (types, good)]
            if all(seen) and not seen[0] & seen[1]:
                yield Problem(file, at, f"is {texts[0]}; in the good bundle {texts[1]}")
        elif "object" in (good if texts[0] else types).get(parent, ()) and name != "*" and not name.endswith("[]"):
            lacks = (
                f"is not in the good bundle ({texts[0]})"
                if texts[0]
                else f"is missing; the good bundle has it ({texts[1]})"
            )
            yield Problem(file, at, lacks)


def file_roles(manifest: Manifest, files: Iterable[str]) -> set[str]:
    """Return what files are, whatever the model, the variants and the number of rounds: ``model/*.pte``."""
    roles = {variant.name: variant.role.value if variant.role else "variant" for variant in manifest.variants}
    return {_find_role(path, roles) for path in files if not path.rpartition("/")[2].startswith(".")}


def _find_role(path: str, roles: Mapping[str, str]) -> str:
    directory, *inner = path.split("/")
    if directory == "model" and inner and "." in inner[-1] and not inner[-1].endswith(".log"):
        homes = [f"({roles.get(name, 'unknown')})" for name in inner[:-1]]
        return "/".join([directory, *homes, f"*.{inner[-1].rpartition('.')[2]}"])
    if directory == "variants" and inner:
        # A large trace is kept as it was written.
        parts = [
            re.sub(r"^(round|timed)-\d+(-attempt-\d+)?$", r"\1-*", part).removesuffix(".zst") for part in inner[1:]
        ]
        return "/".join([directory, f"({roles.get(inner[0], 'unknown')})", *parts])
    path = re.sub(r"^comparisons/[^/]*$", "comparisons/*.json", path)
    return re.sub(r"^config\.\w+$", "config.*", path)


def role_problems(roles: set[str], good: set[str]) -> Iterator[Problem]:
    """Yield the kinds of files that only one of two bundles has."""
    yield from (Problem(role, "", "is missing; the good bundle has it") for role in sorted(good - roles))
    yield from (Problem(role, "", "is not in the good bundle") for role in sorted(roles - good))
