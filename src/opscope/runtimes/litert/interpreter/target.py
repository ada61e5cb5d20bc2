"""LiteRT's Interpreter on this machine, of whatever release is installed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from opscope.core.errors import MissingDependencyError
from opscope.runtimes.litert.installed import has_compiled_models, installed_interpreter
from opscope.runtimes.litert.interpreter.recorder import recorder_library
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.litert.trace import TRACE
from opscope.runtimes.package_target import PackageModules, PackageTarget

if TYPE_CHECKING:
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import Capabilities, RunTarget
    from opscope.machine.ceilings_cache import MachineIdentity
    from opscope.program.ceilings.ceilings import Ceilings

_MODULES = PackageModules(
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
        super().__init__(_MODULES, TRACE, lambda: found.library, lambda: {found.package: found.version}, reason)
        self._peaks = peaks

    def capabilities(self) -> Capabilities:
        """Operators are timed by a library that is built here."""
        untraceable = None
        try:
            _ = self._built
        except MissingDependencyError as error:
            untraceable = f"LiteRT's Interpreter has no profiler, and operators cannot be timed: {error.problem}"
        return super().capabilities()._replace(untraceable=untraceable)

    @cached_property
    def _built(self) -> str:
        return str(recorder_library())

    def _recorder(self, job: Job) -> str | None:
        return self._built if job.traced else None

    def ceilings(self, clear: list[str] | None, threads: int) -> Ceilings | None:  # type: ignore[override]  # may lack
        """Those of the same release, through its compiled-model API."""
        return self._peaks.ceilings(clear, threads) if self._peaks else None

    def identity(self) -> MachineIdentity | None:  # type: ignore[override]  # likewise
        """Likewise."""
        return self._peaks.identity() if self._peaks else None


def interpreter_here(why: str) -> InterpreterTarget:
    """The Interpreter that is installed; ``why`` says what the compiled-model API lacks."""
    return InterpreterTarget(
        f"LiteRT's Interpreter ran it from Python: {why}", litert_here() if has_compiled_models() else None
    )
