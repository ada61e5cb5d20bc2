"""What a store knows of a run beside its times: program, commit, versions, system, CPU."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from opscope.fleet.analysis.common_moves import FACTS, run_facts
from opscope.fleet.store.querying import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.fleet.analysis.common_moves import RunFacts
    from opscope.fleet.store.place import StoreLocation

FACT_COLUMNS = (*FACTS, "versions")
"""Columns of ``runs`` that facts are taken from."""


def facts_of_runs(place: StoreLocation, bundles: Sequence[str]) -> dict[tuple[str, str], RunFacts]:
    """The facts of the runs of some bundles, by bundle and variant."""
    columns = ", ".join(f'"{name}"' for name in FACT_COLUMNS)
    sql = f"SELECT bundle, variant, {columns} FROM runs WHERE bundle IN (SELECT unnest(?))"  # noqa: S608 - names of ours
    return {(row[0], row[1]): known_facts(tuple(row[2:])) for row in ask(place, sql, [list(bundles)]).rows}


@functools.lru_cache(maxsize=4096)
def known_facts(values: tuple[str | None, ...]) -> RunFacts:
    """The facts of a run by the values of its columns; runs of one night mostly have the same."""
    return run_facts(dict(zip(FACT_COLUMNS, values, strict=True)))
