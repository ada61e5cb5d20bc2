"""Results that judge or look ahead, as the functions of the Python API return them: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.gate.gate import GateReport
from opscope.analysis.kernels.kernels import KernelView
from opscope.analysis.preflight.preflight import Preflight
from opscope.bundle.validation import Validation
from opscope.measurements.notebook import NotebookResult

if TYPE_CHECKING:
    import polars as pl

    from opscope.reports.notebook.card import Card


class GateResult(NotebookResult, GateReport, frozen=True):
    """The decision of a gate, as :func:`opscope.check` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every limit in a row, the end-to-end slowdown first; figures are in the unit of their ``quantity``."""
        from opscope.reports.formats.frames import gate_frame

        return gate_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import gate_card

        return gate_card(self)


class ValidationResult(NotebookResult, Validation, frozen=True):
    """Whether a bundle is complete and true, as :func:`opscope.validate` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every check in a row, in their order; ``problems`` is how many each found."""
        from opscope.reports.formats.frames import validation_frame

        return validation_frame(self)

    def _card(self) -> Card:
        from opscope.reports.notebook.judged import validation_card

        return validation_card(self)


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
