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
    """What the bundle has, and what is asked for instead; both as a person writes them."""

    recorded: str
    asked: str


def check_agreement(bundle: Bundle, experiment: Experiment, named: Collection[str]) -> None:
    """Refuse options that ask for another experiment than the one that a bundle is of.

    When to add rounds, when to rest and whether ceilings are measured anew may be said anew.
    """
    for option, contradiction in _contradictions(bundle, experiment, named):
        if contradiction is not None and option in named:
            hint = "leave the option out (the bundle has it), or begin a new one with another --out"
            problem = (
                f"the bundle in {bundle.path} was begun with {contradiction.recorded}, not with {contradiction.asked}"
            )
            raise UsageError(problem, where=option, hint=hint)


def _contradictions(
    bundle: Bundle, experiment: Experiment, named: Collection[str]
) -> Iterator[tuple[str, Contradiction | None]]:
    manifest = bundle.manifest
    plan, request = manifest.plan, manifest.request
    each = len(plan.calls) or 1
    rounds = [plan.rounds, request.rounds] if request else [plan.rounds]
    counts = _numbers({variant.threads or 0 for variant in manifest.variants})
    yield "--target", target_contradiction(manifest, experiment.target)
    yield "--threads", _unlike([counts], _numbers(experiment.thread_counts))
    pinned = [_numbers(variant.affinity) or _ALL_CPUS for variant in manifest.variants]
    yield "--affinity", _unlike(pinned, _numbers(experiment.cpus) or _ALL_CPUS)
    for name, one in COMPARED.items():
        yield one.named(name), setting_contradiction(manifest, experiment, name)
    yield from _switching(manifest, experiment)
    yield "--rounds", None if experiment.rounds in rounds else _unlike([str(rounds[-1])], str(experiment.rounds))
    yield "--runs", _unlike([str((plan.runs or 0) // each)], str(experiment.runs))
    yield "--warmup", _unlike([str((plan.warmup or 0) // each)], str(experiment.warmup))
    yield "--seed", _unlike([str(plan.seed)], str(experiment.seed))
    yield "--timeout", _unlike([f"{plan.timeout_seconds:g}"], f"{experiment.timeout:g}")
    timed = "untraced runs too" if plan.timed_order else "traced runs only"
    yield "--traced-only", _unlike([timed], "traced runs only")
    yield "--dtype", dtype_contradiction(manifest, experiment)
    if request is not None:
        yield "--models", _unlike([request.models or "the default directory"], str(experiment.models))
    if "--methods" in named:
        program = bundle.path / manifest.model.program
        yield "--methods", calls_contradiction(manifest, called_methods(experiment, program))
    for option in {"--input", "--inputs", "--dim", "--guess-inputs"} & set(named):
        yield option, input_contradiction(bundle, experiment)
    if "--data" in named:
        yield "--data", data_contradiction(manifest, experiment)


def _switching(manifest: Manifest, experiment: Experiment) -> Iterator[tuple[str, Contradiction | None]]:
    """What is switched off; a ladder of one step is also what ``--ablate`` makes."""
    request, baselines = manifest.request, manifest.with_role(Role.BASELINE)
    off = ",".join(baselines[0].ablated or []) if baselines else NOTHING_OFF
    steps = bool(manifest.with_role(Role.INTERMEDIATE))
    recorded = ["--ladder"] if steps else [off, ",".join(request.ablate)] if request else [off]
    yield "--ablate", _unlike(recorded, ",".join(experiment.ablate))
    if not steps and not (request and request.ladder):
        yield "--ladder", Contradiction(f"--ablate {off}", "--ladder")
    yield "--runtime", _unlike([manifest.variants[0].runtime or ""], experiment.runtime or "")
    yield "--delegate", _unlike([_delegate(manifest)], experiment.delegate or "")
    yield "--session-option", _unlike([_options(manifest)], _pairs(experiment.session_options))
    used = next((variant.switch.value for variant in manifest.variants if variant.switch), Mechanism.CPUINFO.value)
    yield "--switch", _unlike([used, *([request.switch] if request else [])], experiment.switch)


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


def _options(manifest: Manifest) -> str:
    """Options of sessions that were asked for, which are those of all variants of `opscope profile`."""
    if manifest.request is not None:
        return _pairs(manifest.request.session_options)
    return _pairs(next((variant.options for variant in manifest.variants if variant.options), {}))


def _pairs(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(options.items()))


def _delegate(manifest: Manifest) -> str:
    """The choice of ``--delegate`` that made the variants of a LiteRT model; empty for other models."""
    used = {variant.delegate for variant in manifest.variants}
    return "both" if len(used) > 1 else next(iter(used)) or ""


def target_contradiction(manifest: Manifest, target: str) -> Contradiction | None:
    """Whether a run was begun elsewhere than where its name says now."""
    recorded = [manifest.target.name, *([manifest.request.target] if manifest.request else [])]
    if target in recorded:
        return None
    target_name = parse_target(target, builds_named=True)
    # ``auto`` is where the run was begun; a kind alone names no particular device.
    anywhere = target_name.kind is AUTO or (target_name.kind.name, target_name.address) == (manifest.target.kind, "")
    return None if anywhere else Contradiction(recorded[0], target)


def dtype_contradiction(manifest: Manifest, experiment: Experiment) -> Contradiction | None:
    """Whether the model was exported in another number type; that of a program that was given is not asked for."""
    return None if manifest.model.given else _unlike([manifest.model.dtype or "no type"], experiment.dtype)


def input_contradiction(bundle: Bundle, experiment: Experiment) -> Contradiction | None:
    """Whether the program was run on other inputs; those that came with it are not asked for."""
    program, calls = bundle.path / bundle.manifest.model.program, bundle.manifest.plan.calls
    contradictions = [
        _unlike_inputs(bundle, wished_inputs(experiment, program, calls, usual))
        for usual in (ALL_GUESSES if experiment.guess_inputs else ALL_GUESSES[:1])
    ]
    return None if None in contradictions else contradictions[0]


def _unlike_inputs(bundle: Bundle, asked_inputs: Sequence[AskedInput | None]) -> Contradiction | None:
    plan = bundle.manifest.plan
    recorded = ["" if one.source.startswith(BUNDLED) else one.source for one in plan.inputs]
    now = [one.source if one else "" for one in asked_inputs]
    length = max(len(recorded), len(now))
    recorded, now = ([*own, *[""] * (length - len(own))] for own in (recorded, now))
    if recorded != now:
        return Contradiction(_listed(recorded), _listed(now))
    number = _changed(bundle, asked_inputs)
    return None if number is None else Contradiction(f"{now[number]} as it was", f"{now[number]} as it is")


def _changed(bundle: Bundle, asked_inputs: Sequence[AskedInput | None]) -> int | None:
    """The first input whose array has other values than the bundle keeps; None where none has."""
    values = bundle.manifest.plan.values
    arrays = {number: one.wish for number, one in enumerate(asked_inputs) if one and isinstance(one.wish, np.ndarray)}
    if values is None or not arrays:
        return None
    kept = read_arrays(bundle.path / values)
    same = {
        n: np.array_equal(kept[f"arr_{n}"], array, equal_nan=array.dtype.kind == "f") for n, array in arrays.items()
    }
    return next((number for number, alike in same.items() if not alike), None)


def calls_contradiction(manifest: Manifest, calls: Sequence[str]) -> Contradiction | None:
    """Whether a process called other methods than are to be called now."""
    return _unlike([_called(manifest.plan.calls)], _called(calls))


def _called(calls: Sequence[str]) -> str:
    return ", ".join(calls) or "the only method"


def setting_contradiction(manifest: Manifest, experiment: Experiment, name: str) -> Contradiction | None:
    """Whether a bundle was measured with another value of a setting than it is to be now."""
    return _unlike([str(getattr(manifest.settings, name))], str(getattr(experiment, name)))


def data_contradiction(manifest: Manifest, experiment: Experiment) -> Contradiction | None:
    """Whether the weights that were named are those that the bundle keeps."""
    if experiment.data is None:
        return None
    recorded, model = manifest.model.data_sha256 or "", manifest.model
    now = sha256_of(Path(experiment.data))
    if now == recorded:
        return None
    kept = f"{model.data} (sha256 {recorded[:_HASH]})" if model.data else "no separate weights"
    return Contradiction(kept, f"{experiment.data} (sha256 {now[:_HASH]})")


def _unlike(recorded: Sequence[str], asked: str) -> Contradiction | None:
    """What contradicts, where nothing that is recorded is what is asked for."""
    return None if asked in recorded else Contradiction(recorded[0], asked)


def _numbers(values: Collection[int]) -> str:
    return ",".join(map(str, sorted(set(values))))


def _listed(sources: Sequence[str]) -> str:
    """Inputs in words."""
    return ", ".join(source or "default" for source in sources) if any(sources) else "random inputs"
