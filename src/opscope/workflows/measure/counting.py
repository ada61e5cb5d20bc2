"""Counting the work of a model: one run under an instruction counter, never timed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.work.counted import CountedReads
from opscope.analysis.work.gate import work_decision
from opscope.analysis.work.work import CLASSES, INSTRUCTIONS, RestWork, Work, operators_of
from opscope.bundle.manifest import Mechanism
from opscope.core.errors import FeatureError
from opscope.core.files import place_beside, sha256_of
from opscope.experiment.planned import Experiment
from opscope.machine import isa
from opscope.machine.x86_instructions import Instructions
from opscope.measurements.analyses import analysis_of
from opscope.measurements.attribution import with_program
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import WorkResult
from opscope.measurements.trace_sides import trace_side
from opscope.runtimes.counting.work_run import NOT_SHOWN, PROCESSOR, run_counted, valgrind_version
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiment_bundle import counting_job
from opscope.workflows.measure.switching import chosen_switch
from opscope.workflows.measure.targets import target_running

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.work.gate import WorkEvidence
    from opscope.experiment.target import RunTarget
    from opscope.runtimes.counting.work_run import WorkRun
    from opscope.runtimes.side import Side

_SECONDS = 1800.0
_TRACES = "trace.*"
_MACHINES = ("x86_64", "AMD64")


def count(  # noqa: PLR0913 - all but the model are by name
    model: str | Path,
    *,
    inputs: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    guess_inputs: bool = True,
    methods: Sequence[str] = (),
    ablate: Sequence[str] = (),
    ladder: bool = False,
) -> WorkResult:
    """What each operator of a model executes in one inference, counted exactly.

    It runs in the native runner under Valgrind, in one thread, twice; the second inference counts.

    Args:
        model: a .pte, .tflite or .onnx, or what can be exported.
        inputs: as of ``--input``.
        dims: as of ``--dim``.
        guess_inputs: as of ``--guess-inputs``.
        methods: as of ``--methods``.
        ablate: feature groups to switch off in a second run, whose counts stand in ``others``.
        ladder: switch them off one after the other in further runs, strongest first.

    Raises:
        MissingDependencyError: Valgrind, a compiler or iced-x86 is missing.
        FeatureError: this machine is not one whose instructions can be counted.
        RunError: the model does not run.
        UsageError: there are no inputs of that name, or its runtime has no native runner.
    """
    counter = valgrind_version()
    Instructions()  # says that its package is missing before anything runs
    asked = Experiment(
        name="count",
        model=str(model),
        target="native",
        input=tuple(inputs),
        dim=dict(dims or {}),
        guess_inputs=guess_inputs,
        methods=tuple(methods),
        runs=1,
        warmup=1,
        timeout=_SECONDS,
    )
    target = target_running(asked.model, asked.target)
    machine = target.environment().machine
    if machine not in _MACHINES:
        raise FeatureError(
            f"instructions are counted on x86-64, and this is {machine}", hint="count on another machine"
        )
    steps = _steps(target, ablate, ladder=ladder)
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        files, job = counting_job(asked, target, Path(work))
        record = next((file for file in files if file.suffix == ".etrecord"), None)
        job = msgspec.structs.replace(job, program=str(_alone(files, {str(record), job.data}, Path(work))))
        given = [own.source for own in job.inputs if own.source]
        found = []
        for number, (off, clear) in enumerate([((), None), *steps]):
            directory = Path(work) / f"counted-{number}"
            directory.mkdir()
            cleared = msgspec.structs.replace(job, clear=clear)
            ran = run_counted(target, cleared, directory, texts=runtime_of(files[0]).writes_texts)
            trace = next(directory.glob(_TRACES))
            side = with_program(trace_side(trace, len(job.calls) or 1), files[0], record)
            made = _work(files[0], side, ran, runtime_of(files[0]).clock_start(trace))
            about = {"model": str(model), "counter": counter, "inputs": given, "off": list(off)}
            found.append(msgspec.structs.replace(made, **about))
    return shown_as(WorkResult, msgspec.structs.replace(found[0], others=found[1:]))


def check_work(candidate: str | Path, against: str | Path, *, limit: float = 0.0) -> Decision[WorkEvidence]:
    """Whether a program executes more than another one; exact, and without a time.

    Args:
        candidate: what is judged, as of :func:`count`.
        against: its baseline.
        limit: largest share of more instructions that is let through.

    Raises:
        OpscopeError: as :func:`count` does.
    """
    return work_decision(count(against), count(candidate), limit)


def _steps(target: RunTarget, ablate: Sequence[str], *, ladder: bool) -> list[tuple[tuple[str, ...], list[str]]]:
    """Feature groups to switch off in each further run, with the fields that do; of what Valgrind shows."""
    if not ablate and not ladder:
        return []
    chosen = chosen_switch(target)
    if chosen.mechanism is not Mechanism.CPUINFO:
        problem = f"features of this runtime are switched off by {chosen.mechanism.value}, which Valgrind does not run"
        raise FeatureError(problem, hint="leave out --ablate and --ladder")
    probed = chosen.probe
    fields = frozenset(probed.fields)
    here = {group.name for group in isa.present(probed.arch, fields)}
    if NOT_SHOWN in here:
        fields -= set(isa.cleared_fields(probed.arch, [NOT_SHOWN], fields))
    hidden = here.difference(group.name for group in isa.present(probed.arch, fields)).intersection(ablate)
    if hidden:
        problem = f"{', '.join(sorted(hidden))} is off in every count: Valgrind does not show it to programs"
        raise FeatureError(problem, where="--ablate", hint="leave it out")
    offs = [tuple(names) for names in isa.ladder(probed.arch, fields)] if ladder else [tuple(ablate)]
    return [(off, isa.cleared_fields(probed.arch, list(off), fields)) for off in offs]


def _alone(files: Sequence[Path], named: Container[str | None], work: Path) -> Path:
    """A copy of a program, with what it finds beside itself; ``named`` are files that the process is told of.

    Lengths of paths move the heap, too: every program has the same name in a directory of this length.
    """
    home = work / "model"
    home.mkdir()
    copy = home / f"program{files[0].suffix}"
    shutil.copyfile(files[0], copy)
    for file in files[1:]:
        if str(file) not in named:
            place = home / place_beside(file, files[0])
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    return copy


def _work(program: Path, side: Side, ran: WorkRun, start: int) -> Work:
    """The work of a run, without how it was asked for; ``start`` is where the trace counts from."""
    reads = CountedReads(side.table, start)
    tables = {name: reads.counted(moments) for name, moments in ran.counts.items()}
    analysis = analysis_of(side._replace(table=tables[INSTRUCTIONS]))
    facts = side.known.attributions.operators if side.known else {}
    padding = {key: own.cost.padding_macs for key, own in facts.items() if own.cost}
    operators = operators_of(analysis, tables, list(CLASSES), padding)
    whole = ran.counts[INSTRUCTIONS].at
    first, last = reads.measured
    began, ended = int(whole[first]), int(whole[last])
    runtime = runtime_of(program)
    return Work(
        model="",
        sha256=sha256_of(program),
        runtime=f"{runtime.title} {ran.versions.get(runtime.package(), '')}".strip(),
        processor=PROCESSOR,
        counter="",
        inputs=[],
        off=[],
        operators=operators,
        rest=RestWork(
            framework=ended - began - sum(one.instructions for one in operators),
            before=began,
            after=int(whole[-1]) - ended,
        ),
    )
