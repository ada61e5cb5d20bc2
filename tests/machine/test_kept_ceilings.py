"""Ceilings of earlier runs: what they are kept under, what shows that they hold, and what happens when they do not.

Whole runs on a fake target, whose machine can be made faster, slower or another one; real files in a cache directory of
their own.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget, at_speed, machine_identity, round_ceilings
from job_variants import run_as
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Target, Variant
from opscope.core.errors import DeviceError, RunError
from opscope.machine.ceilings.cache import (
    LARGEST_FILE,
    MOST_FILES,
    CeilingsCache,
    MachineIdentity,
)
from opscope.machine.environment import cpu_revision
from opscope.program.ceilings import (
    CACHE_TOLERANCE,
    COMPUTE_TOLERANCE,
    Ceilings,
    Origin,
    Rate,
    drift_of,
    drift_sample,
    unmeasured,
)
from opscope.runtimes.ceilings.process import probes_version
from opscope.runtimes.executorch.runners.python import python_here
from programs import write_tiny_program
from texts import CONNECTION_LOST

SMALL = Settings(rounds=2, runs=2, warmup=0)
CLEARED = ("avx512f", "avx512bw")
BOTH = [((), 1), (CLEARED, 1)]
LATER = 3600.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which ceilings are kept, empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "opscope" / "ceilings"


class Runs:
    """Runs of one model, an hour after each other.

    Args:
        directory: for their bundles.
    """

    def __init__(self, directory: Path) -> None:
        self._program, self._directory = write_tiny_program(directory), directory
        self._number = 0

    def run(self, target: FakeTarget, settings: Settings = SMALL) -> Bundle:
        """One more run, into a bundle of its own."""
        self._number += 1
        clock = FakeClock()
        clock.seconds = self._number * LATER
        out = self._directory / f"out-{self._number}"
        profile(str(self._program), settings=settings, out=out, target=target, clock=clock)
        return Bundle.open(out)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Runs of a tiny program."""
    return Runs(tmp_path)


def target(kind: type[FakeTarget] = FakeTarget, **changes: object) -> FakeTarget:
    """A target on the usual machine, or on one that differs."""
    made = kind()
    made.machine = machine_identity(**changes)
    return made


def ceilings(bundle: Bundle, variant: str = "accelerated") -> Ceilings:
    """The ceilings that a bundle holds."""
    found = bundle.ceilings(variant)
    assert isinstance(found, Ceilings)
    return found


def test_a_second_run_uses_the_ceilings_of_the_first_when_a_probe_agrees(runs: Runs) -> None:
    """One probe a variant, with its own features cleared; the bundle says when they were measured and what agreed."""
    first = ceilings(runs.run(target()))
    again = target()
    bundle = runs.run(again)
    second = ceilings(bundle)
    assert (first.origin, first.drift, first.measured_at) == (Origin.MEASURED, None, "2026-01-02T11:15:00+00:00")
    assert (again.ceilings_asked, again.ceilings_tried) == ([], BOTH)
    assert (second.origin, second.measured_at) == (Origin.CACHE, "2026-01-02T11:15:00+00:00")
    assert second.drift is not None
    assert (second.drift.kept_since, second.drift.checked_at) == (first.measured_at, "2026-01-02T12:15:00+00:00")
    assert [(check.ceiling, check.ratio) for check in second.drift.checks] == [
        ("f32 with avx512f", 1.0),
        ("copy of 32.0 KiB", 1.0),
        ("copy of 1.00 MiB", 1.0),
    ]
    assert second.compute == first.compute
    assert ceilings(bundle, "baseline").cleared == list(CLEARED)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "another"},
        {"cpu": "Other CPU"},
        {"revision": "0x1000066"},
        {"kernel": "6.2"},
        {"governor": "powersave"},
        {"hypervisor": True},
        {"usable_cpus": 1},
        {"fields": ["avx", "avx2"]},
    ],
)
def test_on_anything_else_ceilings_are_measured(runs: Runs, changes: dict[str, object]) -> None:
    """Another processor, microcode, host, kernel, or governor; what was kept before stays usable."""
    runs.run(target())
    other, same = target(**changes), target()
    runs.run(other)
    runs.run(same)
    assert (other.ceilings_asked, other.ceilings_tried) == (BOTH, [])
    assert (same.ceilings_asked, same.ceilings_tried) == ([], BOTH)


def test_every_thread_count_has_ceilings_of_its_own(runs: Runs) -> None:
    """Those of one thread are not used for two."""
    runs.run(target())
    other = target()
    runs.run(other, msgspec.structs.replace(SMALL, threads=(1, 2)))
    assert other.ceilings_tried == BOTH
    assert other.ceilings_asked == [((), 2), (CLEARED, 2)]


def test_other_probes_are_other_ceilings() -> None:
    """The key holds a hash of the code that measures, so that a change there never meets figures of before."""
    assert len(probes_version()) == 16
    own, other = (CeilingsCache(machine_identity(), probes).file([], 1) for probes in (probes_version(), "0" * 16))
    assert own != other


def test_a_machine_that_became_slower_is_measured_anew(runs: Runs) -> None:
    """Two probes are too low: the bundle says by how much, and the next run meets the new ceilings."""
    runs.run(target())
    slow = target()
    slow.speed = 0.5
    found = ceilings(runs.run(slow))
    assert (slow.ceilings_tried, slow.ceilings_asked) == ([((), 1)] * 2 + [(CLEARED, 1)] * 2, BOTH)
    assert (found.origin, found.measured_at) == (Origin.MEASURED, "2026-01-02T12:15:00+00:00")
    assert found.drift is not None
    assert {check.ratio for check in found.drift.checks} == {0.5}
    assert found.drift.seconds == 0.5
    after = target()
    after.speed = 0.5
    assert ceilings(runs.run(after)).measured_at == "2026-01-02T12:15:00+00:00"
    assert after.ceilings_asked == []


def test_a_machine_that_became_faster_is_measured_at_once(runs: Runs) -> None:
    """No second probe can make a rate lower that was seen: kept ceilings are too low."""
    runs.run(target())
    fast = target()
    fast.speed = 1.5
    runs.run(fast)
    assert (fast.ceilings_tried, fast.ceilings_asked) == (BOTH, BOTH)


def test_a_disturbance_of_one_probe_is_forgiven(runs: Runs) -> None:
    """The best rate of both probes counts, as of all runs of a ceiling."""
    runs.run(target())
    disturbed = target()
    disturbed.next_speeds = [0.5, 0.99]
    found = ceilings(runs.run(disturbed))
    assert disturbed.ceilings_tried[:2] == [((), 1)] * 2
    assert found.origin is Origin.CACHE
    assert found.drift is not None
    assert {check.ratio for check in found.drift.checks} == {0.99}


def test_a_probe_that_fails_is_no_agreement(runs: Runs) -> None:
    """Then the ceilings are measured, and the bundle says why."""
    runs.run(target())
    broken = target()
    broken.next_speeds = [RunError("measuring ceilings failed: the process was killed by SIGILL")]
    found = ceilings(runs.run(broken))
    assert found.origin is Origin.MEASURED
    assert found.notes == [
        "the probe of stored ceilings failed: measuring ceilings failed: the process was killed by SIGILL"
    ]


@pytest.mark.parametrize(("setting", "measured", "saved"), [(True, BOTH, True), (False, [], False)])
def test_kept_ceilings_can_be_refused(runs: Runs, setting: bool, measured: list[object], saved: bool) -> None:
    """``--ceilings`` measures whatever was kept, and keeps the result; ``--no-ceilings`` neither asks nor measures."""
    runs.run(target())
    asked = target()
    bundle = runs.run(asked, msgspec.structs.replace(SMALL, ceilings=setting))
    assert (asked.ceilings_asked, asked.ceilings_tried) == (measured, [])
    assert bool(list(bundle.path.rglob("ceilings.json"))) is saved
    if saved:
        assert ceilings(runs.run(target())).measured_at == ceilings(bundle).measured_at


def test_a_resumed_run_uses_kept_ceilings_for_what_is_missing(runs: Runs) -> None:
    """What the bundle holds is left alone, unless ``--ceilings`` asks for all of it anew."""
    bundle = runs.run(target())
    (bundle.path / "variants" / "baseline" / "ceilings.json").unlink()
    missing, anew = target(), target()
    resume(bundle, missing, SMALL)
    assert (missing.ceilings_asked, missing.ceilings_tried) == ([], [(CLEARED, 1)])
    assert [ceilings(bundle, name).origin for name in ("accelerated", "baseline")] == [Origin.MEASURED, Origin.CACHE]
    resume(bundle, anew, msgspec.structs.replace(SMALL, ceilings=True))
    assert (anew.ceilings_asked, anew.ceilings_tried) == (BOTH, [])


def resume(bundle: Bundle, on: FakeTarget, settings: Settings) -> None:
    """Run what is missing."""
    model = bundle.manifest.model.source
    profile(model, settings=settings, out=bundle.path, resume=True, target=on, clock=FakeClock())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda file: file.write_bytes(file.read_bytes()[:500]),
            "stored ceilings are damaged: Input data was truncated",
        ),
        (lambda file: file.write_bytes(b"\xff\xfe"), "stored ceilings are damaged"),
        (lambda file: file.write_bytes(b" " * (LARGEST_FILE + 1)), "stored ceilings are damaged: more than"),
        (lambda file: file.write_text(file.read_text().replace("kept-ceilings/1", "kept-ceilings/2")), "Invalid value"),
        (lambda file: file.write_text(file.read_text().replace("Test CPU", "Other CPU")), "for another machine"),
        (lambda file: swapped(file, "threads", 2), "for another machine"),
        (lambda file: swapped(file, "measured_at", None), "for another machine"),
        (lambda file: swapped(file, "seconds", 1234.5), "stored ceilings are damaged: their hash differs"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read: Is a directory"),
    ],
)
def test_a_damaged_or_foreign_file_is_measured_over(
    runs: Runs, cache: Path, damage: Callable[[Path], object], said: str
) -> None:
    """The bundle says what was wrong with it; it is never used, and never stops a run."""
    runs.run(target())
    for file in cache.iterdir():
        damage(file)
    again = target()
    found = ceilings(runs.run(again))
    assert (again.ceilings_asked, again.ceilings_tried) == (BOTH, [])
    assert said in found.notes[0]


def swapped(file: Path, field: str, value: object) -> None:
    """Write another value into the ceilings of a file."""
    content = json.loads(file.read_text())
    content["ceilings"][field] = value
    file.write_text(json.dumps(content))


def test_a_damaged_file_is_replaced(runs: Runs, cache: Path) -> None:
    """The run after the next one uses what was measured over it."""
    runs.run(target())
    for file in cache.iterdir():
        file.write_bytes(b"{")
    runs.run(target())
    healed = target()
    assert ceilings(runs.run(healed)).notes == []
    assert (healed.ceilings_asked, healed.ceilings_tried) == ([], BOTH)


def test_without_a_cache_ceilings_are_measured(runs: Runs, cache: Path) -> None:
    """A file in the place of the directory: the run goes on, and the bundle says that nothing was kept."""
    cache.parent.parent.mkdir(parents=True, exist_ok=True)
    cache.parent.write_text("in the way")
    first = target()
    found = ceilings(runs.run(first))
    assert first.ceilings_asked == BOTH
    assert [note.partition(":")[0] for note in found.notes] == [
        "stored ceilings cannot be read",
        "not stored for later runs",
    ]


class Scattering(FakeTarget):
    """A target whose ceilings scatter."""

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """The usual ones, each with a spread of a half."""
        lists = {}
        for name in ("compute", "elements", "memory", "dispatch"):
            lists[name] = [
                msgspec.structs.replace(ceiling, rate=Rate(ceiling.rate.best, ceiling.rate.best, 10, 0.5))
                for ceiling in getattr(round_ceilings(variant.cleared, variant.threads), name)
            ]
        return msgspec.structs.replace(round_ceilings(variant.cleared, variant.threads), **lists)


class Crowded(FakeTarget):
    """A target that other work slows down all the time."""

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """The usual ones, measured in two and a half times the time that they need."""
        return msgspec.structs.replace(round_ceilings(variant.cleared, variant.threads), cpu_share=0.4)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Scattering, "100.0 % of the ceilings were unstable"),
        (Crowded, "other programs used the CPU for 60.0 % of the time"),
    ],
)
def test_ceilings_of_a_disturbed_minute_are_not_kept(
    runs: Runs, cache: Path, kind: type[FakeTarget], said: str
) -> None:
    """They are right for this run, which was disturbed too. Steady rates may be too low as well."""
    found = ceilings(runs.run(target(kind)))
    assert found.notes == [f"not stored for later runs: {said}"]
    assert not cache.exists()


def test_an_emulated_machine_measures_and_keeps_nothing(runs: Runs, cache: Path) -> None:
    """Its times are those of the machine that emulates it."""

    class Emulated(FakeTarget):
        def describe(self) -> Target:
            return Target("fake", "", emulated=True)

    for _ in range(2):
        asked = target(Emulated)
        runs.run(asked)
        assert (asked.ceilings_asked, asked.ceilings_tried) == ([], [])
    assert not cache.exists()


def test_a_machine_that_cannot_be_asked_is_measured(runs: Runs) -> None:
    """That its identity is not known is said; that it measures ceilings all the same is what counts."""

    class Lost(FakeTarget):
        def identity(self) -> MachineIdentity | None:
            raise DeviceError(CONNECTION_LOST)

    lost = Lost()
    found = ceilings(runs.run(lost))
    assert lost.ceilings_asked == BOTH
    assert found.notes == [f"cannot use ceilings of earlier runs: {CONNECTION_LOST}"]


def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    """The oldest make room."""
    kept = CeilingsCache(machine_identity(), "p", tmp_path)
    counts = range(1, MOST_FILES + 3)
    for threads in counts:
        kept.keep(msgspec.structs.replace(round_ceilings([], threads), measured_at="2026-01-02T10:15:00+00:00"))
    assert len(list(tmp_path.iterdir())) == MOST_FILES
    assert isinstance(kept.recall([], counts[-1]), Ceilings)
    assert kept.recall([], counts[0]) == ""


def _keep_often(directory: Path, number: int) -> None:
    for _ in range(20):
        ceilings_of = msgspec.structs.replace(
            round_ceilings(), seconds=float(number), measured_at="2026-01-02T10:15:00+00:00"
        )
        CeilingsCache(machine_identity(), "p", directory).keep(ceilings_of)


def test_two_runs_may_keep_at_the_same_time(tmp_path: Path) -> None:
    """Who reads meets the one or the other, whole."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_keep_often, args=(tmp_path, number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    seen = []
    while any(writer.is_alive() for writer in writers):
        seen.append(CeilingsCache(machine_identity(), "p", tmp_path).recall([], 1))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert {recalled for recalled in seen if isinstance(recalled, str)} <= {""}
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_probe_without_a_single_figure_is_no_agreement() -> None:
    """Ceilings of which nothing could be tried again are measured."""
    kept = msgspec.structs.replace(round_ceilings(), compute=[], memory=[])
    assert not drift_of(kept, [kept], "2026-01-02T10:15:00+00:00").agrees


@pytest.mark.parametrize(
    ("speed", "agrees", "exceeded"),
    [
        (1.001 - COMPUTE_TOLERANCE, True, False),
        (0.85, False, False),
        (0.999 + COMPUTE_TOLERANCE, True, False),
        (1.15, False, True),
    ],
)
def test_both_directions_are_held_to_the_tolerance(speed: float, agrees: bool, exceeded: bool) -> None:
    """Too fast is as wrong as too slow: the kept ceiling was measured in a bad minute."""
    kept = round_ceilings()
    drift = drift_of(kept, [at_speed(kept, speed)], "2026-01-02T10:15:00+00:00")
    assert COMPUTE_TOLERANCE == CACHE_TOLERANCE
    assert (drift.agrees, drift.exceeded) == (agrees, exceeded)


@pytest.mark.parametrize(
    ("cpuinfo", "revision"),
    [
        ("model name : X\nmicrocode : 0xb000040\n\nmicrocode : 0xb000040\n", "0xb000040"),
        (
            "".join(
                f"CPU implementer : 0x41\nCPU variant : {variant}\nCPU part : {part}\nCPU revision : {revision}\n\n"
                for variant, part, revision in (("0x1", "0xd0b", 0), ("0x2", "0xd05", 1), ("0x2", "0xd05", 1))
            ),
            "0x41/0x1/0xd0b/0, 0x41/0x2/0xd05/1",
        ),
        ("", None),
    ],
)
def test_the_revision_of_a_processor_is_read(cpuinfo: str, revision: str | None) -> None:
    """Microcode on x86-64, the kinds of cores on Arm, nothing where nothing is told."""
    assert cpu_revision(cpuinfo) == revision


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(target, id="fake"),
        pytest.param(python_here, id="local", marks=pytest.mark.runtime),
    ],
)
def test_a_target_measures_the_same_ceilings_again(make: Callable[[], FakeTarget | python_here]) -> None:
    """Those that were asked for, of the same levels, in a fraction of the time."""
    tried = make()
    kept = tried.ceilings(run_as([]))
    assert kept is not None
    sample = drift_sample(kept)
    again = tried.ceilings_again(sample)
    assert [unmeasured(ceiling) for ceiling in again.all()] == [unmeasured(ceiling) for ceiling in sample.all()]
    assert all(ceiling.rate.best for ceiling in again.all())
    assert (again.cleared, again.threads) == ([], 1)
    assert tried.identity() == make().identity() is not None
