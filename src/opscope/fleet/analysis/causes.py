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

    from opscope.fleet.analysis.changes import LevelChange, SeriesRuns

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


class _Member(NamedTuple):
    """A series at the time of an event."""

    number: int  # of the series
    runs: SeriesRuns
    direction: int  # 1 when it rose, -1 when it fell, 0 when it stayed
    ratio: float  # new / before
    sides: tuple[int, int]  # the last run that is certainly before, and the first one that is certainly behind


FactsOfRuns: TypeAlias = "Mapping[tuple[str, str], RunFacts]"


def find_causes(
    series: Sequence[SeriesRuns],
    changes: Sequence[Sequence[LevelChange] | None],
    read_facts: Callable[[Collection[str]], FactsOfRuns],
    *,
    by_date: bool = True,
) -> list[SharedCause]:
    """Return what series have in common that changed at the same time, the newest first.

    Steps that are at most three runs apart are one event. A device needs three series that changed, of two models at
    least, and they must be more than half of its own; no more than a quarter of all other series may have changed
    likewise. A model needs as many, on two devices. When there is neither, and more than half of all series changed,
    the software is named where a version or an option changed with them, and else no cause.

    Args:
        series: the runs of each series.
        changes: of each series; None where they were not looked for. A drift has no moment and no part in this.
        read_facts: gives the facts of the runs of some bundles, by bundle and variant; asked once.
        by_date: whether runs are in the order of their days, their labels; otherwise runs of one label stand together.
    """
    steps = {
        number: [change for change in series_changes if change.kind == "step"]
        for number, series_changes in enumerate(changes)
        if series_changes is not None
    }
    groups = [
        (label, members, direction, group)
        for label, members in _find_events(series, steps, by_date=by_date)
        for direction in (1, -1)
        for group in _find_groups(members, direction)
    ]
    if not groups:
        return []
    involved = [member for _, members, *_ in groups for member in members]
    facts = read_facts({member.runs.bundles[side] for member in involved for side in member.sides})
    causes = [_make_cause(label, members, direction, group, facts) for label, members, direction, group in groups]
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


def _find_events(
    series: Sequence[SeriesRuns], steps: Mapping[int, Sequence[LevelChange]], *, by_date: bool
) -> list[tuple[str, list[_Member]]]:
    """Return the days (commits, versions) at which levels changed, with every series that has runs on both sides."""
    remaining = Counter(
        series[number].labels[step.first] for number, series_steps in steps.items() for step in series_steps
    )
    events = []
    while remaining:
        label = max(remaining, key=lambda name: (remaining[name], name))
        members = []
        for number, series_steps in steps.items():
            member = _place_member(number, series[number], series_steps, label, by_date=by_date)
            if member is not None:
                members.append(member)
                near = [
                    step
                    for step in series_steps
                    if member.direction and member.sides == (step.earliest - 1, step.latest)
                ]
                remaining.subtract(member.runs.labels[step.first] for step in near)
        remaining[label] = 0
        remaining = +remaining
        events.append((label, members))
    return events


def _place_member(
    number: int, runs: SeriesRuns, steps: Sequence[LevelChange], label: str, *, by_date: bool
) -> _Member | None:
    """Return a series at an event: with its step there, or the runs on both sides; None without runs there."""
    if not by_date and label not in runs.labels:
        return None
    position = bisect_left(runs.labels, label) if by_date else runs.labels.index(label)
    if not 0 < position < len(runs.labels):
        return None
    step = min(steps, key=lambda candidate: abs(candidate.first - position), default=None)
    if step is None or abs(step.first - position) > NEAR:
        return _Member(number, runs, 0, 1.0, (position - 1, position))
    return _Member(number, runs, 1 if step.ratio > 1 else -1, step.ratio, (step.earliest - 1, step.latest))


def _find_groups(members: Sequence[_Member], direction: int) -> list[tuple[CauseKind, str, list[_Member]]]:
    """Return the devices and models of which most series changed in a direction; all series where there are none."""
    changed = sum(member.direction == direction for member in members)
    groups = []
    for kind, across in ((CauseKind.DEVICE, "model"), (CauseKind.MODEL, "device")):
        for name, group in grouped(members, lambda member: str(getattr(member.runs.subject, kind.value))).items():  # noqa: B023 - used at once
            group_changed = [member for member in group if member.direction == direction]
            rest, elsewhere = len(members) - len(group), changed - len(group_changed)
            is_most = len(group_changed) >= FEWEST_IN_COMMON and len(group_changed) > MOST * len(group)
            are_several = len({getattr(member.runs.subject, across) for member in group_changed}) > 1
            if is_most and are_several and rest >= FEWEST_IN_COMMON and elsewhere <= FEW_ELSEWHERE * rest:
                groups.append((kind, name, group))
    if groups:
        return sorted(groups, key=lambda group: -len(group[2]))
    is_fleet = changed >= FEWEST_IN_COMMON and changed > MOST * len(members)
    return [(CauseKind.FLEET, "", list(members))] * is_fleet


def _make_cause(
    label: str,
    members: Sequence[_Member],
    direction: int,
    group: tuple[CauseKind, str, list[_Member]],
    facts: FactsOfRuns,
) -> SharedCause:
    kind, name, series = group
    changed = [member for member in series if member.direction == direction]
    stayed = [member for member in members if member.direction == 0]
    elsewhere = sum(member.direction == direction for member in members) - len(changed)
    ratios = [member.ratio for member in changed]
    telling = _find_telling_facts(changed, stayed, facts)
    software = any(fact.name.partition(".")[0] in _SOFTWARE_FACTS for fact in telling)
    if kind is CauseKind.FLEET and software and not any(fact.name in _PROGRAM_FACTS for fact in telling):
        kind = CauseKind.SOFTWARE
    return SharedCause(
        kind=kind,
        name=name,
        changed=len(changed),
        series=len(series),
        elsewhere_changed=elsewhere,
        elsewhere=len(members) - len(series),
        ratio=statistics.median(ratios),
        ratios=(min(ratios), max(ratios)),
        facts=telling,
        label=label,
        subjects=[member.number for member in changed],
    )


def _find_telling_facts(changed: Sequence[_Member], stayed: Sequence[_Member], facts: FactsOfRuns) -> list[ChangedFact]:
    """Return the facts of half of the series that changed, twice as frequent in them as in those that stayed."""
    counts, stayed_counts = _count_facts(changed, facts), _count_facts(stayed, facts)
    shares = {fact: (count / len(changed), stayed_counts[fact] / max(len(stayed), 1)) for fact, count in counts.items()}
    telling = [fact for fact, (share, stayed_share) in shares.items() if share >= MOST and share > 2 * stayed_share]
    telling.sort(key=lambda fact: (shares[fact][1] - shares[fact][0], fact[0]))
    return [ChangedFact(*fact, counts[fact], stayed_counts[fact]) for fact in telling[:_MOST_FACTS]]


def _count_facts(members: Sequence[_Member], facts: FactsOfRuns) -> Counter[tuple[str, str | None, str | None]]:
    counts: Counter[tuple[str, str | None, str | None]] = Counter()
    for member in members:
        variant = member.runs.subject.variant
        before, after = (facts.get((member.runs.bundles[side], variant), {}) for side in member.sides)
        counts.update((fact.name, fact.before, fact.after) for fact in changed_facts(before, after))
    return counts
