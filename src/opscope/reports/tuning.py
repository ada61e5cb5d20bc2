"""The result of `opscope tune` as a document: the setting to use, how sure that is, and what else was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.tuning import DEFAULT, OutputClass, find_visible_gain
from opscope.core.units import interval_text, ratio_text, size_text, time_text
from opscope.reports.document.blocks import Code, Document, Format, Section, Sentence, TableCell, Tone, column, table

if TYPE_CHECKING:
    from opscope.analysis.tuning import CandidateResult, ConfirmedGain, Tuning
    from opscope.reports.document.blocks import Block, TableBlock

_OUTPUTS = {
    OutputClass.SAME_BITS: "outputs equal bit for bit",
    OutputClass.ROUNDING: "outputs equal within rounding",
    OutputClass.OTHER_NUMBERS: "outputs differ",
}


def tuning_document(tuning: Tuning) -> Document:
    """Return the setting to use or the reason to keep the default, every candidate, and the lines to write."""
    winner = find_winner(tuning)
    blocks: list[Block] = [
        Sentence(_base_text(tuning)),
        Sentence(_null_text(tuning)),
        *([Sentence(_replay_text(tuning))] if tuning.replayed else []),
        Sentence(_load_text(tuning)),
        *(
            [Section("Apply it", [Code("\n".join(winner.candidate.lines))])]
            if winner and winner.candidate.lines
            else []
        ),
        Section("Candidates", [_candidate_table(tuning)]),
        Sentence(_time_text(tuning), Tone.DIM),
    ]
    return Document(
        title=tuning.model,
        heading=f"{tuning.model} in {tuning.runtime} on {tuning.machine}",
        answer=answer_text(tuning),
        blocks=blocks,
        sections=[],
    )


def find_winner(tuning: Tuning) -> CandidateResult | None:
    """Return the result of the setting to use; None: keep the default."""
    return next((result for result in tuning.candidates if result.candidate.name == tuning.winner), None)


def answer_text(tuning: Tuning) -> str:
    """Return the answer: the confirmed gain of the winner, or why the default stays."""
    winner = find_winner(tuning)
    if winner is not None and winner.confirmed is not None:
        cpu = f", CPU time {ratio_text(winner.cpu_ratio)}" if winner.cpu_ratio is not None else ""
        outputs = _OUTPUTS[winner.outputs] if winner.outputs else ""
        return f"{_gain_text(winner.confirmed)}: {winner.candidate.name}{cpu}; {outputs}"
    if tuning.disturbed:
        return f"no setting is named: {tuning.disturbed}"
    visible = find_visible_gain(tuning.candidates, tuning.null)
    seen = f"; a gain of {ratio_text(visible)} would have been seen" if visible is not None else ""
    return f"keep the default: no setting was shown to be faster{seen}"


def _gain_text(gain: ConfirmedGain) -> str:
    return f"{ratio_text(gain.speedup)} {interval_text((gain.low, gain.high), ratio_text)}"


def _base_text(tuning: Tuning) -> str:
    latency = tuning.base.latency_ns
    figure = f"{time_text(latency)} per inference" if latency is not None else "not measured"
    kind = tuning.base.outputs
    exact = f"; {_OUTPUTS[kind]} from {tuning.reference}" if kind is OutputClass.OTHER_NUMBERS else ""
    return f"The runtime's own default: {figure}{exact}."


def _null_text(tuning: Tuning) -> str:
    if tuning.null is None:
        return "Nothing was confirmed: no setting was near the default in the search."
    return f"The default against itself in the same rounds: {_gain_text(tuning.null)}."


def _replay_text(tuning: Tuning) -> str:
    gains = [f"{row.candidate.name} {_gain_text(row.earlier)}" for row in tuning.candidates if row.earlier is not None]
    return f"Confirmed again, without a search; {tuning.replayed} said: {', '.join(gains) or 'nothing'}."


def _load_text(tuning: Tuning) -> str:
    if tuning.foreign_cpus is None:
        return "Whether other processes used the CPUs is not known here: run it again before you rely on it."
    return f"Other processes kept {tuning.foreign_cpus:.2f} CPUs busy meanwhile."


def _time_text(tuning: Tuning) -> str:
    seconds = tuning.seconds
    search = f"search {seconds['search']:.0f} s, " if "search" in seconds else ""
    first = f"first confirmed answer after {seconds['first']:.0f} s" if "first" in seconds else "nothing was confirmed"
    text = f"{search}{first}, {seconds['all']:.0f} s in all."
    return text[0].upper() + text[1:]


def _candidate_table(tuning: Tuning) -> TableBlock:
    search = column("in the search", Format.RATIO, lambda row: None if row.candidate.name == DEFAULT else row.seen)
    return table(
        [tuning.base, *tuning.candidates],
        column("setting", Format.NAME, lambda row: _setting_cell(row, tuning.winner)),
        *([] if tuning.replayed else [search]),
        column("confirmed", Format.RATIO, lambda row: row.confirmed.speedup if row.confirmed else None),
        column("interval", Format.FIGURE, lambda row: _interval_cell(row.confirmed)),
        column("outputs", Format.TEXT, lambda row: row.outputs.value if row.outputs else ""),
        column("CPU time", Format.RATIO, lambda row: row.cpu_ratio),
        column("latency", Format.TIME, lambda row: row.latency_ns),
        column("memory", Format.SIZE, lambda row: row.peak_bytes, wide=True),
        column("load", Format.TIME, lambda row: row.load_ns, wide=True),
        column("outcome", Format.TEXT, lambda row: ": ".join(filter(None, (row.outcome, row.reason)))),
    )


def _setting_cell(row: CandidateResult, winner: str | None) -> TableCell:
    return TableCell(row.candidate.name, tone=Tone.STRONG if row.candidate.name == winner else Tone.PLAIN)


def _interval_cell(gain: ConfirmedGain | None) -> str:
    return interval_text((gain.low, gain.high), ratio_text) if gain else ""


def apply_text(tuning: Tuning) -> str:
    """Return what to write in a program of one's own, as Markdown; the answer alone where the default stays."""
    winner = find_winner(tuning)
    lines = [f"# {tuning.model} in {tuning.runtime}", "", f"{answer_text(tuning)}.", ""]
    if winner is not None and winner.candidate.lines:
        lines += ["```", *winner.candidate.lines, "```", ""]
        if winner.peak_bytes is not None:
            lines += [f"Largest memory of the process: {size_text(winner.peak_bytes)}.", ""]
    return "\n".join(lines)
