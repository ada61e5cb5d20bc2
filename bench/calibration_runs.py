"""Real experiments of identical variants, run by the product's own engine on this machine.

Every experiment is a bundle with two variants that do not differ, in interleaved rounds whose order is drawn, untraced.
Models and conditions take turns, so that all of them see the whole session.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Manifest, Plan, Role, Status, Variant
from opscope.core.version import __version__
from opscope.experiment.engine import interleaved, run_experiment
from opscope.machine.clock import SystemClock
from opscope.runtimes.executorch.export.process import export_model
from opscope.runtimes.executorch.runners.native import native_here
from opscope.runtimes.registry import runtime_of
from opscope.workflows.measure.experiments import complete_inferences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.bundle.manifest import Repetition
    from opscope.experiment.target import RunTarget

ROUNDS = 10
_RUNS, _WARMUP = 20, 5
_SIDES = ("one", "other")
_BUSY = "while True: pass"
_BUSY_SECONDS = 0.5
_UNIT_NS = 100

Durations: TypeAlias = NDArray[np.uint32]


class Condition(NamedTuple):
    """What is run: a model, and whether a busy process starts and stops beside it at random."""

    model: str
    busy: bool

    @property
    def name(self) -> str:
        """For tables and files."""
        return f"{self.model}, busy neighbour" if self.busy else self.model


class Runs(NamedTuple):
    """Experiments of one condition, in the order in which they ran.

    Attributes:
        durations: in ns, rounded to tenths of a microsecond; shape (experiments, sides, rounds, inferences).
        load: load average at the beginning of each process, averaged over an experiment.
    """

    durations: Durations
    load: NDArray[np.float32]


CONDITIONS = (
    Condition("toy_cnn", busy=False),
    Condition("mobilenet_v3_small", busy=False),
    Condition("portable", busy=False),
    Condition("toy_cnn", busy=True),
    Condition("mobilenet_v3_small", busy=True),
)


def measure(experiments: int, rounds: int = ROUNDS) -> dict[str, Runs]:
    """Run so many experiments under every condition; results by the condition's name.

    Args:
        experiments: of each condition.
        rounds: of each experiment; a round is a process of either side.
    """
    found: dict[str, list[tuple[Durations, float]]] = {condition.name: [] for condition in CONDITIONS}
    target = native_here()
    with tempfile.TemporaryDirectory() as work:
        programs = _exported(Path(work))
        for number in range(experiments):
            for place, condition in enumerate(CONDITIONS):
                seed = number * len(CONDITIONS) + place  # an order of its own for each experiment
                with _neighbour(seed) if condition.busy else contextlib.nullcontext():
                    found[condition.name].append(_experiment(programs[condition.model], target, rounds, seed))
    return {
        name: Runs(np.stack([durations for durations, _ in rows]), np.array([load for _, load in rows], np.float32))
        for name, rows in found.items()
    }


def save(runs: dict[str, Runs], path: Path) -> None:
    """Keep what was measured; ``load`` reads it. Bytes of one weight stand together, so that the file is small."""
    columns: dict[str, NDArray[np.generic]] = {}
    for name, own in runs.items():
        units = (own.durations // _UNIT_NS).astype("<u4")
        columns[f"{name}/units"] = np.moveaxis(units[..., None].view(np.uint8), -1, 0)
        columns[f"{name}/load"] = own.load
    np.savez_compressed(path, allow_pickle=False, **columns)


def load(path: Path) -> dict[str, Runs]:
    """What ``save`` kept."""
    with np.load(path) as file:
        names = dict.fromkeys(key.rpartition("/")[0] for key in file.files)
        return {name: Runs(_durations(file[f"{name}/units"]), file[f"{name}/load"]) for name in names}


def _durations(planes: NDArray[np.uint8]) -> Durations:
    units = np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view("<u4")[..., 0]
    durations: Durations = units.astype(np.uint32) * np.uint32(_UNIT_NS)
    return durations


def _exported(directory: Path) -> dict[str, Path]:
    programs = {name: export_model(name, "fp32", directory)[0] for name in ("toy_cnn", "mobilenet_v3_small")}
    programs["portable"] = directory / "portable.pte"
    script = Path(__file__).with_name("calibration_portable.py")
    subprocess.run([sys.executable, script, programs["portable"]], check=True, capture_output=True)
    return programs


def _experiment(program: Path, target: RunTarget, rounds: int, seed: int) -> tuple[Durations, float]:
    """Durations of the two sides by round, and the load."""
    with tempfile.TemporaryDirectory() as work:
        bundle = Bundle.create(Path(work) / "bundle", _manifest(program, target, rounds, seed), [program])
        run_experiment(bundle, target, SystemClock(), complete_inferences, _silent)
    if bundle.manifest.status is not Status.COMPLETE:
        raise SystemExit(f"it did not run: {bundle.manifest.failures()[0].failure}")
    measured = {(one.variant, one.round): one for one in bundle.manifest.repetitions}
    sides = [[_settled(measured[name, number]) for number in range(rounds)] for name in _SIDES]
    loads = [one.before.load_average or 0.0 for one in measured.values()]
    durations: Durations = np.rint(np.array(sides) / _UNIT_NS).astype(np.uint32) * np.uint32(_UNIT_NS)
    return durations, sum(loads) / len(loads)


def _settled(repetition: Repetition) -> list[int]:
    assert repetition.measurement is not None  # noqa: S101 - the experiment is complete
    return repetition.measurement.wall_ns[_WARMUP:]


def _manifest(program: Path, target: RunTarget, rounds: int, seed: int) -> Manifest:
    """The plan of an experiment of two variants without a difference, without traced runs."""
    roles = (Role.BASELINE, Role.CANDIDATE)
    plan = Plan(
        rounds=rounds,
        runs=_RUNS,
        warmup=_WARMUP,
        seed=seed,
        order=[[] for _ in range(rounds)],
        timeout=60.0,
        timed_order=interleaved(_SIDES, rounds, seed),
    )
    return Manifest(
        opscope=__version__,
        created=SystemClock().now().isoformat(timespec="seconds"),
        status=Status.RUNNING,
        model=runtime_of(program).described(str(program), program, [program], "model"),
        plan=plan,
        variants=[Variant(name, role, [], [], 1) for name, role in zip(_SIDES, roles, strict=True)],
        target=target.describe(),
        environment=target.environment(),
        repetitions=[],
    )


def _silent(done: int, total: int, repetition: Repetition | None) -> None:
    """Progress that nobody watches."""


@contextlib.contextmanager
def _neighbour(seed: int) -> Iterator[None]:
    """A process that is busy, then not, for random times of half a second in the mean."""
    over = threading.Event()
    thread = threading.Thread(target=_disturb, args=(over, random.Random(seed)))  # noqa: S311 - times, no secrets
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _disturb(over: threading.Event, generator: random.Random) -> None:
    while not over.is_set():
        process = subprocess.Popen([sys.executable, "-S", "-c", _BUSY])
        over.wait(generator.expovariate(1 / _BUSY_SECONDS))
        process.kill()
        process.wait()
        over.wait(generator.expovariate(1 / _BUSY_SECONDS))
