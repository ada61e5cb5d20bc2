"""The regression gate: a candidate against a baseline, with a threshold and budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opscope.api.aie_sides import check_tiles, is_tiles
from opscope.api.analyses import comparison_of, paired_sides
from opscope.api.budget_file import check_chosen, read_budgets
from opscope.api.comparable import mismatches, surroundings
from opscope.api.sides import side_of
from opscope.errors import MismatchError

if TYPE_CHECKING:
    from opscope.analyze.aie_gate import TilesGate
    from opscope.analyze.budgets import Budgets, Sides
    from opscope.analyze.compare import Comparison
    from opscope.analyze.gate import Criterion, GateReport
    from opscope.analyze.timing import Floats
    from opscope.api.sides import Side, Warmup


def check(
    candidate: str | Path,
    against: str | Path,
    *,
    threshold: float | None = None,
    budget: str | Path | None = None,
    force: bool = False,
    warmup: Warmup = None,
) -> GateReport | TilesGate:
    """Whether a candidate is slower than a baseline by more than is let through.

    Args:
        candidate: what is judged: a trace, a directory of traces, a bundle (its accelerated variant) or
            ``BUNDLE#variant``; or a trace of AI Engine tiles, or a directory of such.
        against: the baseline, likewise.
        threshold: the largest end-to-end slowdown that is let through, as a fraction; None: that of the budget file,
            else 3 %.
        budget: a file with limits of chosen operators, TOML or JSON.
        force: compare sides that are not comparable; the report then says why they are not.
        warmup: inferences of each process to set aside; see :func:`opscope.analyze`.

    Raises:
        MismatchError: the sides are not comparable.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or no inference is left to measure.
        UsageError: the budget file is wrong, or an entry chooses no operator.
    """
    from opscope.analyze.budgets import Budgets
    from opscope.analyze.gate import DEFAULT_THRESHOLD, Terms, gate

    if is_tiles(candidate) or is_tiles(against):
        return check_tiles(candidate, against, threshold, budget, force=force)
    file = None if budget is None else Path(budget)
    budgets = Budgets() if file is None else read_budgets(file)
    sides = side_of(against, warmup), side_of(candidate, warmup)
    problems = mismatches(*sides)
    if problems and not force:
        hint = "measure both on one machine in the same way, or let them be compared all the same with --force"
        raise MismatchError(f"cannot be compared with the baseline: {problems[0]}", where=candidate, hint=hint)
    comparison = comparison_of(*sides)
    limits = _budgets(budgets, file, sides, comparison) if file else []
    given = threshold if threshold is not None else budgets.end_to_end.max_slower
    bundle = sides[1].bundle
    terms = Terms(
        threshold=DEFAULT_THRESHOLD if given is None else given,
        model=bundle.manifest.model.name if bundle else None,
        mismatches=problems,
        notes=surroundings(*sides),
    )
    return gate(comparison, terms, limits)


def _budgets(budgets: Budgets, file: Path, sides: tuple[Side, Side], comparison: Comparison) -> list[Criterion]:
    from opscope.analyze.budgets import judge_budgets

    found = _splits(sides, comparison)
    check_chosen(budgets, file, found)
    return judge_budgets(budgets, found)


def _splits(sides: tuple[Side, Side], comparison: Comparison) -> Sides:
    from opscope.analyze.budgets import Sides, split_times

    baseline, candidate, paired = paired_sides(*sides)
    splits = [
        split_times(side.table, side.known.attributions.operators if side.known else None)
        for side in (baseline, candidate)
    ]
    return Sides(splits[0], splits[1], paired, _log_medians(sides[1], comparison.end_to_end.arm))


def _log_medians(side: Side, arm: str) -> Floats:
    """Logarithm of the median latency of each process in the arm that the comparison rests on."""
    from opscope.analyze.latency import measured_durations

    if arm == "untraced" and side.calls is not None:
        durations = side.calls.durations(sorted(side.calls.settled()))
    else:
        durations = measured_durations(side.table)
    logs: Floats = np.log([[max(float(np.median(values)), 1.0)] for values in durations])
    return logs
