"""What series have in common that moved at the same time: a device, a program, or all of them.

A figure of many programs that moves on one device alone is the device's doing; one of one program that moves on most
devices is the program's. Said is what is counted: how many of how many moved, and what else changed with them.
"""

from __future__ import annotations

import enum
import statistics
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from opscope.core.grouping import grouped
from opscope.core.json import from_json
from opscope.core.stats.many_series import FEWEST_IN_COMMON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    RunFacts: TypeAlias = Mapping[str, str | None]
    """What is known of a run besides its times: program, commit, versions, system, CPU."""
    FactsOfRuns: TypeAlias = Mapping[tuple[str, str], RunFacts]
    """The same of several, by bundle and variant."""

MOST = 0.5
"""Share of the series of a device or a model above which most of them moved."""
FEW_ELSEWHERE = 0.25
"""Share of all other series up to which a move is not theirs."""
FACTS = {
    "program_sha256": "program",
    "commit": "commit",
    "opscope": "opscope",
    "system": "system",
    "release": "Android",
    "build": "system build",
    "kernel": "kernel",
    "host": "machine",
    "cpu": "CPU",
    "revision": "microcode or core revision",
    "firmware": "firmware",
    "machine": "architecture",
    "features": "CPU features",
    "governor": "clock governor",
    "power": "power settings",
    "usable_cpus": "usable CPUs",
    "memory_size": "memory",
    "emulator": "emulator",
    "delegate": "delegate",
}
"""Columns of ``runs`` that may explain a move, and what people call them."""
OBJECTS = {"versions": "", "options": "option ", "variables": "variable "}
"""Columns with several facts in a JSON object, and what stands before the name of one of them."""
PROGRAM_FACTS = ("program_sha256", "commit")
"""Those that say that a program is another one."""
_MOST_FACTS = 6


class MoveKind(str, enum.Enum):
    """What moved."""

    DEVICE = "device"
    """Most series of one device, and few of the others."""
    MODEL = "model"
    """Most series of one model, and few of the others."""
    FLEET = "fleet"
    """Most series of all, so that devices and programs cannot be distinguished."""


class ChangedFact(msgspec.Struct, frozen=True):
    """A property of runs that is another one behind the move.

    Attributes:
        name: a column of ``runs``, or ``versions.PACKAGE``, ``options.NAME``, ``variables.NAME``.
        before: its value before the move; null where it was not known.
        after: behind it.
        moved: series that moved, and in which it changed like this.
        stayed: series that did not move, and in which it changed like this all the same.
    """

    name: str
    before: str | None
    after: str | None
    moved: int
    stayed: int


class CommonMove(msgspec.Struct, frozen=True):
    """Series that moved at the same time in the same direction, and what they have in common.

    Attributes:
        kind: what they have in common.
        name: of the device or the model; empty for the fleet.
        moved: its series that moved.
        series: its series that were judged at that time.
        elsewhere_moved: other series that moved likewise.
        elsewhere: other series.
        ratio: median over those that moved of new / before; over all of its series where most did not by themselves.
        ratios: the least and the largest of the same.
        facts: what changed in at least half of those that moved, the most telling first.
        label: when, in a history: date, commit or version of the first run of the new level; else empty.
        regression: whether a gate counts it as one.
    """

    kind: MoveKind
    name: str
    moved: int
    series: int
    elsewhere_moved: int
    elsewhere: int
    ratio: float
    ratios: tuple[float, float]
    facts: list[ChangedFact]
    label: str = ""
    regression: bool = False


class SeriesMove(NamedTuple):
    """A series at the time in question."""

    model: str  # its model
    device: str  # its device
    ratio: float  # new / before
    direction: int  # 1 when it rose, -1 when it fell, 0 when it stayed
    before: RunFacts  # what is known of the last run before
    after: RunFacts  # of the newest one


def common_moves(series: Sequence[SeriesMove], label: str = "") -> list[CommonMove]:
    """What the series that moved have in common, the most series first; rises before falls.

    A device needs three series that moved, of two models at least, and they must be more than half of its own; no more
    than a quarter of all other series may have moved likewise. A model likewise, on two devices at least. When neither
    is there and more than half of all series moved, that is said, and no cause.
    """
    moves: list[CommonMove] = []
    for direction in (1, -1):
        devices = _moves(series, direction, MoveKind.DEVICE, MoveKind.MODEL)
        models = _moves(series, direction, MoveKind.MODEL, MoveKind.DEVICE)
        own = sorted([*devices, *models], key=lambda move: -move.moved) or _of_all(series, direction)
        moves += [msgspec.structs.replace(move, label=label) for move in own]
    return moves


def whole_group(series: Sequence[SeriesMove], kind: MoveKind, name: str = "") -> CommonMove:
    """The series of a device, of a model or of the fleet, of which fewer than half may have moved by themselves.

    ``ratio`` and ``ratios`` are then those of all of them.
    """
    moves = [one for one in series if name == owner(one, kind)]
    up = sum(one.direction > 0 for one in moves)
    elsewhere = sum(one.direction > 0 for one in series) - up, len(series) - len(moves)
    move = _move(kind, name, moves, moves, elsewhere, series)
    return msgspec.structs.replace(move, moved=up)


def owner(one: SeriesMove, kind: MoveKind) -> str:
    """Name of the device or the model that a series is of; empty of the fleet."""
    return {MoveKind.DEVICE: one.device, MoveKind.MODEL: one.model, MoveKind.FLEET: ""}[kind]


def run_facts(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """The facts of a run from its columns of ``runs``, with each package's version, option and variable by itself."""
    facts = {name: values.get(name) for name in FACTS}
    for column in OBJECTS:
        text = values.get(column)
        try:
            several = from_json((text or "{}").encode(), dict[str, str])
            facts |= {f"{column}.{name}": one for name, one in several.items()}
        except msgspec.MsgspecError:
            facts[column] = text
    return facts


def changed_facts(before: RunFacts, after: RunFacts) -> list[ChangedFact]:
    """What differs between two runs of a series."""
    names = dict.fromkeys([*before, *after])
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return [ChangedFact(name, old, new, moved=1, stayed=0) for name, old, new in pairs if old != new]


def _moves(series: Sequence[SeriesMove], direction: int, kind: MoveKind, across: MoveKind) -> list[CommonMove]:
    total = sum(one.direction == direction for one in series)
    moves = []
    for name, series_moves in grouped(series, lambda one: owner(one, kind)).items():
        moved = [one for one in series_moves if one.direction == direction]
        others, elsewhere = len(series) - len(series_moves), total - len(moved)
        several = len({owner(one, across) for one in moved}) > 1
        most = len(moved) >= FEWEST_IN_COMMON and len(moved) > MOST * len(series_moves)
        if most and several and others >= FEWEST_IN_COMMON and elsewhere <= FEW_ELSEWHERE * others:
            moves.append(_move(kind, name, series_moves, moved, (elsewhere, others), series))
    return moves


def _of_all(series: Sequence[SeriesMove], direction: int) -> list[CommonMove]:
    moved = [one for one in series if one.direction == direction]
    if len(moved) < FEWEST_IN_COMMON or len(moved) <= MOST * len(series):
        return []
    return [_move(MoveKind.FLEET, "", series, moved, (0, 0), series)]


def _move(
    kind: MoveKind,
    name: str,
    moves: Sequence[SeriesMove],
    moved: Sequence[SeriesMove],
    elsewhere: tuple[int, int],
    series: Sequence[SeriesMove],
) -> CommonMove:
    ratios = [one.ratio for one in moved]
    stayed = [one for one in series if one.direction == 0]
    counts, beside = _counted(moved), _counted(stayed)
    facts = [
        ChangedFact(*fact, count, beside.get(fact, 0)) for fact, count in counts.items() if count >= MOST * len(moved)
    ]
    telling = sorted(facts, key=lambda fact: (fact.stayed / max(len(stayed), 1) - fact.moved / len(moved), fact.name))
    return CommonMove(
        kind=kind,
        name=name,
        moved=len(moved),
        series=len(moves),
        elsewhere_moved=elsewhere[0],
        elsewhere=elsewhere[1],
        ratio=statistics.median(ratios),
        ratios=(min(ratios), max(ratios)),
        facts=telling[:_MOST_FACTS],
    )


def _counted(series: Iterable[SeriesMove]) -> dict[tuple[str, str | None, str | None], int]:
    return Counter(
        (fact.name, fact.before, fact.after) for one in series for fact in changed_facts(one.before, one.after)
    )
