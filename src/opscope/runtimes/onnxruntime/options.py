"""Options of a session: those that opscope sets itself, and entries that ONNX Runtime knows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU = "CPUExecutionProvider"
LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
"""Levels of graph optimisation, with their names in the Python package."""
_NUMBERS = {"none": 0, "basic": 1, "extended": 2, "layout": 3, "all": 99}
LEVEL, INTER_OP_THREADS, EXECUTION_MODE, PROVIDERS = (
    "graph_optimization_level",
    "inter_op_num_threads",
    "execution_mode",
    "providers",
)
OWN = (LEVEL, INTER_OP_THREADS, EXECUTION_MODE, PROVIDERS)
_MODES = ("sequential", "parallel")
_MOST_THREADS = 1024


class SessionChoice(NamedTuple):
    """Settings of a session."""

    level: str  # of the optimisation of the graph
    inter_op_threads: int  # that run nodes beside each other
    parallel: bool  # nodes may run beside each other
    providers: tuple[str, ...]  # of kernels, the preferred one first
    entries: dict[str, str]  # of the session's configuration, as `mlas.disable_kleidiai`

    @property
    def level_name(self) -> str:
        """Name of the optimisation level in the Python package."""
        return LEVELS[self.level]

    @property
    def level_number(self) -> int:
        """Number of the optimisation level in the C API."""
        return _NUMBERS[self.level]


def session_choice(options: Mapping[str, str] | None) -> SessionChoice:
    """Return the settings that options ask for. Raises UsageError if one is unknown or has an unknown value."""
    remaining = dict(options or {})
    level, mode = remaining.pop(LEVEL, "all"), remaining.pop(EXECUTION_MODE, _MODES[0])
    threads, providers = remaining.pop(INTER_OP_THREADS, "1"), remaining.pop(PROVIDERS, CPU)
    if level not in LEVELS:
        raise _unknown_value_error(LEVEL, level, tuple(LEVELS))
    if mode not in _MODES:
        raise _unknown_value_error(EXECUTION_MODE, mode, _MODES)
    if not (threads.isdecimal() and 1 <= int(threads) <= _MOST_THREADS):
        raise UsageError(f"{threads!r} is not a number of threads", where=INTER_OP_THREADS, hint="for example 2")
    for name in remaining:
        if "." not in name:
            hint = did_you_mean(name, OWN) or "session entries have names with a dot, such as mlas.disable_kleidiai"
            raise UsageError(f"unknown session option {name!r}", where="session_options", hint=hint)
    chosen = tuple(name.strip() for name in providers.split(",") if name.strip())
    return SessionChoice(level, int(threads), mode == _MODES[1], chosen or (CPU,), remaining)


def _unknown_value_error(name: str, value: str, allowed: tuple[str, ...]) -> UsageError:
    return UsageError(f"{value!r} is not allowed; expected {', '.join(allowed)}", where=name)
