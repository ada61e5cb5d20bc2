"""What a program tells before it runs, and which kernels ran, as the functions of the Python API return it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.kernels.kernels import KernelView
from opscope.analysis.preflight.preflight import Preflight
from opscope.measurements.notebook import NotebookResult

if TYPE_CHECKING:
    import polars as pl

    from opscope.reports.notebook.card import Card


class PreflightResult(NotebookResult, Preflight, frozen=True):
    """What a program tells before it runs, as :func:`opscope.preflight` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """The work of each method by category, delegated and portable, a row each."""
        from opscope.reports.formats.frames import preflight_frame

        return preflight_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import preflight_card

        return preflight_card(self)


class KernelsResult(NotebookResult, KernelView, frozen=True):
    """What is known of the kernels of some runs, as :func:`opscope.kernels` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """What each source says of each kernel, a row a pair; ``amount`` counts calls or samples, see ``evidence``."""
        from opscope.reports.formats.frames import kernel_frame

        return kernel_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import kernels_card

        return kernels_card(self)
