"""The process that exports, with the argument ``REQUEST``.

Torch stays out of the calling process, and what it prints goes to the log, which is standard error. Standard output
carries one JSON object a line: the steps, and in the end what was done or why not.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from opscope.errors import OpscopeError
from opscope.export.choices import QUANTISED, Choice
from opscope.export.lower import Places, export, step
from opscope.export.protocol import CHECKS, Done, ExportRequest, Line, Refusal, Step, outputs_file
from opscope.export.sources import load
from opscope.export.trial import eager_outputs, graph_outputs, program_outputs, save_outputs
from opscope.program.exported import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.export.lower import Heard
    from opscope.export.trial import Array

_PACKAGES = ("torch", "executorch", "torchao", "transformers", "numpy")


def main(arguments: Sequence[str]) -> int:
    """Export one model."""
    # Libraries that print must not disturb the answer: their output goes where errors go.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ExportRequest)
    try:
        _say(answer, serve(request, lambda name: _say(answer, Step(name))))
    except OpscopeError as error:
        traceback.print_exc()
        _say(answer, Refusal(error.problem, error.hint, type(error).__name__, error.where))
        return error.exit_code
    return 0


def serve(request: ExportRequest, heard: Heard) -> Done:
    """Export a model, run what came of it, and leave both outputs to be compared.

    Raises:
        OpscopeError: of the kind that fits.
    """
    directory, choice = Path(request.directory), Choice(request.dtype, request.backend)
    stem = choice.stem(request.name)
    places = Places(directory / f"{stem}.pte", directory / f"{stem}.etrecord", directory / "graph.json")
    checks = directory / CHECKS
    checks.mkdir()
    heard("building the model")
    model = load(request.model, Path(request.models) if request.models else None)
    heard("running the model in PyTorch")
    eager = eager_outputs(model.methods)
    _save(checks, "eager", eager)
    lowered = export(model, request.name, choice, places, heard)
    if choice.dtype in QUANTISED:
        with step("running the quantised graph in PyTorch", heard):
            _save(checks, "graph", graph_outputs(lowered.programs, lowered.methods))
    with step("running the program", heard, lowered.programs.values()):
        computed = program_outputs(places.program, lowered.methods)
    _save(checks, "program", computed)
    methods = [
        msgspec.structs.replace(lowered.described(name, model, choice), outputs=_specs(computed[name]))
        for name in lowered.methods
    ]
    return Done(methods, {name: found for name in _PACKAGES if (found := _version(name))})


def _specs(arrays: Sequence[Array]) -> list[TensorSpec]:
    return [TensorSpec(list(array.shape), str(array.dtype)) for array in arrays]


def _save(directory: Path, kind: str, outputs: Mapping[str, Sequence[Array]]) -> None:
    for number, arrays in enumerate(outputs.values()):
        save_outputs(directory / outputs_file(kind, number), arrays)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _say(answer: BinaryIO, line: Line) -> None:
    answer.write(msgspec.json.encode(line) + b"\n")
    answer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
