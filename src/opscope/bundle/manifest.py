"""Manifest: what was requested, on what it ran, and what became of every repetition. Schema ``opscope.bundle/1``."""

from __future__ import annotations

import enum
import hashlib
from pathlib import PurePath
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.settings import USUAL, DelegateName, ExperimentSettings
from opscope.core.system.usage import ProcessUsage, ThreadCount
from opscope.program.phases import Phase
from opscope.program.structure.exported import Tensor

Cpus: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
"""Number of processors: shares of them are computed."""


class Role(str, enum.Enum):
    """Role of a variant in the experiment: a field, never read out of a name."""

    ACCELERATED = "accelerated"
    BASELINE = "baseline"
    INTERMEDIATE = "intermediate"
    CANDIDATE = "candidate"
    """Variant that is compared with a baseline and not known to be accelerated: a user's build, another program."""
    CONTROL = "control"
    """Runs without the mechanism that switches features, beside a variant that runs with it and has all features: shows
    what the mechanism itself changes. It is part of no other comparison."""


class Mechanism(str, enum.Enum):
    """Way in which features of the CPU are switched off for a runtime."""

    CPUINFO = "cpuinfo"
    """The runtime's own list of features is changed before it is used."""
    TRAP = "trap"
    """The ``cpuid`` instructions of its libraries are trapped and answered with fewer features: x86-64 Linux."""
    HWCAP = "hwcap"
    """Its libraries are told fewer hardware capabilities by ``getauxval``: 64-bit Arm Linux."""


class TracingMode(str, enum.Enum):
    """Purpose of a repetition. The two are never mixed: tracing costs time."""

    TIMED = "timed"
    """End-to-end latency, without event tracing."""
    TRACED = "traced"
    """The split into operators, with event tracing."""


class Status(str, enum.Enum):
    """State of a bundle."""

    RUNNING = "running"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"


class FailureKind(str, enum.Enum):
    """Kind of failure of a repetition."""

    SIGNAL = "signal"
    EXIT = "exit"
    TIMEOUT = "timeout"
    MASK = "mask"
    OUTPUT = "output"
    """It ran, and what it computed is not a number."""
    TRACE = "trace"
    STORAGE = "storage"
    DEVICE = "device"
    """The device was lost, refused, or had no room."""
    BUG = "bug"
    """It ran, and a bug in opscope keeps its trace from being read."""


class Model(msgspec.Struct, frozen=True):
    """Program that was run. In reports of other tools' directories, null is what their files do not state.

    Attributes:
        name: registered name, or the stem of the .pte.
        source: what was asked for: a registered name or a path.
        dtype: number type; null for a .pte whose export is not known.
        program: path of the .pte within the bundle.
        etrecord: path of the .etrecord within the bundle, which is kept without weights; null without.
        sha256: hash of the .pte; never null in a bundle.
        size: size of the .pte in bytes; never null in a bundle.
        methods: methods of the program; never null in a bundle.
        backends: delegates that the program calls.
        planned_bytes: memory that the program plans for its tensors, all methods together; null if unknown.
        delegate_bytes: payloads of its delegates, without weights that the file keeps in separate segments;
            null if unknown.
        phases: what calls of methods do for a language model, by method, where the program or its record tells.
        etrecord_sha256: hash of the .etrecord as it lies in the bundle; null without one, and in older bundles.
        data: path within the bundle of the .ptd with weights that the program keeps apart; null without.
        data_sha256: hash of the .ptd; null without.
        data_size: size of the .ptd in bytes; null without.
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
    planned_bytes: int | None = None
    delegate_bytes: int | None = None
    phases: dict[str, Phase] = {}
    etrecord_sha256: str | None = None
    data: str | None = None
    data_sha256: str | None = None
    data_size: int | None = None

    @property
    def given(self) -> bool:
        """Return whether the program was given as it is, so that its number type is fixed; else opscope exported it."""
        # An exported program has its backend and number type in its name.
        return PurePath(self.program).stem == PurePath(self.source).stem


class Variant(msgspec.Struct, frozen=True):
    """Way to run the model.

    Attributes:
        name: unique in the bundle; also its directory.
        role: what it is in the experiment; null only in reports of other tools' directories, where none is known.
        ablated: feature groups that were switched off; null for a user's build, and where no role is known.
        cleared: fields of ``cpuinfo_isa`` that were cleared for it.
        threads: size of the thread pool, 0 for the runtime's own choice; null only in reports of other tools'
            directories.
        affinity: CPUs that its processes stay on; empty for all.
        switch: mechanism that its processes run with; null: ``cpuinfo`` where some variant has features cleared, else
            none, and none for a variant of the role ``control``.
        runtime: runtime that ran it, by its name, where one was asked for; null: that of the program's format.
        delegate: delegate of LiteRT: ``xnnpack``, or ``none`` for its own kernels; null for runtimes whose programs
            state it.
        options: options of its runtime, by name; null for none, and for runtimes that have none.
    """

    name: str
    role: Role | None
    ablated: list[str] | None
    cleared: list[str]
    threads: int | None
    affinity: list[int] = []
    switch: Mechanism | None = None
    runtime: str | None = None
    delegate: DelegateName | None = None
    options: dict[str, str] | None = None

    @property
    def clear(self) -> list[str] | None:
        """Fields of ``cpuinfo_isa`` to clear, of a variant whose mechanism is stated; None: the switch is not used."""
        return None if self.switch is None else self.cleared


class PlannedInput(msgspec.Struct, frozen=True):
    """Input of the calls.

    Attributes:
        shape: shape of a tensor; null for what is none.
        dtype: number type of a tensor; ``int``, ``float``, ``bool`` or ``none`` for what is none.
        value: value of a number or a truth value; null otherwise.
        source: what was asked for; empty: as the program declares it.
    """

    shape: list[int] | None
    dtype: str
    value: bool | int | float | None = None
    source: str = ""


class VariantInputs(msgspec.Struct, frozen=True):
    """Inputs and calls of a variant whose program differs from that of the plan.

    Attributes:
        inputs: inputs of the calls: those of the plan, laid out as its own program wants them.
        values: path within the bundle of the .npz with the tensors; null where they are drawn from the seed.
        values_sha256: hash of the .npz; null without one.
        calls: calls as of the plan; null: those of the plan.
        unlike: why its inputs are not those of the plan, as one sentence; null where they have the same values.
    """

    inputs: list[PlannedInput]
    values: str | None = None
    values_sha256: str | None = None
    calls: list[str] | None = None
    unlike: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """Plan of the experiment. In reports of other tools' directories, null is what their files do not state.

    Attributes:
        rounds: repetitions of every variant, each in its own process.
        runs: measured inferences of each process, calls of all methods together.
        warmup: inferences before them that are set aside.
        seed: seed of the order and of the inputs.
        order: for every round the variants in the order in which they run traced.
        timeout_seconds: limit for one process.
        timed_order: for every round the variants in the order in which they run without tracing, before the traced
            ones; empty when nothing was timed without tracing.
        calls: the methods that a process calls, over and over in this order; empty for a program with one method.
        inputs: inputs of the calls, of several methods one after the other, in the order of their first calls; empty
            where all are random tensors of the sizes that the program declares.
        values: path within the bundle of the .npz with the tensors among ``inputs``, ``arr_`` and the number of each;
            null where they are drawn from the seed.
        values_sha256: hash of the .npz; null without one.
        inputs_of: by variant, the inputs and calls of those whose programs want others, such as the same values in
            another order of dimensions.
        guesses: the inputs that were guessed, in the words of ``--input``; empty where all were given or follow from
            the program.
        refused_guesses: guesses that were tried before and gave numbers that are not finite.
    """

    rounds: int
    runs: int | None
    warmup: int | None
    seed: int | None
    order: list[list[str]]
    timeout_seconds: float | None
    timed_order: list[list[str]] = []
    calls: list[str] = []
    inputs: list[PlannedInput] = []
    values: str | None = None
    values_sha256: str | None = None
    inputs_of: dict[str, VariantInputs] = {}
    guesses: list[str] = []
    refused_guesses: list[str] = []

    def of(self, variant: str) -> Plan:
        """Return the plan with the calls and the inputs of a variant."""
        variant_inputs = self.inputs_of.get(variant)
        if variant_inputs is None:
            return self
        calls = self.calls if variant_inputs.calls is None else variant_inputs.calls
        return msgspec.structs.replace(
            self,
            calls=calls,
            inputs=variant_inputs.inputs,
            values=variant_inputs.values,
            values_sha256=variant_inputs.values_sha256,
        )


class ConfigRequest(msgspec.Struct, frozen=True):
    """Call of `opscope run` for a bundle.

    Attributes:
        file: the configuration, as it was named.
        only: what it was told to run of it; empty where all of it is this bundle.
        target: the Android device that it was moved to; null: as the file says.
        scheduler: address of the Dask scheduler whose workers ran it; null: this machine did.
    """

    file: str
    only: list[str] = []
    target: str | None = None
    scheduler: str | None = None


class ExperimentRequest(ExperimentSettings, frozen=True, kw_only=True):
    """Request as the user made it, enough to repeat it. The plan has more rounds if some were added.

    Attributes:
        target: target as it was named, for example ``auto``.
        models: the user's directory of models; null for the usual one.
        config: the file that asked for it; null for `opscope profile`.
    """

    target: str
    models: str | None = None
    config: ConfigRequest | None = None


class Target(msgspec.Struct, frozen=True):
    """Place where it ran: kind of target, and its address.

    Attributes:
        kind: for example ``native`` or ``ssh``.
        address: address of the device or of the runner; empty for this machine itself.
        emulated: whether the CPU was an emulated one: what was computed counts, how long it took does not.
    """

    kind: str
    address: str
    emulated: bool = False

    @property
    def name(self) -> str:
        """Name of the target as the option ``--target`` takes it."""
        return f"{self.kind}:{self.address}" if self.address else self.kind


class Phone(msgspec.Struct, frozen=True):
    """Properties of an Android device; null where it does not state them.

    Attributes:
        manufacturer: manufacturer of the device.
        model: model of the device.
        soc: maker and name of its system on a chip.
        android: release of the system.
        build: the system's own name for itself.
        power: the power settings that were asked for, see ``opscope.hosts.adb.adb``; null: as they were.
        settings: global settings that bear on speed, as they were found; null for one that was not set.
    """

    manufacturer: str | None
    model: str | None
    soc: str | None
    android: str | None
    build: str | None
    power: str | None
    settings: dict[str, str | None]


class PhoneState(msgspec.Struct, frozen=True):
    """State of an Android device at one moment; null where it does not state it.

    Attributes:
        thermal_status: 0 none, 1 light, 2 moderate, 3 severe, 4 critical, 5 emergency, 6 shutdown; from 2 on the system
            throttles (Android's ``PowerManager.THERMAL_STATUS_*``).
        battery_percent: how full it is.
        battery_celsius: its temperature.
        plugged: whether it is fed from outside.
        frequencies_mhz: clock frequencies of each CPU now, in their order.
        limits_mhz: the highest that each CPU may have now.
    """

    thermal_status: int | None
    battery_percent: int | None
    battery_celsius: float | None
    plugged: bool | None
    frequencies_mhz: list[float | None]
    limits_mhz: list[float | None]


BUILD = "executor_runner"
"""Name in the versions under which the hash of a user's build stands."""


class Environment(msgspec.Struct, frozen=True):
    """Machine and its software, recorded once before the first repetition; null where it cannot be read.

    Attributes:
        usable_cpus: processors that a process may use there; a quota of their time counts in whole processors.
        cpu_quota: processors whose time control groups grant; null also where there is no limit.
        variables: those of the environment that are set and bear on what runs or how fast, such as ``PYTHONPATH``
            and ``LD_PRELOAD``.
        emulator: what emulates its CPU, as far as that can be told from inside; null where nothing tells of it.
        revision: the microcode, or on Arm each kind of core: what tells processors of one name apart.
        host: tells this machine from others; a hash, which names nobody.
        firmware: version of what starts it, such as a BIOS, the bootloader of a Raspberry Pi or of an Android device.
    """

    system: str | None
    machine: str | None
    kernel: str | None
    cpu: str | None
    logical_cpus: Cpus | None
    usable_cpus: Cpus | None
    memory_bytes: int | None
    hypervisor: bool | None
    governor: str | None
    features: list[str] | None
    versions: dict[str, str]
    phone: Phone | None = None
    cpu_quota: float | None = None
    variables: dict[str, str] | None = None
    emulator: str | None = None
    revision: str | None = None
    host: str | None = None
    firmware: str | None = None

    @property
    def runs_build(self) -> bool:
        """Return whether the user's own build of executor_runner ran, which has a hash in place of a version."""
        return BUILD in self.versions

    @property
    def known_runtime(self) -> bool:
        """Return whether the runtime is compiled by opscope or comes in a package, so that it is an optimised build."""
        return not self.runs_build and "executorch" in self.versions


class Conditions(msgspec.Struct, frozen=True):
    """State of the machine at one moment; null where it cannot be read.

    Attributes:
        load_average: load average of the last minute.
        frequency_mhz: clock frequency of the fastest CPU.
        temperature_celsius: temperature of the hottest sensor.
        usable_cpus: how many the process may use.
        phone: state of an Android device; null for other machines.
        speed_limit: macOS: of the CPUs for heat, as a share of their speed from 0 to 1.
        low_power: macOS: whether the low power mode is on.
    """

    load_average: float | None
    frequency_mhz: float | None
    temperature_celsius: float | None
    usable_cpus: Cpus | None = None
    phone: PhoneState | None = None
    speed_limit: float | None = None
    low_power: bool | None = None


class Failure(msgspec.Struct, frozen=True):
    """Reason why a repetition has no result."""

    kind: FailureKind
    message: str
    signal: str | None = None
    exit_code: int | None = None


class MaskProof(msgspec.Struct, frozen=True):
    """Proof that features were off when the backend chose its kernels.

    Attributes:
        cleared: fields that were cleared, read back as zero after the backend was loaded.
        backend_loaded_before: whether the backend library was in the process before; must be false.
        same_symbol: whether the backend's ``cpuinfo_isa`` is the one that was cleared.
        struct_size: size of the struct, as the library's symbol table states it; null where it states none.
        mechanism: by which they were switched off. With ``trap`` and ``hwcap`` nothing is cleared in a struct: the
            runtime fills it in with fewer features. ``backend_loaded_before`` is then false, since its libraries are
            switched before any code of them runs, and ``same_symbol`` true, since it reads its own struct.
        sites: ``trap``: instructions that were trapped; ``hwcap``: libraries that asked; null for ``cpuinfo``.
        sites_executed: ``trap``: of them, those that were executed; null else.
        sites_outside: ``trap``: places where the bytes of the instruction stand in no function that the libraries name;
            they were left as they are; null else.
        executions: questions that the libraries asked; null for ``cpuinfo``.
        masked: questions that were answered with fewer features; null for ``cpuinfo``.
    """

    cleared: list[str]
    backend_loaded_before: bool
    same_symbol: bool
    struct_size: int | None
    mechanism: Mechanism = Mechanism.CPUINFO
    sites: int | None = None
    sites_executed: int | None = None
    sites_outside: int | None = None
    executions: int | None = None
    masked: int | None = None


class Measurement(ThreadCount, msgspec.Struct, frozen=True):
    """Report of a process about itself besides its trace; null is what another kind of runner does not report.

    Attributes:
        mask: proof that its features were off; null where nothing was cleared and nothing could prove it.
        inputs: inputs of the inference; of several methods one after the other, in the order of their first calls.
        outputs: outputs of the last call of each method, in the order of ``inputs``.
        output_sha256: hash of all output values.
        wall_ns: duration of every call of a method, warm-up included, as the caller saw it.
        start_ns: time from the start of the process to the loaded runtime.
        load_ns: loading the program.
        peak_rss_bytes: largest resident memory of the process.
        versions: versions of the packages in the process.
        write_ns: writing the trace and the outputs; null where it was not timed.
        off_cpu_ns: time of every call in ``wall_ns`` that the process was kept off the CPU: with
            one thread the call less the CPU time of the calling thread, with more the longest that one of its threads
            was ready and waited for a CPU; null where it was not recorded, and in older bundles.
        usage: use of the system over the measured calls; null where it was not recorded, and in older bundles.
    """

    mask: MaskProof | None
    inputs: list[Tensor]
    outputs: list[Tensor]
    output_sha256: str | None
    wall_ns: list[int]
    start_ns: int | None
    load_ns: int | None
    peak_rss_bytes: int | None
    versions: dict[str, str]
    write_ns: int | None = None
    off_cpu_ns: list[int] | None = None
    usage: ProcessUsage | None = None


class PlanSlot(NamedTuple):
    """Place in the plan: round, variant and arm."""

    round: int
    variant: str
    arm: TracingMode


class Repetition(msgspec.Struct, frozen=True):
    """Process of a variant: its place in the plan, its files and what became of it.

    Attributes:
        variant: name of its variant.
        round: from 0.
        attempt: from 1; more when an earlier attempt failed and the run was resumed.
        started: UTC, ISO 8601; null only in reports of other tools' directories.
        seconds: wall time of the process; null only in reports of other tools' directories.
        directory: directory of its files, within the bundle.
        trace: path of the trace within the bundle, which is kept compressed (``.zst``); null when there is none.
        trace_sha256: hash of the trace as the process wrote it, so of the inflated file.
        inferences: complete inferences in the trace, or timed calls.
        before: state of the machine before.
        after: state of the machine after.
        measurement: what the process reported; null when it failed.
        failure: why it failed; null when it did not.
        arm: whether it was traced.
        record_sha256: hash of this record as it was written, so of its times without tracing too; null in bundles of
            earlier opscopes.
        files_sha256: hash of every other file that its process left in ``directory`` by name, such as its log and the
            graph that a session ran; of ``outputs.npz`` the measurement hashes the values. Empty where it failed, and
            in bundles of earlier opscopes.
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
    arm: TracingMode = TracingMode.TRACED
    record_sha256: str | None = None
    files_sha256: dict[str, str] = {}

    @property
    def place(self) -> PlanSlot:
        """Slot of the repetition in the plan."""
        return PlanSlot(self.round, self.variant, self.arm)

    @property
    def is_unread(self) -> bool:
        """Return whether the repetition ran, but a bug in opscope keeps its trace from being read."""
        return self.failure is not None and self.failure.kind is FailureKind.BUG

    @property
    def ok(self) -> bool:
        """Return whether the repetition counts."""
        return self.failure is None

    @property
    def output_sha256(self) -> str | None:
        """Hash of all output values; None if the process stated none."""
        return self.measurement.output_sha256 if self.measurement else None

    @property
    def data_sha256(self) -> str:
        """Hash of the data of its figures: its trace, or without one the durations of its calls."""
        if self.trace_sha256 is not None or self.measurement is None:
            return str(self.trace_sha256)
        return hashlib.sha256(msgspec.json.encode(self.measurement.wall_ns)).hexdigest()


class LeftOut(msgspec.Struct, frozen=True):
    """Parts of a run that were left out, each with the reason as one sentence; null if nothing was.

    Attributes:
        switch: why no CPU feature was switched off, so that there is one variant without a counterpart.
        trace: why nothing was traced, so that the latency has no split into operators.
        runner: why models did not run with the native runner where that was wanted, and what it means for figures.
    """

    switch: str | None = None
    trace: str | None = None
    runner: str | None = None


class LockRecord(msgspec.Struct, frozen=True):
    """Lock of the machine that a run measured.

    Attributes:
        asked: what was to be done when another run measures there: ``wait``, ``warn`` or ``fail``.
        held: whether the machine was held, so that another run had to wait for this one.
        waited_seconds: for another run.
        waited_for: who measured there when this run began; null for nobody.
        beside: who measured there at the same time; empty for nobody that is known of.
        problem: why the machine has no lock; null where it has.
    """

    asked: str
    held: bool
    waited_seconds: float = 0.0
    waited_for: str | None = None
    beside: list[str] = []
    problem: str | None = None


class SampleRun(msgspec.Struct, frozen=True):
    """Labelled inputs that each variant ran once more, without timing, to keep its outputs.

    Attributes:
        source: file that they were read from, as it was named.
        count: number of inputs.
        inputs_sha256: hash of the values, types and sizes of all of them.
        outputs_sha256: hash of the file of outputs by variant; without an entry where there is none.
        failures: why a variant has no outputs, by its name.
    """

    source: str
    count: int
    inputs_sha256: str
    outputs_sha256: dict[str, str] = {}
    failures: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.bundle/1"):
    """Facts about a bundle except the traces themselves.

    Attributes:
        opscope: version that began it.
        created: when, UTC, ISO 8601.
        status: how far it is.
        model: the program that the variants ran, but for those in ``programs``.
        plan: what was to be run.
        variants: variants in the order of reports.
        target: where it ran.
        environment: environment of the machine there.
        repetitions: every attempt, in the order in which they ran.
        left_out: what it did without.
        programs: the program of each variant that ran another one than ``model``, by the variant's name.
        request: what was asked for, as it was said; null in bundles of earlier versions and of other tools.
        ceilings_sha256: hash of the file of measured ceilings by variant; without an entry where there is none, and in
            bundles of earlier versions.
        evidence_sha256: hash of the record of counted kernels by variant; without an entry where nothing was counted,
            and in bundles of earlier versions.
        work_sha256: hash of the record of exact work by variant; without an entry where nobody counted it.
        locks: how the machine was held, for each time that the bundle was worked on; empty in bundles of earlier
            versions, and where a target has no lock.
        device: name that the configuration gives the machine; null where it gives none, and in bundles of earlier
            versions.
        samples: labelled inputs that were run beside the timed ones; null where there were none, and in bundles of
            earlier versions.
        targets: of each variant that ran elsewhere than on ``target``, by its name: another runtime has other ways
            to run on the same machine.
    """

    opscope: str
    created: str
    status: Status
    model: Model
    plan: Plan
    variants: list[Variant]
    target: Target
    environment: Environment
    repetitions: list[Repetition]
    left_out: LeftOut = LeftOut()
    programs: dict[str, Model] = {}
    request: ExperimentRequest | None = None
    ceilings_sha256: dict[str, str] = {}
    evidence_sha256: dict[str, str] = {}
    work_sha256: dict[str, str] = {}
    locks: list[LockRecord] = []
    device: str | None = None
    samples: SampleRun | None = None
    targets: dict[str, Target] = {}

    @property
    def words_of_target(self) -> list[str]:
        """Option that names the target again when the run is finished; empty if it has no address."""
        return ["--target", self.target.name] if self.target.address else []

    def model_of(self, variant: str) -> Model:
        """Return the program that a variant ran."""
        return self.programs.get(variant, self.model)

    def target_of(self, variant: str) -> Target:
        """Return the target that a variant ran on."""
        return self.targets.get(variant, self.target)

    def beside(self, variant: str) -> list[Variant]:
        """Return the variants that ran the program of a variant, including itself, in plan order."""
        program = self.model_of(variant).program
        return [
            other_variant for other_variant in self.variants if self.model_of(other_variant.name).program == program
        ]

    def switches_in(self, variant: str) -> bool:
        """Return whether some variant of the same program has CPU features switched off."""
        return any(other_variant.cleared for other_variant in self.beside(variant))

    def as_run(self, variant: Variant) -> Variant:
        """Return a variant with the mechanism that its processes are switched with; null if it has none."""
        switches = self.switches_in(variant.name) and variant.role is not Role.CONTROL
        switch = (variant.switch or Mechanism.CPUINFO) if switches else None
        return msgspec.structs.replace(variant, switch=switch)

    @property
    def settings(self) -> ExperimentSettings:
        """Settings that were requested; the usual values if unknown."""
        return self.request or USUAL

    @property
    def other_models(self) -> list[Model]:
        """Programs other than the first, each once, in the order of the variants."""
        models = {model.program: model for model in self.programs.values() if model.program != self.model.program}
        return list(models.values())

    def title(self, model: Model) -> str:
        """Return the name of a program, with its runtime or its file's suffix if the name alone is ambiguous."""
        models = (self.model, *self.other_models)
        alike = {PurePath(other_model.program).suffix for other_model in models if other_model.name == model.name}
        if sum(other_model.sha256 == model.sha256 for other_model in models) > 1:
            ran = (variant.runtime for variant in self.variants if self.model_of(variant.name).program == model.program)
            return f"{model.name} in {next(ran, None) or 'its runtime'}"
        return f"{model.name}{PurePath(model.program).suffix}" if len(alike) > 1 else model.name

    @property
    def models(self) -> dict[str, Model]:
        """Programs that ran, by their path in the manifest."""
        return {"model": self.model} | {f"programs.{name}": model for name, model in self.programs.items()}

    @property
    def switches(self) -> bool:
        """Return whether some variant has CPU features switched off."""
        return any(variant.cleared for variant in self.variants)

    def variant(self, name: str) -> Variant | None:
        """Return the variant of this name; None if there is none."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def with_role(self, role: Role) -> list[Variant]:
        """Return the variants of a role, in plan order."""
        return [variant for variant in self.variants if variant.role is role]

    @property
    def split_arm(self) -> TracingMode:
        """Arm that the split into operators is computed from: the untraced one if nothing was traced."""
        return TracingMode.TRACED if self.left_out.trace is None else TracingMode.TIMED

    def completed(self, variant: str, arm: TracingMode | None = None) -> list[Repetition]:
        """Return successful repetitions of a variant in one arm, by round; without an arm, in :attr:`split_arm`."""
        arm = arm or self.split_arm
        repetitions = [rep for rep in self.repetitions if (rep.variant, rep.arm) == (variant, arm) and rep.ok]
        return sorted(repetitions, key=lambda rep: rep.round)

    def with_same_outputs(self, repetition: Repetition) -> list[Repetition]:
        """Return repetitions of the same variant with equal output hashes; empty if this one states no hash."""
        stated = repetition.output_sha256
        repetitions = [other for other in self.repetitions if other.variant == repetition.variant and other.ok]
        return [
            other_repetition
            for other_repetition in repetitions
            if stated is not None and other_repetition.output_sha256 == stated
        ]

    def planned(self) -> list[PlanSlot]:
        """Return every repetition in plan order: in each round the timed ones, then the traced ones."""
        timed = [*self.plan.timed_order, *([[]] * (len(self.plan.order) - len(self.plan.timed_order)))]
        return [
            PlanSlot(number, name, arm)
            for number, names in enumerate(zip(timed, self.plan.order, strict=False))
            for arm, names_of_arm in zip(TracingMode, names, strict=True)
            for name in names_of_arm
        ]

    def restricted_to(self, variant: str) -> Manifest:
        """Return the manifest without the repetitions of other variants, run or planned."""
        replace = msgspec.structs.replace
        orders = {
            field: [[name for name in names if name == variant] for names in getattr(self.plan, field)]
            for field in ("order", "timed_order")
        }
        return replace(
            self,
            variants=[planned for planned in self.variants if planned.name == variant],
            plan=replace(self.plan, **orders),
            repetitions=[repetition for repetition in self.repetitions if repetition.variant == variant],
        )

    def pending(self) -> list[PlanSlot]:
        """Return every repetition that has not succeeded yet, in plan order."""
        completed_slots = {rep.place for rep in self.repetitions if rep.ok}
        return [slot for slot in self.planned() if slot not in completed_slots]

    def failures(self) -> list[Repetition]:
        """Return failed repetitions that no later attempt replaced."""
        completed_slots = {rep.place for rep in self.repetitions if rep.ok}
        return [rep for rep in self.repetitions if not rep.ok and rep.place not in completed_slots]


def device_text(manifest: Manifest) -> str:
    """Return the name of a bundle's machine: its given name, else its CPU, system, architecture and address."""
    if manifest.device:
        return manifest.device
    environment = manifest.environment
    platform = " ".join(filter(None, (environment.system, environment.machine)))
    name = ", ".join(filter(None, (environment.cpu or "unknown CPU", platform)))
    return f"{name} ({manifest.target.address})" if manifest.target.address else name
