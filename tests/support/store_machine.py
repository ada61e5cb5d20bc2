"""A store under any order of commands, beside a model of it: a set of bundles, and what each says.

Only public functions are called, so that it holds for every way in which a store keeps its files.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from many_bundles import Made, Mint
from opscope.api import (
    add_to_store,
    query_store,
    remove_from_store,
    store_entries,
    stored_history,
)
from opscope.core.errors import NotFoundError

BUNDLES = 6
_NUMBERS = st.integers(0, BUNDLES - 1)
_SORTS = ("date", "version")


@functools.cache
def pool() -> Path:
    """Bundles of two models on one device, each with times of its own; they stay as long as this process."""
    place = Path(tempfile.mkdtemp(prefix="opscope-store-machine-"))
    mint = Mint(place / "mint", operators=4, rounds=2, runs=2)
    for number in range(BUNDLES):
        made = Made(number, f"model {number % 2}", hours=7.0 * number, factor=1.0 + number / 10)
        mint.make(place / f"{number}", made)
    return place


@functools.cache
def latencies(number: int) -> dict[str, float]:
    """Median latency of each variant of a bundle, as its own analysis says it."""
    bundle = pool() / f"{number}"
    files = {"accelerated": bundle / "analysis.json", "baseline": bundle / "variants" / "baseline" / "analysis.json"}
    return {name: json.loads(file.read_text("utf-8"))["headline_ns"] for name, file in files.items()}


class StoreMachine(RuleBasedStateMachine):
    """Commands in any order; after each the store says what the model of it says."""

    def __init__(self) -> None:
        super().__init__()
        self._place = Path(tempfile.mkdtemp(prefix="opscope-store-"))
        self._store = self._place / "store"
        # In the order of histories: by when the runs began, which is that of their numbers.
        self._held: dict[int, str] = {}

    def teardown(self) -> None:
        """Remove the store."""
        shutil.rmtree(self._place)

    @rule(numbers=st.lists(_NUMBERS, min_size=1, max_size=3))
    def add(self, numbers: list[int]) -> None:
        """Bundles, also such that are already there, and the same one twice."""
        new = set(numbers) - self._held.keys()
        done = add_to_store([pool() / f"{number}" for number in numbers], self._store)
        assert done.skipped == []
        added = {int(Path(entry.source).name): entry.bundle for entry in done.added}
        assert (added.keys(), done.known) == (new, len(set(numbers)) - len(new))
        self._held = dict(sorted((self._held | added).items()))

    @precondition(lambda self: self._held)
    @rule(chosen=st.data(), length=st.sampled_from([12, 64]))
    def remove(self, chosen: st.DataObject, length: int) -> None:
        """One that is there, by its hash or the beginning of it."""
        number = chosen.draw(st.sampled_from(sorted(self._held)))
        removed = remove_from_store([self._held[number][:length]], self._store).removed
        assert [entry.bundle for entry in removed] == [self._held.pop(number)]

    @precondition(lambda self: self._store.exists())
    @rule(word=st.sampled_from(["0" * 64, "no hash", ""]))
    def remove_what_is_not_there(self, word: str) -> None:
        """It is refused, and nothing changes."""
        try:
            remove_from_store([word], self._store)
        except NotFoundError:
            return
        raise AssertionError(f"{word!r} was removed")

    @precondition(lambda self: self._held)
    @rule(by=st.sampled_from(_SORTS), last=st.integers(1, 4))
    def ask_history(self, by: str, last: int) -> None:
        """Every run stands in the series of its model and variant, as they came, or only the newest ones."""
        for where, most in (("", BUNDLES), (f"last={last}", last)):
            found = stored_history("latency", self._store, by=by, where=where)
            assert found.left_out == 0
            points = {(one.subject.model, one.subject.variant): one.points for one in found.series}
            expected: dict[tuple[str, str], list[float]] = {}
            for number in self._held:
                for variant, value in latencies(number).items():
                    expected.setdefault((f"model {number % 2}", variant), []).append(value)
            assert points.keys() == expected.keys()
            for subject, values in expected.items():
                assert [point.value for point in points[subject]] == values[-most:]

    @precondition(lambda self: self._store.exists())
    @invariant()
    def holds_what_was_added(self) -> None:
        """Entries, in order, and rows are those of the model, and every file is as it was promised."""
        assert [entry.bundle for entry in store_entries(self._store)] == list(self._held.values())
        assert [entry.bundle for entry in store_entries(self._store, last=2)] == list(self._held.values())[-2:]
        rows = query_store("SELECT bundle, variant, latency_ns FROM runs", self._store).rows
        expected = [
            (self._held[number], variant, value)
            for number in self._held
            for variant, value in latencies(number).items()
        ]
        assert sorted(rows) == sorted(expected)
