"""Running a model: in PyTorch on its example inputs before the export, and as a program after it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from opscope.errors import ExportError, UsageError
from opscope.export.trouble import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.export.eager import EagerMethod

    Array: TypeAlias = NDArray[Any]


def eager_outputs(methods: Mapping[str, EagerMethod]) -> dict[str, list[Array]]:
    """What every method computes on its example inputs, one after the other, on a copy of the model.

    Raises:
        UsageError: the example inputs do not fit the model.
    """
    import torch

    copies = copy.deepcopy({name: method.module for name, method in methods.items()})
    found = {}
    with torch.no_grad():
        for name, method in methods.items():
            found[name] = _called(name, copies[name], method)
    return found


def _called(name: str, module: Any, method: EagerMethod) -> list[Array]:  # noqa: ANN401 - torch is not typed here
    try:
        return _arrays(module(*_own(method.inputs), **_own(dict(method.kwargs))))
    except Exception as error:  # whatever a model raises; the traceback goes to the log
        raise _misfit(name, method, error) from error


def program_outputs(path: Path, methods: Mapping[str, EagerMethod]) -> dict[str, list[Array]]:
    """What the methods of a program compute on the same inputs, in the same order."""
    from executorch.extension.pybindings import _C as runtime  # noqa: N811 - a module, not a constant
    from torch.utils import _pytree

    runtime._unsafe_reset_threadpool(1)  # noqa: SLF001 - the runtime offers no other way
    module = runtime._load_for_executorch(str(path))  # noqa: SLF001 - likewise
    found = {}
    for name, method in methods.items():
        given = _pytree.tree_leaves((method.inputs, dict(method.kwargs)))
        found[name] = _arrays(module.run_method(name, [value for value in given if value is not None]))
    return found


def graph_outputs(programs: Mapping[str, Any], methods: Mapping[str, EagerMethod]) -> dict[str, list[Array]]:
    """What the exported graphs compute in PyTorch: of quantised ones, what every kernel should come close to."""
    import torch

    with torch.no_grad():
        return {
            name: _arrays(programs[name].module()(*_own(method.inputs), **_own(dict(method.kwargs))))
            for name, method in methods.items()
        }


def save_outputs(path: Path, arrays: Sequence[Array]) -> None:
    """Keep outputs in a file of numpy's, in their order."""
    with path.open("wb") as file:
        np.savez(file, *arrays)


def _own(values: Any) -> Any:  # noqa: ANN401 - a tree of tensors and other values
    """A copy, because a model may write into its inputs."""
    return copy.deepcopy(values)


def _misfit(name: str, method: EagerMethod, error: Exception) -> ExportError | UsageError:
    given = ", ".join(_told(value) for value in method.inputs)
    named = "".join(f", {key}={_told(value)}" for key, value in method.kwargs.items())
    place = place_of(error)
    said = str(error).strip().splitlines()[0] if str(error).strip() else ""
    at = f" at {place}" if place else ""
    problem = f"{name}({given}{named}) fails in PyTorch{at}: {type(error).__name__}: {said[:300]}"
    hint = "the example inputs must fit the model: compare their number, shapes and types with its forward"
    return UsageError(problem, hint=hint)


def _told(value: Any) -> str:  # noqa: ANN401 - an input of any kind
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _arrays(outputs: Any) -> list[Array]:  # noqa: ANN401 - a tree of tensors and numbers
    import torch
    from torch.utils import _pytree

    return [
        _array(leaf) for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor | bool | int | float)
    ]


def _array(value: Any) -> Array:  # noqa: ANN401 - a tensor or a number
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    plain = value.detach().cpu()
    array: Array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array
