"""This machine: every repetition is a fresh Python process with the installed ExecuTorch runtime."""

from __future__ import annotations

import tempfile
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Conditions, Environment, Failure, FailureKind, Target
from opscope.core.errors import FeatureError, MissingDependencyError, RunError
from opscope.core.files import storage_errors
from opscope.core.system.interpreter import module_command
from opscope.experiment.protocol import (
    LOG,
    OUTPUTS,
    TRACE,
    PeakRatesRequest,
    PeakRatesResponse,
    ProbeAnswer,
    ProbeRefusal,
    RunAnswer,
    RunRequest,
)
from opscope.experiment.target import Capabilities, JobOutcome, feature_groups
from opscope.hosts.process import log_tail, read_answer, run_process, unanswered
from opscope.hosts.target_kinds import LOCAL
from opscope.machine import environment
from opscope.machine.layout import WITHOUT_SWITCH
from opscope.machine.peak_rates_cache import MachineIdentity, fingerprint
from opscope.runtimes.executorch.installed import (
    BACKEND,
    TRACES_SINCE,
    installed_runtime,
    library_directory,
    library_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.experiment.target import Job
    from opscope.program.peak_rates.peak_rates import PeakRates

_ANSWER = "answer.json"
_PROBE_SECONDS = 60
_CHILD = module_command("opscope.runtimes.executorch.runners.child")
_ROOFS_CHILD = module_command("opscope.runtimes.executorch.peak_rates.child")
# Starting and building the graphs adds a second; a slow processor may take five times as long.
ROOFS_SECONDS, ROOFS_LIMIT = 2.5, 120.0
# Of trying some of them again: a share of it for each that lets it run as often as in the whole measurement.
DRIFT_SECONDS = 0.25


NO_RUNNER_HINT = (
    "install a C++17 compiler for the native runner (Debian: apt install g++, macOS: xcode-select --install), "
    "or torch for the Python bindings (pip install 'opscope[executorch]')"
)


def local_obstacle() -> str | None:
    """Why the Python bindings cannot run programs here, as one sentence; None when nothing is known against it."""
    try:
        installed_runtime()
    except MissingDependencyError as error:
        return error.problem
    return None if find_spec("torch") else "torch is not installed, which the Python bindings of executorch need"


class LocalTarget:
    """Runs jobs on this machine.

    Args:
        child: command of the process that serves one request; it gets what to do and a path as its last arguments.
        roofs_child: command of the process that measures ceilings; it gets a path as its last argument.
        features: asks for the CPU's features in place of such a process.
    """

    def __init__(
        self,
        child: Sequence[str] = _CHILD,
        roofs_child: Sequence[str] = _ROOFS_CHILD,
        features: Callable[[], ProbeAnswer] | None = None,
    ) -> None:
        self._child, self._roofs_child, self._features = tuple(child), tuple(roofs_child), features

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return Target(LOCAL.name, "")

    def probe(self) -> ProbeAnswer:
        """The CPU's features as the runtime sees them; asked once of a process of its own, nothing is loaded here."""
        return self._probed

    @cached_property
    def _probed(self) -> ProbeAnswer:
        if self._features:
            return self._features()
        installed_runtime()
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            answer, log = Path(directory) / "probe.json", Path(directory) / LOG
            code = run_process([*self._child, "probe", str(answer)], log, _PROBE_SECONDS)
            return probe_response(code, answer, log, _PROBE_SECONDS)

    def environment(self) -> Environment:
        """The machine and its software."""
        return environment.capture(feature_groups(self.probe))

    def capabilities(self) -> Capabilities:
        """Whether the installed runtime writes traces."""
        runtime = installed_runtime()
        if runtime.traces:
            return Capabilities()
        return Capabilities(untraceable=f"executorch {runtime.version} writes no traces; {TRACES_SINCE} and later do")

    def conditions(self) -> Conditions:
        """The state of the machine now."""
        return environment.conditions()

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run a job in a process group of its own, which is ended when the time is up or the caller is interrupted."""
        answer = directory / "answer.json"
        request = directory / "request.json"
        asked = RunRequest(
            program=job.program,
            calls=job.calls,
            clear=job.clear,
            threads=job.threads,
            inferences=job.inferences,
            seed=job.seed,
            trace=str(directory / TRACE) if job.traced else None,
            outputs=str(directory / OUTPUTS),
            answer=str(answer),
            affinity=job.affinity,
        )
        log = directory / LOG
        try:
            request.write_bytes(msgspec.json.encode(asked))
            code = run_process([*self._child, "run", str(request)], log, job.timeout_seconds)
            return outcome_of(code, answer, log, job.timeout_seconds)
        except OSError as error:
            return JobOutcome(failure=Failure(FailureKind.STORAGE, f"{error.strerror}: {error.filename}"))
        finally:
            for file in (request, answer):
                file.unlink(missing_ok=True)

    def roofs(self, clear: list[str] | None, threads: int) -> PeakRates:
        """The ceilings of this machine with these features and threads; takes some four seconds."""
        return self._measured(PeakRatesRequest(clear, threads, ROOFS_SECONDS, _ANSWER))

    def identity(self) -> MachineIdentity:
        """What the ceilings of this machine depend on."""
        library = fingerprint(library_path(library_directory(), BACKEND))
        host, revision = environment.host(), environment.cpu_revision()
        return MachineIdentity.of(self.environment(), self.probe().fields, host, revision, library)

    def roofs_again(self, sample: PeakRates) -> PeakRates:
        """The same ceilings as these, measured again; takes some tenths of a second."""
        return self._measured(PeakRatesRequest(sample.cleared, sample.threads, DRIFT_SECONDS, _ANSWER, sample))

    def _measured(self, asked: PeakRatesRequest) -> PeakRates:
        with tempfile.TemporaryDirectory(prefix="opscope-") as work, storage_errors(Path(work)):
            request, answer, log = (Path(work) / name for name in ("request.json", _ANSWER, LOG))
            asked = msgspec.structs.replace(asked, answer=str(answer))
            request.write_bytes(msgspec.json.encode(asked))
            code = run_process([*self._roofs_child, str(request)], log, ROOFS_LIMIT)
            return peak_rates_response(code, asked, answer, log)


def probe_response(code: int | None, answer: Path, log: Path, timeout: float) -> ProbeAnswer:
    """The features that a process answered with; the arguments are those of :func:`opscope.hosts.process.read_answer`.

    Raises:
        FeatureError: it cannot prove the layout, or it did not answer.
        MissingDependencyError: something is not installed there.
    """
    kind: type[ProbeAnswer | ProbeRefusal] = ProbeRefusal if code == 1 else ProbeAnswer
    heard = read_answer(code, answer, log, timeout, kind)
    if isinstance(heard, ProbeRefusal):
        refusal = MissingDependencyError if heard.missing else FeatureError
        raise refusal(heard.problem, where=heard.where, hint=heard.hint)
    if isinstance(heard, Failure):
        raise FeatureError(f"the runtime cannot tell this CPU's features: {heard.message}", hint=WITHOUT_SWITCH)
    return heard


def peak_rates_response(code: int | None, asked: PeakRatesRequest, answer: Path, log: Path) -> PeakRates:
    """The ceilings that a process answered with.

    Raises:
        FeatureError: it refused, or did something else than it was asked.
        RunError: it did not answer.
    """
    if code is None:
        raise RunError(f"measuring ceilings was ended after {ROOFS_LIMIT:.0f} s")
    if code < 0 or not answer.exists():
        raise RunError(f"measuring ceilings failed: {unanswered(code, log).message}")
    try:
        heard = msgspec.json.decode(answer.read_bytes(), type=PeakRatesResponse)
    except msgspec.MsgspecError as error:
        raise RunError(f"measuring ceilings failed: the answer is damaged: {error}") from None
    if heard.roofs is None or (heard.mask is None and asked.clear is not None):
        kind = FeatureError if heard.kind == "mask" else RunError
        raise kind(f"measuring ceilings failed: {heard.error or 'no result'}")
    done = (heard.mask and heard.mask.cleared, heard.roofs.cleared, heard.roofs.threads)
    if done != (asked.clear, asked.clear or [], asked.threads):
        raise FeatureError("ceilings were measured with other features or threads than asked")
    return heard.roofs


def outcome_of(code: int | None, answer: Path, log: Path, timeout: float) -> JobOutcome:
    """What became of a repetition; the arguments are those of :func:`opscope.hosts.process.read_answer`."""
    heard = read_answer(code, answer, log, timeout, RunAnswer)
    if isinstance(heard, Failure):
        return JobOutcome(failure=heard)
    if heard.measurement is None or code:
        message = f"{heard.error or 'no result'}{log_tail(log) if heard.kind == 'exit' else ''}"
        return JobOutcome(failure=Failure(FailureKind(heard.kind), message, exit_code=code))
    return JobOutcome(measurement=heard.measurement)
