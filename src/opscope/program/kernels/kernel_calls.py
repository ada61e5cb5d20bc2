"""Counted calls of kernels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
        """Return the calls of every kernel that was called, in the order of their names."""
        return sum_calls([self.outside, *(operator.calls for operator in self.operators)])

    def positions(self) -> dict[int, list[OperatorCalls]]:
        """Return the operators of each delegate in the order of their positions."""
        by_delegate: dict[int, list[OperatorCalls]] = {}
        for operator in self.operators:
            if operator.position is not None:
                by_delegate.setdefault(operator.delegate, []).append(operator)
        return {
            number: sorted(operator_calls, key=lambda calls: calls.position or 0)
            for number, operator_calls in sorted(by_delegate.items())
        }


def sum_calls(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up calls by the name of the kernel; return them in the order of the names."""
    total = Counter[str]()
    for calls in counts:
        total.update(calls)
    return dict(sorted(total.items()))
