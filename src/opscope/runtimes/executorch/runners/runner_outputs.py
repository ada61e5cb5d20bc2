"""The output values that ``executor_runner --output_file`` leaves: raw bytes, one file an output."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.bundle.manifest import Tensor
from opscope.core.files import written_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

OUTPUT_FILE = "output"


class RunnerOutputs(NamedTuple):
    """Outputs of the last inference, as far as they were written and their types are known.

    Attributes:
        tensors: shape and type of each.
        arrays: their values; empty when not all could be read.
        sha256: hash of all values; null when none were written.
        nan: values that are not numbers.
    """

    tensors: list[Tensor]
    arrays: list[NDArray[np.generic]]
    sha256: str | None
    nan: int

    @classmethod
    def taken(cls, work: Path, declared: Sequence[Tensor], shapes: Mapping[int, Sequence[int]]) -> RunnerOutputs:
        """Read the files and remove them.

        Args:
            work: directory that they are in.
            declared: the outputs as the program declares them, the largest sizes of dynamic ones.
            shapes: sizes that the runner printed, by the output's number.
        """
        blobs = [_taken(work / f"{OUTPUT_FILE}-{number}.bin") for number in range(len(declared))]
        tensors = [Tensor(list(shapes.get(n, tensor.shape)), tensor.dtype) for n, tensor in enumerate(declared)]
        found = [_array(blob, tensor) for blob, tensor in zip(blobs, tensors, strict=True)]
        arrays = [array for array in found if array is not None]
        written = [blob for blob in blobs if blob is not None]
        return cls(
            tensors,
            arrays if len(arrays) == len(declared) else [],
            hashlib.sha256(b"".join(written)).hexdigest() if written else None,
            sum(int(np.isnan(array).sum()) for array in arrays if np.issubdtype(array.dtype, np.floating)),
        )

    def save(self, path: Path) -> None:
        """Write them as .npz, as every target does; nothing when they could not be read."""
        if self.arrays:
            with written_atomically(path) as file:
                np.savez(file, *self.arrays)


def _taken(path: Path) -> bytes | None:
    if not path.exists():
        return None
    content = path.read_bytes()
    path.unlink()
    return content


def _array(blob: bytes | None, tensor: Tensor) -> NDArray[np.generic] | None:
    """The values, or None when there are none, numpy lacks their type, or they are not as many as the shape says."""
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError:
        return None
    if blob is None or len(blob) != dtype.itemsize * math.prod(tensor.shape):
        return None
    array: NDArray[np.generic] = np.frombuffer(blob, dtype).reshape(tensor.shape)
    return array
