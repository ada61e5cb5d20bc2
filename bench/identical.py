"""Real experiments of identical variants, kept in ``bench/data``: 60 under each of five conditions, in order.

They were run in November 2026 by opscope's own engine on a virtual machine with two CPUs that other work was using
(load 1.7 to 4.7): 10 interleaved rounds of 20 untraced inferences, whose order was drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DATA = Path(__file__).parent / "data" / "identical_variants.npz"
_UNIT_NS = 100.0


def read_runs() -> dict[str, NDArray[np.float64]]:
    """Return durations in ns by condition, of the shape (experiments, sides, rounds, inferences).

    The file holds units of 100 ns as 32-bit numbers, the bytes of one weight together, so that it packs well.
    """
    runs = {}
    with np.load(_DATA) as file:
        for key in (name for name in file.files if name.endswith("/units")):
            planes = np.ascontiguousarray(np.moveaxis(file[key], 0, -1))
            runs[key.removesuffix("/units")] = planes.view("<u4")[..., 0] * _UNIT_NS
    return runs
