"""What is known of a rule: its name, what it looks for, how severe what it finds is, and its thresholds."""

from __future__ import annotations

import dis
import inspect
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from opscope.analysis.findings.message import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FunctionType


class Rule(NamedTuple):
    """A rule.

    Attributes:
        name: stable identifier, which its messages bear.
        looks_for: in words.
        severities: that its findings can have, the highest first; empty for a check of a measurement, which limits
            the grade.
        thresholds: constants that decide, by name; a pair is a limit for each grade.
    """

    name: str
    looks_for: str
    severities: tuple[Severity, ...] = ()
    thresholds: Mapping[str, float | tuple[float, ...]] = {}


def rule_of(check: Callable[..., object]) -> Rule:
    """The rule that a function is: its name, its docstring, and the severities and thresholds that its code names."""
    function: FunctionType = inspect.unwrap(check)
    words = " ".join((inspect.getdoc(check) or "").split())
    found = dict(_constants(function, {function.__name__}))
    severities = tuple(severity for severity in Severity if severity.name in found)
    limits = {name: value for name, value in found.items() if value is not None}
    return Rule(function.__name__, words, severities, limits)


def _constants(function: FunctionType, seen: set[str]) -> Iterator[tuple[str, float | tuple[float, ...] | None]]:
    """Numbers of its module that a function names, and severities, without a value; of functions that it calls, too."""
    for used in _instructions(function.__code__):
        name = str(used.argval)
        if name in Severity.__members__:
            yield name, None
        if used.opname != "LOAD_GLOBAL":
            continue
        value = function.__globals__.get(name)
        if name.isupper() and not name.startswith("_") and _is_threshold(value):
            yield name, value
        elif inspect.isfunction(value) and name not in seen and value.__module__ == function.__module__:
            seen.add(name)
            yield from _constants(value, seen)


def _is_threshold(value: object) -> TypeGuard[float | tuple[float, ...]]:
    values = value if isinstance(value, tuple) else (value,)
    return all(type(each) in {int, float} for each in values)


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if inspect.iscode(inner):
            yield from _instructions(inner)
