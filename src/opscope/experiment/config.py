"""Configurations in TOML or JSON, opscope's own or the Arm kit's, and opscope's keys: schema ``opscope.config/1``.

What a key may hold is said once, in the types: decoding checks it, and the JSON Schema is made from it. Rules between
keys stand in :mod:`opscope.experiment.config_rules`.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from opscope.bundle.manifest import Role
from opscope.bundle.settings import (
    MANY,
    MORE_ROUNDS,
    USUAL,
    CpuNumbers,
    DelegateName,
    ExperimentSettings,
    Many,
    SessionOptions,
    Text,
    ThreadCounts,
)
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.files import opened
from opscope.experiment.target_names import parse_target
from opscope.hosts.target_kinds import KINDS, forms

PLAIN_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}$"
"""Pattern of names of variants, which are also names of directories."""

Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=PLAIN_NAME)]
TargetText: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=4096, description=f"One of {forms(KINDS)}.")
]


class VariantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Way to run the model.

    Attributes:
        name: unique in the file; also the name of its directory.
        ablate: feature groups to switch off.
        threads: sizes of the thread pool, each a variant of its own; null for those of the experiment.
        role: accelerated, baseline, intermediate, candidate or control; null: derived, see
            ``opscope.experiment.config_rules``.
        affinity: CPUs to stay on; null for those of the experiment.
        runner: executor_runner of this variant, for the target ``runner``; relative to the file.
        model: model that this variant runs, as ``model`` of the file: one network in several runtimes; null for that of
            the file.
        runtime: runtime that runs it, by its name, where several can; null for that of the file.
        delegate: delegate of a LiteRT model: ``xnnpack``, or ``none`` for LiteRT's own kernels; null for that of the
            file.
        session_options: session options of ONNX Runtime or OpenVINO, by name; null for those of the experiment.
    """

    name: Name
    ablate: Annotated[list[str], MANY] = []
    threads: ThreadCounts | None = None
    role: Role | None = None
    affinity: CpuNumbers | None = None
    runner: Text | None = None
    model: Text | None = None
    runtime: Text | None = None
    delegate: DelegateName | None = None
    session_options: SessionOptions | None = None


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device that the file names.

    Attributes:
        target: how it is reached, from this machine or from the worker that owns it.
    """

    target: TargetText


class ComparisonConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pair of variants to compare, by name. A variant with several thread counts stands for each of them."""

    baseline: Name
    candidate: Name


class Config(ExperimentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Experiments of one file: every model on every target or device; the settings apply to all of them.

    With ``variants``, these say themselves what is off, and ``ablate`` and ``ladder`` must not be there. Paths are
    relative to the file.

    Attributes:
        schema: schema of this file.
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


TARGETS = tuple(kind.name for kind in KINDS if kind.template)


def template(target: str) -> str:
    """Return the text of a TOML configuration that runs unchanged once its model and runners exist."""
    if target not in TARGETS:
        raise UsageError(f"no template for {target!r}", where="--target", hint=did_you_mean(target, TARGETS))
    return _fill_template(target)


def devices_template(devices: Sequence[str]) -> str:
    """Return the text of a TOML configuration for some devices."""
    targets: dict[str, str] = {}
    for text in devices:
        name, _, target = text.partition("=")
        hint = "for example --device rpi5=ssh:pi@rpi5"
        if not re.match(PLAIN_NAME, name) or not target:
            raise UsageError(f"{text[:_LONGEST_DEVICE]!r} is not NAME=TARGET", where="--device", hint=hint)
        if name in targets:
            raise UsageError(f"two devices are called {name}", where="--device", hint="give each its own name")
        parse_target(target, builds_named=True)
        targets[name] = target
    tables = [f"[devices.{_toml_key(name)}]\ntarget = {json.dumps(target)}" for name, target in targets.items()]
    return _fill_template("devices", devices="\n\n".join(tables))


_LONGEST_DEVICE = 60


def _toml_key(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name)


def _fill_template(name: str, **values: str) -> str:
    text = (files("opscope.experiment") / "templates" / f"{name}.toml").read_text(encoding="utf-8")
    return Template(text).substitute(
        values,
        dtype=USUAL.dtype,
        threads=USUAL.threads,
        rounds=USUAL.rounds,
        max_rounds=MORE_ROUNDS * USUAL.rounds,
        runs=USUAL.runs,
        warmup=USUAL.warmup,
        seed=USUAL.seed,
        timeout=f"{USUAL.timeout:g}",
    )


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_LARGEST = 1 << 20
_LONGEST_INTEGER = 18
_TOO_DEEP = "nested too deeply"
# Reading a dotted key of TOML takes time that grows with the square of its parts; a line has no more of them than dots.
_MOST_DOTS = 1000


def decode_config(file: Path, *, hint: str | None = None) -> Any:  # noqa: ANN401 - typed by the caller
    """Return the content of a file that people write: TOML if its name ends in .toml, else JSON."""
    return _decode_text(_read_text(file, hint), file)


def _read_text(file: Path, hint: str | None) -> str:
    with opened(file, hint) as stream:
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise UsageError("too large for a configuration", where=file)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"not valid UTF-8 (at byte {error.start:,})", where=file) from error


def _decode_text(text: str, file: Path) -> Any:  # noqa: ANN401 - what TOML and JSON give is typed by the caller
    toml = file.suffix.lower() == ".toml"
    if toml and any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise UsageError(_TOO_DEEP, where=file)
    try:
        return tomllib.loads(text) if toml else json.loads(text, parse_int=_parse_integer)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML: {error}", where=file) from error
    except json.JSONDecodeError as error:
        raise UsageError(f"not valid JSON: {error.msg}, line {error.lineno:,}", where=file) from error
    except RecursionError:
        raise UsageError(_TOO_DEEP, where=file) from None
    except ValueError as error:
        raise UsageError(f"not valid {'TOML' if toml else 'JSON'}: {error}", where=file) from error


def _parse_integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text):,} digits")
    return int(text)
