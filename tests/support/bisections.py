"""Bisections of fake targets: releases whose convolution takes so much longer, or that do not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fakes import FakeClock, FakeTarget
from opscope.analysis.bisection import BisectedState, Bisection
from opscope.api import Settings
from opscope.bundle.manifest import Failure, FailureKind
from opscope.experiment.protocol import Job
from opscope.workflows.bisect.bisecting import BisectRequest, RunState, run_bisection
from opscope.workflows.measure.experiments import Means
from programs import write_tiny_program

SMALL = Settings(rounds=6, runs=4, warmup=1, max_rounds=12)
CRASH = Failure(FailureKind.SIGNAL, "killed by SIGSEGV", signal="SIGSEGV")


def constant(factor: float) -> Callable[[Job], float]:
    """The convolution of every job takes so much longer."""
    return lambda _: factor


def state(number: int, slower: float, *, crashes: bool = False) -> RunState:
    """A release whose convolution takes so much longer, or that does not run."""
    target = FakeTarget(noise=0.01, seed=number, fail=lambda _: CRASH if crashes else None)
    target.slower = constant(slower)
    return RunState(BisectedState(f"1.{number}"), target)


def asked(
    directory: Path, states: Sequence[RunState], settings: Settings = SMALL, *, listed: bool = False
) -> BisectRequest:
    """A bisection of the tiny program."""
    directory.mkdir(exist_ok=True)
    program = write_tiny_program(directory)
    command = "opscope bisect tiny.pte --good 1.0 --bad 1.9"
    return BisectRequest("tiny.pte", program, "Fake", "release", states, settings, command, work=False, listed=listed)


def found(directory: Path, states: Sequence[RunState], **others: bool) -> Bisection:
    """What a bisection of these states finds."""
    means = Means(clock=FakeClock(), sleep=lambda _: None)
    return run_bisection(asked(directory, states, **others), directory / "out", means)
