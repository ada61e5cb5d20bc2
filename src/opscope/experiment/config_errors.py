"""What is wrong in a configuration, said by the path of the field, what was found there and what is allowed."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from opscope.bundle.settings import choices_of, options_of
from opscope.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
_PLACED = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`\Z", re.DOTALL)
_EXPECTED = re.compile(r"Expected (.*?)(?:, got `.*`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_LONGEST = 60
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_BOUNDS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def typed(
    raw: object,
    kind: type[T],
    where: Path,
    choices: Mapping[str, Sequence[str]],
    *,
    strict: bool = True,
    at: str = "",
) -> T:
    """A decoded file as a typed value."""
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _translated(str(error), raw, kind, where, choices, at) from None


def typed_options(values: Mapping[str, object], kind: type[S]) -> S:
    """Values of options of the command line as a typed value."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, path = _placed(str(error))
        name, found = path.partition("[")[0], _value_at(values, path)
        words = choices_of(kind).get(name)
        expected = f"one of {', '.join(words)}" if words else _expected(problem)
        hint = did_you_mean(found, words) if words and isinstance(found, str) else None
        option = options_of(kind)[name].named(name)
        raise UsageError(f"{shown(found)} is not allowed; expected {expected}", where=option, hint=hint) from None


def wrong(where: Path, path: str, problem: str, hint: str | None = None) -> UsageError:
    """An error of one field."""
    return UsageError(problem, where=f"{where}: {path}" if path else str(where), hint=hint)


def shown(value: object) -> str:
    """A value as it may stand in a message: short, and of plain characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _translated(
    message: str, raw: object, kind: type, where: Path, choices: Mapping[str, Sequence[str]], at: str
) -> UsageError:
    problem, path = _placed(message)
    place = f"{at}.{path}" if at and path else at or path
    if unknown := _UNKNOWN.match(problem):
        known = _fields(kind, path)
        return wrong(
            where, _joined(place, unknown[1]), f"no such key: {shown(unknown[1])}", did_you_mean(unknown[1], known)
        )
    if missing := _MISSING.match(problem):
        return wrong(where, _joined(place, missing[1]), "this key is missing")
    found = _value_at(raw, path)
    words = choices.get(next((name for name, _ in reversed(_steps(path)) if name), ""))
    if words:
        hint = did_you_mean(found, words) if isinstance(found, str) else None
        allowed = f"one of {', '.join(words)}" if len(words) > 1 else words[0]
        return wrong(where, place, f"{shown(found)} is not allowed; expected {allowed}", hint)
    return wrong(where, place, f"{shown(found)} is not allowed; expected {_expected(problem)}")


def _placed(message: str) -> tuple[str, str]:
    """The problem that msgspec tells, and the path of the field."""
    placed = _PLACED.match(message)
    return (placed["problem"], (placed["path"] or "").lstrip(".")) if placed else (message, "")


def _expected(problem: str) -> str:
    """What msgspec expected, in plain words."""
    match = _EXPECTED.match(problem)
    if match is None:
        return "a value in range" if "out of range" in problem else problem[:1].lower() + problem[1:]
    if "matching regex" in problem:
        return "a name of letters, digits and any of _ . + -, at most 100 of them"
    text = re.sub(r"`([^`]*)`", lambda kinds: " or ".join(_KINDS.get(k, k) for k in kinds[1].split(" | ")), match[1])
    for sign, words in _BOUNDS.items():
        text = text.replace(f" {sign} ", f" {words} ")
    return text.replace("of length of at least", "with at least").replace("of length of at most", "with at most")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name[:_LONGEST]}" if path else name[:_LONGEST]


def _steps(path: str) -> list[tuple[str, str]]:
    """Names and numbers of a path like ``variants[0].threads``, one of the two empty in each."""
    return _STEP.findall(f".{path}" if path and not path.startswith("[") else path)


def _value_at(raw: object, path: str) -> object:
    value: Any = raw
    for name, number in _steps(path):
        value = value[int(number)] if number else value.get(name)
    return value


def _fields(kind: type, path: str) -> list[str]:
    """Keys of the Struct at a path."""
    here: Any = msgspec.inspect.type_info(kind)
    for name, _ in _steps(path):
        if name:
            here = next((field.type for field in here.fields if field.encode_name == name), here)
        here = _struct_in(here)
    return [field.encode_name for field in getattr(here, "fields", ())]


def _struct_in(info: Any) -> Any:  # noqa: ANN401 - one of msgspec's descriptions of types
    """The Struct that a field holds, alone, in a list or as one of several."""
    if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        return _struct_in(info.item_type)
    if isinstance(info, msgspec.inspect.UnionType):
        return next((_struct_in(one) for one in info.types if hasattr(_struct_in(one), "fields")), info)
    return info
