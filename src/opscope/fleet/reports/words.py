"""What a series is, when it changed, and what changed with it, in words: the counts, and no more than they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.units import counted_text, signed_share_text
from opscope.fleet.analysis.causes import FACTS, OBJECTS, CauseKind
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from opscope.fleet.analysis.causes import ChangedFact, SharedCause
    from opscope.fleet.analysis.changes import LevelChange, Subject

_HASH_LENGTH = 12
_LONGEST, _LONGEST_LABEL = 60, 24


def subject_text(subject: Subject) -> str:
    """Return what runs are about, in one line."""
    model = " ".join(filter(None, (subject.model, subject.dtype)))
    threads = counted_text(subject.threads, "thread") if subject.threads else ""
    cpus = f"CPUs {subject.affinity}" if subject.affinity else ""
    how = ", ".join(filter(None, (threads, subject.target or "", subject.arm or "", cpus)))
    variant = ", ".join(filter(None, (subject.variant, subject.method)))
    return f"{plain(model)} on {plain(subject.device)}, {plain(variant)} ({plain(how)})"


def since_text(change: LevelChange) -> str:
    """Return when a level changed, or the two runs between which it did."""
    if change.kind == "drift":
        return f"{plain(change.before, _LONGEST_LABEL)} to {plain(change.label, _LONGEST_LABEL)}"
    if change.earliest == change.latest:
        return plain(change.label, _LONGEST_LABEL)
    return f"between {plain(change.before, _LONGEST_LABEL)} and {plain(change.label, _LONGEST_LABEL)}"


def cause_name(cause: SharedCause) -> str:
    """Return what a cause is called."""
    named = f"{cause.kind.value} {plain(cause.name, _LONGEST)}"
    return {CauseKind.SOFTWARE: "software", CauseKind.FLEET: "all series"}.get(cause.kind, named)


def cause_text(cause: SharedCause, *, is_latency: bool = True) -> str:
    """Return a cause in a sentence without a full stop: how many series, how many others, what changed with them."""
    rises, falls = ("slower", "faster") if is_latency else ("higher", "lower")
    ends = " to ".join(signed_share_text(ratio - 1) for ratio in cause.ratios)
    sizes = f"median {signed_share_text(cause.ratio - 1)}, {ends}"
    counts = f"{cause.changed} of {cause.series} series {rises if cause.ratio > 1 else falls} ({sizes})"
    if cause.elsewhere:
        counts += f", {cause.elsewhere_changed} of {cause.elsewhere} of other {cause.kind.value}s"
    stayed = cause.series + cause.elsewhere - cause.changed - cause.elsewhere_changed
    facts = [f"{fact_text(one)} in {one.changed} of these and {one.stayed} of {stayed} others" for one in cause.facts]
    changed = f"with it {'; '.join(facts)}" if facts else "no recorded fact changed only with it"
    return f"{cause_name(cause)} at {plain(cause.label, _LONGEST)}: {counts}: {changed}"


def fact_text(fact: ChangedFact) -> str:
    """Return what a property of runs was, and what it is."""
    column, _, key = fact.name.partition(".")
    name = FACTS.get(fact.name) or f"{OBJECTS.get(column, '')}{key or column}"
    return f"{name} {_value_text(fact.name, fact.before)} -> {_value_text(fact.name, fact.after)}"


def _value_text(name: str, value: str | None) -> str:
    if value is None:
        return "not known"
    return value[:_HASH_LENGTH] if name == "program_sha256" else plain(value, _LONGEST)
