"""The runtimes that there are: what a program or a format belongs to. Nothing else names one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.runtimes.executorch.runtime import ExecuTorch
from opscope.runtimes.litert.runtime import LiteRt
from opscope.runtimes.onnxruntime.runtime import OnnxRuntime

if TYPE_CHECKING:
    from opscope.runtimes.runtime import Runtime

EXPORTER: Runtime = ExecuTorch()
"""Runs the programs that no other runtime claims, and what is exported."""
RUNTIMES: list[Runtime] = [EXPORTER, LiteRt(), OnnxRuntime()]
"""In the order in which they are asked and told of."""


def runtime_of(model: str | Path) -> Runtime:
    """The runtime of a program, or of a model that is to be exported."""
    place = Path(model)
    return next((one for one in RUNTIMES if one is not EXPORTER and one.fits(place)), EXPORTER)
