"""The answer of the process that measures ceilings, and a hash of the code that measures them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.bundle.manifest import Failure
from opscope.core.errors import FeatureError, RunError
from opscope.experiment.protocol import CeilingsAnswer
from opscope.hosts.process import read_answer
from opscope.machine.ceilings import peak_rates

if TYPE_CHECKING:
    from opscope.experiment.protocol import CeilingsRequest
    from opscope.program.ceilings import Ceilings

CEILINGS_CHILD = "opscope.runtimes.ceilings.child"
"""Name of the module that measures ceilings; its argument is ``REQUEST``."""
CEILINGS_SECONDS, CEILINGS_LIMIT = 4.0, 240.0
"""Seconds that measuring should take, and the limit after which it is ended, which includes building the program."""
DRIFT_SECONDS = 0.5
"""Seconds that a short check of stored ceilings should take."""
_DIGITS = 16


def ceilings_response(code: int | None, request: CeilingsRequest, answer: Path, log: Path) -> Ceilings:
    """Return the ceilings that a process answered with.

    Raises:
        FeatureError: they are of other features or threads than requested.
        RunError: the process crashed, hung, or says why there are none.
    """
    if code is None:
        raise RunError(f"measuring ceilings timed out after {CEILINGS_LIMIT:.0f} s")
    response = read_answer(code, answer, log, CEILINGS_LIMIT, CeilingsAnswer)
    if isinstance(response, Failure):
        raise RunError(f"measuring ceilings failed: {response.message}")
    ceilings = response.result
    if ceilings is None:
        kind = FeatureError if response.kind == "mask" else RunError
        raise kind(f"measuring ceilings failed: {response.error or 'no result'}")
    if (ceilings.cleared, ceilings.threads) != (request.cleared, request.threads):
        raise FeatureError("ceilings were measured with features or threads other than requested")
    return ceilings


@cache
def probes_version() -> str:
    """Return a hash of the code that measures ceilings: a change in any of it may change the figures."""
    texts = [Path(peak_rates.__file__).read_text(encoding="utf-8"), peak_rates.probe_source()]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:_DIGITS]
