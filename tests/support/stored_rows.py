"""Rows of a store that two stores of the same bundles must have in common."""

from __future__ import annotations

from typing import Any

from opscope.api import query_store
from opscope.fleet.store.schema import TABLES


def stored_rows(store: object, view: str) -> list[tuple[Any, ...]]:
    """Rows of a view, in order, but for their place in histories: that is the moment when they were added."""
    columns = ", ".join(f'"{name}"' for name in TABLES[view].names if name != "placed")
    return query_store(f"SELECT {columns} FROM {view} ORDER BY ALL", str(store)).rows
