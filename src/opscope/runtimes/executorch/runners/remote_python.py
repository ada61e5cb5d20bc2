"""The Python of a device, with executorch installed there: for systems without a ready runtime, such as macOS.

opscope itself is sent along, so that both ends are of one version; what it needs there is said when it is missing.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import zipfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import DeviceError, MissingDependencyError, with_hint
from opscope.core.system.interpreter import FILE, PACKAGE, module_words
from opscope.experiment.protocol import LOG, OUTPUTS, TRACE, PeakRatesRequest, ProbeAnswer, RunRequest
from opscope.experiment.target import Capabilities, JobOutcome, feature_groups
from opscope.hosts.device import Device
from opscope.hosts.process import log_tail
from opscope.machine.environment import cpu_revision
from opscope.machine.peak_rates_cache import MachineIdentity
from opscope.runtimes.executorch.runners.local import (
    DRIFT_SECONDS,
    ROOFS_LIMIT,
    ROOFS_SECONDS,
    outcome_of,
    peak_rates_response,
    probe_response,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opscope.bundle.manifest import Conditions, Environment, Target
    from opscope.experiment.target import Job
    from opscope.hosts.device import GuardedEnd
    from opscope.hosts.shell import RemoteShell
    from opscope.program.peak_rates.peak_rates import PeakRates

_PACKAGE, _REQUEST, _ANSWER, _PROGRAM = "opscope.zip", "request.json", "answer.json", "program.pte"
_CHILD, _ROOFS_CHILD = "opscope.runtimes.executorch.runners.child", "opscope.runtimes.executorch.peak_rates.child"
_WANTED = (_ANSWER, LOG, TRACE, OUTPUTS)
_PROBE_SECONDS = 120.0
_EPOCH = (1980, 1, 1, 0, 0, 0)


class RemotePythonTarget:
    """Runs jobs with the Python bindings of the runtime on a device.

    Args:
        shell: the way to the device.
        base: directory there for all that is ours.
        python: of the device; relative to the user's home unless it is looked up like any program.
    """

    def __init__(self, shell: RemoteShell, base: str, python: str) -> None:
        self._shell, self._asked = shell, python
        self._device = Device(shell, base)
        self._numbers = itertools.count()

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return self._shell.describe()

    def reserved(self) -> AbstractContextManager[None]:
        """Hold the device for this host alone."""
        return self._device.reserved()

    def capabilities(self) -> Capabilities:
        """All of a device with Python."""
        return Capabilities(host=self._device)

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime there sees them.

        Raises:
            DeviceError: the device cannot be reached or used.
            MissingDependencyError: that Python lacks what is needed.
        """
        return self._probed

    @cached_property
    def _probed(self) -> ProbeAnswer:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            place = Path(directory)
            ended = self._run(_CHILD, ["probe", _ANSWER], place, _PROBE_SECONDS)
            answer, log = place / _ANSWER, place / LOG
            if ended.code and not answer.exists():
                problem = f"the Python of the device cannot run models{log_tail(log)}"
                raise MissingDependencyError(problem, where=f"{self._device.name}: {self._asked}", hint=_INSTALL)
            return probe_response(ended.code, answer, log, _PROBE_SECONDS)

    def environment(self) -> Environment:
        """The device and its software."""
        groups = feature_groups(self.probe)
        return self._device.environment(groups, self._versions)

    @cached_property
    def _versions(self) -> dict[str, str]:
        done = self._shell.run([*self._python(_CHILD), "versions"], _PROBE_SECONDS)
        try:
            return msgspec.json.decode(done.stdout, type=dict[str, str])
        except msgspec.MsgspecError:
            return {}

    def conditions(self) -> Conditions:
        """The state of the device now.

        Raises:
            DeviceError: it cannot be reached.
        """
        return self._device.conditions()

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own on the device, which ends with its time or with the connection."""
        try:
            asked = RunRequest(
                program=f"{self._device.keep('programs', {_PROGRAM: Path(job.program)})}/{_PROGRAM}",
                calls=job.calls,
                clear=job.clear,
                threads=job.threads,
                inferences=job.inferences,
                seed=job.seed,
                trace=TRACE if job.traced else None,
                outputs=OUTPUTS,
                answer=_ANSWER,
                affinity=job.affinity,
            )
            words = ["run", self._sent(msgspec.json.encode(asked))]
            ended = self._run(_CHILD, words, directory, job.timeout_seconds)
            return self._outcome(ended, directory, job.timeout_seconds)
        except DeviceError as error:
            return JobOutcome(failure=Failure(FailureKind.DEVICE, with_hint(error)))
        except OSError as error:
            return JobOutcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            (directory / _ANSWER).unlink(missing_ok=True)

    def _outcome(self, ended: GuardedEnd, directory: Path, timeout: float) -> JobOutcome:
        outcome = outcome_of(ended.code, directory / _ANSWER, directory / LOG, timeout)
        if outcome.failure and outcome.failure.kind is FailureKind.STORAGE:
            raise DeviceError(outcome.failure.message, where=self._device.name, hint="free some space there")
        return outcome

    def roofs(self, clear: list[str] | None, threads: int) -> PeakRates:
        """The ceilings of the device with these features and threads; takes some four seconds."""
        return self._measured(PeakRatesRequest(clear, threads, ROOFS_SECONDS, _ANSWER))

    def identity(self) -> MachineIdentity | None:
        """What the ceilings of the device depend on; None for one that does not tell its name."""
        facts = self._device.facts()
        host, revision = facts.get("host", ""), cpu_revision(facts.get("cpuinfo", ""))
        return MachineIdentity.of(self.environment(), self.probe().fields, host, revision) if host else None

    def roofs_again(self, sample: PeakRates) -> PeakRates:
        """The same ceilings as these, measured again on the device."""
        return self._measured(PeakRatesRequest(sample.cleared, sample.threads, DRIFT_SECONDS, _ANSWER, sample))

    def _measured(self, asked: PeakRatesRequest) -> PeakRates:
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            place = Path(directory)
            request = self._sent(msgspec.json.encode(asked))
            ended = self._run(_ROOFS_CHILD, [request], place, ROOFS_LIMIT)
            return peak_rates_response(ended.code, asked, place / _ANSWER, place / LOG)

    def _run(self, module: str, words: list[str], into: Path, timeout: float) -> GuardedEnd:
        """Run a module there, and bring what it left."""
        work = self._device.work(str(next(self._numbers)))
        ended = self._device.guarded([*self._python(module), *words], work, timeout)
        self._device.pull(work, [name for name in ended.files if name in _WANTED], into)
        self._device.remove(work)
        if not (into / LOG).exists():
            (into / LOG).write_bytes(b"")
        return ended

    def _sent(self, request: bytes) -> str:
        """Path on the device of a request."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            file = Path(directory) / _REQUEST
            file.write_bytes(request)
            return f"{self._device.keep('requests', {_REQUEST: file})}/{_REQUEST}"

    def _python(self, module: str) -> list[str]:
        """What starts a module of our own package with that Python."""
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            package = Path(directory) / _PACKAGE
            package.write_bytes(self._package)
            digest = hashlib.sha256(self._package).hexdigest()[:16]
            place = self._device.keep_as("packages", digest, {_PACKAGE: package, FILE.name: FILE})
        program = self._device.absolute(self._asked) if "/" in self._asked else self._asked
        words = module_words(f"{place}/{FILE.name}", f"{place}/{_PACKAGE}", module)
        return ["env", "PYTHONDONTWRITEBYTECODE=1", program, *words]

    @cached_property
    def _package(self) -> bytes:
        """This opscope as one file, the same bytes each time."""
        root = PACKAGE
        with tempfile.TemporaryFile() as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(root.rglob("*.py")):
                    name = path.relative_to(root.parent).as_posix()
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
            file.seek(0)
            return file.read()


_INSTALL = "on the device: PYTHON -m pip install executorch==1.5.1 torch==2.13.0 msgspec numpy"
