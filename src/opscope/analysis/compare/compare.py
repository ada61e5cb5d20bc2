"""Comparison of two variants: is there a difference, how large, and which operators make it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np

from opscope.analysis.compare.matching import (
    MatchedBy,
    different_networks,
    match,
    match_layers,
    match_runtimes,
    process_copies,
    process_times,
)
from opscope.analysis.compare.number_types import NumberTypeCause
from opscope.analysis.compare.outputs import Accuracy, OutputAgreement, are_identical
from opscope.analysis.compare.shift import Shift, shift
from opscope.analysis.findings.message import Grade, Quality
from opscope.analysis.latency.methods import durations_by_method
from opscope.analysis.operators.headline import HeadlineSplit, headline_scale, measured_durations, not_timed_warning
from opscope.analysis.operators.operators import Operator, known_operators
from opscope.core.parts import part
from opscope.core.stats.effect import Effect, Verdict, adjust_for_many, interval_of, paired_effects, unpaired_effects
from opscope.core.stats.hierarchy import median_effect, typical
from opscope.core.table.places import OperatorKey, RecordedOperator
from opscope.core.units import counted_text, ratio_of_times, share_text
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.compare.matching import Match, OperatorPair
    from opscope.analysis.operators.headline import TracedCallers
    from opscope.analysis.operators.operators import OperatorFacts
    from opscope.core.table import EventTable, TraceWarning

    Floats: TypeAlias = NDArray[np.float64]
    Labels: TypeAlias = NDArray[np.int64]
    _Facts: TypeAlias = Mapping[OperatorKey, OperatorFacts]
    _Processes: TypeAlias = Sequence[Floats]


COMPARISON_SCHEMA = "opscope.comparison/2"
_NORMAL_95 = 1.959964
NOT_FASTER = 1.1
"""A group is not faster when its interval excludes this speedup; where it comes from: docs/design/rules.md."""
RESOLUTION = 0.005
"""Smallest relative half-width of a speedup's interval; the reason is in docs/design/verdict.md."""
RESOLVED = 0.5
"""Largest part of the shorter side that cut-off durations may be for a speedup to be reported."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Mean self time per inference of a group on both sides; ``saved_ns`` is positive when the candidate takes less.

    ``speedup`` is null where one side has no measurable time, or one that its clock does not resolve. The interval of
    95 % and the verdict are those of ``saved_ns``; there is no interval with fewer than two processes, and verdicts
    are corrected for the number of groups (false discovery rate of 5 %). ``resolution_ns`` is the part of the interval
    that is due to durations that were cut off.
    """

    baseline_ns: float
    candidate_ns: float
    saved_ns: float
    speedup: float | None
    ci95_saved_ns: tuple[float, float] | None
    verdict: Verdict
    resolution_ns: float = 0.0


class PairedTimes(NamedTuple):
    """Operators of two sides in pairs, and the time that each process spent in them."""

    pairs: Sequence[OperatorPair]  # the operators; a side that has no such operator is None
    baseline: Floats  # time per inference of each, on the scale of the side's headline; shape (processes, pairs)
    candidate: Floats  # time per inference on the candidate's scale; paired sides have the same rounds in both
    paired: bool  # whether they are

    def changes(self, groups: tuple[Labels, Labels], count: int) -> list[Change]:
        """Return the change of each group, given the group number of each pair on both sides."""
        if not count:
            return []
        before, after = (
            _sum_groups(times, labels, count)
            for times, labels in zip((self.baseline, self.candidate), groups, strict=True)
        )
        effects = (paired_effects if self.paired else unpaired_effects)(before, after)
        widened = [
            _widen_interval(effect, *hidden)
            for effect, hidden in zip(effects, self._cut_off_savings(groups, count), strict=True)
        ]
        verdicts = _correct_verdicts([effect for effect, _ in widened])
        rows = zip(before.mean(axis=0).tolist(), after.mean(axis=0).tolist(), widened, verdicts, strict=True)
        return [
            Change(
                baseline_ns=before_ns,
                candidate_ns=after_ns,
                saved_ns=effect.estimate,
                speedup=_resolved_ratio(before_ns, after_ns, resolution),
                ci95_saved_ns=interval_of(effect),
                verdict=verdict,
                resolution_ns=resolution,
            )
            for before_ns, after_ns, (effect, resolution), verdict in rows
        ]

    def _cut_off_savings(self, groups: tuple[Labels, Labels], count: int) -> list[tuple[float, float]]:
        """Return mean and standard deviation of what cut-off durations hide of each group's saving."""
        (mean, variance), (candidate_mean, candidate_variance) = (
            _cut_off_by_group([pair[side] for pair in self.pairs], labels, count) for side, labels in enumerate(groups)
        )
        return list(zip((mean - candidate_mean).tolist(), np.sqrt(variance + candidate_variance).tolist(), strict=True))


def _sum_groups(times: Floats, labels: Labels, count: int) -> Floats:
    """Return the time of each group in each process; shape (processes, groups)."""
    sums = np.zeros((len(times), count))
    used = labels >= 0
    np.add.at(sums.T, labels[used], times[:, used].T)
    return sums


def _cut_off_by_group(operators: Sequence[Operator | None], labels: Labels, count: int) -> tuple[Floats, Floats]:
    """Return mean and variance of the time that each group lacks because durations were cut off.

    Time that an operator lacks is counted in the call around it; a group that holds both lacks nothing.
    """
    calls = {
        (operator.method, operator.instruction): int(label)
        for operator, label in zip(operators, labels, strict=True)
        if operator is not None and operator.position is None
    }
    mean, variance = np.zeros(count), np.zeros(count)
    for operator, label in zip(operators, labels.tolist(), strict=True):
        if operator is None or not operator.uncertainty_ns or operator.position is None:
            continue
        call_group = calls.get((operator.method, operator.instruction), -1)
        if call_group == label:
            continue
        for group, sign in ((label, 1), (call_group, -1)):
            if group >= 0:
                mean[group] += sign * operator.uncertainty_ns / 2
                variance[group] += operator.uncertainty_ns**2 / 12
    return mean, variance


def _widen_interval(effect: Effect, shift: float, deviation: float) -> tuple[Effect, float]:
    """Widen the interval of an effect by what was cut off, and return the largest widening of an end."""
    below, above = _NORMAL_95 * deviation - min(shift, 0), _NORMAL_95 * deviation + max(shift, 0)
    resolution = max(below, above)
    if effect.low is None or effect.high is None or math.isclose(resolution, 0.0, abs_tol=1e-9):
        return effect, resolution
    return msgspec.structs.replace(effect, low=effect.low - below, high=effect.high + above), resolution


def _correct_verdicts(effects: list[Effect]) -> list[Verdict]:
    p_values = [effect.p_value for effect in effects]
    known = [p_value for p_value in p_values if p_value is not None]
    if len(known) != len(effects):
        return [Verdict.UNDECIDABLE] * len(effects)
    return [effect.verdict(p_value) for effect, p_value in zip(effects, adjust_for_many(known), strict=True)]


def _resolved_ratio(baseline_ns: float, candidate_ns: float, resolution_ns: float) -> float | None:
    """Return baseline over candidate; None if a side is too short to be shown or for its clock."""
    resolved = resolution_ns < RESOLVED * min(baseline_ns, candidate_ns)
    return ratio_of_times(baseline_ns, candidate_ns) if resolved else None


class EndToEnd(msgspec.Struct, frozen=True):
    """Verdict on end-to-end latency.

    Attributes:
        baseline_ns: typical latency of a process of the baseline: see ``opscope.core.stats.hierarchy.typical``.
        candidate_ns: typical latency of a process of the candidate.
        speedup: baseline / candidate; null where it is withheld.
        ci95: 95 % interval of the speedup, null with fewer than two processes a side, and where it is withheld.
        verdict: whether the candidate is faster.
        minimum_detectable: smallest relative change of latency that such data would show in 80 of 100 experiments.
        p_value: p-value of the permutation test.
        design: ``paired`` when both sides were measured in the same rounds, else ``unpaired``.
        baseline_processes: number of processes of the baseline.
        candidate_processes: number of processes of the candidate.
        arm: ``untraced`` when it rests on calls without event tracing, ``traced`` when on Method::execute in traces.
        excluded_beyond: of ``no_difference``, the relative change of latency, either way, that the interval excludes
            from there on; null with another verdict.
        reason: why the ratio is withheld; null where it is not.
        grade: how far the comparison can be trusted; null where that was not judged.
    """

    baseline_ns: float
    candidate_ns: float
    speedup: float | None
    ci95: tuple[float, float] | None
    verdict: Verdict
    minimum_detectable: float | None
    p_value: float | None
    design: str
    baseline_processes: int
    candidate_processes: int
    arm: str = "traced"
    excluded_beyond: float | None = None
    reason: str | None = None
    grade: Grade | None = None

    def without_ratio(self, reason: str) -> EndToEnd:
        """Return this verdict with the ratio withheld for a reason; the figures of each side stay."""
        return msgspec.structs.replace(
            self, speedup=None, ci95=None, verdict=Verdict.WITHHELD, p_value=None, excluded_beyond=None, reason=reason
        )


class MethodChange(msgspec.Struct, frozen=True):
    """Verdict on the latency of one method, on sides that call several."""

    method: str
    end_to_end: EndToEnd


def verdicts_of(end_to_end: EndToEnd, methods: Sequence[MethodChange]) -> dict[str, EndToEnd]:
    """Return the verdicts that answer: by method if there are several, else on all calls under ``""``."""
    return {change.method: change.end_to_end for change in methods} or {"": end_to_end}


class CategoryChange(Change, frozen=True):
    """Time per inference of a category on both sides, each on its headline's scale.

    The interval and the verdict are those of ``saved_ns``; verdicts are corrected for the number of categories.
    ``resolution_ns`` is the part of the interval that is due to durations that the delegate cuts off; ``speedup`` is
    null where it is half of the shorter side or more. Times of data movement hold the copies of inputs and outputs.
    """

    category: Category


class KindChange(Change, frozen=True):
    """Change of a kind of the taxonomy's lower level on one backend."""

    kind: str
    category: Category
    backend: str


class OperatorChange(RecordedOperator, frozen=True):
    """Operator on both sides, matched by its place in the program; null on a side that does not have it.

    ``module`` and ``aten`` are those of the layer, ``source`` is its line of Python; null where the program does not
    tell. Verdicts are corrected for the number of operators (false discovery rate of 5 %). ``matched_by`` says how it
    is known that both sides are the same operator: ``place``, ``layer``, ``shape`` or ``order``, of which the last one
    is likely and the others are certain; null for an operator that stands alone, and in earlier comparisons.
    """

    baseline_name: str | None
    candidate_name: str | None
    category: Category
    kind: str
    backend: str
    baseline_ns: float | None
    candidate_ns: float | None
    saved_ns: float
    speedup: float | None
    ci95_saved_ns: tuple[float, float] | None
    verdict: Verdict
    module: str | None = None
    aten: str | None = None
    resolution_ns: float = 0.0
    matched_by: MatchedBy | None = None
    source: str | None = None

    @property
    def is_judged(self) -> bool:
        """Return whether the verdict means anything: an operator without a match has none."""
        return self.ci95_saved_ns is not None or None not in {self.baseline_ns, self.candidate_ns}


def largest_speedup(change: CategoryChange | KindChange | OperatorChange) -> float | None:
    """Return the largest speedup that the interval of the saving allows; None if it is unbounded."""
    if change.baseline_ns is None or change.ci95_saved_ns is None:
        return None
    least = change.baseline_ns - change.ci95_saved_ns[1]
    return change.baseline_ns / least if least > 0 else None


def shown_not_faster(change: CategoryChange | KindChange | OperatorChange) -> bool:
    """Return whether a change is slower or its interval excludes a speedup that matters."""
    most = largest_speedup(change)
    excluded = change.verdict is Verdict.NO_DIFFERENCE and most is not None and most < NOT_FASTER
    return change.verdict is Verdict.SLOWER or excluded


class ComparedSide(HeadlineSplit, msgspec.Struct, frozen=True, kw_only=True):
    """Side of a comparison: where it came from, and what its split adds up to."""

    label: str
    path: str


class Comparison(msgspec.Struct, frozen=True, tag_field="schema", tag=COMPARISON_SCHEMA):
    """Verdict and split of the difference of two variants.

    Attributes:
        baseline: the side that is compared with.
        candidate: the side that is judged.
        end_to_end: the verdict.
        categories: a split of the change of latency; empty where a side has no times.
        kinds: a finer split, without the copies of inputs and outputs.
        operators: the finest split; in each of the three, ``saved_ns`` sums to
            ``shift.saved_ns`` with ``shift.outside``.
        outputs: agreement of what was computed; null when that was not compared.
        notes: what limits the meaning of the figures.
        shift: what the change did to the balance of the model.
        quality: how far all this can be trusted; null where that was not judged.
        methods: the verdict on every method that both sides call, where one calls several; else empty.
        accuracy: how far the outputs differ on the same inputs, or why that is not known; null for variants of one
            program, whose outputs have to agree, and for sides without a bundle.
        networks: why the sides look like different networks, as a sentence; null where they do not.
        number_types: why a candidate of lower precision is not faster than floats; empty where it is, or has none.
    """

    baseline: ComparedSide
    candidate: ComparedSide
    end_to_end: EndToEnd
    categories: list[CategoryChange]
    kinds: list[KindChange]
    operators: list[OperatorChange]
    outputs: OutputAgreement | None
    notes: list[str]
    shift: Shift
    quality: Quality | None = None
    methods: list[MethodChange] = []
    accuracy: Accuracy | None = None
    networks: str | None = None
    number_types: list[NumberTypeCause] = []

    @property
    def verdicts(self) -> dict[str, EndToEnd]:
        """Verdicts that answer, by method; see :func:`verdicts_of`."""
        return verdicts_of(self.end_to_end, self.methods)

    def verdict_of(self, method: str | None) -> EndToEnd:
        """Return the verdict on a method; on all calls if it is null or was not called."""
        return self.verdicts.get(method or "", self.end_to_end)

    @property
    def has_split(self) -> bool:
        """Return whether the change is split into operators; calls of a runtime without traces are not."""
        return self.no_split is None and any(operator.kind != FRAMEWORK.kind for operator in self.operators)

    @property
    def no_split(self) -> TraceWarning | None:
        """Reason why a side's traces do not show where its time goes; None if both do, or there are none."""
        return next(filter(None, map(not_timed_warning, (self.baseline, self.candidate))), None)


class RelatedData(NamedTuple):
    """Knowledge of two sides besides their events."""

    # what the program says about the operators of the baseline, then of the candidate
    facts: tuple[_Facts, _Facts] = ({}, {})
    # durations of each untraced process, of the baseline and of the candidate; the verdict then rests on these.
    # Of paired sides they are of the same rounds
    untraced: tuple[_Processes, _Processes] | None = None
    methods: Mapping[str, tuple[_Processes, _Processes]] = {}  # the same by method, where several were called
    # what is known of the calls of a side's traced processes; None where their durations are not
    callers: tuple[TracedCallers | None, TracedCallers | None] = (None, None)
    # whether both sides ran one program, so that a place in it is the same operator; that is taken for granted
    # where nothing tells otherwise
    same_program: bool = True
    same_runtime: bool = True  # whether one runtime ran both programs; else operators are matched by what they compute
    disturbed: str | None = None  # why no ratio of the two sides can be told; None when it can


def compare(
    baseline: EventTable,
    candidate: EventTable,
    *,
    labels: tuple[tuple[str, str], tuple[str, str]],
    paired: bool,
    outputs: OutputAgreement | None = None,
    related: RelatedData | None = None,
) -> Comparison:
    """Compare two variants: their latency, and the time of every operator that can be matched.

    ``labels``: name and path of baseline and candidate; ``paired``: whether both sides were measured in the same
    rounds.
    """
    related = related or RelatedData()
    measured = related.untraced or (measured_durations(baseline), measured_durations(candidate))
    disturbed = related.disturbed or _different_calls_reason(baseline, candidate)
    end_to_end = _judge_end_to_end(
        *measured, paired=paired, arm="untraced" if related.untraced else "traced", disturbed=disturbed
    )
    untraced = related.untraced or (None, None)
    scales = (
        headline_scale(baseline, untraced[0], related.callers[0]),
        headline_scale(candidate, untraced[1], related.callers[1]),
    )
    rows = [
        known_operators(table, facts, scale)
        for table, facts, scale in zip((baseline, candidate), related.facts, scales, strict=True)
    ]
    sides = (scales[0].split, scales[1].split)
    match_others = match_layers if related.same_runtime else match_runtimes
    matched = list((match if related.same_program else match_others)(*rows))
    pairs = [match_found.pair for match_found in matched]
    by_kind: list[KindChange] = []
    by_operator: list[OperatorChange] = []
    by_category: list[CategoryChange] = []
    if all(side.timed for side in sides):
        times = [process_times(scale, [pair[side] for pair in pairs]) for side, scale in enumerate(scales)]
        split = PairedTimes(pairs, times[0], times[1], paired)
        by_kind, by_operator = (
            _kind_changes(split),
            _operator_changes(split, [match_found.by for match_found in matched], related),
        )
        by_category = _category_changes(split, [process_copies(scale) for scale in scales])
    if disturbed:
        by_kind, by_operator, by_category = (
            _withhold_changes(by_kind),
            _withhold_changes(by_operator),
            _withhold_changes(by_category),
        )
    return Comparison(
        baseline=_compared_side(labels[0], sides[0]),
        candidate=_compared_side(labels[1], sides[1]),
        end_to_end=end_to_end,
        categories=by_category,
        kinds=by_kind,
        operators=by_operator,
        outputs=outputs,
        notes=_comparison_notes(end_to_end, matched, related),
        networks=None if related.same_program else different_networks(*related.facts),
        shift=shift(
            by_operator,
            by_kind,
            by_category,
            sides,
            decided=end_to_end.verdict,
            same_program=related.same_program,
        ),
        methods=part(
            "the comparison by method", lambda: _method_changes(baseline, candidate, related, paired=paired), []
        ),
    )


def _compared_side(label: tuple[str, str], split: HeadlineSplit) -> ComparedSide:
    return ComparedSide(**msgspec.structs.asdict(split), label=label[0], path=label[1])


def _different_calls_reason(*sides: EventTable) -> str | None:
    """Return why figures of all calls together mean different things on the two sides; None if they agree."""
    baseline_counts, candidate_counts = (
        {name: sum(map(len, durations)) for name, durations in durations_by_method(side).items()} for side in sides
    )
    if max(len(baseline_counts), len(candidate_counts)) < 2:  # noqa: PLR2004 - one method is the whole
        return None
    if baseline_counts.keys() != candidate_counts.keys():
        return (
            f"the two sides call different methods: {_join_names(baseline_counts)} and {_join_names(candidate_counts)}"
        )
    shares = [
        {name: count / sum(counts.values()) for name, count in counts.items()}
        for counts in (baseline_counts, candidate_counts)
    ]
    alike = all(math.isclose(shares[0][name], shares[1][name], rel_tol=_SAME_SHARE) for name in baseline_counts)
    return None if alike else "the two sides call their methods in different proportions"


_SAME_SHARE = 0.05  # a process that was cut short, or calls that were left out, make no other mixture


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _method_changes(
    baseline: EventTable, candidate: EventTable, related: RelatedData, *, paired: bool
) -> list[MethodChange]:
    """Return a verdict for each method that both sides call, if they call several."""
    sides = [durations_by_method(table) for table in (baseline, candidate)]
    if max(map(len, sides)) < 2:  # noqa: PLR2004 - one method is the whole
        return []
    changes = []
    for method in [name for name in sides[0] if name in sides[1]]:
        measured = related.methods.get(method) or tuple(
            [durations.astype(np.float64) for durations in side[method] if len(durations)] for side in sides
        )
        arm = "untraced" if method in related.methods else "traced"
        judged = _judge_end_to_end(measured[0], measured[1], paired=paired, arm=arm, disturbed=related.disturbed)
        changes.append(MethodChange(method, judged))
    return changes


_AnyChange = TypeVar("_AnyChange", CategoryChange, KindChange, OperatorChange)


def _withhold_changes(changes: Sequence[_AnyChange]) -> list[_AnyChange]:
    """Return changes without what disturbed measurements do not support: the times of each side stay."""
    nothing: dict[str, object] = {"speedup": None, "ci95_saved_ns": None, "verdict": Verdict.WITHHELD}
    return [msgspec.structs.replace(change, **nothing) for change in changes]


def _comparison_notes(end_to_end: EndToEnd, matched: Sequence[Match], related: RelatedData) -> list[str]:
    notes, pairs = [], [row.pair for row in matched]
    if end_to_end.verdict is Verdict.UNDECIDABLE:
        notes.append(
            "too few processes to detect any difference; a verdict needs 6 paired rounds, 3 if all of them show a "
            "clear change, or 4 unpaired processes per side"
        )
    if not related.same_program:
        way = "layer and kind" if related.same_runtime else "layer, or by kind, work and output size"
        likely = sum(row.by is MatchedBy.ORDER for row in matched)
        order = f"{counted_text(likely, 'pair')} of these by order among identical operators: likely, but not certain"
        return [*notes, _matched_text(pairs, way), *([order] if likely else [])]
    one_sided = sum(1 for baseline, candidate in pairs if baseline is None or candidate is None)
    if one_sided:
        exist = "exists" if one_sided == 1 else "exist"
        only = f"{counted_text(one_sided, 'operator')} {exist} on one side only"
        notes.append(f"{only}: the runtime ran a different sequence")
    return notes


def _matched_text(pairs: Sequence[OperatorPair], way: str) -> str:
    """Return how much of two programs could be matched, as one sentence."""
    head = "the two sides ran different programs"
    work = [pair for pair in pairs if not any(operator and operator.kind == FRAMEWORK.kind for operator in pair)]
    both = [pair for pair in work if None not in pair]
    if not both:
        return f"{head}; no operator could be matched by {way}, so only totals and end-to-end latency are compared"
    texts = []
    for side, name in enumerate(("baseline", "candidate")):
        matched, every = (
            [operator.share for pair in selected_pairs if (operator := pair[side])] for selected_pairs in (both, work)
        )
        share = f", {share_text(sum(matched) / sum(every))} of their time" if sum(every) else ""
        texts.append(f"{len(matched)} of {counted_text(len(every), 'operator')} of the {name}{share},")
    return f"{head}: {' and '.join(texts)} are matched by {way}; the others have no verdict"


def _judge_end_to_end(
    baseline: _Processes, candidate: _Processes, *, paired: bool, arm: str, disturbed: str | None = None
) -> EndToEnd:
    sides = typical(baseline), typical(candidate)
    effect = _widen_to_resolution(median_effect(baseline, candidate, paired=paired), math.log(sides[0] / sides[1]))
    detectable = None if effect.minimum_detectable is None else math.expm1(effect.minimum_detectable)
    interval, verdict = interval_of(effect, math.exp), effect.verdict()
    if interval is not None and interval[0] <= 1 <= interval[1] and verdict in {Verdict.FASTER, Verdict.SLOWER}:
        verdict = Verdict.NO_DIFFERENCE
    end_to_end = EndToEnd(
        baseline_ns=sides[0],
        candidate_ns=sides[1],
        speedup=sides[0] / sides[1],
        ci95=interval,
        verdict=verdict,
        minimum_detectable=detectable,
        p_value=effect.p_value,
        design="paired" if paired else "unpaired",
        baseline_processes=len(baseline),
        candidate_processes=len(candidate),
        arm=arm,
        excluded_beyond=excluded_beyond(verdict, interval),
    )
    return end_to_end.without_ratio(disturbed) if disturbed else end_to_end


def _widen_to_resolution(effect: Effect, estimate: float) -> Effect:
    """Return the effect with an interval at least as wide as runs of one program differ between hours."""
    if effect.low is None or effect.high is None or effect.minimum_detectable is None:
        return msgspec.structs.replace(effect, estimate=estimate)
    return msgspec.structs.replace(
        effect,
        estimate=estimate,
        low=min(effect.low, estimate - RESOLUTION),
        high=max(effect.high, estimate + RESOLUTION),
        minimum_detectable=max(effect.minimum_detectable, RESOLUTION),
    )


def excluded_beyond(verdict: Verdict, ci95_speedup: tuple[float, float] | None) -> float | None:
    """Return the smallest relative change of latency that an interval excludes in either direction.

    None unless no difference was detected: a detected difference is not excluded, and with too few processes the
    interval excludes nothing reliable.
    """
    if verdict is not Verdict.NO_DIFFERENCE or ci95_speedup is None:
        return None
    low, high = ci95_speedup
    return max(high, 1 / low) - 1 if low > 0 else None


def _category_changes(split: PairedTimes, copies: Sequence[Floats]) -> list[CategoryChange]:
    """Return the changes of all categories; copies of inputs and outputs count as data movement."""
    every_category = list(Category)
    sides = zip((split.baseline, split.candidate), copies, strict=True)
    before, after = (np.hstack([times, copied]) for times, copied in sides)
    extended = PairedTimes([*split.pairs, (None, None)], before, after, split.paired)
    copied = [every_category.index(Category.DATA_MOVEMENT)]
    baseline, candidate = _group_numbers(split, every_category, lambda operator: operator.category)
    changes = extended.changes((np.append(baseline, copied), np.append(candidate, copied)), len(every_category))
    return [
        CategoryChange(category, **msgspec.structs.asdict(change))
        for category, change in zip(every_category, changes, strict=True)
    ]


def _kind_changes(split: PairedTimes) -> list[KindChange]:
    kinds = dict.fromkeys(_kind_key(operator) for pair in split.pairs for operator in pair if operator is not None)
    changes = split.changes(_group_numbers(split, list(kinds), _kind_key), len(kinds))
    rows = zip(kinds, changes, strict=True)
    return [KindChange(*key, **msgspec.structs.asdict(change)) for key, change in rows]


def _kind_key(operator: Operator) -> tuple[str, Category, str]:
    return operator.kind, operator.category, operator.backend


def _group_numbers(
    split: PairedTimes, groups: Sequence[object], group: Callable[[Operator], object]
) -> tuple[Labels, Labels]:
    """Return the group number of each operator on both sides, in the order of ``groups``; -1 for none."""
    numbers = {key: number for number, key in enumerate(groups)}
    baseline, candidate = (
        np.array([-1 if operator is None else numbers[group(operator)] for operator in side], np.int64)
        for side in zip(*split.pairs, strict=True)
    )
    return baseline, candidate


def _operator_changes(
    split: PairedTimes, ways: Sequence[MatchedBy | None], related: RelatedData
) -> list[OperatorChange]:
    own_groups = np.arange(len(split.pairs))
    changes = (
        split.changes((own_groups, own_groups), len(own_groups)) if related.same_program else _matched_changes(split)
    )
    return [_operator_change(*row) for row in zip(split.pairs, changes, ways, strict=True)]


def _matched_changes(split: PairedTimes) -> list[Change]:
    """Return changes of operators of two programs: those without a partner have times but no verdict."""
    matched = np.array([baseline is not None and candidate is not None for baseline, candidate in split.pairs], bool)
    labels = np.where(matched, np.cumsum(matched) - 1, -1)
    judged = iter(split.changes((labels, labels), int(matched.sum())))
    times = zip(split.baseline.mean(axis=0).tolist(), split.candidate.mean(axis=0).tolist(), strict=True)
    return [
        next(judged) if known else _not_judged(before, after)
        for known, (before, after) in zip(matched.tolist(), times, strict=True)
    ]


def _not_judged(before: float, after: float) -> Change:
    return Change(
        baseline_ns=before,
        candidate_ns=after,
        saved_ns=before - after,
        speedup=None,
        ci95_saved_ns=None,
        verdict=Verdict.UNDECIDABLE,
    )


def _operator_change(pair: OperatorPair, change: Change, way: MatchedBy | None) -> OperatorChange:
    baseline, candidate = pair
    representative = candidate or baseline
    assert representative is not None  # noqa: S101 - a pair has at least one side by construction
    return OperatorChange(
        method=representative.method,
        instruction=representative.instruction,
        position=representative.position,
        name=representative.name,
        baseline_name=baseline.name if baseline else None,
        candidate_name=candidate.name if candidate else None,
        category=representative.category,
        kind=representative.kind,
        backend=representative.backend,
        baseline_ns=change.baseline_ns if baseline else None,
        candidate_ns=change.candidate_ns if candidate else None,
        saved_ns=change.saved_ns,
        speedup=change.speedup if baseline and candidate else None,
        ci95_saved_ns=change.ci95_saved_ns,
        verdict=change.verdict,
        module=representative.module,
        aten=representative.aten,
        resolution_ns=change.resolution_ns,
        matched_by=way,
        source=representative.source,
    )


_CONTROL_WITHIN = 1.1
"""Largest ratio of times that the interval may hold: switching off AVX-512 changes them by 1.2 and more."""


def changes_nothing(control: Comparison) -> bool:
    """Return whether a mechanism that switches features changed neither outputs nor times by itself.

    No difference was detected, and the interval is narrow.
    """
    end = control.end_to_end
    near = end.ci95 is not None and 1 / _CONTROL_WITHIN <= end.ci95[0] <= end.ci95[1] <= _CONTROL_WITHIN
    return are_identical(control.outputs) is True and end.verdict is Verdict.NO_DIFFERENCE and near
