"""Cards of what a store and its history give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.units import counted_text, ratio_text, signed_share_text, size_text, time_text
from opscope.fleet.reports.answer import cell_texts, number_columns
from opscope.fleet.reports.fleet import fleet_facts
from opscope.fleet.reports.fleet_gate import fleet_text
from opscope.fleet.reports.history import (
    changed_first,
    changes_text,
    history_answer,
    left_out_lines,
    level_text,
    subject_text,
)
from opscope.reports.document.blocks import words_table
from opscope.reports.gate import gate_notes, gate_sentence
from opscope.reports.notebook.card import MOST_ROWS, Card, more_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.fleet.analysis.fleet import Fleet
    from opscope.fleet.analysis.fleet_gate import FleetEvidence
    from opscope.fleet.analysis.history import History
    from opscope.fleet.store.checking import StoreCheck
    from opscope.fleet.store.entries import StoreEntry
    from opscope.fleet.store.querying import QueryAnswer
    from opscope.reports.document.blocks import TableBlock

_HASH = 12
_MINUTES = 16


def entries_card(entries: Sequence[StoreEntry], store: str) -> Card:
    """How many bundles there are, and the newest of them."""
    shown = entries[-MOST_ROWS:]
    grid = _entries(shown)
    left = len(entries) - len(shown)
    lines = [f"showing the newest {len(shown)}: .to_polars() has all of them"] if left else []
    return Card(store, counted_text(len(entries), "bundle"), None, [grid], lines)


def _entries(entries: Sequence[StoreEntry]) -> TableBlock:
    """Bundles of a store in a line each: hash, time, model, device, variants."""
    rows = [
        [one.bundle[:_HASH], one.created[:_MINUTES].replace("T", " "), one.model, one.device, ", ".join(one.variants)]
        for one in entries
    ]
    return words_table(("bundle", "created", "model", "device", "variants"), rows, texts=5)


def history_card(history: History) -> Card:
    """The series that changed first, each with its level and its newest change."""
    ordered = changed_first(history)
    rows = [
        [subject_text(one.subject), level_text(history.metric, one), next(iter(changes_text(history, one)), "")]
        for one in ordered[:MOST_ROWS]
    ]
    lines = [*more_rows(len(rows), len(ordered)), *left_out_lines(history)]
    grid = words_table(["series", "level", "newest change"], rows, texts=3)
    return Card(history.store, history_answer(history), None, [grid], lines)


def fleet_card(fleet: Fleet) -> Card:
    """What stands out, and the first configurations."""
    facts = fleet_facts(fleet)
    rows = [
        [
            *(run.device, run.model, run.variant),
            "not measured" if run.latency_ns is None else time_text(run.latency_ns),
            "" if run.speedup is None else ratio_text(run.speedup),
        ]
        for run in fleet.runs[:MOST_ROWS]
    ]
    grid = words_table(["device", "model", "variant", "latency", "speedup"], rows, texts=3)
    lines = [*more_rows(len(rows), len(fleet.runs)), *facts[1:]]
    return Card(fleet.store, facts[0], None, [grid], lines)


def fleet_gate_card(decision: Decision[FleetEvidence]) -> Card:
    """The decision, and the series that are slower."""
    text, evidence = fleet_text(decision), decision.evidence
    rows = [
        [
            subject_text(one.subject),
            f"{time_text(one.before_ns)} to {time_text(one.after_ns)}",
            signed_share_text(one.slowdown),
            str(one.runs),
        ]
        for one in evidence.slower[:MOST_ROWS]
    ]
    grid = words_table(["series", "time", "change", "runs"], rows, texts=2)
    lines = [*more_rows(len(rows), len(evidence.slower)), *gate_notes(decision, text)]
    return Card(evidence.store, gate_sentence(decision, text), None, [grid], lines)


def added_card(store: str, added: Sequence[StoreEntry], known: int, left_out: Sequence[str]) -> Card:
    """How many bundles were added, were already there, and were left out."""
    counts = f"{len(added)} added, {known} already there, {len(left_out)} left out"
    return _changed(store, counts, added, [f"left out: {one}" for one in left_out])


def removed_card(store: str, removed: Sequence[StoreEntry]) -> Card:
    """The bundles that were removed."""
    return _changed(store, f"{counted_text(len(removed), 'bundle')} removed", removed)


def _changed(store: str, answer: str, entries: Sequence[StoreEntry], lines: Sequence[str] = ()) -> Card:
    shown = entries[:MOST_ROWS]
    return Card(store, answer, None, [_entries(shown)], [*more_rows(len(shown), len(entries)), *lines])


def query_card(query_answer: QueryAnswer, store: str) -> Card:
    """The first rows of an answer."""
    numbers = number_columns(query_answer.types)
    # Words stand to the left of a card and figures to the right, whatever their order in the answer.
    texts = next((place for place, number in enumerate(numbers) if number), len(numbers))
    grid = words_table(query_answer.columns, [cell_texts(row) for row in query_answer.rows[:MOST_ROWS]], texts)
    answer = f"{counted_text(len(query_answer.rows), 'row')} of {counted_text(len(query_answer.columns), 'column')}"
    return Card(store, answer, None, [grid], more_rows(len(grid.rows), len(query_answer.rows)))


def store_check_card(check: StoreCheck) -> Card:
    """Whether every file is there and whole."""
    held = f"{counted_text(check.bundles, 'bundle')}, {counted_text(check.files, 'file')}, {size_text(check.size)}"
    faults = f"{counted_text(len(check.faults), 'file')} missing or damaged" if check.faults else "whole"
    rows = [[fault.path, fault.problem, str(len(fault.bundles))] for fault in check.faults[:MOST_ROWS]]
    lines = [*more_rows(len(rows), len(check.faults)), counted_text(len(check.leftovers), "leftover")]
    return Card(
        check.store, f"{faults}: {held}", None, [words_table(["file", "problem", "bundles"], rows, texts=2)], lines
    )
