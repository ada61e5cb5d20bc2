"""Cost of a token: the phases of a language model, the ledger of each, and what bounds it."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from opscope.analysis.tokens.ledger import ByteUse, PartCost, TokenLimit
from opscope.analysis.tokens.parts import TokenPart
from opscope.core.grouping import grouped
from opscope.core.units import counted_text, ratio_text, share_text, size_text, time_text
from opscope.program.phases import PhaseKind
from opscope.reports.content.content import phase_text
from opscope.reports.document.blocks import (
    Bullets,
    Closing,
    Format,
    HeadlineFigure,
    Section,
    Sentence,
    TableColumn,
    Tone,
    column,
    facts,
    table,
)
from opscope.reports.document.template import picture
from opscope.reports.pictures.tokens import decode_over_position, prefill_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.tokens.ledger import LedgerRow, TokenLedger
    from opscope.program.phases import Phase
    from opscope.reports.document.blocks import Block, TableBlock

_WAITS = {
    TokenLimit.WEIGHTS: "reading weights from memory",
    TokenLimit.CACHE: "reading keys and values from memory",
    TokenLimit.ACTIVATIONS: "passing activations through memory",
    TokenLimit.ARITHMETIC: "arithmetic at the best rate of its kernels",
    TokenLimit.FRAMEWORK: "the runtime, which starts its operators",
}


def bound_sentence(ledger: TokenLedger, phases: Sequence[Phase]) -> str:
    """Return what bounds a call, with the evidence; empty if no limits were measured. ``phases``: of all calls."""
    name = _phase_title(ledger, phases)
    if not ledger.limits:
        return ""
    first = ledger.limits[0]
    if ledger.bound is not None:
        share = share_text(first.share)
        evidence = f"{share} of {time_text(ledger.time_ns)}{_bandwidth_text(ledger)}"
        return f"{name} is bound by {_WAITS[ledger.bound]}: {evidence}."
    known = next((limit for limit in ledger.limits if limit.limit is not TokenLimit.REST), None)
    longest = longest_part(ledger)
    reached = _reached_bandwidth_text(longest) if longest and ledger.phase.kind is PhaseKind.DECODE else ""
    most = f"; the longest part, {longest.part.value}, takes {share_text(longest.share)}{reached}" if longest else ""
    less = f"{_WAITS[known.limit]} explains {share_text(known.share)}" if known else "nothing measured explains any"
    return f"{name}, {time_text(ledger.time_ns)}, is bound by no limit of the machine: {less}{most}."


def _phase_title(ledger: TokenLedger, phases: Sequence[Phase]) -> str:
    """Return the name of a ledger's phase as the beginning of a sentence."""
    name = phase_text(ledger.phase, phases)
    return f"{name[0].upper()}{name[1:]}"


def _bandwidth_text(ledger: TokenLedger) -> str:
    """Return the bytes and the bandwidth that bound a call; empty if memory does not bound it."""
    if ledger.weights_per_s is None or ledger.bound not in {TokenLimit.WEIGHTS, TokenLimit.CACHE}:
        return ""
    use = ByteUse.CACHE if ledger.bound is TokenLimit.CACHE else ByteUse.WEIGHTS
    uses = {use, ByteUse.SCALES} if use is ByteUse.WEIGHTS else {use}
    read = sum(traffic.bytes for traffic in ledger.bytes if traffic.use in uses)
    return f", {size_text(read)} at a measured {ledger.weights_per_s / 1e9:.3g} GB/s"


class PartTotal(PartCost, frozen=True):
    """Part of the model, summed over all layers."""

    needed: float | None  # share of its time that moving its bytes takes at least


def part_totals(ledger: TokenLedger) -> list[PartTotal]:
    """Return the parts of a call in execution order, each summed over all layers."""
    rows_by_part = grouped(ledger.rows, lambda row: row.part)
    return [_total_part(part, rows_by_part[part]) for part in TokenPart if part in rows_by_part]


def longest_part(ledger: TokenLedger) -> PartTotal | None:
    """Return the part that takes longest, without the runtime's own time; None if there is no other."""
    totals = [total for total in part_totals(ledger) if total.part is not TokenPart.FRAMEWORK]
    return max(totals, key=lambda total: total.share, default=None)


def _total_part(part: TokenPart, rows: Sequence[LedgerRow]) -> PartTotal:
    times = [row.time_ns for row in rows if row.time_ns is not None]
    known = all(row.bandwidth is not None and row.time_ns is not None for row in rows)
    needed = math.fsum((row.bandwidth.low if row.bandwidth else 0.0) * (row.time_ns or 0.0) for row in rows)
    return PartTotal(
        part,
        sum(row.operators for row in rows),
        sum(times) if len(times) == len(rows) else None,
        sum(row.share for row in rows),
        None if any(row.bytes is None for row in rows) else sum(row.bytes or 0 for row in rows),
        None if any(row.macs is None for row in rows) else sum(row.macs or 0 for row in rows),
        needed / math.fsum(times) if known and any(times) else None,
    )


def _reached_bandwidth_text(total: PartTotal) -> str:
    return "" if total.needed is None else f", at {share_text(total.needed)} of the bandwidth that it could reach"


def token_blocks(analysis: Analysis) -> list[Block]:
    """Return the first screen's sentences on a language model: what bounds a prompt and a token."""
    phases = [ledger.phase for ledger in analysis.tokens]
    texts = [
        sentence for ledger in _select_prompt_and_token(analysis.tokens) if (sentence := bound_sentence(ledger, phases))
    ]
    texts += arithmetic_sentence(analysis.tokens)
    return [Bullets(texts)] if texts else []


def arithmetic_sentence(ledgers: Sequence[TokenLedger]) -> list[str]:
    """Return why acceleration helps a prompt more than a token: the share of arithmetic in each."""
    ends = [ledger for ledger in _select_prompt_and_token(ledgers) if ledger.limits]
    if [ledger.phase.kind for ledger in ends] != [PhaseKind.PREFILL, PhaseKind.DECODE]:
        return []
    prompt, token = (
        sum(limit.share for limit in ledger.limits if limit.limit is TokenLimit.ARITHMETIC) for ledger in ends
    )
    acts = f"Faster arithmetic alone acts on {share_text(prompt)} of the prefill and {share_text(token)} of this token"
    return [f"{acts}: a token uses each weight once, a prompt many times."]


def _select_prompt_and_token(ledgers: Sequence[TokenLedger]) -> list[TokenLedger]:
    """Select the longest prompt and the earliest token, as far as there are any."""
    prompts = [ledger for ledger in ledgers if ledger.phase.kind is PhaseKind.PREFILL]
    tokens = [ledger for ledger in ledgers if ledger.phase.kind is PhaseKind.DECODE]
    first = max(prompts, key=lambda ledger: ledger.phase.tokens or 0, default=None)
    timed = [ledger for ledger in tokens if ledger.limits] or tokens
    early = min(timed, key=lambda ledger: ledger.phase.position or 0, default=None)
    return [ledger for ledger in (first, early) if ledger is not None]


def token_figures(analysis: Analysis) -> list[HeadlineFigure]:
    """Return the first prompt and the first token, with their rates; empty for other programs."""
    firsts = {row.phase.kind: row for row in reversed(analysis.methods) if row.phase is not None}
    kinds = [kind for kind in (PhaseKind.PREFILL, PhaseKind.DECODE) if kind in firsts]
    if not analysis.tokens:
        return []
    times = {ledger.method: ledger.time_ns for ledger in analysis.tokens}
    figures = []
    for kind in kinds:
        row = firsts[kind]
        time = times.get(row.method, row.latency.median_ns)
        rate = (
            f"{(row.phase.tokens or 0) * 1e9 / time:,.0f} tokens/s" if row.phase and row.phase.tokens and time else ""
        )
        figures.append(HeadlineFigure(phase_text(row.phase) if row.phase else "", time_text(time), rate))
    return figures


def ledger_section(analysis: Analysis) -> Section | None:
    """Return the ledgers of all phases; None for programs other than language models."""
    if not analysis.tokens:
        return None
    blocks: list[Block] = []
    if any(ledger.phase.kind is PhaseKind.PREFILL for ledger in analysis.tokens):
        blocks.append(picture("the parts of a prompt", lambda: prefill_parts(analysis.tokens)))
    if any(ledger.phase.kind is PhaseKind.DECODE for ledger in analysis.tokens):
        blocks.append(picture("decoding over the position", lambda: decode_over_position(analysis.tokens)))
    blocks.append(facts(_startup_times(analysis)))
    for ledger in analysis.tokens:
        blocks += _ledger_blocks(ledger, [phase_ledger.phase for phase_ledger in analysis.tokens])
    text = "What a token costs"
    return Section(text, blocks, "tokens", "Tokens", counted_text(len(analysis.tokens), "phase"), folded=True)


def _startup_times(analysis: Analysis) -> list[tuple[str, str]]:
    """Return the times from process start to first token, medians over processes, and what is not timed."""
    loads = [latency.load_ns for latency in analysis.latency.processes if latency.load_ns is not None]
    first = [latency.first_ns for latency in analysis.latency.processes]
    rows = [("template and tokens", "not timed: they belong to the application")]
    if loads:
        rows.append(("load", time_text(median(loads))))
    prompts = (
        analysis.methods
        and analysis.methods[0].phase is not None
        and analysis.methods[0].phase.kind is PhaseKind.PREFILL
    )
    if first and prompts:
        rows.append(("first prefill of a process", time_text(median(first))))
        if loads:
            rows.append(("first token, after load and prefill", time_text(median(loads) + median(first))))
    return rows


def _ledger_blocks(ledger: TokenLedger, phases: Sequence[Phase]) -> list[Block]:
    sentence = bound_sentence(ledger, phases) or f"{_phase_title(ledger, phases)}: {time_text(ledger.time_ns)}."
    blocks: list[Block] = [Sentence(sentence)]
    if not ledger.timed:
        text = f"Traced calls take {ratio_text(ledger.factor)} as long: the ledger has shares, and no times."
        blocks.append(Sentence(text, Tone.DIM))
    wrong = [row for row in ledger.rows if row.impossible]
    if wrong:
        text = (
            f"{wrong[0].part.value} would exceed the measured bandwidth: do not quote it, and report this to opscope."
        )
        blocks.append(Sentence(f"{text[0].upper()}{text[1:]}", Tone.BAD))
    blocks.append(parts_table(ledger))
    blocks.append(
        facts(
            [
                (traffic.use.value, f"{size_text(traffic.bytes)} {traffic.dtype or ''}".strip())
                for traffic in ledger.bytes
            ]
        )
    )
    layers = grouped(ledger.rows, lambda row: row.layer)
    if len(layers) > 1:
        blocks.append(_layers_table(ledger, layers))
    return blocks


def parts_table(ledger: TokenLedger) -> TableBlock:
    """Return the parts of a call, summed over layers; their times add up to the call."""
    return table(
        part_totals(ledger),
        column("part", Format.NAME, lambda row: row.part.value),
        column("operators", Format.COUNT, lambda row: row.operators or None, absent=""),
        column("ms", Format.MS, lambda row: row.time_ns),
        column("share", Format.SHARE, lambda row: row.share),
        column("MB", Format.FIGURE, lambda row: None if row.bytes is None else f"{row.bytes / 1e6:.3g}", absent=""),
        column("MMAC", Format.FIGURE, lambda row: f"{row.macs / 1e6:.3g}" if row.macs else None, absent=""),
        column("of bandwidth", Format.SHARE, lambda row: row.needed) if ledger.limits else None,
        closing=[Closing("total", {"ms": ledger.time_ns if ledger.timed else None, "share": 1.0})],
    )


def _layers_table(ledger: TokenLedger, layers: dict[int | None, list[LedgerRow]]) -> TableBlock:
    """Return a table with layers as rows and parts as columns."""
    parts = [part for part in TokenPart if any(row.part is part for row in ledger.rows)]
    rows = [(number, {row.part: row for row in ledger_rows}) for number, ledger_rows in layers.items()]

    def figure(part: TokenPart) -> TableColumn:
        if ledger.timed:
            return column(
                part.value, Format.MS, lambda row: row[1][part].time_ns if part in row[1] else None, absent=""
            )
        return column(part.value, Format.SHARE, lambda row: row[1][part].share if part in row[1] else None, absent="")

    return table(
        rows,
        column("layer", Format.NAME, lambda row: "outside of layers" if row[0] is None else str(row[0])),
        *(figure(part) for part in parts),
    )
