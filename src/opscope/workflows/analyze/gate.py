"""The regression gate: a candidate against a baseline, measured now or before, with a threshold and budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opscope.analysis.gate.budgets import LIMITS, SELECTORS, Budgets, chosen_operators, describe, known_words
from opscope.core.errors import MismatchError, UsageError, did_you_mean
from opscope.core.printable import shell_command
from opscope.experiment.config import decode_config
from opscope.experiment.config_errors import convert_config, field_error, value_text
from opscope.measurements.analyses import comparison_of, paired_sides
from opscope.measurements.comparability import comparability_notes, mismatches
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import GateResult
from opscope.npu.workflows.sides import check_tiles, is_tiles
from opscope.program.operators.kinds import Category
from opscope.workflows.analyze.analyses import of_tiles
from opscope.workflows.analyze.sides import side_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.gate.budgets import Budget, Sides
    from opscope.analysis.gate.decision import Criterion
    from opscope.analysis.latency.latency import Floats
    from opscope.npu.workflows.sides import TilesGateResult
    from opscope.runtimes.side import Side, Warmup


_CHOICES = {"category": tuple(category.value for category in Category)}


def read_budgets(file: Path) -> Budgets:
    """The limits that a file sets."""
    budgets = convert_config(
        decode_config(file, hint="give a TOML or JSON file with [[budget]] entries"), Budgets, file, _CHOICES
    )
    end_to_end = budgets.end_to_end
    for number, one in enumerate(budgets.method):
        if one.max_ms is None and one.max_slower is None:
            raise field_error(file, f"method[{number}]", "it sets no limit", "give max_ms or max_slower")
        if any(one.name == other.name for other in budgets.method[:number]):
            raise field_error(
                file, f"method[{number}].name", f"{value_text(one.name)} has limits already", "join the two entries"
            )
    if not budgets.budget and not budgets.method and end_to_end.max_ms is None and end_to_end.max_slower is None:
        raise field_error(file, "", "it sets no limit", "for example [end_to_end] with max_ms = 12.5")
    for number, budget in enumerate(budgets.budget):
        place = f"budget[{number}]"
        if not _stated_limits(budget, SELECTORS):
            raise field_error(file, place, "it chooses no operators", f"give at least one of {', '.join(SELECTORS)}")
        if not _stated_limits(budget, LIMITS):
            raise field_error(file, place, "it sets no limit", f"give at least one of {', '.join(LIMITS)}")
    return budgets


def check_chosen(budgets: Budgets, file: Path, sides: Sides) -> None:
    """Make sure that every entry chooses something in the candidate: a misspelt layer must not pass."""
    _check_methods(budgets, file, sides.latency.keys() - {""})
    rows = sides.candidate.operators
    for number, budget in enumerate(budgets.budget):
        if chosen_operators(budget, rows):
            continue
        place = f"budget[{number}]"
        for name in _stated_limits(budget, SELECTORS):
            value = getattr(budget, name)
            word = str(getattr(value, "value", value))
            known = known_words(name, rows)
            if not known:
                hint = "modules are known only with an export record (.etrecord)" if name == "module" else None
                raise field_error(file, f"{place}.{name}", f"no operator of the candidate has a known {name}", hint)
            if word not in known:
                problem = f"the candidate has no operator of {name} {value_text(value)}"
                raise field_error(file, f"{place}.{name}", problem, did_you_mean(word, known))
        raise field_error(file, place, f"no operator of the candidate matches all of this: {describe(budget)}")


def _check_methods(budgets: Budgets, file: Path, methods: Collection[str]) -> None:
    """Make sure that limits of latency are of what the candidate calls: one of several methods, or its only one."""
    if methods and budgets.end_to_end.max_ms is not None:
        hint = f'limit one: [[method]] with name = "{min(methods)}" and max_ms'
        raise field_error(file, "end_to_end.max_ms", "the candidate calls several methods, whose times differ", hint)
    for number, one in enumerate(budgets.method):
        if one.name not in methods:
            named = did_you_mean(one.name, sorted(methods)) if methods else "it calls only one: use [end_to_end]"
            raise field_error(
                file, f"method[{number}].name", f"the candidate calls no method {value_text(one.name)}", named
            )


def _stated_limits(budget: Budget, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(budget, name) is not None]


def check(
    candidate: str | Path,
    against: str | Path,
    *,
    threshold: float | None = None,
    budget: str | Path | None = None,
    force: bool = False,
    warmup: Warmup = None,
) -> GateResult:
    """Judge whether a candidate is slower than a baseline by more than is allowed.

    Traces of AI Engine tiles have a function of their own, :func:`opscope.check_tiles`.

    Args:
        candidate: what is judged: a trace, a directory of traces, a bundle (its accelerated variant) or
            ``BUNDLE#variant``.
        against: the baseline, likewise.
        threshold: the largest end-to-end slowdown that is let through, as a fraction; None: that of the budget file,
            else 3 %.
        budget: a file with limits of chosen operators, TOML or JSON.
        force: compare sides that are not comparable; the report then says why they are not.
        warmup: inferences of each process to set aside; see :func:`opscope.analyze`.

    Raises:
        InvalidBundleError: a file of a bundle is not the one whose hash its manifest states.
        MismatchError: the sides are not comparable.
        NotFoundError: there is no such file, directory or variant.
        TraceFormatError: a file is damaged, or no inference is left to measure.
        UsageError: the budget file is wrong, an entry chooses no operator, or the sides are traces of tiles.
    """
    gate_result = check_any(candidate, against, threshold=threshold, budget=budget, force=force, warmup=warmup)
    if not isinstance(gate_result, GateResult):
        raise of_tiles("check", candidate)
    return gate_result


def check_any(
    candidate: str | Path,
    against: str | Path,
    *,
    threshold: float | None = None,
    budget: str | Path | None = None,
    force: bool = False,
    warmup: Warmup = None,
) -> GateResult | TilesGateResult:
    """Judge as :func:`check` does, or as :func:`opscope.check_tiles` for traces of tiles, with their errors."""
    if not (is_tiles(candidate) or is_tiles(against)):
        return check_sides(candidate, against, threshold=threshold, budget=budget, force=force, warmup=warmup)
    if budget is not None:
        raise UsageError("budgets limit operators, and AI Engine traces have none", where="--budget")
    return check_tiles(candidate, against, threshold=threshold, force=force)


def check_sides(
    candidate: str | Path,
    against: str | Path,
    *,
    threshold: float | None = None,
    budget: str | Path | None = None,
    force: bool = False,
    warmup: Warmup = None,
) -> GateResult:
    """Judge as :func:`check` does, sides with operators, that is all but traces of tiles; with its errors."""
    from opscope.analysis.gate.budgets import Budgets
    from opscope.analysis.gate.gate import DEFAULT_THRESHOLD, Thresholds, gate

    file = None if budget is None else Path(budget)
    budgets = Budgets() if file is None else read_budgets(file)
    sides = side_of(against, warmup), side_of(candidate, warmup)
    problems = mismatches(*sides)
    if problems and not force:
        hint = "measure both on one machine in the same way, or compare anyway with --force"
        raise MismatchError(f"cannot be compared with the baseline: {problems[0]}", where=candidate, hint=hint)
    comparison = comparison_of(*sides, across_machines=force)
    limits = _judge_budgets(budgets, file, sides, comparison) if file else []
    given = threshold if threshold is not None else budgets.end_to_end.max_slower
    own = {one.name: one.max_slower for one in budgets.method if one.max_slower is not None}
    model = sides[1].model
    decision = gate(
        comparison,
        thresholds=Thresholds(DEFAULT_THRESHOLD if given is None else given, own),
        model=model.name if model else None,
        mismatches=problems,
        notes=comparability_notes(*sides),
        budgets=limits,
    )
    return shown_as(GateResult, decision)


def _judge_budgets(budgets: Budgets, file: Path, sides: tuple[Side, Side], comparison: Comparison) -> list[Criterion]:
    from opscope.analysis.gate.budgets import Sides, judge_budgets, split_times

    baseline, candidate, paired = paired_sides(*sides)
    splits = [
        split_times(side.table, side.known.attributions.operators if side.known else None)
        for side in (baseline, candidate)
    ]
    latency = {name: _log_medians(sides[1], end.arm, name) for name, end in comparison.verdicts.items()}
    found = Sides(splits[0], splits[1], paired, latency)
    check_chosen(budgets, file, found)
    return judge_budgets(budgets, found)


def _log_medians(side: Side, arm: str, method: str) -> Floats:
    """Logarithm of the median latency of each process in the arm that the comparison rests on; ``method`` as in it."""
    from opscope.analysis.latency.methods import durations_by_method
    from opscope.analysis.operators.headline import measured_durations

    durations: Sequence[NDArray[np.float64 | np.int64]]
    if arm == "untraced" and side.calls is not None:
        durations = side.calls.durations(sorted(side.calls.settled()), method or None)
    else:
        durations = durations_by_method(side.table)[method] if method else measured_durations(side.table)
    logs: Floats = np.log([[max(float(np.median(values)), 1.0)] for values in durations if len(values)])
    return logs


def is_program(side: str, models: Path | None = None) -> bool:
    """Return whether a side of a gate is a program or a model to export, and no measurement."""
    from opscope.runtimes.registry import EXPORTER, RUNTIMES

    path = Path(side)
    if any(path.suffix in runtime.suffixes for runtime in RUNTIMES):
        return True
    return not path.is_dir() and "#" not in side and EXPORTER.names_model(side, models)


def check_kinds(candidate: str, against: str, models: Path | None = None) -> bool:
    """Return whether both sides are programs to be measured; False if both were measured already.

    Raises:
        UsageError: one is a program, and the other was measured already.
    """
    are_programs = [is_program(side, models) for side in (candidate, against)]
    if all(are_programs) or not any(are_programs):
        return all(are_programs)
    program, measurement = (candidate, against) if are_programs[0] else (against, candidate)
    if not Path(measurement.partition("#")[0]).exists():
        return True  # then it is a misspelt program, which is said where it is looked for
    hint = (
        "give the program measured there to run both interleaved; or measure this one in the same way with "
        f"{shell_command(['opscope', 'profile', program])} --out DIR and check that bundle"
    )
    raise UsageError(f"{program} is a program, and {measurement} is already measured", where="--against", hint=hint)
