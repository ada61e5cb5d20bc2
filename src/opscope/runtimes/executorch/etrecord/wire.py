"""The JSON inside an ETRecord as it is written, no further than it is used.

Sources: ``torch/_export/serde/schema.py`` of torch 2.13 for graphs, ``devtools/etrecord/_etrecord.py`` of ExecuTorch
1.5.1 for the maps. Fields that are not named here are skipped without being built, fields that an older exporter did
not write have a default.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

Handles: TypeAlias = int | list[int]
HandleMap: TypeAlias = dict[str, dict[int, Handles]]
CountMap: TypeAlias = dict[str, dict[int, int]]

_LIST_OF_NUMBERS = re.compile(r"[\[(]?[\d, ]{1,4000}[\])]?")
_NUMBER = re.compile(r"\d+")
_LARGEST_HANDLE = 2**63


class UnreadableError(ValueError):
    """A text or a number inside the JSON is not what the exporter writes."""


def listed(handles: Handles) -> tuple[int, ...]:
    """One handle or several, as several."""
    return (handles,) if isinstance(handles, int) else tuple(handles)


class WireDelegate(msgspec.Struct):
    """A call of a delegate."""

    name: str
    delegate_map: dict[str, Handles] = {}


DelegateMap: TypeAlias = dict[str, dict[int, WireDelegate]]


class Name(msgspec.Struct):
    """What refers to a tensor."""

    name: str


class OptionalTensor(msgspec.Struct):
    """A tensor or none."""

    as_tensor: Name | None = None


class SubGraph(msgspec.Struct):
    """The body of a branch or loop."""

    graph: WireGraph


class Argument(msgspec.Struct):
    """One of many kinds of argument; those without tensors are skipped."""

    as_tensor: Name | None = None
    as_tensors: list[Name] | None = None
    as_optional_tensor: OptionalTensor | None = None
    as_optional_tensors: list[OptionalTensor] | None = None
    as_nested_tensors: list[list[Name]] | None = None
    as_graph: SubGraph | None = None

    def tensors(self) -> list[str]:
        """Names of the tensors in it."""
        optional = [self.as_optional_tensor or OptionalTensor(), *(self.as_optional_tensors or [])]
        nested = [name for names in self.as_nested_tensors or [] for name in names]
        named = [self.as_tensor, *(self.as_tensors or []), *(each.as_tensor for each in optional), *nested]
        return [each.name for each in named if each is not None]


class Input(msgspec.Struct):
    """An argument with the name of its parameter, which is not used."""

    arg: Argument


class Metadata(msgspec.Struct):
    """What the exporter noted beside an operator."""

    stack_trace: str | None = None
    nn_module_stack: str | None = None
    debug_handle: str | int | None = None

    def handles(self) -> tuple[int, ...]:
        """The debug handles; a text holds one number or a list of them."""
        if self.debug_handle is None:
            return ()
        text = str(self.debug_handle)
        if not _LIST_OF_NUMBERS.fullmatch(text):
            raise UnreadableError(f"{text[:40]!r} is not a debug handle")
        found = tuple(int(number) for number in _NUMBER.findall(text))
        if max(found, default=_LARGEST_HANDLE) >= _LARGEST_HANDLE:
            raise UnreadableError(f"{text[:40]!r} is not a debug handle")
        return found


class WireNode(msgspec.Struct):
    """An operator."""

    target: str
    inputs: list[Input]
    outputs: list[Argument]
    metadata: Metadata
    name: str | None = None


class Expression(msgspec.Struct):
    """A size that can differ between calls."""

    expr_str: str


class Size(msgspec.Struct):
    """A size: a number or an expression."""

    as_int: int | None = None
    as_expr: Expression | None = None

    def value(self) -> int | str:
        """The number, or the text of the expression."""
        if self.as_int is not None and 0 <= self.as_int < _LARGEST_HANDLE:
            return self.as_int
        if self.as_expr is None:
            raise UnreadableError("a tensor has a size that is neither a number nor an expression")
        return self.as_expr.expr_str


class TensorMeta(msgspec.Struct):
    """Type and sizes of a tensor."""

    dtype: int
    sizes: list[Size]


class WireGraph(msgspec.Struct):
    """Operators and tensors."""

    nodes: list[WireNode]
    tensor_values: dict[str, TensorMeta]


class GraphModule(msgspec.Struct):
    """A graph with its signature, which is not used."""

    graph: WireGraph


class WireProgram(msgspec.Struct):
    """An exported program."""

    graph_module: GraphModule
