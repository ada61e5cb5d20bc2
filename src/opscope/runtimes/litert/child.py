"""The process that runs a .tflite, with the argument ``run REQUEST``.

Features are switched off before it starts, by the library that it was started with; here that is proved, once the
runtime has asked for them. One process serves one variant once.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from opscope.bundle.manifest import Measurement, Tensor
from opscope.core.files import write_atomically
from opscope.core.system.launch import end_with_parent
from opscope.experiment.tensors import from_bytes, to_bytes
from opscope.machine.processor import stay_on
from opscope.machine.switch.switch import proof
from opscope.runtimes.child import Stages, answer_request, inferred, input_arrays, measurement_of, timed_calls
from opscope.runtimes.litert.c_api import DELEGATE, CompiledModel, check_events, check_status
from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.signatures import called_signatures, input_tensors, open_sizes, read_callable
from opscope.runtimes.litert.trace import SCHEMA, LitertInference, LitertTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.experiment.protocol import RunRequest
    from opscope.experiment.tensors import Array
    from opscope.machine.off_cpu import OffCpuMeter
    from opscope.runtimes.litert.c_api import Call
    from opscope.runtimes.litert.signatures import CalledSignature

    _Called: TypeAlias = CalledSignature[Call]


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    end_with_parent()
    _, path = arguments
    return answer_request(Path(path), run)


def run(request: RunRequest, began: int) -> Measurement:
    """Run one request in this process."""
    stay_on(request.affinity)
    installed = installed_litert()
    started = time.perf_counter_ns()
    delegate, profiled = request.delegate or DELEGATE, request.trace is not None
    model = CompiledModel(installed.library, request.program, delegate, request.threads, profiled=profiled)
    declared = read_callable(Path(request.program))
    sizes = open_sizes(declared, request.calls, request.inputs)
    calls = called_signatures(declared, model.calls(sizes), request.calls)
    loaded = time.perf_counter_ns()
    inputs = _fill(model, calls, request)
    traced: list[LitertInference] | None = None if request.trace is None else []
    called = (calls[name] for name in cycle(request.calls or calls))
    done = inferred(request, called, partial(_call, model, traced))
    # Before the model runs no kernel was chosen: asked behind it, the counters hold all questions.
    proved = proof(Path(request.record)) if request.record is not None else None
    measured = time.perf_counter_ns()
    if request.trace is not None:
        first = next(iter(calls))
        told = LitertTrace(SCHEMA, installed.version, delegate, request.threads, first, traced or [])
        write_atomically(Path(request.trace), msgspec.json.encode(told))
    outputs = [array for own in calls.values() for array in _outputs(model, own)]
    return measurement_of(
        request,
        done,
        Stages(began, started, loaded, measured),
        outputs,
        inputs=inputs,
        versions={PACKAGE: installed.version, "numpy": np.__version__},
        mask=proved,
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
        sizes = own.told.output_sizes[place] if own.told.output_sizes else one.sizes
        tensor = Tensor(list(sizes), one.dtype.name)
        found.append(from_bytes(data, tensor, range(len(tensor.shape))))
    return found


def _call(
    model: CompiledModel,
    traced: list[LitertInference] | None,
    called: Iterable[_Called],
    wall: list[int],
    meter: OffCpuMeter,
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
