"""Targets with a native runner: the frame of a job, to which a runtime adds its flags, inputs and trace."""

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
"""Seconds that a runner may take to answer a question without a measurement."""
_PROBE = {"probe": 1, "cpuid_leaves": ",".join(f"{leaf}/{subleaf}" for leaf, subleaf in CPUID_LEAVES)}


class PreparedRun(NamedTuple):
    """Additions of a runtime to a run of its runner."""

    flags: Mapping[str, object]  # of the runner, beside those that all runners have
    sent: Mapping[str, SentFile]  # files that it reads, by the flags that name them
    files: int  # how many files with inputs were written into its directory
    inputs: list[Tensor]  # tensors among the inputs
    brought: Mapping[str, Path]  # where files go that it leaves in its directory, by their names
    # keeps the trace that it left, and returns the outputs of the last calls with what they are
    keep: Callable[[Any], tuple[Sequence[Array], list[Tensor]]]


class RunnerTarget(HostedTarget, ABC, Generic[Answer]):
    """Runs jobs with a native runner, each in its own process group.

    ``program`` makes the runner when it is first needed, since it may depend on the host. ``versions`` of the
    host's software are listed with those of the runner. ``ceilings`` is a target on the same host that measures its
    ceilings.
    """

    mechanisms = tuple(Mechanism)
    answers: type[Answer]
    """Type of the runner's answer."""
    otherwise: ClassVar[str]
    """Hint for a device for which there is no runner."""
    without_runner: ClassVar[str]
    """Hint for a runner that does not start."""

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
        """Return the folder that runs on any Linux of an architecture; it is made once."""

    @classmethod
    def on(cls, device: Device, cache: Path | None = None, versions: Mapping[str, str] | None = None) -> Self:
        """Return the target of a device, to which everything it needs is sent."""
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
        """The runner; made when it is first needed."""
        return self._make()

    @cached_property
    def _runner_starter(self) -> RunnerStarter[Answer]:
        return RunnerStarter(self._host, self.program, self.answers)

    def brought_files(self) -> list[Path]:
        """Return the runner and its libraries if they are copied to the host; empty if installed ones run."""
        folder = self.program.brought
        return list(folder.files()) if folder else []

    @cached_property
    def probed(self) -> ProbeAnswer:
        """The CPU's features that can be switched; asked once."""
        return self._ask_features(ProcessSettings())

    @abstractmethod
    def _ask_features(self, process: ProcessSettings) -> ProbeAnswer:
        """Ask the host for the CPU's features, with a process of some settings."""

    def _ask_processor(self, process: ProcessSettings) -> tuple[Answer, CpuReading]:
        """Return the runner's answer about the processor, and the processor's description in it."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            work = Path(directory)
            call = RunnerCall(_PROBE, work, work / LOG, question_seconds(_SHORT_SECONDS), process=process)
            try:
                answer = self._runner_starter.answer(call)
            except FailedJob as failed:
                problem = f"cannot read the CPU's features: {failed}"
                raise RunError(problem, hint=self.without_runner) from failed
        if answer.processor is None:
            raise RunError("cannot read the CPU's features: the runner reported none", hint=self.without_runner)
        return answer, answer.processor

    def environment(self) -> Environment:
        """Describe the machine and its software, including the compiler."""
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
        switch = self._library_switch().prepared(job, work) if is_switched_outside(job) else None
        answer = self._runner_starter.answer(
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
                variables=joined_variables(self._runner_starter.counting(job.counter), variables_of(switch)),
            )
        )
        mask = proof(switch.record) if switch else answer.mask
        began = time.perf_counter_ns()
        outputs, tensors = run.keep(answer)
        save_outputs(str(directory / OUTPUTS), outputs)
        spent = time.perf_counter_ns() - began
        return Measurement(
            mask=mask,
            threads=answer.threads,
            inputs=run.inputs,
            outputs=tensors,
            output_sha256=digest(outputs),
            wall_ns=answer.warmup_ns + answer.wall_ns,
            start_ns=answer.start_ns,
            load_ns=answer.load_ns,
            peak_rss_bytes=answer.peak_rss_bytes,
            versions=dict(self.program.versions),
            write_ns=answer.write_ns + spent,
            off_cpu_ns=answer.off_cpu_ns,
            usage=answer.usage,
        )

    @abstractmethod
    def _prepare_run(self, job: Job, directory: Path, work: Path) -> PreparedRun:
        """Write the inputs of a job into ``work`` and return what its run needs; the trace goes to ``directory``."""

    @abstractmethod
    def _library_switch(self) -> LibrarySwitch:
        """Return the switch of CPU features for the runtime's libraries."""

    def _describe_program(
        self, sent: Mapping[str, SentFile], flags: Mapping[str, object], work: Path, directory: Path
    ) -> Answer:
        """Return the runner's description of a program; asked once for each file and set of flags."""
        program = sent["model_path"].path
        try:
            state = program.stat()
        except OSError as error:
            raise FailedJob(Failure(FailureKind.EXIT, f"{program}: {error.strerror}")) from error
        key = (str(program), state.st_mtime_ns, state.st_size, *flags.values())
        if key not in self._descriptions:
            seconds = question_seconds(_SHORT_SECONDS)
            call = RunnerCall({**flags, "describe": 1}, work, directory / LOG, seconds, sent)
            self._descriptions[key] = self._runner_starter.answer(call)
        return self._descriptions[key]

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """Return the offer of a mechanism that switches CPU features for the runner's libraries."""
        return (
            SwitchOffer(mechanism, self.probe())
            if mechanism is Mechanism.CPUINFO
            else self._library_switch().offer(mechanism)
        )

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """Measure the ceilings of a variant; None if this target measures none."""
        return self._ceilings.ceilings(variant) if self._ceilings else None

    def identity(self) -> MachineIdentity | None:
        """Return the properties of the machine that ceilings depend on; None if this target measures none."""
        return self._ceilings.identity() if self._ceilings else None

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """Measure again the ceilings of an earlier sample. Raises RunError if this target measures none."""
        if self._ceilings is None:
            raise RunError("this target measures no ceilings")
        return self._ceilings.ceilings_again(sample)
