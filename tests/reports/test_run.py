"""What a report says about the run itself: the best configuration, and where the experiment's time went."""

from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Profiled, Settings, profile
from opscope.reports.sections.run import sweep, time_spent
from programs import write_tiny_program


def run(directory: Path, threads: tuple[int, ...]) -> Profiled:
    """A small bundle at some thread counts."""
    settings = Settings(rounds=2, runs=2, warmup=1, threads=threads)
    program = write_tiny_program(directory)
    clock = FakeClock()
    return profile(str(program), settings=settings, out=directory / "out", target=FakeTarget(clock=clock), clock=clock)


def with_medians(done: Profiled, medians: dict[str, float]):
    """The content of a report whose variants have these latencies."""
    variants = []
    for result in done.content.variants:
        untraced = result.analysis.untraced
        latency = msgspec.structs.replace(untraced.latency, median_ns=medians[result.variant.name])
        untraced = msgspec.structs.replace(untraced, latency=latency)
        variants.append(
            msgspec.structs.replace(result, analysis=msgspec.structs.replace(result.analysis, untraced=untraced))
        )
    return msgspec.structs.replace(done.content, variants=variants)


@pytest.fixture
def two(tmp_path: Path) -> Profiled:
    """One and two threads, with and without features."""
    return run(tmp_path, (1, 2))


def test_the_best_configuration_is_named(two):
    """Of four, with the speedup over the smallest pool of the same features."""
    medians = {"accelerated-t1": 100.0, "baseline-t1": 300.0, "accelerated-t2": 60.0, "baseline-t2": 150.0}
    found = sweep(with_medians(two, medians))
    assert found.best == "accelerated-t2: 60 ns with 2 threads"
    rows = {row.variant: (row.speedup, row.efficiency) for row in found.rows}
    assert rows["accelerated-t2"] == pytest.approx((100 / 60, 100 / 120))
    assert rows["baseline-t2"] == (2.0, 1.0)
    assert found.notes == []


def test_threads_that_contend_are_said(two):
    """Two threads are slower than one, or hardly faster."""
    medians = {"accelerated-t1": 100.0, "baseline-t1": 300.0, "accelerated-t2": 120.0, "baseline-t2": 301.0}
    found = sweep(with_medians(two, medians))
    assert found.best == "accelerated-t1: 100 ns with 1 thread"
    assert found.notes == [
        "accelerated-t2 is slower than with fewer threads (0.83x): they contend",
        "baseline-t2 reaches 49.8 % of ideal scaling",
    ]


def test_one_thread_count_is_no_sweep(tmp_path):
    """There is nothing to choose."""
    assert sweep(run(tmp_path, (1,)).content) is None


def test_the_time_of_the_experiment_is_accounted(two):
    """The parts add up to the wall time of all processes."""
    spent = time_spent(two.content.manifest)
    whole = sum(rep.seconds for rep in two.content.manifest.repetitions) * 1e9
    assert sum(row.time_ns for row in spent) == pytest.approx(whole, rel=0.02)
    assert sum(row.share for row in spent) == pytest.approx(1.0, rel=0.02)
    assert spent[0].what == "starting the runtime"


def test_runners_that_do_not_tell_are_not_accounted(two):
    """Without the times of any process there is no table."""
    silent = [
        msgspec.structs.replace(rep, measurement=msgspec.structs.replace(rep.measurement, start_ns=None))
        for rep in two.content.manifest.repetitions
    ]
    assert time_spent(msgspec.structs.replace(two.content.manifest, repetitions=silent)) == []
