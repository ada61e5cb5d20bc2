"""The process that measures the ceilings of the machine where it runs, with the argument ``REQUEST``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.experiment.protocol import CeilingsRequest
from opscope.machine.ceilings.peak_rates import measure_peak_rates
from opscope.runtimes.child import answer_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.ceilings import Ceilings


def main(arguments: Sequence[str]) -> int:
    """Answer one request to measure ceilings; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, _measure_ceilings)


def _measure_ceilings(request: CeilingsRequest, began: int) -> Ceilings:  # noqa: ARG001 - of the frame
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return measure_peak_rates(request.cleared, request.threads, request.seconds, memory, request.again)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
