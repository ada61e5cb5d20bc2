"""What each test costs in CPU seconds, of its process and of the children it waited for, and what follows from it.

``pytest --measure FILE`` writes it as a JSON object, by node identifiers; what a file says of other tests stays, and of
one test the least that was ever measured, since whoever comes first pays for imports. What a fixture of a file or
session costs is shared equally by the tests that use it; what a session makes once belongs to no test. Unlike times,
costs hardly depend on what else the machine does.

From the committed ``tests/durations.json`` follow which tests are ``nightly`` (dearer than ``MOST``, unless they are
marked ``everyday``), and in which order tests are given to workers: the dearest file first.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import session_files
from session_files import cpu_seconds

FILE = Path(__file__).parents[1] / "durations.json"
MOST = 0.35
"""CPU seconds of a test that runs every day: so few that all of them together take two cores five minutes."""
_SMALLEST = 0.2
_PAGES = "tests/docs/test_docs_run.py::test_a_page_"
_COSTS = pytest.StashKey[list[tuple[str, float]]]()
_USES = pytest.StashKey[list[str]]()


def known(file: Path = FILE) -> dict[str, float]:
    """The costs of a file; none where there is none."""
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def unit(nodeid: str) -> str:
    """What a worker is given as a whole: a file, whose fixtures are made once, or a page of the documents."""
    return nodeid if nodeid.startswith(_PAGES) else nodeid.partition("::")[0]


def unit_costs(nodeids: Sequence[str], costs: Mapping[str, float]) -> Counter[str]:
    """What the tests of each unit cost."""
    found: Counter[str] = Counter()
    for nodeid in nodeids:
        found[unit(nodeid)] += costs.get(nodeid, 0.0)
    return found


class Measuring:
    """Measures tests in the process that runs them; the report of a test carries its costs to the controller."""

    def __init__(self) -> None:
        self._fixtures: list[tuple[str, float]] = []
        self._nested = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Keep what a shared fixture costs by itself; one of a single test belongs to the test."""
        if fixturedef.scope == "function":
            return (yield)
        before, outer, self._nested = cpu_seconds(), self._nested, 0.0
        try:
            return (yield)
        finally:
            whole = cpu_seconds() - before
            self._fixtures.append((f"{fixturedef.baseid}::{request.fixturename}", whole - self._nested))
            self._nested = outer + whole

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Measure what comes before a test, and keep which shared fixtures it uses."""
        result = yield from self._phase(item)
        definitions = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest has no public name for it
        item.stash[_USES] = [f"{one[-1].baseid}::{name}" for name, one in definitions.items()]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test."""
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Measure what comes after it."""
        return (yield from self._phase(item))

    def _phase(self, item: pytest.Item) -> Iterator[None]:
        """Measure a part of a test, without the shared fixtures that were set up meanwhile."""
        self._fixtures, self._nested, before, made = [], 0.0, cpu_seconds(), sum(session_files.costs)
        try:
            return (yield)
        finally:
            shared = self._nested + sum(session_files.costs) - made
            item.stash[_COSTS] = [*self._fixtures, (item.nodeid, cpu_seconds() - before - shared)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Put the costs of the part that ended into its report."""
        report = yield
        uses = item.stash.get(_USES, []) if report.when == "call" else []
        report.user_properties = [("costs", item.stash.get(_COSTS, [])), ("uses", uses)]
        return report


class Collecting:
    """Adds up what the reports say, and writes the file.

    Args:
        file: to be written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._costs: Counter[str] = Counter()
        self._users: dict[str, list[str]] = defaultdict(list)
        self._tests: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what one part of one test cost, and what it cost to set up fixtures, in as many processes as it was."""
        told = dict(report.user_properties)
        self._tests.add(report.nodeid)
        for key, seconds in told.get("costs", []):
            self._costs[key] += seconds
        for key in told.get("uses", []):
            self._users[key].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the file, the dearest test first."""
        found = Counter({nodeid: self._costs[nodeid] for nodeid in self._tests})
        for key, users in self._users.items():
            for nodeid in users:
                found[nodeid] += self._costs[key] / len(users)
        for nodeid, cost in known(self._file).items():
            if (FILE.parents[1] / nodeid.partition("::")[0]).exists():
                found[nodeid] = min(found.get(nodeid, cost), cost)
        shown = {nodeid: round(cost, 2) for nodeid, cost in found.most_common() if cost >= _SMALLEST}
        self._file.write_text(json.dumps(shown, indent=0) + "\n", "utf-8")
