"""Where the warm-up of a series of inferences ends, judged by the series itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opscope.core.stats.shape import course

if TYPE_CHECKING:
    from collections.abc import Sequence


def detect_warmup(samples: Sequence[float]) -> int:
    """Number of leading samples that are slower than the series later is; at most half of them.

    A few slow first inferences are found as what stands out from the second half, longer warm-up as levels that the
    series leaves; see ``opscope.core.stats.shape``.
    """
    return course(np.asarray(samples, np.float64)).warmup
