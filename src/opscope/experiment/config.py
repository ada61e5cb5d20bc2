"""Experiments in a file of our own: the keys of its TOML or JSON, and what they may hold. Schema ``opscope.config/1``.

What a key may hold is said once, in the types: decoding checks it, and the JSON Schema is made from it. Rules between
keys stand in :mod:`opscope.experiment.config_rules`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from opscope.bundle.manifest import Role
from opscope.bundle.settings import (
    MANY,
    CpuNumbers,
    DelegateName,
    ExperimentSettings,
    Many,
    SessionOptions,
    Text,
    ThreadCounts,
)
from opscope.hosts.target_kinds import KINDS, forms

PLAIN_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$"
"""Names of variants are names of directories."""

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=PLAIN_NAME)]
TargetText: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=4096, description=f"One of {forms(KINDS)}.")
]


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
    ablate: Annotated[list[str], MANY] = []
    threads: ThreadCounts | None = None
    role: Role | None = None
    affinity: CpuNumbers | None = None
    runner: Text | None = None
    model: Text | None = None
    delegate: DelegateName | None = None
    session_options: SessionOptions | None = None


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


class Config(ExperimentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The experiments of one file: every model on every target or device; the settings are those of all of them.

    With ``variants``, these say themselves what is off, and ``ablate`` and ``ladder`` must not be there. Paths are
    relative to the file.

    Attributes:
        schema: of this file.
        model: a registered model, or the path of a program relative to the file.
        models: several of them, instead of ``model``.
        target: where to run; null: ``local``. With ``runner`` alone, each variant names its build.
        targets: several of them, instead of ``target``.
        devices: where to run, instead of ``target``: a table for each device, by a name that stands for it in results.
            A list of names alone is for ``opscope run --scheduler``, whose workers own them and know where they are.
        variants: what is compared; empty: the CPU as it is, and without ``ablate``.
        comparisons: what to compare; empty: everything with the baseline of its thread count.
        out: directory of the bundles, relative to the file; null: ``opscope-out/`` and the file's name.
    """

    schema: Literal["opscope.config/1"] = "opscope.config/1"
    model: Text | None = None
    models: Many = ()
    target: TargetText | None = None
    targets: Annotated[tuple[TargetText, ...], MANY] = ()
    devices: Annotated[tuple[Name, ...], MANY] | Annotated[dict[Name, DeviceConfig], MANY] = ()
    variants: Annotated[tuple[VariantConfig, ...], MANY] = ()
    comparisons: Annotated[tuple[ComparisonConfig, ...], MANY] = ()
    out: Text | None = None
