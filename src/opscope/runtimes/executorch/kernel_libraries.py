"""Find operators and backends that a build of the runtime can call, by reading its libraries. Nothing is loaded.

A library registers an operator or a backend under its name, which therefore stands in the file: a name that
stands in none of the libraries is registered by none of them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.program.structure.plan import InstructionKind
from opscope.readers.compressed import mapped_file
from opscope.runtimes.executorch.pte import read_executable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class ShippedKernels(NamedTuple):
    """Kernels that the package ships and that a program has to ask for."""

    namespace: str  # of their operators
    module: str  # whose import registers them with the Python bindings
    library: str | None  # that registers them with a C++ program, without its suffix; None: there is none


EXTRA_KERNELS = (
    ShippedKernels("quantized_decomposed", "executorch.kernels.quantized", "libexecutorch_kernels_quantized"),
    ShippedKernels("llama", "executorch.extension.llm.custom_ops.custom_ops", None),
)
"""Kernel libraries beyond those that the Python bindings and C++ programs always have."""


def extra_kernels(program: Path) -> list[ShippedKernels]:
    """Return the libraries of further kernels whose operators a program calls."""
    spaces = {name.partition("::")[0] for name in _called_names(program)[0]}
    return [library for library in EXTRA_KERNELS if library.namespace in spaces]


def _find_unregistered(program: Path, libraries: Iterable[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return operators and backends that a program calls but no library registers, in the program's order."""
    operators, backends = _called_names(program)
    missing = {*operators, *backends}
    for library in libraries:
        if missing and library.is_file():
            content = bytes(mapped_file(library))
            missing = {name for name in missing if f"{name}\0".encode() not in content}
    return tuple(name for name in operators if name in missing), tuple(name for name in backends if name in missing)


def check_registered(program: Path, libraries: Sequence[Path], where: str) -> None:
    """Raise MissingDependencyError for a program that a build cannot run, with the names of what is missing."""
    operators, backends = _find_unregistered(program, libraries)
    if backends:
        hint = (
            "export the program for XNNPACK (opscope export), or use an executor_runner built with that backend: "
            "--target runner:PATH"
        )
        raise MissingDependencyError(
            f"the runtime of {where} has no backend {_list_names(backends)}, which the program calls",
            where=program,
            hint=hint,
        )
    if operators:
        problem = f"the runtime of {where} does not register {_list_names(operators)}, which the program calls"
        raise MissingDependencyError(problem, where=program, hint=_how_to_get(operators))


def _how_to_get(operators: Sequence[str]) -> str:
    shipped = {library.namespace for library in EXTRA_KERNELS}
    if all(name.partition("::")[0] in shipped for name in operators):
        return "use the Python bindings, which have these operators: --target local"
    return (
        "build executor_runner with the library for these operators (--target runner:PATH), or export the program "
        "without them"
    )


def _list_names(names: Sequence[str]) -> str:
    most = 5
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _called_names(program: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _read_called_names(str(program), program.stat().st_mtime_ns) if program.exists() else ((), ())


@lru_cache(maxsize=4)
def _read_called_names(program: str, _changed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return operators and backends that a program calls, each once; a file that changed is read again."""
    plans = read_executable(Path(program)).plans

    def of(kind: InstructionKind) -> Iterator[str]:
        return (
            plan.called(step) for plan in plans for chain in plan.chains for step in chain.steps if step.kind is kind
        )

    return (
        tuple(dict.fromkeys(of(InstructionKind.KERNEL))),
        tuple(dict.fromkeys(of(InstructionKind.DELEGATE))),
    )
