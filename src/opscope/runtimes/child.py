"""The frame of a process that serves one request: it reads a request file, runs it, and writes an answer file.

:func:`answer_request` is the frame of every request, :func:`run_program` that of a request to run a program. A
runtime implements its part as a :class:`ProgramRun`.
"""

from __future__ import annotations

import errno
import hashlib
import time
from abc import ABC, abstractmethod
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement
from opscope.core.errors import FeatureError, OpscopeError, StorageError
from opscope.core.system.launch import end_with_parent, own_peak
from opscope.core.writing import open_atomically, write_atomically
from opscope.experiment.protocol import ChildAnswer, RunRequest
from opscope.experiment.tensors import as_type, random_inputs
from opscope.machine.processor import stay_on
from opscope.machine.switch.switch import proof
from opscope.machine.usage import OffCpuMeter, usage_between, usage_now
from opscope.program.structure.exported import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.experiment.tensors import Array


class ChildRequest(Protocol):
    """The part of a request that all processes share."""

    @property
    def answer(self) -> str:
        """Path of the file to write the answer to."""


RequestT = TypeVar("RequestT", bound=ChildRequest)
Result = TypeVar("Result")
Called = TypeVar("Called")


def answer_request(
    path: Path, kind: type[RequestT], serve: Callable[[RequestT, int], Result], *further: type[Exception]
) -> int:
    """Answer a request by writing a file; return 0 if the answer holds a result, else 1.

    ``serve`` gets the request and ``time.perf_counter_ns`` of the beginning; ``further`` are errors of a runtime
    that become failures. If not even the answer can be written, the exit code is that of a StorageError.
    """
    began = time.perf_counter_ns()
    end_with_parent()
    request = msgspec.json.decode(path.read_bytes(), type=kind)
    answer = _catch_errors(lambda: serve(request, began), further)
    try:
        write_atomically(Path(request.answer), msgspec.json.encode(answer))
    except StorageError as error:
        return error.exit_code
    return int(answer.result is None)


def _catch_errors(serve: Callable[[], Result], further: tuple[type[Exception], ...]) -> ChildAnswer[Result]:
    """Return the result of ``serve``, or its error as an answer: the parent has no other way to learn of it."""
    try:
        return ChildAnswer(serve())
    except FeatureError as error:
        return ChildAnswer(error=str(error), kind="mask")
    except StorageError as error:
        return ChildAnswer(error=str(error), kind="storage")
    except OSError as error:
        return ChildAnswer(error=str(error), kind="storage" if error.errno == errno.ENOSPC else "exit")
    except (OpscopeError, ValueError) as error:
        return ChildAnswer(error=f"{type(error).__name__}: {error}")
    except further as error:
        return ChildAnswer(error=f"{type(error).__name__}: {error}")


class ProgramRun(ABC, Generic[Called]):
    """A program in this process.

    A runtime implements it; :func:`run_program` uses the methods in the order given here.
    """

    peak: int | None = None
    """Peak memory of the calls in bytes, where writing the trace may need more; None: that of the whole process."""
    _versions: Mapping[str, str] = {}

    def __init__(self, request: RunRequest) -> None:
        self._job, self._traced = request.job, request.trace is not None

    @abstractmethod
    def load(self) -> None:
        """Load the program, and prepare its calls."""

    @abstractmethod
    def fill(self) -> list[Tensor]:
        """Fill the inputs of everything that is called, and return their tensors."""

    @abstractmethod
    def calls(self) -> Iterator[Called]:
        """Yield the calls to make, endlessly."""

    @abstractmethod
    def call(self, callee: Called) -> tuple[int, int, Any]:
        """Call a method or model; return ``time.perf_counter_ns`` before and after, and what :meth:`keep` needs."""

    def keep(self, callee: Called, remains: Any) -> None:  # noqa: ANN401 - whatever the runtime's call left
        """Store what a call left behind; it runs outside the timed call."""

    def proof(self, record: Path | None) -> MaskProof | None:
        """Return the proof that features were off, read from the counters of a switch; None without a switch.

        The counters are complete once the kernels were chosen.
        """
        return None if record is None else proof(record)

    def threads(self) -> int | None:
        """Return the size of the thread pool as the runtime states it; None if it does not."""
        return None

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the runtime's packages."""
        return self._versions

    @abstractmethod
    def write_trace(self, path: Path) -> None:
        """Write the events of all calls."""

    @abstractmethod
    def outputs(self) -> list[Array]:
        """Return the outputs of the last call of each callee, in the order of the calls."""


def serve_runs(
    arguments: Sequence[str], program: Callable[[RunRequest], ProgramRun[Any]], *further: type[Exception]
) -> int:
    """Answer the request of the arguments ``run REQUEST``; see :func:`answer_request`."""
    return answer_request(Path(arguments[1]), RunRequest, partial(run_program, program), *further)


def run_program(program: Callable[[RunRequest], ProgramRun[Any]], request: RunRequest, began: int) -> Measurement:
    """Run a program as a request asks, in this process, and return what was measured.

    ``began`` is ``time.perf_counter_ns`` when the process started to serve the request.
    """
    clock, job = time.perf_counter_ns, request.job
    stay_on(job.variant.affinity)
    run = program(request)
    started = clock()
    run.load()
    loaded = clock()
    inputs, calls, wall_ns = run.fill(), run.calls(), list[int]()
    with OffCpuMeter(job.threads) as meter:
        _time_calls(run, islice(calls, job.warmup), wall_ns, meter)
        before = usage_now()
        _time_calls(run, islice(calls, job.inferences - job.warmup), wall_ns, meter)
        off_cpu_ns, usage = meter.off_cpu_ns(wall_ns), usage_between(before, usage_now())
    mask = run.proof(None if request.record is None else Path(request.record))
    measured = clock()
    if request.trace is not None:
        run.write_trace(Path(request.trace))
    outputs = run.outputs()
    save_outputs(request.outputs, outputs)
    written = clock()
    return Measurement(
        mask=mask,
        threads=run.threads(),
        inputs=inputs,
        outputs=array_tensors(outputs),
        output_sha256=digest(outputs),
        wall_ns=wall_ns,
        start_ns=started - began,
        load_ns=loaded - started,
        peak_rss_bytes=own_peak() if run.peak is None else run.peak,
        versions={**run.versions(), "numpy": np.__version__},
        write_ns=written - measured,
        off_cpu_ns=off_cpu_ns,
        usage=usage,
    )


def _time_calls(run: ProgramRun[Called], calls: Iterable[Called], wall_ns: list[int], meter: OffCpuMeter) -> None:
    """Make calls in turn and append the duration of each to ``wall_ns``. The meter is read between calls only."""
    due = meter.open(len(wall_ns))
    for callee in calls:
        before, after, remains = run.call(callee)
        wall_ns.append(after - before)
        if after < due:
            run.keep(callee, remains)
            continue
        meter.close(len(wall_ns))
        run.keep(callee, remains)
        due = meter.open(len(wall_ns))
    meter.close(len(wall_ns))


def input_arrays(values: str | None, seed: int, tensors: Sequence[Tensor]) -> list[Array]:
    """Read the inputs of all calls from a file, or make random ones; each has the type of its tensor."""
    if values is None:
        arrays = random_inputs(list(tensors), seed)
    else:
        with np.load(values, allow_pickle=False) as file:
            arrays = [file[f"arr_{number}"] for number in range(len(tensors))]
    return [as_type(array, tensor.dtype) for array, tensor in zip(arrays, tensors, strict=True)]


def array_tensors(arrays: Iterable[Array]) -> list[Tensor]:
    """Return shapes and types of arrays."""
    return [Tensor(list(array.shape), str(array.dtype)) for array in arrays]


def save_outputs(path: str | None, arrays: Sequence[Array]) -> None:
    """Write the outputs to a file; do nothing if the path is None."""
    if path is not None:
        with open_atomically(Path(path)) as file:
            np.savez(file, *arrays)


def digest(arrays: Iterable[Array]) -> str:
    """Return the SHA-256 of all values, one array after the other."""
    sha256 = hashlib.sha256()
    for array in arrays:
        sha256.update(array.tobytes())
    return sha256.hexdigest()
