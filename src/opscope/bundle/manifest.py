"""The manifest: what was asked, on what it ran, and what became of every repetition. Schema ``opscope.bundle/1``."""

from __future__ import annotations

import enum

import msgspec


class Role(str, enum.Enum):
    """What a variant is in the experiment. A field, never read out of a name."""

    ACCELERATED = "accelerated"
    BASELINE = "baseline"
    INTERMEDIATE = "intermediate"
    CANDIDATE = "candidate"
    """Compared with a baseline, where nothing tells that it is accelerated; only in what other tools left behind."""


class Status(str, enum.Enum):
    """State of a bundle."""

    RUNNING = "running"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


class FailureKind(str, enum.Enum):
    """Why a repetition failed."""

    SIGNAL = "signal"
    EXIT = "exit"
    TIMEOUT = "timeout"
    MASK = "mask"
    TRACE = "trace"
    STORAGE = "storage"


class Model(msgspec.Struct, frozen=True):
    """The program that was run. In reports of other tools' directories, null is what their files do not tell.

    Attributes:
        name: registered name, or the stem of the .pte.
        source: what was asked for: a registered name or a path.
        dtype: number type; null for a .pte whose export is not known.
        program: path of the .pte within the bundle.
        etrecord: path of the .etrecord within the bundle; null without.
        sha256: hash of the .pte; never null in a bundle.
        size: of the .pte in bytes; likewise.
        methods: methods of the program; likewise.
        backends: delegates that the program calls.
    """

    name: str
    source: str
    dtype: str | None
    program: str
    etrecord: str | None
    sha256: str | None
    size: int | None
    methods: list[str] | None
    backends: list[str]


class Variant(msgspec.Struct, frozen=True):
    """One way to run the model.

    Attributes:
        name: unique in the bundle; also its directory.
        role: what it is in the experiment; null only in reports of other tools' directories, where none is known.
        ablated: feature groups that were switched off; null likewise.
        cleared: fields of ``cpuinfo_isa`` that were cleared for it.
        threads: size of the thread pool; null likewise.
    """

    name: str
    role: Role | None
    ablated: list[str] | None
    cleared: list[str]
    threads: int | None


class Plan(msgspec.Struct, frozen=True):
    """What was asked for. In reports of other tools' directories, null is what their files do not tell.

    Attributes:
        rounds: repetitions of every variant, each in a process of its own.
        runs: measured inferences of each process.
        warmup: inferences before them that are set aside.
        seed: of the order and of the inputs.
        order: for every round the variants in the order they run.
        timeout_seconds: limit for one process.
    """

    rounds: int
    runs: int | None
    warmup: int | None
    seed: int | None
    order: list[list[str]]
    timeout_seconds: float | None


class Target(msgspec.Struct, frozen=True):
    """Where it ran: kind of target, and how it is addressed there."""

    kind: str
    address: str


class Environment(msgspec.Struct, frozen=True):
    """The machine and its software, taken once before the first repetition; null where it cannot be read."""

    system: str | None
    machine: str | None
    kernel: str | None
    cpu: str | None
    logical_cpus: int | None
    usable_cpus: int | None
    memory_bytes: int | None
    hypervisor: bool | None
    governor: str | None
    features: list[str] | None
    versions: dict[str, str]


class Conditions(msgspec.Struct, frozen=True):
    """The state of the machine at one moment; null where it cannot be read."""

    load_average: float | None
    frequency_mhz: float | None
    temperature_celsius: float | None


class Failure(msgspec.Struct, frozen=True):
    """Why a repetition has no result."""

    kind: FailureKind
    message: str
    signal: str | None = None
    exit_code: int | None = None


class MaskProof(msgspec.Struct, frozen=True):
    """How it is known that features were off when the backend chose its kernels.

    Attributes:
        cleared: fields that were cleared, read back as zero after the backend was loaded.
        backend_loaded_before: whether the backend library was in the process before; must be false.
        same_symbol: whether the backend's ``cpuinfo_isa`` is the one that was cleared.
        struct_size: size of the struct, as the library's symbol table states it; null where it states none.
    """

    cleared: list[str]
    backend_loaded_before: bool
    same_symbol: bool
    struct_size: int | None


class Tensor(msgspec.Struct, frozen=True):
    """Shape and number type of an input or output."""

    shape: list[int]
    dtype: str


class Measurement(msgspec.Struct, frozen=True):
    """What a process reported about itself besides its trace.

    Attributes:
        mask: proof that its features were off.
        threads: size of the thread pool, read back.
        inputs: of the inference.
        outputs: of the inference.
        output_sha256: hash of all output values.
        wall_ns: duration of every call of the method, warm-up included, as the caller saw it.
        start_ns: from the start of the process to the loaded runtime.
        load_ns: loading the program.
        peak_rss_bytes: largest resident memory of the process.
        versions: of the packages in the process.
    """

    mask: MaskProof
    threads: int
    inputs: list[Tensor]
    outputs: list[Tensor]
    output_sha256: str
    wall_ns: list[int]
    start_ns: int
    load_ns: int
    peak_rss_bytes: int
    versions: dict[str, str]


class Repetition(msgspec.Struct, frozen=True):
    """One process: its place in the plan, its files and what became of it.

    Attributes:
        variant: name of its variant.
        round: from 0.
        attempt: from 1; more when an earlier attempt failed and the run was resumed.
        started: UTC, ISO 8601; null only in reports of other tools' directories.
        seconds: wall time of the process; likewise.
        directory: of its files, within the bundle.
        trace: path of the ETDump within the bundle; null when there is none.
        trace_sha256: its hash.
        inferences: complete inferences in the trace.
        before: state of the machine before.
        after: state of the machine after.
        measurement: what the process reported; null when it failed.
        failure: why it failed; null when it did not.
    """

    variant: str
    round: int
    attempt: int
    started: str | None
    seconds: float | None
    directory: str
    trace: str | None
    trace_sha256: str | None
    inferences: int
    before: Conditions
    after: Conditions
    measurement: Measurement | None
    failure: Failure | None

    @property
    def ok(self) -> bool:
        """Whether it counts."""
        return self.failure is None


class Manifest(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.bundle/1"):
    """Everything about a bundle but the traces themselves."""

    opscope: str
    created: str
    status: Status
    model: Model
    plan: Plan
    variants: list[Variant]
    target: Target
    environment: Environment
    repetitions: list[Repetition]

    def variant(self, name: str) -> Variant | None:
        """The variant of that name."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def with_role(self, role: Role) -> list[Variant]:
        """All variants of a role, in the order of the plan."""
        return [variant for variant in self.variants if variant.role is role]

    def completed(self, variant: str) -> list[Repetition]:
        """Repetitions of a variant that count, in order of round."""
        found = [rep for rep in self.repetitions if rep.variant == variant and rep.ok]
        return sorted(found, key=lambda rep: rep.round)

    def pending(self) -> list[tuple[int, str]]:
        """Round and variant of every repetition that has not succeeded yet, in the order of the plan."""
        done = {(rep.round, rep.variant) for rep in self.repetitions if rep.ok}
        planned = [(number, name) for number, names in enumerate(self.plan.order) for name in names]
        return [place for place in planned if place not in done]

    def failures(self) -> list[Repetition]:
        """Failed repetitions that no later attempt made good."""
        done = {(rep.round, rep.variant) for rep in self.repetitions if rep.ok}
        return [rep for rep in self.repetitions if not rep.ok and (rep.round, rep.variant) not in done]
