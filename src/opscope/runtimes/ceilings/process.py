"""Measuring ceilings in a process: what it measures, which code its figures are of, and what is made of its answer."""

from __future__ import annotations

import hashlib
import platform
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from opscope.bundle.manifest import Failure
from opscope.core.errors import FeatureError, RunError
from opscope.experiment.protocol import CeilingsAnswer
from opscope.hosts.process import read_answer
from opscope.machine import isa
from opscope.program.ceilings import Ceilings, DispatchCost, ElementCeiling, MacCeiling, MemoryCeiling
from opscope.runtimes.ceilings.probes import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opscope.experiment.protocol import CeilingsRequest
    from opscope.runtimes.ceilings.probes import ProbeCandidate, ProbeGraphs, ProbeRunner

GraphT = TypeVar("GraphT")

# Starting and building the graphs adds a second; a slow processor may take five times as long.
CEILINGS_SECONDS, CEILINGS_LIMIT = 2.5, 120.0
# Of trying some of them again: a share of it for each that lets it run as often as in the whole measurement.
DRIFT_SECONDS = 0.25
_DIGITS = 16


def measured_ceilings(
    request: CeilingsRequest,
    graphs: ProbeGraphs[GraphT],
    compiled: Callable[[ProbeCandidate[GraphT]], ProbeRunner],
    versions: Mapping[str, str],
    began: int,
) -> Ceilings:
    """Measure, in this process; the versions are those of the packages whose library it is."""
    measuring, computing = time.perf_counter(), time.thread_time()
    measured = measure(graphs.probes, compiled, request.seconds, time.perf_counter_ns, graphs.patience)
    share = (time.thread_time() - computing) / (time.perf_counter() - measuring)
    return Ceilings(
        arch=isa.architecture(platform.machine()),
        cleared=request.variant.clear or [],
        threads=graphs.threads,
        seconds=round((time.perf_counter_ns() - began) / 1e9, 3),
        versions=dict(versions),
        compute=[ceiling for ceiling in measured if isinstance(ceiling, MacCeiling)],
        elements=[ceiling for ceiling in measured if isinstance(ceiling, ElementCeiling)],
        memory=[ceiling for ceiling in measured if isinstance(ceiling, MemoryCeiling)],
        dispatch=[ceiling for ceiling in measured if isinstance(ceiling, DispatchCost)],
        cpu_share=round(min(share, 1.0), 3),
    )


def ceilings_response(code: int | None, request: CeilingsRequest, answer: Path, log: Path) -> Ceilings:
    """The ceilings that a process answered with."""
    if code is None:
        raise RunError(f"measuring ceilings timed out after {CEILINGS_LIMIT:.0f} s")
    response = read_answer(code, answer, log, CEILINGS_LIMIT, CeilingsAnswer)
    if isinstance(response, Failure):
        raise RunError(f"measuring ceilings failed: {response.message}")
    ceilings, mask = response.result or (None, None)
    if ceilings is None or (mask is None and request.variant.clear is not None):
        kind = FeatureError if response.kind == "mask" else RunError
        raise kind(f"measuring ceilings failed: {response.error or 'no result'}")
    done = (mask and mask.cleared, ceilings.cleared, ceilings.threads)
    if done != (request.variant.clear, request.variant.clear or [], request.threads):
        raise FeatureError("ceilings were measured with features or threads other than requested")
    return ceilings


@cache
def probes_version() -> str:
    """A hash of the code that measures ceilings, of every runtime: a change in any of it may change the figures."""
    return hashlib.sha256(b"\0".join(module.read_bytes() for module in measuring_modules())).hexdigest()[:_DIGITS]


def measuring_modules() -> list[Path]:
    """Files of that code: of a runtime its module of that name, or those of its folder."""
    room = Path(__file__).parent
    return sorted([*room.parent.glob(f"*/{room.name}.py"), *room.parent.glob(f"**/{room.name}/*.py")])
