"""Builds the native runner, which needs no torch; exits with 1, and says why, where it cannot be built."""

from __future__ import annotations

import sys

from opscope.core.errors import OpscopeError
from opscope.runtimes.executorch.runners.native import build_runner

try:
    build_runner()
except OpscopeError as error:
    sys.exit(f"{error.problem}; models run from Python here, with torch (docs/how-to/install-without-cuda.md)")
