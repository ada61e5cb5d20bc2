"""Targets with a native runner: the frame of a job, to which a runtime adds its flags, its inputs and its trace."""

from __future__ import annotations

import functools
import tempfile
import time
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from opscope.bundle.bundle import SCRATCH
from opscope.bundle.manifest import Failure, FailureKind, Measurement, Mechanism
from opscope.core.errors import OpscopeError, RunError
from opscope.core.writing import scratch_directory
from opscope.experiment.protocol import LOG, OUTPUTS
from opscope.experiment.target import JobOutcome, SwitchOffer, feature_groups
from opscope.hosts.emulator import EmulatedMachine, find_emulator
from opscope.hosts.host import ProcessSettings
from opscope.hosts.process import question_seconds
from opscope.machine import environment
from opscope.machine.cpu_reading import CPUID_LEAVES
from opscope.machine.switch.switch import proof
from opscope.runtimes.child import digest, save_outputs
from opscope.runtimes.counting.kernel_counter import COUNTS
from opscope.runtimes.hosted import FailedJob, HostedTarget, ended_by
from opscope.runtimes.native.start import (
    Answer,
    NativeProgram,
    RunnerCall,
    RunnerStarter,
    joined_variables,
    program_for,
)
from opscope.runtimes.switching import brought_by, is_switched_outside, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from opscope.bundle.manifest import Environment, Variant
    from opscope.experiment.protocol import Job, ProbeAnswer
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array
    from opscope.hosts.device import Device
    from opscope.hosts.host import Host
    from opscope.machine.ceilings.cache import MachineIdentity
    from opscope.machine.cpu_reading import CpuReading
    from opscope.program.ceilings import Ceilings
    from opscope.program.structure.exported import Tensor
    from opscope.runtimes.native.building import RuntimeFolder
    from opscope.runtimes.native.start import SentFile
    from opscope.runtimes.switching import LibrarySwitch


_SHORT_SECONDS = 60.0
"""That a runner may take for what it tells without a measurement."""
_PROBE = {"probe": 1, "cpuid_leaves": ",".join(f"{leaf}/{subleaf}" for leaf, subleaf in CPUID_LEAVES)}


class PreparedRun(NamedTuple):
    """What a runtime adds to a run of its runner."""

    flags: Mapping[str, object]  # of the runner, beside those that all runners have
    sent: Mapping[str, SentFile]  # files that it reads, by the flags that name them
    files: int  # how many files with inputs were written into its directory
    inputs: list[Tensor]  # tensors among the inputs
    brought: Mapping[str, Path]  # where files go that it leaves in its directory, by their names
    # keeps the trace that it left, and returns the outputs of the last calls with what they are
    keep: Callable[[Any], tuple[Sequence[Array], list[Tensor]]]


class RunnerTarget(HostedTarget, ABC, Generic[Answer]):
    """Runs jobs with a native runner, each in a process group of its own.

    ``program`` makes the runner when it is needed first, since it may depend on what the host is; ``versions`` of the
    host's software go with those of the runner; ``ceilings`` is a target of the same host that measures its ceilings.
    """

    mechanisms = tuple(Mechanism)
    answers: type[Answer]
    """What the runner answers with."""
    otherwise: ClassVar[str]
    """What to do about a device for which there is no runner."""
    without_runner: ClassVar[str]
    """What to do about a runner that does not start."""

    def __init__(
        self,
        host: Host,
        program: Callable[[], NativeProgram],
        versions: Mapping[str, str],
        ceilings: RunTarget | None = None,
    ) -> None:
        super().__init__(host)
        self._make, self._versions, self._ceilings = program, dict(versions), ceilings
        self._descriptions: dict[tuple[object, ...], Answer] = {}

    @classmethod
    @abstractmethod
    def folder(cls, arch: str, cache: Path | None = None) -> RuntimeFolder:
        """Return the folder that runs on any Linux of an architecture; made once."""

    @classmethod
    def on(cls, device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None) -> Self:
        """Return the target of a device, sent with all it needs."""
        make = functools.partial(program_for, device, lambda arch: cls.folder(arch, cache), cls.otherwise)
        return cls(device, make, versions or {})

    @classmethod
    def emulated(cls, cache: Path | None = None) -> Self:
        """Return the target of 64-bit Arm under QEMU on this machine. Its times mean nothing."""
        host = EmulatedMachine(find_emulator())
        program = NativeProgram.of(cls.folder(host.arch, cache))
        program = program._replace(versions={**program.versions, **host.versions})
        return cls(host, lambda: program, {})

    @cached_property
    def program(self) -> NativeProgram:
        """The runner."""
        return self._make()

    @cached_property
    def _runner(self) -> RunnerStarter[Answer]:
        return RunnerStarter(self._host, self.program, self.answers)

    def brought_files(self) -> list[Path]:
        """Return the runner and its libraries where they are brought to the host; none where installed ones run."""
        folder = self.program.brought
        return list(folder.files()) if folder else []

    @cached_property
    def probed(self) -> ProbeAnswer:
        """The CPU's features as they can be switched; asked once."""
        return self._ask_features(ProcessSettings())

    @abstractmethod
    def _ask_features(self, process: ProcessSettings) -> ProbeAnswer:
        """Ask the host for the CPU's features, with a process of some settings."""

    def _ask_processor(self, process: ProcessSettings) -> tuple[Answer, CpuReading]:
        """Return what the runner tells of the processor, and in it what the processor says of itself."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            call = RunnerCall(_PROBE, work, work / LOG, question_seconds(_SHORT_SECONDS), process=process)
            try:
                heard = self._runner.answer(call)
            except FailedJob as failed:
                problem = f"cannot read the CPU's features: {failed}"
                raise RunError(problem, hint=self.without_runner) from failed
        if heard.processor is None:
            raise RunError("cannot read the CPU's features: the runner reported none", hint=self.without_runner)
        return heard, heard.processor

    def environment(self) -> Environment:
        """The machine and its software, the compiler included."""
        groups = feature_groups(lambda: self.probed)
        versions = {"opscope": environment.versions()["opscope"], **self._versions, **self.program.versions}
        return self._host.environment(groups, versions)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job; see :meth:`opscope.experiment.target.RunTarget.execute`."""
        try:
            with scratch_directory(directory / SCRATCH) as work:
                return JobOutcome(measurement=self._measure_job(job, directory.resolve(), work.resolve()))
        except (FailedJob, OpscopeError, OSError) as error:
            return ended_by(error)
        except (ValueError, IndexError) as error:
            return ended_by(RunError(f"the runner's output does not match the program: {error}"))

    def _measure_job(self, job: Job, directory: Path, work: Path) -> Measurement:
        run = self._prepare_run(job, directory, work)
        switch = self._switch().prepared(job, work) if is_switched_outside(job) else None
        heard = self._runner.answer(
            RunnerCall(
                flags={
                    **run.flags,
                    "warmup": job.warmup,
                    "num_executions": job.inferences - job.warmup,
                    "cpu_threads": job.threads,
                    "cpu_affinity": ",".join(map(str, job.variant.affinity)),
                },
                work=work,
                log=directory / LOG,
                timeout=job.timeout_seconds,
                process=job.process,
                sent=run.sent,
                inputs=run.files,
                outputs=True,
                brought={COUNTS: directory / COUNTS, **run.brought, **brought_by(switch)},
                variables=joined_variables(self._runner.counting(job.counter), variables_of(switch)),
            )
        )
        mask = proof(switch.record) if switch else heard.mask
        began = time.perf_counter_ns()
        outputs, tensors = run.keep(heard)
        save_outputs(str(directory / OUTPUTS), outputs)
        spent = time.perf_counter_ns() - began
        return Measurement(
            mask=mask,
            threads=heard.threads,
            inputs=run.inputs,
            outputs=tensors,
            output_sha256=digest(outputs),
            wall_ns=heard.warmup_ns + heard.wall_ns,
            start_ns=heard.start_ns,
            load_ns=heard.load_ns,
            peak_rss_bytes=heard.peak_rss_bytes,
            versions=dict(self.program.versions),
            write_ns=heard.write_ns + spent,
            off_cpu_ns=heard.off_cpu_ns,
            usage=heard.usage,
        )

    @abstractmethod
    def _prepare_run(self, job: Job, directory: Path, work: Path) -> PreparedRun:
        """Write the inputs of a job into ``work``; return what a run of it needs, whose trace goes to ``directory``."""

    @abstractmethod
    def _switch(self) -> LibrarySwitch:
        """Return what switches features for the runtime's libraries."""

    def _describe_program(
        self, sent: Mapping[str, SentFile], flags: Mapping[str, object], work: Path, directory: Path
    ) -> Answer:
        """Return what the runner tells of a program; asked once for a file and these flags."""
        program = sent["model_path"].path
        try:
            state = program.stat()
        except OSError as error:
            raise FailedJob(Failure(FailureKind.EXIT, f"{program}: {error.strerror}")) from error
        key = (str(program), state.st_mtime_ns, state.st_size, *flags.values())
        if key not in self._descriptions:
            seconds = question_seconds(_SHORT_SECONDS)
            call = RunnerCall({**flags, "describe": 1}, work, directory / LOG, seconds, sent)
            self._descriptions[key] = self._runner.answer(call)
        return self._descriptions[key]

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the runner's libraries."""
        return (
            SwitchOffer(mechanism, self.probe()) if mechanism is Mechanism.CPUINFO else self._switch().offer(mechanism)
        )

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """The ceilings of a variant; None where they are not measured."""
        return self._ceilings.ceilings(variant) if self._ceilings else None

    def identity(self) -> MachineIdentity | None:
        """What the ceilings depend on; None where they are not measured."""
        return self._ceilings.identity() if self._ceilings else None

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """Ceilings that were measured before, measured again."""
        if self._ceilings is None:
            raise RunError("this target measures no ceilings")
        return self._ceilings.ceilings_again(sample)
