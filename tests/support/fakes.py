"""A target whose latencies are drawn from a seeded generator, and a clock that only moves when it is told.

The traces it leaves are real ETDump files, so everything behind it is the real thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import numpy as np

from opscope.bundle.manifest import Conditions, Environment, Failure, MaskProof, Measurement, Mechanism, Target, Variant
from opscope.core.errors import FeatureError, OpscopeError
from opscope.experiment.protocol import SETTINGS_OF_A_JOB, Job, ProbeAnswer
from opscope.experiment.target import Capabilities, JobOutcome, RunTarget, SwitchOffer
from opscope.machine import isa
from opscope.machine.ceilings.cache import MachineIdentity
from opscope.program.ceilings import (
    Ceilings,
    Dispatch,
    DispatchCost,
    ElementCeiling,
    MacCeiling,
    MeasuredCeiling,
    MemoryCeiling,
    Pattern,
    Rate,
    unmeasured,
)
from opscope.program.structure.exported import Tensor
from opscope.readers.outputs import values_sha256
from traces import Node, encode

FIELDS = ["avx", "avx2", "avx512bw", "avx512f", "f16c", "fma3", "sse4_1"]
_QUANTUM = 1_000
TRACING = 1.02
"""How much longer the caller of a fake target waits when it is traced."""


class FakeClock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        """A fixed day, plus what has been added."""
        return datetime(2026, 1, 2, 10, 15, tzinfo=timezone.utc) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        """Seconds that have been added."""
        return self.seconds


class FakeTarget(RunTarget):
    """Runs nothing: writes the trace that a program of one convolution and one portable add would leave.

    Args:
        slowdown: how much longer the convolution takes when features are cleared.
        noise: standard deviation between processes, relative.
        seed: of the noise.
        clock: is moved on by the time that the inferences take.
        fail: called with the number of the job; a Failure it returns is the outcome.
        no_ceilings: raised when ceilings are asked for; None: the target has them.
        no_switch: raised when features are asked for; None: the CPU has AVX-512.
        untraceable: why the runtime traces nothing; None: it does.

    Attributes:
        machine: what ceilings depend on there; None, at first: no earlier ones may be used.
        jobs: every job it was given.
        ceilings_asked: cleared fields and threads of every request for ceilings.
        ceilings_tried: likewise, of every request to measure some of them again.
        speed: of the machine now, beside its usual one.
        next_speeds: of single requests to come, before ``speed`` counts; an error is raised.
        slower: how much longer the convolution of a job takes than usual.
        outputs: what a job computes.
    """

    honours = frozenset(SETTINGS_OF_A_JOB)

    def __init__(  # noqa: PLR0913, PLR0917 - each argument is one thing that a target can do otherwise
        self,
        slowdown: float = 2.0,
        noise: float = 0.02,
        seed: int = 0,
        clock: FakeClock | None = None,
        fail: Callable[[int], Failure | None] = lambda _: None,
        no_ceilings: OpscopeError | None = None,
        no_switch: OpscopeError | None = None,
        untraceable: str | None = None,
    ) -> None:
        self._no_switch, self._untraceable = no_switch, untraceable
        self._slowdown, self._noise, self._fail = slowdown, noise, fail
        self._random = random.Random(seed)
        self._clock = clock or FakeClock()
        self._no_ceilings = no_ceilings
        self.machine: MachineIdentity | None = None
        self.jobs: list[Job] = []
        self.ceilings_asked: list[tuple[tuple[str, ...], int]] = []
        self.ceilings_tried: list[tuple[tuple[str, ...], int]] = []
        self.speed = 1.0
        self.next_speeds: list[float | OpscopeError] = []
        self.slower: Callable[[Job], float] = lambda _: 1.0
        self.outputs: Callable[[Job], np.ndarray] = lambda _: np.arange(4, dtype=np.float32)

    def describe(self) -> Target:
        """Kind and address, for the manifest."""
        return Target("fake", "")

    def capabilities(self) -> Capabilities:
        """Whether its runtime traces."""
        return Capabilities(untraceable=self._untraceable)

    def probe(self) -> ProbeAnswer:
        """A CPU with AVX-512."""
        if self._no_switch:
            raise self._no_switch
        return ProbeAnswer("x86_64", list(FIELDS), 85, 85, isa.LAYOUTS["x86_64"][85].offsets)

    def environment(self) -> Environment:
        """A machine with two processors."""
        return Environment(
            system="Linux",
            machine="x86_64",
            kernel="6.1",
            cpu="Test CPU",
            logical_cpus=2,
            usable_cpus=2,
            memory_bytes=1 << 30,
            hypervisor=False,
            governor="performance",
            features=["avx512", "avx2", "avx", "sse4"],
            versions={"opscope": "0", "executorch": "1.5.1"},
        )

    def conditions(self) -> Conditions:
        """A quiet machine."""
        return Conditions(0.1, 3000.0, 40.0)

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Write the trace and the outputs."""
        self.jobs.append(job)
        failure = self._fail(len(self.jobs))
        if failure:
            return JobOutcome(failure=failure)
        inferences = [self._inference(job) for _ in range(job.inferences)]
        self._clock.seconds += sum(inference.duration for inference in inferences) / 1e9
        load = Node("Program::load_method", 900_000)
        blocks = [("Default", [load]), *(("Execute", [inference]) for inference in inferences)]
        if job.traced:
            (directory / "trace.etdump").write_bytes(encode(blocks))
        outputs = self.outputs(job)
        np.savez(directory / "outputs.npz", outputs)
        cost = TRACING if job.traced else 1.0
        wall = [round(inference.duration * cost) for inference in inferences]
        return JobOutcome(measurement=_measurement(job, wall, values_sha256([outputs])))

    def ceilings(self, variant: Variant) -> Ceilings | None:
        """Ceilings of a machine with round numbers; half as high when features are cleared."""
        clear, threads = variant.cleared, variant.threads or 1
        self.ceilings_asked.append((tuple(clear), threads))
        if self._no_ceilings:
            raise self._no_ceilings
        return at_speed(round_ceilings(clear, threads, slowdown=2 if clear else 1), self._speed())

    def identity(self) -> MachineIdentity | None:
        """The machine that it was given."""
        return self.machine

    def ceilings_again(self, sample: Ceilings) -> Ceilings:
        """The same ceilings as those of the whole measurement, at the speed of now."""
        self.ceilings_tried.append((tuple(sample.cleared), sample.threads))
        whole = at_speed(
            round_ceilings(sample.cleared, sample.threads, slowdown=2 if sample.cleared else 1), self._speed()
        )
        wanted = [unmeasured(ceiling) for ceiling in sample.all()]
        lists = {name: [r for r in getattr(whole, name) if unmeasured(r) in wanted] for name in _KINDS}
        return msgspec.structs.replace(whole, seconds=0.25, **lists)

    def _speed(self) -> float:
        speed = self.next_speeds.pop(0) if self.next_speeds else self.speed
        if isinstance(speed, OpscopeError):
            raise speed
        return speed

    def _inference(self, job: Job) -> Node:
        slow = (self._slowdown if job.clear else 1.0) * self.slower(job)
        if not hasattr(self, "_process") or self._process[0] != len(self.jobs):
            self._process = (len(self.jobs), self._random.gauss(1, self._noise))
        factor = self._process[1] * self._random.gauss(1, 0.005)
        convolution = round(400_000 * slow * factor) // _QUANTUM * _QUANTUM
        add = round(100_000 * factor)
        delegate = Node(
            "DELEGATE_CALL", convolution + 7_123, 0, children=[Node(_CONVOLUTION, convolution, 0, delegate=True)]
        )
        call = Node("OPERATOR_CALL", add + 500, 1, children=[Node("native_call_add.out", add, 1)])
        return Node("Method::execute", delegate.duration + call.duration + 900, children=[delegate, call])


_CONVOLUTION = "Convolution (NHWC, F32) IGEMM #1"


def _measurement(job: Job, wall: list[int], output_sha256: str) -> Measurement:
    return Measurement(
        mask=None if job.clear is None else _proof(job),
        threads=job.threads,
        inputs=[Tensor([1, 3, 8, 8], "float32")],
        outputs=[Tensor([4], "float32")],
        output_sha256=output_sha256,
        wall_ns=wall,
        start_ns=1_000,
        load_ns=1_000,
        peak_rss_bytes=1 << 20,
        versions={"executorch": "1.5.1"},
    )


def _proof(job: Job) -> MaskProof:
    clear, switch = job.variant.cleared, job.variant.switch
    counts = {} if switch is Mechanism.CPUINFO else {"sites": 21, "executions": 23, "masked": 2 if clear else 0}
    return MaskProof(clear, backend_loaded_before=False, same_symbol=True, struct_size=85, mechanism=switch, **counts)


class PhasesTarget(FakeTarget):
    """A fake target whose method `prefill` takes ten times as long as others; ``phase`` is how much longer besides."""

    def __init__(self, seed: int, *, prefill: float = 1.0, decode: float = 1.0, slowdown: float = 2.0) -> None:
        super().__init__(seed=seed, noise=0.003, slowdown=slowdown)
        self._call = 0
        self.phase: Callable[[Job, str], float] = lambda _, name: prefill if name == "prefill" else decode

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Each process begins with the first method."""
        self._call = 0
        return super().execute(job, directory)

    def _inference(self, job: Job) -> Node:
        name = job.calls[self._call % len(job.calls)]
        self._call += 1
        self.slower = lambda own: self.phase(own, name) * (10 if name == "prefill" else 1)
        return super()._inference(job)


class SwitchingFakeTarget(FakeTarget):
    """The same with the trap: as a target on x86-64 Linux.

    Attributes:
        no_trap: why the trap cannot be used; None: it can.
        libraries: hash of what it switches.
    """

    mechanisms = tuple(Mechanism)
    no_trap: OpscopeError | None = None
    libraries = "0123456789abcdef"

    def offer(self, mechanism: Mechanism) -> SwitchOffer:
        """The trap, with the features that the processor states."""
        if mechanism is Mechanism.CPUINFO:
            return super().offer(mechanism)
        if mechanism is Mechanism.HWCAP:
            raise FeatureError("hwcap needs Linux on aarch64, this is Linux on x86_64")
        if self.no_trap:
            raise self.no_trap
        return SwitchOffer(mechanism, ProbeAnswer("x86_64", list(FIELDS), None, 0, {}), self.libraries)


_KINDS = ("compute", "elements", "memory", "dispatch")


def at_speed(ceilings: Ceilings, speed: float) -> Ceilings:
    """Ceilings of a machine that is faster or slower."""

    def scaled(ceiling: MeasuredCeiling) -> MeasuredCeiling:
        return msgspec.structs.replace(ceiling, rate=rate(round(ceiling.rate.best * speed)))

    return msgspec.structs.replace(ceilings, **{name: [scaled(r) for r in getattr(ceilings, name)] for name in _KINDS})


def machine_identity(**changes: object) -> MachineIdentity:
    """A machine with two processors.

    Args:
        changes: what is different in another one.
    """
    usual = MachineIdentity(
        host="0123456789abcdef",
        system="Linux",
        kernel="6.1",
        cpu="Test CPU",
        revision="0x1000065",
        governor="performance",
        hypervisor=False,
        logical_cpus=2,
        usable_cpus=2,
        fields=FIELDS,
    )
    return msgspec.structs.replace(usual, **changes)


def rate(best: int) -> Rate:
    """A rate that was seen ten times, always the same."""
    return Rate(best, best, 10, 0.0)


def round_ceilings(clear: Sequence[str] = (), threads: int = 1, slowdown: int = 1) -> Ceilings:
    """Ceilings in round numbers: 100 GMAC/s, half of it without AVX-512; 100 GB/s in cache, 10 GB/s outside.

    200 GMAC/s in bf16, an element a nanosecond, 100 ns for an operator, and no integers.

    Args:
        clear: fields that were cleared.
        threads: that measured.
        slowdown: by which multiply-accumulates are slower.
    """
    return Ceilings(
        arch="x86_64",
        cleared=list(clear),
        threads=threads,
        seconds=4.0,
        compute=[
            MacCeiling(dtype="f32", level="fma3", rate=rate(50_000_000_000 // slowdown)),
            MacCeiling(dtype="f32", level="avx512f", rate=rate(100_000_000_000 // slowdown)),
            MacCeiling(dtype="bf16", level="avx512bf16", rate=rate(200_000_000_000 // slowdown)),
        ],
        elements=[ElementCeiling(dtype="f32", level="avx512f", rate=rate(1_000_000_000))],
        memory=[
            MemoryCeiling(pattern=Pattern.COPY, working_set=1 << 15, rate=rate(100_000_000_000)),
            MemoryCeiling(pattern=Pattern.READ, working_set=1 << 15, rate=rate(90_000_000_000)),
            MemoryCeiling(pattern=Pattern.COPY, working_set=1 << 20, rate=rate(100_000_000_000)),
            MemoryCeiling(pattern=Pattern.COPY, working_set=1 << 28, rate=rate(10_000_000_000)),
        ],
        dispatch=[
            DispatchCost(dispatch=Dispatch.SERIAL, rate=rate(10_000_000)),
            DispatchCost(dispatch=Dispatch.PARALLEL, rate=rate(1_000_000)),
        ],
    )
