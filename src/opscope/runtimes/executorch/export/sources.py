"""Find out what MODEL on the command line names: where it comes from, its name, and how it is built.

NAME                      a registered model, or NAME.py in the user's directory of models
FILE.py[:CALLABLE]        a file; without a callable its ``build``, its ``model``, or its one class of modules
DIR:CALLABLE              a package, by its directory
MODULE:CALLABLE           an importable module
transformers:CONFIGCLASS  a small random model of Hugging Face's transformers
executorch:NAME           a model of ExecuTorch's own example registry
"""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import NotFoundError, UsageError, did_you_mean
from opscope.runtimes.executorch.export.registry import BUILD, MODELS, known, model_file, model_names
from opscope.runtimes.executorch.export.source_text import check_source

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

MODELS_VARIABLE = "OPSCOPE_MODELS"
DEFAULT_MODELS = Path("opscope-models")
_PREFIXES = ("transformers", "executorch")


class SourceKind(str, enum.Enum):
    """Origin of a model."""

    REGISTERED = "registered"
    FILE = "file"
    MODULE = "module"
    TRANSFORMERS = "transformers"
    EXECUTORCH = "executorch"


class ModelSource(NamedTuple):
    """A model that a user named."""

    kind: SourceKind  # where it comes from
    origin: str  # registered name, path of the file, or name of the module
    # callable, configuration class or name in a registry; empty for registered models, and where a file tells
    target: str
    name: str  # for files and directories: letters, digits, `_`, `-` and `.` only


def models_directory(directory: Path | None = None) -> Path:
    """Return the user's directory of models: the given one, else ``OPSCOPE_MODELS``, else ``opscope-models`` here."""
    return directory or Path(os.environ.get(MODELS_VARIABLE) or DEFAULT_MODELS)


def source_of(model: str, models: Path | None = None) -> ModelSource:
    """Return the model that a text names; nothing is imported. Raises NotFoundError or UsageError if there is none."""
    origin, colon, target = model.rpartition(":") if ":" in model else (model, "", "")
    if origin.endswith(".py"):
        return _source_of_file(Path(origin), target)
    if colon and (Path(origin) / "__init__.py").is_file():
        return _source_of_file(Path(origin) / "__init__.py", target)
    if colon:
        if not target or not all(part.isidentifier() for part in origin.split(".")):
            hint = "MODULE:CALLABLE, FILE.py:CALLABLE, transformers:CONFIGCLASS or executorch:NAME"
            raise UsageError(f"{model!r} is not a model name", where="MODEL", hint=hint)
        if origin in _PREFIXES:
            kind = SourceKind(origin)
            short = target.removesuffix("Config").lower() if kind is SourceKind.TRANSFORMERS else target
            return ModelSource(kind, origin, target, _safe_name(short or target))
        return ModelSource(SourceKind.MODULE, origin, target, _safe_name(target))
    if known(model):
        return ModelSource(SourceKind.REGISTERED, model, "", _safe_name(model))
    file = model_file(models_directory(models), model)
    if file is not None:
        return _source_of_file(file, "")
    raise _not_found_error(model, models)


def load(model: str, models: Path | None = None) -> EagerModel:
    """Build the model that a text names; this imports torch and the model's own code."""
    source = source_of(model, models)
    if source.kind is SourceKind.REGISTERED:
        from opscope.runtimes.executorch.export.foreign import built
        from opscope.runtimes.executorch.export.registry import builder

        return built(builder(source.origin), source.origin)
    if source.kind is SourceKind.TRANSFORMERS:
        from opscope.runtimes.executorch.export.packaged_models import transformers_model

        return transformers_model(source.target)
    if source.kind is SourceKind.EXECUTORCH:
        from opscope.runtimes.executorch.export.packaged_models import executorch_model

        return executorch_model(source.target)
    from opscope.runtimes.executorch.export.foreign import called, file_module, named_module

    module = file_module(Path(source.origin)) if source.kind is SourceKind.FILE else named_module(source.origin)
    return called(module, source.target, source.origin)


def _source_of_file(path: Path, target: str) -> ModelSource:
    if not path.is_file():
        raise NotFoundError("there is no such file", where=path, hint="write one with: opscope init --model NAME")
    check_source(path, target)
    return ModelSource(SourceKind.FILE, str(path), target, _safe_name(path.stem if target in {"", BUILD} else target))


def _not_found_error(model: str, models: Path | None) -> NotFoundError:
    if model.endswith(".pte"):
        hint = "profile it with opscope profile, or inspect it with opscope preflight"
        return NotFoundError("it is already a program; only models can be exported", where=model, hint=hint)
    if Path(model).suffix:
        hint = "check its path; `opscope models` lists models by their names"
        return NotFoundError("no such file", where=model, hint=hint)
    directory = models_directory(models)
    names = [*(entry.name for entry in MODELS), *model_names(directory)]
    hint = f"{did_you_mean(model, names)}; `opscope models` lists them; for your own model: opscope init --model NAME"
    return NotFoundError(f"no model {model!r}", hint=hint)


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._-") or "model"
