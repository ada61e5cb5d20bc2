"""Labelled inputs: an .npz with an array ``labels``, whose other arrays hold one input after the other.

Each input is a slice of length one along the first axis, for a program that takes a batch of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opscope.experiment.tensors import Array

LABELS = "labels"
"""Name of the array that makes the arrays beside it a set of labelled inputs."""
MOST_SAMPLES = 100_000
"""Each is a process of its own, or a call of one; a file beyond that is one that was not meant."""
UNKNOWN = -1


class LabelledInputs(NamedTuple):
    """Inputs with the class of each."""

    labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]]  # int64, shape (n,); -1 where the class is not known
    arrays: dict[str, Array]  # by name, each with n along its first axis

    def sample(self, number: int) -> dict[str, Array]:
        """The arrays of one input, with a batch of one."""
        return {name: array[number : number + 1] for name, array in self.arrays.items()}


def labelled_inputs(path: Path, arrays: Mapping[str, Array]) -> LabelledInputs | None:
    """The labelled inputs that a file holds; None where it has no array ``labels``, and is one input."""
    if LABELS not in arrays:
        return None
    labels = arrays[LABELS]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        problem = f"the array labels is {labels.dtype.name}{list(labels.shape)}, not a list of whole numbers"
        raise TraceFormatError(problem, where=path, hint=_HINT)
    others = {name: array for name, array in arrays.items() if name != LABELS}
    if not 0 < len(labels) <= MOST_SAMPLES or not others:
        problem = f"there are {len(labels)} labels for {len(others)} arrays of inputs"
        raise TraceFormatError(problem, where=path, hint=f"{_HINT}; at most {MOST_SAMPLES:,} of them")
    for name, array in others.items():
        if array.shape[:1] != labels.shape:
            problem = f"there are {len(labels)} labels, and {name} has the shape {list(array.shape)}"
            raise TraceFormatError(problem, where=path, hint=_HINT)
    classes = labels.astype(np.int64)
    if int(classes.min()) < UNKNOWN:
        raise TraceFormatError(f"a label is {int(classes.min())}", where=path, hint=_HINT)
    return LabelledInputs(classes, dict(others))


_HINT = (
    "numpy.savez(FILE, images, labels=classes): one input after the other along the first axis of each array, and one "
    "class for each, from 0, or -1 where it is not known; an input of the program itself is named arr_0, arr_1, ..."
)


def stacked(outputs: list[list[Any]]) -> list[Any]:
    """Outputs of several inputs, each stacked along a new first axis; the inverse of one list for each input."""
    return [np.stack(each) for each in zip(*outputs, strict=True)]
