"""Two variants side by side: is there a difference, how large, and which operators make it."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.analyze.operators import UNKNOWN_METHOD, Operator, operators
from opscope.analyze.outputs import OutputAgreement
from opscope.program.attribution import Attribution
from opscope.program.taxonomy import Category, classify
from opscope.stats.effect import Effect, Verdict, adjust_for_many, paired_effects, unpaired_effects
from opscope.table.places import spent_by_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.analyze.operator_facts import OperatorFacts
    from opscope.analyze.operator_facts import OperatorKey as FactKey
    from opscope.table import EventTable
    from opscope.table.places import Place

    Floats: TypeAlias = NDArray[np.float64]
    _Facts: TypeAlias = Mapping[FactKey, OperatorFacts]
    OperatorPair: TypeAlias = tuple[Operator | None, Operator | None]
    OperatorKey: TypeAlias = tuple[str, int | None, int | None, str | None]


class EndToEnd(msgspec.Struct, frozen=True):
    """The verdict on end-to-end latency.

    Attributes:
        baseline_ns: geometric mean over processes of each process's median latency.
        candidate_ns: the same of the candidate.
        speedup: baseline / candidate.
        ci95: 95 % interval of the speedup, null with fewer than two processes a side.
        verdict: whether the candidate is faster.
        minimum_detectable: smallest relative change of latency that such data would show in 80 of 100 experiments.
        p_value: of the permutation test.
        design: ``paired`` when both sides were measured in the same rounds, else ``unpaired``.
        baseline_processes: number of processes of the baseline.
        candidate_processes: number of processes of the candidate.
        arm: ``untraced`` when it rests on calls without event tracing, ``traced`` when on Method::execute in traces.
    """

    baseline_ns: float
    candidate_ns: float
    speedup: float
    ci95: tuple[float, float] | None
    verdict: Verdict
    minimum_detectable: float | None
    p_value: float | None
    design: str
    baseline_processes: int
    candidate_processes: int
    arm: str = "traced"


class CategoryChange(msgspec.Struct, frozen=True):
    """Mean self time per inference of a category on both sides; ``saved_ns`` is positive when the candidate is faster.

    The interval and the verdict are those of ``saved_ns``; verdicts are corrected for the number of categories.
    """

    category: Category
    baseline_ns: float
    candidate_ns: float
    saved_ns: float
    speedup: float | None
    ci95_saved_ns: tuple[float, float] | None
    verdict: Verdict


class KindChange(msgspec.Struct, frozen=True):
    """Like CategoryChange, for a kind of the taxonomy's lower level and one backend."""

    kind: str
    category: Category
    backend: str
    baseline_ns: float
    candidate_ns: float
    saved_ns: float
    speedup: float | None
    ci95_saved_ns: tuple[float, float] | None
    verdict: Verdict


class OperatorChange(msgspec.Struct, frozen=True):
    """One operator on both sides, matched by its place in the program; a side that does not have it is null.

    ``module`` and ``aten`` are those of the layer, null where the program does not tell. Verdicts are corrected for the
    number of operators (false discovery rate of 5 %).
    """

    method: str
    instruction: int | None
    position: int | None
    name: str
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


class Side(msgspec.Struct, frozen=True):
    """What stands on one side: where it came from, and its mean latency, which the split adds up to."""

    label: str
    path: str
    mean_ns: float


class Comparison(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.comparison/1"):
    """Verdict and split of the difference of two variants."""

    baseline: Side
    candidate: Side
    end_to_end: EndToEnd
    categories: list[CategoryChange]
    kinds: list[KindChange]
    operators: list[OperatorChange]
    outputs: OutputAgreement | None
    notes: list[str]


class Beside(NamedTuple):
    """What is known of two sides besides their events.

    Attributes:
        facts: what the program says about the operators of the baseline, then of the candidate.
        untraced: logarithms of the median latency of each untraced process, shape (processes, 1), of the baseline and
            of the candidate; the verdict then rests on these. Of paired sides they are of the same rounds.
    """

    facts: tuple[_Facts, _Facts] = ({}, {})
    untraced: tuple[Floats, Floats] | None = None


def compare(
    baseline: EventTable,
    candidate: EventTable,
    *,
    labels: tuple[tuple[str, str], tuple[str, str]],
    paired: bool,
    outputs: OutputAgreement | None = None,
    beside: Beside | None = None,
) -> Comparison:
    """Compare two variants.

    Args:
        baseline: one process or more, warm-up marked, at least one measured inference each.
        candidate: likewise; with ``paired``, process i ran in the same round as the baseline's process i.
        labels: name and path of the baseline, then of the candidate.
        paired: whether processes were measured in interleaved rounds.
        outputs: agreement of the outputs, when they were compared.
        beside: what is known besides the events; None: nothing.
    """
    effects = paired_effects if paired else unpaired_effects
    beside = beside or Beside()
    medians = beside.untraced or (_log_medians(baseline), _log_medians(candidate))
    end_to_end = _end_to_end(*medians, paired=paired, arm="untraced" if beside.untraced else "traced")
    pairs = list(_match(operators(baseline, beside.facts[0]), operators(candidate, beside.facts[1])))
    left, right = _times(baseline, [b for b, _ in pairs]), _times(candidate, [c for _, c in pairs])
    return Comparison(
        baseline=Side(*labels[0], float(left.sum(axis=1).mean())),
        candidate=Side(*labels[1], float(right.sum(axis=1).mean())),
        end_to_end=end_to_end,
        categories=_category_changes(pairs, left, right, effects),
        kinds=_kind_changes(pairs, left, right, effects),
        operators=_operator_changes(pairs, left, right, effects),
        outputs=outputs,
        notes=_notes(end_to_end, pairs),
    )


def _notes(end_to_end: EndToEnd, pairs: Sequence[OperatorPair]) -> list[str]:
    notes = []
    if end_to_end.verdict is Verdict.UNDECIDABLE:
        notes.append(
            "too few processes for any difference to be shown, since processes differ by themselves: "
            "6 paired rounds are the fewest that can decide, or 4 unpaired processes a side"
        )
    one_sided = sum(1 for baseline, candidate in pairs if baseline is None or candidate is None)
    if one_sided:
        notes.append(f"{one_sided} operators exist on one side only: the delegate built another sequence")
    return notes


def _end_to_end(left: Floats, right: Floats, *, paired: bool, arm: str) -> EndToEnd:
    effect = (paired_effects if paired else unpaired_effects)(left, right)[0]
    interval = None if effect.low is None or effect.high is None else (math.exp(effect.low), math.exp(effect.high))
    detectable = None if effect.minimum_detectable is None else math.expm1(effect.minimum_detectable)
    return EndToEnd(
        baseline_ns=math.exp(float(left.mean())),
        candidate_ns=math.exp(float(right.mean())),
        speedup=math.exp(effect.estimate),
        ci95=interval,
        verdict=effect.verdict(),
        minimum_detectable=detectable,
        p_value=effect.p_value,
        design="paired" if paired else "unpaired",
        baseline_processes=len(left),
        candidate_processes=len(right),
        arm=arm,
    )


def _log_medians(table: EventTable) -> Floats:
    """Logarithm of the median latency of each process that measured any; shape (processes, 1)."""
    found = table.inference_times()
    own = [found.duration[(found.process == process) & ~found.warmup] for process in range(table.processes)]
    medians = [max(float(np.median(durations)), 1.0) for durations in own if len(durations)]
    logs: Floats = np.log(np.array(medians))
    return logs.reshape(-1, 1)


def _match(baseline: list[Operator], candidate: list[Operator]) -> Iterator[OperatorPair]:
    """Operators of the same place in the program.

    Within an instruction the two sides are aligned by kind, since another instruction set may insert operators.
    """
    left, right = _by_instruction(baseline), _by_instruction(candidate)
    for place in dict.fromkeys([*left, *right]):
        yield from _align(left.get(place, []), right.get(place, []))


def _by_instruction(rows: list[Operator]) -> dict[tuple[str, int | None, bool], list[Operator]]:
    found: dict[tuple[str, int | None, bool], list[Operator]] = {}
    for row in rows:
        found.setdefault((row.method, row.instruction, row.position is None), []).append(row)
    return found


def _align(left: list[Operator], right: list[Operator]) -> Iterator[OperatorPair]:
    """Operators of one instruction in pairs: by the nodes they compute where both sides are known, else by kind.

    Kinds then come from names on both sides, since the program would call a convolution so on one side only.
    """
    known = all(operator.attribution is Attribution.EXACT for operator in (*left, *right))
    kinds = [[_nodes(operator) if known else _sort(operator) for operator in side] for side in (left, right)]
    if kinds[0] == kinds[1]:
        yield from zip(left, right, strict=True)
        return
    matcher = difflib.SequenceMatcher(None, kinds[0], kinds[1], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(left[a:b], right[c:d], strict=True)
        else:
            yield from ((operator, None) for operator in left[a:b])
            yield from ((None, operator) for operator in right[c:d])


def _nodes(operator: Operator) -> tuple[object, ...]:
    return operator.computes, tuple(operator.handles), operator.kind, operator.activation


def _sort(operator: Operator) -> str:
    return operator.name if operator.position is None else classify(operator.name).kind


def _times(table: EventTable, wanted: Sequence[Operator | None]) -> Floats:
    """Mean self time per inference of each operator in each process; shape (processes, operators)."""
    found = table.inference_times()
    counts = [int(((found.process == process) & ~found.warmup).sum()) for process in range(table.processes)]
    columns = {_key(operator): column for column, operator in enumerate(wanted) if operator is not None}
    rows = []
    for spent, count in zip(spent_by_place(table), counts, strict=True):
        if count:
            row = np.zeros(len(wanted))
            for place, own in spent.items():
                row[columns[_place_key(place)]] += own.self_time / count
            rows.append(row)
    return np.stack(rows)


def _key(operator: Operator) -> OperatorKey:
    framework = operator.name if operator.position is None else None
    return operator.method, operator.instruction, operator.position, framework


def _place_key(place: Place) -> OperatorKey:
    return place.method or UNKNOWN_METHOD, place.instruction, place.position, place.framework


def _category_changes(
    pairs: Sequence[OperatorPair], left: Floats, right: Floats, effects: _Effects
) -> list[CategoryChange]:
    groups = [[operator and operator.category for operator in pair] for pair in pairs]
    changes = _group_changes(list(Category), groups, left, right, effects)
    return [CategoryChange(category, *change) for category, change in zip(Category, changes, strict=True)]


def _kind_changes(pairs: Sequence[OperatorPair], left: Floats, right: Floats, effects: _Effects) -> list[KindChange]:
    groups = [[_kind(operator) for operator in pair] for pair in pairs]
    wanted = list(dict.fromkeys(group for pair in groups for group in pair if group is not None))
    changes = _group_changes(wanted, groups, left, right, effects)
    rows = zip(wanted, changes, strict=True)
    return [KindChange(kind, category, backend, *change) for (kind, category, backend), change in rows]


def _kind(operator: Operator | None) -> tuple[str, Category, str] | None:
    return None if operator is None else (operator.kind, operator.category, operator.backend)


def _group_changes(
    wanted: Sequence[object], groups: Sequence[Sequence[object]], left: Floats, right: Floats, effects: _Effects
) -> list[_Change]:
    """Baseline, candidate, saving, speedup, interval and verdict of the operators in each wanted group.

    Args:
        wanted: the groups, in the order of the answer.
        groups: the group of each pair's baseline and candidate.
        left: time of each baseline operator in each process; shape (processes, pairs).
        right: the same of the candidate.
        effects: paired or unpaired.
    """
    before, after = (
        times @ np.array([[pair[side] == group for group in wanted] for pair in groups], float)
        for side, times in enumerate((left, right))
    )
    found = effects(before, after)
    rows = zip(before.mean(axis=0), after.mean(axis=0), found, _corrected(found), strict=True)
    return [
        (float(b), float(c), effect.estimate, _ratio(b, c), _bounds(effect), verdict) for b, c, effect, verdict in rows
    ]


def _operator_changes(
    pairs: Sequence[OperatorPair], left: Floats, right: Floats, effects: _Effects
) -> list[OperatorChange]:
    found = effects(left, right)
    rows = zip(pairs, left.mean(axis=0), right.mean(axis=0), found, _corrected(found), strict=True)
    return [_operator_change(pair, float(b), float(c), effect, verdict) for pair, b, c, effect, verdict in rows]


def _operator_change(
    pair: OperatorPair, baseline_ns: float, candidate_ns: float, effect: Effect, verdict: Verdict
) -> OperatorChange:
    baseline, candidate = pair
    shown = candidate or baseline
    assert shown is not None  # noqa: S101 - a pair has at least one side by construction
    return OperatorChange(
        method=shown.method,
        instruction=shown.instruction,
        position=shown.position,
        name=shown.name,
        baseline_name=baseline.name if baseline else None,
        candidate_name=candidate.name if candidate else None,
        category=shown.category,
        kind=shown.kind,
        backend=shown.backend,
        baseline_ns=baseline_ns if baseline else None,
        candidate_ns=candidate_ns if candidate else None,
        saved_ns=effect.estimate,
        speedup=_ratio(baseline_ns, candidate_ns) if baseline and candidate else None,
        ci95_saved_ns=_bounds(effect),
        verdict=verdict,
        module=shown.module,
        aten=shown.aten,
    )


def _corrected(found: list[Effect]) -> list[Verdict]:
    p_values = [effect.p_value for effect in found]
    known = [p for p in p_values if p is not None]
    if len(known) != len(found):
        return [Verdict.UNDECIDABLE] * len(found)
    return [effect.verdict(p) for effect, p in zip(found, adjust_for_many(known), strict=True)]


def _bounds(effect: Effect) -> tuple[float, float] | None:
    return None if effect.low is None or effect.high is None else (effect.low, effect.high)


def _ratio(baseline_ns: float, candidate_ns: float) -> float | None:
    """Speedup, null where one side has no measurable time."""
    return float(baseline_ns / candidate_ns) if baseline_ns > 0 and candidate_ns > 0 else None


if TYPE_CHECKING:
    from collections.abc import Callable

    _Effects: TypeAlias = Callable[[Floats, Floats], list[Effect]]
    _Change: TypeAlias = tuple[float, float, float, float | None, tuple[float, float] | None, Verdict]
