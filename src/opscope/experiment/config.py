"""Experiments in a file of our own: the keys of its TOML or JSON, and what they may hold. Schema ``opscope.config/1``.

What a key may hold is said once, in the types: decoding checks it, and the JSON Schema is made from it. Rules between
keys stand in :mod:`opscope.experiment.config_rules`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from opscope.bundle.manifest import DelegateName, Role
from opscope.experiment import defaults
from opscope.experiment.planned import (
    Celsius,
    DelegateChoice,
    Limit,
    Rounds,
    Runs,
    Seconds,
    Seed,
    SwitchName,
    Threads,
    Warmup,
    Width,
)
from opscope.hosts.target_kinds import KINDS, forms

PLAIN_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$"
"""Names of variants are names of directories."""

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=PLAIN_NAME)]
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
TargetText: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=4096, description=f"One of {forms(KINDS)}.")
]
ThreadList: TypeAlias = Annotated[list[Threads], msgspec.Meta(min_length=1, max_length=64)]
_CPUS = msgspec.Meta(max_length=4096)
_MANY = msgspec.Meta(max_length=1000)
"""Most entries of a list that a person writes."""
Options: TypeAlias = Annotated[dict[Text, Annotated[str, msgspec.Meta(max_length=4096)]], _MANY]
Cpu: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=4095)]


class VariantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to run the model.

    Attributes:
        name: unique in the file; also the name of its directory.
        ablate: feature groups to switch off.
        threads: sizes of the thread pool, each a variant of its own; null for those of the experiment.
        role: accelerated, baseline, intermediate, candidate or control; null: derived, see
            ``opscope.experiment.config_rules``.
        affinity: CPUs to stay on; null for those of the experiment.
        runner: executor_runner of this variant, for the target ``runner``; relative to the file.
        model: that this variant runs, as ``model`` of the file: one network in several runtimes; null for that of the
            file.
        delegate: of a LiteRT model: ``xnnpack``, or ``none`` for LiteRT's own kernels; null for that of the file.
        session_options: of ONNX Runtime, by name; null for those of the experiment.
    """

    name: Name
    ablate: Annotated[list[str], _MANY] = []
    threads: Threads | ThreadList | None = None
    role: Role | None = None
    affinity: Annotated[list[Cpu], _CPUS] | None = None
    runner: Text | None = None
    model: Text | None = None
    delegate: DelegateName | None = None
    session_options: Options | None = None


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device that the file gives a name.

    Attributes:
        target: how it is reached, from this machine or from the worker that owns it.
    """

    target: TargetText


class ComparisonConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two variants to compare, by name. One with several thread counts stands for each of them."""

    baseline: Name
    candidate: Name


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The experiments of one file: every model on every target or device.

    Attributes:
        schema: of this file.
        model: a registered model, or the path of a program relative to the file.
        models: several of them, instead of ``model``.
        dtype: number type to export registered models in.
        target: where to run; null: ``local``. With ``runner`` alone, each variant names its build.
        targets: several of them, instead of ``target``.
        devices: where to run, instead of ``target``: a table for each device, by a name that stands for it in results.
            A list of names alone is for ``opscope run --scheduler``, whose workers own them and know where they are.
        input: the inputs of every model, one after the other, each as ``--input`` of `opscope profile` takes it; empty:
            random tensors of the sizes that the program declares.
        inputs: .npz with the inputs instead, relative to the file.
        data: .ptd with weights that the program keeps apart, relative to the file; null: the one beside the
            program whose keys it looks for.
        delegate: of a LiteRT model: ``xnnpack``, ``none`` for LiteRT's own kernels, or without variants ``both`` to
            compare the two; null: XNNPACK.
        session_options: of ONNX Runtime, by name: ``graph_optimization_level``, ``inter_op_num_threads``,
            ``execution_mode``, ``providers``, and entries of its sessions such as ``mlas.disable_kleidiai``.
        variants: what is compared; empty: the CPU as it is, and without ``ablate``.
        ablate: without variants: feature groups to switch off in the baseline; empty for the strongest of the CPU.
        ladder: without variants: run the whole staircase of the CPU's features.
        switch: mechanism that switches features: ``cpuinfo``, ``trap`` or ``hwcap``; ``auto``: the first that can be
            proved.
        untouched: with ``trap`` or ``hwcap``, add a variant that runs without the mechanism; null: where no earlier
            bundle has shown for these libraries that it changes nothing.
        threads: sizes of the thread pool, each with all variants.
        oversubscribe: allow more threads than the target has usable CPUs; they then wait for each other.
        affinity: CPUs to stay on; empty for all.
        rounds: repetitions of every variant, each in its own process.
        runs: measured inferences of each process.
        warmup: inferences before them that are set aside.
        seed: of the order and of the inputs.
        timeout: limit for one process, in seconds.
        untraced: run every variant without event tracing too, for its latency; traced runs are for the split.
        ceilings: of the machine, for every variant, after its repetitions; null: kept ones where a short probe
            agrees with them, else measured; true: always measured; false: none.
        min_seconds: add rounds until each variant was measured that long, warm-up apart.
        until: add rounds until the 95 % interval of every speedup over a baseline is narrower than this share of it.
        max_rounds: most rounds that these two may lead to; null: four times ``rounds``.
        cooldown_seconds: rest between two processes.
        max_temperature: in degrees Celsius; the next process waits until the machine is cooler, where it can tell.
        comparisons: what to compare; empty: everything with the baseline of its thread count.
        out: directory of the bundles, relative to the file; null: ``opscope-out/`` and the file's name.
    """

    schema: Literal["opscope.config/1"] = "opscope.config/1"
    model: Text | None = None
    models: Annotated[list[Text], _MANY] = []
    dtype: Literal["fp32", "fp16", "int8", "dynamic-int8", "8da4w"] = defaults.DTYPE
    target: TargetText | None = None
    targets: Annotated[list[TargetText], _MANY] = []
    devices: Annotated[list[Name], _MANY] | Annotated[dict[Name, DeviceConfig], _MANY] = []
    input: Annotated[list[Text], _MANY] = []
    inputs: Text | None = None
    data: Text | None = None
    delegate: DelegateChoice | None = None
    session_options: Options = {}
    variants: Annotated[list[VariantConfig], _MANY] = []
    ablate: Annotated[list[str], _MANY] = []
    ladder: bool = False
    switch: SwitchName = defaults.SWITCH
    untouched: bool | None = None
    threads: Threads | ThreadList = defaults.THREADS
    oversubscribe: bool = defaults.OVERSUBSCRIBE
    affinity: Annotated[list[Cpu], _CPUS] = []
    rounds: Rounds = defaults.ROUNDS
    runs: Runs = defaults.RUNS
    warmup: Warmup = defaults.WARMUP
    seed: Seed = defaults.SEED
    timeout: Limit = defaults.TIMEOUT_SECONDS
    untraced: bool = defaults.UNTRACED
    ceilings: bool | None = defaults.CEILINGS
    min_seconds: Seconds = defaults.MIN_SECONDS
    until: Width | None = defaults.UNTIL
    max_rounds: Rounds | None = None
    cooldown_seconds: Seconds = defaults.COOLDOWN_SECONDS
    max_temperature: Celsius | None = defaults.MAX_TEMPERATURE
    comparisons: Annotated[list[ComparisonConfig], _MANY] = []
    out: Text | None = None


def thread_list(threads: int | list[int]) -> tuple[int, ...]:
    """Thread counts, each once, in their order."""
    return tuple(dict.fromkeys([threads] if isinstance(threads, int) else threads))
