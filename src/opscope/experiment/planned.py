"""What a configuration file or `opscope profile` asks for: typed experiments, each of one model on one target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from opscope.bundle.manifest import ConfigRequest, DelegateName, ExperimentRequest, Role
from opscope.experiment import defaults

_DAY = 86_400.0

Threads: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Rounds: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Runs: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Warmup: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Seed: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 2)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_DAY)]
Limit: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=_DAY)]
Width: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]
Celsius: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=150)]

SwitchName: TypeAlias = Literal["auto", "cpuinfo", "trap", "hwcap"]
"""A mechanism of :class:`opscope.bundle.manifest.Mechanism`, or ``auto``."""

DelegateChoice: TypeAlias = Literal["xnnpack", "none", "both"]
"""Who runs a LiteRT model: the XNNPACK delegate, LiteRT's own kernels, or both, for a comparison."""

NOTHING_OFF = "none"
"""In place of feature groups: measure the model as it runs, and switch nothing off."""


class PlannedVariant(msgspec.Struct, frozen=True):
    """One way to run the model, at one thread count.

    Attributes:
        name: unique in its experiment; also its directory.
        group: its name in the file; the same for all its thread counts.
        threads: size of the thread pool.
        ablate: feature groups to switch off.
        role: what it is in the experiment.
        affinity: CPUs to stay on; empty for all.
        runner: the executor_runner that runs it; null where the target brings its own.
        arguments: more of that runner's command line.
        model: its own program; null: that of the experiment.
        delegate: of a LiteRT model; null: that of the experiment.
        options: of a session of ONNX Runtime; null: those of the experiment.
    """

    name: str
    group: str
    threads: int
    ablate: tuple[str, ...] = ()
    role: Role = Role.CANDIDATE
    affinity: tuple[int, ...] = ()
    runner: Path | None = None
    arguments: tuple[str, ...] = ()
    model: str | None = None
    delegate: DelegateName | None = None
    options: dict[str, str] | None = None


class PlannedComparison(msgspec.Struct, frozen=True):
    """Two variants to compare, by the names of their experiments and their own.

    Attributes:
        baseline: experiment and variant.
        candidate: experiment and variant.
        label: what the file calls it; empty when it does not.
    """

    baseline: tuple[str, str]
    candidate: tuple[str, str]
    label: str = ""


class Effort(msgspec.Struct, frozen=True):
    """How much is measured, and how. The keys of the same name in ``opscope.experiment.config.Config`` say more."""

    rounds: Rounds = defaults.ROUNDS
    runs: Runs = defaults.RUNS
    warmup: Warmup = defaults.WARMUP
    seed: Seed = defaults.SEED
    timeout_seconds: Limit = defaults.TIMEOUT_SECONDS
    untraced: bool = defaults.UNTRACED
    ceilings: bool | None = defaults.CEILINGS
    min_seconds: Seconds = defaults.MIN_SECONDS
    until: Width | None = defaults.UNTIL
    max_rounds: Rounds | None = None
    cooldown_seconds: Seconds = defaults.COOLDOWN_SECONDS
    max_temperature: Celsius | None = defaults.MAX_TEMPERATURE
    oversubscribe: bool = defaults.OVERSUBSCRIBE

    @property
    def most_rounds(self) -> int:
        """How far rounds may be added; ``rounds`` when none may."""
        if self.until is None and not self.min_seconds:
            return self.rounds
        return self.max_rounds or defaults.MORE_ROUNDS * self.rounds

    def limit_problem(self) -> tuple[str, str | None] | None:
        """What is wrong with ``max_rounds`` beside the others, and the next step; None: nothing."""
        if self.max_rounds is None:
            return None
        if self.until is None and not self.min_seconds:
            return "nothing adds rounds", "set until or min_seconds, or leave it out"
        if self.max_rounds < self.rounds:
            return f"{self.max_rounds} is less than rounds, which is {self.rounds}", None
        return None


class Experiment(msgspec.Struct, frozen=True):
    """One model on one target: what becomes one bundle.

    Attributes:
        name: unique in the file; the directory of its bundle within ``Plan.out``.
        model: a registered model, or the path of a .pte.
        dtype: number type to export a registered model in.
        target: as in the file, the path of a runner complete.
        effort: how much is measured.
        variants: what is compared; empty: the CPU as it is, and without ``ablate`` or down the ladder.
        ablate: without variants: feature groups to switch off in the baseline; empty for the strongest of the CPU.
        ladder: without variants: the whole staircase of the CPU's features.
        threads: without variants: sizes of the thread pool.
        affinity: without variants: CPUs to stay on.
        evidence: run once to learn from the runner's log which kernels are there; nothing of it is timed.
        device: name that the file gives the machine; null where it gives none.
        needs_worker: whether only the worker that owns the device knows where it is.
        methods: what a process calls over and over, as ``NAME`` or ``NAME:COUNT``; empty: every method that there is.
        models: the user's directory of models; null for the usual one.
        input_specs: one for each input, see :mod:`opscope.experiment.inputs`; empty: as the program declares them.
        input_file: .npz with the inputs instead.
        data: .ptd with the weights that the program looks for; null: beside the program, where it needs one.
        against: without variants: a second model, the baseline that is measured in turns with this one; null for none.
        config: how `opscope run` was called for it; null for `opscope profile`.
        switch: mechanism that switches features: ``cpuinfo``, ``trap`` or ``hwcap``; ``auto``: the first that can be
            proved.
        untouched: with ``trap`` or ``hwcap``, add a variant that runs without the mechanism; null: where no earlier
            bundle has shown for these libraries that it changes nothing.
        delegate: of a LiteRT model; null: XNNPACK.
        options: of sessions of ONNX Runtime, by name.
    """

    name: str
    model: str
    dtype: str
    target: str
    effort: Effort
    variants: tuple[PlannedVariant, ...] = ()
    ablate: tuple[str, ...] = ()
    ladder: bool = False
    threads: tuple[int, ...] = (defaults.THREADS,)
    affinity: tuple[int, ...] = ()
    evidence: bool = False
    device: str | None = None
    needs_worker: bool = False
    methods: tuple[str, ...] = ()
    models: Path | None = None
    input_specs: tuple[str, ...] = ()
    input_file: Path | None = None
    data: Path | None = None
    against: str | None = None
    config: ConfigRequest | None = None
    switch: SwitchName = defaults.SWITCH
    untouched: bool | None = None
    delegate: DelegateChoice | None = None
    options: dict[str, str] = {}

    @property
    def models_by_variant(self) -> dict[str, str]:
        """The model of each variant that is listed, by the variant's name."""
        return {variant.name: variant.model or self.model for variant in self.variants}

    @property
    def all_models(self) -> tuple[str, ...]:
        """Every model that runs, each once: that of the experiment first, then those of its variants."""
        others = [*self.models_by_variant.values(), *([] if self.against is None else [self.against])]
        return tuple(dict.fromkeys([self.model, *others]))

    @property
    def request(self) -> ExperimentRequest:
        """What is asked for, as a manifest keeps it."""
        effort = self.effort
        return ExperimentRequest(
            target=self.target,
            rounds=effort.rounds,
            ablate=list(self.ablate),
            ladder=self.ladder,
            min_seconds=effort.min_seconds,
            until=effort.until,
            max_rounds=effort.max_rounds,
            cooldown_seconds=effort.cooldown_seconds,
            max_temperature=effort.max_temperature,
            oversubscribe=effort.oversubscribe,
            ceilings=effort.ceilings,
            inputs=list(self.input_specs),
            input_file=str(self.input_file) if self.input_file else None,
            data=str(self.data) if self.data else None,
            models=str(self.models) if self.models else None,
            config=self.config,
            switch=self.switch,
            untouched=self.untouched,
        )


class Experiments(msgspec.Struct, frozen=True):
    """Everything that a file asks for.

    Attributes:
        file: the configuration.
        out: directory of the bundles.
        experiments: in the order of the file.
        comparisons: asked for beyond those with the baseline of each thread count.
        notes: what in the file has no effect, one sentence each.
    """

    file: Path
    out: Path
    experiments: tuple[Experiment, ...]
    comparisons: tuple[PlannedComparison, ...] = ()
    notes: tuple[str, ...] = ()
