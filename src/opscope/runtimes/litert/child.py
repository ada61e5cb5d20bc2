"""The process that runs a .tflite, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that it was started with; here that is proved, once the
runtime has asked for them. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement, Tensor
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent, own_peak
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.machine.affinity import stay_on
from opscope.machine.off_cpu import OffCpuMeter
from opscope.machine.switch.switch import proof
from opscope.machine.usage import usage_between, usage_now
from opscope.runtimes.child import answer_request, digest, input_arrays, save_outputs, timed_calls
from opscope.runtimes.litert.c_api import DELEGATE, CompiledModel, check_events, check_status
from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.signatures import called_signatures, input_tensors, open_sizes, read_callable
from opscope.runtimes.litert.trace import SCHEMA, LitertInference, LitertTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.system.usage import ProcessUsage
    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.runtimes.litert.c_api import Call
    from opscope.runtimes.litert.signatures import CalledSignature

    _Called: TypeAlias = CalledSignature[Call]


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    end_with_parent()
    _, path = arguments
    return answer_request(Path(path), run)


def run(request: RunRequest, began: int) -> Measurement:
    """Run one request in this process.

    Args:
        request: what to run.
        began: ``time.perf_counter_ns`` at the start.

    Raises:
        FeatureError: it cannot be proved that the features are off.
        RunError: the runtime refuses the model, or its inputs cannot be made.
        StorageError: the trace or the outputs could not be written.
    """
    stay_on(request.affinity)
    installed = installed_litert()
    started = time.perf_counter_ns()
    traced, delegate = request.trace is not None, request.delegate or DELEGATE
    model = CompiledModel(installed.library, request.program, delegate, request.threads, profiled=traced)
    declared = read_callable(Path(request.program))
    sizes = open_sizes(declared, request.calls, request.inputs)
    calls = called_signatures(declared, model.calls(sizes), request.calls)
    loaded = time.perf_counter_ns()
    inputs = _fill(model, calls, request)
    inferred = _infer(model, calls, request)
    # Before the model runs no kernel was chosen: asked behind it, the counters hold all questions.
    proved = proof(Path(request.record)) if request.record is not None else None
    measured = time.perf_counter_ns()
    if request.trace is not None:
        first = next(iter(calls))
        told = LitertTrace(SCHEMA, installed.version, delegate, request.threads, first, inferred.traced)
        write_atomically(Path(request.trace), msgspec.json.encode(told))
    outputs = [array for own in calls.values() for array in _outputs(model, own)]
    save_outputs(request.outputs, outputs)
    written = time.perf_counter_ns()
    return Measurement(
        mask=proved,
        threads=None,
        inputs=inputs,
        outputs=[Tensor(list(array.shape), str(array.dtype)) for array in outputs],
        output_sha256=digest(outputs),
        wall_ns=inferred.wall_ns,
        start_ns=started - began,
        load_ns=loaded - started,
        peak_rss_bytes=own_peak(),
        versions={PACKAGE: installed.version, "numpy": np.__version__},
        write_ns=written - measured,
        off_cpu_ns=inferred.off_cpu_ns,
        usage=inferred.usage,
    )


def _fill(model: CompiledModel, calls: Mapping[str, _Called], request: RunRequest) -> list[Tensor]:
    """Fill the inputs of all calls."""
    slots = [(own, one) for own in calls.values() for one in own.declared.inputs]
    tensors = input_tensors(calls.values(), request.inputs)
    arrays = input_arrays(request.values, request.seed, tensors)
    for (own, one), tensor, array in zip(slots, tensors, arrays, strict=True):
        data = np.frombuffer(to_bytes(array, tensor.dtype, range(array.ndim)), np.uint8)
        model.fill(own.told.input_buffers[own.told.inputs.index(one.name)], data)
    return tensors


def _outputs(model: CompiledModel, own: _Called) -> list[Array]:
    """Outputs of the last call, in the order of the file."""
    found = []
    for one in own.declared.outputs:
        place = own.told.outputs.index(one.name)
        data = model.content(own.told.output_buffers[place])
        sizes = own.told.output_sizes[place] if own.told.output_sizes else one.tensor.sizes
        tensor = Tensor(list(sizes), one.tensor.dtype.name)
        found.append(from_bytes(data, tensor, range(len(tensor.shape))))
    return found


class _Inferred(NamedTuple):
    """Durations of every call as the caller sees them, and what the system and the profiler tell of them.

    Attributes:
        wall_ns: of every call.
        off_cpu_ns: of every call; None where nothing tells.
        usage: of the system over the calls behind the warm-up.
        traced: every call with its events; empty without tracing.
    """

    wall_ns: list[int]
    off_cpu_ns: list[int] | None
    usage: ProcessUsage | None
    traced: list[LitertInference]


def _infer(model: CompiledModel, calls: Mapping[str, _Called], request: RunRequest) -> _Inferred:
    wall: list[int] = []
    traced: list[LitertInference] = []
    order = cycle(request.calls or calls)
    with OffCpuMeter(request.threads) as meter:
        warmup = [calls[name] for name in islice(order, request.warmup)]
        measured = [calls[name] for name in islice(order, request.inferences - request.warmup)]
        told = traced if request.trace is not None else None
        _call(model, warmup, wall, meter, told)
        began = usage_now()
        _call(model, measured, wall, meter, told)
        return _Inferred(wall, meter.off_cpu_ns(wall), usage_between(began, usage_now()), traced)


def _call(
    model: CompiledModel,
    called: Iterable[_Called],
    wall: list[int],
    meter: OffCpuMeter,
    traced: list[LitertInference] | None,
) -> None:
    """Call signatures in turn. Events are fetched between calls only."""
    clock = time.perf_counter_ns

    def call(one: _Called) -> tuple[int, int]:
        if traced is not None:
            model.profile()
        run_model = one.told.run
        before = clock()
        status = run_model()
        after = clock()
        check_status(status, "LiteRtRunCompiledModel")
        if traced is not None:
            events = model.events()
            check_events(events, after - before)
            traced.append(LitertInference(after - before, events, before, one.declared.name))
        return before, after

    timed_calls(called, wall, meter, call)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
