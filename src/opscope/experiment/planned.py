"""What a configuration file or `opscope profile` asks for: typed experiments, each of one model on one target."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opscope.bundle.manifest import ConfigRequest, ExperimentRequest, Role
from opscope.bundle.settings import DelegateName, ExperimentSettings


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


class Experiment(ExperimentSettings, frozen=True, kw_only=True):
    """One model on one target: what becomes one bundle. Paths of its settings are from where we are.

    What these switch off, their threads and CPUs are those of an experiment without variants.

    Attributes:
        name: unique in the file; the directory of its bundle within ``Plan.out``.
        model: a registered model, or the path of a .pte.
        target: as in the file, the path of a runner complete.
        variants: what is compared; empty: as the settings say.
        evidence: run once to learn from the runner's log which kernels are there; nothing of it is timed.
        device: name that the file gives the machine; null where it gives none.
        needs_worker: whether only the worker that owns the device knows where it is.
        models: the user's directory of models; null for the usual one.
        against: without variants: a second model, the baseline that is measured in turns with this one; null for none.
        config: how `opscope run` was called for it; null for `opscope profile`.
    """

    name: str
    model: str
    target: str
    variants: tuple[PlannedVariant, ...] = ()
    evidence: bool = False
    device: str | None = None
    needs_worker: bool = False
    models: Path | None = None
    against: str | None = None
    config: ConfigRequest | None = None

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
        models = str(self.models) if self.models else None
        return ExperimentRequest(target=self.target, models=models, config=self.config, **self.own())


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
