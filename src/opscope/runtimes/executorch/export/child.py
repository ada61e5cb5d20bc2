"""The process that exports, with the argument ``REQUEST``.

Torch stays out of the calling process, and what it prints goes to the log, which is standard error. Standard
output carries one JSON object a line: the steps, and in the end the result or the reason for a failure.
"""

from __future__ import annotations

import copy
import os
import sys
import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import msgspec
import numpy as np

from opscope.core.errors import OpscopeError, UsageError
from opscope.core.writing import open_atomically
from opscope.experiment.protocol import Refusal
from opscope.program.structure.exported import TensorSpec
from opscope.runtimes.executorch.export.export_errors import place_of
from opscope.runtimes.executorch.export.lower import export, step
from opscope.runtimes.executorch.export.protocol import (
    CHECKS,
    ExportFinished,
    ExportRequest,
    ExportStep,
    Line,
    outputs_file,
)
from opscope.runtimes.executorch.export.sources import load
from opscope.runtimes.executorch.kernel_libraries import extra_kernels
from opscope.runtimes.exports import QUANTISED, Choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.system.stages import StageProgress
    from opscope.runtimes.executorch.export.eager import EagerMethod

    Array: TypeAlias = NDArray[Any]


def eager_outputs(methods: Mapping[str, EagerMethod]) -> dict[str, list[Array]]:
    """Run every method on its example inputs in PyTorch, one after the other, on a copy of the model."""
    import torch

    copies = copy.deepcopy({name: method.module for name, method in methods.items()})
    outputs = {}
    with torch.no_grad():
        for name, method in methods.items():
            outputs[name] = _run_method(name, copies[name], method)
    return outputs


def _run_method(name: str, module: Any, method: EagerMethod) -> list[Array]:  # noqa: ANN401 - torch is not typed here
    try:
        return _to_arrays(module(*_copy_inputs(method.inputs), **_copy_inputs(dict(method.kwargs))))
    except Exception as error:  # whatever a model raises; the traceback goes to the log
        input_texts = ", ".join(_input_text(value) for value in method.inputs)
        keyword_texts = "".join(f", {key}={_input_text(value)}" for key, value in method.kwargs.items())
        model_line = place_of(error)
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        location = f" at {model_line}" if model_line else ""
        problem = (
            f"{name}({input_texts}{keyword_texts}) fails in PyTorch{location}: {type(error).__name__}: "
            f"{first_line[:300]}"
        )
        hint = "the example inputs must match the model: compare their number, shapes and types with its forward"
        raise UsageError(problem, hint=hint) from error


def program_outputs(path: Path, methods: Mapping[str, EagerMethod]) -> dict[str, list[Array]]:
    """Run the methods of a program on the same inputs as in PyTorch, in the same order."""
    from executorch.extension.pybindings import _C as runtime  # noqa: N811 - a module, not a constant
    from torch.utils import _pytree

    for kernels in extra_kernels(path):
        import_module(kernels.module)
    runtime._unsafe_reset_threadpool(1)  # noqa: SLF001 - the runtime offers no other way
    module = runtime._load_for_executorch(str(path))  # noqa: SLF001 - likewise
    outputs = {}
    for name, method in methods.items():
        leaves = _pytree.tree_leaves((method.inputs, dict(method.kwargs)))
        outputs[name] = _to_arrays(module.run_method(name, [value for value in leaves if value is not None]))
    return outputs


def graph_outputs(programs: Mapping[str, Any], methods: Mapping[str, EagerMethod]) -> dict[str, list[Array]]:
    """Run the exported graphs in PyTorch.

    The results of quantised graphs are what every kernel should come close to.
    """
    import torch

    with torch.no_grad():
        return {
            name: _to_arrays(programs[name].module()(*_copy_inputs(method.inputs), **_copy_inputs(dict(method.kwargs))))
            for name, method in methods.items()
        }


def save_outputs(path: Path, arrays: Sequence[Array]) -> None:
    """Save outputs in a file of numpy's, in their order."""
    with open_atomically(path) as file:
        np.savez(file, *arrays)


def _copy_inputs(values: Any) -> Any:  # noqa: ANN401 - a tree of tensors and other values
    """Copy inputs, because a model may write into them."""
    return copy.deepcopy(values)


def _input_text(value: Any) -> str:  # noqa: ANN401 - an input of any kind
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _to_arrays(outputs: Any) -> list[Array]:  # noqa: ANN401 - a tree of tensors and numbers
    import torch
    from torch.utils import _pytree

    return [
        _to_array(leaf) for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor | bool | int | float)
    ]


def _to_array(value: Any) -> Array:  # noqa: ANN401 - a tensor or a number
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    plain = value.detach().cpu()
    array: Array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


_PACKAGES = ("torch", "executorch", "torchao", "transformers", "numpy")


def main(arguments: Sequence[str]) -> int:
    """Export one model."""
    # Libraries that print must not disturb the answer: their output goes where errors go.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ExportRequest)
    try:
        _write_line(answer, serve(request, lambda name, detail: _write_line(answer, ExportStep(name, detail))))
    except OpscopeError as error:
        traceback.print_exc()
        _write_line(answer, Refusal.of(error))
        return error.exit_code
    return 0


def serve(request: ExportRequest, progress: StageProgress) -> ExportFinished:
    """Export a model, run the program, and save the outputs of both for comparison."""
    directory, choice = Path(request.directory), Choice(request.dtype, request.backend)
    stem = choice.stem(request.name)
    program = directory / f"{stem}.pte"
    checks = directory / CHECKS
    checks.mkdir()
    progress("building the model", "")
    model = load(request.model, Path(request.models) if request.models else None)
    progress("running the model in PyTorch", "")
    eager = eager_outputs(model.methods)
    _save_all_outputs(checks, "eager", eager)
    lowered = export(model, request.name, choice, program, progress)
    if choice.dtype in QUANTISED:
        with step("running the quantised graph in PyTorch", progress):
            _save_all_outputs(checks, "graph", graph_outputs(lowered.programs, lowered.methods))
    with step("running the program", progress, lowered.programs.values()):
        computed = program_outputs(program, lowered.methods)
    _save_all_outputs(checks, "program", computed)
    methods = [
        msgspec.structs.replace(lowered.described(name, model, choice), outputs=_specify_tensors(computed[name]))
        for name in lowered.methods
    ]
    versions = {name: installed for name in _PACKAGES if (installed := _find_version(name))}
    return ExportFinished(methods, versions, lowered.etrecord_problem)


def _specify_tensors(arrays: Sequence[Array]) -> list[TensorSpec]:
    return [TensorSpec(list(array.shape), str(array.dtype)) for array in arrays]


def _save_all_outputs(directory: Path, kind: str, outputs: Mapping[str, Sequence[Array]]) -> None:
    for number, arrays in enumerate(outputs.values()):
        save_outputs(directory / outputs_file(kind, number), arrays)


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _write_line(answer: BinaryIO, line: Line) -> None:
    answer.write(msgspec.json.encode(line) + b"\n")
    answer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
