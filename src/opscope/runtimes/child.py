"""The frame of a process that runs a program once: it reads what is asked, and answers with a file."""

from __future__ import annotations

import errno
import hashlib
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement, Tensor
from opscope.core.errors import FeatureError, OpscopeError, StorageError
from opscope.core.files import write_atomically, written_atomically
from opscope.core.system.launch import own_peak
from opscope.experiment.protocol import RunAnswer, RunRequest
from opscope.experiment.tensors import as_type, random_inputs
from opscope.machine.off_cpu import OffCpuMeter
from opscope.machine.usage import usage_between, usage_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.core.system.usage import ProcessUsage
    from opscope.experiment.tensors import Array

Called = TypeVar("Called")


def answer_request(path: Path, run: Callable[[RunRequest, int], Measurement], *further: type[Exception]) -> int:
    """Answer a request; the answer is a file, the exit code tells whether it holds a result.

    When not even the answer can be written, the exit code is that of a StorageError.
    """
    began = time.perf_counter_ns()
    request = msgspec.json.decode(path.read_bytes(), type=RunRequest)
    answer = _guarded(lambda: run(request, began), further)
    try:
        write_atomically(Path(request.answer), msgspec.json.encode(answer))
    except StorageError as error:
        return error.exit_code
    return int(answer.measurement is None)


def _guarded(run: Callable[[], Measurement], further: tuple[type[Exception], ...]) -> RunAnswer:
    """Run, and put what fails into the answer: the parent has no other way to hear of it."""
    try:
        return RunAnswer(run())
    except FeatureError as error:
        return RunAnswer(error=str(error), kind="mask")
    except StorageError as error:
        return RunAnswer(error=str(error), kind="storage")
    except OSError as error:
        return RunAnswer(error=str(error), kind="storage" if error.errno == errno.ENOSPC else "exit")
    except (OpscopeError, ValueError) as error:
        return RunAnswer(error=f"{type(error).__name__}: {error}")
    except further as error:
        return RunAnswer(error=f"{type(error).__name__}: {error}")


def input_arrays(values: str | None, seed: int, tensors: Sequence[Tensor]) -> list[Array]:
    """The inputs of all calls, each of the type of its tensor."""
    if values is None:
        arrays = random_inputs(list(tensors), seed)
    else:
        with np.load(values, allow_pickle=False) as file:
            arrays = [file[f"arr_{number}"] for number in range(len(tensors))]
    return [as_type(array, tensor.dtype) for array, tensor in zip(arrays, tensors, strict=True)]


class Inferred(NamedTuple):
    """Durations of every call as the caller sees them, and what the system did meanwhile."""

    wall_ns: list[int]  # of every call
    off_cpu_ns: list[int] | None  # of every call; None where nothing tells
    usage: ProcessUsage | None  # of the system over the calls behind the warm-up


def inferred(
    request: RunRequest, calls: Iterator[Called], run: Callable[[Iterable[Called], list[int], OffCpuMeter], None]
) -> Inferred:
    """The warm-up and the measured calls of a request."""
    wall: list[int] = []
    with OffCpuMeter(request.threads) as meter:
        run(islice(calls, request.warmup), wall, meter)
        began = usage_now()
        run(islice(calls, request.inferences - request.warmup), wall, meter)
        return Inferred(wall, meter.off_cpu_ns(wall), usage_between(began, usage_now()))


class Stages(NamedTuple):
    """``time.perf_counter_ns`` when the process began, its runtime was there, the model loaded, and the calls made."""

    began: int
    started: int
    loaded: int
    measured: int


def measurement_of(  # noqa: PLR0913 - each is one thing that a process tells
    request: RunRequest,
    done: Inferred,
    stages: Stages,
    outputs: Sequence[Array],
    *,
    inputs: list[Tensor],
    versions: Mapping[str, str],
    mask: MaskProof | None,
    threads: int | None = None,
    peak: int | None = None,
) -> Measurement:
    """What a process reports, once its trace is written; the outputs are written here.

    ``peak`` is the memory that it needed so far, where what followed may need more; None: as it is now.
    """
    save_outputs(request.outputs, outputs)
    written = time.perf_counter_ns()
    return Measurement(
        mask=mask,
        threads=threads,
        inputs=inputs,
        outputs=[Tensor(list(array.shape), str(array.dtype)) for array in outputs],
        output_sha256=digest(outputs),
        wall_ns=done.wall_ns,
        start_ns=stages.started - stages.began,
        load_ns=stages.loaded - stages.started,
        peak_rss_bytes=own_peak() if peak is None else peak,
        versions=dict(versions),
        write_ns=written - stages.measured,
        off_cpu_ns=done.off_cpu_ns,
        usage=done.usage,
    )


def timed_calls(
    calls: Iterable[Called],
    wall: list[int],
    meter: OffCpuMeter,
    call: Callable[[Called], tuple[int, int]],
) -> None:
    """Make calls in turn and keep how long each took. The meter is read between calls only."""
    due = meter.open(len(wall))
    for one in calls:
        before, after = call(one)
        wall.append(after - before)
        if after >= due:
            meter.close(len(wall))
            due = meter.open(len(wall))
    meter.close(len(wall))


def save_outputs(path: str | None, arrays: Sequence[Array]) -> None:
    """Write the outputs, where they are wanted."""
    if path is not None:
        with written_atomically(Path(path)) as file:
            np.savez(file, *arrays)


def digest(arrays: Iterable[Array]) -> str:
    """SHA-256 of all values, one array after the other."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()
