"""Events that the slots of a trace unit stand for: raw trace words do not say, so the user does.

A list is ``NAME,NAME,...`` in the order of the slots, for cores; ``UNIT=NAME,NAME,...`` for another kind of unit. A
file holds such lists one a line; ``#`` starts a comment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError, did_you_mean
from opscope.core.system.memory import file_bytes
from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import SLOTS, UNUSED, Unit
from opscope.core.units import counted_text
from opscope.npu.devices import event_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from opscope.core.table.tiles import SlotTrace

    Slots = Mapping[Unit, Sequence[str]]
    """Names of the eight slots of each kind of unit."""

_HINT = "for example INSTR_EVENT_0,INSTR_EVENT_1,INSTR_VECTOR or mem=DMA_S2MM_0_START_TASK,NONE"
_LONGEST_FILE = 1 << 16
_MOST_LISTED = 5
_MOST_LETTERS = 40


def parse_slots(lists: Iterable[str], where: str = "--slots") -> Slots:
    """Return the names of the slots of each kind of unit."""
    slots: dict[Unit, tuple[str, ...]] = {}
    known = [unit.value for unit in Unit]
    for part in (part.strip() for text in lists for part in text.split(";")):
        before, equals, after = part.partition("=")
        word, names = (before.strip(), after.split(",")) if equals else (Unit.CORE.value, part.split(","))
        if not part:
            continue
        if word.lower() not in known:
            hint = did_you_mean(word.lower(), known)
            raise UsageError(f"unknown kind of unit: {word[:40]!r}", where=where, hint=hint)
        unit = Unit(word.lower())
        if unit in slots:
            raise UsageError(f"the slots of {unit.value} are named twice", where=where, hint="give one list per unit")
        if len(names) > SLOTS:
            raise UsageError(f"{len(names)} slots of {unit.value}: a unit has {SLOTS}", where=where, hint=_HINT)
        slots[unit] = tuple(_event_name(name.strip(), unit, where) for name in names)
    if not slots:
        raise UsageError("no slot named", where=where, hint=_HINT)
    return slots


def read_slots(path: Path) -> Slots:
    """Read the names of slots from a file."""
    data = file_bytes(path)
    if len(data) > _LONGEST_FILE:
        raise UsageError("too long for a list of slots", where=str(path), hint=_HINT)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError("not a text file of slot lists", where=str(path), hint=_HINT) from None
    return parse_slots((line.partition("#")[0].replace(":", "=", 1) for line in lines), str(path))


def _event_name(word: str, unit: Unit, where: str) -> str:
    """Return today's name of an event; an empty word is an unused slot."""
    name = event_names().current(word or UNUSED)
    known = [event for event in event_names().of(unit.value) if event]
    if name == UNUSED or name in known:
        return name
    upper = name.upper()
    if upper in known or upper == UNUSED:
        return upper
    near = did_you_mean(upper, known)
    hint = near if near.startswith("did") else "use the names of mlir-aie, such as INSTR_VECTOR or LOCK_STALL"
    raise UsageError(f"{unit.value} has no event {word[:60]!r}", where=where, hint=hint)


def no_core(units: Iterable[Unit]) -> list[TraceWarning]:
    """Return a warning when no unit is a core."""
    if Unit.CORE in units:
        return []
    message = "no core was traced, so there are no kernel calls"
    return [TraceWarning("no_core_trace", message, "trace a core as well: INSTR_EVENT_0 and INSTR_EVENT_1")]


def unknown_events(recorded: str, unit: Unit, slots: Iterable[SlotTrace]) -> list[TraceWarning]:
    """Return a warning when slots with spans have names that are in no table of their unit."""
    known = event_names().of(unit.value)
    unknown = sorted({slot.recorded for slot in slots if len(slot.spans.start) and slot.name not in known})
    if not unknown:
        return []
    listed = ", ".join(name[:_MOST_LETTERS] for name in unknown[:_MOST_LISTED])
    message = f"{recorded}: {counted_text(len(unknown), 'event', ',')} unknown for this unit: {listed}"
    return [TraceWarning("events_unknown", message, "their spans keep their names")]
