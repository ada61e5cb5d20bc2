"""What was recorded of kernels: calls that a counter counted, and functions that a sampling profiler saw, by thread.

Samples are not calls. A function with samples ran; one without may have run between two samples.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.kernels.symbols import parse_symbol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class OperatorCalls(msgspec.Struct, frozen=True):
    """Calls of kernels from within one operator of a delegate."""

    delegate: int  # in the order in which the process first called them, from 0
    # of the operator in the delegate, from 0; null for what ran in it while no operator was told apart
    position: int | None
    runs: int  # how often the operator ended
    calls: dict[str, int]  # by the name of the kernel; those that were not called are left out


class KernelCalls(msgspec.Struct, frozen=True):
    """Exact numbers of calls in one process."""

    kernels: tuple[str, ...]  # that were counted; one that has no calls anywhere did not run
    outside: dict[str, int]  # calls outside of delegates, such as packing weights while a program is loaded
    operators: tuple[OperatorCalls, ...]  # in the order in which they first ran
    delegate_calls: int  # how often any delegate was called
    problem: str | None = None  # why calls cannot be given to operators, as one sentence; null when they can

    def totals(self) -> dict[str, int]:
        """Calls of every kernel that was called, in the order of their names."""
        return added([self.outside, *(operator.calls for operator in self.operators)])

    def positions(self) -> dict[int, list[OperatorCalls]]:
        """Operators of each delegate in the order of their positions."""
        found: dict[int, list[OperatorCalls]] = {}
        for operator in self.operators:
            if operator.position is not None:
                found.setdefault(operator.delegate, []).append(operator)
        return {
            number: sorted(operator_calls, key=lambda each: each.position or 0)
            for number, operator_calls in sorted(found.items())
        }


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums by name, in the order of the names."""
    total = Counter[str]()
    for own in counts:
        total.update(own)
    return dict(sorted(total.items()))


class StackFrame(NamedTuple):
    """One function of a stack, and the library it is in; null where it is not known."""

    function: str | None
    library: str | None


class SampledFunction(msgspec.Struct, frozen=True):
    """A function and what fell into it."""

    event: str  # what the samples count, such as `cycles`
    thread: str  # name and number of the thread
    function: str | None  # where samples fell; null where the profiler knows no name
    library: str | None  # of the function, likewise
    # the innermost kernel of the stack, the function itself or one that called it; null where there is none
    kernel: str | None
    samples: int | None  # number of them; null where the profiler tells only shares
    weight: float  # what the samples stand for, in the unit of the recording


class Recording(msgspec.Struct, frozen=True):
    """All samples of a recording, added up."""

    format: str  # of the file: `perf script`, `simpleperf report`, `xctrace`, `sample`
    unit: str  # of the weights: `events`, `ns`, `samples` or `percent`
    functions: tuple[SampledFunction, ...]  # heaviest first

    @property
    def weight(self) -> float:
        """Of all samples."""
        return sum(row.weight for row in self.functions)

    @property
    def nameless(self) -> float:
        """Share of the weight that fell into functions without a name."""
        return sum(row.weight for row in self.functions if row.function is None) / self.weight if self.weight else 0.0


class Tally:
    """Adds samples up."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str | None, str | None, str | None], tuple[int | None, float]] = {}

    def add(
        self, event: str, thread: str, stack: Sequence[StackFrame], weight: float = 1.0, samples: int | None = 1
    ) -> None:
        """Add samples."""
        leaf = stack[0] if stack else StackFrame(None, None)
        kernels = (parse_symbol(frame.function) for frame in stack if frame.function)
        kernel = next((symbol.name for symbol in kernels if symbol), None)
        key = (event, thread, leaf.function, leaf.library, kernel)
        count, total = self._rows.get(key, (0, 0.0))
        self._rows[key] = (None if samples is None or count is None else count + samples, total + weight)

    def recording(self, form: str, unit: str) -> Recording:
        """Everything that was added."""
        rows = [SampledFunction(*key, *value) for key, value in self._rows.items()]
        return Recording(form, unit, tuple(sorted(rows, key=lambda row: -row.weight)))
