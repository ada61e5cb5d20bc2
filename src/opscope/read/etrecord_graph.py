"""From a graph's JSON to typed operators: texts of stack traces and module stacks taken apart once, here."""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from typing import TYPE_CHECKING

from opscope.program.dtypes import export_type
from opscope.program.etrecord import EdgeGraph, EdgeNode, EdgeTensor, Frame, ModuleScope
from opscope.read.etrecord_json import UnreadableError

if TYPE_CHECKING:
    from opscope.read.etrecord_json import Graph, Node

_PREFIXES = ("executorch.exir.dialects.edge.ops.", "torch.ops.")
_FRAME = re.compile(r'File "(.+)", line (\d{1,9}), in (.+)')
_SCOPE_PARTS = 3


def read_graph(method: str, graph: Graph) -> EdgeGraph:
    """The operators and tensors of a method, those of branches and loops behind its own.

    Raises:
        UnreadableError: a text in it is not what the exporter writes.
    """
    nodes: list[EdgeNode] = []
    tensors: list[EdgeTensor] = []
    texts = _Texts()
    waiting = deque([graph])
    while waiting:
        each = waiting.popleft()
        nodes += (_node(node, texts) for node in each.nodes)
        tensors += _tensors(each)
        arguments = (argument.arg.as_graph for node in each.nodes for argument in node.inputs)
        waiting += (inner.graph for inner in arguments if inner is not None)
    return EdgeGraph(method, tuple(nodes), tuple(tensors))


def _tensors(graph: Graph) -> list[EdgeTensor]:
    return [
        EdgeTensor(name, export_type(meta.dtype), tuple(size.value() for size in meta.sizes))
        for name, meta in graph.tensor_values.items()
    ]


class _Texts:
    """Stack traces and module stacks, each distinct text taken apart once: operators of one layer share theirs."""

    def __init__(self) -> None:
        self.frames = cache(_frames)
        self.modules = cache(_modules)


def _node(node: Node, texts: _Texts) -> EdgeNode:
    return EdgeNode(
        name=node.name or "",
        target=_target(node.target),
        inputs=tuple(name for each in node.inputs for name in each.arg.tensors()),
        outputs=tuple(name for each in node.outputs for name in each.tensors()),
        frames=texts.frames(node.metadata.stack_trace or ""),
        modules=texts.modules(node.metadata.nn_module_stack or ""),
        handles=node.metadata.handles(),
    )


def _target(target: str) -> str:
    for prefix in _PREFIXES:
        target = target.removeprefix(prefix)
    return target


def _frames(trace: str) -> tuple[Frame, ...]:
    """Lines of the form ``File "x", line 1, in f``, each with the line of code behind it where there is one."""
    lines = [line.strip() for line in trace.splitlines()]
    found = []
    for line, code in zip(lines, [*lines, ""][1:], strict=True):
        match = _FRAME.fullmatch(line)
        if match:
            file, number, function = match.groups()
            found.append(Frame(file, int(number), function, "" if _FRAME.fullmatch(code) else code))
    return tuple(found)


def _modules(stack: str) -> tuple[ModuleScope, ...]:
    """Entries ``key,path,type`` between semicolons."""
    scopes = []
    for entry in filter(None, stack.split(";")):
        parts = _split(entry)
        if len(parts) != _SCOPE_PARTS:
            raise UnreadableError(f"{entry[:60]!r} is no entry of a module stack")
        scopes.append(ModuleScope(parts[1], parts[2]))
    return tuple(scopes)


def _split(entry: str) -> list[str]:
    """An entry at its commas, those inside brackets left alone."""
    depth, start, parts = 0, 0, []
    for match in re.finditer(r"[][(),]", entry):
        depth += (match[0] in {"[", "("}) - (match[0] in {"]", ")"})
        if match[0] == "," and not depth:
            parts.append(entry[start : match.start()])
            start = match.end()
    return [*parts, entry[start:]]
