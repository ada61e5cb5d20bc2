"""The frame of a process that runs a program once: it reads what is asked, and answers with a file."""

from __future__ import annotations

import errno
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from opscope.core.errors import FeatureError, OpscopeError, StorageError
from opscope.core.files import write_atomically, written_atomically
from opscope.experiment.protocol import RunAnswer, RunRequest
from opscope.experiment.tensors import as_type, random_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opscope.bundle.manifest import Measurement, Tensor
    from opscope.experiment.tensors import Array
    from opscope.machine.off_cpu import OffCpuMeter

Called = TypeVar("Called")


def answer_request(path: Path, run: Callable[[RunRequest, int], Measurement], *further: type[Exception]) -> int:
    """Answer a request; the answer is a file, the exit code tells whether it holds a result.

    When not even the answer can be written, the exit code is that of a StorageError.

    Args:
        path: of the request.
        run: runs it; its second argument is ``time.perf_counter_ns`` at the start.
        further: errors of the runtime beside ValueError and those of opscope.
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
    """The inputs of all calls, each of the type of its tensor.

    Args:
        values: path of an .npz with them, ``arr_`` and the number of each; None: they are drawn from the seed.
        seed: of random ones.
        tensors: inputs of the calls, one call after the other.
    """
    if values is None:
        arrays = random_inputs(list(tensors), seed)
    else:
        with np.load(values, allow_pickle=False) as file:
            arrays = [file[f"arr_{number}"] for number in range(len(tensors))]
    return [as_type(array, tensor.dtype) for array, tensor in zip(arrays, tensors, strict=True)]


def timed_calls(
    calls: Iterable[Called],
    wall: list[int],
    meter: OffCpuMeter,
    call: Callable[[Called], tuple[int, int]],
) -> None:
    """Make calls in turn and keep how long each took. The meter is read between calls only.

    Args:
        calls: to make.
        wall: takes the durations, in ns.
        meter: of time off the CPU.
        call: makes one, and returns ``time.perf_counter_ns`` right before and right after it.
    """
    due = meter.open(len(wall))
    for one in calls:
        before, after = call(one)
        wall.append(after - before)
        if after >= due:
            meter.close(len(wall))
            due = meter.open(len(wall))
    meter.close(len(wall))


def save_outputs(path: str | None, arrays: Sequence[Array]) -> None:
    """Write the outputs, where they are wanted.

    Raises:
        StorageError: there is no room.
    """
    if path is not None:
        with written_atomically(Path(path)) as file:
            np.savez(file, *arrays)


def digest(arrays: Iterable[Array]) -> str:
    """SHA-256 of all values, one array after the other."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()
