"""What a report says about the run itself: the best configuration, and where the experiment's time went."""

from pathlib import Path
from statistics import median

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Profiled, Settings, profile
from opscope.reports.sections.latency import sweep_threads, time_spent
from programs import write_tiny_program


def run(directory: Path, threads: tuple[int, ...]) -> Profiled:
    """A small bundle at some thread counts."""
    settings = Settings(rounds=2, runs=2, warmup=1, threads=threads)
    program = write_tiny_program(directory)
    clock = FakeClock()
    return profile(str(program), settings=settings, out=directory / "out", target=FakeTarget(clock=clock), clock=clock)


def with_latencies(done: Profiled, times: dict[str, list[int]]):
    """The content of a report whose variants have processes of these latencies, three inferences each."""
    variants = []
    for result in done.content.variants:
        latency = as_measured(result.analysis.latency, times[result.variant.name])
        analysis = msgspec.structs.replace(result.analysis, latency=latency, headline_ns=latency.median_ns)
        variants.append(msgspec.structs.replace(result, analysis=analysis))
    return msgspec.structs.replace(done.content, variants=variants)


def as_measured(latency, times: list[int]):
    """A latency of processes that take these times."""
    processes = [msgspec.structs.replace(latency.processes[0], n=3) for _ in times]
    samples = [time for time in times for _ in range(3)]
    return msgspec.structs.replace(
        latency, median_ns=float(median(samples)), samples_ns=samples, processes=processes, n=len(samples)
    )


def about(time: int) -> list[int]:
    """Six processes that take about this long."""
    return [time + offset for offset in (0, 1, -1, 2, -2, 0)]


@pytest.fixture
def two(tmp_path: Path) -> Profiled:
    """One and two threads, with and without features."""
    return run(tmp_path, (1, 2))


def test_the_best_configuration_is_named(two):
    """Of four, with the speedup over the smallest pool of the same features."""
    times = {"accelerated-t1": 1000, "baseline-t1": 3000, "accelerated-t2": 600, "baseline-t2": 1500}
    swept, answer, notes = sweep_threads(with_latencies(two, {name: about(time) for name, time in times.items()}))
    assert answer == "Best: accelerated-t2: 600 ns with 2 threads"
    rows = {row.variant: (row.speedup, row.efficiency) for row in swept}
    assert rows["accelerated-t2"] == pytest.approx((1000 / 600, 1000 / 1200))
    assert rows["baseline-t2"] == (2.0, 1.0)
    assert notes == []


def test_no_configuration_is_the_best_where_that_is_not_shown(two):
    """The lowest median is one thing, a difference that is shown another: two rounds show none at all."""
    times = {"accelerated-t1": 1000, "baseline-t1": 3000, "accelerated-t2": 999, "baseline-t2": 2999}
    _swept, answer, _notes = sweep_threads(with_latencies(two, {name: about(time) for name, time in times.items()}))
    assert answer == ("Lowest latency: accelerated-t2: 999 ns with 2 threads; no difference detected to accelerated-t1")
    _, few, _ = sweep_threads(with_latencies(two, {name: about(time)[:2] for name, time in times.items()}))
    assert few.endswith("no difference detected to accelerated-t1, baseline-t1, baseline-t2")


def test_threads_that_contend_are_said(two):
    """Two threads are slower than one, which is shown; or hardly faster."""
    times = {"accelerated-t1": 1000, "baseline-t1": 3000, "accelerated-t2": 1200, "baseline-t2": 3010}
    _swept, answer, notes = sweep_threads(with_latencies(two, {name: about(time) for name, time in times.items()}))
    assert answer == "Best: accelerated-t1: 1.00 µs with 1 thread"
    assert notes == [
        "accelerated-t2 is slower than with fewer threads (0.83x): threads contend",
        "baseline-t2 reaches 49.8 % of ideal scaling",
    ]


def test_one_thread_count_is_no_sweep(tmp_path):
    """There is nothing to choose."""
    assert sweep_threads(run(tmp_path, (1,)).content) is None


def test_the_time_of_the_experiment_is_accounted(two):
    """The parts add up to the wall time of all processes."""
    spent = time_spent(two.content.manifest)
    whole = sum(rep.seconds for rep in two.content.manifest.repetitions) * 1e9
    assert sum(row.time_ns for row in spent) == pytest.approx(whole, rel=0.02)
    assert sum(row.share for row in spent) == pytest.approx(1.0, rel=0.02)
    assert spent[0].activity == "starting the runtime"


def test_runners_that_do_not_tell_are_not_accounted(two):
    """Without the times of any process there is no table."""
    silent = [
        msgspec.structs.replace(rep, measurement=msgspec.structs.replace(rep.measurement, start_ns=None))
        for rep in two.content.manifest.repetitions
    ]
    assert time_spent(msgspec.structs.replace(two.content.manifest, repetitions=silent)) == []
