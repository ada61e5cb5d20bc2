"""Outputs of two sides on the same inputs, as their bundles keep them: what differs, or why that is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opscope.analysis.compare.accuracy import Accuracy
    from opscope.bundle.bundle import Bundle
    from opscope.runtimes.side import Side

    Array: TypeAlias = NDArray[Any]


def saved_outputs(side: Side) -> list[Array] | None:
    """What the first process of a variant of a bundle computed; None when it was not saved."""
    from opscope.readers.outputs import read_outputs, values_sha256

    if side.bundle is None:
        return None
    first = side.bundle.manifest.completed(side.label)[0]
    file = side.bundle.outputs_file(first, "outputs.npz")
    arrays = read_outputs(side.bundle.path / file)
    if arrays is not None and first.measurement is not None:
        side.bundle.check_hash(file, values_sha256(arrays), first.measurement.output_sha256)
    return arrays


def accuracy_of(baseline: Side, candidate: Side) -> Accuracy | None:
    """How far the outputs of two sides differ on the same inputs, or why they were not compared.

    None where that is no question: for sides without a bundle, which name no program, and for variants of one program
    in one bundle without labelled inputs, whose outputs have to agree.
    """
    from opscope.analysis.compare.accuracy import not_compared

    if baseline.bundle is None or candidate.bundle is None:
        if baseline.bundle is candidate.bundle:
            return None
        which = "baseline" if baseline.bundle is None else "candidate"
        return not_compared(f"the {which} is not a bundle, so its outputs are unknown", _PROFILE)
    found = _of_samples(baseline, candidate, baseline.bundle, candidate.bundle)
    if found is not None or _one_program(baseline, candidate):
        return found
    return _of_timed(baseline, candidate)


_FINISH = "finish its run: repeat the command with --resume and --inputs"
_PROFILE = "profile both programs with `opscope profile`, with the same --seed or the same --inputs"
_SAME_INPUTS = "convert both programs from the same model for the same input sizes and types"
_SAME_SEED = "profile both programs with the same --seed, or the same --inputs"


def _one_program(baseline: Side, candidate: Side) -> bool:
    one, other = baseline.bundle, candidate.bundle
    if one is None or other is None or one.path.resolve() != other.path.resolve():
        return False
    return (
        baseline.model is not None and candidate.model is not None and baseline.model.sha256 == candidate.model.sha256
    )


def _of_samples(baseline: Side, candidate: Side, one: Bundle, other: Bundle) -> Accuracy | None:
    """Outputs of labelled inputs; None where not both sides ran some."""
    from opscope.analysis.compare.accuracy import compared_samples, not_compared

    left_run, right_run = one.manifest.samples, other.manifest.samples
    if left_run is None or right_run is None:
        return None
    if left_run.inputs_sha256 != right_run.inputs_sha256:
        told = [f"{counted_text(own.count, 'input')} of {own.source}" for own in (left_run, right_run)]
        reason = f"the labelled inputs differ: {told[0]} in the baseline, {told[1]} in the candidate"
        return not_compared(reason, "profile both programs with the same --inputs")
    found = [_samples(side) for side in (baseline, candidate)]
    for name, own in zip(("baseline", "candidate"), found, strict=True):
        if isinstance(own, str):
            return not_compared(f"the {name} has no outputs for the labelled inputs: {own}", _FINISH)
    (left, labels), (right, others) = (own for own in found if not isinstance(own, str))
    if labels.tolist() != others.tolist():
        return not_compared("the input labels differ", "profile both programs with the same --inputs")
    return compared_samples(left, right, labels)


def _samples(side: Side) -> tuple[list[Array], Array] | str:
    """The outputs of labelled inputs that a variant ran, and the labels; or why there are none."""
    from opscope.bundle.bundle import SAMPLES, VARIANTS
    from opscope.core.errors import NotFoundError, TraceFormatError
    from opscope.core.files import sha256_of
    from opscope.readers.outputs import read_arrays

    bundle, file = side.bundle, f"{VARIANTS}/{side.label}/{SAMPLES}"
    if bundle is None or bundle.manifest.samples is None:
        return "none ran"
    run = bundle.manifest.samples
    if side.label in run.failures:
        return run.failures[side.label]
    try:
        arrays = read_arrays(bundle.path / file)
    except NotFoundError:
        return "they did not run"
    bundle.check_hash(file, sha256_of(bundle.path / file), run.outputs_sha256.get(side.label))
    labels = arrays.pop("labels", None)
    if labels is None or any(array.shape[:1] != labels.shape for array in arrays.values()):
        raise TraceFormatError("the number of outputs differs from the number of labels", where=bundle.path / file)
    return list(arrays.values()), labels


def _of_timed(baseline: Side, candidate: Side) -> Accuracy:
    """Outputs of the one input that timed runs repeat."""
    from opscope.analysis.compare.accuracy import compared_outputs, not_compared

    inputs = _inputs(baseline), _inputs(candidate)
    for name, own in zip(("baseline", "candidate"), inputs, strict=True):
        if isinstance(own, str):
            return not_compared(f"the inputs of the {name} are unknown: {own}", _PROFILE)
    left, right = (own for own in inputs if isinstance(own, _Inputs))
    reason = _unlike(left, right)
    if reason is not None:
        return not_compared(reason, _SAME_INPUTS if left.unlike or right.unlike else _SAME_SEED)
    outputs = [saved_outputs(side) for side in (baseline, candidate)]
    if outputs[0] is None or outputs[1] is None:
        which = "baseline" if outputs[0] is None else "candidate"
        return not_compared(f"the bundle of the {which} has no outputs", "profile it again")
    return compared_outputs(outputs[0], aligned(outputs[1], outputs[0]), _moved(left, right) or _rounded(left, right))


def same_inputs(baseline: Side, candidate: Side) -> bool:
    """Whether nothing is known against it that two variants of one bundle were given the same values."""
    own = baseline.bundle.manifest.plan.inputs_of if baseline.bundle else {}
    return not any(side.label in own and own[side.label].unlike for side in (baseline, candidate))


class _Inputs(NamedTuple):
    """The inputs of a variant's calls."""

    calls: list[str]  # the methods that they are for; empty for the only one
    arrays: list[Array]  # values of all tensors
    types: list[str]  # their number types
    values: list[bool | int | float | None]  # numbers and truth values among the inputs
    unlike: str | None = None  # why they are not those of the other programs of the bundle; None where they are


def _inputs(side: Side) -> _Inputs | str:
    """What the program was given: values of the bundle, or those that the seed gives again; or why that is unknown."""
    from opscope.core.errors import RunError
    from opscope.core.files import sha256_of
    from opscope.experiment.tensors import random_inputs
    from opscope.readers.outputs import read_arrays

    bundle = side.bundle
    first = bundle.manifest.completed(side.label)[0].measurement if bundle else None
    if bundle is None or first is None:
        return "no process reported them"
    plan, own = bundle.manifest.plan.of(side.label), bundle.manifest.plan.inputs_of.get(side.label)
    unlike = own.unlike if own else None
    types, values = [tensor.dtype for tensor in first.inputs], [one.value for one in plan.inputs if one.shape is None]
    if bundle.manifest.environment.runs_build:
        return "the runner is not opscope's"
    if plan.values is not None:
        bundle.check_hash(plan.values, sha256_of(bundle.path / plan.values), plan.values_sha256)
        kept = read_arrays(bundle.path / plan.values)
        return _Inputs(plan.calls, list(kept.values()), types, values, unlike)
    if plan.seed is None:
        return "the bundle has no seed"
    try:
        return _Inputs(plan.calls, random_inputs(first.inputs, plan.seed), types, values, unlike)
    except RunError as error:
        return error.problem


def _unlike(left: _Inputs, right: _Inputs) -> str | None:
    """Why the inputs of both sides are not the same; None where they are, up to the rounding of floats."""
    if left.unlike or right.unlike:
        return f"the inputs differ: {right.unlike or left.unlike}"
    if left.calls != right.calls and max(len(left.calls), len(right.calls)) > 1:
        return "they call different methods"
    if left.values != right.values or len(left.arrays) != len(right.arrays):
        return "they do not take the same inputs"
    for number, (one, other) in enumerate(zip(left.arrays, aligned(right.arrays, left.arrays), strict=True)):
        if one.shape != other.shape:
            return (
                f"input {number} has the shape {list(one.shape)} in the baseline, {list(other.shape)} in the candidate"
            )
        if not _same_values(one, other):
            hashes = [_hash([array]) for array in (one, other)]
            return f"input {number} has other values in the candidate (SHA-256 {hashes[0]} and {hashes[1]})"
    return None


def _hash(arrays: Sequence[Array]) -> str:
    from opscope.readers.outputs import values_sha256

    return values_sha256(arrays)[:12]


def _same_values(one: Array, other: Array) -> bool:
    import numpy as np

    floats = all(np.issubdtype(side.dtype, np.floating) for side in (one, other))
    if not floats and one.dtype != other.dtype:
        return False
    # Of two widths the narrower holds the values of the wider one, rounded.
    narrow = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    return bool(np.array_equal(one.astype(narrow), other.astype(narrow), equal_nan=floats))


def _moved(left: _Inputs, right: _Inputs) -> str | None:
    """That the inputs of one side are those of the other in another order of dimensions; None where they are not."""
    shapes = [[array.shape for array in side.arrays] for side in (left, right)]
    return "the same inputs, with dimensions in another order" if shapes[0] != shapes[1] else None


def _rounded(left: _Inputs, right: _Inputs) -> str | None:
    """That the inputs of one side are those of the other, rounded; None where they are the same bits."""
    pairs = list(zip(left.types, right.types, strict=False))
    unlike = next((pair for pair in pairs if pair[0] != pair[1]), None)
    return f"the same inputs, as {unlike[0]} in the baseline and {unlike[1]} in the candidate" if unlike else None


def aligned(arrays: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """The arrays of one side in the order of axes of the other side; one that fits in no known order stays as it is."""
    if len(arrays) != len(other):
        return list(arrays)
    return [_aligned(array, like.shape) for array, like in zip(arrays, other, strict=True)]


def _aligned(array: Array, sizes: Sequence[int]) -> Array:
    from opscope.program.structure.dtypes import axes_between

    if _without_ones(array.shape) == _without_ones(sizes):
        return array.reshape(sizes)
    axes = axes_between(array.shape, sizes)
    return array if axes is None else array.transpose(axes)


def _without_ones(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]
