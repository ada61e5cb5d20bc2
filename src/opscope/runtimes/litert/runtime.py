"""LiteRT as a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.program.structure.signature import Signature


class LiteRt(Runtime):
    """Runs a .tflite, with the XNNPACK delegate or with its own kernels."""

    name = "litert"
    title = "LiteRT"
    suffixes = (".tflite",)
    chooses_delegate = True

    def fits(self, path: Path) -> bool:
        """By its name, or its first bytes."""
        from opscope.runtimes.litert.signatures import is_tflite

        return is_tflite(path)

    def check(self, path: Path) -> None:
        """Refuse inputs that cannot be given."""
        from opscope.runtimes.litert.signatures import check_callable, read_callable

        check_callable(read_callable(path), path)

    def check_without_delegate(self, path: Path) -> None:
        """Refuse operators that only the delegate runs."""
        from opscope.runtimes.litert.signatures import check_without_delegate

        check_without_delegate(path)

    def signatures(self, program: Path) -> Sequence[Signature]:
        """Those of the model, or the one that LiteRT makes of it."""
        from opscope.runtimes.litert.signatures import read_callable

        return read_callable(program).signatures
