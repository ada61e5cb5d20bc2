"""Where a model is run, by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.errors import MissingDependencyError, UsageError, did_you_mean

if TYPE_CHECKING:
    from opscope.bundle.manifest import Target
    from opscope.run.target import RunTarget

AUTO, LOCAL, NATIVE, RUNNER = "auto", "local", "native", "runner"
TARGETS = (AUTO, LOCAL, NATIVE, RUNNER)
_LATER = ("ssh", "adb", "qemu-aarch64")


def target_named(name: str) -> RunTarget:
    """The target of a name.

    Args:
        name: ``native`` for our own runner, built here; ``local`` for the runtime's Python bindings; ``auto`` for the
            first where a compiler is there and else the second; ``runner:PATH`` for an executor_runner of the user's.

    Raises:
        UsageError: there is no such target, or a path is missing.
        MissingDependencyError: ``native`` without a compiler or runtime.
        NotFoundError: the runner does not exist.
    """
    kind, _, address = name.partition(":")
    if kind == RUNNER and address:
        from opscope.run.executor_runner import ExecutorRunnerTarget

        return ExecutorRunnerTarget(Path(address))
    if kind in _LATER:
        raise UsageError(f"the target {name} is not available yet", where="--target", hint=f"available: {_listed()}")
    if name == RUNNER:
        raise UsageError("which runner?", where="--target", hint="name it: runner:PATH")
    if name not in TARGETS:
        raise UsageError(f"no target {name!r}", where="--target", hint=did_you_mean(name, (*TARGETS, *_LATER)))
    return _here(name)


def recorded_target(target: Target) -> RunTarget:
    """The target that a manifest tells of.

    Raises:
        UsageError: this version has no such target.
        MissingDependencyError: it is not there any more.
    """
    return target_named(f"{target.kind}:{target.address}" if target.address else target.kind)


def _listed() -> str:
    return ", ".join(f"{name}:PATH" if name == RUNNER else name for name in TARGETS)


def _here(name: str) -> RunTarget:
    from opscope.run.local import LocalTarget
    from opscope.run.native import NativeTarget

    if name == LOCAL:
        return LocalTarget()
    try:
        return NativeTarget()
    except MissingDependencyError:
        if name == NATIVE:
            raise
        return LocalTarget()
