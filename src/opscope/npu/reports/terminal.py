"""The analysis of a trace of AI Engine tiles on a terminal: within 80 columns, the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.parts import part
from opscope.core.units import counted_text
from opscope.npu.reports.answer import answer, iteration_lines, range_text, shown_core, told, units_text
from opscope.npu.reports.page import cycles_table, kinds_table, prediction_blocks, rates_table
from opscope.reports.document.blocks import Block, Bullets, Document, Messages, Sentence, Tone
from opscope.reports.document.terminal import terminal_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from opscope.npu.analysis.tiles_result import TileRow, TilesAnalysis
    from opscope.reports.document.blocks import TableBlock

_MOST_TILES, _FEW, _MOST_FINDINGS = 16, 4, 6


def tiles_summary(analysis: TilesAnalysis) -> RenderableType:
    """What a person reads after `opscope aie`."""
    rows, (headline, lines) = analysis.working, answer(analysis)
    messages = told(analysis.findings)
    blocks: list[Block] = [Messages(messages, _MOST_FINDINGS)]
    if rows:
        blocks += _table_of("the table of cycles", lambda: cycles_table(rows))
        blocks += _table_of("the table of rates", lambda: rates_table(rows, _MOST_TILES))
        blocks.append(Sentence(part("the rate in seconds", lambda: _seconds(analysis), "")))
        blocks += _table_of("the table of calls", lambda: kinds_table(_few(analysis)))
        rest = len(rows) - len(_few(analysis))
        blocks.append(
            Sentence(
                f"kinds of {counted_text(rest, 'more tile')} are in the report: --out DIR" if rest else "", Tone.DIM
            )
        )
        reasons = part("the sentences on iterations", lambda: iteration_lines(rows), list[str]())
        blocks.append(Bullets(reasons[:_FEW]))
    if analysis.prediction:
        blocks += prediction_blocks(analysis.prediction)
    trace = analysis.trace
    heading = f"{trace.path} ({trace.format}), {units_text(analysis)}"
    return terminal_document(Document(trace.path, headline, blocks, [], heading, trust=list(map(Sentence, lines))))


def _table_of(name: str, make: Callable[[], TableBlock]) -> list[Block]:
    block = part(name, make, None)
    return [block] if block is not None else []


def _few(analysis: TilesAnalysis) -> list[TileRow]:
    """Tiles whose kinds a terminal shows; of many that of one."""
    return analysis.working if len(analysis.working) <= _FEW else [shown_core(analysis)]


def _seconds(analysis: TilesAnalysis) -> str:
    """The rate in seconds with its clock, of several cores the mean; empty where no clock is known."""
    gmac_range = analysis.gmac_per_s
    if gmac_range is None:
        return ""
    return f"{'' if len(analysis.working) == 1 else 'a core: '}{range_text(gmac_range)}"
