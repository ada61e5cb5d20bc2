"""Pictures of a language model: the parts of a prompt, and decoding over the position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from opscope.analysis.tokens.parts import TokenPart
from opscope.core.grouping import grouped
from opscope.program.phases import PhaseKind
from opscope.reports.pictures.pictures import render_chart, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.tokens.ledger import TokenLedger

_COLOURS = {
    TokenPart.EMBEDDING: "#76b7b2",
    TokenPart.NORMS: "#edc948",
    TokenPart.PROJECTIONS: "#4c78a8",
    TokenPart.ATTENTION: "#e45756",
    TokenPart.CACHE: "#b279a2",
    TokenPart.FEED_FORWARD: "#54a24b",
    TokenPart.HEAD: "#9ecae9",
    TokenPart.COPIES: "#f58518",
    TokenPart.OTHER: "#9d755d",
    TokenPart.FRAMEWORK: "#9d9d9d",
}
_WIDTH, _HEIGHT = 640, 240
_BAR_WIDTH = 34


def prefill_parts(ledgers: Sequence[TokenLedger]) -> str | None:
    """Return prompts as bars of their parts; None if there are none."""
    token_ledgers = [ledger for ledger in ledgers if ledger.phase.kind is PhaseKind.PREFILL]
    rows = [
        {
            "prompt": f"{ledger.phase.tokens or 0:,} tokens",
            "part": part.value,
            "ms": share * ledger.time_ns / 1e6,
            "order": n,
        }
        for ledger in token_ledgers
        for n, part in enumerate(TokenPart)
        if (share := _part_share(ledger, part))
    ]
    if not rows:
        return None
    bars = (
        alt.Chart(rows_of(rows))
        .mark_bar(height=22)
        .encode(
            x=alt.X("ms:Q", title="ms for a prompt", stack="zero"),
            y=alt.Y("prompt:N", title=None, sort=None),
            color=_colour_by_part(token_ledgers),
            order=alt.Order("order:Q"),
        )
    )
    return render_chart(bars.properties(width=_WIDTH, height=30 * len(token_ledgers)))


def _colour_by_part(ledgers: Sequence[TokenLedger]) -> alt.Color:
    parts = [part for part in TokenPart if any(_part_share(ledger, part) for ledger in ledgers)]
    scale = alt.Scale(domain=[part.value for part in parts], range=[_COLOURS[part] for part in parts])
    return alt.Color("part:N", scale=scale, title=None, legend=alt.Legend(orient="top", columns=5))


def _part_share(ledger: TokenLedger, part: TokenPart) -> float:
    return sum(row.share for row in ledger.rows if row.part is part)


def decode_over_position(ledgers: Sequence[TokenLedger]) -> str | None:
    """Draw the time of a token by part of the model, over its position. None without positions.

    Of several sizes of the cache the one with the most positions is drawn: bars at one place would hide each other.
    """
    placed = [
        ledger for ledger in ledgers if ledger.phase.kind is PhaseKind.DECODE and ledger.phase.position is not None
    ]
    token_ledgers = max(grouped(placed, lambda ledger: ledger.phase.cache).values(), key=len, default=[])
    if not token_ledgers:
        return None
    rows: list[dict[str, Any]] = [
        {"position": ledger.phase.position, "part": part.value, "us": share * ledger.time_ns / 1e3, "order": number}
        for ledger in token_ledgers
        for number, part in enumerate(TokenPart)
        if (share := _part_share(ledger, part))
    ]
    positions = sorted({ledger.phase.position or 0 for ledger in token_ledgers})
    x = alt.X(
        "position:Q", title="tokens before", scale=alt.Scale(padding=24), axis=alt.Axis(values=positions, format=",")
    )
    stacked = (
        alt.Chart(rows_of(rows))
        .mark_bar(size=_BAR_WIDTH)
        .encode(
            x=x,
            y=alt.Y("us:Q", title="µs for a token", stack="zero"),
            color=_colour_by_part(token_ledgers),
            order=alt.Order("order:Q"),
        )
    )
    return render_chart(stacked.properties(width=_WIDTH, height=_HEIGHT))
