"""How a model is measured when nobody says otherwise, each value said once.

Settings, configurations and their templates, the command line and the reference take them from here. Help texts are
made of it, so it imports nothing of ours. What a value may be is said by the types in
:mod:`opscope.experiment.planned`.
"""

from __future__ import annotations

from typing import Final

DTYPE: Final = "fp32"
THREADS = 1
ROUNDS = 10
RUNS = 50
WARMUP = 5
SEED = 0
TIMEOUT_SECONDS = 600.0
UNTRACED = True
CEILINGS: bool | None = None
"""Ceilings that were kept where a short probe agrees with them, else measured."""
MIN_SECONDS = 0.0
UNTIL: float | None = None
MORE_ROUNDS = 4
"""How many times the rounds may become where rounds are added and no limit is given."""
COOLDOWN_SECONDS = 0.0
MAX_TEMPERATURE: float | None = None
OVERSUBSCRIBE = False
SWITCH: Final = "auto"
"""The first mechanism that can be proved."""
