"""The runtime itself, without opscope's runners: ``python -m corpus.runtime MODEL`` ends with 0 where a model runs.

Its inputs are those that opscope guesses, since a refusal is held against the runtime on the same ones.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.experiment.guesses import USUAL_INPUTS, guess_inputs
from opscope.experiment.inputs import make_inputs
from opscope.experiment.tensors import random_inputs
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import PlannedTensor
from opscope.runtimes.registry import runtime_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a model once, with the first guess that it takes."""
    path = Path((arguments or sys.argv[1:])[0])
    run: Callable[[Path, dict[str, Any]], None] = {".onnx": _onnx, ".tflite": _tflite, ".pte": _pte}[path.suffix]
    problem: Exception | None = None
    for given in _inputs(path):
        found = _problem(run, path, given)
        if found is None:
            return 0
        problem = problem or found
    print(f"{type(problem).__name__}: {problem}".replace("\n", " "), file=sys.stderr)
    return 1


def _problem(run: Callable[[Path, dict[str, Any]], None], path: Path, given: dict[str, Any]) -> Exception | None:
    try:
        run(path, given)
    except Exception as error:  # noqa: BLE001 - runtimes raise what they like
        return error
    return None


def _inputs(path: Path) -> Iterator[dict[str, Any]]:
    """Arrays by the names of inputs, for each set of usual sizes."""
    runtime = runtime_of(path)
    named = [one for own in runtime.inputs(path, []).values() for one in own]
    for usual in USUAL_INPUTS:
        asked = guess_inputs(named, [], {}, runtime.index_limits(path), usual)
        made = make_inputs([value for _, value in named], asked, 0)
        tensors = {
            number: Tensor(list(value.sizes), value.dtype.name)
            for number, (_, value) in enumerate(named)
            if isinstance(value, PlannedTensor)
        }
        drawn = dict(zip(tensors, random_inputs(list(tensors.values()), 0), strict=True))
        yield {named[number][0] or str(number): (made.arrays or drawn)[number] for number in tensors}


def _onnx(path: Path, given: dict[str, Any]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    session.run(None, given)


def _tflite(path: Path, given: dict[str, Any]) -> None:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    signatures = list(interpreter.get_signature_list())
    if signatures:
        interpreter.get_signature_runner(signatures[0])(**given)
        return
    for detail, array in zip(interpreter.get_input_details(), given.values(), strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), given.values(), strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()


def _pte(path: Path, given: dict[str, Any]) -> None:
    import torch
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    method.execute([torch.from_numpy(array) for array in given.values()])


if __name__ == "__main__":
    sys.exit(main())
