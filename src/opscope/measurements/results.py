"""Results as ``opscope.read``, ``analyze``, ``compare`` and ``profile`` return them: tables in a notebook, data frames.

Each is the result that the command line works with, and can also be shown and converted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import Comparison
from opscope.core.table import EventTable

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import polars as pl

    from opscope.reports.content.content import ReportContent


class HasFrame(Protocol):
    """A result that becomes a polars data frame."""

    def to_polars(self) -> pl.DataFrame:
        """The result in rows; text and numbers in the cells, times in the clock of the trace."""
        ...


class Pandas:
    """What every result with a polars data frame has besides."""

    __slots__ = ()

    def to_pandas(self: HasFrame) -> pd.DataFrame:
        """The frame of ``to_polars`` as one of pandas; what is missing is ``pandas.NA``.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        from opscope.reports.formats.frames import pandas_frame

        return pandas_frame(self.to_polars())


class EventsResult(EventTable, Pandas):
    """The events of traces, as :func:`opscope.read` gives them.

    >>> import opscope
    >>> events = opscope.read("trace.etdump")
    >>> events.processes
    1
    >>> events.to_polars().columns[:4]
    ['process', 'run', 'inference', 'warmup']
    """

    def to_polars(self) -> pl.DataFrame:
        """Every event in a row; the columns are those of the event table's reference."""
        return self.frame

    def _repr_html_(self) -> str:
        from opscope.reports.notebook import events_html

        return events_html(self)


class AnalysisResult(Analysis, Pandas, frozen=True):
    """Where the time of one trace or variant goes, as :func:`opscope.analyze` gives it.

    >>> import opscope
    >>> where = opscope.analyze("out#accelerated")
    >>> where.variant
    'accelerated'
    >>> where.to_polars().select("name", "category", "time_ns").width
    3
    """

    def to_polars(self) -> pl.DataFrame:
        """Every operator in a row, in program order; columns as in ``operators.csv``."""
        from opscope.reports.formats.frames import operator_frame

        return operator_frame(self)

    def _repr_html_(self) -> str:
        from opscope.reports.notebook import analysis_html

        return analysis_html(self)


class ComparisonResult(Comparison, Pandas, frozen=True):
    """Verdict and split of a difference, as :func:`opscope.compare` gives it.

    >>> import opscope
    >>> change = opscope.compare("out#baseline", "out#accelerated")
    >>> change.end_to_end.verdict.value
    'faster'
    >>> change.to_polars().select("name", "saved_ns", "verdict").height == len(change.operators)
    True
    """

    def to_polars(self) -> pl.DataFrame:
        """Every operator of both sides in a row; a side that does not have it is null."""
        from opscope.reports.formats.frames import change_frame

        return change_frame(self)

    def _repr_html_(self) -> str:
        from opscope.reports.notebook import comparison_html

        return comparison_html(self)


@dataclass(frozen=True)
class Profiled(Pandas):
    """What :func:`opscope.profile` did.

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
        """The operators of every variant, a row each, with the variant's name in the first column."""
        from opscope.reports.formats.frames import content_frame

        return content_frame(self.content)

    def _repr_html_(self) -> str:
        from opscope.reports.notebook import content_html

        return content_html(self.content, str(self.path / "report.html"))
