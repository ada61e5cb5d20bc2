"""From a model and two ends to the state that made it slower: measured, counted, and kept as it was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.bisection import (
    EXPLAINED,
    BisectedState,
    Bisection,
    SearchResult,
    StateLevel,
    find_other_changes,
    graph_changes,
    level_of,
    level_of_work,
    part_of_change,
    search,
)
from opscope.analysis.work.gate import work_decision
from opscope.analysis.work.work import Work
from opscope.bundle.bundle import Bundle, check_free, is_bundle
from opscope.bundle.manifest import Role
from opscope.bundle.settings import MORE_ROUNDS
from opscope.core.errors import MissingDependencyError, OpscopeError, RunError, UsageError
from opscope.core.files import sha256_of, storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.stats.effect import Verdict
from opscope.core.system.stages import enter
from opscope.core.units import ratio_text
from opscope.core.writing import write_atomically
from opscope.experiment.planned import Experiment, PlannedVariant
from opscope.hosts.process import limit_questions
from opscope.workflows.measure.counting import count
from opscope.workflows.measure.experiment_bundle import check_request, new_bundle, old_bundle
from opscope.workflows.measure.experiments import measure
from opscope.workflows.measure.targets import VariantTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opscope.analysis.bisection import GraphChange
    from opscope.analysis.compare.compare import Comparison, EndToEnd
    from opscope.analysis.operators.operators import Operator
    from opscope.experiment.planned import Settings
    from opscope.experiment.target import RunTarget
    from opscope.reports.content.content import ReportContent
    from opscope.workflows.measure.experiments import Means

ENDS = "ends"
"""Directory of the bundle of both ends, or of all states of a list."""
RESULT = "bisection.json"


class RunState(NamedTuple):
    """A release or a build to measure."""

    described: BisectedState  # as in a result
    target: RunTarget | None = None  # that runs it; None until it is made
    counted: str | None = None  # name of the target that counts it; None where its work cannot be counted
    make: Callable[[], RunState] | None = None  # makes what it needs, and gives it with its target

    @property
    def name(self) -> str:
        """Return the name of the state."""
        return self.described.name


class BisectRequest(NamedTuple):
    """A program, the states that may have made it slower, and how they are measured."""

    model: str
    program: Path  # the file that all states run
    runtime: str  # as people call it
    kind: str  # of the states
    states: Sequence[RunState]  # from the good end to the bad one
    settings: Settings
    command: str  # that repeats it
    work: bool  # whether exact work is counted where it can be
    listed: bool = False  # whether all states are measured side by side


class _Bisection:
    """Measures states, each bundle once."""

    def __init__(self, request: BisectRequest, out: Path, means: Means) -> None:
        self.request, self.out, self.means = request, out, means
        self.known = {state.name: state.described for state in request.states}
        self._ready: dict[str, RunState] = {}
        self.notes: list[str] = []
        self.method: str | None = None  # of several, the one that is followed
        self.uncounted: dict[str, list[str]] = {}  # states by the reason why their work was not counted
        self._counted: dict[str, Work | None] = {}
        self._steps = 0

    @property
    def names(self) -> list[str]:
        return [state.name for state in self.request.states]

    def prepare(self, state: RunState) -> RunState:
        """Return a state with its target, which is made once."""
        if state.name not in self._ready:
            self._ready[state.name] = run_state = state.make() if state.make else state
            self.known[state.name] = run_state.described
        return self._ready[state.name]

    def record(self, name: str, **facts: object) -> None:
        """Record facts of a state."""
        self.known[name] = msgspec.structs.replace(self.known[name], **facts)

    def measure_states(self, name: str, states: Sequence[RunState], rounds: int | None = None) -> ReportContent:
        """Measure states interleaved in a bundle, the first as the baseline; finish a bundle that exists."""
        path = self.out / name
        states = [self.prepare(state) for state in states]
        settings = self.request.settings
        experiment = Experiment(
            name=name,
            model=str(self.request.program),
            target=settings.target,
            variants=tuple(
                PlannedVariant(
                    name=state.name,
                    group=state.name,
                    role=Role.CANDIDATE if number else Role.BASELINE,
                    ablated=[],
                    cleared=[],
                    threads=settings.thread_counts[0],
                )
                for number, state in enumerate(states)
            ),
            **(settings.own() | {"rounds": rounds or settings.rounds, "ceilings": False}),
        )
        target = VariantTargets({state.name: state.target for state in states if state.target})
        if not is_bundle(path):
            check_request(path, experiment, target)
        with limit_questions(settings.timeout), target.reserved(self.means.lock_request()) as hold:
            if is_bundle(path):
                bundle = old_bundle(path, experiment, target)
            else:
                bundle, _ = new_bundle(path, experiment, target, self.means.clock)
            return measure(bundle, experiment, target, self.means, hold).content

    def find_level(self, number: int) -> StateLevel:
        """Measure a state interleaved with both ends, in more rounds while it is undecided; return its level."""
        states = self.request.states
        good, state, bad = states[0], states[number], states[-1]
        self._steps += 1
        name = f"{self._steps}-{state.name}"
        self.means.notify(f"measuring {state.name} interleaved with {good.name} and {bad.name}")
        rounds = self.request.settings.rounds
        most = self.request.settings.max_rounds or MORE_ROUNDS * rounds
        while True:
            try:
                content = self.measure_states(name, [good, state, bad], rounds)
            except (MissingDependencyError, RunError) as error:  # it cannot be installed, or nothing of it runs
                self.record(state.name, level=StateLevel.FAILED, problem=error.problem)
                return StateLevel.FAILED
            comparison, ends = (_find_comparison(content, side.name) for side in (state, bad))
            if comparison is None or ends is None:
                problem = _find_failure(self.out / name, state.name) or "it was not measured"
                self.record(state.name, level=StateLevel.FAILED, problem=problem, bundle=name)
                return StateLevel.FAILED
            level = level_of(comparison.verdict_of(self.method), ends.verdict_of(self.method))
            if level is not StateLevel.UNDECIDED or rounds >= most:
                self._record_comparison(name, content, state.name, level)
                return level
            rounds = min(2 * rounds, most)

    def _record_comparison(self, bundle: str, content: ReportContent, name: str, level: StateLevel) -> None:
        """Record what a bundle says of a state beside its good end."""
        comparison = _find_comparison(content, name)
        if comparison is None:
            self.record(name, level=StateLevel.FAILED, problem=_find_failure(self.out / bundle, name), bundle=bundle)
            return
        end = comparison.verdict_of(self.method)
        self.record(
            name,
            level=level,
            ratio=None if end.speedup is None else 1 / end.speedup,
            ci95=None if end.ci95 is None else (1 / end.ci95[1], 1 / end.ci95[0]),
            operators=_count_operators(content, name),
            outputs_agree=comparison.outputs.agree if comparison.outputs else None,
            bundle=bundle,
        )

    def measure_neighbours(self, result: SearchResult) -> ReportContent:
        """Measure the two states beside the change in a new bundle, unless they are the ends."""
        before, after = (self.request.states[number] for number in (result.last_good, result.first_bad))
        if len(self.request.states) == 2:  # noqa: PLR2004 - the ends
            return self.measure_states(ENDS, [before, after])
        self.means.notify(f"measuring {before.name} and {after.name}")
        return self.measure_states(f"{before.name}-to-{after.name}", [before, after])

    def measure_all(self) -> Comparison:
        """Measure all states interleaved and count their work; return the last one against the first."""
        states = self.request.states
        content = self.measure_states(ENDS, states)
        ends = self._compare_ends(content)
        for state in states[1:]:
            comparison = _find_comparison(content, state.name)
            level = StateLevel.FAILED
            if comparison:
                level = level_of(comparison.verdict_of(self.method), ends.verdict_of(self.method))
            self._record_comparison(ENDS, content, state.name, level)
        for state in states:
            self.count_work(state)
        return ends

    def measure_ends(self) -> Comparison:
        """Measure both ends and return their comparison."""
        return self._compare_ends(self.measure_states(ENDS, [self.request.states[0], self.request.states[-1]]))

    def _compare_ends(self, content: ReportContent) -> Comparison:
        good, bad = self.request.states[0], self.request.states[-1]
        comparison = _find_comparison(content, bad.name)
        if comparison is None:
            problem = (
                _find_failure(self.out / ENDS, good.name) or _find_failure(self.out / ENDS, bad.name) or "not measured"
            )
            raise UsageError(f"an end does not run the model: {problem}", where=self.request.model)
        self.method = _choose_method(comparison)
        if self.method:
            followed = f"this follows {self.method}, which slowed most (--methods NAME follows another)"
            self.notes.append(f"several methods are called; {followed}")
        self.record(
            good.name,
            level=StateLevel.GOOD,
            ratio=1.0,
            ci95=(1.0, 1.0),
            operators=_count_operators(content, good.name),
            bundle=ENDS,
        )
        self._record_comparison(ENDS, content, bad.name, StateLevel.BAD)
        return comparison

    def count_work(self, state: RunState) -> Work | None:
        """Return the exact work of a state; None if it cannot be counted."""
        if state.name not in self._counted:
            state = self.prepare(state)
            work = self._count_state(state) if self.request.work and state.counted else None
            self._counted[state.name] = work
            if work is not None:
                self.record(state.name, instructions=work.instructions, operators=len(work.operators))
        return self._counted[state.name]

    def _count_state(self, state: RunState) -> Work | None:
        settings = self.request.settings
        file = self.out / "work" / f"{state.name}.json"
        if earlier := _read_work(file):
            return earlier
        enter(f"counting {state.name}")
        try:
            result = count(
                self.request.program,
                inputs=settings.input,
                dims=settings.dim,
                guess_inputs=settings.guess_inputs,
                methods=settings.methods,
                target=str(state.counted),
            )
        except OpscopeError as error:
            why = error.problem.replace(f" {state.name} ", " of that release ")
            self.uncounted.setdefault(why, []).append(state.name)
            return None
        with storage_errors(file.parent):
            file.parent.mkdir(exist_ok=True)
        write_atomically(file, to_json(result))
        return result


def _read_work(file: Path) -> Work | None:
    """Return work that was counted before an interruption; None if there is none or it cannot be read."""
    try:
        return from_json(file.read_bytes(), Work)
    except (OSError, msgspec.MsgspecError):
        return None


def run_bisection(request: BisectRequest, out: Path, means: Means, *, resume: bool = False) -> Bisection:
    """Find the state that made a model slower, and keep all that is measured in a directory.

    Args:
        request: what is bisected.
        out: new or empty; with ``resume`` that of a bisection that was begun.
        means: as of a run.
        resume: take what was measured already as it is there.

    Raises:
        UsageError: an end does not run the model.
        OpscopeError: what was measured before it is kept.
    """
    if not resume:
        check_free(out)
    elif not is_bundle(out / ENDS):
        raise UsageError("no bisection was begun there", where=out, hint="leave out --resume, or name its directory")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    work = _Bisection(request, out, means)
    ends = work.measure_all() if request.listed else work.measure_ends()
    slower = ends.verdict_of(work.method).verdict is Verdict.SLOWER
    by, result = ("time", None)
    if slower and len(request.states) > 2 and not request.listed:  # noqa: PLR2004 - more than both ends
        by, result = _locate_change(work, ends.verdict_of(work.method))
    elif slower and not request.listed:
        result = SearchResult(0, 1, 0)
    step, graph = _compare_neighbours(work, result) if result else (None, [])
    return _build_result(work, ends.verdict_of(work.method), result, step, by, graph)


def _locate_change(work: _Bisection, ends: EndToEnd) -> tuple[str, SearchResult]:
    """Return by what the change was found, and where: exact counts if they explain it and time agrees, else time."""
    states = work.request.states
    first, last = work.count_work(states[0]), work.count_work(states[-1])
    if first is not None and last is not None and _is_decisive(first, last, ends):
        result = search(len(states), lambda number: _level_by_work(work, states[number], first, last))
        comparison = _find_comparison(work.measure_neighbours(result), states[result.first_bad].name)
        if comparison and (part_of_change(comparison.verdict_of(work.method), ends) or 0.0) >= EXPLAINED:
            return "work", result
        work.notes.append("exact work changes elsewhere than time does")
        for state in states[1:-1]:
            work.record(state.name, level=StateLevel.UNTESTED)
    return "time", search(len(states), work.find_level)


def _is_decisive(first: Work, last: Work, ends: EndToEnd) -> bool:
    """Return whether the change of exact work is large enough to explain that of the time."""
    more = last.instructions / first.instructions if first.instructions else 1.0
    slower = 1 / ends.speedup if ends.speedup else 1.0
    return more > 1 + EXPLAINED * (slower - 1)


def _level_by_work(work: _Bisection, state: RunState, first: Work, last: Work) -> StateLevel:
    counted = work.count_work(state)
    if counted is None:
        return StateLevel.FAILED
    level = level_of_work(counted.instructions, first.instructions, last.instructions)
    work.record(state.name, level=level)
    return level


def _compare_neighbours(work: _Bisection, result: SearchResult) -> tuple[Comparison | None, list[GraphChange]]:
    """Measure the two states beside the change alone; return their comparison, and how their graphs differ."""
    content = work.measure_neighbours(result)
    before, after = (work.names[number] for number in (result.last_good, result.first_bad))
    return _find_comparison(content, after), graph_changes(
        _find_operators(content, before), _find_operators(content, after)
    )


def _build_result(
    work: _Bisection,
    ends: EndToEnd,
    result: SearchResult | None,
    step: Comparison | None,
    by: str,
    graph: list[GraphChange],
) -> Bisection:
    request = work.request
    states = request.states
    sides = (states[result.last_good], states[result.first_bad]) if result else None
    counts = [work.count_work(state) for state in sides] if sides and step else []
    evidence = work_decision(counts[0], counts[1]).evidence if len(counts) == 2 and all(counts) else None  # type: ignore[arg-type]  # noqa: PLR2004
    manifest = Bundle.open(work.out / ENDS).manifest
    known_states = [work.known[name] for name in work.names]
    notes = [f"the work of {', '.join(names)} is not counted: {why}" for why, names in work.uncounted.items()]
    notes += work.notes
    if sides and step:
        other_changes = find_other_changes(known_states, sides[0].name, sides[1].name)
        notes += [
            f"{after} is {ratio_text(ratio)} the latency of {before}, too" for before, after, ratio in other_changes
        ]
    failed = [state for state in known_states if state.level is StateLevel.FAILED]
    notes += [f"{state.name} could not be measured: {state.problem or 'no reason is known_states'}" for state in failed]
    environment = manifest.environment
    return Bisection(
        model=request.model,
        sha256=sha256_of(request.program),
        runtime=request.runtime,
        machine=", ".join(filter(None, (environment.cpu, environment.system))),
        command=request.command,
        kind=request.kind,
        by=by,
        states=known_states,
        ends=ends,
        last_good=sides[0].name if sides else None,
        first_bad=sides[1].name if sides else None,
        measured=result.tried if result else 0,
        step=step,
        work=evidence,
        notes=notes,
        graph=graph,
        method=work.method,
    )


def _choose_method(ends: Comparison) -> str | None:
    """Return the method that slowed most among several; None if all calls are of one."""
    if not ends.methods:
        return None
    verdicts = ends.verdicts
    return min(verdicts, key=lambda name: (verdicts[name].verdict is not Verdict.SLOWER, verdicts[name].speedup or 1.0))


def _find_comparison(content: ReportContent, name: str) -> Comparison | None:
    """Return the comparison of a state with the good end of its bundle; None if there is none."""
    return next((comparison for comparison in content.comparisons if comparison.candidate.label == name), None)


def _count_operators(content: ReportContent, name: str) -> int | None:
    """Return how many operators ran in a variant; None if none is known."""
    return sum(1 for operator in _find_operators(content, name) if operator.instruction is not None) or None


def _find_operators(content: ReportContent, name: str) -> Sequence[Operator]:
    """Return the operators that ran in a variant; empty if it has no result."""
    analysis = next((result.analysis for result in content.variants if result.variant.name == name), None)
    return analysis.operators if analysis else ()


def _find_failure(path: Path, name: str) -> str | None:
    """Return why a variant of a bundle has no result; None if no reason is recorded."""
    if not is_bundle(path):
        return None
    failures = [
        repetition.failure for repetition in Bundle.open(path).manifest.failures() if repetition.variant == name
    ]
    return failures[0].message if failures and failures[0] else None
