"""ETRecords without their tensors: what is read of them stays as it is, and weights are left out.

A record holds the weights of its model twice, and is twice as large as the program. Of the record of MobileNetV3-Small,
23 MB, 0.8 MB are read; compressed they take 32 KB.

Where tensors were, an empty member stays: torch reads it as no tensors at all (``deserialize_torch_artifact`` in
``torch/_export/serde/serialize.py`` of torch 2.13), so ``parse_etrecord`` of ExecuTorch opens a slim record and finds
the same graph. The graph before the conversion to the edge dialect is left out with its weights.
"""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

from opscope.runtimes.executorch.etrecord.archive import Archive, expands_too_far
from opscope.runtimes.executorch.etrecord.etrecord import is_read, pickles_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# By this number ExecuTorch's Inspector knows whether a record and a program are of one export.
_GRAPH_ID = "export_graph_id"


def slim_etrecord(path: Path) -> bytes:
    """The content of an ETRecord that reads the same as the one at a path, without tensors.

    The same record gives the same bytes, and a slim one gives itself.
    """
    with Archive(path) as archive:
        members = dict(_kept(archive))
    small, harmless = _packed(members, zipfile.ZIP_DEFLATED)
    return small if harmless else _packed(members, zipfile.ZIP_STORED)[0]


def _kept(archive: Archive) -> Iterator[tuple[str, bytes]]:
    """Members of the slim record with their content, in the order of the file."""
    names = archive.names
    emptied = {pickle for name in names for pickle in pickles_of(name)}
    for name in names:
        if name in emptied:
            yield name, b""
        elif is_read(name) or name == _GRAPH_ID:
            yield name, archive.read(name) or b""


def _packed(members: Mapping[str, bytes], method: int) -> tuple[bytes, bool]:
    """A zip file, and whether no member of it expands so far that it would be refused."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            # Without the time of day, which ZipInfo leaves out, the same members are the same bytes.
            file.writestr(zipfile.ZipInfo(name), content, compress_type=method)
        harmless = not any(expands_too_far(info.file_size, info.compress_size) for info in file.infolist())
    return stream.getvalue(), harmless
