"""AI Engine traces in JSON with known truth: cores, iterations that wait for a lock, and damage of a chosen kind.

The layout is that of mlir-aie. An iteration is a long lock stall and a number of kernel calls after it; each call has
vector instructions inside and a short lock stall behind it.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Damage = Literal["none", "marks", "calls", "time", "duplicates", "outliers", "marks and outliers"]
DAMAGES: tuple[Damage, ...] = ("none", "marks", "calls", "time", "duplicates", "outliers", "marks and outliers")
SLOTS = ("INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR", "LOCK_STALL")
STALL = 40_000
"""Cycles of lock stall before an iteration: more than twenty kernel calls, as the published tool asks."""


class Run(NamedTuple):
    """What is generated.

    Attributes:
        cores: how many.
        iterations: of each core.
        calls: of each iteration.
        cycles: of a call, give or take a fiftieth.
        damage: what happened to the trace.
        seed: of all chances.
    """

    cores: int
    iterations: int
    calls: int
    cycles: int
    damage: Damage
    seed: int


class Truth(NamedTuple):
    """An iteration as it was: cycles from its first start to its last end, and its calls."""

    span: int
    calls: int


class _Event(NamedTuple):
    time: int
    begin: bool
    slot: int


def generated(run: Run) -> tuple[bytes, dict[str, list[Truth]]]:
    """Return a trace, and for each tile its iterations as they were."""
    chance = random.Random(f"{run}")
    records: list[dict] = []
    truth: dict[str, list[Truth]] = {}
    for pid in range(run.cores):
        name = f"tile{pid % 4 + 2},{pid // 4}"
        records.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"core_trace for {name}"}})
        records += [
            {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": event}}
            for tid, event in enumerate(SLOTS)
        ]
    for pid in range(run.cores):
        events, truth[f"tile{pid % 4 + 2},{pid // 4}"] = _core(run, chance)
        records += [
            {"name": SLOTS[slot], "ts": time, "ph": "B" if begin else "E", "pid": pid, "tid": slot, "args": {}}
            for time, begin, slot in events
        ]
    return b"[\n" + b",\n".join(json.dumps(record).encode() for record in records) + b"\n]\n", truth


def _core(run: Run, chance: random.Random) -> tuple[list[_Event], list[Truth]]:
    """The events of a core, and its iterations."""
    events: list[_Event] = []
    truth: list[Truth] = []
    now = 100 + chance.randrange(50)
    for number in range(run.iterations):
        if number:
            events += _span(3, now, now + STALL)
            now += STALL + 5
        first = now
        hurt = chance.sample(range(run.calls), 1)[0] if number != run.iterations - 1 and chance.random() < 0.6 else -1
        lost = chance.choice(("start", "end"))
        for call in range(run.calls):
            length = _length(run, chance, call == hurt)
            kept = list(_call(now, length))
            if call == hurt:
                kept = _damaged(run.damage, kept, lost, chance)
            events += kept
            now += length
            rest = chance.randrange(10, 40)
            events += _span(3, now + 2, now + rest)
            now += rest + 3
        truth.append(Truth(now - rest - 3 - first, run.calls))
        if run.damage == "time" and hurt >= 0:
            events, gone = _without_packet(events, first + (hurt + 1) * run.cycles, run.cycles)
            now -= gone
    events.sort()
    return events, truth


def _length(run: Run, chance: random.Random, odd: bool) -> int:
    length = run.cycles + chance.randrange(-run.cycles // 50, run.cycles // 50 + 1)
    if "outliers" in run.damage and odd:
        return int(length * chance.choice((0.2, 3.5)))
    return length


def _span(slot: int, start: int, end: int) -> list[_Event]:
    return [_Event(start, begin=True, slot=slot), _Event(end, begin=False, slot=slot)]


def _call(now: int, length: int) -> Iterator[_Event]:
    yield from _span(0, now, now + 1)
    for part in range(3):
        at = now + 2 + part * (length // 4)
        yield from _span(2, at, at + max(length // 8, 1))
    yield from _span(1, now + length - 1, now + length)


def _damaged(damage: Damage, call: list[_Event], lost: str, chance: random.Random) -> list[_Event]:
    """The events of a call that is hurt."""
    if damage == "calls":
        return [event for event in call if event.slot == 2]
    if damage.startswith("marks"):
        return [event for event in call if event.slot != (0 if lost == "start" else 1)]
    if damage == "duplicates":
        slot = 0 if lost == "start" else 1
        length = call[-1].time - call[0].time
        later = chance.randrange(2, max(length // 8, 3))
        return [*call, *(event._replace(time=event.time + later) for event in call if event.slot == slot)]
    return call


def _without_packet(events: list[_Event], at: int, cycles: int) -> tuple[list[_Event], int]:
    """Drop what a lost packet held, as many cycles as a call from some cycle on, with its time."""
    kept = [event for event in events if not at <= event.time < at + cycles]
    moved = [event._replace(time=event.time - cycles) if event.time >= at else event for event in kept]
    return moved, cycles
