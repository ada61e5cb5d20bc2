"""Fixtures shared by the tests, what a session begins with, and the switch that writes expected reports anew."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import beside
import durations
import nightly_order
import quick
from session_files import begin_session, end_session
from skips import describe_skips

# No test asserts on the clock; on a busy machine an example may take as long as it likes.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

WHEELS = Path(__file__).parents[1] / ".venv" / "devices" / "wheels"
"""For 64-bit Arm; ``.ci/devices`` puts them there."""
HAS_RUNTIME = find_spec("executorch") is not None and find_spec("torch") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--bless`` writes what differs beside, ``--measure`` what tests cost; ``--changed-first`` orders them."""
    parser.addoption("--bless", action="store_true", help="write reports that differ beside the expected ones")
    parser.addoption("--measure", metavar="FILE", help="write what tests cost, in CPU seconds")
    parser.addoption("--changed-first", action="store_true", help="begin with rooms that changed lately, then shuffle")
    parser.addoption("--begin-by", metavar="TIME", type=float, help="skip tests that begin later, in Unix seconds")


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the workers makes the directory that they share.

    Bytecode is kept, also where PYTHONDONTWRITEBYTECODE is set, as in many containers: else each of the hundreds of
    processes that the tests start compiles opscope anew, and each worker rewrites every assertion.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["OPSCOPE_RAISE"] = "1"  # a part of a result that fails fails the test, in processes of ours too
    if WHEELS.is_dir():
        links = f"{WHEELS} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
        os.environ |= {"PIP_FIND_LINKS": links, "PIP_NO_INDEX": "1"}  # nothing is downloaded
    if config.option.measure:
        config.pluginmanager.register(durations.Measuring())
    if not _is_worker(config):
        if config.option.measure:
            config.pluginmanager.register(durations.Collecting(Path(config.option.measure)))
        begin_session()
        config.option.loadscopereorder = False  # xdist would begin with the files of the most tests, not the longest


def pytest_unconfigure(config: pytest.Config) -> None:
    """It removes that directory when all have ended, and says what to install for the tests that were skipped."""
    if _is_worker(config):
        return
    end_session()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", ())] if reporter else []
    if said := describe_skips(reasons):
        reporter.write_line(said)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave what does not fit into the time to another run."""
    last = item.config.option.begin_by
    if last is not None and time.time() > last:
        pytest.skip("more time: left to the next commits")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of the real runtime where it is not installed, mark the dear ones, and begin with the dearest file."""
    skip = pytest.mark.skip(reason="needs torch and executorch: pip install 'opscope[executorch]'")
    costs = durations.known()
    items[:], absent = beside.select_tests(items)
    config.hook.pytest_deselected(items=absent)
    for item in items:
        if item.get_closest_marker("runtime") and not HAS_RUNTIME:
            item.add_marker(skip)
        if costs.get(item.nodeid, 0.0) > durations.MOST and not item.get_closest_marker("everyday"):
            item.add_marker("nightly")
    units = durations.unit_costs([item.nodeid for item in items], costs)
    ordered = sorted(units, key=lambda unit: -units[unit])
    if config.option.changed_first:
        ordered = nightly_order.order_units(units, nightly_order.changed_rooms(), quick.run_git("rev-parse", "HEAD")[0])
    positions = {unit: position for position, unit in enumerate(ordered)}
    items.sort(key=lambda item: positions[durations.unit(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers get whole files, and pages one by one, the dearest first."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return durations.unit(nodeid)

    return ByUnit(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def own_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This machine's lock of the tests of one process: they keep nobody from measuring, and nobody keeps them."""
    lock = tmp_path_factory.mktemp("lock") / "opscope.lock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSCOPE_LOCK", str(lock))
        yield lock


@pytest.fixture
def small_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of a few lines are read the way that is for long ones."""
    from opscope.runtimes.executorch import etdump as reader

    monkeypatch.setattr(reader, "WORTH_BYTES", 0)


@pytest.fixture(scope="session")
def toy_program() -> Path:
    """toy_cnn, as the real exporter exported it; its slim .etrecord is beside it."""
    from exports import program

    return program("toy_cnn-fp32")


@pytest.fixture(scope="session")
def exported_toy() -> Path:
    """toy_cnn, exported now, with its whole .etrecord."""
    from exports import shared_export

    return shared_export("toy_cnn", "fp32")


@pytest.fixture(scope="session")
def toy_programs(toy_program: Path) -> dict[str, Path]:
    """toy_cnn in both number types, likewise."""
    from exports import program

    return {"fp32": toy_program, "int8": program("toy_cnn-int8")}


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bugs in a part of a result do not end the work, as they do in all other tests."""
    from opscope.core.parts import VARIABLE

    monkeypatch.delenv(VARIABLE)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a command in this process: its exit code, and what it said."""
    from command_line import ended_here

    def called(*arguments: str | Path) -> tuple[int, str]:
        code = ended_here(*arguments)
        told = capsys.readouterr()
        return code, told.out + told.err

    return called
