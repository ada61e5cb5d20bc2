"""Check the text of a Python file with a model before it is run: importing torch alone takes seconds."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.runtimes.executorch.export.registry import BUILD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL, INPUTS = "model", "example_inputs"
"""Names under which a file can provide a module and its inputs, in place of a function ``build``."""
GET_INPUTS = "get_example_inputs"
"""Name of a method of ExecuTorch's interface for example models."""
LIKELY_INPUTS = {
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
"""Attribute with the input size of a model's first layer with weights, and code for such an input."""
USUAL_INPUT = "torch.randn(1, 3, 224, 224)"


def check_source(path: Path, target: str) -> None:
    """Refuse a file that Python cannot parse, and a class of modules whose inputs nothing in the file can give.

    ``target`` names the callable that builds the model; empty if the file is to tell. A file passes if it may get its
    inputs in a way that its text does not show, such as from a base class in another file.

    Raises UsageError.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"syntax error in line {error.lineno}: {error.msg}", where=path, hint="fix the file") from None
    except (OSError, ValueError, RecursionError):
        return  # the import says what is wrong with it
    names = set(_find_names(tree))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and _is_plain_module(node)]
    model_class = next((node for node in classes if node.name == target), None)
    if not target and len(classes) == 1 and not names & {BUILD, MODEL}:
        model_class = classes[0]
    if model_class is None or names & {INPUTS, GET_INPUTS, "*"} or _find_arguments(model_class, "__init__"):
        return
    call, arguments = f"{model_class.name}(...)", _find_arguments(model_class, "forward")
    raise missing_inputs(model_class.name, call, arguments, _suggest_input(model_class), path)


def missing_inputs(name: str, call: str, arguments: list[str], example: str, where: str | Path) -> UsageError:
    """Return the error for a module without example inputs, with the code to add."""
    hint = (
        f"write {INPUTS} = ({example},) next to it, one tensor per argument of forward ({', '.join(arguments)}); or "
        f"write a function that returns both: def build(): return {call}, ({example},)"
    )
    return UsageError(f"{name} has no example inputs", where=where, hint=hint)


def _find_names(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a file defines, imports or mentions; ``*`` if it imports all names of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def _is_plain_module(node: ast.ClassDef) -> bool:
    """Return whether a class has ``torch.nn.Module`` as its one base, under any of its usual names."""
    return [ast.unparse(base) for base in node.bases] in (["Module"], ["nn.Module"], ["torch.nn.Module"])


def _find_arguments(model_class: ast.ClassDef, method: str) -> list[str]:
    """Return the arguments without which a method of a class cannot be called; empty if it has no such method."""
    for node in model_class.body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            arguments = [*node.args.posonlyargs, *node.args.args][1:]
            return [argument.arg for argument in arguments[: len(arguments) - len(node.args.defaults)]]
    return []


def _suggest_input(model_class: ast.ClassDef) -> str:
    """Return an input, as code, that fits the first layer whose size stands in the class as a number."""
    calls = [node for node in ast.walk(model_class) if isinstance(node, ast.Call) and node.args]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        layer, size = ast.unparse(call.func).rpartition(".")[2], call.args[0]
        if layer in LIKELY_INPUTS and isinstance(size, ast.Constant) and isinstance(size.value, int):
            return LIKELY_INPUTS[layer][1].format(size.value)
    return USUAL_INPUT
