"""Small changes of a module that a test should notice, one at a time, chosen by hashes of what they change."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SWAPS: dict[type[ast.AST], Callable[[], Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NOTHING_TO_NOTICE = (ast.JoinedStr, ast.Raise, ast.Assert)
"""Text, and errors with their messages: the conditions that lead to them are changed, not what they say."""


class Mutant(NamedTuple):
    """A changed module.

    Attributes:
        line: of the change.
        before: the expression.
        after: what stands in its place.
        source: of the module with it.
    """

    line: int
    before: str
    after: str
    source: str


def mutants(source: str, count: int) -> list[Mutant]:
    """So many mutants of a module, each in a function of its own where there are enough, in the order of lines.

    Code that moves keeps its mutants: they are chosen by a hash of the function's name and the expression. Annotations,
    signatures, texts, errors, ``if TYPE_CHECKING`` and methods of representation are left alone.
    """
    seen: Counter[str] = Counter()
    places: dict[str, tuple[str, ast.expr]] = {}
    for function, node in _places(ast.parse(source)):
        words = f"{function} {ast.unparse(node)}"
        seen[words] += 1
        places[hashlib.sha256(f"{words} {seen[words]}".encode()).hexdigest()] = function, node
    ordered = [places[key] for key in sorted(places)]
    first = dict(reversed(ordered))
    chosen = sorted(ordered, key=lambda place: first[place[0]] is not place[1])[:count]
    return sorted((_mutant(source, node) for _, node in chosen), key=lambda mutant: mutant.line)


def _places(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Expressions in functions that can be changed, with the qualified names of the functions."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if child.name not in {"__repr__", "__str__"}:
                for statement in child.body:
                    yield from _places(ast.Module([statement], []), f"{function}.{child.name}")
        elif isinstance(child, ast.ClassDef):
            if not function:
                yield from _places(child)
        elif isinstance(child, ast.AnnAssign):
            yield from _places(ast.Expr(child.value), function) if child.value else ()
        elif not isinstance(child, _NOTHING_TO_NOTICE) and not _for_types(child):
            if function and isinstance(child, ast.expr) and _changed(child):
                yield function, child
            yield from _places(child, function)


def _for_types(node: ast.AST) -> bool:
    """Whether a statement or call is there for the type checker alone."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast"


def _changed(node: ast.expr) -> ast.expr | None:
    """The expression with one change; None for one that has none."""
    made = copy.deepcopy(node)
    if isinstance(made, ast.Compare) and type(made.ops[0]) in _SWAPS:
        made.ops[0] = _SWAPS[type(made.ops[0])]()
    elif isinstance(made, (ast.BinOp, ast.BoolOp)) and type(made.op) in _SWAPS and not _of_text(made):
        made.op = _SWAPS[type(made.op)]()
    elif isinstance(made, ast.IfExp):
        made.body, made.orelse = made.orelse, made.body
    elif isinstance(made, ast.UnaryOp) and isinstance(made.op, ast.Not):
        made = ast.Call(ast.Name("bool"), [made.operand], [])
    else:
        return None
    return made


def _of_text(node: ast.BinOp | ast.BoolOp) -> bool:
    """Whether text or lists are joined, which no other operator does."""
    return isinstance(node, ast.BinOp) and any(map(_is_text, (node.left, node.right)))


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp))


def _mutant(source: str, node: ast.expr) -> Mutant:
    before, after = ast.unparse(node), ast.unparse(_changed(node) or node)
    lines = source.encode().splitlines(keepends=True)
    start, end = (
        sum(map(len, lines[: line - 1])) + column
        for line, column in ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
    )
    data = source.encode()
    return Mutant(node.lineno, before, after, (data[:start] + f"({after})".encode() + data[end:]).decode())
