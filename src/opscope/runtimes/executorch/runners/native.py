"""This machine, without Python in the process: every repetition is a fresh process of a small C++ runner."""

from __future__ import annotations

import platform
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Target
from opscope.hosts.process import read_answer, run_process
from opscope.hosts.target_kinds import NATIVE
from opscope.machine import isa
from opscope.runtimes.executorch.runners.kernel_counter import counter_environment
from opscope.runtimes.executorch.runners.local import LocalTarget
from opscope.runtimes.executorch.runners.native_answer import ANSWER, INPUT, OUTPUT, NativeAnswer, flag_words, judged
from opscope.runtimes.executorch.runners.native_build import build_runner
from opscope.runtimes.executorch.runners.native_jobs import NativeJobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.bundle.manifest import Conditions, Environment, Failure
    from opscope.experiment.protocol import ProbeAnswer
    from opscope.experiment.target import Job, JobOutcome
    from opscope.machine.ceilings_cache import MachineIdentity
    from opscope.program.ceilings.ceilings import Roofs
    from opscope.runtimes.executorch.runners.native_answer import RunnerCall


class NativeTarget:
    """Runs jobs on this machine by the native runner.

    Loading a program includes loading its method here; with Python that is part of the first inference.

    Args:
        cache: where the built runner is kept; the user's cache directory when it is not given.
        runner: command that starts a runner, for another one than the built one.

    Raises:
        MissingDependencyError: executorch or a compiler is missing, or the runner cannot be built.
        StorageError: the runner cannot be kept.
    """

    def __init__(self, cache: Path | None = None, runner: Sequence[str] | None = None) -> None:
        built = None if runner else build_runner(cache)
        command = (str(built.path),) if built else tuple(runner or ())
        self._versions = {"executorch": built.runtime, "compiler": built.compiler.version} if built else {}
        arch = isa.architecture(platform.machine())
        # The runner tells features in milliseconds; on macOS it cannot tell the size of cpuinfo_isa, Python can.
        asks_runner = built is not None and sys.platform == "linux"
        self._jobs = NativeJobs(
            LocalRunner(command), self._versions, arch, None if asks_runner else LocalTarget().probe
        )
        self._local = LocalTarget(features=lambda: self._jobs.probed)

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return Target(NATIVE.name, "")

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime sees them."""
        return self._jobs.probed

    def environment(self) -> Environment:
        """The machine and its software, the compiler included."""
        found = self._local.environment()
        return msgspec.structs.replace(found, versions=found.versions | self._versions)

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return self._local.conditions()

    def roofs(self, clear: list[str] | None, threads: int) -> Roofs:
        """The ceilings of this machine with these features and threads."""
        return self._local.roofs(clear, threads)

    def identity(self) -> MachineIdentity:
        """What the ceilings of this machine depend on."""
        return self._local.identity()

    def roofs_again(self, sample: Roofs) -> Roofs:
        """The same ceilings as these, measured again."""
        return self._local.roofs_again(sample)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which is ended when the time is up or the caller is interrupted."""
        return self._jobs.execute(job, directory)


class LocalRunner:
    """Starts the runner on this machine.

    Args:
        command: that starts it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    def answer(self, call: RunnerCall) -> NativeAnswer | Failure:
        """What it answers, in a process group of its own, which is ended when the time is up."""
        answer = call.work / ANSWER
        answer.unlink(missing_ok=True)
        files = {
            "model_path": call.program or "",
            "input_file": call.work / INPUT if call.inputs else "",
            "output_file": call.work / OUTPUT if call.outputs else "",
            "etdump_path": call.trace or "",
            "spawned_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        }
        words = flag_words({**call.flags, **files, "answer_path": answer})
        counted = counter_environment(str(call.counter), str(call.counts)) if call.counter else None
        code = run_process([*self._command, *words], call.log, call.timeout, environment=counted)
        return judged(read_answer(code, answer, call.log, call.timeout, NativeAnswer), code, call.log)
