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
    from collections.abc import Callable, Mapping, Sequence
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
    """What is measured: a release, so many options, or a build."""

    told: BisectedState  # what a result says of it
    target: RunTarget | None = None  # that runs it; None until it is made
    options: Mapping[str, str] | None = None  # of its session
    counted: str | None = None  # name of the target that counts it; None where its work cannot be counted
    made: Callable[[], RunState] | None = None  # makes what it needs, and gives it with its target

    @property
    def name(self) -> str:
        """Of the state."""
        return self.told.name


class BisectRequest(NamedTuple):
    """What a bisection is of."""

    model: str
    program: Path  # the file that all states run
    runtime: str  # as people call it
    kind: str  # of the states
    states: Sequence[RunState]  # from the good end to the bad one
    settings: Settings
    command: str  # that repeats it
    work: bool  # whether exact work is counted where it can be
    listed: bool = False  # whether all states are measured side by side


class _Bisecting:
    """Measures states, each bundle once."""

    def __init__(self, asked: BisectRequest, out: Path, means: Means) -> None:
        self.asked, self.out, self.means = asked, out, means
        self.told = {state.name: state.told for state in asked.states}
        self._ready: dict[str, RunState] = {}
        self.notes: list[str] = []
        self.method: str | None = None  # of several, the one that is followed
        self.uncounted: dict[str, list[str]] = {}  # states by the reason why their work was not counted
        self._counted: dict[str, Work | None] = {}
        self._steps = 0

    @property
    def names(self) -> list[str]:
        return [state.name for state in self.asked.states]

    def ready(self, state: RunState) -> RunState:
        """A state with its target, which is made once."""
        if state.name not in self._ready:
            self._ready[state.name] = run_state = state.made() if state.made else state
            self.told[state.name] = run_state.told
        return self._ready[state.name]

    def tell(self, name: str, **facts: object) -> None:
        """Keep what is known of a state."""
        self.told[name] = msgspec.structs.replace(self.told[name], **facts)

    def measured(self, name: str, states: Sequence[RunState], rounds: int | None = None) -> ReportContent:
        """A bundle of some states, the first of them the baseline; measured, or as it is there."""
        path = self.out / name
        states = [self.ready(state) for state in states]
        settings = self.asked.settings
        experiment = Experiment(
            name=name,
            model=str(self.asked.program),
            target=settings.target,
            variants=tuple(
                PlannedVariant(
                    name=state.name,
                    group=state.name,
                    role=Role.CANDIDATE if number else Role.BASELINE,
                    ablated=[],
                    cleared=[],
                    threads=settings.thread_counts[0],
                    options=dict(state.options) if state.options else None,
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

    def placed(self, number: int) -> StateLevel:
        """The level of a state, measured in turns with both ends; more rounds where few do not tell."""
        states = self.asked.states
        good, state, bad = states[0], states[number], states[-1]
        self._steps += 1
        name = f"{self._steps}-{state.name}"
        self.means.notify(f"measuring {state.name} interleaved with {good.name} and {bad.name}")
        rounds = self.asked.settings.rounds
        most = self.asked.settings.max_rounds or MORE_ROUNDS * rounds
        while True:
            try:
                content = self.measured(name, [good, state, bad], rounds)
            except (MissingDependencyError, RunError) as error:  # it cannot be installed, or nothing of it runs
                self.tell(state.name, level=StateLevel.FAILED, problem=error.problem)
                return StateLevel.FAILED
            comparison, ends = (_against(content, one.name) for one in (state, bad))
            if comparison is None or ends is None:
                problem = _failure(self.out / name, state.name) or "it was not measured"
                self.tell(state.name, level=StateLevel.FAILED, problem=problem, bundle=name)
                return StateLevel.FAILED
            level = level_of(comparison.verdict_of(self.method), ends.verdict_of(self.method))
            if level is not StateLevel.UNDECIDED or rounds >= most:
                self._learn(name, content, state.name, level)
                return level
            rounds = min(2 * rounds, most)

    def _learn(self, bundle: str, content: ReportContent, name: str, level: StateLevel) -> None:
        """Keep what a bundle tells of a state beside its good end."""
        comparison = _against(content, name)
        if comparison is None:
            self.tell(name, level=StateLevel.FAILED, problem=_failure(self.out / bundle, name), bundle=bundle)
            return
        end = comparison.verdict_of(self.method)
        self.tell(
            name,
            level=level,
            ratio=None if end.speedup is None else 1 / end.speedup,
            ci95=None if end.ci95 is None else (1 / end.ci95[1], 1 / end.ci95[0]),
            operators=_ran(content, name),
            outputs_agree=comparison.outputs.agree if comparison.outputs else None,
            bundle=bundle,
        )

    def neighbours(self, result: SearchResult) -> ReportContent:
        """The two states beside the change, in a bundle of their own unless they are the ends."""
        before, after = (self.asked.states[place] for place in (result.last_good, result.first_bad))
        if len(self.asked.states) == 2:  # noqa: PLR2004 - the ends
            return self.measured(ENDS, [before, after])
        self.means.notify(f"measuring {before.name} and {after.name}")
        return self.measured(f"{before.name}-to-{after.name}", [before, after])

    def listed(self) -> Comparison:
        """All states side by side; the last one against the first."""
        states = self.asked.states
        content = self.measured(ENDS, states)
        ends = self._ends(content)
        for state in states[1:]:
            comparison = _against(content, state.name)
            level = StateLevel.FAILED
            if comparison:
                level = level_of(comparison.verdict_of(self.method), ends.verdict_of(self.method))
            self._learn(ENDS, content, state.name, level)
        for state in states:
            self.counted(state)
        return ends

    def ends(self) -> Comparison:
        """Both ends against each other."""
        return self._ends(self.measured(ENDS, [self.asked.states[0], self.asked.states[-1]]))

    def _ends(self, content: ReportContent) -> Comparison:
        good, bad = self.asked.states[0], self.asked.states[-1]
        comparison = _against(content, bad.name)
        if comparison is None:
            problem = _failure(self.out / ENDS, good.name) or _failure(self.out / ENDS, bad.name) or "not measured"
            raise UsageError(f"an end does not run the model: {problem}", where=self.asked.model)
        self.method = _followed(comparison)
        if self.method:
            followed = f"this follows {self.method}, which slowed most (--methods NAME follows another)"
            self.notes.append(f"several methods are called; {followed}")
        self.tell(
            good.name,
            level=StateLevel.GOOD,
            ratio=1.0,
            ci95=(1.0, 1.0),
            operators=_ran(content, good.name),
            bundle=ENDS,
        )
        self._learn(ENDS, content, bad.name, StateLevel.BAD)
        return comparison

    def counted(self, state: RunState) -> Work | None:
        """Exact work of a state; None where it cannot be counted."""
        if state.name not in self._counted:
            state = self.ready(state)
            work = self._count(state) if self.asked.work and state.counted else None
            self._counted[state.name] = work
            if work is not None:
                self.tell(state.name, instructions=work.instructions, operators=len(work.operators))
        return self._counted[state.name]

    def _count(self, state: RunState) -> Work | None:
        settings = self.asked.settings
        file = self.out / "work" / f"{state.name}.json"
        if kept := _kept_work(file):
            return kept
        enter(f"counting {state.name}")
        try:
            result = count(
                self.asked.program,
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


def _kept_work(file: Path) -> Work | None:
    """What was counted before an interruption; None where nothing was, or it cannot be read."""
    try:
        return from_json(file.read_bytes(), Work)
    except (OSError, msgspec.MsgspecError):
        return None


def bisected(request: BisectRequest, out: Path, means: Means, *, resume: bool = False) -> Bisection:
    """Find the state that made a model slower, and keep all that was measured on the way in a directory.

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
    work = _Bisecting(request, out, means)
    ends = work.listed() if request.listed else work.ends()
    slower = ends.verdict_of(work.method).verdict is Verdict.SLOWER
    by, result = ("time", None)
    if slower and len(request.states) > 2 and not request.listed:  # noqa: PLR2004 - more than both ends
        by, result = _located(work, ends.verdict_of(work.method))
    elif slower and not request.listed:
        result = SearchResult(0, 1, 0)
    step, graph = _step(work, result) if result else (None, [])
    return _result(work, ends.verdict_of(work.method), result, step, by, graph)


def _located(work: _Bisecting, ends: EndToEnd) -> tuple[str, SearchResult]:
    """Where the change is: by exact counts, where these tell of it and time agrees, else by time."""
    states = work.asked.states
    first, last = work.counted(states[0]), work.counted(states[-1])
    if first is not None and last is not None and _tells(first, last, ends):
        result = search(len(states), lambda one: _level_by_work(work, states[one], first, last))
        comparison = _against(work.neighbours(result), states[result.first_bad].name)
        if comparison and (part_of_change(comparison.verdict_of(work.method), ends) or 0.0) >= EXPLAINED:
            return "work", result
        work.notes.append("exact work changes elsewhere than time does")
        for state in states[1:-1]:
            work.tell(state.name, level=StateLevel.UNTESTED)
    return "time", search(len(states), work.placed)


def _tells(first: Work, last: Work, ends: EndToEnd) -> bool:
    """Whether the change of exact work is large enough to be that of the time."""
    more = last.instructions / first.instructions if first.instructions else 1.0
    slower = 1 / ends.speedup if ends.speedup else 1.0
    return more > 1 + EXPLAINED * (slower - 1)


def _level_by_work(work: _Bisecting, state: RunState, first: Work, last: Work) -> StateLevel:
    found = work.counted(state)
    if found is None:
        return StateLevel.FAILED
    level = level_of_work(found.instructions, first.instructions, last.instructions)
    work.tell(state.name, level=level)
    return level


def _step(work: _Bisecting, result: SearchResult) -> tuple[Comparison | None, list[GraphChange]]:
    """The two states beside the change, measured in turns with nothing else; and how their graphs differ."""
    content = work.neighbours(result)
    before, after = (work.names[place] for place in (result.last_good, result.first_bad))
    return _against(content, after), graph_changes(_operators(content, before), _operators(content, after))


def _result(
    work: _Bisecting,
    ends: EndToEnd,
    result: SearchResult | None,
    step: Comparison | None,
    by: str,
    graph: list[GraphChange],
) -> Bisection:
    request = work.asked
    states = request.states
    sides = (states[result.last_good], states[result.first_bad]) if result else None
    counts = [work.counted(one) for one in sides] if sides and step else []
    evidence = work_decision(counts[0], counts[1]).evidence if len(counts) == 2 and all(counts) else None  # type: ignore[arg-type]  # noqa: PLR2004
    manifest = Bundle.open(work.out / ENDS).manifest
    known = [work.told[name] for name in work.names]
    notes = [f"the work of {', '.join(names)} is not counted: {why}" for why, names in work.uncounted.items()]
    notes += work.notes
    if sides and step:
        others = find_other_changes(known, sides[0].name, sides[1].name)
        notes += [f"{after} is {ratio_text(ratio)} the latency of {before}, too" for before, after, ratio in others]
    failed = [one for one in known if one.level is StateLevel.FAILED]
    notes += [f"{one.name} could not be measured: {one.problem or 'no reason is known'}" for one in failed]
    environment = manifest.environment
    return Bisection(
        model=request.model,
        sha256=sha256_of(request.program),
        runtime=request.runtime,
        machine=", ".join(filter(None, (environment.cpu, environment.system))),
        command=request.command,
        kind=request.kind,
        by=by,
        states=known,
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


def _followed(ends: Comparison) -> str | None:
    """Of several methods the one that slowed most, if any; None where all calls are of one."""
    if not ends.methods:
        return None
    verdicts = ends.verdicts
    return min(verdicts, key=lambda one: (verdicts[one].verdict is not Verdict.SLOWER, verdicts[one].speedup or 1.0))


def _against(content: ReportContent, name: str) -> Comparison | None:
    """The comparison of a state with the good end of its bundle."""
    return next((one for one in content.comparisons if one.candidate.label == name), None)


def _ran(content: ReportContent, name: str) -> int | None:
    """How many operators ran in a variant."""
    return sum(1 for one in _operators(content, name) if one.instruction is not None) or None


def _operators(content: ReportContent, name: str) -> Sequence[Operator]:
    """What ran in a variant; nothing where it has no result."""
    analysis = next((one.analysis for one in content.variants if one.variant.name == name), None)
    return analysis.operators if analysis else ()


def _failure(path: Path, name: str) -> str | None:
    """Why a variant of a bundle has no result."""
    if not is_bundle(path):
        return None
    failures = [one.failure for one in Bundle.open(path).manifest.failures() if one.variant == name]
    return failures[0].message if failures and failures[0] else None
