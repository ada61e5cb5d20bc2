"""LiteRT's Interpreter on this machine, of whatever release is installed."""

from __future__ import annotations

import re
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import FailureKind
from opscope.core.errors import MissingDependencyError
from opscope.core.files import storage_errors
from opscope.experiment.protocol import Job
from opscope.hosts.process import LAST_WORDS
from opscope.runtimes.litert.installed import has_compiled_models, installed_interpreter
from opscope.runtimes.litert.interpreter.needed import is_settled, unsupported
from opscope.runtimes.litert.interpreter.recorder import recorder_library
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.tflite import read_tflite
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.package_target import PackageModules, PackageTarget

if TYPE_CHECKING:
    from opscope.bundle.manifest import Mechanism
    from opscope.experiment.target import Capabilities, RunTarget, SwitchOffer
    from opscope.machine.ceilings_cache import MachineIdentity
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.runtime import AskedCalls

MODULES = PackageModules(
    "opscope.runtimes.litert.interpreter.child",
    "opscope.runtimes.litert.ceilings.child",
    frozenset({"affinity", "calls", "inputs", "values", "delegate"}),
)


class InterpreterTarget(PackageTarget):
    """Runs .tflite models in the Interpreter.

    Args:
        reason: why it runs them, as one sentence.
        peaks: measures the ceilings of the release; None where none is known to.
    """

    def __init__(self, reason: str, peaks: RunTarget | None) -> None:
        found = installed_interpreter()
        super().__init__(MODULES, TRACE, lambda: found.library, lambda: {found.package: found.version}, reason)
        self._peaks = peaks

    def capabilities(self) -> Capabilities:
        """Operators are timed by a library that is built here."""
        untraceable = None
        try:
            _ = self._built
        except MissingDependencyError as error:
            untraceable = f"LiteRT's Interpreter has no profiler, so operators cannot be timed: {error.problem}"
        return super().capabilities()._replace(untraceable=untraceable)

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """What a mechanism can do for the library, which in some releases holds much more than the runtime."""
        found = super().offer(mechanism)
        with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
            self._switch().prepared_with(mechanism, [], Path(directory))
        return found

    @cached_property
    def _built(self) -> str:
        return str(recorder_library())

    def _recorder(self, job: Job) -> str | None:
        return self._built if job.traced else None

    def ceilings(self, clear: list[str] | None, threads: int) -> Ceilings | None:  # type: ignore[override]  # may lack
        """Those of the same release, through its compiled-model API."""
        return self._peaks.ceilings(clear, threads) if self._peaks else None

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """Likewise."""
        return self._peaks.ceilings_again(sample) if self._peaks else super().ceilings_again(sample)

    def identity(self) -> MachineIdentity | None:  # type: ignore[override]  # likewise
        """Likewise."""
        return self._peaks.identity() if self._peaks else None


def interpreter_here(why: str) -> InterpreterTarget:
    """The Interpreter that is installed; ``why`` says what the compiled-model API lacks."""
    peaks = litert_here() if has_compiled_models() else None
    return InterpreterTarget(f"LiteRT's Interpreter ran it from Python: {why}", peaks)


def interpreter_needed(program: Path, asked: AskedCalls) -> str | None:
    """What the compiled-model API does not do with a program, as a sentence; None for one that it runs.

    A program whose file does not show it is tried.
    """
    model = read_tflite(program)
    known = unsupported(model)
    return known if known or is_settled(model) or not has_compiled_models() else _refusal(program, asked)


def _refusal(program: Path, asked: AskedCalls) -> str | None:
    """Why calls fail through the compiled-model API, and not in the Interpreter.

    It may refuse the second one: the first has shown then that sizes of outputs change.
    """
    calls, inputs = tuple(asked.calls), tuple(asked.inputs)
    count = 2 * max(1, len(calls))
    job = Job(str(program), None, 1, count, 0, _SECONDS, traced=False, calls=calls, inputs=inputs)
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory, storage_errors(Path(directory)):
        failed = litert_here().execute(job, Path(directory)).failure
        if failed is None or failed.kind not in {FailureKind.EXIT, FailureKind.SIGNAL}:
            return None
        if interpreter_here("").execute(job, Path(directory)).failure is not None:
            return None
    if failed.signal:
        return f"the compiled-model API crashes on it ({failed.signal})"
    words = failed.message.partition(LAST_WORDS)[2] or failed.message
    return f"the compiled-model API rejects it ({_PLACE.sub('', words)})"


_SECONDS = 600.0
_PLACE = re.compile(r"^ERROR: (\[[^]]*\] )?")
