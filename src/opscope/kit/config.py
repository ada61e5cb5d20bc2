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


class _Placed(NamedTuple):
    """An experiment of the kit at each of its thread counts, and where it stands in the file."""

    number: int
    config: KitExperimentConfig
    variants: list[PlannedVariant]

    @property
    def key(self) -> Key:
        """Experiments that are alike in this are measured in common rounds."""
        return self.config.runs, self.config.warmup, self.config.mode


def is_kit_config(raw: object) -> bool:
    """Whether a decoded file is a configuration of the kit: it lists experiments."""
    return isinstance(raw, dict) and "experiments" in raw


def read_kit_config(raw: Any, file: Path) -> Experiments:  # noqa: ANN401 - what JSON gave; typed here
    """The experiments of a configuration of the kit."""
    config = convert_config(raw, KitConfig, file, {"mode": _MODES}, strict=False)
    # The kit's paths are relative to where it would have been started.
    places = [Path(), file.parent, *file.resolve().parent.parents]
    base = next((place for place in places if (place / config.model).is_file()), Path())
    placed = [_placed(number, one, base, file) for number, one in enumerate(config.experiments)]
    _check_names(placed, file)
    requested, notes = _asked_pairs(config, placed)
    pairs = [_pair(number, pair, placed, file) for number, pair in enumerate(requested)]
    # Experiments that can share rounds have one name, which is plain where there is one group of their mode.
    stem = Path(config.model).stem
    keys = list(dict.fromkeys(one.key for one in placed))
    names = {}
    for runs, warmup, mode in keys:
        kind = "runner" if mode == "timing" else mode
        alone = sum(key[2] == mode for key in keys) == 1
        names[runs, warmup, mode] = f"{stem}-{kind}" if alone else f"{stem}-{kind}-{runs}-after-{warmup}"
    comparisons = tuple(
        PlannedComparison((names[left.key], b.name), (names[right.key], c.name), label)
        for (left, b), (right, c), label in pairs
    )
    roles = _roles(comparisons)
    experiments = tuple(_experiment(config, base, key, name, placed, roles) for key, name in names.items())
    return Experiments(file, _out(config, base), experiments, comparisons, (*_notes(raw, placed), *notes))


def _asked_pairs(config: KitConfig, placed: list[_Placed]) -> tuple[list[PairFields], list[str]]:
    """Return the comparisons that a configuration asks for, else those that its names propose, with a note on these."""
    if config.analysis.compare_pairs:
        return config.analysis.compare_pairs, []
    keys = [
        ExperimentKey(experiment.config.name, threads=variant.threads)
        for experiment in placed
        if experiment.config.mode == "timing"
        for variant in experiment.variants
    ]
    proposed = propose_pairs(keys)
    notes = [f"{roles_note(proposed)}; {ROLES_HINT}"] if proposed else []
    return [PairFields(baseline, candidate) for baseline, candidate in proposed], notes


def _out(config: KitConfig, base: Path) -> Path:
    """Where the kit would have written: ``output_root``, else ``results`` beside the model's artifacts."""
    if config.output_root:
        return base / config.output_root
    directory = (base / config.model).parent
    if directory.name == "artifacts":
        return directory.parent / "results"
    outer = next((parent for parent in directory.parents if parent.name.startswith("out_")), directory)
    return outer / "results"


def _placed(number: int, config: KitExperimentConfig, base: Path, file: Path) -> _Placed:
    path = f"experiments[{number}]"
    runner = config.runner_path or config.quiet_runner
    if not runner:
        raise field_error(
            file, f"{path}.runner_path", "this key is missing", "name the executor_runner of the experiment"
        )
    arguments, verbose = _arguments(config.extra_args)
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
            affinity=_affinity(config.cpu_affinity, f"{path}.cpu_affinity", file),
            runner=_runner(base, runner),
            arguments=tuple(arguments),
        )
        for threads in counts
    ]
    return _Placed(number, config, variants)


def _runner(base: Path, runner: str) -> Path:
    """A runner, in the kit's directory or in the checkout of ExecuTorch in it."""
    inner = base / "executorch" / runner
    return inner if inner.is_file() else base / runner


def _arguments(words: list[str]) -> tuple[list[str], str | None]:
    """What of ``extra_args`` is the runner's, and the runner that ``--verbose-runner`` names."""
    kept, verbose, rest = [], None, list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in _PERF_RUNNER:
            kept.append(word)
            continue
        if name not in _WITHOUT_VALUE and not equals and rest:
            value = rest.pop(0)
        verbose = value if name == _VERBOSE and value else verbose
    return kept, verbose


def _affinity(mask: str | int | None, path: str, file: Path) -> list[int]:
    """CPUs of a mask as ``taskset`` reads it: hexadecimal with or without 0x, the lowest bit is CPU 0."""
    if mask is None or mask == "":
        return []
    match = _MASK.match(str(mask).strip())
    bits = int(match[1], 16) if match else 0
    if not bits:
        problem = f"{value_text(mask)} is not a mask of CPUs"
        raise field_error(file, path, problem, 'use a hexadecimal number as for taskset, for example "0x80" for CPU 7')
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def _check_names(placed: list[_Placed], file: Path) -> None:
    seen: set[str] = set()
    for one in placed:
        for variant in one.variants:
            if variant.name in seen:
                raise field_error(
                    file, f"experiments[{one.number}].name", f"two experiments named {value_text(variant.name)}"
                )
            seen.add(variant.name)


def _pair(
    number: int, pair: PairFields, placed: list[_Placed], file: Path
) -> tuple[tuple[_Placed, PlannedVariant], tuple[_Placed, PlannedVariant], str]:
    path = f"analysis.compare_pairs[{number}]"
    baseline, candidate = (
        _side(key, f"{path}.{name}", placed, file)
        for name, key in zip(("baseline", "candidate"), pair.sides, strict=True)
    )
    return baseline, candidate, pair.label or ""


def _side(side: ExperimentKey, path: str, placed: list[_Placed], file: Path) -> tuple[_Placed, PlannedVariant]:
    timing = {one.config.name: one for one in placed if one.config.mode == "timing"}
    one = timing.get(side.experiment)
    if one is None:
        hint = did_you_mean(side.experiment, timing)
        raise field_error(file, f"{path}.experiment", f"no timing experiment {value_text(side.experiment)}", hint)
    variants = [variant for variant in one.variants if side.threads in (variant.threads, None)]
    if len(variants) != 1:
        counts = ", ".join(str(variant.threads) for variant in one.variants)
        raise field_error(
            file, f"{path}.threads", f"{value_text(side.threads)} is not allowed; {side.experiment} runs with {counts}"
        )
    return one, variants[0]


def _roles(comparisons: tuple[PlannedComparison, ...]) -> dict[str, Role]:
    """Roles by the comparisons alone: a name such as ``sme2_off`` tells nothing."""
    candidates = {pair.candidate[1] for pair in comparisons}
    baselines = {pair.baseline[1] for pair in comparisons}
    roles = dict.fromkeys(baselines - candidates, Role.BASELINE)
    return roles | dict.fromkeys(baselines & candidates, Role.INTERMEDIATE)


def _experiment(
    config: KitConfig, base: Path, key: Key, name: str, placed: list[_Placed], roles: dict[str, Role]
) -> Experiment:
    runs, warmup, mode = key
    variants = [variant for one in placed if one.key == key for variant in one.variants]
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


def _notes(raw: Any, placed: list[_Placed]) -> list[str]:  # noqa: ANN401 - keys that the types leave out
    """Keys that neither the kit nor we know, and arguments that have no meaning here."""
    notes = _unknown("", raw, KitConfig)
    for one, item in zip(placed, raw["experiments"], strict=True):
        notes += _unknown(f"experiments[{one.number}].", item, KitExperimentConfig)
        dropped = len(one.config.extra_args) - len(one.variants[0].arguments)
        if dropped:
            notes.append(f"experiments[{one.number}].extra_args: options of the kit's perf_runner.py are ignored")
    return notes


def _unknown(path: str, item: dict[str, object], kind: type[msgspec.Struct]) -> list[str]:
    known = kind.__struct_fields__
    return [
        f"{path}{name[:60]} has no effect; {did_you_mean(name, known)}"
        for name in item
        if name not in known and re.match(PLAIN_NAME, name) and not name.startswith("_")
    ]
