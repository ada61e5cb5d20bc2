"""ONNX Runtime as a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.program.structure.signature import Signature


class OnnxRuntime(Runtime):
    """Runs an .onnx in a session."""

    name = "onnxruntime"
    title = "ONNX Runtime"
    suffixes = (".onnx",)
    has_options = True

    def fits(self, path: Path) -> bool:
        """By its name, or its first bytes."""
        from opscope.runtimes.onnxruntime.onnx_file import is_onnx

        return is_onnx(path)

    def check(self, path: Path) -> None:
        """Refuse a model that no session can be made of."""
        from opscope.runtimes.onnxruntime.signatures import check_runnable

        check_runnable(path)

    def check_options(self, options: Mapping[str, str] | None) -> None:
        """Refuse options that no session has."""
        from opscope.runtimes.onnxruntime.options import session_choice

        session_choice(options)

    def files(self, program: Path, data: Path | None) -> list[Path]:  # noqa: ARG002 - the program names its weights
        """The program, and the files with its weights."""
        from opscope.runtimes.onnxruntime.onnx_file import external_paths, read_onnx

        return [program, *external_paths(read_onnx(program), program)]

    def signatures(self, program: Path) -> Sequence[Signature]:
        """The one function of the model."""
        from opscope.runtimes.onnxruntime.signatures import read_signature

        return (read_signature(program),)
