"""Counting the work of a model: one run under an instruction counter, never timed."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.work.gate import work_decision
from opscope.analysis.work.receipt import differences, other_files, read_receipt
from opscope.analysis.work.work import CLASSES, INSTRUCTIONS, CountedReads, RestWork, Work, operators_of
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.bundle.manifest import Mechanism
from opscope.core.errors import FeatureError, UsageError
from opscope.core.files import place_beside, sha256_of
from opscope.core.printable import shell_command
from opscope.core.system.memory import file_bytes
from opscope.core.table.calls import named_by_calls
from opscope.experiment.engine import planned_job
from opscope.experiment.planned import Experiment
from opscope.experiment.target_names import kind_named, parse_target
from opscope.hosts.target_kinds import NATIVE
from opscope.machine import isa
from opscope.machine.instructions import SME_BITS, SVE_BITS
from opscope.measurements.analyses import analysis_of
from opscope.measurements.attribution import with_program
from opscope.measurements.bundle_work import keep_work
from opscope.measurements.notebook import shown_as
from opscope.measurements.results import WorkResult
from opscope.measurements.sides import usual_variant
from opscope.measurements.trace_sides import trace_side
from opscope.runtimes.counting.emulated import EmulatorCounter
from opscope.runtimes.counting.valgrind import ValgrindCounter
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiment_bundle import counting_job
from opscope.workflows.measure.targets import target_running
from opscope.workflows.measure.variants import chosen_switch
from opscope.workflows.reports.reports import rewrite_reports

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.analysis.work.gate import WorkEvidence
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget
    from opscope.runtimes.counting.work_run import WorkCounter, WorkRun
    from opscope.runtimes.side import Side

_SECONDS = 1800.0
_TRACES = "trace.*"


def count(  # noqa: PLR0913 - all but the model are by name
    model: str | Path,
    *,
    inputs: Sequence[str] = (),
    dims: Mapping[str, int] | None = None,
    guess_inputs: bool = True,
    methods: Sequence[str] = (),
    ablate: Sequence[str] = (),
    ladder: bool = False,
    target: str = "native",
    sve_bits: int = SVE_BITS,
    sme_bits: int = SME_BITS,
) -> WorkResult:
    """Count exactly what each operator of a model executes in one inference.

    It runs in the native runner, in one thread, twice; the second inference counts. Of a bundle it is the program that
    its reports show, with the inputs of the plan.

    Args:
        model: a .pte, .tflite or .onnx, or what can be exported; or a bundle.
        inputs: as of ``--input``.
        dims: as of ``--dim``.
        guess_inputs: as of ``--guess-inputs``.
        methods: as of ``--methods``.
        ablate: feature groups to switch off in a second run, whose counts stand in ``others``.
        ladder: switch them off one after the other in further runs, strongest first.
        target: ``native``, which is x86-64 under Valgrind, or ``qemu-aarch64``, which is 64-bit Arm under QEMU.
        sve_bits: length of the vectors of SVE there.
        sme_bits: length of the vectors of SME there, and of a row of its tiles.

    Raises:
        MissingDependencyError: Valgrind or QEMU, a compiler or the package that decodes is missing.
        FeatureError: this machine is not one whose instructions can be counted.
        RunError: the model does not run.
        UsageError: there are no inputs of that name, or its runtime has no native runner.
    """
    counter = _choose_counter(target, sve_bits, sme_bits)
    bundle = Bundle.open(Path(model)) if is_bundle(Path(model)) else None
    if bundle is not None and (inputs or dims or methods):
        where = "--input" if inputs else "--dim" if dims else "--methods"
        raise UsageError("a bundle records its own inputs", where=where, hint="leave it out")
    experiment = Experiment(
        name="count",
        model=str(model if bundle is None else _measured_program(bundle)),
        target=target,
        input=tuple(inputs),
        dim=dict(dims or {}),
        guess_inputs=guess_inputs,
        methods=tuple(methods),
        runs=1,
        warmup=1,
        timeout=_SECONDS,
    )
    running = target_running(experiment.model, experiment.target)
    counter.check_machine(running.environment().machine or "")
    steps = [([], None), *_plan_switched_runs(running, counter, ablate, ladder=ladder)]
    with tempfile.TemporaryDirectory(prefix="opscope-") as work:
        asked = counting_job(experiment, running, Path(work)) if bundle is None else _measured_job(bundle)
        files, job = asked[0], _each_once(asked[1])
        record = next((file for file in files if file.suffix == ".etrecord"), None)
        job = msgspec.structs.replace(job, program=str(_copy_program(files, {str(record), job.data}, Path(work))))
        given = [planned_input.source for planned_input in job.inputs if planned_input.source]
        works = []
        for number, (off, clear) in enumerate(steps):
            directory = Path(work) / f"counted-{number}"
            directory.mkdir()
            switch = None if clear is None else Mechanism.CPUINFO
            variant = msgspec.structs.replace(job.variant, ablated=off, cleared=clear or [], switch=switch)
            cleared, runtime = msgspec.structs.replace(job, variant=variant), runtime_of(files[0])
            ran = counter.run(running, cleared, directory, texts=runtime.writes_texts)
            trace = next(directory.glob(_TRACES))
            start = runtime.clock_start(trace)
            traced = trace_side(trace, len(job.calls) or 1)
            if job.calls:
                traced = traced._replace(table=named_by_calls(traced.table, job.calls))
            side = with_program(traced, files[0], record)
            made = _make_work(files[0], side, CountedReads(side.table, start), ran, counter)
            named = str(model) if bundle is None else bundle.relative(files[0])
            works.append(msgspec.structs.replace(made, model=named, inputs=given, off=off))
    return shown_as(WorkResult, msgspec.structs.replace(works[0], others=works[1:]))


def _each_once(job: Job) -> Job:
    """The run with one call of each method: what a call executes does not differ from one to the next."""
    calls = tuple(dict.fromkeys(job.calls))
    each = len(calls) or 1
    return msgspec.structs.replace(job, calls=calls, inferences=2 * each, warmup=each)


def keep_counts(path: str | Path, work: Work) -> None:
    """Keep in a bundle what was counted of it, and write the reports that it has anew: they show it beside the times.

    Args:
        path: of the bundle.
        work: as :func:`count` gave it of this bundle.

    Raises:
        NotFoundError: there is no bundle.
        BundleError: another run is writing there, or the work is that of another program.
        StorageError: the system refused to write.
    """
    bundle = Bundle.open(Path(path))
    with bundle.locked():
        keep_work(bundle, usual_variant(bundle.manifest).name, work)
    rewrite_reports(bundle)


def _measured_program(bundle: Bundle) -> Path:
    """Return the program that the reports of a bundle show, as it was measured."""
    model = bundle.manifest.model_of(usual_variant(bundle.manifest).name)
    program = bundle.path / model.program
    bundle.check_hash(model.program, sha256_of(program), model.sha256)
    return program


def _measured_job(bundle: Bundle) -> tuple[list[Path], Job]:
    """Return the program's files, and a job of two inferences with the inputs that were measured."""
    variant = usual_variant(bundle.manifest)
    model, program = bundle.manifest.model_of(variant.name), _measured_program(bundle)
    job = planned_job(bundle.manifest, bundle.path, variant, traced=True)
    files = runtime_of(program).files(program, Path(job.data) if job.data else None)
    files += [bundle.path / model.etrecord] if model.etrecord else []
    call_count = len(job.calls) or 1
    single_threaded = msgspec.structs.replace(job.variant, threads=1, affinity=[])
    return files, msgspec.structs.replace(
        job, variant=single_threaded, timeout_seconds=_SECONDS, inferences=2 * call_count, warmup=call_count
    )


def verify_work(model: str | Path, receipt: Path, target: str = NATIVE.name) -> tuple[list[str], list[str]]:
    """Count again what a receipt states, and return the differences and the files that differ.

    The first list is empty if every operator executes what the receipt states. The second names files that executed in
    both counts and have other content, sorted.

    Args:
        model: what is counted; the receipt names no file that is opened or started.
        receipt: file that ``opscope count --receipt`` wrote.
        target: as of :func:`count`. A receipt of a target with an address is only verified if it is this one, since
            the address is a program that would be started.

    Raises:
        TraceFormatError: the file is no receipt, or was changed.
        UsageError: the receipt was counted on a target with an address that was not named.
        OpscopeError: as :func:`count` does.
    """
    stated = read_receipt(file_bytes(receipt), str(receipt))
    if parse_target(stated.request.target).address and stated.request.target != target:
        problem = f"it was counted on {stated.request.target}, which names a program that would be started"
        hint = f"if you trust that program: --target {shell_command([stated.request.target])}"
        raise UsageError(problem, where=receipt, hint=hint)
    recounted = count(model, **msgspec.structs.asdict(stated.request))
    return differences(stated.work, recounted), other_files(stated.work, recounted)


def check_work(candidate: str | Path, against: str | Path, *, limit: float = 0.0) -> Decision[WorkEvidence]:
    """Decide whether a program executes more instructions than another one; exact, and without a time.

    Args:
        candidate: what is judged, as of :func:`count`.
        against: what it is judged by, likewise.
        limit: largest share of more instructions that passes.

    Raises:
        OpscopeError: as :func:`count` does.
    """
    return work_decision(count(against), count(candidate), limit)


def _choose_counter(target: str, sve_bits: int, sme_bits: int) -> WorkCounter:
    if sys.platform != "linux":
        problem = "instructions are counted on Linux, where Valgrind and QEMU can run a program"
        raise FeatureError(problem, hint="run opscope on a Linux machine, or in a Linux container on this one")
    kind = kind_named(target).name
    if kind == EmulatorCounter.target:
        return EmulatorCounter(sve_bits, sme_bits)
    if kind != ValgrindCounter.target:
        hint = f"{ValgrindCounter.target}, or {EmulatorCounter.target}"
        raise UsageError(f"opscope cannot count instructions on {target}", where="--target", hint=hint)
    return ValgrindCounter()


def _plan_switched_runs(
    target: RunTarget, counter: WorkCounter, ablate: Sequence[str], *, ladder: bool
) -> list[tuple[list[str], list[str] | None]]:
    """Return the feature groups to switch off in each further run, with their fields that the counter shows."""
    if not ablate and not ladder:
        return []
    chosen = chosen_switch(target)
    if chosen.mechanism is not Mechanism.CPUINFO:
        problem = (
            f"this runtime's features are switched off by {chosen.mechanism.value}, which does not work under Valgrind"
        )
        raise FeatureError(problem, hint="leave out --ablate and --ladder")
    probed = chosen.probe
    fields = frozenset(probed.fields)
    present = {group.name for group in isa.present(probed.arch, fields)}
    if counter.hidden in present:
        fields -= set(isa.cleared_fields(probed.arch, [counter.hidden], fields))
    hidden = present.difference(group.name for group in isa.present(probed.arch, fields)).intersection(ablate)
    if hidden:
        problem = f"{', '.join(sorted(hidden))} is off in every count: {counter.name} does not expose it to programs"
        raise FeatureError(problem, where="--ablate", hint="leave it out")
    offs = [list(names) for names in isa.ladder(probed.arch, fields)] if ladder else [list(ablate)]
    return [(off, isa.cleared_fields(probed.arch, off, fields)) for off in offs]


def _copy_program(files: Sequence[Path], named: Container[str | None], work: Path) -> Path:
    """Copy a program, with the files that it finds beside itself; the process is told of ``named`` files.

    Lengths of paths move the heap, too: every program has the same name in a directory of this length.
    """
    home = work / "model"
    home.mkdir()
    copy = home / f"program{files[0].suffix}"
    shutil.copyfile(files[0], copy)
    for file in files[1:]:
        if str(file) not in named:
            destination = home / place_beside(file, files[0])
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, destination)
    return copy


def _make_work(program: Path, side: Side, reads: CountedReads, ran: WorkRun, counter: WorkCounter) -> Work:
    """Return the work of a run, without how it was asked for."""
    runtime = runtime_of(program)
    tables = {name: reads.count_events(moments) for name, moments in ran.counts.items()}
    analysis = analysis_of(side._replace(table=tables[INSTRUCTIONS]))
    facts = side.known.attributions.operators if side.known else {}
    padding = {key: operator_facts.cost.padding_macs for key, operator_facts in facts.items() if operator_facts.cost}
    operators = operators_of(
        analysis, tables, list(CLASSES), padding, counter.tile_bits, channels_last=runtime.channels_last
    )
    instructions = ran.counts[INSTRUCTIONS].at
    first, last = reads.measured
    began, ended = int(instructions[first]), int(instructions[last])
    return Work(
        model="",
        sha256=sha256_of(program),
        runtime=f"{runtime.title} {ran.versions.get(runtime.package(), '')}".strip(),
        processor=counter.processor,
        counter=counter.name,
        inputs=[],
        off=[],
        files=ran.files,
        operators=operators,
        rest=RestWork(
            framework=ended - began - sum(operator.instructions for operator in operators),
            before=began,
            after=int(instructions[-1]) - ended,
        ),
    )
