"""Origin of the change between two variants, as rows and sentences, and the part that acceleration had in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.compare.compare import shown_not_faster
from opscope.analysis.compare.matching import MatchedBy
from opscope.analysis.kernels.ladder import EvidenceLevel, evidence_level_counts
from opscope.analysis.operators.operators import PORTABLE_BACKEND
from opscope.analysis.rules.acceleration import CONTEXT, HEAVY, SME
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.analysis.rules.operators import EXPECTED
from opscope.core.parts import part
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text, time_text
from opscope.machine.pair_names import declared_features
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.reports.content.content import (
    NO_COUNTERPART,
    NOT_KNOWN,
    category_rows,
    ladders_beside,
    no_difference_text,
    speedup_text,
    top_operators,
)
from opscope.reports.content.places import CATEGORY
from opscope.reports.document.blocks import (
    Beside,
    Block,
    Bullets,
    Closing,
    Details,
    Format,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    facts,
    table,
    verdict_text,
)
from opscope.reports.document.template import picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.analysis.compare.compare import Comparison, EndToEnd, OperatorChange
    from opscope.analysis.compare.shift import Moved, Top
    from opscope.analysis.kernels.ladder import EvidenceLevelCount
    from opscope.reports.content.content import CategoryShift, OperatorRow, ReportContent
    from opscope.reports.document.blocks import TableBlock


_ROWS, _TOP = 10, 8
_TOTAL = "total"


_NOTE = (
    "Savings of all rows add up to the difference between the two latencies. Intervals and verdicts use the means "
    "of all traced processes, whichever times are shown. They include truncation to whole microseconds; verdicts "
    "are corrected for the number of operators."
)


def shift_blocks(comparison: Comparison, *, has_sentences: bool = False) -> list[Block]:
    """Return where the change of a comparison comes from; empty if no operator was recorded.

    ``has_sentences``: whether the document has the sentences elsewhere and needs only the picture and the table.
    """
    if not comparison.operators or comparison.baseline.headline_ns <= 0:
        return []
    steps = picture("steps from one latency to the other", lambda: _draw_steps(comparison))
    detailed = [changes_table(comparison, detailed=True), Sentence(_NOTE, Tone.DIM)]
    return [
        steps if has_sentences else Beside([steps], [Bullets(shift_sentences(comparison))]),
        Details("Operators that changed most, with intervals and verdicts", detailed),
    ]


def _draw_steps(comparison: Comparison) -> str | None:
    from opscope.reports.pictures.steps import shift_steps

    return shift_steps(comparison)


class _ChangedOperator(NamedTuple):
    change: OperatorChange
    before: int | None  # rank among the operators of the baseline, longest first
    after: int | None


def category_changes(comparison: Comparison) -> TableBlock:
    """Return the change by category, and what leads to the change of the latency."""
    total = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    return table(
        comparison.categories,
        CATEGORY,
        column("baseline ms", Format.MS, lambda row: row.baseline_ns),
        column("share before", Format.SHARE, lambda row: _share_of(row.baseline_ns, total[0])),
        column("ms", Format.MS, lambda row: row.candidate_ns),
        column("share", Format.SHARE, lambda row: _share_of(row.candidate_ns, total[1])),
        column("saved ms", Format.MS, lambda row: row.saved_ns),
        column("speedup", Format.RATIO, lambda row: row.speedup),
        column("95 % interval", Format.MS, lambda row: row.ci95_saved_ns),
        column("verdict", Format.VERDICT, lambda row: row.verdict),
        closing=_closing_lines(comparison, copies=False),
    )


def changes_table(comparison: Comparison, *, detailed: bool = False) -> TableBlock:
    """Return the operators that changed most, the others in a line, and what leads to the change of the latency."""
    total = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    most = _ROWS if detailed else _TOP
    rows = _sort_by_change(comparison)
    remaining = [row.change for row in rows[most:]]
    return table(
        rows[:most],
        column("operator", Format.NAME, _operator_cell),
        column("baseline ms", Format.MS, lambda row: row.change.baseline_ns, absent=NO_COUNTERPART),
        column("share before", Format.SHARE, lambda row: _share_of(row.change.baseline_ns, total[0]))
        if detailed
        else None,
        column("rank before", Format.COUNT, lambda row: row.before) if detailed else None,
        column("ms", Format.MS, lambda row: row.change.candidate_ns, absent=NO_COUNTERPART),
        column("share", Format.SHARE, lambda row: _share_of(row.change.candidate_ns, total[1])) if detailed else None,
        column("rank", Format.COUNT, lambda row: row.after) if detailed else None,
        column("speedup", Format.RATIO, lambda row: row.change.speedup) if detailed else None,
        column("saved ms", Format.MS, lambda row: row.change.saved_ns),
        column("95 % interval", Format.MS, lambda row: row.change.ci95_saved_ns) if detailed else None,
        column("of the baseline", Format.SHARE, lambda row: row.change.saved_ns / total[0]) if detailed else None,
        column("verdict", Format.VERDICT, _verdict_cell),
        closing=_closing_lines(comparison, remaining),
    )


def _sort_by_change(comparison: Comparison) -> list[_ChangedOperator]:
    work = [change.kind != FRAMEWORK.kind for change in comparison.operators]
    ranks = [
        _rank_by_time(
            [
                _side_times(change)[side] if is_work else None
                for change, is_work in zip(comparison.operators, work, strict=True)
            ]
        )
        for side in (0, 1)
    ]
    rows = [
        _ChangedOperator(change, *((before, after) if is_work else (None, None)))
        for change, is_work, before, after in zip(comparison.operators, work, *ranks, strict=True)
    ]
    return sorted(rows, key=lambda row: -abs(row.change.saved_ns))


def _operator_cell(row: _ChangedOperator) -> TableCell:
    change = row.change
    layer = change.module if change.module and change.aten else None  # added operators belong to no layer
    return TableCell(layer or change.name, change.kind, change.category)


def _verdict_cell(row: _ChangedOperator) -> TableCell:
    return TableCell(row.change.verdict if row.change.is_judged else None, matched_text(row.change))


def _share_of(time_ns: float | None, total: float) -> float | None:
    return time_ns / total if time_ns is not None and total else None


def matched_text(change: OperatorChange) -> str:
    """Return how uncertain the match of an operator is, in two words; empty if it is certain."""
    if change.kind == FRAMEWORK.kind:
        return ""
    if not change.is_judged:
        return "not matched"
    return "by order" if change.matched_by is MatchedBy.ORDER else ""


def _closing_lines(
    comparison: Comparison, remaining: Sequence[OperatorChange] = (), *, copies: bool = True
) -> Iterator[Closing]:
    """Yield the lines that lead from the operators' changes to the change of the headline, which is last."""
    if remaining:
        before, after = (sum(side or 0.0 for side in times) for times in zip(*map(_side_times, remaining), strict=True))
        yield _closing_line(comparison, counted_text(len(remaining), "other"), before, after)
    for row in comparison.shift.outside:
        if copies or row.category is None:
            yield _closing_line(comparison, row.name, row.baseline_ns, row.candidate_ns)
    sides = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    yield _closing_line(comparison, _TOTAL, *sides)._replace(is_total=True)


def _closing_line(comparison: Comparison, name: str, before: float, after: float) -> Closing:
    total = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    values = {
        "baseline ms": before,
        "share before": _share_of(before, total[0]),
        "ms": after,
        "share": _share_of(after, total[1]),
        "saved ms": before - after,
        "of the baseline": _share_of(before - after, total[0]),
    }
    return Closing(name, values)


def _side_times(change: OperatorChange) -> tuple[float | None, float | None]:
    return change.baseline_ns, change.candidate_ns


def _rank_by_time(times: Sequence[float | None]) -> list[int]:
    """Return the rank of each time, 1 for the longest."""
    order = sorted(range(len(times)), key=lambda number: -(times[number] or 0.0))
    ranks = [0] * len(times)
    for rank, number in enumerate(order, 1):
        ranks[number] = rank
    return ranks


def shift_sentences(comparison: Comparison) -> list[str]:
    """Return what changed, and what is left to gain, in sentences."""
    shift = comparison.shift
    lines = []
    if shift.before and shift.after:
        lines.append(f"Largest kind before: {_kind_text(shift.before)}. After: {_kind_text(shift.after)}.")
    parts = (
        _moved_text(shift.faster, "faster"),
        _moved_text(shift.slower, "slower"),
        _moved_text(shift.undecided, "inconclusive (too few rounds)"),
        _moved_text(shift.unchanged, "with no change detected, including framework time"),
        _moved_text(shift.unmatched, "without a counterpart in the other program"),
    )
    lines.append(f"{'; '.join(filter(None, parts))}.")
    sides = comparison.baseline.headline_ns, comparison.candidate.headline_ns
    now = sides[0] / sides[1] if sides[1] else None
    if shift.limit is not None and now is not None:
        lines.append(
            f"If the faster operators took no time at all, the candidate would be at most {ratio_text(shift.limit)} "
            f"faster than the baseline (Amdahl's law); it is {ratio_text(now)} now."
        )
    if comparison.end_to_end.verdict not in _SHOWN:
        return lines
    first = next((row for row in shift.remaining if row.limit is not None and row.time_ns > 0), None)
    if first is not None and first.limit is not None:
        lines.append(
            f"{first.category.value} dominates the rest ({share_text(first.share)}); without it, the candidate would "
            f"be {ratio_text(first.limit)} faster."
        )
    return lines


_SHOWN = (Verdict.FASTER, Verdict.SLOWER)


def _kind_text(top: Top) -> str:
    return f"{top.kind} ({top.backend}), {share_text(top.share)}, {time_text(top.time_ns)}"


def _moved_text(moved: Moved, change: str) -> str:
    if not moved.operators:
        return ""
    times = f"{time_text(moved.baseline_ns)} to {time_text(moved.candidate_ns)}"
    return f"{counted_text(moved.operators, 'operator')} {change} ({times})"


_MOST_UNHELPED = 8
_FEW = 0.005


def acceleration_section(content: ReportContent) -> Section:
    """Return the section on what acceleration did, and where the change comes from."""
    title = "What Changed" if content.manifest.programs else "Acceleration Analysis"
    comparison = content.primary
    if comparison is None:
        why = f", {content.manifest.left_out.switch}" if content.manifest.left_out.switch else ""
        answer = f"Not known: there is no baseline to compare with{why}"
        return Section(title, [Sentence(f"{answer}.")], "change", "Change", answer, folded=True)
    blocks: list[Block] = [Bullets(part("what acceleration did", lambda: acceleration_sentences(content), list[str]()))]
    blocks += part("what to check of acceleration", lambda: _check_list(content), list[Block]())
    shift = part("what changed", lambda: shift_blocks(comparison) if content.has_split else [], list[Block]())
    sections = [Section("Where the change comes from", shift)] if shift else []
    speeds = [f"{method} {speedup_text(end)}".strip() for method, end in comparison.verdicts.items()]
    answer = f"speedup {', '.join(speeds)}"
    return Section(title, [*blocks, *sections], "change", "Change", answer, folded=True)


def acceleration_sentences(content: ReportContent) -> list[str]:
    """Return what acceleration did to categories, and to operators that it should help."""
    comparison = content.primary
    if comparison is None:
        return []
    if not content.has_split:
        return [_speed_line(method, end) for method, end in comparison.verdicts.items()]
    texts = [
        f"{row.category.value} {ratio_text(row.speedup)} ({milliseconds(row.baseline_ns or 0)} to "
        f"{milliseconds(row.time_ns or 0)} ms)"
        for row in sorted(category_rows(content), key=lambda row: -(row.speedup or 0))
        if row.speedup and (row.baseline_ns or 0) > _FEW * comparison.baseline.headline_ns
    ]
    lines = [f"By category: {', '.join(texts)}."] if texts else []
    if content.manifest.programs:
        return lines  # nothing was switched, so nothing is expected of it
    return [*lines, *_expected_sentences(content), *_unhelped_sentences(content)]


def _check_list(content: ReportContent) -> list[Block]:
    """List what can keep SME2 below its usual speedup, with what is known of each; empty unless it is below."""
    slow = [
        row
        for row in category_rows(content)
        if row.category in EXPECTED and 0 < (row.speedup or 0) < _usual_minimum(row)
    ]
    if not slow or not _may_switch_sme(content):
        return []
    speeds = table(
        slow,
        CATEGORY,
        column("speedup", Format.RATIO, lambda row: row.speedup),
        column("usual with SME2", Format.TEXT, lambda row: "{:g}x to {:g}x".format(*EXPECTED[row.category])),
    )
    return [Section("Below the usual range: what to check", [speeds, facts(_list_checks(content))])]


def _usual_minimum(row: CategoryShift) -> float:
    return EXPECTED[row.category][0]


def _list_checks(content: ReportContent) -> Iterator[tuple[str, str]]:
    features = content.manifest.environment.features
    has = NOT_KNOWN if features is None else "yes" if "sme2" in features else "no: it is not among its features"
    yield "The device has SME2", has
    ladder = next(iter(ladders_beside(content)), None)
    counts = {row.rung: row for row in evidence_level_counts(ladder)} if ladder and ladder.operators else {}
    yield "The runner is built with SME2 kernels", _count_text(counts.get(EvidenceLevel.IN_BINARY))
    heavy = [row.operator for row in top_operators(content) if row.operator.category in HEAVY]
    delegated = [row for row in heavy if row.backend != PORTABLE_BACKEND]
    yield "Convolutions and matrix products are delegated", f"{len(delegated)} of {len(heavy)}"
    yield "Their number types and shapes are eligible", _count_text(counts.get(EvidenceLevel.ELIGIBLE))
    yield "The library selected such a kernel", _count_text(counts.get(EvidenceLevel.SELECTED))


def _count_text(count: EvidenceLevelCount | None) -> str:
    """Return for how many operators the answer is yes, and for how many it is unknown."""
    if count is None or not count.yes + count.no:
        return f"{NOT_KNOWN} here: opscope kernels says what each source can tell"
    unknown = f", {count.unknown} {NOT_KNOWN}" if count.unknown else ""
    return f"{count.yes} of {count.yes + count.no + count.unknown}{unknown}"


def _speed_line(method: str, end_to_end: EndToEnd) -> str:
    text = (
        no_difference_text(end_to_end)
        if end_to_end.verdict is Verdict.NO_DIFFERENCE
        else verdict_text(end_to_end.verdict)
    )
    return f"{method or 'End to end'}: {speedup_text(end_to_end)}, {end_to_end.reason or text}."


def _expected_sentences(content: ReportContent) -> list[str]:
    """Return what SME2 usually gives, if SME was switched or may have been."""
    if not _may_switch_sme(content):
        return []
    condition = "Expected" if _switched_features(content) else "Expected if SME2 was switched"
    return [f"{condition}: {CONTEXT}."]


def _switched_features(content: ReportContent) -> list[str] | None:
    """Return the features that are off in the baseline, or that its name declares as off; None if unknown."""
    if content.primary is None:
        return None
    baseline = content.result(content.primary.baseline.label)
    ablated = baseline.variant.ablated if baseline else None
    declared = declared_features(content.primary.baseline.label, content.primary.candidate.label)
    return ablated or list(declared) or ablated


def _may_switch_sme(content: ReportContent) -> bool:
    switched = _switched_features(content)
    return switched is None or bool(SME & set(switched))


def _unhelped_sentences(content: ReportContent) -> list[str]:
    """Name delegated convolutions and products above the threshold that are shown not to be faster."""
    rows = [
        row
        for row in top_operators(content)
        if row.operator.category in HEAVY
        and row.operator.backend != "portable"
        and row.operator.share > LEAST_SHARE
        and row.change is not None
        and shown_not_faster(row.change)
    ]
    if not rows:
        return []
    return [
        (
            f"Delegated operators above {share_text(LEAST_SHARE)} that are not faster: "
            f"{', '.join(map(_row_name, rows[:_MOST_UNHELPED]))}."
        )
    ]


def _row_name(row: OperatorRow) -> str:
    operator = row.operator
    return f"{operator.module or operator.name} ({milliseconds(operator.shown_ns)} ms)"
