"""Measured bundles that bring about every outcome of a gate, every verdict and every grade, for ``make frozen``.

Each bundle is profiled on a pretended target and a pretended clock; only noise, difference and disturbance are planned.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.core.system.usage import ProcessUsage
from opscope.experiment.protocol import Job
from opscope.experiment.target import JobOutcome
from programs import tiny_program

_SLICE_NS = 4_000_000


class GateCase(NamedTuple):
    """A bundle to make, and what to ask of it.

    Attributes:
        name: of the bundle's directory.
        commands: with ``{bundle}`` for it.
        slowdown: how much longer the convolution of the baseline takes.
        noise: between processes, relative standard deviation.
        rounds: processes of each variant and arm.
        runs: measured inferences of each process.
        preempted: share of the calls of the baseline that another process interrupts.
        outputs_differ: whether the two sides compute different results.
    """

    name: str
    commands: tuple[str, ...]
    slowdown: float = 1.0
    noise: float = 0.002
    rounds: int = 10
    runs: int = 8
    preempted: float = 0.0
    outputs_differ: bool = False


_LOOK = (
    "analyze {bundle}",
    "report {bundle} --format md --out report",
    "compare {bundle}#baseline {bundle}#accelerated",
)
_SLOWER = "check {bundle}#baseline --against {bundle}#accelerated --json g.json --markdown g.md --junit g.xml"
_FASTER = "check {bundle}#accelerated --against {bundle}#baseline --json f.json"

GATE_CASES = (
    GateCase("passed-within", (*_LOOK, _SLOWER, _FASTER)),
    GateCase("passed-detectable", (_SLOWER + " --threshold 2.13%",), slowdown=1.005, noise=0.02, rounds=20),
    GateCase("passed-slower", (_SLOWER + " --threshold 9%",), slowdown=1.09, noise=0.02, rounds=12),
    GateCase("regression", (*_LOOK, _SLOWER, _FASTER, "{budget}"), slowdown=1.5),
    GateCase("inconclusive-few", (*_LOOK, _SLOWER), slowdown=1.1, rounds=2),
    GateCase("inconclusive-noise", (_SLOWER, _SLOWER + " --inconclusive pass"), slowdown=1.06, noise=0.09, rounds=6),
    GateCase("inconclusive-blind", (_SLOWER + " --threshold 5%",), noise=0.05, rounds=6),
    GateCase("disturbed", (*_LOOK, _SLOWER, _FASTER), slowdown=1.5, preempted=0.1),
    GateCase("withheld", (*_LOOK, _SLOWER, _FASTER), slowdown=1.5, preempted=1.0),
    GateCase("good", (*_LOOK, _FASTER), slowdown=1.5, runs=30),
    GateCase("outputs-differ", (*_LOOK, _SLOWER), outputs_differ=True),
)
BUDGET = '[end_to_end]\nmax_ms = 0.4\n\n[[budget]]\nbackend = "portable"\nmax_share = 0.01\n'


class DisturbedTarget(FakeTarget):
    """A pretended target on which another process interrupts a share of the calls with cleared features."""

    def __init__(self, case: GateCase) -> None:
        super().__init__(slowdown=case.slowdown, noise=case.noise, seed=7)
        self._interruptions, self._preempted = random.Random(7), case.preempted
        if case.outputs_differ:
            self.outputs = lambda job: np.arange(4, dtype=np.float32) + (0.5 if job.clear else 0.0)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Run the job, with what the system counted beside each call."""
        outcome = super().execute(job, directory)
        if outcome.measurement is None:
            return outcome
        share = self._preempted if job.clear else 0.0
        off_cpu_ns = [_SLICE_NS if self._interruptions.random() < share else 1_000 for _ in outcome.measurement.wall_ns]
        wall_ns = [wall + off for wall, off in zip(outcome.measurement.wall_ns, off_cpu_ns, strict=True)]
        lost_ns, total_ns = sum(off_cpu_ns), sum(wall_ns)
        usage = ProcessUsage(total_ns, total_ns - lost_ns, 0, 0, 0, 0, run_delay_ns=lost_ns, cpus=2, steal_ns=0)
        changes = {"wall_ns": wall_ns, "off_cpu_ns": off_cpu_ns, "usage": usage}
        return JobOutcome(measurement=msgspec.structs.replace(outcome.measurement, **changes))


def make_bundle(case: GateCase, work: Path) -> Path:
    """Profile the bundle of a case below a directory, and return its path."""
    program = work / "tiny.pte"
    program.write_bytes(tiny_program())
    settings = Settings(rounds=case.rounds, runs=case.runs, warmup=2, ceilings=False)
    bundle = work / "gates" / case.name
    profile(program, settings=settings, out=bundle, target=DisturbedTarget(case), clock=FakeClock())
    return bundle


def gate_commands(case: GateCase) -> list[str]:
    """Return the commands of a case, for a directory in which its bundle and ``budget.toml`` lie."""
    with_budget = f"check {case.name}#baseline --against {case.name}#accelerated --budget budget.toml"
    return [with_budget if command == "{budget}" else command.format(bundle=case.name) for command in case.commands]


EXIT_CODE_COMMANDS: tuple[tuple[int, str], ...] = (
    (2, "analyze bundle --warmup many"),
    (3, "analyze nowhere.etdump"),
    (4, "analyze damaged.etdump"),
    (6, "profile trace.pte --ablate sme9"),
    (8, "profile trace.pte --out bundle"),
    (13, "check bundle#accelerated --against other#baseline"),
    (15, "validate damaged"),
    (19, "analyze bundle --json mine.json"),
)
"""A command for each exit code that files alone bring about, beside those of the gates."""


def damage_files(place: Path) -> Iterator[str]:
    """Write what the commands of exit codes are given, beside ``bundle``, ``other`` and ``trace.etdump``."""
    actions: dict[str, Callable[[Path], object]] = {
        "damaged.etdump": lambda path: path.write_bytes((place / "trace.etdump").read_bytes()[:-40]),
        "mine.json": lambda path: path.write_text("{}"),
    }
    for name, write in actions.items():
        write(place / name)
        yield name
