"""Experiments that a configuration file or `opscope profile` requests, typed, each of one model on one target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from opscope.bundle.manifest import ConfigRequest, ExperimentRequest, Role, Variant
from opscope.bundle.settings import ExperimentSettings, Limit, Text, option
from opscope.hosts.lock import LockMode  # noqa: TC001 - msgspec reads the annotations at run time
from opscope.hosts.target_kinds import AUTO, KINDS, forms


class PlannedVariant(Variant, frozen=True, kw_only=True):
    """Way to run the model, at one thread count, before the fields that are cleared for it are known.

    Null among what its runtime is asked for: as of the experiment.
    """

    role: Role | None = Role.CANDIDATE
    group: str  # its name in the file; the same for all its thread counts
    runner: Path | None = None  # the executor_runner that runs it; null where the target brings its own
    arguments: tuple[str, ...] = ()  # more of that runner's command line
    model: str | None = None  # its own program; null: that of the experiment


class PlannedModel(NamedTuple):
    """Model and the runtime that runs it: one model in two runtimes counts as two."""

    model: str  # a registered name, or the path of a program
    runtime: str | None = None  # runtime by its name; None: that of the program's format


class PlannedComparison(msgspec.Struct, frozen=True):
    """Pair of variants to compare, by the names of their experiments and their own."""

    baseline: tuple[str, str]  # experiment and variant
    candidate: tuple[str, str]  # experiment and variant
    label: str = ""  # what the file calls it; empty when it does not


class Experiment(ExperimentSettings, frozen=True, kw_only=True):
    """Model on one target, which becomes one bundle. Paths of its settings are relative to the current directory.

    What these switch off, their threads and CPUs are those of an experiment without variants.
    """

    name: str  # unique in the file; the directory of its bundle within `Plan.out`
    model: str  # a registered model, or the path of a .pte
    target: str  # as in the file, with the complete path of a runner
    variants: tuple[PlannedVariant, ...] = ()  # what is compared; empty: as the settings say
    evidence: bool = False  # run once to learn from the runner's log which kernels are there; nothing of it is timed
    device: str | None = None  # name that the file gives the machine; null where it gives none
    needs_worker: bool = False  # whether only the worker that owns the device knows where it is
    models: Path | None = None  # the user's directory of models; null for the usual one
    # without variants: a second model, the baseline that is measured in turns with this one; null for none
    against: str | None = None
    config: ConfigRequest | None = None  # how `opscope run` was called for it; null for `opscope profile`

    @property
    def models_by_variant(self) -> dict[str, PlannedModel]:
        """Model of each variant that is listed, by the variant's name."""
        return {
            variant.name: PlannedModel(variant.model or self.model, variant.runtime or self.runtime)
            for variant in self.variants
        }

    @property
    def first_model(self) -> PlannedModel:
        """Model of the first variant, or of the experiment if none is listed."""
        listed = self.models_by_variant.values()
        models = [planned_model for planned_model in listed if planned_model.model == self.model]
        return models[0] if models else PlannedModel(self.model, self.runtime)

    @property
    def all_models(self) -> tuple[PlannedModel, ...]:
        """Models that run, each once: that of the experiment first, then those of its variants."""
        against = [] if self.against is None else [PlannedModel(self.against, self.runtime)]
        return tuple(dict.fromkeys([self.first_model, *self.models_by_variant.values(), *against]))

    @property
    def request(self) -> ExperimentRequest:
        """Request as a manifest keeps it."""
        models = str(self.models) if self.models else None
        return ExperimentRequest(target=self.target, models=models, config=self.config, **self.own())


class Experiments(msgspec.Struct, frozen=True):
    """Experiments that a file requests."""

    file: Path  # the configuration
    out: Path  # directory of the bundles
    experiments: tuple[Experiment, ...]  # experiments in the order of the file
    comparisons: tuple[PlannedComparison, ...] = ()  # asked for beyond those with the baseline of each thread count
    notes: tuple[str, ...] = ()  # what in the file has no effect, one sentence each


class Settings(ExperimentSettings, frozen=True, kw_only=True):
    """Settings of how a model is profiled, and where; each field has its own meaning."""

    target: Annotated[Text, option(f"Where to run: {forms(KINDS)}.", metavar="NAME", group="Target", common=True)] = (
        AUTO.name
    )
    models: Annotated[
        Text | None,
        option(
            "Your model directory.",
            metavar="DIR",
            usual="$OPSCOPE_MODELS, else opscope-models",
            group="Model and inputs",
        ),
    ] = None
    lock: Annotated[
        LockMode,
        option(
            "If another run is measuring on the machine: wait in line up to lock-limit and then run alongside it; run "
            "alongside at once; or fail. Concurrent runs are marked.",
            metavar="wait|warn|fail",
            group="Target",
        ),
    ] = "wait"
    lock_limit: Annotated[
        Limit | None,
        option(
            "Maximum wait for a machine that another run uses; a named device is then an error.",
            metavar="SECONDS",
            usual="60, and none for a named device",
            group="Target",
        ),
    ] = None
    keep_going: Annotated[bool, option("Run all processes even if the first ones fail alike.", group="Repetitions")] = (
        False
    )
