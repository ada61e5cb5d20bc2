"""The first screen of an analysed trace: are the cores busy, what do they wait for, how fast are they, what is next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Severity
from opscope.core.parts import part
from opscope.core.units import counted_text
from opscope.npu.reports.answer import answer, by_saving, range_text, units_text
from opscope.npu.reports.page import addresses_table
from opscope.reports.document.blocks import Block, Document, Sentence, Tone
from opscope.reports.document.messages import finding_parts, in_short
from opscope.reports.document.terminal import terminal_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from opscope.analysis.findings.message import Message
    from opscope.npu.analysis.tiles_result import TilesAnalysis

_MOST_FINDINGS = 3


def tiles_summary(analysis: TilesAnalysis) -> RenderableType:
    """Return what a person reads after `opscope aie`."""
    return terminal_document(tiles_screen(analysis))


def tiles_screen(analysis: TilesAnalysis) -> Document:
    """Return the answer, one next step, and the findings that could save most, for a terminal or a notebook."""
    headline, lines = answer(analysis)
    messages = by_saving(analysis.findings)
    shown = [message for message in messages if message.saving_cycles or message.severity is not Severity.INFO][
        :_MOST_FINDINGS
    ]
    step = next((message.next_step for message in shown or messages if message.next_step), "")
    addresses = addresses_table(analysis.tiles)
    blocks: list[Block] = [
        Sentence(
            f"rate: {seconds}" if (seconds := part("the rate in seconds", lambda: _seconds_text(analysis), "")) else ""
        ),
        Sentence(f"next: {in_short(step)}" if step else "", Tone.STRONG),
        *map(Sentence, _finding_lines(shown)),
        *([addresses] if addresses.rows else []),
        Sentence(_rest_text(analysis, [message for message in messages if message not in shown]), Tone.DIM),
    ]
    trace = analysis.trace
    heading = f"{trace.path} ({trace.format}), {units_text(analysis)}"
    return Document(trace.path, headline, blocks, [], heading, trust=list(map(Sentence, lines)))


def _finding_lines(messages: Sequence[Message]) -> Iterator[str]:
    """Return findings, each with its place and what it could save, or else its evidence."""
    for number, message in enumerate(messages, 1):
        parts = finding_parts(message)
        if parts is not None:
            yield f"{number}. {parts.title} ({parts.place}): {parts.saving or parts.evidence}"


def _rest_text(analysis: TilesAnalysis, messages: Sequence[Message]) -> str:
    rules = ", ".join(dict.fromkeys(message.rule for message in messages))
    more = f"; {counted_text(len(messages), 'more finding')}: {rules}" if rules else ""
    tables = "cycles, calls, iterations and streams" if analysis.working else "what was traced"
    return f"the report has {tables}: --out DIR{more}"


def _seconds_text(analysis: TilesAnalysis) -> str:
    """The rate in seconds with its clock, of several cores the mean; empty where no clock is known."""
    gmac_range = analysis.gmac_per_s
    if gmac_range is None:
        return ""
    return f"{'' if len(analysis.working) == 1 else 'a core: '}{range_text(gmac_range)}"
