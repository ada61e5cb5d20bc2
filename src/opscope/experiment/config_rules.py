"""Conversion of a configuration to experiments: rules between keys, paths, names, roles."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Role
from opscope.bundle.settings import NOTHING_OFF, choices_of, thread_counts
from opscope.core.errors import UsageError, did_you_mean
from opscope.experiment.config import PLAIN_NAME, Config, DeviceConfig, VariantConfig, decode_config
from opscope.experiment.config_errors import convert_config, field_error, value_text
from opscope.experiment.inputs import parse_input
from opscope.experiment.planned import Experiment, Experiments, PlannedComparison, PlannedVariant, Settings
from opscope.experiment.target_names import kind_named, parse_target
from opscope.hosts.target_kinds import AUTO, KINDS, LOCAL, RUNNER, forms, names
from opscope.machine import isa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_SAID_ELSEWHERE = ("model", "models", "targets", "devices", "variants", "comparisons", "out")
"""Keys that have no meaning if the command line names two programs."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_MOST_RUNS_OF_VARIANTS = 10_000
DEFAULT_OUT = "opscope-out"
DEFAULT_TARGET = LOCAL.name
CHOICES = {"role": tuple(role.value for role in Role)} | choices_of(VariantConfig) | choices_of(Config)
_TAKE_BUILDS = [kind for kind in KINDS if kind.builds]
_DEVICES_OF_BUILDS = [kind for kind in _TAKE_BUILDS if kind.remote]
_PROGRAMS = {".pte", ".bpte", ".tflite", ".onnx", ".xml"}
_FEATURES = tuple(dict.fromkeys(group.name for groups in isa.GROUPS.values() for group in groups))


def read_opscope_config(raw: object, file: Path) -> Experiments:
    """Return the experiments of a configuration of opscope's own."""
    _check_devices(raw, file)
    config = convert_config(raw, Config, file, CHOICES)
    _check_keys(config, file)
    # The model of a file is that of its first variant where variants name models.
    model = (config.variants[0].model if config.variants else None) or config.model
    models = [model] if model else config.models
    locations = _list_locations(config)
    _check_size(config, len(models) * len(locations), file)
    variants = _assign_roles(_expand_variants(config, file), config)
    if config.until is not None and variants and not _has_pairs(variants):
        hint = 'name them in comparisons, or give a variant role = "baseline"'
        raise field_error(file, "until", "no variant has a baseline to compare with", hint)
    experiments = [
        _build_experiment(config, file, model, location, variants) for model in models for location in locations
    ]
    pairs = [pair for experiment in experiments for pair in _planned_comparisons(config, experiment)]
    out = file.parent / config.out if config.out else Path(DEFAULT_OUT) / file.stem
    return Experiments(file, out, tuple(_check_unique_names(experiments, file)), tuple(pairs))


def read_settings(file: Path) -> Settings:
    """Return how two programs are measured, from a configuration that does not name them, and its target."""
    raw = decode_config(file, hint="give a TOML or JSON file with keys such as runs and threads")
    config = convert_config(raw, Config, file, CHOICES)
    for key in _SAID_ELSEWHERE:
        if key in raw:
            raise field_error(
                file, key, "the command line names both programs, and --out their bundle", f"leave out {key}"
            )
    for key in ("ablate", "ladder"):
        if getattr(config, key) not in {False, (), (NOTHING_OFF,)}:
            problem = "nothing is switched off when two programs are compared"
            raise field_error(file, key, problem, f"leave out {key}")
    if len(config.thread_counts) > 1:
        raise field_error(file, "threads", "two programs are compared at one thread count", "give one number")
    target = config.target or AUTO.name
    _check_inputs(config, file)
    _check_word(parse_target, target, "target", file)
    _check_rounds(config, file)
    located = parse_target(target).beside(file.parent)
    return Settings(target=located.text, **(config.own() | _locate_files(config, file)))


class _Location(NamedTuple):
    """Place where an experiment runs."""

    target: str  # its name
    device: str | None = None  # what the file calls the machine; None where it gives no name
    needs_worker: bool = False  # whether the file gives the name alone, so that only a worker knows the machine


def _list_locations(config: Config) -> list[_Location]:
    """Return every location of a file, in its order."""
    if isinstance(config.devices, dict):
        return [_Location(device_config.target, name) for name, device_config in config.devices.items()] or [
            _Location(DEFAULT_TARGET)
        ]
    devices = dict.fromkeys(config.devices)
    targets = _target_names(config) or [DEFAULT_TARGET]
    if not devices:
        return [_Location(target) for target in targets]
    return [_Location(target, device, needs_worker=True) for target in targets for device in devices]


def _target_names(config: Config) -> list[str]:
    """Return every target that a file names."""
    if isinstance(config.devices, dict) and config.devices:
        return [device_config.target for device_config in config.devices.values()]
    return [config.target] if config.target else list(config.targets)


def _check_devices(raw: object, file: Path) -> None:
    """Check the tables of devices one by one, so that an error in one names it."""
    devices = raw.get("devices") if isinstance(raw, dict) else None
    for name, device in devices.items() if isinstance(devices, dict) else ():
        if not re.match(PLAIN_NAME, str(name)):
            problem = f"{value_text(name)} is not allowed; expected a name of letters, digits and any of _ . + -"
            raise field_error(file, "devices", f"{problem}, at most 100 of them")
        if isinstance(device, str):
            hint = f'write [devices.{name}] and below it target = "{device}"'
            raise field_error(file, f"devices.{name}", f"{value_text(device)} is not allowed; expected a table", hint)
        convert_config(device, DeviceConfig, file, CHOICES, at=f"devices.{name}")


def _check_size(config: Config, experiments: int, file: Path) -> None:
    """Refuse a file that requests more than anybody means to measure, before it is expanded."""
    counts = [
        thread_counts(config.threads if variant.threads is None else variant.threads) for variant in config.variants
    ]
    variants = sum(map(len, counts)) or len(thread_counts(config.threads))
    if experiments * variants > _MOST_RUNS_OF_VARIANTS:
        problem = (
            f"{experiments:,} experiments (models x targets x devices) of {variants:,} variants each exceed "
            f"{_MOST_RUNS_OF_VARIANTS:,} in total"
        )
        raise UsageError(problem, where=file, hint="reduce them, or write several files")


def _check_keys(config: Config, file: Path) -> None:
    """Check the rules between keys."""
    for check in (_check_models, _check_targets, _check_variants, _check_rounds):  # each may rely on those before it
        check(config, file)
    lists = [("ablate", () if config.ablate == (NOTHING_OFF,) else config.ablate)] + [
        (f"variants[{number}].ablate", variant.ablate) for number, variant in enumerate(config.variants)
    ]
    for path, groups in lists:
        for number, name in enumerate(groups):
            if name not in _FEATURES:
                raise field_error(
                    file,
                    f"{path}[{number}]",
                    f"unknown feature group {value_text(name)}",
                    did_you_mean(name, _FEATURES),
                )


def _check_models(config: Config, file: Path) -> None:
    if config.model and config.models:
        raise field_error(file, "models", "there is also a key model", "name all models in models, or one in model")
    has_variant_models = any(variant.model is not None for variant in config.variants)
    if has_variant_models:
        _check_models_of_variants(config, file)
    if has_variant_models or any(variant.runtime for variant in config.variants):
        _check_variants_differ(config, file)
    if not any(variant.model for variant in config.variants) and not config.model and not config.models:
        hint = 'for example model = "mobilenet_v3_small", or the path of a .pte; `opscope models` lists the names'
        raise field_error(file, "model", "this key is missing", hint)
    _check_inputs(config, file)


def _check_models_of_variants(config: Config, file: Path) -> None:
    """Check the models that variants name for themselves: one network in several runtimes."""
    if config.models:
        raise field_error(file, "models", "variants have their own models", "leave out models")
    if config.model and all(variant.model is not None for variant in config.variants):
        raise field_error(file, "model", "every variant names its own model", "leave out model")
    for number, variant in enumerate(config.variants):
        if variant.model is None and config.model is None:
            hint = "name a model in each variant, or set model for those that name none"
            raise field_error(file, f"variants[{number}].model", "this key is missing", hint)
        if variant.runner is not None:
            hint = "leave out model: builds are compared on the same program"
            raise field_error(file, f"variants[{number}].runner", "a runner runs the model of the file", hint)


def _check_variants_differ(config: Config, file: Path) -> None:
    """Refuse variants that name one model and differ in nothing."""
    names: dict[object, str] = {}
    for number, variant in enumerate(config.variants):
        model, runtime = _locate_model(file, variant.model or config.model or ""), variant.runtime or config.runtime
        alike = (
            tuple(variant.ablate),
            str(variant.threads),
            str(variant.affinity),
            variant.delegate,
            variant.role is Role.CONTROL,
        )
        runs = model, runtime, str(variant.session_options), *alike
        if earlier := names.get(runs):
            problem = f"{earlier} runs {value_text(variant.model or config.model or 'its model')} in the same way"
            raise field_error(file, f"variants[{number}].model", problem, "name another program, or add what differs")
        names[runs] = variant.name


def _locate_model(file: Path, model: str) -> str:
    """Return a model as its name, or the path of its program relative to the file's directory."""
    program = file.parent / model
    return str(program) if program.suffix in _PROGRAMS or program.is_file() else model


def _check_inputs(config: Config, file: Path) -> None:
    """Check the inputs as far as possible without a program."""
    if config.input and config.inputs:
        raise field_error(file, "inputs", "there is also a key input", "leave out one of the two")
    for path, text in _number_values("input", config.input):
        _check_word(parse_input, text, path, file)


def _check_targets(config: Config, file: Path) -> None:
    if config.target and config.targets:
        raise field_error(
            file, "targets", "there is also a key target", "name all targets in targets, or one in target"
        )
    devices = config.devices if isinstance(config.devices, dict) else {}
    if devices and (config.target or config.targets):
        key = "target" if config.target else "targets"
        raise field_error(file, key, "each device names its own target", f"leave out {key}, or devices")
    device_targets = [(f"devices.{name}.target", device.target) for name, device in devices.items()]
    for path, target in [
        ("target", config.target or DEFAULT_TARGET),
        *_number_values("targets", config.targets),
        *device_targets,
    ]:
        _check_word(partial(parse_target, builds_named=True), target, path, file)


def _check_word(parse: Callable[[str], object], word: str, path: str, file: Path) -> None:
    """Refuse a word that cannot be parsed, and name the key where it stands."""
    try:
        parse(word)
    except UsageError as error:
        raise field_error(file, path, error.problem, error.hint) from None


def _number_values(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"{name}[{number}]", value) for number, value in enumerate(values)]


def _check_variants(config: Config, file: Path) -> None:
    if config.ladder and config.ablate:
        raise field_error(file, "ladder", "the ladder chooses what to switch off", "leave out ablate")
    for name in ("ladder", "ablate"):
        if config.variants and getattr(config, name):
            raise field_error(file, name, "there are variants, which state what is off", f"leave out {name}")
    if not config.variants and any(kind_named(target).only_builds for target in _target_names(config)):
        raise field_error(
            file, "variants", "this key is missing", "the target runner runs the variants that the file lists"
        )
    if config.variants and config.delegate == "both":
        hint = 'give two variants delegate = "xnnpack" and delegate = "none"'
        raise field_error(file, "delegate", "there are variants, which state what runs them", hint)
    if config.comparisons and not config.variants:
        raise field_error(file, "comparisons", "there are no variants to compare")
    if config.variants:
        _check_runners(config, file)
        _check_comparisons(config, file)


def _check_runners(config: Config, file: Path) -> None:
    targets = _target_names(config)
    kinds = {kind_named(target) for target in targets}
    on_devices = any(variant.runner for variant in config.variants) and any(
        kind.builds and kind.remote for kind in kinds
    )
    bare = RUNNER.name in targets or on_devices
    fixed = bare or any(parse_target(target, builds_named=True).runner for target in targets)
    allowed = bare and all(kind.builds for kind in kinds)
    for number, variant in enumerate(config.variants):
        variant_path = f"variants[{number}]"
        if variant.role is Role.CONTROL and variant.ablate:
            hint = "leave it out, or choose another role"
            raise field_error(file, f"{variant_path}.ablate", "a control must run without the switch", hint)
        if fixed and variant.ablate:
            hint = "give a runner that was built without the feature"
            raise field_error(file, f"{variant_path}.ablate", "a runner's features are fixed when it is built", hint)
        if bare and variant.runner is None:
            raise field_error(
                file, f"{variant_path}.runner", "this key is missing", "give a runner for every variant, or for none"
            )
        if variant.runner is not None and not allowed:
            hint = f'target = "{RUNNER.name}", or the device that it was built for: {forms(_DEVICES_OF_BUILDS)}'
            raise field_error(file, f"{variant_path}.runner", f"only the target {names(_TAKE_BUILDS)} has one", hint)


def _check_comparisons(config: Config, file: Path) -> None:
    names = [variant.name for variant in config.variants]
    known = dict.fromkeys([*names, *(variant.name for variant in _expand_variants(config, file))])
    for number, name in enumerate(names):
        if name in names[:number]:
            raise field_error(file, f"variants[{number}].name", f"two variants are called {value_text(name)}")
    for number, pair in enumerate(config.comparisons):
        for side in ("baseline", "candidate"):
            name = getattr(pair, side)
            if name not in known:
                hint = did_you_mean(name, known)
                raise field_error(file, f"comparisons[{number}].{side}", f"no variant {value_text(name)}", hint)


def _check_rounds(config: Config, file: Path) -> None:
    problem = config.limit_problem()
    if problem:
        raise field_error(file, "max_rounds", *problem)


def _expand_variants(config: Config, file: Path) -> list[PlannedVariant]:
    """Return a variant for each thread count; its name has the count if the file's name stands for several."""
    return [planned for variant in config.variants for planned in _expand_thread_counts(variant, config, file)]


def _expand_thread_counts(variant: VariantConfig, config: Config, file: Path) -> list[PlannedVariant]:
    counts = thread_counts(config.threads if variant.threads is None else variant.threads)
    affinity = config.affinity if variant.affinity is None else variant.affinity
    several = any(config_variant.model for config_variant in config.variants)
    return [
        PlannedVariant(
            name=f"{variant.name}-t{threads}" if len(counts) > 1 else variant.name,
            group=variant.name,
            threads=threads,
            ablated=variant.ablate,
            cleared=[],
            affinity=sorted(set(affinity)),
            runner=file.parent / variant.runner if variant.runner else None,
            model=_locate_model(file, variant.model or config.model or "") if several else None,
            runtime=variant.runtime or config.runtime,
            delegate=variant.delegate,
            options=variant.session_options,
        )
        for threads in counts
    ]


def _assign_roles(variants: list[PlannedVariant], config: Config) -> tuple[PlannedVariant, ...]:
    """Return variants with their roles: from the file, else from the comparisons, else from what is off.

    A variant that comparisons name only as a baseline is one. Without comparisons, the last variant of a thread count
    and model that has something off is the baseline; of several models or runtimes with nothing off, that of the first
    one. Of the others, those with nothing off are accelerated, unless they are builds of a runner or other models, of
    which nothing says what they can do.
    """
    roles_in_file = {variant.name: variant.role for variant in config.variants}
    candidates = {pair.candidate for pair in config.comparisons}
    baselines = {pair.baseline for pair in config.comparisons} - candidates
    if not config.comparisons and Role.BASELINE not in roles_in_file.values():
        # Features that are off are the question where both are asked.
        off = sorted(
            (variant for variant in variants if _has_something_off(variant, variants)),
            key=lambda variant: bool(variant.ablated),
        )
        baselines = set({(variant.threads, variant.model, variant.runtime): variant.name for variant in off}.values())
        if not baselines and _has_several_models(variants):
            baselines = set({variant.threads: variant.name for variant in reversed(variants)}.values())
    return tuple(
        msgspec.structs.replace(
            variant, role=roles_in_file[variant.group] or _derive_role(variant, variants, baselines)
        )
        for variant in variants
    )


def _derive_role(variant: PlannedVariant, variants: Sequence[PlannedVariant], baselines: set[str]) -> Role:
    if {variant.name, variant.group} & baselines:
        return Role.BASELINE
    if variant.ablated:
        return Role.INTERMEDIATE
    is_other_model = _has_several_models(variants) and not any(
        _has_something_off(other_variant, variants) for other_variant in variants
    )
    return Role.CANDIDATE if variant.runner or is_other_model else Role.ACCELERATED


def _has_something_off(variant: PlannedVariant, variants: Sequence[PlannedVariant]) -> bool:
    """Return whether something is off in a variant: features, or the delegate that another variant of its model has."""
    delegates = {
        other_variant.delegate
        for other_variant in variants
        if (other_variant.model, other_variant.runtime) == (variant.model, variant.runtime)
    }
    return bool(variant.ablated) or (variant.delegate == "none" and len(delegates) > 1)


def _has_several_models(variants: Sequence[PlannedVariant]) -> bool:
    return len({(variant.model, variant.runtime) for variant in variants}) > 1


def _has_pairs(variants: Sequence[PlannedVariant]) -> bool:
    """Return whether some variant is compared with the baseline of its thread count."""
    baselines = {variant.threads for variant in variants if variant.role is Role.BASELINE}
    return any(variant.threads in baselines and variant.role is not Role.BASELINE for variant in variants)


def _build_experiment(
    config: Config, file: Path, model: str, location: _Location, variants: tuple[PlannedVariant, ...]
) -> Experiment:
    target = parse_target(location.target, builds_named=True)
    # The path of a runner says less than its variants do.
    address = "" if target.kind.only_builds else _NOT_IN_NAMES.sub("-", target.address.partition("?")[0])
    target = target.beside(file.parent)
    target_name = (target.kind.name, address) if location.device is None or location.needs_worker else ()
    return Experiment(
        name="-".join(filter(None, (*_model_stems(variants, model), *target_name, location.device))),
        model=_locate_model(file, model),
        target=target.text,
        variants=variants,
        device=location.device,
        needs_worker=location.needs_worker,
        **(config.own() | _locate_files(config, file)),
    )


def _locate_files(config: Config, file: Path) -> dict[str, str]:
    """Return the files that the settings name, relative to the file's directory."""
    paths = {"inputs": config.inputs, "data": config.data}
    return {name: str(file.parent / path) for name, path in paths.items() if path}


def _model_stems(variants: Sequence[PlannedVariant], model: str) -> list[str]:
    """Return the names that an experiment is called after: its model's, or those of all its variants' models."""
    return list(dict.fromkeys(Path(variant.model or model).stem for variant in variants)) or [Path(model).stem]


def _planned_comparisons(config: Config, experiment: Experiment) -> list[PlannedComparison]:
    """Return every requested pair, at each thread count that both sides have unless both are exact."""
    comparisons = []
    for pair in config.comparisons:
        baselines, candidates = (_variants_named(experiment, name) for name in (pair.baseline, pair.candidate))
        is_single_pair = len(baselines) == len(candidates) == 1
        comparisons += [
            PlannedComparison((experiment.name, baseline.name), (experiment.name, candidate.name))
            for baseline in baselines
            for candidate in candidates
            if is_single_pair or baseline.threads == candidate.threads
        ]
    return comparisons


def _variants_named(experiment: Experiment, name: str) -> list[PlannedVariant]:
    """Return the variant of this name, or all of the group of this name."""
    exact = [variant for variant in experiment.variants if variant.name == name]
    return exact or [variant for variant in experiment.variants if variant.group == name]


def _check_unique_names(experiments: list[Experiment], file: Path) -> list[Experiment]:
    """Return the experiments if each has a directory of its own; raise UsageError otherwise."""
    names = [experiment.name for experiment in experiments]
    duplicate = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if duplicate:
        hint = "models need different file names, and a target can occur once per file; named devices can share it"
        raise field_error(file, "models", f"two experiments would be called {duplicate}", hint)
    return experiments
