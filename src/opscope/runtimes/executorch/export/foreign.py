"""Load the user's own models: import their module, call what builds them, and convert the result."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.core.errors import (
    ExportError,
    MissingDependencyError,
    NotFoundError,
    OpscopeError,
    UsageError,
    did_you_mean,
)
from opscope.core.printable import shell_command
from opscope.runtimes.executorch.export.eager import EagerMethod, EagerModel
from opscope.runtimes.executorch.export.export_errors import export_error, place_of
from opscope.runtimes.executorch.export.registry import BUILD
from opscope.runtimes.executorch.export.source_text import (
    GET_INPUTS,
    INPUTS,
    LIKELY_INPUTS,
    MODEL,
    USUAL_INPUT,
    missing_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


_FEW = 6


def callable_name(module: ModuleType, where: str) -> str:
    """Return the name in a file that gives its model.

    That is ``build``, ``model``, its one class with ExecuTorch's interface for example models, or its one class of
    modules that needs no argument.

    Raises UsageError: several classes are possible; they are named with the command for each; NotFoundError: nothing
    is.
    """
    for name in (BUILD, MODEL):
        if callable(getattr(module, name, None)):
            return name
    givers = [name for name, value in vars(module).items() if _gives_example_model(value, module)]
    if len(givers) == 1:
        return givers[0]
    classes = [name for name, value in vars(module).items() if is_own_module(value, module)]
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
        call = f"{name}({', '.join(f'{argument}=...' for argument in needed(vars(module)[name]))})"
        problem = f"no class can be built without arguments: {', '.join(classes[:_FEW])}"
        hint = f"add to it: model = {call} and example_inputs = (torch.randn(...),)"
        raise NotFoundError(problem, where=where, hint=hint)
    hint = "add to it: def build(): return module, (torch.randn(1, 3, 224, 224),)"
    raise NotFoundError("it defines no build, no model and no module class", where=where, hint=hint)


def _gives_example_model(value: object, module: ModuleType) -> bool:
    """Return whether a value is a class of a file with ExecuTorch's interface for example models."""
    is_own_class = isinstance(value, type) and value.__module__ == module.__name__
    return is_own_class and all(hasattr(value, name) for name in _INTERFACE)


def is_own_module(value: object, module: ModuleType) -> bool:
    """Return whether a value is a class of modules that a file defines itself."""
    bases = [f"{base.__module__}.{base.__name__}" for base in value.__mro__] if isinstance(value, type) else []
    return "torch.nn.modules.module.Module" in bases and getattr(value, "__module__", "") == module.__name__


def needed(function: Callable[..., Any]) -> list[str]:
    """Return the arguments without which a callable cannot be called; empty if Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind not in variable
    ]


def inputs_beside(module: ModuleType) -> tuple[Any, ...] | None:
    """Return ``example_inputs`` of a file: a tensor, a tuple, or the result of a function; None if there are none."""
    example_inputs = getattr(module, INPUTS, None)
    value = example_inputs() if callable(example_inputs) and not hasattr(example_inputs, "shape") else example_inputs
    return value if value is None or isinstance(value, tuple) else (value,)


def example_input(model: Any) -> str:  # noqa: ANN401 - likewise
    """Return an input, as code, that fits the first layer with weights."""
    for part in model.modules():
        if type(part).__name__ in LIKELY_INPUTS:
            size, code = LIKELY_INPUTS[type(part).__name__]
            return code.format(getattr(part, size))
    return USUAL_INPUT


_PACKAGE = "__init__.py"
_WANTED = "return an EagerModel, or a tuple of the module and its example inputs"
_INTERFACE = ("get_eager_model", GET_INPUTS)


def named_module(name: str) -> ModuleType:
    """Import a module by name, which may be in the current directory.

    That directory comes last: a file there with the name of an installed module is not executed in its place.
    """
    _append_import_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "run from its directory, install it, or name the file: FILE.py:CALLABLE"
            raise NotFoundError(f"there is no module {name!r}", where="MODEL", hint=hint) from error
        raise _import_error(name, error) from error
    except Exception as error:  # a module may raise whatever it likes when it is imported
        raise _import_error(name, error) from error


def file_module(path: Path) -> ModuleType:
    """Import the module in a file, which may import from the file's directory and from the current one.

    Both directories come last, see :func:`named_module`. A file with relative imports is imported as a part of its
    packages.
    """
    if path.name == _PACKAGE or (dots := _most_dots(path)):
        return _in_packages(path.resolve(), 0 if path.name == _PACKAGE else dots)
    name = _free_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError("it is not a Python file", where=path, hint="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    _append_import_path(path.resolve().parent)
    _append_import_path(Path.cwd())
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # likewise
        raise _import_error(str(path), error) from error
    return module


def _most_dots(path: Path) -> int:
    """Return the number of dots of the relative import that leads up farthest; 0 without any."""
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
        return max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return 0


def _in_packages(file: Path, dots: int) -> ModuleType:
    """Import the module of a file as part of the directories above it that are packages or that its imports need."""
    directory = file.parent
    chain = [directory]
    while (chain[0].parent / _PACKAGE).is_file() or len(chain) < dots:
        if chain[0] == chain[0].parent:
            problem = f"its relative imports go up {dots} directories, more than exist"
            raise UsageError(problem, where=file, hint="give the file inside its package")
        chain.insert(0, chain[0].parent)
    name = _free_name(_to_identifier(chain[0].name))
    _append_import_path(chain[0].parent)
    _append_import_path(Path.cwd())
    try:
        for number, package_directory in enumerate(chain):
            name = f"{name}.{_to_identifier(package_directory.name)}" if number else name
            _import_package(name, package_directory)
        return sys.modules[name] if file.name == _PACKAGE else importlib.import_module(f"{name}.{file.stem}")
    except Exception as error:  # likewise
        raise _import_error(str(file), error) from error


def _import_package(name: str, directory: Path) -> None:
    """Import a directory as a package of this name; one without a file of its own contains only modules."""
    if name in sys.modules:
        return
    file = directory / _PACKAGE
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(directory)])
    assert spec is not None  # noqa: S101 - it is a Python file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if file.is_file() and spec.loader is not None:
        spec.loader.exec_module(module)


def _to_identifier(name: str) -> str:
    return re.sub(r"\W", "_", name) or "_"


def _append_import_path(directory: Path) -> None:
    """Let modules of a directory be imported, unless an installed one has their name."""
    importlib.import_module("executorch")  # it has no file of its own, so that one of its name would be taken for it
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _free_name(stem: str) -> str:
    """Return a name for a file's module that no other module has, since torch may import that one later."""
    taken = stem in sys.modules or "." in stem or importlib.util.find_spec(stem) is not None
    return f"model_in_{stem.replace('.', '_')}" if taken else stem


def called(module: ModuleType, name: str, where: str) -> EagerModel:
    """Return the model that a callable of a module builds, or is; without a name, that of ``callable_name``."""
    name = name or callable_name(module, where)
    model_object = getattr(module, name, None)
    if model_object is None:
        callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise NotFoundError(f"the module has no {name!r}", where=where, hint=did_you_mean(name, callables))
    if hasattr(model_object, "named_modules") and not isinstance(model_object, type):
        return as_model(_with_inputs(model_object, module, name, where), where)
    if not callable(model_object):
        problem = f"{name} must be callable, got {type(model_object).__name__}"
        raise UsageError(problem, where=where, hint=f"write a function without arguments that will {_WANTED}")
    if missing := needed(model_object):
        call = f"{name}({', '.join(f'{argument}=...' for argument in missing)})"
        hint = f"write a function without arguments and name it: def build(): return {call}, (torch.randn(...),)"
        raise UsageError(f"{name} needs arguments: {', '.join(missing)}", where=where, hint=hint)
    return built(lambda: _add_missing_inputs(model_object(), module, where), where)


def _add_missing_inputs(value: Any, module: ModuleType, where: str) -> Any:  # noqa: ANN401 - whatever the user's code returned
    """Add the example inputs of the file to a module that was returned without inputs."""
    if not hasattr(value, "named_modules") or all(hasattr(value, name) for name in _INTERFACE):
        return value
    return _with_inputs(value, module, f"{type(value).__name__}(...)", where)


def _with_inputs(model: Any, module: ModuleType, call: str, where: str) -> tuple[Any, ...]:  # noqa: ANN401 - likewise
    """Return a model with the example inputs of its file. Raises UsageError if the file has none."""
    inputs = inputs_beside(module)
    if inputs is not None:
        return model, inputs
    raise missing_inputs(type(model).__name__, call, needed(model.forward), example_input(model), where)


def built(builder: Callable[[], Any], where: str) -> EagerModel:
    """Call a builder and return its result as a model; whatever it raises becomes an error of opscope."""
    try:
        return as_model(builder(), where)
    except OpscopeError:
        raise
    except FileNotFoundError as error:
        missing = error.filename or str(error)
        hint = "get the checkpoint that the model loads, or fix its path"
        raise NotFoundError(f"missing file, needed to build the model: {missing}", where=where, hint=hint) from error
    except ModuleNotFoundError as error:
        raise _import_error(where, error) from error
    except Exception as error:  # a builder may raise whatever it likes
        raise _build_error(where, error) from error


def as_model(value: Any, where: str) -> EagerModel:  # noqa: ANN401 - whatever the user's code returned
    """Convert what a builder returned to a model in evaluation mode.

    Accepted are an EagerModel, ``(module, inputs)``, ``(module, inputs, kwargs)``, and objects with ExecuTorch's
    interface for example models (``get_eager_model``, ``get_example_inputs``).
    """
    if all(hasattr(value, name) for name in _INTERFACE):
        # From an object with ExecuTorch's interface for example models; the last two functions are optional there
        kwargs: dict[str, Any] = getattr(value, "get_example_kwarg_inputs", dict)()
        shapes = getattr(value, "get_dynamic_shapes", lambda: None)()
        value = EagerModel.of(value.get_eager_model(), tuple(value.get_example_inputs()), kwargs, shapes)
    elif isinstance(value, tuple) and len(value) in (2, 3):
        value = EagerModel.of(*value)
    elif hasattr(value, "named_modules"):
        hint = f"return both: return {type(value).__name__}(...), ({example_input(value)},)"
        raise UsageError(f"the builder returned a {type(value).__name__} without inputs", where=where, hint=hint)
    if not isinstance(value, EagerModel) or not value.methods:
        problem = f"the builder returned {type(value).__name__}, not a model with example inputs"
        raise UsageError(problem, where=where, hint=_WANTED)
    for name, method in value.methods.items():
        _check_method(name, method, where)
        method.module.eval()
    return value


def _check_method(name: str, method: EagerMethod, where: str) -> None:
    import torch

    if not isinstance(method.module, torch.nn.Module):
        hint = "give a module: wrap the function in the forward of a small module"
        problem = f"the module of {name!r} must be a torch.nn.Module, got {type(method.module).__name__}"
        raise UsageError(problem, where=where, hint=hint)
    if not isinstance(method.inputs, tuple):
        problem = f"the example inputs of {name!r} must be a tuple, got {type(method.inputs).__name__}"
        raise UsageError(problem, where=where, hint="write a single input as (x,)")


def _import_error(where: str, error: Exception) -> MissingDependencyError | UsageError:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        hint = f"install it with: pip install {package}; `opscope models` lists what some models need"
        return MissingDependencyError(f"{package} is needed and not installed", where=where, hint=hint)
    model_line = place_of(error)
    if isinstance(error, SyntaxError):
        return UsageError(f"syntax error in line {error.lineno}: {error.msg}", where=where, hint="fix the file")
    location = f" at {model_line}" if model_line else ""
    problem = f"importing it fails{location}: {type(error).__name__}: {error}"
    return UsageError(problem, where=where, hint="the module must be importable: try python -c 'import ...'")


def _build_error(where: str, error: Exception) -> ExportError:
    shown_error = export_error("building the model", error)
    hint = "call it in a Python shell first: without arguments it must return a model; see the export log"
    if isinstance(error, OSError):
        hint = "a file or download is unavailable; transformers:CONFIGCLASS builds architectures without weights"
    return ExportError(shown_error.problem, where=where, hint=hint)
