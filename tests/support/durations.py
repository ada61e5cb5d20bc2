"""What each test and each fixture costs in CPU seconds, of this process and of the children that it waited for.

``pytest --measure FILE`` writes what was measured: a JSON object with ``tests``, by their node identifiers, without the
fixtures that they share, and ``fixtures`` of a wider scope than a function, by the folder or file that defines them and
their names. Times below ``SMALLEST`` are left out. Costs do not depend on what else runs on the machine, as times do.
"""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "durations.json"
"""What is committed."""
SMALLEST = 0.05
_COSTS = pytest.StashKey[list[tuple[str, str, float]]]()


def cpu_seconds() -> float:
    """CPU time of this process and of the children that it waited for, so far."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def fixture_key(definition: pytest.FixtureDef[Any]) -> str:
    """By which the cost of a fixture is kept."""
    return f"{definition.baseid}::{definition.argname}"


class Measuring:
    """Measures tests in the process that runs them; the report of a test carries its costs to the controller."""

    def __init__(self) -> None:
        self._fixtures: list[tuple[str, float]] = []
        self._nested = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Keep what a shared fixture costs by itself; one of a single test belongs to the test."""
        if fixturedef.scope == "function":
            return (yield)
        before, outer, self._nested = cpu_seconds(), self._nested, 0.0
        try:
            return (yield)
        finally:
            whole = cpu_seconds() - before
            self._fixtures.append((fixture_key(fixturedef), whole - self._nested))
            self._nested = outer + whole

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """See :meth:`_phase`."""
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """See :meth:`_phase`."""
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """See :meth:`_phase`."""
        return (yield from self._phase(item))

    def _phase(self, item: pytest.Item) -> Iterator[None]:
        """Measure a part of a test, without the shared fixtures that were set up meanwhile."""
        self._fixtures, self._nested, before = [], 0.0, cpu_seconds()
        try:
            return (yield)
        finally:
            costs = [("fixtures", *one) for one in self._fixtures]
            own = cpu_seconds() - before - self._nested
            item.stash[_COSTS] = [*costs, ("tests", item.nodeid, own)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Put the costs of the part that ended into its report."""
        report = yield
        report.user_properties = [("costs", item.stash.get(_COSTS, []))]
        return report


class Collecting:
    """Adds up what the reports say, and writes the file.

    Args:
        file: to be written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._costs: dict[str, Counter[str]] = {"tests": Counter(), "fixtures": Counter()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what one part of one test cost; of a fixture that several processes set up, the dearest counts."""
        for name, costs in report.user_properties:
            for kind, key, seconds in costs if name == "costs" else []:
                kept = self._costs[kind]
                kept[key] = max(kept[key], seconds) if kind == "fixtures" else kept[key] + seconds

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        write(self._file, self._costs)


def write(file: Path, costs: Mapping[str, Mapping[str, float]]) -> None:
    """Write costs, the largest first, in hundredths of a second."""
    shown = {
        kind: {key: round(cost, 2) for key, cost in sorted(own.items(), key=lambda pair: -pair[1]) if cost >= SMALLEST}
        for kind, own in costs.items()
    }
    file.write_text(json.dumps(shown, indent=0) + "\n", "utf-8")
