"""Adds generated bundles to a store, for bench/store.py: `store_rows.py STORE FIRST COUNT MODELS DEVICES OPERATORS`.

Rows are made of one pattern for each table, with the names of their bundle and times that differ. They go through the
writer that `opscope store add` uses, in batches of the same size.
"""

from __future__ import annotations

import hashlib
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl

from opscope.fleet.store import compaction, log
from opscope.fleet.store.entries import StoreEntry, next_place
from opscope.fleet.store.place import place_of
from opscope.fleet.store.schema import TABLES
from opscope.fleet.store.writing import MOST_ROWS, Batch

_BEGINNING = datetime(2026, 1, 1, tzinfo=timezone.utc)
_VARIANTS = ("accelerated", "baseline")


def main() -> None:
    """Add the bundles that the arguments name."""
    store, first, count, models, devices, operators = sys.argv[1], *map(int, sys.argv[2:])
    place = place_of(Path(store))
    log.create(place)
    at, pattern = next_place(place, log.snapshot(place)), _pattern(operators)
    each = max(1, MOST_ROWS // sum(frame.height for frame in pattern.values()))
    for begin in range(first, first + count, each):
        numbers = range(begin, min(begin + each, first + count))
        entries = [_entry(n, f"model-{n % models}", f"device {n // models % devices}", at) for n in numbers]
        batch = Batch()
        batch.add(entries, _all_rows(pattern, entries, numbers))
        batch.write(place)
        compaction.compact_loose(place)


def _all_rows(pattern: dict[str, pl.DataFrame], entries: list[StoreEntry], numbers: range) -> dict[str, pl.DataFrame]:
    """The rows of many bundles: their keys, and times that are their own."""
    keys = pl.DataFrame(
        {
            **{name: [getattr(one, name) for one in entries] for name in ("bundle", "model", "device")},
            "factor": [1 + number % 97 / 100 for number in numbers],
        }
    )
    found = {}
    for name, frame in pattern.items():
        times = [pl.col(column) * pl.col("factor") for column, kind in frame.schema.items() if kind == pl.Float64]
        rows = keys.join(frame.drop("bundle", "model", "device"), how="cross").with_columns(*times)
        found[name] = rows.select(TABLES[name].names)
    return found


def _entry(number: int, model: str, device: str, at: str) -> StoreEntry:
    name = hashlib.sha256(str(number).encode()).hexdigest()
    created = (_BEGINNING + timedelta(minutes=number)).isoformat()
    return StoreEntry(name, name, 10, model, device, _VARIANTS, created, created, f"/runs/{number}", placed=at)


def _pattern(operators: int) -> dict[str, pl.DataFrame]:
    """Rows of one bundle, of which names, times and keys are put in afterwards."""
    counts = {"runs": 1, "latency": 10, "operators": operators, "modules": operators // 8, "findings": 2, "kernels": 7}
    return {name: _rows(name, count) for name, count in counts.items()}


def _rows(table: str, count: int) -> pl.DataFrame:
    generator = np.random.default_rng(1)
    columns = {
        column.name: _cells(column.name, column.type.polars, count * len(_VARIANTS), generator)
        for column in TABLES[table].columns
    }
    variants = pl.Series("variant", [name for name in _VARIANTS for _ in range(count)])
    if table == "runs":
        columns |= {"kind": pl.Series("kind", ["bundle"] * 2), "role": pl.Series("role", list(_VARIANTS))}
    if "arm" in columns:
        columns["arm"] = pl.Series("arm", [("untraced", "traced")[number % 2] for number in range(len(variants))])
    return pl.DataFrame(columns).with_columns(variants)


def _cells(name: str, kind: object, count: int, generator: np.random.Generator) -> pl.Series:
    if kind == pl.Float64:
        return pl.Series(name, generator.lognormal(10, 1, count))
    if kind == pl.Int64:
        return pl.Series(name, np.arange(count) % 16, pl.Int64)
    if kind == pl.Boolean:
        return pl.Series(name, [True] * count)
    if kind == pl.String:
        return pl.Series(name, [f"{name} {number % 20}" for number in range(count)])
    return pl.Series(name, [None] * count, pl.Datetime("us"))


if __name__ == "__main__":
    main()
