"""Programs of other runtimes than ExecuTorch: how each kind is known, what its caller gives, what lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.runtimes.litert.signatures import SUFFIX as TFLITE
from opscope.runtimes.litert.signatures import check_callable, is_tflite, read_callable
from opscope.runtimes.onnxruntime.onnx_file import SUFFIX as ONNX
from opscope.runtimes.onnxruntime.onnx_file import external_paths, is_onnx, read_onnx
from opscope.runtimes.onnxruntime.signatures import check_runnable, read_signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.structure.signature import Signature


class ProgramKind(NamedTuple):
    """A kind of program.

    Attributes:
        runtime: that runs it, as people call it.
        suffix: of its files.
        fits: whether a file is one, or is named like one.
        check: refuses what its runtime cannot run.
        signatures: functions that a caller can name; never empty.
        beside: files with its weights.
        sizes_given: whether sizes that the program leaves open can be given.
    """

    runtime: str
    suffix: str
    fits: Callable[[Path], bool]
    check: Callable[[Path], None]
    signatures: Callable[[Path], tuple[Signature, ...]]
    beside: Callable[[Path], list[Path]]
    sizes_given: bool


LITERT = ProgramKind(
    runtime="LiteRT",
    suffix=TFLITE,
    fits=is_tflite,
    check=lambda path: check_callable(read_callable(path), path),
    signatures=lambda path: read_callable(path).signatures,
    beside=lambda _: [],
    sizes_given=False,
)
ONNX_RUNTIME = ProgramKind(
    runtime="ONNX Runtime",
    suffix=ONNX,
    fits=is_onnx,
    check=check_runnable,
    signatures=lambda path: (read_signature(path),),
    beside=lambda path: external_paths(read_onnx(path), path),
    sizes_given=True,
)
KINDS = (LITERT, ONNX_RUNTIME)


def kind_of_program(path: str | Path) -> ProgramKind | None:
    """The kind of a program; None for one of ExecuTorch, and for a model that is to be exported."""
    place = Path(path)
    return next((kind for kind in KINDS if kind.fits(place)), None)
