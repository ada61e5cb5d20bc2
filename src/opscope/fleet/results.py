"""What a store and its history give, as the functions of the Python API return it: see ``measurements.results``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.gate.decision import Decision
from opscope.fleet.analysis.fleet import Fleet
from opscope.fleet.analysis.fleet_gate import FleetEvidence
from opscope.fleet.analysis.history import History
from opscope.fleet.store.checking import StoreCheck
from opscope.fleet.store.entries import StoreEntry
from opscope.fleet.store.querying import QueryAnswer
from opscope.measurements.notebook import NotebookResult, check_most

if TYPE_CHECKING:
    from collections.abc import Iterable

    import altair as alt
    import polars as pl

    from opscope.reports.notebook.card import Card


class StoreEntries(NotebookResult, list[StoreEntry]):
    """The bundles of a store in the order of histories, as :func:`opscope.store_entries` gives them: a list.

    Attributes:
        store: where they are.
    """

    def __init__(self, found: Iterable[StoreEntry] = (), store: str = "") -> None:
        super().__init__(found)
        self.store = store

    def to_polars(self) -> pl.DataFrame:
        """Every bundle in a row; times are in UTC."""
        from opscope.fleet.reports.frames import entries_frame

        return entries_frame(self)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import entries_card

        return entries_card(self, self.store)


class QueryResult(NotebookResult, QueryAnswer):
    """The answer of a store to a query, as :func:`opscope.query_store` gives it.

    Attributes:
        columns: names.
        types: of the columns, as SQL calls them.
        rows: cells in the order of the columns.
        store: that was asked.
    """

    def __init__(self, found: QueryAnswer, store: str) -> None:
        super().__init__(found.columns, found.types, found.rows)
        self.store = store

    def to_polars(self) -> pl.DataFrame:
        """The rows; a column whose name is there before gets a number behind it."""
        from opscope.fleet.reports.frames import answer_frame

        return answer_frame(self.columns, self.types, self.rows)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import query_card

        return query_card(self, self.store)


class StoreCheckResult(NotebookResult, StoreCheck, frozen=True):
    """Whether every file of a store is there and whole, as :func:`opscope.verify_store` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every file that is missing or damaged in a row; ``bundles`` is how many may have rows in it."""
        from opscope.fleet.reports.frames import faults_frame

        return faults_frame(self)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import store_check_card

        return store_check_card(self)


class HistoryResult(NotebookResult, History, frozen=True):
    """A figure over the runs of a store, as :func:`opscope.stored_history` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every run in a row with the level it belongs to, series by series; times are in UTC.

        ``change`` is the ratio to the level before, at the first run of a new one. Where changes were not looked for,
        all runs of a series are one level.
        """
        from opscope.fleet.reports.frames import history_frame

        return history_frame(self)

    def plot(self, most: int = 12) -> alt.VConcatChart:
        """The series below each other with their levels and changes, those that changed first, as a chart of Altair's.

        Args:
            most: series at most; the title says when there are more.

        Raises:
            UsageError: fewer than one is asked for.
        """
        from opscope.fleet.reports.history import history_chart

        check_most(most)
        return history_chart(self, most)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import history_card

        return history_card(self)


class FleetResult(NotebookResult, Fleet, frozen=True):
    """Devices, models and variants of a store, as :func:`opscope.stored_fleet` gives them."""

    def to_polars(self) -> pl.DataFrame:
        """The newest run of every configuration in a row."""
        from opscope.fleet.reports.frames import fleet_frame

        return fleet_frame(self)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import fleet_card

        return fleet_card(self)


class FleetGateResult(NotebookResult, Decision[FleetEvidence], frozen=True):
    """The decision on all series of a store, as :func:`opscope.check_fleet` gives it."""

    def to_polars(self) -> pl.DataFrame:
        """Every series that is slower in a row, the largest slowdown first, then those that may be: ``confirmed``.

        ``first``, ``first_placed`` and ``changed`` are its origin: the first run of the new level, when it was added,
        and what was recorded as changed; null where that is not known.
        """
        from opscope.fleet.reports.frames import slower_frame

        return slower_frame(self.evidence)

    def _card(self) -> Card:
        from opscope.fleet.reports.notebook import fleet_gate_card

        return fleet_gate_card(self)
