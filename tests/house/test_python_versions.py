"""What Python 3.10 refuses and neither ruff nor mypy sees, in all code of this repository.

``make test-pythons`` runs the commands in every Python; this finds the same where the old ones are missing, and sees
that no command is left out there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

import smoke
from documents import ROOT

ROOMS = ("src", "tests", "bench", "fuzz", "docs")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
ONE_BASE = {"NamedTuple", "TypedDict"}
_ONE_LETTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""What stands for one letter and may hold any sign: an escape, a set."""
_KEEPS_WHAT_IT_TOOK = re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+|\(\?>")
"""A possessive quantifier or an atomic group."""


def second_bases(tree: ast.Module) -> Iterator[int]:
    """Lines of named tuples and typed dictionaries that are generic, or have another second base."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and len(node.bases) > 1 and ONE_BASE.intersection(map(_name, node.bases)):
            yield node.lineno


def _name(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def new_patterns(tree: ast.Module, lines: list[bytes]) -> Iterator[int]:
    """Lines of raw strings that are a regular expression only from Python 3.11 on.

    Raw strings of several lines are left out: they are text in other languages, such as C.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.lineno == node.end_lineno:
            start = lines[node.lineno - 1][node.col_offset :][:3].lower()
            if re.match(rb"(?:r|rb|br|rf|fr)[\"']", start) and _KEEPS_WHAT_IT_TOOK.search(_plain(_text(node))):
                yield node.lineno


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    value = node.value if isinstance(node, ast.Constant) else "x"
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _plain(pattern: str) -> str:
    return _ONE_LETTER.sub("x", pattern)


def refused(source: str) -> list[int]:
    """Lines that Python 3.10 cannot import."""
    tree = ast.parse(source)
    return sorted({*second_bases(tree), *new_patterns(tree, source.encode().splitlines())})


@pytest.mark.parametrize("room", ROOMS)
def test_no_code_is_refused_by_python_3_10(room: str) -> None:
    """No generic named tuple and no possessive quantifier, wherever it stands."""
    files = [path for path in FILES if path.is_relative_to(ROOT / room)]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in refused(path.read_text("utf-8"))]
    assert files
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "class Pair(NamedTuple, Generic[T]): ...",
        "class Pair(typing.TypedDict, Generic[T]): ...",
        "import re; re.compile(r'a*+')",
        "FOUND = rb'(?>ab)'",
        "FOUND = r'[a-z]{2,3}+'",
        "FOUND = rf'{start}?+'",
    ],
)
def test_what_python_3_10_refuses_is_found(line: str) -> None:
    """In a class, and in raw strings of every kind."""
    assert refused(line) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "class Pair(NamedTuple): ...",
        r"FOUND = r'[*+]\*+'",
        r"FOUND = r'(?:\+)+[+?]+'",
        "FOUND = rf'{start}+'",
        "SAID = 'C++'",
        "CODE = r'''\nfor (;;) i++;\n'''",
    ],
)
def test_what_python_3_10_takes_is_left_alone(line: str) -> None:
    """Signs in sets and behind escapes are not quantifiers; other strings are not patterns."""
    assert not refused(line)


def test_every_command_is_run_in_every_python() -> None:
    """The smoke test has a step for each, beside its help."""
    every = set(smoke.commands())
    groups = {words[:-1] for words in every if words}
    run = {tuple(step.line.split()[: len(words)]) for step in smoke.STEPS for words in every}
    assert not (every - groups) - run
