"""What a store and its history give, as the functions of the Python API return it: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from opscope.analysis.gate.decision import Decision
from opscope.fleet.analysis.fleet import Fleet
from opscope.fleet.analysis.gate import FleetEvidence
from opscope.fleet.analysis.history import History
from opscope.fleet.bundles import Skipped
from opscope.fleet.reports.fleet import fleet_screen
from opscope.fleet.reports.tables import (
    answer_frame,
    entries_document,
    fleet_frame,
    history_frame,
    listed_entries_frame,
    query_document,
    slower_frame,
)
from opscope.fleet.store.schema import StoreEntry
from opscope.measurements.notebook import NotebookResult, check_most

if TYPE_CHECKING:
    from collections.abc import Iterable

    import altair as alt
    import polars as pl

    from opscope.reports.document.blocks import Document


class AddReport(NotebookResult, msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-add/1"):
    """What became of the bundles that were to be added.

    Attributes:
        store: where.
        added: bundles that were not there before.
        known: how many were there already.
        skipped: what could not be stored.
        checked: how many of the added bundles were analysed again, and would have been skipped if their files told
            anything else: one, and one of 400 more, by chance, unless another version wrote them; all where that was
            asked for.
    """

    store: str
    added: list[StoreEntry]
    known: int
    skipped: list[Skipped]
    checked: int = 0

    def to_polars(self) -> pl.DataFrame:
        """Return the bundles that were added, a row each."""
        return listed_entries_frame(self.added)

    def _build_document(self) -> Document:
        counts = f"{len(self.added)} added, {self.known} already there, {len(self.skipped)} left out"
        return entries_document(
            self.added, self.store, counts, [f"{bundle.path}: {bundle.problem}" for bundle in self.skipped]
        )


class RemoveReport(NotebookResult, msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.store-remove/1"):
    """The bundles that were removed."""

    store: str
    removed: list[StoreEntry]

    def to_polars(self) -> pl.DataFrame:
        """Return the bundles that were removed, a row each."""
        return listed_entries_frame(self.removed)

    def _build_document(self) -> Document:
        return entries_document(self.removed, self.store, f"{len(self.removed)} bundles removed")


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
        return listed_entries_frame(self)

    def _build_document(self) -> Document:
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
        return answer_frame(self.columns, self.types, self.rows)

    def _build_document(self) -> Document:
        return query_document(self.columns, self.rows, self.store)


class HistoryResult(NotebookResult, History, frozen=True):
    """A figure over the runs of a store, as :func:`opscope.stored_history` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every run in a row with the level it belongs to, series by series; times are in UTC.

        ``change`` is the ratio to the level before, at the first run of a new one. Where changes were not looked for,
        all runs of a series are one level.
        """
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

    def _build_document(self) -> Document:
        from opscope.fleet.reports.history import history_document

        return history_document(self, has_pictures=False)._replace(title=self.store)


class FleetResult(NotebookResult, Fleet, frozen=True):
    """Devices, models and variants of a store, as :func:`opscope.stored_fleet` gives them."""

    def to_polars(self) -> pl.DataFrame:
        """Return the newest run of every configuration in a row."""
        return fleet_frame(self)

    def _build_document(self) -> Document:
        return fleet_screen(self)


class FleetGateResult(NotebookResult, Decision[FleetEvidence], frozen=True):
    """The decision on all series of a store, as :func:`opscope.check_fleet` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Return every series that is slower in a row, the largest slowdown first.

        ``first`` is the first run of the new level, ``first_placed`` when it began, and ``changed`` what differs
        between its manifest and that of the run before.
        """
        return slower_frame(self.evidence)

    def _build_document(self) -> Document:
        from opscope.fleet.reports.fleet_gate import fleet_text
        from opscope.reports.document.blocks import NOTEBOOK_ROWS
        from opscope.reports.gate import gate_document

        return gate_document(self, fleet_text(self), NOTEBOOK_ROWS)
