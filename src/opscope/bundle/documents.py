"""JSON documents of a bundle: against their schema, beside recomputed ones, and beside those of a known-good bundle."""

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
    """A decoded document: it is compared with its schema and with other documents, never used as it is."""
    """A decoded document of any shape."""


_AT = re.compile(r" - at `(?:key in )?\$?\.?(.*)`\Z", re.DOTALL)


Fault: TypeAlias = tuple[str, str]
"""Where a document breaks its schema or differs from another one, and how."""


class JsonDocument(NamedTuple):
    """A document as it stands in its file."""

    value: Json  # decoded without its type; None when it is not JSON
    typed: Any  # decoded with its type; None when it does not fit
    faults: list[Fault]  # against the schema; empty when there are none
    absent: frozenset[str] = frozenset()  # optional fields that are not there, with `[]` for any entry of a list

    @property
    def foreign(self) -> bool:
        """Whether it is not JSON or of another schema, so that nothing in it can be compared."""
        return any(at in {"", "schema"} for at, _ in self.faults) and self.typed is None


def examined(content: bytes, *kinds: type[msgspec.Struct]) -> JsonDocument:
    """A document with what is wrong with it."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return JsonDocument(None, None, [("", f"not valid JSON: {error}")])
    except RecursionError:
        return JsonDocument(None, None, [("", "not readable JSON: it is nested too deeply")])
    fault = _schema_fault(value, [str(kind.__struct_config__.tag) for kind in kinds])
    if fault:
        return JsonDocument(value, None, [fault])
    kind = next(kind for kind in kinds if kind.__struct_config__.tag == value["schema"])
    try:
        typed = from_json(content, kind)
    except msgspec.MsgspecError as error:
        message = str(error)
        match = _AT.search(message)
        return JsonDocument(value, None, [(match[1], message[: match.start()]) if match else ("", message)])
    known = msgspec.json.decode(msgspec.json.encode(typed))
    faults = [(at, "a field unknown to this opscope") for at in _extra(value, known)]
    absent = frozenset(re.sub(r"\[\d+\]", "[]", at) for at in _extra(known, value))
    return JsonDocument(value, typed, faults, absent)


def _schema_fault(value: Json, tags: list[str]) -> Fault | None:
    if not isinstance(value, dict):
        return ("", "not a JSON object")
    schema = value.get("schema")
    if schema in tags:
        return None
    if schema is None:
        return ("schema", f"has no schema; expected {tags[0]}")
    same_kind = [tag for tag in tags if isinstance(schema, str) and tag.partition("/")[0] == schema.partition("/")[0]]
    if same_kind:
        written, read = (name.partition("/")[2] for name in (schema, same_kind[0]))
        is_older = written.isdecimal() and int(written) < int(read)
        step = "an earlier opscope wrote it" if is_older else "upgrade opscope"
        return ("schema", f"written as {schema}; this opscope reads {same_kind[0]}: {step}")
    return ("schema", f"has {schema!r}; expected {' or '.join(tags)}")


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


_ATTEMPT = re.compile(r"(round|timed)-\d+(-attempt-\d+)?\Z")
_CONFIG = re.compile(r"config\.\w+\Z")
_KINDS = {dict: "object", list: "array", str: "text", bool: "boolean", int: "integer", float: "number"}
_NULL = "null"
MAPS = frozenset({"versions"})
"""Fields whose keys are data: names of packages."""


class DocumentStructure(NamedTuple):
    """Fields of documents of one kind."""

    schema: str  # that they name; empty without
    # of every field, by its place with `[]` for any entry of a list; null only where nothing else was seen
    kinds: Mapping[str, frozenset[str]]
    objects: frozenset[str]  # places at which an object was seen, so that its fields had a chance to be there


def shape(documents: Iterable[Json]) -> DocumentStructure:
    """What the documents of one kind have between them."""
    kinds: dict[str, set[str]] = {}
    objects: set[str] = set()
    schema = ""
    for document in documents:
        _note(document, "", kinds, objects)
        if isinstance(document, dict) and isinstance(document.get("schema"), str):
            schema = document["schema"]
    known = {at: frozenset(found - {_NULL} or found) for at, found in kinds.items()}
    return DocumentStructure(schema, known, frozenset(objects))


def _note(value: Json, at: str, kinds: dict[str, set[str]], objects: set[str]) -> None:
    kinds.setdefault(at, set()).add(_KINDS.get(type(value), _NULL))
    if isinstance(value, dict):
        objects.add(at)
        mapping = at.rpartition(".")[2] in MAPS
        for name, own in value.items():
            place = "*" if mapping else name
            _note(own, f"{at}.{place}" if at else place, kinds, objects)
    elif isinstance(value, list):
        for own in value:
            _note(own, f"{at}[]", kinds, objects)


def shape_problems(file: str, structure: DocumentStructure, good: DocumentStructure) -> Iterator[Problem]:
    """How the fields of one kind of document differ from those of a known-good bundle."""
    if structure.schema != good.schema:
        yield Problem(file, "schema", f"is {structure.schema or 'absent'}; the good bundle has {good.schema or 'none'}")
    for at in _only(good, structure):
        yield Problem(file, at, f"is missing; the good bundle has it ({_text(good.kinds[at])})")
    for at in _only(structure, good):
        yield Problem(file, at, f"is not in the good bundle ({_text(structure.kinds[at])})")
    for at in sorted(set(structure.kinds) & set(good.kinds)):
        if not _alike(structure.kinds[at], good.kinds[at]):
            message = f"is {_text(structure.kinds[at])}; in the good bundle {_text(good.kinds[at])}"
            yield Problem(file, at, message)


def _alike(own: frozenset[str], good: frozenset[str]) -> bool:
    """Whether values of one side could be of the other; what is null on one side tells nothing."""
    return bool(own & good) or {_NULL} in (own, good)


def _only(one: DocumentStructure, other: DocumentStructure) -> list[str]:
    """Fields of one side that the other lacks though it has the object they belong to."""
    found = []
    for at in sorted(set(one.kinds) - set(other.kinds)):
        parent, _, name = at.rpartition(".")
        if not name.endswith("[]") and name != "*" and parent in other.objects:
            found.append(at)
    return found


def _text(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))


def file_roles(manifest: Manifest, files: Iterable[str]) -> set[str]:
    """Files by what they are, whatever the model, the variants and the number of rounds: ``model/*.pte``."""
    roles = {variant.name: variant.role.value if variant.role else "variant" for variant in manifest.variants}
    return {_role(path, roles) for path in files if not path.rpartition("/")[2].startswith(".")}


def _role(path: str, roles: Mapping[str, str]) -> str:
    match path.split("/"):
        case ["model", name] if "." in name and not name.endswith(".log"):
            return f"model/*.{name.rpartition('.')[2]}"
        case ["model", variant, name] if "." in name and not name.endswith(".log"):
            return f"model/({roles.get(variant, 'unknown')})/*.{name.rpartition('.')[2]}"
        case ["comparisons", _]:
            return "comparisons/*.json"
        case ["variants", name, *rest]:
            # A large trace is kept as it was written.
            inner = [_ATTEMPT.sub(r"\1-*", part).removesuffix(".zst") for part in rest]
            return "/".join(["variants", f"({roles.get(name, 'unknown')})", *inner])
        case [name] if _CONFIG.match(name):
            return "config.*"
    return path


def role_problems(own: set[str], good: set[str]) -> Iterator[Problem]:
    """Kinds of files that only one of two bundles has."""
    yield from (Problem(role, "", "is missing; the good bundle has it") for role in sorted(good - own))
    yield from (Problem(role, "", "is not in the good bundle") for role in sorted(own - good))


RELATIVE = 1e-9
"""Largest relative difference that the order of additions explains: of 1e5 summands of 53 bits, with much to spare."""
_SMALLEST_NS, _SMALLEST = 1e-6, 1e-12
_SHOWN = 60


def differences(stated: Json, computed: Json, at: str = "") -> Iterator[Fault]:
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
            yield (at, f"states {len(stated):,} entries, there are {len(computed):,}")
            return
        for number, (one, other) in enumerate(zip(stated, computed, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif not _equal(stated, computed, at):
        yield (at, unlike(stated, computed))


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
