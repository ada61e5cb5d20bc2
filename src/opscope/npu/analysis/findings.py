"""What the analysis of a tile's trace noticed: findings that say where in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, Severity, finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.core.table.tiles import TileTrace


class TileFinding(msgspec.Struct, frozen=True):
    """Something that limits what a trace of a tile tells, or that is worth knowing about it.

    Attributes:
        rule: stable identifier, lower case with underscores.
        severity: how much it matters.
        title: the finding in one sentence.
        evidence: the figures it rests on.
        place: tile and, where there is one, call and cycle, such as ``tile 2,4, after call 37, cycle 81234``.
        next_step: what to do.
        subject: which of several things that the rule knows it is about, such as an event of a unit; empty where the
            rule has one alone. Reports show findings of one rule and subject on several tiles once.
    """

    rule: str
    severity: Severity
    title: str
    evidence: str
    place: str
    next_step: str
    subject: str = ""


def place(tile: TileTrace, *parts: str) -> str:
    """Where in a trace: the tile, then what narrows it down."""
    return ", ".join((f"tile {tile.tile}", *parts))


def tile_finding(rule: str, severity: Severity, title: str, evidence: str, where: str, next_step: str) -> Message:
    """A finding at a place of a trace; arguments as the attributes of :class:`TileFinding`."""
    return finding(rule, severity, (title, evidence, next_step))._replace(place=where)


def published(messages: Iterable[Message]) -> tuple[TileFinding, ...]:
    """Findings as documents hold them, in the order given."""
    return tuple(
        TileFinding(told.rule, told.severity, told.title, told.evidence, told.place or "", told.next_step, told.subject)
        for told in messages
    )


def message_of(found: TileFinding) -> Message:
    """What a document holds, as the message that it was made from."""
    words = found.title, found.evidence, found.place, found.next_step
    return tile_finding(found.rule, found.severity, *words)._replace(subject=found.subject)
