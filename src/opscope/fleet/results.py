"""What a store and its history give, as the functions of the Python API return it: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.analysis.gate.decision import Decision
from opscope.fleet.analysis.fleet import Fleet
from opscope.fleet.analysis.gate import FleetEvidence
from opscope.fleet.analysis.history import History
from opscope.fleet.store.entries import StoreEntry
from opscope.measurements.notebook import NotebookResult, check_most

if TYPE_CHECKING:
    from collections.abc import Iterable

    import altair as alt
    import polars as pl

    from opscope.reports.document.blocks import Document


class StoreEntries(NotebookResult, list[StoreEntry]):
    """The bundles of a store in the order of histories, as :func:`opscope.store_entries` gives them: a list.

    Attributes:
        store: where they are.
    """

    def __init__(self, found: Iterable[StoreEntry] = (), store: str = "") -> None:
        super().__init__(found)
        self.store = store

    def to_polars(self) -> pl.DataFrame:
        """Return every bundle in a row; times are in UTC."""
        from opscope.fleet.reports.frames import listed_entries_frame

        return listed_entries_frame(self)

    def _document(self) -> Document:
        from opscope.fleet.reports.answer import entries_document

        return entries_document(self, self.store, f"{len(self):,} bundles")


class QueryResult(NotebookResult):
    """The answer of a store to a query, as :func:`opscope.query_store` gives it.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        rows: cells in the order of the columns.
        store: that was asked.
    """

    def __init__(self, columns: list[str], types: list[str], rows: list[tuple[Any, ...]], store: str) -> None:
        self.columns, self.types, self.rows, self.store = columns, types, rows, store

    def to_polars(self) -> pl.DataFrame:
        """Return the rows; a column whose name is there before gets a number behind it."""
        from opscope.fleet.reports.frames import answer_frame

        return answer_frame(self.columns, self.types, self.rows)

    def _document(self) -> Document:
        from opscope.fleet.reports.answer import query_document

        return query_document(self.columns, self.rows, self.store)


class HistoryResult(NotebookResult, History, frozen=True):
    """A figure over the runs of a store, as :func:`opscope.stored_history` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every run in a row with the level it belongs to, series by series; times are in UTC.

        ``change`` is the ratio to the level before, at the first run of a new one. Where changes were not looked for,
        all runs of a series are one level.
        """
        from opscope.fleet.reports.frames import history_frame

        return history_frame(self)

    def plot(self, most: int = 12) -> alt.VConcatChart:
        """Return the series below each other with their levels and changes, changed ones first, as Altair's chart.

        Args:
            most: series at most; the title says when there are more.

        Raises:
            UsageError: fewer than one is asked for.
        """
        from opscope.fleet.reports.history import history_chart

        check_most(most)
        return history_chart(self, most)

    def _document(self) -> Document:
        from opscope.fleet.reports.history import history_document

        return history_document(self, has_pictures=False)._replace(title=self.store)


class FleetResult(NotebookResult, Fleet, frozen=True):
    """Devices, models and variants of a store, as :func:`opscope.stored_fleet` gives them."""

    def to_polars(self) -> pl.DataFrame:
        """Return the newest run of every configuration in a row."""
        from opscope.fleet.reports.frames import fleet_frame

        return fleet_frame(self)

    def _document(self) -> Document:
        from opscope.fleet.reports.fleet import fleet_screen

        return fleet_screen(self)


class FleetGateResult(NotebookResult, Decision[FleetEvidence], frozen=True):
    """The decision on all series of a store, as :func:`opscope.check_fleet` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every series that is slower in a row, the largest slowdown first.

        ``first`` is the first run of the new level, ``first_placed`` when it began, and ``changed`` what differs
        between its manifest and that of the run before.
        """
        from opscope.fleet.reports.frames import slower_frame

        return slower_frame(self.evidence)

    def _document(self) -> Document:
        from opscope.fleet.reports.fleet_gate import fleet_text
        from opscope.reports.document.blocks import NOTEBOOK_ROWS
        from opscope.reports.gate import gate_document

        return gate_document(self, fleet_text(self), NOTEBOOK_ROWS)
