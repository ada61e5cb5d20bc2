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
    elsewhere,
    graph_changes,
    level_of,
    level_of_work,
    part_of,
    search,
)
from opscope.analysis.work.gate import work_decision
from opscope.bundle.bundle import Bundle, check_free, is_bundle
from opscope.bundle.manifest import Role
from opscope.bundle.settings import MORE_ROUNDS
from opscope.core.errors import InterruptedRunError, OpscopeError, StorageError, UsageError
from opscope.core.files import sha256_of, storage_errors, write_atomically
from opscope.core.json import to_json
from opscope.core.stats.effect import Verdict
from opscope.core.system.stages import enter
from opscope.core.units import counted_text, ratio_text
from opscope.experiment.planned import Experiment, PlannedVariant
from opscope.experiment.variant_targets import VariantTargets
from opscope.workflows.measure.counting import count
from opscope.workflows.measure.experiment_bundle import check_request, new_bundle, old_bundle
from opscope.workflows.measure.experiments import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from opscope.analysis.bisection import GraphChange
    from opscope.analysis.compare.compare import Comparison, EndToEnd
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.work.work import Work
    from opscope.experiment.planned import Settings
    from opscope.experiment.target import RunTarget
    from opscope.reports.content.content import ReportContent
    from opscope.workflows.measure.experiments import Means

ENDS, STEP = "ends", "step"
"""Directories of the bundle of both ends, or of all states of a list, and of that of the two neighbours."""
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
        self._counted: dict[str, Work | None] = {}
        self._steps = 0

    @property
    def names(self) -> list[str]:
        return [state.name for state in self.asked.states]

    def ready(self, state: RunState) -> RunState:
        """A state with its target, which is made once."""
        if state.name not in self._ready:
            self._ready[state.name] = found = state.made() if state.made else state
            self.told[state.name] = found.told
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
        with target.reserved(self.means.lock_request()) as hold:
            begun = is_bundle(path)
            bundle = (
                old_bundle(path, experiment, target)
                if begun
                else new_bundle(path, experiment, target, self.means.clock)
            )
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
            except (InterruptedRunError, StorageError, KeyboardInterrupt):
                raise
            except OpscopeError as error:
                self.tell(state.name, level=StateLevel.FAILED, problem=str(error))
                return StateLevel.FAILED
            own, ends = (_against(content, one.name) for one in (state, bad))
            if own is None or ends is None:
                problem = _failure(self.out / name, state.name) or "it was not measured"
                self.tell(state.name, level=StateLevel.FAILED, problem=problem, bundle=name)
                return StateLevel.FAILED
            level = level_of(own.end_to_end, ends.end_to_end)
            if level is not StateLevel.UNDECIDED or rounds >= most:
                self._learn(name, content, state.name, level)
                return level
            rounds = min(2 * rounds, most)

    def _learn(self, bundle: str, content: ReportContent, name: str, level: StateLevel) -> None:
        """Keep what a bundle tells of a state beside its good end."""
        first = self.told[self.names[0]].latency_ns
        found = _against(content, name)
        if found is None:
            return
        end = found.end_to_end
        ratio = None if end.speedup is None else 1 / end.speedup
        self.tell(
            name,
            level=level,
            ratio=ratio,
            ci95=None if end.ci95 is None else (1 / end.ci95[1], 1 / end.ci95[0]),
            latency_ns=first * ratio if first and ratio else None,
            operators=_ran(content, name),
            outputs_agree=found.outputs.agree if found.outputs else None,
            problem=found.outputs.problem if found.outputs else None,
            bundle=bundle,
        )

    def listed(self) -> Comparison:
        """All states side by side; the last one against the first."""
        states = self.asked.states
        ends = self._ends(self.measured(ENDS, states))
        content = self.measured(ENDS, states)
        for state in states[1:]:
            found = _against(content, state.name)
            level = level_of(found.end_to_end, ends.end_to_end) if found else StateLevel.FAILED
            self._learn(ENDS, content, state.name, level)
        for state in states:
            self.counted(state)
        return ends

    def ends(self) -> Comparison:
        """Both ends against each other."""
        return self._ends(self.measured(ENDS, [self.asked.states[0], self.asked.states[-1]]))

    def _ends(self, content: ReportContent) -> Comparison:
        good, bad = self.asked.states[0], self.asked.states[-1]
        found = _against(content, bad.name)
        if found is None:
            problem = _failure(self.out / ENDS, good.name) or _failure(self.out / ENDS, bad.name) or "not measured"
            raise UsageError(f"an end does not run the model: {problem}", where=self.asked.model)
        self.tell(
            good.name,
            level=StateLevel.GOOD,
            ratio=1.0,
            ci95=(1.0, 1.0),
            latency_ns=found.end_to_end.baseline_ns,
            operators=_ran(content, good.name),
            bundle=ENDS,
        )
        self._learn(ENDS, content, bad.name, StateLevel.BAD)
        return found

    def counted(self, state: RunState) -> Work | None:
        """Exact work of a state; None where it cannot be counted."""
        if state.name not in self._counted:
            state = self.ready(state)
            self._counted[state.name] = self._count(state) if self.asked.work and state.counted else None
        return self._counted[state.name]

    def _count(self, state: RunState) -> Work | None:
        settings = self.asked.settings
        file = self.out / "work" / f"{state.name}.json"
        if file.exists():
            return _kept_work(file)
        enter(f"counting {state.name}")
        try:
            found = count(
                self.asked.program,
                inputs=settings.input,
                dims=settings.dim,
                guess_inputs=settings.guess_inputs,
                methods=settings.methods,
                target=str(state.counted),
            )
        except OpscopeError as error:
            self.notes.append(f"the work of {state.name} is not counted: {error.problem}")
            return None
        with storage_errors(file.parent):
            file.parent.mkdir(exist_ok=True)
        write_atomically(file, to_json(found))
        self.tell(state.name, instructions=found.instructions)
        return found


def _kept_work(file: Path) -> Work:
    from opscope.analysis.work.work import Work
    from opscope.core.json import from_json

    return from_json(file.read_bytes(), Work)


def bisected(asked: BisectRequest, out: Path, means: Means, *, resume: bool = False) -> Bisection:
    """Find the state that made a model slower, and keep all that was measured on the way in a directory.

    Args:
        asked: what is bisected.
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
    work = _Bisecting(asked, out, means)
    ends = work.listed() if asked.listed else work.ends()
    slower = ends.end_to_end.verdict is Verdict.SLOWER
    by, found = ("time", None)
    if slower and len(asked.states) > 2 and not asked.listed:  # noqa: PLR2004 - more than both ends
        by, found = _found(work, ends.end_to_end)
    elif slower and not asked.listed:
        found = SearchResult(0, 1, 0)
    step, graph = _step(work, found, ends) if found else (None, [])
    return _result(work, ends.end_to_end, found, step, by, graph)


def _found(work: _Bisecting, ends: EndToEnd) -> tuple[str, SearchResult]:
    """Where the change is: by exact counts, where these tell of it and time agrees, else by time."""
    states = work.asked.states
    first, last = work.counted(states[0]), work.counted(states[-1])
    if first is not None and last is not None and _tells(first, last, ends):
        found = search(len(states), lambda one: _level_by_work(work, states[one], first, last))
        step = work.measured(STEP, [states[found.last_good], states[found.first_bad]])
        own = _against(step, states[found.first_bad].name)
        if own and (part_of(own.end_to_end, ends) or 0.0) >= EXPLAINED:
            return "work", found
        work.notes.append("exact work changes elsewhere than time does")
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
    work.tell(state.name, level=level, operators=len(found.operators))
    return level


def _step(work: _Bisecting, found: SearchResult, ends: Comparison) -> tuple[Comparison | None, list[GraphChange]]:
    """The two states beside the change, measured in turns with nothing else; and how their graphs differ."""
    states = work.asked.states
    before, after = states[found.last_good], states[found.first_bad]
    alone = len(states) == 2  # noqa: PLR2004 - the ends are the neighbours
    if not alone:
        work.means.notify(f"measuring {before.name} and {after.name}")
    content = work.measured(ENDS if alone else STEP, [before, after])
    sides = [_operators(content, one.name) for one in (before, after)]
    return ends if alone else _against(content, after.name), graph_changes(*sides)


def _result(
    work: _Bisecting,
    ends: EndToEnd,
    found: SearchResult | None,
    step: Comparison | None,
    by: str,
    graph: list[GraphChange],
) -> Bisection:
    asked = work.asked
    states = asked.states
    sides = (states[found.last_good], states[found.first_bad]) if found else None
    counts = [work.counted(one) for one in sides] if sides and step else []
    evidence = work_decision(counts[0], counts[1]).evidence if len(counts) == 2 and all(counts) else None  # type: ignore[arg-type]  # noqa: PLR2004
    manifest = Bundle.open(work.out / ENDS).manifest
    known = [work.told[name] for name in work.names]
    notes = list(work.notes)
    if sides and step:
        others = elsewhere(known, sides[0].name, sides[1].name)
        notes += [f"{after} is {ratio_text(ratio)} the latency of {before}, too" for before, after, ratio in others]
    failed = [one.name for one in known if one.level is StateLevel.FAILED]
    if failed:
        notes.append(f"{counted_text(len(failed), asked.kind)} could not be measured: {', '.join(failed)}")
    environment = manifest.environment
    return Bisection(
        model=asked.model,
        sha256=sha256_of(asked.program),
        runtime=asked.runtime,
        machine=", ".join(filter(None, (environment.cpu, environment.system))),
        command=asked.command,
        kind=asked.kind,
        by=by,
        states=known,
        ends=ends,
        last_good=sides[0].name if sides else None,
        first_bad=sides[1].name if sides else None,
        measured=found.tried if found else 0,
        step=step,
        work=evidence,
        explained=part_of(step.end_to_end, ends) if step else None,
        notes=notes,
        graph=graph,
    )


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
