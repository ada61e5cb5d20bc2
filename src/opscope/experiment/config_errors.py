"""Errors in a configuration, with the path of the field, the value found there and the values allowed."""

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


def convert_config(
    raw: object,
    kind: type[T],
    where: Path,
    choices: Mapping[str, Sequence[str]],
    *,
    strict: bool = True,
    at: str = "",
) -> T:
    """Convert a decoded file to a typed value; raises UsageError that names the field."""
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _translate_error(str(error), raw, kind, where, choices, at) from None


def convert_options(values: Mapping[str, object], kind: type[S]) -> S:
    """Convert values of command line options to a typed value; raises UsageError that names the option."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, path = _split_message(str(error))
        name, value = path.partition("[")[0], _value_at(values, path)
        words = choices_of(kind).get(name)
        expected = f"one of {', '.join(words)}" if words else _expected_text(problem)
        hint = did_you_mean(value, words) if words and isinstance(value, str) else None
        option = options_of(kind)[name].named(name)
        raise UsageError(f"{value_text(value)} is not allowed; expected {expected}", where=option, hint=hint) from None


def field_error(where: Path, path: str, problem: str, hint: str | None = None) -> UsageError:
    """Return an error about one field."""
    return UsageError(problem, where=f"{where}: {path}" if path else str(where), hint=hint)


def value_text(value: object) -> str:
    """Return a value as it may stand in a message: short, and of plain characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _translate_error(
    message: str, raw: object, kind: type, where: Path, choices: Mapping[str, Sequence[str]], at: str
) -> UsageError:
    problem, path = _split_message(message)
    field_path = f"{at}.{path}" if at and path else at or path
    if unknown := _UNKNOWN.match(problem):
        known = _field_names(kind, path)
        return field_error(
            where,
            _join_path(field_path, unknown[1]),
            f"no such key: {value_text(unknown[1])}",
            did_you_mean(unknown[1], known),
        )
    if missing := _MISSING.match(problem):
        return field_error(where, _join_path(field_path, missing[1]), "this key is missing")
    value = _value_at(raw, path)
    words = choices.get(next((name for name, _ in reversed(_path_steps(path)) if name), ""))
    if words:
        hint = did_you_mean(value, words) if isinstance(value, str) else None
        allowed = f"one of {', '.join(words)}" if len(words) > 1 else words[0]
        return field_error(where, field_path, f"{value_text(value)} is not allowed; expected {allowed}", hint)
    return field_error(where, field_path, f"{value_text(value)} is not allowed; expected {_expected_text(problem)}")


def _split_message(message: str) -> tuple[str, str]:
    """Return the problem that msgspec reports, and the path of the field."""
    match = _PLACED.match(message)
    return (match["problem"], (match["path"] or "").lstrip(".")) if match else (message, "")


def _expected_text(problem: str) -> str:
    """Return what msgspec expected, in plain words."""
    match = _EXPECTED.match(problem)
    if match is None:
        return "a value in range" if "out of range" in problem else problem[:1].lower() + problem[1:]
    if "matching regex" in problem:
        return "a name of letters, digits and any of _ . + -, at most 100 of them"
    text = re.sub(
        r"`([^`]*)`", lambda kinds: " or ".join(_KINDS.get(name, name) for name in kinds[1].split(" | ")), match[1]
    )
    for sign, words in _BOUNDS.items():
        text = text.replace(f" {sign} ", f" {words} ")
    return text.replace("of length of at least", "with at least").replace("of length of at most", "with at most")


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name[:_LONGEST]}" if path else name[:_LONGEST]


def _path_steps(path: str) -> list[tuple[str, str]]:
    """Return names and numbers of a path like ``variants[0].threads``; one of the two is empty in each step."""
    return _STEP.findall(f".{path}" if path and not path.startswith("[") else path)


def _value_at(raw: object, path: str) -> object:
    value: Any = raw
    for name, number in _path_steps(path):
        value = value[int(number)] if number else value.get(name)
    return value


def _field_names(kind: type, path: str) -> list[str]:
    """Return the keys of the Struct at a path."""
    info: Any = msgspec.inspect.type_info(kind)
    for name, _ in _path_steps(path):
        if name:
            info = next((field.type for field in info.fields if field.encode_name == name), info)
        info = _struct_in(info)
    return [field.encode_name for field in getattr(info, "fields", ())]


def _struct_in(info: Any) -> Any:  # noqa: ANN401 - one of msgspec's descriptions of types
    """Return the Struct that a field holds, alone, in a list or in a union."""
    if isinstance(info, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        return _struct_in(info.item_type)
    if isinstance(info, msgspec.inspect.UnionType):
        return next((_struct_in(member) for member in info.types if hasattr(_struct_in(member), "fields")), info)
    return info
