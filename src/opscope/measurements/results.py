"""Results as the functions of the Python API return them: one line, tables in a notebook, data frames, charts.

Each is the result that the command line works with, and can also be shown and converted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opscope.analysis.analysis import Analysis
from opscope.analysis.bisection import Bisection
from opscope.analysis.compare.compare import Comparison
from opscope.analysis.gate.decision import Decision
from opscope.analysis.gate.gate import ComparisonEvidence
from opscope.analysis.kernels.kernels import KernelView
from opscope.analysis.preflight.preflight import Preflight
from opscope.analysis.tuning import Tuning
from opscope.analysis.work.work import Work
from opscope.bundle.validation import Validation
from opscope.core.table import EventTable
from opscope.measurements.notebook import NotebookResult, check_most

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import altair as alt
    import polars as pl

    from opscope.analysis.operators.operators import OperatorFacts
    from opscope.core.table.places import OperatorKey
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Document


@dataclass(frozen=True, repr=False, eq=False)
class EventsResult(NotebookResult, EventTable):
    """Events of traces, as :func:`opscope.read` gives them.

    ``path`` is what was read, ``known`` what the program says about its operators: empty without a program.

    >>> import opscope
    >>> events = opscope.read("trace.etdump")
    >>> events
    <EventsResult trace.etdump: 20 events, 4 inferences, 1 trace file>
    >>> events.to_polars().columns[:4]
    ['process', 'run', 'inference', 'warmup']
    >>> events.by_layer()["self_time"].sum() == events.inferences()["duration"].sum()
    True
    """

    path: str = ""
    known: Mapping[OperatorKey, OperatorFacts] = field(default_factory=dict)

    def to_polars(self) -> pl.DataFrame:
        """Return every event in a row; the columns are those of the event table's reference."""
        return self.frame

    def with_layers(self) -> pl.DataFrame:
        """Return the rows of ``to_polars`` with the layer of each event.

        The columns behind them are ``module``, ``module_type``, ``aten``, ``source`` and ``attribution``. They are null
        where a layer is not known: without a program and its record, and for the framework's own time.
        """
        from opscope.reports.formats.frames import layer_frame

        return layer_frame(self.frame, self.known)

    def by_layer(self) -> pl.DataFrame:
        """Return the self time of every layer in every inference, by process, inference and first event.

        Columns: ``process``, ``inference``, ``warmup``, ``method``, ``module``, ``module_type``, ``events`` and
        ``self_time``. The time of each inference adds up to its latency; ``module`` is null for what no layer claims.
        """
        from opscope.reports.formats.frames import layer_times

        return layer_times(self.with_layers())

    def _build_document(self) -> Document:
        from opscope.reports.inspected import events_document

        return events_document(self, self.path)


class AnalysisResult(NotebookResult, Analysis, frozen=True):
    """Split of the time of one trace or variant, as :func:`opscope.analyze` gives it.

    >>> import opscope
    >>> where = opscope.analyze("out#accelerated")
    >>> where.variant
    'accelerated'
    >>> where.to_polars().select("name", "category", "time_ns").width
    3
    """

    def to_polars(self) -> pl.DataFrame:
        """Return every operator in a row, in program order; columns as in ``operators.csv``."""
        from opscope.reports.formats.frames import operator_frame

        return operator_frame(self)

    def plot(self, most: int = 20) -> alt.Chart:
        """Draw the longest operators as bars, coloured by category, as a chart of Altair's.

        Args:
            most: bars at most; the title says what they leave out.

        Raises:
            UsageError: fewer than one is asked for.
        """
        from opscope.reports.pictures.operator_bars import operator_bars

        check_most(most)
        return operator_bars(self, most)

    def _build_document(self) -> Document:
        from opscope.reports.inspected import analysis_document

        return analysis_document(self)


class ComparisonResult(NotebookResult, Comparison, frozen=True):
    """Verdict on a difference and its split, as :func:`opscope.compare` gives it.

    >>> import opscope
    >>> change = opscope.compare("out#baseline", "out#accelerated")
    >>> change.end_to_end.verdict.value
    'faster'
    >>> change.to_polars().select("name", "saved_ns", "verdict").height == len(change.operators)
    True
    """

    def to_polars(self) -> pl.DataFrame:
        """Return every operator of both sides in a row; a side that does not have it is null."""
        from opscope.reports.formats.frames import change_frame

        return change_frame(self)

    def plot(self) -> alt.LayerChart:
        """Draw the steps from one latency to the other by kind of operator, as a chart of Altair's."""
        from opscope.reports.pictures.steps import shift_chart

        return shift_chart(self)

    def _build_document(self) -> Document:
        from opscope.reports.comparison import comparison_document

        return comparison_document(self)


@dataclass(frozen=True, repr=False)
class Profiled(NotebookResult):
    """Result of :func:`opscope.profile`.

    Attributes:
        path: directory of the bundle.
        content: what its report shows.
        files: the reports that were written.
        notes: what was asked for and had no effect, one sentence each.
    """

    path: Path
    content: ReportContent
    files: list[Path]
    notes: list[str] = field(default_factory=list)

    def to_polars(self) -> pl.DataFrame:
        """Return the operators of every variant, a row each, with the variant's name in the first column."""
        from opscope.reports.formats.frames import content_frame

        return content_frame(self.content)

    def _build_document(self) -> Document:
        from opscope.reports.report import first_document

        return first_document(self.content)._replace(title=str(self.path))


class GateResult(NotebookResult, Decision[ComparisonEvidence], frozen=True):
    """Decision of a gate, as :func:`opscope.check` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every limit in a row, the end-to-end slowdown first; figures are in their ``quantity``."""
        from opscope.reports.formats.frames import gate_frame

        return gate_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.document.blocks import NOTEBOOK_ROWS
        from opscope.reports.gate import comparison_text, gate_document

        document = gate_document(self, comparison_text(self), NOTEBOOK_ROWS)
        return document._replace(title=f"{self.evidence.candidate.path} against {self.evidence.baseline.path}")


class ValidationResult(NotebookResult, Validation, frozen=True):
    """Check of whether a bundle is complete and true, as :func:`opscope.validate` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every check in a row, in their order; ``problems`` is the number that each found."""
        from opscope.reports.formats.frames import validation_frame

        return validation_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.validation import validation_document

        return validation_document(self)


class PreflightResult(NotebookResult, Preflight, frozen=True):
    """Preflight of a program before it runs, as :func:`opscope.preflight` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return the work of each method by category, delegated and portable, a row each."""
        from opscope.reports.formats.frames import preflight_frame

        return preflight_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.preflight import preflight_document

        return preflight_document(self)


class WorkResult(NotebookResult, Work, frozen=True):
    """Work that the operators of a model execute, as :func:`opscope.count` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every operator in a row, in execution order, with a column per class of instructions."""
        from opscope.reports.formats.frames import work_frame

        return work_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.work import work_document

        return work_document(self)


class BisectionResult(NotebookResult, Bisection, frozen=True):
    """Bisection for what made a model slower, as :func:`opscope.bisect` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every state in a row, from the good end to the bad one."""
        from opscope.reports.formats.frames import bisection_frame

        return bisection_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.bisection import bisection_document

        return bisection_document(self)


class TuningResult(NotebookResult, Tuning, frozen=True):
    """Search for a setting that is faster than a runtime's default, as :func:`opscope.tune` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every setting in a row, the default first, then finalists."""
        from opscope.reports.formats.frames import tuning_frame

        return tuning_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.tuning import tuning_document

        return tuning_document(self)


class KernelsResult(NotebookResult, KernelView, frozen=True):
    """Kernels of some runs, as far as they are known, as :func:`opscope.kernels` gives them."""

    def to_polars(self) -> pl.DataFrame:
        """Return what each source says of each kernel, a row per pair; ``evidence`` says what ``amount`` counts."""
        from opscope.reports.formats.frames import kernel_frame

        return kernel_frame(self)

    def _build_document(self) -> Document:
        from opscope.reports.kernel_evidence import kernel_document

        return kernel_document(self)
