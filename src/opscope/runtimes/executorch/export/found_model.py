"""The model of a file that was named without a callable, and example inputs that stand beside a module."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from opscope.core.errors import NotFoundError, UsageError
from opscope.core.printable import shell_command
from opscope.runtimes.executorch.export.user_models import BUILD

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

MODEL, INPUTS = "model", "example_inputs"
"""Names that a file can give a module and its inputs, in place of a function ``build``."""
_FEW = 6


def callable_name(module: ModuleType, where: str) -> str:
    """The name in a file that gives its model: ``build``, ``model``, or its one class of modules that needs nothing.

    Raises:
        UsageError: several classes are possible; they are named with the command for each.
        NotFoundError: nothing is.
    """
    for name in (BUILD, MODEL):
        if callable(getattr(module, name, None)):
            return name
    classes = [name for name, found in vars(module).items() if is_own_module(found, module)]
    ready = [name for name in classes if not needed(vars(module)[name])]
    if len(ready) == 1:
        return ready[0]
    if ready:
        commands = "; ".join(shell_command(["opscope", "export", f"{where}:{name}"]) for name in ready[:_FEW])
        raise UsageError(
            f"several classes could be the model: {', '.join(ready)}", where=where, hint=f"name one: {commands}"
        )
    if classes:
        name = classes[-1]
        call = f"{name}({', '.join(f'{one}=...' for one in needed(vars(module)[name]))})"
        problem = f"no class can be built without arguments: {', '.join(classes[:_FEW])}"
        hint = f"add to it: model = {call} and example_inputs = (torch.randn(...),)"
        raise NotFoundError(problem, where=where, hint=hint)
    hint = "add to it: def build(): return module, (torch.randn(1, 3, 224, 224),)"
    raise NotFoundError("it defines no build, no model and no module class", where=where, hint=hint)


def is_own_module(found: object, module: ModuleType) -> bool:
    """Whether it is a class of modules that a file defines itself."""
    bases = [f"{base.__module__}.{base.__name__}" for base in found.__mro__] if isinstance(found, type) else []
    return "torch.nn.modules.module.Module" in bases and getattr(found, "__module__", "") == module.__name__


def needed(found: Callable[..., Any]) -> list[str]:
    """The arguments without which it cannot be called; none where Python cannot tell."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind not in variable]


def inputs_beside(module: ModuleType) -> tuple[Any, ...] | None:
    """``example_inputs`` of a file: a tensor, a tuple, or a function that gives one; None where there are none."""
    given = getattr(module, INPUTS, None)
    value = given() if callable(given) and not hasattr(given, "shape") else given
    return value if value is None or isinstance(value, tuple) else (value,)


_LIKELY = {
    "Conv1d": ("in_channels", "torch.randn(1, {}, 128)"),
    "Conv2d": ("in_channels", "torch.randn(1, {}, 224, 224)"),
    "Conv3d": ("in_channels", "torch.randn(1, {}, 16, 64, 64)"),
    "Embedding": ("num_embeddings", "torch.randint(0, {}, (1, 32))"),
    "GRU": ("input_size", "torch.randn(1, 32, {})"),
    "LSTM": ("input_size", "torch.randn(1, 32, {})"),
    "Linear": ("in_features", "torch.randn(1, {})"),
    "MultiheadAttention": ("embed_dim", "torch.randn(1, 32, {})"),
    "RNN": ("input_size", "torch.randn(1, 32, {})"),
}
"""Of a model's first layer with weights the attribute that is a size of its input, and such an input."""


def example_input(model: Any) -> str:  # noqa: ANN401 - likewise
    """An input that fits the first layer with weights, as code."""
    for part in model.modules():
        if type(part).__name__ in _LIKELY:
            size, code = _LIKELY[type(part).__name__]
            return code.format(getattr(part, size))
    return "torch.randn(1, 3, 224, 224)"
