"""The Arm kit's configuration, as it is: its experiments become ours.

What the kit does with each key was read from its source (ArmDeveloperEcosystem/sme-executorch-profiling:
``config_loader.py``, ``runner_base.py``, ``mac_runner.py``, ``android_runner.py``, ``perf_runner.py``). Its paths are
relative to the directory that it is started in, which is its own; here that is looked for from the configuration
upwards when the current directory is not it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from opscope.bundle.manifest import Role
from opscope.bundle.settings import USUAL, Rounds, Runs, Seed, Text, ThreadCounts, Warmup, thread_counts
from opscope.core.errors import did_you_mean
from opscope.experiment.config import PLAIN_NAME, Name
from opscope.experiment.config_errors import convert_config, field_error, value_text
from opscope.experiment.planned import Experiment, Experiments, PlannedComparison, PlannedVariant
from opscope.kit.readers.json import AnalysisPlan, ExperimentKey, PairFields
from opscope.kit.readers.run import ROLES_HINT, propose_pairs, roles_note

_MASK = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,256})\Z")
_MODES = ("timing", "xnntrace")
_RUNS, _WARMUP = 100, 10
# Options of the kit's own perf_runner.py, which its macOS configurations may hold beside those of the runner.
_PERF_RUNNER = frozenset(
    "--verbose-runner --quiet-runner --mode --exp --outdir --output --no-output --xtrace-template --xtrace-target-sec "
    "--xtrace-min-exec --xtrace-max-exec --xtrace-execs".split()
)
_WITHOUT_VALUE = {"--output", "--no-output"}
_VERBOSE = "--verbose-runner"
Key: TypeAlias = tuple[int, int, str]


class KitExperimentConfig(msgspec.Struct, frozen=True):
    """One experiment of the kit: a runner, and how it is started."""

    name: Name
    runner_path: Text | None = None
    quiet_runner: Text | None = None
    mode: Literal["timing", "xnntrace"] = "timing"
    runs: Runs = _RUNS
    warmup: Warmup = _WARMUP
    threads: ThreadCounts = 1
    extra_args: list[str] = []
    cpu_affinity: str | int | None = None


class KitConfig(msgspec.Struct, frozen=True):
    """The kit's configuration; ``rounds`` and ``seed`` are ours, and the kit takes no notice of them."""

    model: Text
    experiments: Annotated[list[KitExperimentConfig], msgspec.Meta(min_length=1)]
    output_root: str | None = None
    analysis: AnalysisPlan = AnalysisPlan()
    rounds: Rounds = USUAL.rounds
    seed: Seed = USUAL.seed


class _NumberedExperiment(NamedTuple):
    """An experiment of the kit at each of its thread counts, with its position in the file."""

    number: int
    config: KitExperimentConfig
    variants: list[PlannedVariant]

    @property
    def key(self) -> Key:
        """Key of the experiments that are measured in common rounds."""
        return self.config.runs, self.config.warmup, self.config.mode


def is_kit_config(raw: object) -> bool:
    """Return whether a decoded file is a configuration of the kit: it lists experiments."""
    return isinstance(raw, dict) and "experiments" in raw


def read_kit_config(raw: Any, file: Path) -> Experiments:  # noqa: ANN401 - what JSON gave; typed here
    """Return the experiments of a configuration of the kit."""
    config = convert_config(raw, KitConfig, file, {"mode": _MODES}, strict=False)
    # The kit's paths are relative to where it would have been started.
    base_candidates = [Path(), file.parent, *file.resolve().parent.parents]
    base = next((candidate for candidate in base_candidates if (candidate / config.model).is_file()), Path())
    numbered = [
        _number_experiment(number, experiment_config, base, file)
        for number, experiment_config in enumerate(config.experiments)
    ]
    _check_names(numbered, file)
    requested, notes = _requested_pairs(config, numbered)
    pairs = [_resolve_pair(number, pair, numbered, file) for number, pair in enumerate(requested)]
    # Experiments that can share rounds have one name, which is plain where there is one group of their mode.
    stem = Path(config.model).stem
    keys = list(dict.fromkeys(experiment.key for experiment in numbered))
    names = {}
    for runs, warmup, mode in keys:
        kind = "runner" if mode == "timing" else mode
        is_only_of_mode = sum(key[2] == mode for key in keys) == 1
        names[runs, warmup, mode] = f"{stem}-{kind}" if is_only_of_mode else f"{stem}-{kind}-{runs}-after-{warmup}"
    comparisons = tuple(
        PlannedComparison((names[b_experiment.key], b.name), (names[c_experiment.key], c.name), label)
        for (b_experiment, b), (c_experiment, c), label in pairs
    )
    roles = _roles_from_comparisons(comparisons)
    experiments = tuple(_common_experiment(config, base, key, name, numbered, roles) for key, name in names.items())
    return Experiments(
        file, _output_directory(config, base), experiments, comparisons, (*_ignored_notes(raw, numbered), *notes)
    )


def _requested_pairs(config: KitConfig, numbered: list[_NumberedExperiment]) -> tuple[list[PairFields], list[str]]:
    """Return the comparisons that a configuration asks for, else those that its names propose, with a note on these."""
    if config.analysis.compare_pairs:
        return config.analysis.compare_pairs, []
    keys = [
        ExperimentKey(experiment.config.name, threads=variant.threads)
        for experiment in numbered
        if experiment.config.mode == "timing"
        for variant in experiment.variants
    ]
    proposed = propose_pairs(keys)
    notes = [f"{roles_note(proposed)}; {ROLES_HINT}"] if proposed else []
    return [PairFields(baseline, candidate) for baseline, candidate in proposed], notes


def _output_directory(config: KitConfig, base: Path) -> Path:
    """Return the directory that the kit would have written to: ``output_root``, else ``results``."""
    if config.output_root:
        return base / config.output_root
    directory = (base / config.model).parent
    if directory.name == "artifacts":
        return directory.parent / "results"
    outer = next((parent for parent in directory.parents if parent.name.startswith("out_")), directory)
    return outer / "results"


def _number_experiment(number: int, config: KitExperimentConfig, base: Path, file: Path) -> _NumberedExperiment:
    """Return an experiment with a variant for each thread count; raise an error where it names no runner."""
    path = f"experiments[{number}]"
    runner = config.runner_path or config.quiet_runner
    if not runner:
        raise field_error(
            file, f"{path}.runner_path", "this key is missing", "name the executor_runner of the experiment"
        )
    arguments, verbose = _split_arguments(config.extra_args)
    if config.mode == "xnntrace" and verbose:
        runner = verbose
    counts = thread_counts(config.threads)
    variants = [
        PlannedVariant(
            name=f"{config.name}_t{threads}" if len(counts) > 1 else config.name,
            group=config.name,
            ablated=[],
            cleared=[],
            threads=threads,
            affinity=_mask_cpus(config.cpu_affinity, f"{path}.cpu_affinity", file),
            runner=_find_runner(base, runner),
            arguments=tuple(arguments),
        )
        for threads in counts
    ]
    return _NumberedExperiment(number, config, variants)


def _find_runner(base: Path, runner: str) -> Path:
    """Return the path of a runner, in the kit's directory or in the checkout of ExecuTorch in it."""
    inner = base / "executorch" / runner
    return inner if inner.is_file() else base / runner


def _split_arguments(words: list[str]) -> tuple[list[str], str | None]:
    """Return the runner's part of ``extra_args``, and the runner that ``--verbose-runner`` names."""
    of_runner, verbose, rest = [], None, list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in _PERF_RUNNER:
            of_runner.append(word)
            continue
        if name not in _WITHOUT_VALUE and not equals and rest:
            value = rest.pop(0)
        verbose = value if name == _VERBOSE and value else verbose
    return of_runner, verbose


def _mask_cpus(mask: str | int | None, path: str, file: Path) -> list[int]:
    """Return the CPUs of a mask as ``taskset`` reads it: hexadecimal with or without 0x, the lowest bit is CPU 0."""
    if mask is None or mask == "":
        return []
    match = _MASK.match(str(mask).strip())
    bits = int(match[1], 16) if match else 0
    if not bits:
        problem = f"{value_text(mask)} is not a mask of CPUs"
        raise field_error(file, path, problem, 'use a hexadecimal number as for taskset, for example "0x80" for CPU 7')
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def _check_names(numbered: list[_NumberedExperiment], file: Path) -> None:
    """Raise an error if two variants have one name."""
    seen: set[str] = set()
    for experiment in numbered:
        for variant in experiment.variants:
            if variant.name in seen:
                raise field_error(
                    file, f"experiments[{experiment.number}].name", f"two experiments named {value_text(variant.name)}"
                )
            seen.add(variant.name)


def _resolve_pair(
    number: int, pair: PairFields, numbered: list[_NumberedExperiment], file: Path
) -> tuple[tuple[_NumberedExperiment, PlannedVariant], tuple[_NumberedExperiment, PlannedVariant], str]:
    """Return the baseline and the candidate of a requested comparison, and its label."""
    path = f"analysis.compare_pairs[{number}]"
    baseline, candidate = (
        _find_side(key, f"{path}.{name}", numbered, file)
        for name, key in zip(("baseline", "candidate"), pair.sides, strict=True)
    )
    return baseline, candidate, pair.label or ""


def _find_side(
    side: ExperimentKey, path: str, numbered: list[_NumberedExperiment], file: Path
) -> tuple[_NumberedExperiment, PlannedVariant]:
    """Return the experiment and the variant that a side of a comparison names; raise an error where there is none."""
    timing = {experiment.config.name: experiment for experiment in numbered if experiment.config.mode == "timing"}
    experiment = timing.get(side.experiment)
    if experiment is None:
        hint = did_you_mean(side.experiment, timing)
        raise field_error(file, f"{path}.experiment", f"no timing experiment {value_text(side.experiment)}", hint)
    variants = [variant for variant in experiment.variants if side.threads in (variant.threads, None)]
    if len(variants) != 1:
        counts = ", ".join(str(variant.threads) for variant in experiment.variants)
        raise field_error(
            file, f"{path}.threads", f"{value_text(side.threads)} is not allowed; {side.experiment} runs with {counts}"
        )
    return experiment, variants[0]


def _roles_from_comparisons(comparisons: tuple[PlannedComparison, ...]) -> dict[str, Role]:
    """Return the roles by the comparisons alone: a name such as ``sme2_off`` tells nothing."""
    candidates = {pair.candidate[1] for pair in comparisons}
    baselines = {pair.baseline[1] for pair in comparisons}
    roles = dict.fromkeys(baselines - candidates, Role.BASELINE)
    return roles | dict.fromkeys(baselines & candidates, Role.INTERMEDIATE)


def _common_experiment(
    config: KitConfig, base: Path, key: Key, name: str, numbered: list[_NumberedExperiment], roles: dict[str, Role]
) -> Experiment:
    """Return the experiment of ours that measures those of the kit with one key in common rounds."""
    runs, warmup, mode = key
    variants = [variant for experiment in numbered if experiment.key == key for variant in experiment.variants]
    return Experiment(
        name=name,
        model=str(base / config.model),
        target="runner",
        rounds=config.rounds,
        runs=runs,
        warmup=warmup,
        seed=config.seed,
        variants=tuple(
            msgspec.structs.replace(variant, role=roles.get(variant.name, Role.CANDIDATE)) for variant in variants
        ),
        evidence=mode == "xnntrace",
    )


def _ignored_notes(raw: Any, numbered: list[_NumberedExperiment]) -> list[str]:  # noqa: ANN401 - keys that the types leave out
    """Return notes on the keys that neither the kit nor we know, and on arguments that have no meaning here."""
    notes = _unknown_key_notes("", raw, KitConfig)
    for experiment, item in zip(numbered, raw["experiments"], strict=True):
        notes += _unknown_key_notes(f"experiments[{experiment.number}].", item, KitExperimentConfig)
        dropped = len(experiment.config.extra_args) - len(experiment.variants[0].arguments)
        if dropped:
            notes.append(
                f"experiments[{experiment.number}].extra_args: options of the kit's perf_runner.py are ignored"
            )
    return notes


def _unknown_key_notes(path: str, item: dict[str, object], kind: type[msgspec.Struct]) -> list[str]:
    """Return a note on each key of a file's object that has no effect."""
    known = kind.__struct_fields__
    return [
        f"{path}{name[:60]} has no effect; {did_you_mean(name, known)}"
        for name in item
        if name not in known and re.match(PLAIN_NAME, name) and not name.startswith("_")
    ]
