"""Whether what is asked for now is what a bundle that is to be finished was begun with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.bundle.manifest import Mechanism, Role
from opscope.bundle.settings import COMPARED, NOTHING_OFF
from opscope.core.errors import UsageError
from opscope.core.files import sha256_of
from opscope.core.printable import shell_command
from opscope.experiment.guesses import ALL_GUESSES
from opscope.experiment.target_names import parse_target
from opscope.hosts.target_kinds import AUTO
from opscope.readers.outputs import read_arrays
from opscope.workflows.measure.program_inputs import BUNDLED, called_methods, wished_inputs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Manifest
    from opscope.experiment.inputs import AskedInput
    from opscope.experiment.planned import Experiment

_HASH = 12
_ALL_CPUS = "all CPUs"


class Contradiction(NamedTuple):
    """A setting of the bundle and another one that is asked for now, both as a user writes them."""

    recorded: str
    asked: str


def check_agreement(bundle: Bundle, experiment: Experiment, named: Collection[str]) -> None:
    """Refuse options that ask for another experiment than the one that a bundle is of.

    Options on adding rounds, resting and measuring ceilings again may differ.

    Raises:
        UsageError: an option of ``named`` contradicts the bundle.
    """
    for option, contradiction in _list_contradictions(bundle, experiment, named):
        if contradiction is not None and option in named:
            hint = "leave the option out (the bundle has it), or begin a new one with another --out"
            problem = (
                f"the bundle in {bundle.path} was begun with {contradiction.recorded}, not with {contradiction.asked}"
            )
            raise UsageError(problem, where=option, hint=hint)


def _list_contradictions(
    bundle: Bundle, experiment: Experiment, named: Collection[str]
) -> Iterator[tuple[str, Contradiction | None]]:
    manifest = bundle.manifest
    plan, request = manifest.plan, manifest.request
    call_count = len(plan.calls) or 1
    rounds = [plan.rounds, request.rounds] if request else [plan.rounds]
    counts = _numbers_text({variant.threads or 0 for variant in manifest.variants})
    yield "--target", target_contradiction(manifest, experiment.target)
    yield "--threads", _compare_settings([counts], _numbers_text(experiment.thread_counts))
    affinities = [_numbers_text(variant.affinity) or _ALL_CPUS for variant in manifest.variants]
    yield "--affinity", _compare_settings(affinities, _numbers_text(experiment.cpus) or _ALL_CPUS)
    for name, compared in COMPARED.items():
        yield compared.named(name), setting_contradiction(manifest, experiment, name)
    yield from _list_switch_contradictions(manifest, experiment)
    yield (
        "--rounds",
        None if experiment.rounds in rounds else _compare_settings([str(rounds[-1])], str(experiment.rounds)),
    )
    yield "--runs", _compare_settings([str((plan.runs or 0) // call_count)], str(experiment.runs))
    yield "--warmup", _compare_settings([str((plan.warmup or 0) // call_count)], str(experiment.warmup))
    yield "--seed", _compare_settings([str(plan.seed)], str(experiment.seed))
    yield "--timeout", _compare_settings([f"{plan.timeout_seconds:g}"], f"{experiment.timeout:g}")
    tracing = "untraced runs too" if plan.timed_order else "traced runs only"
    yield "--traced-only", _compare_settings([tracing], "traced runs only")
    yield "--dtype", dtype_contradiction(manifest, experiment)
    if request is not None:
        yield "--models", _compare_settings([request.models or "the default directory"], str(experiment.models))
    if "--methods" in named:
        program = bundle.path / manifest.model.program
        yield "--methods", calls_contradiction(manifest, called_methods(experiment, program))
    for option in {"--input", "--inputs", "--dim", "--guess-inputs"} & set(named):
        yield option, input_contradiction(bundle, experiment)
    if "--data" in named:
        yield "--data", data_contradiction(manifest, experiment)


def _list_switch_contradictions(
    manifest: Manifest, experiment: Experiment
) -> Iterator[tuple[str, Contradiction | None]]:
    """Yield the contradictions on what is switched off; a ladder of one step equals ``--ablate``."""
    request, baselines = manifest.request, manifest.with_role(Role.BASELINE)
    off = ",".join(baselines[0].ablated or []) if baselines else NOTHING_OFF
    steps = bool(manifest.with_role(Role.INTERMEDIATE))
    recorded = ["--ladder"] if steps else [off, ",".join(request.ablate)] if request else [off]
    yield "--ablate", _compare_settings(recorded, ",".join(experiment.ablate))
    if not steps and not (request and request.ladder):
        yield "--ladder", Contradiction(f"--ablate {off}", "--ladder")
    yield "--runtime", _compare_settings([manifest.variants[0].runtime or ""], experiment.runtime or "")
    yield "--delegate", _compare_settings([_recorded_delegate(manifest)], experiment.delegate or "")
    yield "--session-option", _compare_settings([_options_text(manifest)], _pairs_text(experiment.session_options))
    used = next((variant.switch.value for variant in manifest.variants if variant.switch), Mechanism.CPUINFO.value)
    yield "--switch", _compare_settings([used, *([request.switch] if request else [])], experiment.switch)


def check_options_stated(manifest: Manifest, experiment: Experiment) -> None:
    """Raise UsageError if a runtime option of the bundle names a path that the user does not name, too.

    The runtime would open or write that path, and the bundle may come from somebody else.
    """
    for variant in manifest.variants:
        for name, value in (variant.options or {}).items():
            if any(separator in value for separator in "/\\") and experiment.session_options.get(name) != value:
                problem = f"the bundle was begun with {name}={value}, which names a path that the runtime would use"
                hint = f"if you trust it, name it again: {shell_command(['--session-option', f'{name}={value}'])}"
                raise UsageError(problem, where="--session-option", hint=hint)


def _options_text(manifest: Manifest) -> str:
    """Return the session options that were asked for, which all variants of `opscope profile` share."""
    if manifest.request is not None:
        return _pairs_text(manifest.request.session_options)
    return _pairs_text(next((variant.options for variant in manifest.variants if variant.options), {}))


def _pairs_text(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(options.items()))


def _recorded_delegate(manifest: Manifest) -> str:
    """Return the choice of ``--delegate`` that made the variants of a LiteRT model; empty for other models."""
    used = {variant.delegate for variant in manifest.variants}
    return "both" if len(used) > 1 else next(iter(used)) or ""


def target_contradiction(manifest: Manifest, target: str) -> Contradiction | None:
    """Return the contradiction if a run was begun on another target; None if not."""
    recorded = [manifest.target.name, *([manifest.request.target] if manifest.request else [])]
    if target in recorded:
        return None
    target_name = parse_target(target, builds_named=True)
    # ``auto`` is where the run was begun; a kind alone names no particular device.
    is_same_target = target_name.kind is AUTO or (target_name.kind.name, target_name.address) == (
        manifest.target.kind,
        "",
    )
    return None if is_same_target else Contradiction(recorded[0], target)


def dtype_contradiction(manifest: Manifest, experiment: Experiment) -> Contradiction | None:
    """Return the contradiction if the model was exported in another number type; None for a program that was given."""
    return None if manifest.model.given else _compare_settings([manifest.model.dtype or "no type"], experiment.dtype)


def input_contradiction(bundle: Bundle, experiment: Experiment) -> Contradiction | None:
    """Return the contradiction if the program was run on other inputs; inputs that came with it do not count."""
    program, calls = bundle.path / bundle.manifest.model.program, bundle.manifest.plan.calls
    contradictions = [
        _compare_inputs(bundle, wished_inputs(experiment, program, calls, usual))
        for usual in (ALL_GUESSES if experiment.guess_inputs else ALL_GUESSES[:1])
    ]
    return None if None in contradictions else contradictions[0]


def _compare_inputs(bundle: Bundle, asked_inputs: Sequence[AskedInput | None]) -> Contradiction | None:
    plan = bundle.manifest.plan
    recorded = ["" if planned.source.startswith(BUNDLED) else planned.source for planned in plan.inputs]
    requested = [planned.source if planned else "" for planned in asked_inputs]
    length = max(len(recorded), len(requested))
    recorded, requested = ([*sources, *[""] * (length - len(sources))] for sources in (recorded, requested))
    if recorded != requested:
        return Contradiction(_sources_text(recorded), _sources_text(requested))
    number = _find_changed_input(bundle, asked_inputs)
    return None if number is None else Contradiction(f"{requested[number]} as it was", f"{requested[number]} as it is")


def _find_changed_input(bundle: Bundle, asked_inputs: Sequence[AskedInput | None]) -> int | None:
    """Return the number of the first input whose array has other values than in the bundle; None if none has."""
    values = bundle.manifest.plan.values
    arrays = {
        number: wish.wish for number, wish in enumerate(asked_inputs) if wish and isinstance(wish.wish, np.ndarray)
    }
    if values is None or not arrays:
        return None
    recorded = read_arrays(bundle.path / values)
    is_same_by_number = {
        n: np.array_equal(recorded[f"arr_{n}"], array, equal_nan=array.dtype.kind == "f") for n, array in arrays.items()
    }
    return next((number for number, is_same in is_same_by_number.items() if not is_same), None)


def calls_contradiction(manifest: Manifest, calls: Sequence[str]) -> Contradiction | None:
    """Return the contradiction if a process called other methods than it is to call now."""
    return _compare_settings([_calls_text(manifest.plan.calls)], _calls_text(calls))


def _calls_text(calls: Sequence[str]) -> str:
    return ", ".join(calls) or "the only method"


def setting_contradiction(manifest: Manifest, experiment: Experiment, name: str) -> Contradiction | None:
    """Return the contradiction if a bundle was measured with another value of a setting."""
    return _compare_settings([str(getattr(manifest.settings, name))], str(getattr(experiment, name)))


def data_contradiction(manifest: Manifest, experiment: Experiment) -> Contradiction | None:
    """Return the contradiction if the weights that are named are not those of the bundle."""
    if experiment.data is None:
        return None
    recorded, model = manifest.model.data_sha256 or "", manifest.model
    requested = sha256_of(Path(experiment.data))
    if requested == recorded:
        return None
    recorded_text = f"{model.data} (sha256 {recorded[:_HASH]})" if model.data else "no separate weights"
    return Contradiction(recorded_text, f"{experiment.data} (sha256 {requested[:_HASH]})")


def _compare_settings(recorded: Sequence[str], asked: str) -> Contradiction | None:
    """Return a contradiction if nothing that is recorded is what is asked for."""
    return None if asked in recorded else Contradiction(recorded[0], asked)


def _numbers_text(values: Collection[int]) -> str:
    return ",".join(map(str, sorted(set(values))))


def _sources_text(sources: Sequence[str]) -> str:
    """Return inputs in words."""
    return ", ".join(source or "default" for source in sources) if any(sources) else "random inputs"
