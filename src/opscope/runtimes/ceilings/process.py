"""The frame of a process that measures ceilings, which code its figures are of, and what is made of its answer."""

from __future__ import annotations

import hashlib
import platform
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from opscope.bundle.manifest import Failure
from opscope.core.errors import FeatureError, OpscopeError, RunError, StorageError
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent
from opscope.experiment.protocol import CeilingsRequest, CeilingsResponse
from opscope.hosts.process import read_answer
from opscope.machine import isa
from opscope.program.ceilings.ceilings import Ceilings, DispatchCost, ElementCeiling, MacCeiling, MemoryCeiling
from opscope.program.ceilings.drift import unmeasured
from opscope.runtimes.ceilings.sampler import PATIENCE, Probe, RefusedError, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.runtimes.ceilings.sampler import ProbeCandidate, ProbeRunner


GraphT = TypeVar("GraphT")

# Starting and building the graphs adds a second; a slow processor may take five times as long.
CEILINGS_SECONDS, CEILINGS_LIMIT = 2.5, 120.0
# Of trying some of them again: a share of it for each that lets it run as often as in the whole measurement.
DRIFT_SECONDS = 0.25
_DIGITS = 16


def answer_ceilings(path: Path, serve: Callable[[CeilingsRequest], CeilingsResponse]) -> int:
    """Answer a request; the answer is a file, the exit code tells whether it holds ceilings.

    When not even the answer can be written, the exit code is that of a StorageError.
    """
    end_with_parent()
    request = msgspec.json.decode(path.read_bytes(), type=CeilingsRequest)
    answer = _guarded(request, serve)
    try:
        write_atomically(Path(request.answer), msgspec.json.encode(answer))
    except StorageError as error:
        return error.exit_code
    return 0 if answer.error is None else 1


def _guarded(request: CeilingsRequest, serve: Callable[[CeilingsRequest], CeilingsResponse]) -> CeilingsResponse:
    try:
        return serve(request)
    except FeatureError as error:
        return CeilingsResponse(error=str(error), kind="mask")
    except (OpscopeError, RefusedError, OSError, MemoryError, ValueError) as error:
        return CeilingsResponse(error=f"{type(error).__name__}: {error}")


def probes_again(again: Ceilings, probes: Sequence[Probe[GraphT]]) -> list[Probe[GraphT]]:
    """The probes of some ceilings, each with the one candidate that was the fastest before."""
    wanted = [unmeasured(ceiling) for ceiling in again.all()]
    same = [Probe([one for one in probe.candidates if one.ceiling in wanted], probe.meant) for probe in probes]
    return [probe for probe in same if probe.candidates]


class MeasuredRuntime(NamedTuple):
    """What is measured."""

    threads: int  # of the runtime, read back where it tells
    versions: Mapping[str, str]  # of its packages
    patience: int = PATIENCE  # as of measure


def measured_ceilings(
    request: CeilingsRequest,
    runtime: MeasuredRuntime,
    probes: Sequence[Probe[GraphT]],
    compiled: Callable[[ProbeCandidate[GraphT]], ProbeRunner],
    began: float,
) -> Ceilings:
    """Measure, in this process."""
    measuring, computing = time.perf_counter(), time.thread_time()
    found = measure(probes, compiled, request.seconds, time.perf_counter_ns, runtime.patience)
    share = (time.thread_time() - computing) / (time.perf_counter() - measuring)
    return Ceilings(
        arch=isa.architecture(platform.machine()),
        cleared=request.clear or [],
        threads=runtime.threads,
        seconds=round(time.perf_counter() - began, 3),
        versions=dict(runtime.versions),
        compute=[ceiling for ceiling in found if isinstance(ceiling, MacCeiling)],
        elements=[ceiling for ceiling in found if isinstance(ceiling, ElementCeiling)],
        memory=[ceiling for ceiling in found if isinstance(ceiling, MemoryCeiling)],
        dispatch=[ceiling for ceiling in found if isinstance(ceiling, DispatchCost)],
        cpu_share=round(min(share, 1.0), 3),
    )


def ceilings_response(code: int | None, asked: CeilingsRequest, answer: Path, log: Path) -> Ceilings:
    """The ceilings that a process answered with."""
    if code is None:
        raise RunError(f"measuring ceilings was ended after {CEILINGS_LIMIT:.0f} s")
    heard = read_answer(code, answer, log, CEILINGS_LIMIT, CeilingsResponse)
    if isinstance(heard, Failure):
        raise RunError(f"measuring ceilings failed: {heard.message}")
    if heard.ceilings is None or (heard.mask is None and asked.clear is not None):
        kind = FeatureError if heard.kind == "mask" else RunError
        raise kind(f"measuring ceilings failed: {heard.error or 'no result'}")
    done = (heard.mask and heard.mask.cleared, heard.ceilings.cleared, heard.ceilings.threads)
    if done != (asked.clear, asked.clear or [], asked.threads):
        raise FeatureError("ceilings were measured with other features or threads than asked")
    return heard.ceilings


@cache
def probes_version() -> str:
    """A hash of the code that measures ceilings, of every runtime: a change in any of it may change the figures."""
    room = Path(__file__).parent
    modules = sorted(room.parent.glob(f"**/{room.name}/*.py"))
    return hashlib.sha256(b"\0".join(module.read_bytes() for module in modules)).hexdigest()[:_DIGITS]
