"""What slowed: a device, a model, the software or a single series, by what the series that changed have in common.

A figure of many models that changes on one device alone is the device's doing; one of one model that changes on most
devices is the model's. What else changed with them is found by comparing the manifests of the runs before and after.
"""

from __future__ import annotations

import enum
import statistics
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from opscope.core.grouping import grouped
from opscope.core.json import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    RunFacts: TypeAlias = Mapping[str, str | None]
    """What is known of a run besides its times: program, commit, versions, system, CPU."""

MOST = 0.5
"""Share of the series of a device or a model above which most of them changed."""
FEW_ELSEWHERE = 0.25
"""Share of all other series up to which a change is not theirs."""
FEWEST_IN_COMMON = 3
"""Series that changed below which they have nothing in common."""
NEAR = 3
"""Runs by which the place of a step may be wrong: those of the shortest level."""
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
"""Columns of ``runs`` that may explain a change, and what people call them."""
OBJECTS = {"versions": "", "options": "option ", "variables": "variable "}
"""Columns with several facts in a JSON object, and what stands before the name of one of them."""
_PROGRAM_FACTS = frozenset({"program_sha256", "commit"})
_SOFTWARE_FACTS = frozenset({"versions", "options", "variables", "delegate", "opscope"})
_MOST_FACTS = 6


class CauseKind(str, enum.Enum):
    """What slowed or became faster."""

    DEVICE = "device"
    """Most series of one device, and few of the others."""
    MODEL = "model"
    """Most series of one model, and few of the others."""
    SOFTWARE = "software"
    """Most series of all, with a version, an option or a delegate that changed in them alone."""
    FLEET = "fleet"
    """Most series of all, so that devices and models cannot be told apart."""


class ChangedFact(msgspec.Struct, frozen=True):
    """A property of runs that is another one behind a change.

    Attributes:
        name: a column of ``runs``, or ``versions.PACKAGE``, ``options.NAME``, ``variables.NAME``.
        before: its value before the change; null where it was not known.
        after: behind it.
        changed: series that changed, and in which it became another one like this.
        stayed: series that did not change, and in which it became another one like this all the same.
    """

    name: str
    before: str | None
    after: str | None
    changed: int
    stayed: int


class SharedCause(msgspec.Struct, frozen=True):
    """Series that changed at the same time in the same direction, and what they have in common.

    Attributes:
        kind: what they have in common.
        name: of the device or the model; empty for the software and the fleet.
        changed: its series that changed.
        series: its series that were judged at that time.
        elsewhere_changed: other series that changed likewise.
        elsewhere: other series.
        ratio: median over those that changed of new / before.
        ratios: the least and the largest of them.
        facts: what changed in at least half of those that changed, and seldom in others; the most telling first.
        label: date, commit or version of the first run of the new level.
        subjects: numbers of the series that changed, in the order in which they were given.
    """

    kind: CauseKind
    name: str
    changed: int
    series: int
    elsewhere_changed: int
    elsewhere: int
    ratio: float
    ratios: tuple[float, float]
    facts: list[ChangedFact]
    label: str
    subjects: list[int] = []


class CauseStep(NamedTuple):
    """A step of a series: runs are counted from 0."""

    first: int  # first run of the new level
    before: int  # last run that is certainly before it
    after: int  # first run that is certainly behind it
    ratio: float  # new / before


class CauseSeries(NamedTuple):
    """A series that was judged, as causes are looked for in it."""

    model: str
    device: str
    variant: str
    bundles: Sequence[str]  # of its runs, in order
    keys: Sequence[str]  # what its runs have in common with those of others: the day, commit or version
    steps: Sequence[CauseStep]


class _Member(NamedTuple):
    """A series at the time of an event."""

    number: int  # of the series
    series: CauseSeries
    direction: int  # 1 when it rose, -1 when it fell, 0 when it stayed
    ratio: float  # new / before
    sides: tuple[int, int]  # runs before and behind


FactsOfRuns: TypeAlias = "Mapping[tuple[str, str], RunFacts]"


def find_causes(
    series: Sequence[CauseSeries], read_facts: Callable[[Collection[str]], FactsOfRuns], *, by_date: bool = True
) -> list[SharedCause]:
    """Return what series have in common that changed at the same time, the newest first.

    Steps that are at most three runs apart are one event. A device needs three series that changed, of two models at
    least, and they must be more than half of its own; no more than a quarter of all other series may have changed
    likewise. A model needs as many, on two devices. When there is neither, and more than half of all series changed,
    the software is named where a version or an option changed with them, and else no cause.

    Args:
        series: the series that were judged.
        read_facts: gives the facts of the runs of some bundles, by bundle and variant; asked once.
        by_date: whether runs are in the order of their days; otherwise runs of one key stand together.
    """
    groups = [
        (key, members, group)
        for key, members in _find_events(series, by_date=by_date)
        for direction in (1, -1)
        for group in _find_groups(members, direction)
    ]
    if not groups:
        return []
    involved = [member for _, members, _ in groups for member in members]
    facts = read_facts({member.series.bundles[at] for member in involved for at in member.sides})
    causes = [_make_cause(key, members, group, facts) for key, members, group in groups]
    return sorted(causes, key=lambda cause: (cause.label, cause.changed), reverse=True)


def changed_facts(before: RunFacts, after: RunFacts) -> list[ChangedFact]:
    """Return what differs between two runs of a series."""
    names = dict.fromkeys([*before, *after])
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return [ChangedFact(name, old, new, changed=1, stayed=0) for name, old, new in pairs if old != new]


def make_facts(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the facts of a run from its columns of ``runs``, each package's version, option and variable by itself."""
    facts = {name: values.get(name) for name in FACTS}
    for column in OBJECTS:
        text = values.get(column)
        try:
            several = from_json((text or "{}").encode(), dict[str, str])
            facts |= {f"{column}.{name}": value for name, value in several.items()}
        except msgspec.MsgspecError:
            facts[column] = text
    return facts


def _find_events(series: Sequence[CauseSeries], *, by_date: bool) -> list[tuple[str, list[_Member]]]:
    """Return the days (commits, versions) at which levels changed, with every series that has runs on both sides."""
    left = Counter(one.keys[step.first] for one in series for step in one.steps)
    events = []
    while left:
        key = max(left, key=lambda one: (left[one], one))
        members = [_place_member(number, one, key, by_date=by_date) for number, one in enumerate(series)]
        kept = [member for member in members if member is not None]
        for member in kept:
            left.subtract(member.series.keys[step.first] for step in _near_steps(member))
        left[key] = 0
        left = +left
        events.append((key, kept))
    return events


def _place_member(number: int, series: CauseSeries, key: str, *, by_date: bool) -> _Member | None:
    """Return a series at an event: with its step there, or the runs on both sides; None without runs there."""
    if by_date:
        place = bisect_left(series.keys, key)
    else:
        place = series.keys.index(key) if key in series.keys else len(series.keys)
    if not 0 < place < len(series.keys):
        return None
    step = min(series.steps, key=lambda one: abs(one.first - place), default=None)
    if step is None or abs(step.first - place) > NEAR:
        return _Member(number, series, 0, 1.0, (place - 1, place))
    return _Member(number, series, 1 if step.ratio > 1 else -1, step.ratio, (step.before, step.after))


def _near_steps(member: _Member) -> list[CauseStep]:
    before, after = member.sides
    return [step for step in member.series.steps if member.direction and (step.before, step.after) == (before, after)]


def _find_groups(members: Sequence[_Member], direction: int) -> list[tuple[CauseKind, str, list[_Member]]]:
    """Return the devices and models of which most series changed in a direction; all series where there are none."""
    changed = [member for member in members if member.direction == direction]
    groups = []
    for kind, across in ((CauseKind.DEVICE, "model"), (CauseKind.MODEL, "device")):
        for name, own in grouped(members, lambda member: str(getattr(member.series, kind.value))).items():  # noqa: B023 - used at once
            own_changed = [member for member in own if member.direction == direction]
            others, elsewhere = len(members) - len(own), len(changed) - len(own_changed)
            is_most = len(own_changed) >= FEWEST_IN_COMMON and len(own_changed) > MOST * len(own)
            are_several = len({getattr(member.series, across) for member in own_changed}) > 1
            if is_most and are_several and others >= FEWEST_IN_COMMON and elsewhere <= FEW_ELSEWHERE * others:
                groups.append((kind, name, own))
    if groups:
        return sorted(groups, key=lambda group: -len(group[2]))
    is_fleet = len(changed) >= FEWEST_IN_COMMON and len(changed) > MOST * len(members)
    return [(CauseKind.FLEET, "", list(changed) + [one for one in members if one.direction != direction])] * is_fleet


def _make_cause(
    key: str, members: Sequence[_Member], group: tuple[CauseKind, str, list[_Member]], facts: FactsOfRuns
) -> SharedCause:
    kind, name, own = group
    direction = max((1, -1), key=lambda way: sum(member.direction == way for member in own))
    changed = [member for member in own if member.direction == direction]
    stayed = [member for member in members if member.direction == 0]
    elsewhere = sum(member.direction == direction for member in members) - len(changed)
    ratios = [member.ratio for member in changed]
    telling = _telling_facts(_count_facts(changed, facts), _count_facts(stayed, facts), len(changed), len(stayed))
    software = any(fact.name.partition(".")[0] in _SOFTWARE_FACTS for fact in telling)
    if kind is CauseKind.FLEET and software and not any(fact.name in _PROGRAM_FACTS for fact in telling):
        kind = CauseKind.SOFTWARE
    return SharedCause(
        kind=kind,
        name=name,
        changed=len(changed),
        series=len(own),
        elsewhere_changed=elsewhere,
        elsewhere=len(members) - len(own),
        ratio=statistics.median(ratios),
        ratios=(min(ratios), max(ratios)),
        facts=telling,
        label=key,
        subjects=[member.number for member in changed],
    )


def _count_facts(members: Sequence[_Member], facts: FactsOfRuns) -> Counter[tuple[str, str | None, str | None]]:
    counts: Counter[tuple[str, str | None, str | None]] = Counter()
    for member in members:
        before, after = (facts.get((member.series.bundles[at], member.series.variant), {}) for at in member.sides)
        counts.update((fact.name, fact.before, fact.after) for fact in changed_facts(before, after))
    return counts


def _telling_facts(
    changed: Counter[tuple[str, str | None, str | None]],
    stayed: Counter[tuple[str, str | None, str | None]],
    count: int,
    others: int,
) -> list[ChangedFact]:
    """Return the facts of half of the series that changed, twice as frequent in them as in those that stayed."""
    facts = [ChangedFact(*fact, own, stayed[fact]) for fact, own in changed.items() if own >= MOST * count]
    kept = [fact for fact in facts if fact.changed / count > 2 * fact.stayed / max(others, 1)]
    return sorted(kept, key=lambda fact: (fact.stayed / max(others, 1) - fact.changed / count, fact.name))[:_MOST_FACTS]
