"""Describe what went wrong in an export for the author of the model: the operator, the line, and what to try."""

from __future__ import annotations

import linecache
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.core.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OPERATOR = re.compile(
    r"\b(?:torch\.ops\.)?(?P<space>aten|prims|higher_order|quantized_decomposed)(?:::|\.)(?P<name>\w+(?:\.\w+)?)"
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_MACHINERY = ("torch", "torchao", "executorch")
_MODELS = (("executorch", "examples"), ("opscope", "runtimes", "executorch", "export", "models"))
_LONGEST = 300
_LOG = "see the export log for the full message"
# What to try, by what torch or ExecuTorch says; the first that fits.
_ADVICE = (
    (
        r"in _detect_is_causal_mask",
        "PyTorch compares the mask with a causal one: call the encoder with is_causal=False (a decoder tgt_is_causal)",
    ),
    (
        r"data-dependent|GuardOnDataDependent|DynamicControlFlow|Could not extract specialized integer",
        "a branch or size depends on a tensor's value: use torch.where or torch.cond, or make it constant",
    ),
    (
        r"[Mm]issing out variant|not Aten Canonical|not in Core ATen|[Mm]issing operator|no kernel",
        "ExecuTorch has no kernel for this operator: express it with others in a wrapper module",
    ),
    (
        r"[Cc]onstraints violated|dynamic_shapes|specialized",
        "dynamic_shapes must match the inputs one by one; a size fixed by the model cannot be dynamic",
    ),
    (
        r"(expected|have|same|match).{0,60}(dtype|scalar type|Half|Float)|(dtype|scalar type).{0,60}(mismatch|same)",
        "the model mixes number types: create tensors in forward with the input's type, or export in fp32",
    ),
    (
        r"Failed to trace|torch\.jit|ScriptModule",
        "the module is already compiled: export the original nn.Module",
    ),
)


class ModelLine(NamedTuple):
    """A line of a model's code."""

    file: str
    line: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}" + (f" `{code}`" if code else "")


def export_error(step: str, error: BaseException, graphs: Iterable[Any] = ()) -> ExportError:
    """Return the error that a user sees for an exception of torch or ExecuTorch."""
    message = "\n".join(str(cause) for cause in _iterate_causes(error))
    operator = operator_in(message)
    model_line = (
        place_of(error) or _find_line_in_text(message) or (_line_of_operator(operator, graphs) if operator else None)
    )
    parts = [f"{step} failed"]
    if model_line:
        parts.append(f" at {model_line}")
    if operator and operator not in first_line(error):
        parts.append(f", operator {operator}")
    function_names = "\n".join(
        f"in {frame.f_code.co_name}" for cause in _iterate_causes(error) for frame, _ in _iterate_frames(cause)
    )
    return ExportError(f"{''.join(parts)}: {first_line(error)}", hint=f"{advice(f'{function_names}{message}')}; {_LOG}")


def advice(message: str) -> str:
    """Return advice on an error, by its message and the functions in which it was raised."""
    for pattern, hint in _ADVICE:
        if re.search(pattern, message):
            return hint
    return "check the named line, or remove parts of the model until the rest exports"


def operator_in(message: str) -> str | None:
    """Return the first operator that a message names, such as ``aten.add.Tensor``; None if it names none."""
    match = _OPERATOR.search(message)
    return f"{match['space']}.{match['name']}" if match else None


def place_of(error: BaseException) -> ModelLine | None:
    """Return the innermost line of the model's own code in the traceback; None if there is none."""
    for cause in _iterate_causes(error):
        frames = [ModelLine(frame.f_code.co_filename, line) for frame, line in _iterate_frames(cause)]
        lines = [model_line for model_line in frames if is_model_code(model_line.file)]
        if lines:
            return lines[-1]
    return None


def is_model_code(file: str) -> bool:
    """Return whether a file is a model's: not of Python's library, torch, ExecuTorch or this exporter."""
    path = Path(file)
    if file.startswith("<") or (path.is_relative_to(sysconfig.get_paths()["stdlib"]) and "site-packages" not in file):
        return False
    if any(_has_sequence(path.parts, models) for models in _MODELS):
        return True
    package = path.parts[path.parts.index("site-packages") + 1] if "site-packages" in path.parts[:-1] else ""
    return package not in _MACHINERY and not _has_sequence(path.parts, ("opscope", "runtimes", "executorch", "export"))


def source_of(node: Any) -> ModelLine | None:  # noqa: ANN401 - a node of torch.fx
    """Return the line of Python that a node of an exported graph came from; None if it is unknown."""
    return _find_line_in_text(str(node.meta.get("stack_trace") or ""), last=True)


def _has_sequence(parts: tuple[str, ...], sequence: tuple[str, ...]) -> bool:
    return any(parts[at : at + len(sequence)] == sequence for at in range(len(parts)))


def _find_line_in_text(text: str, *, last: bool = False) -> ModelLine | None:
    """Return a line of the model's code that a text names: the last such line of a recorded stack; None without one."""
    lines = [ModelLine(match["file"], int(match["line"])) for match in _FRAME.finditer(text)]
    model_lines = lines if last else [model_line for model_line in lines if is_model_code(model_line.file)]
    return model_lines[-1] if model_lines else None


def _line_of_operator(operator: str, graphs: Iterable[Any]) -> ModelLine | None:
    """Return the line of the first node that calls an operator, with any overload, else of one that contains it."""
    call_nodes = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    name = operator.split(".")[1]
    exact = [node for node in call_nodes if _operator_name(node) == name]
    containing = [node for node in call_nodes if name.strip("_") in _operator_name(node)]
    lines = [model_line for node in (*exact, *containing) if (model_line := source_of(node)) is not None]
    return lines[0] if lines else None


def _operator_name(node: Any) -> str:  # noqa: ANN401 - a node of torch.fx
    """Return the name of a node's operator without namespace and overload."""
    return [*str(node.target).split("."), ""][1]


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _iterate_frames(error: BaseException) -> Iterator[tuple[Any, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def first_line(error: BaseException) -> str:
    """Return the class of an exception and the first line of its message."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
