"""The process that runs a .tflite, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that it was started with; here that is proved, once the
runtime has asked for them. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement, Tensor
from opscope.core.errors import RunError
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent, own_peak
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.machine.affinity import stay_on
from opscope.machine.off_cpu import OffCpuMeter
from opscope.machine.switch.switch import proof
from opscope.machine.usage import usage_between, usage_now
from opscope.runtimes.child import answer_request, digest, input_arrays, save_outputs, timed_calls
from opscope.runtimes.litert.c_api import CompiledModel, check_events, check_status
from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.signatures import read_callable
from opscope.runtimes.litert.trace import SCHEMA, LitertInference, LitertTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.core.system.usage import ProcessUsage
    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.program.structure.signature import Signature
    from opscope.runtimes.litert.c_api import Call

_DELEGATE = "xnnpack"


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    end_with_parent()
    _, path = arguments
    return answer_request(Path(path), run)


class _Called(NamedTuple):
    """A signature as the file declares it and as the runtime calls it; arrays in the order of the file."""

    declared: Signature
    call: Call


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
    traced, delegate = request.trace is not None, request.delegate or _DELEGATE
    model = CompiledModel(installed.library, request.program, delegate, request.threads, profiled=traced)
    calls = _calls(Path(request.program), model.calls(), request.calls)
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
    outputs = [array for called in calls.values() for array in _outputs(model, called)]
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


def _calls(program: Path, there: Mapping[str, Call], wanted: Sequence[str]) -> dict[str, _Called]:
    """What is called, by name, in the order of the first calls.

    Raises:
        RunError: the runtime has no such signature, or has other inputs than the file.
    """
    declared = read_callable(program).signatures
    names = dict.fromkeys(wanted) or (declared[0].name,)
    found = {}
    for name in names:
        own = next((one for one in declared if one.name == name), None)
        call = there.get(name) or (next(iter(there.values())) if len(declared) == len(there) == 1 else None)
        if own is None or call is None:
            raise RunError(f"the model has no signature {name!r}; it has: {', '.join(sorted(there))}")
        for ours, theirs in ((own.inputs, call.inputs), (own.outputs, call.outputs)):
            if {one.name for one in ours} != set(theirs):
                raise RunError(f"LiteRT names other inputs or outputs of {name!r} than the file: {', '.join(theirs)}")
        found[name] = _Called(own, call)
    return found


def _fill(model: CompiledModel, calls: Mapping[str, _Called], request: RunRequest) -> list[Tensor]:
    """Fill the inputs of all calls; they are drawn in the order of the file, as for every runtime."""
    slots = [(called, one) for called in calls.values() for one in called.declared.inputs]
    tensors = [Tensor(list(one.tensor.sizes), one.tensor.dtype.name) for _, one in slots]
    for (called, one), tensor, array in zip(slots, tensors, input_arrays(request, tensors), strict=True):
        data = np.frombuffer(to_bytes(array, tensor.dtype, range(array.ndim)), np.uint8)
        model.fill(called.call.input_buffers[called.call.inputs.index(one.name)], data)
    return tensors


def _outputs(model: CompiledModel, called: _Called) -> list[Array]:
    """Outputs of the last call, in the order of the file."""
    found = []
    for one in called.declared.outputs:
        data = model.content(called.call.output_buffers[called.call.outputs.index(one.name)])
        tensor = Tensor(list(one.tensor.sizes), one.tensor.dtype.name)
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
        run_model = one.call.run
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
