"""The decision on all series of a store: on a terminal, in Markdown, and as JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from opscope.analysis.findings.message import note
from opscope.analysis.gate.gate import Outcome
from opscope.core.outputs import marked_markdown
from opscope.core.units import counted_text, share_text, time_text
from opscope.fleet.reports.common_moves import fact_text, move_text, percent
from opscope.fleet.reports.history import subject_line
from opscope.reports.document.console import Text
from opscope.reports.document.terminal import message_lines
from opscope.reports.document.text import markdown, markdown_table, plain
from opscope.reports.formats.junit import Case, junit_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from opscope.fleet.analysis.fleet_gate import BudgetLimit, ChangeOrigin, Detectable, FleetGate, SlowerSeries

_MOST_ROWS, _MOST_MARKDOWN_ROWS, _MOST_TOGETHER = 8, 40, 5
_MOST_PARTS = 3
_LONG = 600
_SUITE = "opscope check --new"
_HEAD = ("series", "time", "change", "runs", "first run", "what changed with it", "operators")
_RIGHT = ("change", "runs")


def fleet_gate_sentence(report: FleetGate) -> str:
    """The decision in one sentence: how many series of how many are slower, on which devices, since when."""
    word = f"{report.outcome.value}{' (allowed to pass)' if _excused(report) else ''}"
    since = f"since {report.since.removesuffix('T00:00:00')}"
    if report.outcome in {Outcome.INCONCLUSIVE, Outcome.UNTRUSTED}:
        return f"{word}: none of {report.series} series with a run {since} could be judged"
    told = [_slower_text(report)] if report.slower or not _whole(report) else []
    told += [f"{counted_text(count, kind)} slower as a whole" for kind, count in _whole(report)]
    beyond = sum(one.beyond for one in report.budgets)
    told += [f"{beyond} series beyond an absolute limit"] if beyond else []
    return f"{word}: {', '.join(told)}, {since}, threshold {share_text(report.threshold)}"


def _slower_text(report: FleetGate) -> str:
    count, alone = len(report.slower), len(_alone(report.slower))
    ways = f" ({alone} alone, {count - alone} with the device or model)" if alone < count else ""
    return f"{count or 'none'} of {report.judged} judged series slower{ways}"


def fleet_gate_problem(report: FleetGate) -> str | None:
    """Why it is not a pass; None for a pass."""
    return None if report.outcome is Outcome.PASSED else fleet_gate_sentence(report).partition(": ")[2]


def fleet_gate_summary(report: FleetGate) -> RenderableType:
    """What a person reads after `opscope check --new`."""
    parts: list[RenderableType] = [Text(fleet_gate_sentence(report), style="bold")]
    parts += [Text(f"{'regression' if move.regression else 'change'}: {move_text(move)}") for move in report.moves]
    parts += [Text(_budget_text(one)) for one in report.budgets]
    alone, together = _alone(report.slower), _together(report.slower)
    parts += _table("slower alone", alone, _MOST_ROWS)
    parts += _table("slower with the others of its device or model", together, _MOST_PARTS)
    parts += _table("may be slower, the next runs will show", report.suspects, _MOST_ROWS)
    if report.advice:
        parts.append(Text(f"next: {report.advice}"))
    return Group(*parts, *message_lines(map(note, _notes(report))))


def fleet_gate_markdown(report: FleetGate) -> str:
    """The decision for a comment, a mail or the summary of a job: what changed, where, which operators, since when."""
    excused = " (allowed to pass)" if _excused(report) else ""
    sections = [
        f"## opscope check: {report.outcome.value}{excused}\n",
        f"**{markdown(fleet_gate_sentence(report), _LONG)}**\n",
    ]
    marks = ["**regression**: " if move.regression else "" for move in report.moves]
    lines = [f"- {mark}{markdown(move_text(move), _LONG)}" for mark, move in zip(marks, report.moves, strict=True)]
    lines += [f"- {markdown(_budget_text(one), _LONG)}" for one in report.budgets]
    sections += ["\n".join([*lines, ""])] if lines else []
    if report.advice:
        sections.append(f"Next: {report.advice}.\n")
    alone, together = _alone(report.slower), _together(report.slower)
    sections += _section("Slower alone", alone, _MOST_MARKDOWN_ROWS)
    sections += _section("Slower with the others of its device or model", together, _MOST_TOGETHER)
    sections += _section("May be slower: the next runs will show", report.suspects, _MOST_TOGETHER)
    sections.append("\n".join(["### Notes\n", *(f"- {markdown(one, _LONG)}" for one in _notes(report)), ""]))
    return marked_markdown("\n".join(sections))


def fleet_gate_junit(report: FleetGate) -> bytes:
    """The decision as JUnit XML: a test for each model, each device or model that changed, and each absolute limit.

    A regression is a failure. A model of which no series could be judged is skipped.
    """
    properties = {"outcome": report.outcome.value, "since": report.since, "threshold": f"{report.threshold:g}"}
    lines = [fleet_gate_sentence(report), *_notes(report)]
    return junit_document(list(_cases(report)), properties | {"store": report.store}, lines)


def _cases(report: FleetGate) -> Iterator[Case]:
    for one in report.models:
        own = [row for row in report.slower if row.subject.model == one.model]
        outcome = Outcome.REGRESSION if own else Outcome.PASSED if one.judged else Outcome.INCONCLUSIVE
        message = f"{one.slower} of {one.judged} judged series slower" if one.judged else "no series could be judged"
        detail = "\n".join([f"{message}, {one.series} with a new run", *map(_series_text, own)])
        yield Case("models", one.model, message, detail, outcome, let_through=True)
    for move in report.moves:
        if move.regression:
            name = f"{move.kind.value} {move.name}".strip()
            text = move_text(move)
            yield Case(f"{move.kind.value}s", name, text, text, Outcome.REGRESSION, let_through=False)
    for limit in report.budgets:
        outcome = Outcome.REGRESSION if limit.beyond else Outcome.PASSED
        text = _budget_text(limit)
        yield Case("budgets", f"{limit.name}, entry {limit.entry}", text, text, outcome, let_through=False)


def _whole(report: FleetGate) -> list[tuple[str, int]]:
    kinds = [move.kind.value for move in report.moves if move.regression]
    return [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]


def _excused(report: FleetGate) -> bool:
    return report.let_through and report.outcome is not Outcome.PASSED


def _alone(rows: Sequence[SlowerSeries]) -> list[SlowerSeries]:
    return [row for row in rows if row.common is None]


def _together(rows: Sequence[SlowerSeries]) -> list[SlowerSeries]:
    return [row for row in rows if row.common is not None]


def _table(title: str, rows: Sequence[SlowerSeries], most: int) -> list[RenderableType]:
    if not rows:
        return []
    found: list[RenderableType] = [Text(), Text(f"{title}: {len(rows)}", style="bold")]
    for row in rows[:most]:
        found.append(Text(f"  {_series_text(row)}"))
        found += [Text(f"    {line}") for line in _origin_lines(row.origin)]
    rest = len(rows) - most
    return [*found, Text(f"  and {rest} more; --json has all of them")] if rest > 0 else found


def _series_text(row: SlowerSeries) -> str:
    low, high = row.ci95
    values = f"{time_text(row.before_ns)} -> {time_text(row.after_ns)}"
    sizes = f"{percent(1 + row.slowdown)} [{percent(1 + low)}, {percent(1 + high)}]"
    return f"{subject_line(row.subject)}: {values}, {sizes}, {counted_text(row.runs, 'run')}"


def _origin_lines(found: ChangeOrigin | None) -> list[str]:
    if found is None:
        return []
    parts = [
        f"{plain(one.name, 40)} {time_text(one.before_ns)} -> {time_text(one.after_ns)}"
        for one in found.operators[:_MOST_PARTS]
    ]
    lines = [f"since {_since(found)}"]
    return [*lines, f"most in {'; '.join(parts)}"] if parts else lines


def _since(found: ChangeOrigin) -> str:
    """The first run of the new level, and what differs from the run before it."""
    first, before = found.first, found.before
    versions = [f"executorch {first.executorch}"] if first.executorch else []
    versions += [f"commit {plain(first.commit, 40)}"] if first.commit else []
    names = f"{first.placed} ({first.bundle[:12]}{', before ' + before.bundle[:12] if before else ''})"
    told = _changed(found)
    return ", ".join([names, *versions, *([told] if told else [])])


def _changed(found: ChangeOrigin) -> str:
    return "; ".join(map(fact_text, found.changed)) or "nothing that is recorded changed"


def _section(title: str, rows: Sequence[SlowerSeries], most: int) -> list[str]:
    if not rows:
        return []
    table = markdown_table(_HEAD, map(_cells, rows[:most]), right=_RIGHT)
    rest = len(rows) - most
    return [f"### {title}: {len(rows)}\n", table, *([f"And {rest} more.\n"] if rest > 0 else [])]


def _cells(row: SlowerSeries) -> tuple[str, ...]:
    low, high = row.ci95
    first = row.origin and row.origin.first
    versions = [first.placed, first.bundle[:12], first.commit or "", first.executorch or ""] if first else []
    parts = row.origin.operators[:_MOST_PARTS] if row.origin else []
    return (
        markdown(subject_line(row.subject), 200),
        f"{time_text(row.before_ns)} to {time_text(row.after_ns)}",
        f"{percent(1 + row.slowdown)} ({percent(1 + low)} to {percent(1 + high)})",
        str(row.runs),
        markdown(" ".join(filter(None, versions))),
        markdown(_changed(row.origin), 200) if row.origin else "",
        markdown("; ".join(f"{one.name} +{time_text(one.after_ns - one.before_ns)}" for one in parts), 200),
    )


def _budget_text(one: BudgetLimit) -> str:
    word = "beyond its limit" if one.beyond else "within its limit"
    worst = f"the longest is {time_text(one.worst_ns)}, {subject_line(one.worst)}"
    return f"{word} of {time_text(one.limit_ns)}: {one.beyond} of {one.series} series of {plain(one.name)}; {worst}"


def _notes(report: FleetGate) -> list[str]:
    found = list(report.notes)
    found += [f"not judged: {one.series} series, {one.reason}" for one in report.not_judged]
    found += [text for text in map(_detectable_text, report.detectable) if text]
    nights = f"{report.false_red_nights * 30:.0f} of 30 nights" if report.false_red_nights else "no night"
    return [*found, f"at most {nights} is expected to be red without a reason, by what noise did in the nights before"]


def _detectable_text(one: Detectable) -> str:
    if one.slowdowns is None:
        return ""
    sizes = ", ".join(share_text(size) for size in one.slowdowns)
    what = {"series": "one series", "device": "a whole device", "model": "a whole model"}[one.what]
    return f"a slowdown of {what} shows in half of the cases from {sizes} on, after one, two and three runs"
