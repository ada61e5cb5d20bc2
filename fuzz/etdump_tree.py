"""ETDump files as blocks of events in a tree, for fuzzing.

What is changed: names, times, nesting, identifiers, blocks, and the layouts (vtables) of the tables. What comes out is
a FlatBuffer without damage, unless a layout was changed to one that no writer makes.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import flatbuffers
import numpy as np

from fuzz.structure import Structure

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    EventChange: TypeAlias = Callable[[Random, "Event"], tuple["Event", ...]]

_LARGEST_TREE, _DEEPEST = 400, 150
"""Events of a file; more would be cut off at the size of an input."""
_LONG, _WORD = 1 << 64, 1 << 31
_TIMES = (0, 1, 2, 10, 999, 1000, 1001, 65_536, 1_000_000, 1 << 31, 1 << 32)
_EXTREMES = (_LONG // 4, _LONG // 2 - 1, _LONG // 2, _LONG - 1)
_SELDOM = 0.05
_NUMBERS = (-1, 0, 1, 2, 7, 1000, -2, _WORD - 1, -_WORD)
_NAMES = (
    *("Method::execute", "Method::init", "Program::load_method", "DELEGATE_CALL", "OPERATOR_CALL", "JF_CALL"),
    *("native_call_add.out", "native_call_", "Convolution (NHWC, F32) IGEMM #1", "Clamp (NC) #1", "IREE_INIT", "", "0"),
    *("\x1b[31m", "[/x]", "a\0b", "\ud7ff\u2028", "x" * 300, "Method::execute\n"),
)
_BLOCKS = ("Default", "Execute", "", "Execute 2", "inference")
_SLOTS = ("name", "chain", "instruction", "delegate", "label", "metadata", "start", "end")
_LAYOUT_OFFSETS = (0, 2, 4, 6, 8, 12, 16, 24, 0x7FFE, 0xFFFE)


@dataclass(frozen=True)
class Event:
    """A profiling event with the events inside it; None is a field that is not written.

    Attributes:
        name: of the event.
        label: identifier of a delegate, as text.
        delegate: the same as a number.
        lasts: duration in ns.
        shift: of its start and of its end, in ns, against what nesting asks for.
        order: of the fields in the table.
        bare: whether there is no profiling table at all.
        defaults: whether fields are written that hold their default.
        after: whether the events inside stand behind it in the file.
    """

    name: str | None
    lasts: int
    chain: int | None = 0
    instruction: int | None = 0
    label: str | None = None
    delegate: int | None = None
    metadata: bytes | None = None
    shift: tuple[int, int] = (0, 0)
    order: tuple[int, ...] = tuple(range(8))
    bare: bool = False
    defaults: bool = False
    after: bool = False
    inside: tuple[Event, ...] = ()

    @property
    def count(self) -> int:
        """Events of this tree."""
        return 1 + sum(event.count for event in self.inside)

    def duration(self, fitting: bool) -> int:
        """Its time in ns; at least that of what is inside, where everything is to fit."""
        inside = sum(event.duration(fitting) for event in self.inside) if fitting else 0
        return max(self.lasts, inside)


@dataclass(frozen=True)
class Block:
    """A run of events; ``events`` of None is a vector that is not written."""

    name: str | None
    events: tuple[Event, ...] | None


@dataclass(frozen=True)
class File:
    """An ETDump.

    Attributes:
        blocks: in order.
        clock: time at which the first event starts, in ns.
        size_prefix: whether its size stands before it.
        fitting: whether events last at least as long as those inside them.
        layouts: edits of the layouts of events: which one, slot, offset.
    """

    blocks: tuple[Block, ...]
    clock: int = 1_000_000
    size_prefix: bool = True
    fitting: bool = True
    layouts: tuple[tuple[int, int, int], ...] = ()


def _starts() -> list[File]:
    operators = (
        Event("DELEGATE_CALL", 80, inside=(Event(None, 50, label="Convolution (NHWC, F32) IGEMM #1"),)),
        Event("OPERATOR_CALL", 20, instruction=1, inside=(Event("native_call_add.out", 15, instruction=1),)),
    )
    load = Block("Default", (Event("Program::load_method", 900, -1, inside=(Event("Method::init", 700, -1),)),))
    run = Block("Execute", (Event("Method::execute", 120, -1, inside=operators),))
    short = Block("Execute", (Event("Method::execute", 9, -1, inside=(Event(None, 5, delegate=3),)),))
    return [File((load, run)), File((load, *[run] * 8)), File((short,) * 6, size_prefix=False), File((run, load, run))]


def _changed(rng: Random, file: File, other: File) -> File:
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        changed = rng.choice(_CHANGES)(rng, file, other)
        file = changed if _small(changed) else file
    return file


def _small(file: File) -> bool:
    """Whether a tree is one that may be changed further: each change may double it."""
    events = [event for block in file.blocks for event in block.events or ()]
    return sum(event.count for event in events) <= _LARGEST_TREE and max(map(_depth, events), default=0) <= _DEEPEST


def _depth(event: Event) -> int:
    return 1 + max(map(_depth, event.inside), default=0)


def _change_event(rng: Random, file: File, _: File) -> File:
    """One event becomes another, in one block or in all that are like it, as inferences that repeat."""
    places = [number for number, block in enumerate(file.blocks) if block.events]
    if not places:
        return file
    chosen = file.blocks[rng.choice(places)]
    at, change, everywhere = rng.randrange(1 << 16), rng.choice(_EVENT_CHANGES), rng.random() < _ALL_LIKE_IT
    seed = rng.random()
    blocks = list(file.blocks)
    for number in places:
        block = blocks[number]
        if block is chosen or (everywhere and block == chosen):
            blocks[number] = replace(block, events=_with_one(block.events or (), at, _alike(change, seed)))
    return replace(file, blocks=tuple(blocks))


_ALL_LIKE_IT = 0.6


def _alike(change: EventChange, seed: float) -> Callable[[Event], tuple[Event, ...]]:
    """The same change, however often it is made."""
    return lambda event: change(random.Random(seed), event)  # noqa: S311 - reproducible damage, not a secret


def _with_one(events: tuple[Event, ...], at: int, change: Callable[[Event], tuple[Event, ...]]) -> tuple[Event, ...]:
    """The events with the one of a number, counted through the tree, replaced by others."""
    total = sum(event.count for event in events)
    at %= max(1, total)
    found: list[Event] = []
    for event in events:
        if at == 0:
            found += change(event)
        elif 0 < at < event.count:
            found.append(replace(event, inside=_with_one(event.inside, at - 1, change)))
        else:
            found.append(event)
        at = at - event.count if at >= 0 else at
    return tuple(found)


def _rename(rng: Random, event: Event) -> tuple[Event, ...]:
    name = rng.choice((*_NAMES, None))
    if rng.random() < 0.5:  # noqa: PLR2004 - a fair coin
        return (replace(event, name=name),)
    return (replace(event, label=name, name=rng.choice((None, event.name))),)


def _retime(rng: Random, event: Event) -> tuple[Event, ...]:
    if rng.random() < _SELDOM:
        return (replace(event, lasts=rng.choice(_EXTREMES)),)
    if rng.random() < 0.6:  # noqa: PLR2004 - mostly, since what is shifted rarely fits
        return (replace(event, lasts=rng.choice((*_TIMES, event.lasts * 1000, event.lasts + 1))),)
    near = (0, 0, 0, 1, -1, 2, 1000, -1000, event.lasts, -event.lasts)
    return (replace(event, shift=(rng.choice(near), rng.choice(near))),)


def _renumber(rng: Random, event: Event) -> tuple[Event, ...]:
    field = rng.choice(("chain", "instruction", "delegate"))
    near = (getattr(event, field) or 0) + rng.choice((-1, 1))
    return (replace(event, **{field: rng.choice((*_NUMBERS, None, max(-_WORD, min(_WORD - 1, near))))}),)


def _nest(rng: Random, event: Event) -> tuple[Event, ...]:
    """Its events come out, go one deeper, or stand in it once more."""
    return rng.choice(
        (
            (replace(event, inside=()), *event.inside),
            (replace(event, inside=(event,)),),
            (replace(event, inside=event.inside * 2),),
            event.inside,
            (event, event),
            (),
        )
    )


def _deepen(rng: Random, event: Event) -> tuple[Event, ...]:
    for _ in range(rng.choice((3, 60))):
        event = Event(event.name, event.lasts, event.chain, event.instruction, inside=(event,))
    return (event,)


def _lay_out(rng: Random, event: Event) -> tuple[Event, ...]:
    order = list(event.order)
    rng.shuffle(order)
    return (
        replace(
            event,
            order=tuple(order),
            bare=rng.random() < 0.1,  # noqa: PLR2004 - seldom, since nothing of the event is left
            defaults=rng.random() < 0.5,  # noqa: PLR2004 - a fair coin
            after=rng.random() < 0.3,  # noqa: PLR2004 - now and then
            metadata=rng.choice((None, b"", b"\0\xff{}")),
        ),
    )


_EVENT_CHANGES = (_rename, _retime, _retime, _renumber, _renumber, _nest, _nest, _deepen, _lay_out)


def _change_blocks(rng: Random, file: File, other: File) -> File:
    blocks = list(file.blocks)
    at = rng.randrange(len(blocks) + 1)
    taken = rng.choice(other.blocks or (Block("Execute", ()),))
    action = rng.randrange(6)
    if action == 0 or not blocks:
        blocks.insert(at, taken)
    elif action == 1:
        blocks[at:at] = [rng.choice(blocks)] * rng.choice((1, 2, 8))
    elif action == 2:  # noqa: PLR2004 - one of the actions
        del blocks[rng.randrange(len(blocks))]
    elif action == 3:  # noqa: PLR2004 - one of the actions
        rng.shuffle(blocks)
    else:
        at %= len(blocks)
        events = rng.choice((blocks[at].events, None, (), (blocks[at].events or ()) * 2))
        blocks[at] = Block(rng.choice((*_BLOCKS, None, blocks[at].name)), events)
    return replace(file, blocks=tuple(blocks))


def _change_layout(rng: Random, file: File, _: File) -> File:
    """An offset in a layout becomes that of nothing, of another field, or leads out of the table."""
    edit = rng.randrange(8), rng.randrange(len(_SLOTS)), rng.choice(_LAYOUT_OFFSETS)
    return replace(file, layouts=(*file.layouts[-3:], edit))


def _change_frame(rng: Random, file: File, _: File) -> File:
    clock = rng.choice((*_TIMES, *_EXTREMES))
    return replace(file, clock=clock, size_prefix=rng.random() < 0.8, fitting=rng.random() < 0.8)  # noqa: PLR2004 - usually


_CHANGES = (*[_change_event] * 12, *[_change_blocks] * 4, _change_layout, _change_frame)


def _written(file: File) -> bytes:
    builder = flatbuffers.Builder(1024)
    clock = file.clock
    blocks = []
    for block in file.blocks:
        tables: list[int] = []
        for event in block.events or ():
            tables += _event(builder, event, clock, file.fitting)
            clock += event.duration(file.fitting) + 1_000
        blocks.append(_block(builder, block, tables))
    vector = _vector(builder, blocks)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, vector, 0)
    root = builder.EndObject()
    (builder.FinishSizePrefixed if file.size_prefix else builder.Finish)(root, file_identifier=b"ED00")
    return _edited(bytes(builder.Output()), file)


def _event(builder: flatbuffers.Builder, event: Event, start: int, fitting: bool) -> list[int]:
    """Offsets of the tables of an event and of those inside it."""
    inside, at = list[int](), start
    for each in event.inside:
        inside += _event(builder, each, at, fitting)
        at += each.duration(fitting)
    own = _entry(builder, event, start, start + event.duration(fitting))
    return [own, *inside] if event.after else [*inside, own]


def _entry(builder: flatbuffers.Builder, event: Event, start: int, end: int) -> int:
    profile = None if event.bare else _profile(builder, event, start, end)
    builder.StartObject(3)
    if profile is not None:
        builder.PrependUOffsetTRelativeSlot(0, profile, 0)
    return int(builder.EndObject())


def _profile(builder: flatbuffers.Builder, event: Event, start: int, end: int) -> int:
    texts = {slot: _text(builder, text) for slot, text in ((0, event.name), (4, event.label)) if text is not None}
    if event.metadata is not None:
        texts[5] = builder.CreateByteVector(event.metadata)
    numbers = {1: (event.chain, 0), 2: (event.instruction, -1), 3: (event.delegate, -1)}
    times = {6: start + event.shift[0], 7: end + event.shift[1]}
    builder.ForceDefaults(event.defaults)
    builder.StartObject(len(_SLOTS))
    for slot in event.order:
        if slot in texts:
            builder.PrependUOffsetTRelativeSlot(slot, texts[slot], 0)
        elif slot in times:
            builder.PrependUint64Slot(slot, times[slot] % _LONG, 0)
        elif slot in numbers and numbers[slot][0] is not None:
            builder.PrependInt32Slot(slot, *numbers[slot])
    builder.ForceDefaults(forceDefaults=False)
    return int(builder.EndObject())


def _text(builder: flatbuffers.Builder, text: str) -> int:
    return int(builder.CreateString(text, "utf-8", "surrogatepass"))


def _block(builder: flatbuffers.Builder, block: Block, tables: list[int]) -> int:
    name = None if block.name is None else builder.CreateString(block.name)
    vector = None if block.events is None else _vector(builder, tables)
    builder.StartObject(4)
    if name is not None:
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
    if vector is not None:
        builder.PrependUOffsetTRelativeSlot(3, vector, 0)
    return int(builder.EndObject())


def _vector(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _edited(data: bytes, file: File) -> bytes:
    """The file with edits of the layouts that its events have."""
    found = _layouts(data, file.size_prefix) if file.layouts else []
    edited = bytearray(data)
    for number, slot, offset in file.layouts:
        if found:
            at = found[number % len(found)]
            if 4 + 2 * slot < struct.unpack_from("<H", data, at)[0]:
                struct.pack_into("<H", edited, at + 4 + 2 * slot, offset)
    return bytes(edited)


def _layouts(data: bytes, size_prefix: bool) -> list[int]:
    """Where the layouts of profiling events stand, in order."""
    from opscope.readers.flatbuffer import FlatBuffer, Tables

    buffer = FlatBuffer(data, "fuzzed", 4 if size_prefix else 0)
    blocks = Tables(buffer, buffer.root().children(1)[0])
    profiles = Tables(buffer, blocks.children(3)[0]).reference(0)
    profiles = profiles[profiles > 0]
    return sorted(np.unique(buffer.vtables(profiles)[0]).tolist()) if len(profiles) else []


STRUCTURE = Structure(_starts, _changed, _written)
