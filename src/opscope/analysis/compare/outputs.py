"""Agreement of the outputs of two variants: a fast wrong result is not a result.

For two programs: how far their outputs differ on the same inputs, and how often both predict the same class.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import binomial_interval
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    Classes: TypeAlias = NDArray[np.int64]
    Mask: TypeAlias = NDArray[np.bool_]


# Largest difference that rounding explains, relative to the largest value of the output. Kernels for half precision
# accumulate differently (4.9e-4 against 9.0e-3 from float64 was measured), single precision agrees to 1e-7 times the
# depth of the network; quantised models may differ by a step where a value lies on a rounding border.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 6e-2, "int8": 2e-2}
DEFAULT_TOLERANCE = 2e-2


class OutputAgreement(msgspec.Struct, frozen=True):
    """Comparison of the outputs of two variants on the same inputs.

    Attributes:
        agree: shapes are equal, all values finite, and the error within the tolerance.
        max_abs_error: largest absolute difference, null when shapes differ or values are not finite.
        max_rel_error: largest absolute difference over the largest magnitude of the baseline's output.
        tolerance: limit for ``max_rel_error``.
        problem: why they do not agree, null when they do.
        inputs_at_fault: whether both sides hold the same NaN and infinite values in the same places, so that the inputs
            or the model explain them, and no variant does.
    """

    agree: bool
    max_abs_error: float | None
    max_rel_error: float | None
    tolerance: float
    problem: str | None
    inputs_at_fault: bool = False


def compare_outputs(
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    dtype: str | None,
    limit: float | None = None,
    guesses: Sequence[str] = (),
) -> OutputAgreement:
    """Compare all outputs of one inference.

    ``dtype`` gives the tolerance, unless ``limit`` does; ``guesses`` are inputs that nobody gave, which a problem with
    values that are not finite names first.
    """
    tolerance = TOLERANCES.get(dtype or "", DEFAULT_TOLERANCE) if limit is None else limit
    shapes = [[array.shape for array in side] for side in (baseline, candidate)]
    if shapes[0] != shapes[1]:
        return _report_disagreement(tolerance, f"shapes differ: {shapes[0]} and {shapes[1]}")
    nonfinite = [_count_nonfinite(side) for side in (baseline, candidate)]
    if any(nonfinite) and _hold_same_nonfinite(baseline, candidate):
        cause = f"the inputs were guessed as {', '.join(guesses)}, and with them " if guesses else ""
        text = f"{cause}both outputs have {counted_text(nonfinite[0], 'non-finite value', ',')} in the same places"
        return msgspec.structs.replace(_report_disagreement(tolerance, text), inputs_at_fault=True)
    if any(nonfinite):
        side, count = ("baseline", nonfinite[0]) if nonfinite[0] else ("candidate", nonfinite[1])
        return _report_disagreement(
            tolerance, f"the {side}'s output has {counted_text(count, 'non-finite value', ',')}"
        )
    pairs = [_output_errors(before, after) for before, after in zip(baseline, candidate, strict=True) if before.size]
    absolute = max((error for error, _ in pairs), default=0.0)
    relative = max((error for _, error in pairs), default=0.0)
    agree = relative <= tolerance
    problem = None if agree else f"relative error {relative:.2g} is above the tolerance {tolerance:.2g}"
    return OutputAgreement(agree, absolute, relative, tolerance, problem)


def _report_disagreement(tolerance: float, problem: str) -> OutputAgreement:
    """Return the result for outputs whose error has no size."""
    return OutputAgreement(agree=False, max_abs_error=None, max_rel_error=None, tolerance=tolerance, problem=problem)


def _count_nonfinite(arrays: Sequence[Array]) -> int:
    return sum(int((~np.isfinite(array.astype(np.float64))).sum()) for array in arrays)


def _hold_same_nonfinite(baseline: Sequence[Array], candidate: Sequence[Array]) -> bool:
    """Return whether outputs of equal shapes hold the same values that are not finite in the same places."""

    def without_finite(array: Array) -> Array:
        values = array.astype(np.float64)
        return np.where(np.isfinite(values), 0.0, values)

    return all(
        np.array_equal(without_finite(first), without_finite(second), equal_nan=True)
        for first, second in zip(baseline, candidate, strict=True)
    )


def _output_errors(baseline: Array, candidate: Array) -> tuple[float, float]:
    reference = baseline.astype(np.float64)
    absolute = float(np.abs(reference - candidate.astype(np.float64)).max())
    scale = float(np.abs(reference).max())
    return absolute, absolute / scale if scale else absolute


def are_identical(outputs: OutputAgreement | None) -> bool | None:
    """Return whether two variants computed exactly the same numbers; None if that was not compared."""
    return None if outputs is None else outputs.agree and outputs.max_abs_error == 0.0


UNLABELLED = -1
"""Label of an input whose class is unknown."""
_NO_CLASS = -2


class OutputDifference(msgspec.Struct, frozen=True):
    """Difference of one output between two programs, over all inputs that both ran on.

    The four figures are of the values that are finite on both sides; each is null where it is not defined.

    Attributes:
        output: number of the output, from 0.
        values: number of values of a side, all inputs together.
        max_abs: largest absolute difference.
        max_rel: ``max_abs`` relative to the largest magnitude of the baseline; null where the baseline is all zero and
            the candidate is not.
        rms_rel: root mean square of the difference relative to that of the baseline; null where the latter is 0.
        cosine: cosine similarity; null where one side is all zero.
        baseline_nonfinite: number of NaN and infinite values of the baseline.
        candidate_nonfinite: number of those of the candidate.
        unlike_nonfinite: number of values that are NaN or infinite on one side, and not the same on the other.
        problem: why it was not compared, null when it was.
    """

    output: int
    values: int
    max_abs: float | None = None
    max_rel: float | None = None
    rms_rel: float | None = None
    cosine: float | None = None
    baseline_nonfinite: int = 0
    candidate_nonfinite: int = 0
    unlike_nonfinite: int = 0
    problem: str | None = None

    @property
    def equal(self) -> bool:
        """Return whether all values are the same, NaN and infinities included."""
        return self.problem is None and not self.unlike_nonfinite and not self.max_abs


class Proportion(msgspec.Struct, frozen=True):
    """Count out of ``n`` with the exact 95 % interval of the proportion that it estimates (Clopper-Pearson)."""

    count: int
    n: int
    ci95: tuple[float, float]


class Top1(msgspec.Struct, frozen=True):
    """Predicted classes: position of the largest value of the first output; the first of equal ones.

    Attributes:
        classes: number of classes; null where the output is the class itself.
        agreement: inputs for which both sides predict the same class. A side with NaN predicts none.
        baseline: labelled inputs for which the baseline predicts the label; null without labels.
        candidate: labelled inputs for which the candidate predicts the label; null without labels.
    """

    classes: int | None
    agreement: Proportion
    baseline: Proportion | None = None
    candidate: Proportion | None = None


class Accuracy(msgspec.Struct, frozen=True):
    """Difference of the outputs of two sides on the same inputs.

    Attributes:
        inputs: number of inputs that both ran on; 0 when the outputs were not compared.
        outputs: one for each output; empty when they were not compared.
        top1: agreement of the predicted classes; null for a single unlabelled input, and where there are no classes.
        reason: why outputs, or predicted classes, were not compared; null when there is nothing to say.
        hint: how to have them compared; null when there is nothing to say.
        note: what else is to be known of the inputs; null for nothing.
    """

    inputs: int
    outputs: list[OutputDifference] = []
    top1: Top1 | None = None
    reason: str | None = None
    hint: str | None = None
    note: str | None = None

    @property
    def equal(self) -> bool:
        """Return whether all outputs were compared, and are the same."""
        return bool(self.outputs) and all(output.equal for output in self.outputs)

    @property
    def agrees(self) -> bool:
        """Return whether all outputs were compared, and differ by no more than rounding in single precision."""
        return bool(self.outputs) and all(
            difference.max_rel is not None
            and difference.max_rel <= TOLERANCES["fp32"]
            and not difference.unlike_nonfinite
            for difference in self.outputs
        )

    @property
    def worst(self) -> OutputDifference | None:
        """Output that differs most; None if none was compared."""
        known = [difference for difference in self.outputs if difference.problem is None]
        return max(known, key=lambda difference: (difference.max_rel is None, difference.max_rel or 0.0), default=None)


def not_compared(reason: str, hint: str) -> Accuracy:
    """Return that outputs were not compared, why, and how to have them compared."""
    return Accuracy(0, reason=reason, hint=hint)


def output_differences(baseline: Sequence[Array], candidate: Sequence[Array]) -> list[OutputDifference]:
    """Return the difference of every output that both sides have."""
    return [_output_difference(number, *pair) for number, pair in enumerate(zip(baseline, candidate, strict=False))]


def _output_difference(number: int, baseline: Array, candidate: Array) -> OutputDifference:
    if baseline.shape != candidate.shape:
        problem = f"its shape is {list(baseline.shape)} in the baseline and {list(candidate.shape)} in the candidate"
        return OutputDifference(number, int(baseline.size), problem=problem)
    before, after = (np.asarray(side, np.float64).ravel() for side in (baseline, candidate))
    finite = np.isfinite(before), np.isfinite(after)
    both = finite[0] & finite[1]
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    wrong = [int((~is_finite).sum()) for is_finite in finite]
    max_abs, max_rel, rms_rel, cosine = _difference_figures(before[both], after[both]) if both.any() else (None,) * 4
    return OutputDifference(
        number,
        int(before.size),
        max_abs=max_abs,
        max_rel=max_rel,
        rms_rel=rms_rel,
        cosine=cosine,
        baseline_nonfinite=wrong[0],
        candidate_nonfinite=wrong[1],
        unlike_nonfinite=int((~both & ~same).sum()),
    )


def _difference_figures(
    before: NDArray[np.float64], after: NDArray[np.float64]
) -> tuple[float, float | None, float | None, float | None]:
    """Return ``max_abs``, ``max_rel``, ``rms_rel`` and ``cosine`` of finite values."""
    # Scaled, so that squares of large values stay finite and those of small ones do not vanish.
    most = float(max(np.abs(before).max(), np.abs(after).max()))
    if not most:
        return 0.0, 0.0, 0.0, None
    scale = math.ldexp(0.5, math.frexp(most)[1])  # a power of two rounds nothing
    before, after = before / scale, after / scale
    distance = np.abs(before - after)
    norms = float(np.linalg.norm(before)), float(np.linalg.norm(after))
    largest = float(np.abs(before).max())
    return (
        float(distance.max()) * scale,
        float(distance.max()) / largest if largest else None,
        float(np.linalg.norm(distance)) / norms[0] if norms[0] else None,
        # Rounding may lead out of what a cosine can be.
        float(np.clip(before @ after / (norms[0] * norms[1]), -1, 1)) if all(norms) else None,
    )


def compare_single_input(baseline: Sequence[Array], candidate: Sequence[Array], note: str | None = None) -> Accuracy:
    """Compare the outputs of a single input."""
    refusal = _comparison_refusal(baseline, candidate)
    return refusal or Accuracy(1, output_differences(baseline, candidate), note=note)


def compare_samples(baseline: Sequence[Array], candidate: Sequence[Array], labels: Classes) -> Accuracy:
    """Compare the outputs of several inputs, and the classes that they predict."""
    refusal = _comparison_refusal(baseline, candidate)
    if refusal:
        return refusal
    differences = output_differences(baseline, candidate)
    reason = _no_classes_reason(baseline[0], candidate[0], labels)
    if reason:
        return Accuracy(
            len(labels), differences, reason=f"predicted classes were not compared: {reason}", hint=_CLASSES
        )
    return Accuracy(len(labels), differences, _compare_classes(baseline[0], candidate[0], labels))


_CLASSES = "labels need a program whose first output holds one value for each class, and classes counted from 0"
_OTHER_OUTPUTS = "compare programs that were exported from one model"


def _comparison_refusal(baseline: Sequence[Array], candidate: Sequence[Array]) -> Accuracy | None:
    if not baseline and not candidate:
        return not_compared("the programs return no tensors", _OTHER_OUTPUTS)
    if len(baseline) != len(candidate):
        reason = f"the baseline has {counted_text(len(baseline), 'output')}, the candidate {len(candidate)}"
        return not_compared(reason, _OTHER_OUTPUTS)
    differences = output_differences(baseline, candidate)
    if all(output.problem for output in differences):
        return not_compared(f"output 0: {differences[0].problem}", _OTHER_OUTPUTS)
    return None


def _no_classes_reason(baseline: Array, candidate: Array, labels: Classes) -> str | None:
    """Return why no class can be read from the outputs; None if it can."""
    if baseline.shape != candidate.shape:
        return "the first outputs have different shapes"
    shape = [size for size in baseline.shape[1:] if size != 1]
    if len(shape) > 1 or 0 in baseline.shape:
        return f"the first output has the shape {list(baseline.shape[1:])} for each input, not one value for each class"
    if not shape and not all(np.issubdtype(side.dtype, np.integer) for side in (baseline, candidate)):
        return "the first output is a single number, not one value for each class"
    if shape and int(labels.max(initial=0)) >= shape[0]:
        classes = f"the first output has {counted_text(shape[0], 'value')}, for the classes 0 to {shape[0] - 1}"
        return f"a label is {int(labels.max())}, and {classes}"
    return None


def _compare_classes(baseline: Array, candidate: Array, labels: Classes) -> Top1:
    sides = [_predicted_classes(side) for side in (baseline, candidate)]
    width = int(np.prod(baseline.shape[1:], dtype=np.int64))
    agreement = _hit_proportion((sides[0] == sides[1]) & (sides[0] != _NO_CLASS))
    known = labels != UNLABELLED
    if not known.any():
        return Top1(width if width > 1 else None, agreement)
    correct = [_hit_proportion(side[known] == labels[known]) for side in sides]
    return Top1(width if width > 1 else None, agreement, correct[0], correct[1])


def _predicted_classes(output: Array) -> Classes:
    """Return the predicted class of each input; ``_NO_CLASS`` if a value is NaN."""
    rows = output.reshape(len(output), -1)
    if rows.shape[1] == 1:
        return rows[:, 0].astype(np.int64)
    rows = rows.astype(np.float64)
    classes = np.where(np.isnan(rows).any(axis=1), _NO_CLASS, np.argmax(rows, axis=1))
    return classes.astype(np.int64)


def _hit_proportion(hits: Mask) -> Proportion:
    count = int(hits.sum())
    return Proportion(count, len(hits), binomial_interval(count, len(hits)))
