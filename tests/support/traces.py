"""Traces written by hand, as indented text, and encoded as real ETDump files.

    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 80000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 15000
        native_call_add.out 14000

A line is a name, the instruction for calls, and the duration in ns. Each outermost event opens a block of its own
(loading: "Default", inference: "Execute"), as the runtime does. Children start where their parent does, one after the
other; in the file they precede their parent, and names under DELEGATE_CALL are delegate identifiers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import flatbuffers

from opscope.core.table import EventTable
from opscope.runtimes.executorch.etdump import EtdumpReader

_LINE = re.compile(r"^(?P<indent> *)(?P<name>.+?)(?: @(?P<instruction>\d+))? (?P<duration>\d+)$")
_FRAMEWORK_CHAIN = -1


@dataclass
class Node:
    """An event with its children; of a delegate's the name is the identifier that is given instead of a name."""

    name: str
    duration: int
    instruction: int = 0
    delegate: bool = False
    children: list[Node] = field(default_factory=list)
    start: int | None = None  # behind the parent's; None for behind the event before it


def parse(text: str) -> list[Node]:
    """Outermost events of a trace written as text."""
    roots: list[Node] = []
    stack: list[tuple[int, Node]] = []
    for line in (line for line in dedent(text).splitlines() if line.strip()):
        match = _LINE.match(line)
        assert match, f"no event: {line!r}"
        depth = len(match["indent"])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1] if stack else None
        inherited = parent.instruction if parent else 0
        instruction = int(match["instruction"]) if match["instruction"] else inherited
        delegate = parent is not None and parent.name == "DELEGATE_CALL"
        node = Node(match["name"], int(match["duration"]), instruction, delegate)
        (parent.children if parent else roots).append(node)
        stack.append((depth, node))
    return roots


def etdump(text: str, *, repeat: int = 1, size_prefix: bool = True) -> bytes:
    """The trace as an ETDump file; ``repeat`` writes the inferences that many times."""
    roots = parse(text)
    loads = [root for root in roots if root.name != "Method::execute"]
    inferences = [root for root in roots if root.name == "Method::execute"]
    return encode(
        [*([("Default", loads)] if loads else []), *(("Execute", [i]) for i in inferences * repeat)], size_prefix
    )


def encode(blocks: list[tuple[str, list[Node]]], size_prefix: bool = True) -> bytes:
    """Blocks of events as an ETDump file."""
    builder = flatbuffers.Builder(1024)
    clock = 1_000_000
    encoded = []
    for name, roots in blocks:
        events = []
        for root in roots:
            events += _events(builder, root, clock)
            clock += root.duration + 1_000
        encoded.append(_run(builder, name, events))
    root = _table(builder, 2, [(1, _vector(builder, encoded))])
    finish = builder.FinishSizePrefixed if size_prefix else builder.Finish
    finish(root, file_identifier=b"ED00")
    return bytes(builder.Output())


def table(text: str, *, repeat: int = 1, warmup: int = 0) -> EventTable:
    """The trace as the reader gives it."""
    return EtdumpReader().read(etdump(text, repeat=repeat), Path("trace.etdump")).with_warmup(warmup)


def _events(builder: flatbuffers.Builder, node: Node, start: int) -> list[int]:
    """Offsets of an event's table and those inside it, children first."""
    offsets, at = [], start
    for child in node.children:
        offsets += _events(builder, child, at if child.start is None else start + child.start)
        at += child.duration
    return [*offsets, _event(builder, node, start)]


def _event(builder: flatbuffers.Builder, node: Node, start: int) -> int:
    text = builder.CreateString(node.name)
    framework = node.name.startswith(("Method::", "Program::"))
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(4 if node.delegate else 0, text, 0)
    builder.PrependInt32Slot(1, _FRAMEWORK_CHAIN if framework else 0, 0)
    builder.PrependInt32Slot(2, 0 if framework else node.instruction, -1)
    builder.PrependUint64Slot(6, start, 0)
    builder.PrependUint64Slot(7, start + node.duration, 0)
    return _table(builder, 3, [(0, builder.EndObject())])


def _run(builder: flatbuffers.Builder, name: str, events: list[int]) -> int:
    text, vector = builder.CreateString(name), _vector(builder, events)
    return _table(builder, 4, [(0, text), (3, vector)])


def _vector(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _table(builder: flatbuffers.Builder, slots: int, fields: list[tuple[int, int]]) -> int:
    builder.StartObject(slots)
    for slot, offset in fields:
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return builder.EndObject()
