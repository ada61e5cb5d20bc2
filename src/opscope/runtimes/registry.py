"""The runtimes that there are: what a program or a format belongs to. Nothing else names one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import UsageError, did_you_mean
from opscope.core.files import head_of
from opscope.runtimes.executorch.runtime import ExecuTorch
from opscope.runtimes.litert.runtime import LiteRt
from opscope.runtimes.onnxruntime.runtime import OnnxRuntime
from opscope.runtimes.openvino.runtime import OpenVino

if TYPE_CHECKING:
    from opscope.program.model import ProgramModel
    from opscope.runtimes.runtime import Runtime

_HEAD = 8
EXPORTER = ExecuTorch()
"""The one for which models are exported; it runs the programs that no other claims."""
_LITERT, _ONNXRUNTIME = LiteRt(), OnnxRuntime()
RUNTIMES: list[Runtime] = [EXPORTER, _LITERT, _ONNXRUNTIME, OpenVino(_ONNXRUNTIME, _LITERT)]
"""In the order in which they are asked and told of."""


def runtime_of(model: str | Path, named: str | None = None) -> Runtime:
    """The runtime of a program, by what the file holds, else by its name; or of a model that is to be exported.

    ``named`` is one that was asked for: a UsageError says that there is none, or that it does not take the program.
    """
    runtime = _runtime_of(Path(model))
    if named is None or named == runtime.name:
        return runtime
    asked = next((one for one in RUNTIMES if one.name == named), None)
    if asked is None:
        hint = did_you_mean(named, [one.name for one in RUNTIMES])
        raise UsageError(f"there is no runtime {named!r}", where="runtime", hint=hint)
    if runtime.suffix not in asked.takes:
        hint = f"it takes {', '.join((*asked.suffixes, *asked.takes))}; leave it out for {runtime.title}"
        raise UsageError(f"{asked.title} does not run {model}", where="runtime", hint=hint)
    return asked


def title_of(named: str | None, program: str | Path) -> str:
    """Return what people call the runtime of that name; where none was named, that of a program by its suffix.

    The program is not opened: its path may be one of a manifest.
    """
    by_name = next((one.title for one in RUNTIMES if one.name == named), named)
    return by_name or _runtime_by_suffix(Path(program)).title


def _runtime_of(place: Path) -> Runtime:
    if place.is_file() and (runtime := next((one for one in RUNTIMES if one.holds(place)), None)):
        return runtime
    if (program := program_of(place)) != place:
        return _runtime_of(program)
    return _runtime_by_suffix(place)


def _runtime_by_suffix(program: Path) -> Runtime:
    return next((one for one in RUNTIMES if program.suffix in one.suffixes), EXPORTER)


def program_of(place: Path) -> Path:
    """The program of a folder that stands for a model; any other path as it is."""
    found = (one.program_in(place) for one in RUNTIMES) if place.is_dir() else ()
    return next((program for program in found if program is not None), place)


def runtime_of_content(head: bytes) -> Runtime | None:
    """The runtime whose program a file is that starts with these bytes (at least 8), where such programs are read."""
    return next((one for one in RUNTIMES if one.is_program(head)), None)


def runtime_of_format(name: str) -> Runtime | None:
    """The runtime whose traces have a format; None for formats of nobody, and for those of other tools."""
    return next((one for one in RUNTIMES if name in one.readers), None)


def runtime_attributing(trace_format: str, program: Path) -> Runtime:
    """The runtime that attributes a trace with a program: that of the program, where it is read without the trace."""
    runtime = runtime_of_format(trace_format)
    return runtime if runtime and not runtime.has_model else _reading(program)


def read_model(program: Path, record: Path | None = None) -> ProgramModel:
    """The typed picture of a model; see :meth:`opscope.runtimes.runtime.Runtime.model`."""
    return _reading(program).model(program, record)


def _reading(program: Path) -> Runtime:
    return runtime_of_content(head_of(program, _HEAD)) or EXPORTER
