"""Where the warm-up of a series of inferences ends, judged by the series itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHORTEST = 4
_TOLERANCE = 0.05
_MAD_TO_SIGMA = 1.4826
_SIGMAS = 4


def detect_warmup(samples: Sequence[float]) -> int:
    """Number of leading samples that are slower than the series later is.

    The second half of the series is taken as settled. Leading samples above its median by more than four robust
    standard deviations (and by more than 5 %) are warm-up, up to the first one that is not. At most half of the
    series is warm-up; of fewer than four samples, only the first is, when there is more than one.

    Args:
        samples: latencies of one process in the order they were run.
    """
    values = np.asarray(samples, np.float64)
    if len(values) < _SHORTEST:
        return int(len(values) > 1)
    settled = values[len(values) // 2 :]
    median = float(np.median(settled))
    spread = _SIGMAS * _MAD_TO_SIGMA * float(np.median(np.abs(settled - median)))
    slow = values[: len(values) // 2] > median + max(spread, _TOLERANCE * median)
    return int(np.argmin(slow)) if not slow.all() else len(slow)
