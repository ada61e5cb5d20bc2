"""Findings of the analysis of a tile's trace, which say where in the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Message, Severity, finding

if TYPE_CHECKING:
    from opscope.core.table.tiles import TileTrace


def place(tile: TileTrace, *parts: str) -> str:
    """Name a place in a trace: the tile, and what narrows it down, such as ``tile 2,4, after call 37, cycle 812``."""
    return ", ".join((f"tile {tile.tile}", *parts))


def tile_finding(rule: str, severity: Severity, *, title: str, evidence: str, where: str, step: str) -> Message:
    """Return a finding at a place of a trace."""
    return finding(rule, severity, (title, evidence, step)).about(place=where)
