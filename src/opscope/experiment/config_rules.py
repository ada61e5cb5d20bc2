"""From our own configuration to experiments: rules between keys, paths, names, roles."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle.manifest import Role
from opscope.bundle.settings import NOTHING_OFF, choices_of, thread_counts
from opscope.core.errors import UsageError, did_you_mean
from opscope.experiment.config import PLAIN_NAME, Config, DeviceConfig, VariantConfig, decoded
from opscope.experiment.config_errors import shown, typed, wrong
from opscope.experiment.inputs import parse_input
from opscope.experiment.planned import Experiment, Experiments, PlannedComparison, PlannedVariant, Settings
from opscope.experiment.target_names import kind_named, parse_target
from opscope.hosts.target_kinds import AUTO, KINDS, LOCAL, RUNNER, forms, names
from opscope.machine import isa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_SAID_ELSEWHERE = ("model", "models", "targets", "devices", "variants", "comparisons", "out")
"""Keys that have no meaning where the command line names two programs."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_MOST_RUNS_OF_VARIANTS = 10_000
DEFAULT_OUT = "opscope-out"
DEFAULT_TARGET = LOCAL.name
CHOICES = {"role": tuple(role.value for role in Role)} | choices_of(VariantConfig) | choices_of(Config)
_TAKE_BUILDS = [kind for kind in KINDS if kind.builds]
_DEVICES_OF_BUILDS = [kind for kind in _TAKE_BUILDS if kind.remote]
_PROGRAMS = {".pte", ".bpte", ".tflite", ".onnx", ".xml"}
_FEATURES = tuple(dict.fromkeys(group.name for groups in isa.GROUPS.values() for group in groups))


def read_own(raw: object, file: Path) -> Experiments:
    """The experiments of a configuration of our own."""
    _check_devices(raw, file)
    config = typed(raw, Config, file, CHOICES)
    _check(config, file)
    # The model of a file is that of its first variant where variants name models.
    model = (config.variants[0].model if config.variants else None) or config.model
    models = [model] if model else config.models
    places = _places(config)
    _check_size(config, len(models) * len(places), file)
    variants = _roles(_expanded(config, file), config)
    if config.until is not None and variants and not _has_pairs(variants):
        hint = 'name them in comparisons, or give a variant role = "baseline"'
        raise wrong(file, "until", "no variant has a baseline to compare with", hint)
    experiments = [_experiment(config, file, model, place, variants) for model in models for place in places]
    pairs = [pair for experiment in experiments for pair in _comparisons(config, experiment)]
    out = file.parent / config.out if config.out else Path(DEFAULT_OUT) / file.stem
    return Experiments(file, out, tuple(_uniquely_named(experiments, file)), tuple(pairs))


def read_settings(file: Path) -> Settings:
    """How two programs are measured, from a configuration that leaves open which, and where their bundle goes."""
    raw = decoded(file, hint="give a TOML or JSON file with keys such as runs and threads")
    config = typed(raw, Config, file, CHOICES)
    for key in _SAID_ELSEWHERE:
        if key in raw:
            raise wrong(file, key, "the command line names both programs, and --out their bundle", f"leave out {key}")
    for key in ("ablate", "ladder"):
        if getattr(config, key) not in {False, (), (NOTHING_OFF,)}:
            problem = "nothing is switched off when two programs are compared"
            raise wrong(file, key, problem, f"leave out {key}")
    if len(config.thread_counts) > 1:
        raise wrong(file, "threads", "two programs are compared at one thread count", "give one number")
    target = config.target or AUTO.name
    _check_inputs(config, file)
    _check_word(parse_target, target, "target", file)
    _check_rounds(config, file)
    place = parse_target(target).beside(file.parent)
    return Settings(target=place.text, **(config.own() | _located_files(config, file)))


class _Place(NamedTuple):
    """Where an experiment runs."""

    target: str  # its name
    device: str | None = None  # what the file calls the machine; None where it gives no name
    needs_worker: bool = False  # whether the file gives the name alone, so that only a worker knows the machine


def _places(config: Config) -> list[_Place]:
    """Every place of a file, in its order."""
    if isinstance(config.devices, dict):
        return [_Place(device_config.target, name) for name, device_config in config.devices.items()] or [
            _Place(DEFAULT_TARGET)
        ]
    devices = dict.fromkeys(config.devices)
    targets = _targets(config) or [DEFAULT_TARGET]
    if not devices:
        return [_Place(target) for target in targets]
    return [_Place(target, device, needs_worker=True) for target in targets for device in devices]


def _targets(config: Config) -> list[str]:
    """Every target that a file names."""
    if isinstance(config.devices, dict) and config.devices:
        return [device_config.target for device_config in config.devices.values()]
    return [config.target] if config.target else list(config.targets)


def _check_devices(raw: object, file: Path) -> None:
    """Check the tables of devices one by one, since what is wrong in one shall be told with its name."""
    devices = raw.get("devices") if isinstance(raw, dict) else None
    for name, device in devices.items() if isinstance(devices, dict) else ():
        if not re.match(PLAIN_NAME, str(name)):
            problem = f"{shown(name)} is not allowed; expected a name of letters, digits and any of _ . + -"
            raise wrong(file, "devices", f"{problem}, at most 100 of them")
        if isinstance(device, str):
            hint = f'write [devices.{name}] and below it target = "{device}"'
            raise wrong(file, f"devices.{name}", f"{shown(device)} is not allowed; expected a table", hint)
        typed(device, DeviceConfig, file, CHOICES, at=f"devices.{name}")


def _check_size(config: Config, experiments: int, file: Path) -> None:
    """Refuse a file that asks for more than anybody means to measure, before it is spread out."""
    counts = [thread_counts(config.threads if one.threads is None else one.threads) for one in config.variants]
    variants = sum(map(len, counts)) or len(thread_counts(config.threads))
    if experiments * variants > _MOST_RUNS_OF_VARIANTS:
        problem = (
            f"{experiments:,} experiments (models x targets x devices) of {variants:,} variants each exceed "
            f"{_MOST_RUNS_OF_VARIANTS:,} in total"
        )
        raise UsageError(problem, where=file, hint="reduce them, or write several files")


def _check(config: Config, file: Path) -> None:
    """Rules between keys."""
    for check in (_check_models, _check_targets, _check_variants, _check_rounds):  # each may rely on those before it
        check(config, file)
    lists = [("ablate", () if config.ablate == (NOTHING_OFF,) else config.ablate)] + [
        (f"variants[{n}].ablate", v.ablate) for n, v in enumerate(config.variants)
    ]
    for path, groups in lists:
        for number, name in enumerate(groups):
            if name not in _FEATURES:
                raise wrong(
                    file, f"{path}[{number}]", f"unknown feature group {shown(name)}", did_you_mean(name, _FEATURES)
                )


def _check_models(config: Config, file: Path) -> None:
    if config.model and config.models:
        raise wrong(file, "models", "there is also a key model", "name all models in models, or one in model")
    has_own = any(variant.model is not None for variant in config.variants)
    if has_own:
        _check_models_of_variants(config, file)
    if has_own or any(variant.runtime for variant in config.variants):
        _check_unlike(config, file)
    if not any(variant.model for variant in config.variants) and not config.model and not config.models:
        hint = 'for example model = "mobilenet_v3_small", or the path of a .pte; `opscope models` lists the names'
        raise wrong(file, "model", "this key is missing", hint)
    _check_inputs(config, file)


def _check_models_of_variants(config: Config, file: Path) -> None:
    """Check the models that variants name for themselves: one network in several runtimes."""
    if config.models:
        raise wrong(file, "models", "variants have their own models", "leave out models")
    if config.model and all(variant.model is not None for variant in config.variants):
        raise wrong(file, "model", "every variant names its own model", "leave out model")
    for number, variant in enumerate(config.variants):
        if variant.model is None and config.model is None:
            hint = "name a model in each variant, or set model for those that name none"
            raise wrong(file, f"variants[{number}].model", "this key is missing", hint)
        if variant.runner is not None:
            hint = "leave out model: builds are compared on the same program"
            raise wrong(file, f"variants[{number}].runner", "a runner runs the model of the file", hint)


def _check_unlike(config: Config, file: Path) -> None:
    """Refuse variants that name one model and differ in nothing."""
    found: dict[object, str] = {}
    for number, one in enumerate(config.variants):
        model, runtime = _located(file, one.model or config.model or ""), one.runtime or config.runtime
        alike = tuple(one.ablate), str(one.threads), str(one.affinity), one.delegate, one.role is Role.CONTROL
        runs = model, runtime, str(one.session_options), *alike
        if earlier := found.get(runs):
            problem = f"{earlier} runs {shown(one.model or config.model or 'its model')} in the same way"
            raise wrong(file, f"variants[{number}].model", problem, "name another program, or add what differs")
        found[runs] = one.name


def _located(file: Path, model: str) -> str:
    """A model as its name, or the path of its program from where the file stands."""
    program = file.parent / model
    return str(program) if program.suffix in _PROGRAMS or program.is_file() else model


def _check_inputs(config: Config, file: Path) -> None:
    """Check the inputs as far as they can be judged without a program."""
    if config.input and config.inputs:
        raise wrong(file, "inputs", "there is also a key input", "leave out one of the two")
    for path, text in _numbered("input", config.input):
        _check_word(parse_input, text, path, file)


def _check_targets(config: Config, file: Path) -> None:
    if config.target and config.targets:
        raise wrong(file, "targets", "there is also a key target", "name all targets in targets, or one in target")
    named = config.devices if isinstance(config.devices, dict) else {}
    if named and (config.target or config.targets):
        key = "target" if config.target else "targets"
        raise wrong(file, key, "each device names its own target", f"leave out {key}, or devices")
    own = [(f"devices.{name}.target", device.target) for name, device in named.items()]
    for path, target in [("target", config.target or DEFAULT_TARGET), *_numbered("targets", config.targets), *own]:
        _check_word(partial(parse_target, builds_named=True), target, path, file)


def _check_word(parse: Callable[[str], object], word: str, path: str, file: Path) -> None:
    """Refuse a word that is not understood, with the key where it stands."""
    try:
        parse(word)
    except UsageError as error:
        raise wrong(file, path, error.problem, error.hint) from None


def _numbered(name: str, values: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"{name}[{number}]", value) for number, value in enumerate(values)]


def _check_variants(config: Config, file: Path) -> None:
    if config.ladder and config.ablate:
        raise wrong(file, "ladder", "the ladder chooses what to switch off", "leave out ablate")
    for name in ("ladder", "ablate"):
        if config.variants and getattr(config, name):
            raise wrong(file, name, "there are variants, which state what is off", f"leave out {name}")
    if not config.variants and any(kind_named(target).only_builds for target in _targets(config)):
        raise wrong(file, "variants", "this key is missing", "the target runner runs the variants that the file lists")
    if config.variants and config.delegate == "both":
        hint = 'give two variants delegate = "xnnpack" and delegate = "none"'
        raise wrong(file, "delegate", "there are variants, which state what runs them", hint)
    if config.comparisons and not config.variants:
        raise wrong(file, "comparisons", "there are no variants to compare")
    if config.variants:
        _check_runners(config, file)
        _check_comparisons(config, file)


def _check_runners(config: Config, file: Path) -> None:
    targets = _targets(config)
    kinds = {kind_named(target) for target in targets}
    on_devices = any(variant.runner for variant in config.variants) and any(k.builds and k.remote for k in kinds)
    bare = RUNNER.name in targets or on_devices
    fixed = bare or any(parse_target(target, builds_named=True).runner for target in targets)
    allowed = bare and all(kind.builds for kind in kinds)
    for number, variant in enumerate(config.variants):
        place = f"variants[{number}]"
        if variant.role is Role.CONTROL and variant.ablate:
            hint = "leave it out, or choose another role"
            raise wrong(file, f"{place}.ablate", "a control must run without the switch", hint)
        if fixed and variant.ablate:
            hint = "give a runner that was built without the feature"
            raise wrong(file, f"{place}.ablate", "a runner's features are fixed when it is built", hint)
        if bare and variant.runner is None:
            raise wrong(file, f"{place}.runner", "this key is missing", "give a runner for every variant, or for none")
        if variant.runner is not None and not allowed:
            hint = f'target = "{RUNNER.name}", or the device that it was built for: {forms(_DEVICES_OF_BUILDS)}'
            raise wrong(file, f"{place}.runner", f"only the target {names(_TAKE_BUILDS)} has one", hint)


def _check_comparisons(config: Config, file: Path) -> None:
    names = [variant.name for variant in config.variants]
    known = dict.fromkeys([*names, *(variant.name for variant in _expanded(config, file))])
    for number, name in enumerate(names):
        if name in names[:number]:
            raise wrong(file, f"variants[{number}].name", f"two variants are called {shown(name)}")
    for number, pair in enumerate(config.comparisons):
        for side in ("baseline", "candidate"):
            name = getattr(pair, side)
            if name not in known:
                hint = did_you_mean(name, known)
                raise wrong(file, f"comparisons[{number}].{side}", f"no variant {shown(name)}", hint)


def _check_rounds(config: Config, file: Path) -> None:
    problem = config.limit_problem()
    if problem:
        raise wrong(file, "max_rounds", *problem)


def _expanded(config: Config, file: Path) -> list[PlannedVariant]:
    """A variant for each thread count; its name tells the count where the name in the file stands for several."""
    return [one for variant in config.variants for one in _at_each_count(variant, config, file)]


def _at_each_count(variant: VariantConfig, config: Config, file: Path) -> list[PlannedVariant]:
    counts = thread_counts(config.threads if variant.threads is None else variant.threads)
    affinity = config.affinity if variant.affinity is None else variant.affinity
    several = any(one.model for one in config.variants)
    return [
        PlannedVariant(
            name=f"{variant.name}-t{threads}" if len(counts) > 1 else variant.name,
            group=variant.name,
            threads=threads,
            ablated=variant.ablate,
            cleared=[],
            affinity=sorted(set(affinity)),
            runner=file.parent / variant.runner if variant.runner else None,
            model=_located(file, variant.model or config.model or "") if several else None,
            runtime=variant.runtime or config.runtime,
            delegate=variant.delegate,
            options=variant.session_options,
        )
        for threads in counts
    ]


def _roles(variants: list[PlannedVariant], config: Config) -> tuple[PlannedVariant, ...]:
    """Variants with their roles: as the file says, else by the comparisons, else by what is switched off.

    A variant that comparisons name as a baseline only is one. Without comparisons, the last of a thread count and model
    that has something off is; of several models or runtimes with nothing off, that of the first one. Of the others,
    those with nothing off are accelerated, unless they are builds of a runner or other models: nothing tells what those
    can do.
    """
    said = {variant.name: variant.role for variant in config.variants}
    candidates = {pair.candidate for pair in config.comparisons}
    baselines = {pair.baseline for pair in config.comparisons} - candidates
    if not config.comparisons and Role.BASELINE not in said.values():
        # Features that are off are the question where both are asked.
        off = sorted((v for v in variants if _is_off(v, variants)), key=lambda v: bool(v.ablated))
        baselines = set({(v.threads, v.model, v.runtime): v.name for v in off}.values())
        if not baselines and _several_models(variants):
            baselines = set({v.threads: v.name for v in reversed(variants)}.values())
    return tuple(
        msgspec.structs.replace(variant, role=said[variant.group] or _role(variant, variants, baselines))
        for variant in variants
    )


def _role(variant: PlannedVariant, variants: Sequence[PlannedVariant], baselines: set[str]) -> Role:
    if {variant.name, variant.group} & baselines:
        return Role.BASELINE
    if variant.ablated:
        return Role.INTERMEDIATE
    other = _several_models(variants) and not any(_is_off(one, variants) for one in variants)
    return Role.CANDIDATE if variant.runner or other else Role.ACCELERATED


def _is_off(variant: PlannedVariant, variants: Sequence[PlannedVariant]) -> bool:
    """Whether something is off in a variant: features, or the delegate that another variant of its model has."""
    beside = {one.delegate for one in variants if (one.model, one.runtime) == (variant.model, variant.runtime)}
    return bool(variant.ablated) or (variant.delegate == "none" and len(beside) > 1)


def _several_models(variants: Sequence[PlannedVariant]) -> bool:
    return len({(variant.model, variant.runtime) for variant in variants}) > 1


def _has_pairs(variants: Sequence[PlannedVariant]) -> bool:
    """Whether some variant is compared with the baseline of its thread count."""
    baselines = {variant.threads for variant in variants if variant.role is Role.BASELINE}
    return any(v.threads in baselines and v.role is not Role.BASELINE for v in variants)


def _experiment(
    config: Config, file: Path, model: str, place: _Place, variants: tuple[PlannedVariant, ...]
) -> Experiment:
    named = parse_target(place.target, builds_named=True)
    # The path of a runner says less than its variants do.
    address = "" if named.kind.only_builds else _NOT_IN_NAMES.sub("-", named.address.partition("?")[0])
    named = named.beside(file.parent)
    told = (named.kind.name, address) if place.device is None or place.needs_worker else ()
    return Experiment(
        name="-".join(filter(None, (*_stems(variants, model), *told, place.device))),
        model=_located(file, model),
        target=named.text,
        variants=variants,
        device=place.device,
        needs_worker=place.needs_worker,
        **(config.own() | _located_files(config, file)),
    )


def _located_files(config: Config, file: Path) -> dict[str, str]:
    """Files that the settings name, from where the file stands."""
    named = {"inputs": config.inputs, "data": config.data}
    return {name: str(file.parent / path) for name, path in named.items() if path}


def _stems(variants: Sequence[PlannedVariant], model: str) -> list[str]:
    """What an experiment is called after: the name of its model, or those of all that its variants run."""
    return list(dict.fromkeys(Path(variant.model or model).stem for variant in variants)) or [Path(model).stem]


def _comparisons(config: Config, experiment: Experiment) -> list[PlannedComparison]:
    """Every pair that the file asks for, at each thread count that both sides have when it names neither."""
    comparisons = []
    for pair in config.comparisons:
        baselines, candidates = (_named(experiment, name) for name in (pair.baseline, pair.candidate))
        alone = len(baselines) == len(candidates) == 1
        comparisons += [
            PlannedComparison((experiment.name, b.name), (experiment.name, c.name))
            for b in baselines
            for c in candidates
            if alone or b.threads == c.threads
        ]
    return comparisons


def _named(experiment: Experiment, name: str) -> list[PlannedVariant]:
    """The variant of that name, or all of the group of that name."""
    exact = [variant for variant in experiment.variants if variant.name == name]
    return exact or [variant for variant in experiment.variants if variant.group == name]


def _uniquely_named(experiments: list[Experiment], file: Path) -> list[Experiment]:
    """The experiments, when each has a directory of its own."""
    names = [experiment.name for experiment in experiments]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice:
        hint = "models need different file names, and a target can occur once per file; named devices can share it"
        raise wrong(file, "models", f"two experiments would be called {twice}", hint)
    return experiments
