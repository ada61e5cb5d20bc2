"""The time by which an operator is held against ceilings: what it took where other work disturbed least."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.core.table.places import by_operator, operator_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.analysis.roofline.operator_roof import OperatorWork
    from opscope.core.table.places import Located

    Floats: TypeAlias = NDArray[np.float64]

_QUARTILE = 0.25


def undisturbed(works: Sequence[OperatorWork], rows: Sequence[Located], times: Floats) -> list[OperatorWork]:
    """The same work with times of undisturbed processes: the lower quartile over processes, never above the mean.

    Ceilings are the best of many runs. A mean over processes of which some were disturbed would call operators
    inefficient that ran at their ceiling whenever they were left alone.

    Args:
        works: of some of the operators.
        rows: all operators.
        times: mean self time of each of them in each process; shape (processes, operators).
    """
    quartile = np.quantile(times, _QUARTILE, axis=0).tolist()
    numbers = {id(row): number for number, row in enumerate(rows)}
    least = {key: quartile[numbers[id(row)]] for key, row in by_operator(rows).items()}
    return [_least(work, least.get(key) if (key := operator_key(work)) else None) for work in works]


def _least(work: OperatorWork, quartile: float | None) -> OperatorWork:
    held = work.time_ns if quartile is None else min(work.time_ns, quartile)
    return msgspec.structs.replace(work, undisturbed_ns=held)
