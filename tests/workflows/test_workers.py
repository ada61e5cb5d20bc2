"""Tasks on real workers that are killed in the middle: one repetition on another worker, then an error with names.

The workers of a Dask scheduler and the processes of ``--jobs`` pass the same tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dask_cluster import Cluster
from mortal_work import die_on_first_tries
from opscope.workflows.measure.parallel.workers import (
    Handout,
    HandoutSettings,
    Task,
    UnfinishedTask,
    Where,
    dask_workers,
    run_calls,
)
from waiting import HANG

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def _importable_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let schedulers and workers import the work."""
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture(params=["scheduler", "jobs"])
def where(request: pytest.FixtureRequest, _importable_work: None) -> Iterator[Where]:
    """Four workers of a scheduler, or two processes, which are replaced when they die."""
    if request.param == "jobs":
        yield Where(jobs=2)
        return
    with Cluster(4, kept=["--no-nanny"]) as cluster:
        yield Where(cluster.address)


def test_a_task_whose_worker_dies_is_repeated_once_and_the_worker_is_named(where: Where, tmp_path: Path) -> None:
    """One worker dies once in a task, and two die in another; all others have their results, in order."""
    deaths = [0, 0, 0, 1, 0, 0, 2, *[0] * 20]
    items = [(str(tmp_path), f"task{number:02}", count) for number, count in enumerate(deaths)]
    notices: list[str] = []
    results = list(run_calls(where, die_on_first_tries, items, notices.append))
    lost = results.pop(6)
    assert [name for name, _ in results] == [name for _, name, deaths in items if deaths < 2]
    assert results[3] == ("task03", 1)
    assert isinstance(lost, UnfinishedTask)
    assert "task06" in lost.reason
    assert sum("task03" in notice for notice in notices) == sum("task06" in notice for notice in notices) == 1
    assert len(list(tmp_path.glob("task03-*"))) == len(list(tmp_path.glob("task06-*"))) == 2
    workers = [word for word in lost.reason.split() if word.isdigit() or word.startswith("tcp://")]
    assert len(set(workers)) == 2
    if where.scheduler is None:
        assert set(workers) == {path.name.partition("-")[2] for path in tmp_path.glob("task06-*")}


def test_what_no_worker_is_left_for_is_given_up_and_the_dead_worker_is_named(tmp_path: Path) -> None:
    """The only worker of one device dies in its first task; a second device's tasks are all done."""
    tasks = [
        Task(f"{device}{number}", (str(tmp_path), f"{device}{number}", int(device == "left")), f"device:{device}")
        for device in ("left", "right")
        for number in range(3)
    ]
    devices = ["device:left=1", "device:right=1"]
    with Cluster(2, devices, ["--no-nanny"]) as cluster, dask_workers(cluster.address) as pool:
        addresses = {next(iter(owned.keys() - {"thread"})): name for name, owned in pool.list_capacities().items()}
        results = dict(Handout(pool, die_on_first_tries, tasks, HandoutSettings(patience_seconds=0.0)).results())
    assert [results[number] for number in (3, 4, 5)] == [(f"right{number}", 0) for number in range(3)]
    assert {type(results[number]) for number in (0, 1, 2)} == {UnfinishedTask}
    assert f"{addresses['device:left']} died in it" in results[0].reason
    assert [path.name.partition("-")[0] for path in tmp_path.glob("left*")] == ["left0"], "the others never began"
    assert not any("died" in results[number].reason for number in (1, 2))


def test_a_worker_did_not_die_in_what_it_had_finished(tmp_path: Path) -> None:
    """The end of a task is known when the next one begins, even where nobody has fetched its result yet."""
    names = ["first", "second"]
    with Cluster(1, kept=["--no-nanny"]) as cluster, dask_workers(cluster.address) as pool:
        (worker,) = pool.list_capacities()
        futures = [
            pool.submit(worker, Task(name, None), die_on_first_tries, (str(tmp_path), name, 0)) for name in names
        ]
        assert [future.result(HANG) for future in futures] == [(name, 0) for name in names]
        signals = [pool.signals.get(timeout=HANG) for _ in range(3 * len(names))]
    states = [(kind, value[0]) for kind, value in signals if kind in {"begun", "ended"}]
    first, second = names
    assert states == [("begun", first), ("ended", first), ("begun", second), ("ended", second)]
