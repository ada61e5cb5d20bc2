"""What series that moved have in common, in sentences: the counts, and no more than they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.units import signed_share_text
from opscope.fleet.analysis.common_moves import FACTS, MOST, OBJECTS, PROGRAM_FACTS, MoveKind
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.fleet.analysis.common_moves import ChangedFact, CommonMove

_SHORT = 12
_LONGEST = 60


def move_text(move: CommonMove, *, latency: bool = True) -> str:
    """A common move in a sentence without a full stop: how many series, how many others, what changed with them."""
    word = ("slower" if move.ratio > 1 else "faster") if latency else ("higher" if move.ratio > 1 else "lower")
    name = "all series" if move.kind is MoveKind.FLEET else f"{move.kind.value} {plain(move.name, _LONGEST)}"
    when = f" at {plain(move.label, _LONGEST)}" if move.label else ""
    counts = ", ".join([_counts(move, word), *_elsewhere(move)])
    telling = [fact for fact in move.facts if _tells(move, fact)]
    return f"{name}{when}: {counts}: {_conclusion(move, telling)}; {_facts_text(move, telling)}"


def fact_text(fact: ChangedFact) -> str:
    """What a property of runs was, and what it is."""
    column, _, own = fact.name.partition(".")
    name = FACTS.get(fact.name) or f"{OBJECTS.get(column, '')}{own or column}"
    return f"{name} {_value(fact.name, fact.before)} -> {_value(fact.name, fact.after)}"


def _conclusion(move: CommonMove, telling: Sequence[ChangedFact]) -> str:
    """Where to look, as far as the counts say."""
    programs = any(fact.name in PROGRAM_FACTS for fact in telling)
    if move.kind is MoveKind.DEVICE:
        if programs:
            return "the device or its programs, which changed only there"
        return "the device changed, not the programs"
    if move.kind is MoveKind.MODEL:
        return "the program changed, not the devices" if programs else "the program or its runtime, not a device"
    return "devices and programs cannot be distinguished"


def _counts(move: CommonMove, word: str) -> str:
    ends = (signed_share_text(ratio - 1) for ratio in move.ratios)
    sizes = f"median {signed_share_text(move.ratio - 1)}, {' to '.join(ends)}"
    if move.moved > MOST * move.series:
        return f"{move.moved} of {move.series} series {word} ({sizes})"
    return f"the median of {move.series} series is {word} ({sizes}; {move.moved} of them individually)"


def _elsewhere(move: CommonMove) -> list[str]:
    if not move.elsewhere:
        return []
    return [f"{move.elsewhere_moved} of {move.elsewhere} of other {move.kind.value}s"]


def _facts_text(move: CommonMove, telling: Sequence[ChangedFact]) -> str:
    """Facts that changed with the move more often than without it."""
    stayed = _stayed(move)
    texts = [f"{fact_text(fact)} in {fact.moved} of these and {fact.stayed} of {stayed} others" for fact in telling]
    return f"with it {'; '.join(texts)}" if texts else "no recorded fact changed only with it"


def _tells(move: CommonMove, fact: ChangedFact) -> bool:
    return bool(move.moved) and fact.moved / move.moved > 2 * fact.stayed / max(_stayed(move), 1)


def _stayed(move: CommonMove) -> int:
    return move.elsewhere - move.elsewhere_moved + move.series - move.moved


def _value(name: str, value: str | None) -> str:
    if value is None:
        return "not known"
    return value[:_SHORT] if name == "program_sha256" else plain(value, _LONGEST)
