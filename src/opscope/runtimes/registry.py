"""The registry of runtimes: it finds the runtime of a program or of a trace format.

No other module names one of them.
"""

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
"""The runtime for which models are exported; it also gets the programs that no other runtime recognises."""
_LITERT, _ONNXRUNTIME = LiteRt(), OnnxRuntime()
RUNTIMES: list[Runtime] = [EXPORTER, _LITERT, _ONNXRUNTIME, OpenVino(_ONNXRUNTIME, _LITERT)]
"""All runtimes, in the order in which they are asked and listed."""


def runtime_of(model: str | Path, name: str | None = None) -> Runtime:
    """Return the runtime of a program, by its content, else by its file name; for other models, the exporting runtime.

    ``name`` is the runtime that a user chose. Raises UsageError if it does not exist or does not take the program.
    """
    runtime = _runtime_of(Path(model))
    if name is None or name == runtime.name:
        return runtime
    requested = next((runtime_ for runtime_ in RUNTIMES if runtime_.name == name), None)
    if requested is None:
        hint = did_you_mean(name, [runtime_.name for runtime_ in RUNTIMES])
        raise UsageError(f"there is no runtime {name!r}", where="runtime", hint=hint)
    if runtime.suffix not in requested.takes:
        hint = f"it takes {', '.join((*requested.suffixes, *requested.takes))}; leave it out for {runtime.title}"
        raise UsageError(f"{requested.title} does not run {model}", where="runtime", hint=hint)
    return requested


def title_of(name: str | None, program: str | Path) -> str:
    """Return the title of the runtime of that name; without a name, that of the program's runtime by its suffix.

    The program is not opened, since its path may be one of a manifest.
    """
    by_name = next((runtime.title for runtime in RUNTIMES if runtime.name == name), name)
    return by_name or _runtime_by_suffix(Path(program)).title


def _runtime_of(path: Path) -> Runtime:
    if path.is_file() and (runtime := next((candidate for candidate in RUNTIMES if candidate.holds(path)), None)):
        return runtime
    if (program := program_of(path)) != path:
        return _runtime_of(program)
    return _runtime_by_suffix(path)


def _runtime_by_suffix(program: Path) -> Runtime:
    return next((runtime for runtime in RUNTIMES if program.suffix in runtime.suffixes), EXPORTER)


def program_of(path: Path) -> Path:
    """Return the program in a folder that stands for a model; any other path as it is."""
    programs = (runtime.program_in(path) for runtime in RUNTIMES) if path.is_dir() else ()
    return next((program for program in programs if program is not None), path)


def runtime_of_content(head: bytes) -> Runtime | None:
    """Return the runtime whose programs start with these bytes (at least 8); None if no runtime recognises them."""
    return next((runtime for runtime in RUNTIMES if runtime.is_program(head)), None)


def runtime_of_format(name: str) -> Runtime | None:
    """Return the runtime that writes traces of a format; None for the formats of other tools."""
    return next((runtime for runtime in RUNTIMES if name in runtime.readers), None)


def runtime_attributing(trace_format: str, program: Path) -> Runtime:
    """Return the runtime that attributes a trace to a program.

    It is the runtime of the program if programs are read without their traces, else that of the trace.
    """
    runtime = runtime_of_format(trace_format)
    return runtime if runtime and not runtime.has_model else _runtime_reading(program)


def read_model(program: Path, record: Path | None = None) -> ProgramModel:
    """Read the typed model of a program; see :meth:`opscope.runtimes.runtime.Runtime.model`."""
    return _runtime_reading(program).model(program, record)


def _runtime_reading(program: Path) -> Runtime:
    return runtime_of_content(head_of(program, _HEAD)) or EXPORTER
