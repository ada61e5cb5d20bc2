"""What is said of a trace of AI Engine tiles whatever its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.table.events import TraceWarning
from opscope.core.table.tiles import Unit
from opscope.npu.devices import event_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.core.table.tiles import SlotTrace

_MOST_LISTED = 5
_MOST_LETTERS = 40


def no_core(units: Iterable[Unit]) -> list[TraceWarning]:
    """A warning when no unit is a core."""
    if Unit.CORE in units:
        return []
    message = "no core was traced, so there are no kernel calls to tell apart"
    return [TraceWarning("no_core_trace", message, "trace a core as well: INSTR_EVENT_0 and INSTR_EVENT_1")]


def unknown_events(recorded: str, unit: Unit, slots: Iterable[SlotTrace]) -> list[TraceWarning]:
    """A warning when slots with spans have names that are in no table of their unit."""
    known = event_names().of(unit.value)
    unknown = sorted({slot.recorded for slot in slots if len(slot.spans.start) and slot.name not in known})
    if not unknown:
        return []
    listed = ", ".join(name[:_MOST_LETTERS] for name in unknown[:_MOST_LISTED])
    message = f"{recorded}: {len(unknown):,} events are in no table of this unit: {listed}"
    return [TraceWarning("events_unknown", message, "their spans are kept under the name they have")]
