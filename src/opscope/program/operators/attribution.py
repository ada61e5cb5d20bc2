"""How it is known what an operator is."""

from __future__ import annotations

import enum


class Attribution(str, enum.Enum):
    """How it is known what an operator is.

    ``exact``: a replay of XNNPACK's rewrites foretold every event of the call. ``aligned``: events and nodes fit
    together in one way by kind and order. ``ambiguous``: they fit in several ways. ``name``: the recorded name is all
    there is.
    """

    EXACT = "exact"
    ALIGNED = "aligned"
    AMBIGUOUS = "ambiguous"
    NAME = "name"
