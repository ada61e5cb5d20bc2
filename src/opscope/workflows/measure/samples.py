"""Labelled inputs: each variant runs every one once, after all that is timed, and its outputs are kept."""

from __future__ import annotations

import hashlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from opscope.bundle.bundle import SAMPLES, VARIANTS
from opscope.bundle.manifest import FailureKind, SampleRun
from opscope.core.errors import RunError, StorageError
from opscope.core.units import counted_text
from opscope.experiment.engine import planned_job
from opscope.experiment.inputs import LABELS, by_position, labelled_inputs, placed, stacked
from opscope.experiment.protocol import OUTPUTS
from opscope.program.structure.dtypes import axes_between
from opscope.readers.outputs import read_arrays
from opscope.workflows.measure.program_inputs import input_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Plan, Variant
    from opscope.experiment.inputs import LabelledInputs
    from opscope.experiment.planned import Experiment
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import RunTarget
    from opscope.experiment.tensors import Array

INPUTS = "inputs.npz"


def run_samples(bundle: Bundle, experiment: Experiment, target: RunTarget, notify: Callable[[str], None]) -> None:
    """Run all labelled inputs once with every variant that has results and lacks their outputs.

    That a variant cannot is no failure of the run: the reason stands in the manifest.
    """
    path, values = Path(experiment.inputs) if experiment.inputs else None, bundle.manifest.plan.values
    samples = labelled_inputs(path, read_arrays(path)) if path is not None else None
    if path is None or samples is None or values is None:
        return
    timed = read_arrays(bundle.path / values)
    names = input_names(bundle.path / bundle.manifest.model.program, bundle.manifest.plan.calls)
    own = SampleRun(str(path), len(samples.labels), _inputs_sha256(path, samples, timed, names))
    earlier = bundle.manifest.samples
    if earlier is not None and earlier.inputs_sha256 == own.inputs_sha256:
        own = msgspec.structs.replace(earlier, failures={})
    wanted = [variant for variant in bundle.manifest.variants if _lacks(bundle, variant, own)]
    if not wanted:
        return
    count = counted_text(own.count, "labelled input")
    notify(f"running {count} with {counted_text(len(wanted), 'variant')}, untimed")
    bundle.state_samples(own)
    for variant in wanted:
        _run(bundle, variant, samples, target.of(variant.name), _values(path, samples, timed, names))


def _lacks(bundle: Bundle, variant: Variant, samples: SampleRun) -> bool:
    there = (bundle.path / VARIANTS / variant.name / SAMPLES).exists()
    return bool(bundle.manifest.completed(variant.name)) and not (there and variant.name in samples.outputs_sha256)


def _values(
    path: Path, samples: LabelledInputs, timed: dict[str, Array], names: Sequence[str]
) -> Iterator[dict[str, Array]]:
    """The tensors of every input; what the file does not give is as in the timed runs; names are the program's."""
    for number in range(len(samples.labels)):
        asked = placed(by_position(path, samples.sample(number)), names)
        given = {f"arr_{place}": one.wish for place, one in enumerate(asked) if one is not None}
        yield timed | {name: wish for name, wish in given.items() if isinstance(wish, np.ndarray)}


def _inputs_sha256(path: Path, samples: LabelledInputs, timed: dict[str, Array], names: Sequence[str]) -> str:
    """Hash of what the program is given: types, sizes and values of all tensors of every input."""
    digest = hashlib.sha256()
    for values in _values(path, samples, timed, names):
        for name, array in sorted(values.items()):
            digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _run(
    bundle: Bundle, variant: Variant, samples: LabelledInputs, target: RunTarget, values: Iterator[dict[str, Array]]
) -> None:
    """Run every input with one variant, and keep the outputs, or why there are none."""
    job = planned_job(bundle.manifest, bundle.path, variant, traced=False)
    job = msgspec.structs.replace(job, inferences=len(job.calls) or 1, warmup=0)
    stated = bundle.manifest.samples
    assert stated is not None  # noqa: S101 - stated before the first variant
    try:
        laid_out = _laid_out(bundle.manifest.plan, variant, values)
        outputs = stacked([_outputs(job, target, number, own) for number, own in enumerate(laid_out)])
    except RunError as error:
        failures = stated.failures | {variant.name: error.problem}
        bundle.state_samples(msgspec.structs.replace(stated, failures=failures))
    except ValueError:
        failures = stated.failures | {variant.name: "its output sizes depend on the input"}
        bundle.state_samples(msgspec.structs.replace(stated, failures=failures))
    else:
        buffer = io.BytesIO()
        named: dict[str, Any] = {f"output_{number}": array for number, array in enumerate(outputs)}
        named[LABELS] = samples.labels
        np.savez_compressed(buffer, **named)
        bundle.save_samples(variant.name, buffer.getvalue(), stated)


def _laid_out(plan: Plan, variant: Variant, values: Iterator[dict[str, Array]]) -> Iterator[dict[str, Array]]:
    """The tensors in the order of axes that the program of a variant declares."""
    own = plan.inputs_of.get(variant.name)
    if own is not None and own.unlike:
        raise RunError(own.unlike)
    orders: dict[str, tuple[int, ...]] = {}
    for number, (one, other) in enumerate(zip(plan.inputs, own.inputs if own else (), strict=False)):
        axes = axes_between(one.shape or (), other.shape or ())
        if axes:
            orders[f"arr_{number}"] = axes
    for tensors in values:
        yield {name: np.transpose(array, orders.get(name, range(array.ndim))) for name, array in tensors.items()}


def _outputs(job: Job, target: RunTarget, number: int, values: dict[str, Array]) -> list[Any]:
    """What a process computes of one input."""
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
        place = Path(directory)
        named: dict[str, Any] = dict(values)
        np.savez(place / INPUTS, **named)
        work = place / "run"
        work.mkdir()
        outcome = target.execute(msgspec.structs.replace(job, values=str(place / INPUTS)), work)
        if outcome.failure is not None:
            kind = StorageError if outcome.failure.kind is FailureKind.STORAGE else RunError
            raise kind(f"input {number}: {outcome.failure.message}")
        return list(read_arrays(work / OUTPUTS).values())
