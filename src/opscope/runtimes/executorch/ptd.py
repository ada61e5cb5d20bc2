"""Weights in a separate file (.ptd): which data it holds, by their keys; and which a program looks for in one.

Source of the layout: ``extension/flat_tensor/serialize/flat_tensor.fbs`` of ExecuTorch 1.5.1, and
``flat_tensor_header.h`` beside it. The data themselves are never read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from opscope.core.errors import TraceFormatError
from opscope.program.structure.plan import PlannedTensor
from opscope.readers.fields import nested, texts
from opscope.readers.flatbuffer import FlatBuffer
from opscope.readers.mapped import mapped_file
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.xnnpack.payload import read_xnn_graphs

if TYPE_CHECKING:
    from pathlib import Path

_IDENTIFIER, _MAGIC = b"FT", b"FH01"
_MAGIC_AT, _HEADER_AT, _HEADER_END = 8, 12, 48
_NAMED_DATA, _KEY = 2, 0
_HINT = "the file is truncated, corrupted, or not a .ptd: copy it again from where it was written"


def data_keys(path: Path) -> frozenset[str]:
    """Keys of the data in a .ptd."""
    content = mapped_file(path)
    if bytes(content[4:6]) != _IDENTIFIER or len(content) < _HEADER_END:
        raise TraceFormatError("not a .ptd: the identifier FT is missing", where=path, hint=_HINT)
    if bytes(content[_MAGIC_AT:_HEADER_AT]) != _MAGIC:
        raise TraceFormatError("its extended header is missing", where=path, hint=_HINT)
    _, start, size, base, data = struct.unpack_from("<IQQQQ", content, _HEADER_AT)
    whole = max(start + size, base + data)
    if whole > len(content):
        problem = f"truncated: {whole:,} bytes were written, {len(content):,} are here"
        raise TraceFormatError(problem, where=path, hint=_HINT)
    root = FlatBuffer(content[: start + size], str(path)).root()
    return frozenset(texts(nested(root, _NAMED_DATA)[0], _KEY))


def external_keys(program: Path) -> list[str]:
    """Keys of the data that a program looks for in another file, each once; empty where it holds all itself.

    Those of delegates other than XNNPACK's are not known.
    """
    executable = read_executable(program)
    values = [value for plan in executable.plans for value in plan.values]
    own = {data.key for data in executable.named_data}
    names = [value.name for value in values if isinstance(value, PlannedTensor) and value.external]
    # A program may be kept without the payloads of its delegates.
    if all(delegate.data for plan in executable.plans for delegate in plan.delegates):
        names += [data.key for one in read_xnn_graphs(program) for data in one.graph.constants if data.key]
    return [name for name in dict.fromkeys(names) if name not in own]
