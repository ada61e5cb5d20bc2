"""Read ETRecords: the exporter's graph, its modules and source lines, and the maps from instructions to debug handles.

Sources: the names of members from ``devtools/etrecord/_etrecord.py`` of ExecuTorch 1.5.1, the JSON of a graph
from ``torch/_export/serde/schema.py`` of torch 2.13. Both are read without either package.

ETRecords can also be written without their tensors: what is read of them stays as it is, and weights are left
out.

A record holds the weights of its model twice, and is twice as large as the program. Of the record of
MobileNetV3-Small, 23 MB, 0.8 MB are read; compressed they take 32 KB.

Where tensors were, an empty member stays: torch reads it as no tensors at all (``deserialize_torch_artifact``
in ``torch/_export/serde/serialize.py`` of torch 2.13), so ``parse_etrecord`` of ExecuTorch opens a slim record
and finds the same graph. The graph before the conversion to the edge dialect is left out with its weights.
"""

from __future__ import annotations

import io
import json
import re
import stat
import zipfile
import zlib
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar, final

import msgspec

from opscope.core.errors import NotFoundError, StorageError, TraceFormatError
from opscope.core.files import leads_out
from opscope.core.units import counted_text
from opscope.program.structure.etrecord import (
    EdgeGraph,
    EdgeNode,
    EtRecord,
    ModuleScope,
    SourceLine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

IDENTIFIER = "ETRECORD_V0"
LARGEST_JSON = 128 * 2**20  # bytes, all members that are read taken together; a model of 500 operators has 2 MB
_MOST_MEMBERS = 10_000
_MOST_EXPANSION = 200  # inflated bytes a stored byte; JSON of graphs reaches about 50
_FREE_EXPANSION = 2**20  # bytes below which expansion is harmless
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HINT = "export the model or copy the file again: it is corrupted, or not an ExecuTorch ETRecord"

# What the standard library raises on damaged archives, found by fuzzing.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)


@final
class Archive:
    """The members of an ETRecord, checked before any of them is read.

    Raises NotFoundError if there is no such file, StorageError if it cannot be read, and TraceFormatError if it is
    no ETRecord, damaged, or built to do harm.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left = LARGEST_JSON
        self._zip = self._open_zip()
        try:
            self._members = self._check_members()
        except TraceFormatError:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """Names of all members, in the order of the file."""
        return list(self._members)

    def read(self, name: str) -> bytes | None:
        """Return the inflated content of a member; None if there is no such member."""
        if name not in self._members:
            return None
        info = self._members[name]
        self._check_size(info)
        self._left -= info.file_size
        try:
            return self._zip.read(info)
        except _DAMAGE as error:
            raise self.error(f"{_printable_name(name)} is damaged: {error}", info.header_offset) from error
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", where=self.path) from error

    def error(self, problem: str, offset: int | None = None) -> TraceFormatError:
        """Return an error that names this file."""
        return TraceFormatError(problem, where=self.path, offset=offset, hint=_HINT)

    def _open_zip(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except FileNotFoundError:
            raise NotFoundError("no such file", where=self.path) from None
        except _DAMAGE as error:
            raise self.error(f"not an ETRecord: it is not a zip file, or a damaged one ({error})") from error
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", where=self.path) from error

    def _check_members(self) -> dict[str, zipfile.ZipInfo]:
        infos = self._zip.infolist()
        if len(infos) > _MOST_MEMBERS:
            raise self.error(
                f"it has {counted_text(len(infos), 'member', ',')}; an ETRecord has about a dozen per method"
            )
        members: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            self._check_member(info)
            if info.filename in members:
                raise self.error(f"two members have the name {_printable_name(info.filename)}", info.header_offset)
            members[info.filename] = info
        if IDENTIFIER not in members:
            raise self.error(f"not an ETRecord: the member {IDENTIFIER} is missing")
        return members

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        if leads_out(name) or ":" in name:
            raise self.error(f"the name {_printable_name(name)} points outside the archive", info.header_offset)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise self.error(f"{_printable_name(name)} is a link", info.header_offset)
        if info.header_offset < 0:
            raise self.error(f"{_printable_name(name)} starts before the file")
        if info.flag_bits & _ENCRYPTED:
            raise self.error(f"{_printable_name(name)} is encrypted", info.header_offset)
        if info.compress_type not in _METHODS:
            raise self.error(f"{_printable_name(name)} is compressed by an unusual method", info.header_offset)

    def _check_size(self, info: zipfile.ZipInfo) -> None:
        size, stored = info.file_size, info.compress_size
        if size > self._left:
            problem = (
                f"{_printable_name(info.filename)} would need {size:,} bytes, the limit is {LARGEST_JSON:,} for all"
            )
            raise self.error(problem, info.header_offset)
        file_size = self.path.stat().st_size
        if info.header_offset + stored > file_size or (info.compress_type == zipfile.ZIP_STORED and stored != size):
            problem = (
                f"{_printable_name(info.filename)} claims {stored:,} stored bytes for "
                f"{size:,}, the file has {file_size:,}"
            )
            raise self.error(problem, info.header_offset)
        if expands_too_far(size, stored):
            problem = f"{_printable_name(info.filename)} would grow from {stored:,} to {size:,} bytes: a zip bomb"
            raise self.error(problem, info.header_offset)


def expands_too_far(size: int, stored: int) -> bool:
    """Return whether a size is suspicious for so few stored bytes: a zip bomb."""
    return size > _FREE_EXPANSION and size > stored * _MOST_EXPANSION


def _printable_name(name: str) -> str:
    """Return a name from the file in printable form: control characters escaped, not longer than a line."""
    return repr(name[:60])


Handles: TypeAlias = int | list[int]
HandleMap: TypeAlias = dict[str, dict[int, Handles]]

_LIST_OF_NUMBERS = re.compile(r"[\[(]?[\d, ]{1,4000}[\])]?")
_NUMBER = re.compile(r"\d+")
_LARGEST_HANDLE = 2**63


class UnreadableError(ValueError):
    """Raised if a text or a number inside the JSON is not what the exporter writes."""


def listed(handles: Handles) -> tuple[int, ...]:
    """Return handles as a tuple, also if there is only one."""
    return (handles,) if isinstance(handles, int) else tuple(handles)


class Name(msgspec.Struct):
    """Name of a tensor, or of a call of a delegate."""

    name: str


DelegateMap: TypeAlias = dict[str, dict[int, Name]]


class SubGraph(msgspec.Struct):
    """Container of a graph: the body of a branch or loop, or a module."""

    graph: WireGraph


class Argument(msgspec.Struct):
    """One of many kinds of argument; those without tensors are skipped."""

    as_tensor: Name | None = None
    as_tensors: list[Name] | None = None
    as_optional_tensor: Argument | None = None
    as_optional_tensors: list[Argument] | None = None
    as_nested_tensors: list[list[Name]] | None = None
    as_graph: SubGraph | None = None

    def tensors(self) -> list[str]:
        """Return the names of the tensors in the argument."""
        optional = [
            argument
            for argument in (self.as_optional_tensor, *(self.as_optional_tensors or []))
            if argument is not None
        ]
        nested = [name for names in self.as_nested_tensors or [] for name in names]
        references = [self.as_tensor, *(self.as_tensors or []), *(argument.as_tensor for argument in optional), *nested]
        return [reference.name for reference in references if reference is not None]


class Input(msgspec.Struct):
    """An argument with the name of its parameter, which is not used."""

    arg: Argument


class Metadata(msgspec.Struct):
    """Notes of the exporter beside an operator."""

    stack_trace: str | None = None
    nn_module_stack: str | None = None
    debug_handle: str | int | None = None

    def handles(self) -> tuple[int, ...]:
        """Return the debug handles; a text holds one number or a list of them.

        Raises UnreadableError for other texts.
        """
        if self.debug_handle is None:
            return ()
        text = str(self.debug_handle)
        if not _LIST_OF_NUMBERS.fullmatch(text):
            raise UnreadableError(f"{text[:40]!r} is not a debug handle")
        handles = tuple(int(number) for number in _NUMBER.findall(text))
        if max(handles, default=_LARGEST_HANDLE) >= _LARGEST_HANDLE:
            raise UnreadableError(f"{text[:40]!r} is not a debug handle")
        return handles


class WireNode(msgspec.Struct):
    """An operator of a graph."""

    target: str
    inputs: list[Input]
    outputs: list[Argument]
    metadata: Metadata
    name: str | None = None


class Expression(msgspec.Struct):
    """A size that can differ between calls."""

    expr_str: str


class Size(msgspec.Struct):
    """A size: a number or an expression."""

    as_int: int | None = None
    as_expr: Expression | None = None

    def value(self) -> int | str:
        """Return the number, or the text of the expression. Raises UnreadableError if it is neither."""
        if self.as_int is not None and 0 <= self.as_int < _LARGEST_HANDLE:
            return self.as_int
        if self.as_expr is None:
            raise UnreadableError("a tensor has a size that is neither a number nor an expression")
        return self.as_expr.expr_str


class TensorMeta(msgspec.Struct):
    """Sizes of a tensor."""

    sizes: list[Size]


class WireGraph(msgspec.Struct):
    """Operators and tensors of a graph."""

    nodes: list[WireNode]
    tensor_values: dict[str, TensorMeta]


class WireProgram(msgspec.Struct):
    """An exported program."""

    graph_module: SubGraph


_PREFIXES = ("executorch.exir.dialects.edge.ops.", "torch.ops.")
_FRAME = re.compile(r'File "(.+)", line (\d{1,9}), in (.+)')
_SCOPE_PARTS = 3
# By this number ExecuTorch's Inspector knows whether a record and a program are of one export.
_GRAPH_ID = "export_graph_id"


def read_graph(method: str, graph: WireGraph) -> EdgeGraph:
    """Return the operators and tensors of a method, those of branches and loops after its own."""
    nodes: list[EdgeNode] = []
    sizes: dict[str, tuple[int | str, ...]] = {}
    texts = _Texts()
    waiting = deque([graph])
    while waiting:
        current = waiting.popleft()
        nodes += (_read_node(node, texts) for node in current.nodes)
        sizes |= {name: tuple(size.value() for size in meta.sizes) for name, meta in current.tensor_values.items()}
        arguments = (argument.arg.as_graph for node in current.nodes for argument in node.inputs)
        waiting += (inner.graph for inner in arguments if inner is not None)
    return EdgeGraph(method, tuple(nodes), sizes)


class _Texts:
    """Parsers of stack traces and module stacks with a cache, since operators of one layer share theirs."""

    def __init__(self) -> None:
        self.frames = cache(_parse_stack_trace)
        self.modules = cache(_parse_module_stack)


def _read_node(node: WireNode, texts: _Texts) -> EdgeNode:
    return EdgeNode(
        name=node.name or "",
        target=_operator_name(node.target),
        inputs=tuple(name for node_input in node.inputs for name in node_input.arg.tensors()),
        outputs=tuple(name for node_output in node.outputs for name in node_output.tensors()),
        frames=texts.frames(node.metadata.stack_trace or ""),
        modules=texts.modules(node.metadata.nn_module_stack or ""),
        handles=node.metadata.handles(),
    )


def _operator_name(target: str) -> str:
    for prefix in _PREFIXES:
        target = target.removeprefix(prefix)
    return target


def _parse_stack_trace(trace: str) -> tuple[SourceLine, ...]:
    """Parse lines of the form ``File "x", line 1, in f``, each with the line of code after it if there is one."""
    lines = [line.strip() for line in trace.splitlines()]
    source_lines = []
    for line, code in zip(lines, [*lines, ""][1:], strict=True):
        match = _FRAME.fullmatch(line)
        if match:
            file, number, function = match.groups()
            source_lines.append(SourceLine(file, int(number), function, "" if _FRAME.fullmatch(code) else code))
    return tuple(source_lines)


def _parse_module_stack(stack: str) -> tuple[ModuleScope, ...]:
    """Parse module stack entries ``key,path,type`` between semicolons."""
    scopes = []
    for entry in filter(None, stack.split(";")):
        parts = _split_at_commas(entry)
        if len(parts) != _SCOPE_PARTS:
            raise UnreadableError(f"{entry[:60]!r} is not a module stack entry")
        scopes.append(ModuleScope(parts[1], parts[2]))
    return tuple(scopes)


def _split_at_commas(entry: str) -> list[str]:
    """Split an entry at its commas, except for commas inside brackets."""
    depth, start, parts = 0, 0, []
    for match in re.finditer(r"[][(),]", entry):
        depth += (match[0] in {"[", "("}) - (match[0] in {"]", ")"})
        if match[0] == "," and not depth:
            parts.append(entry[start : match.start()])
            start = match.end()
    return [*parts, entry[start:]]


T = TypeVar("T")

_GRAPH = "edge_dialect_exported_program"
_PICKLED = ("_state_dict", "_constants", "_example_inputs")
_HANDLES, _DELEGATES, _OUTPUTS = "debug_handle_map", "delegate_map", "instruction_id_to_num_outs_map"
_ONLY_METHOD = "forward"
_PROGRAM = msgspec.json.Decoder(WireProgram)
_HANDLE_MAP: msgspec.json.Decoder[HandleMap | None] = msgspec.json.Decoder(HandleMap | None)
_DELEGATE_MAP: msgspec.json.Decoder[DelegateMap | None] = msgspec.json.Decoder(DelegateMap | None)
_NON_FINITE = (b"Infinity", b"NaN")
_LOCAL_HEADER = b"PK\x03\x04"
_NAME_AT = 30


def is_etrecord(head: bytes) -> bool:
    """Return whether a file that starts with these bytes (at least 41) is an ETRecord: a zip with its mark in front."""
    return head.startswith(_LOCAL_HEADER) and head[_NAME_AT:].startswith(IDENTIFIER.encode())


def read_etrecord(path: Path) -> EtRecord:
    """Read everything in an ETRecord except tensors. Nothing is unpickled and nothing is extracted to disk.

    Raises:
        TraceFormatError: it is damaged, or of a release whose records hold pickles.
    """
    with Archive(path) as archive:
        is_old = any(name.partition("/")[0] in _OLD_MEMBERS for name in archive.names)
        try:
            record = _read_members(archive)
        except TraceFormatError as error:
            if is_old:
                raise TraceFormatError(_OLD, where=path, hint=_OLD_HINT) from error
            raise
    if is_old and not record.graphs:
        raise TraceFormatError(_OLD, where=path, hint=_OLD_HINT)
    return record


_OLD_MEMBERS = ("program_buffer", "et_dialect_graph_module")
"""Members that no release on PyPI writes by itself, the first of which is 0.2."""
_OLD = "an ETRecord of ExecuTorch 0.1, from 2023: its graphs are pickles or have another layout"
_OLD_HINT = (
    "export the model again with executorch 0.2 or newer; sdk.etrecord.parse_etrecord of the sources that wrote it "
    "reads it as it is"
)


def _read_members(archive: Archive) -> EtRecord:
    handles_by_instruction = _by_instruction(_read_json_member(archive, _HANDLES, _HANDLE_MAP))
    delegates = _by_instruction(_read_json_member(archive, _DELEGATES, _DELEGATE_MAP))
    return EtRecord(
        graphs=tuple(_read_method_graph(archive, name) for name in archive.names if _is_graph(name)),
        instruction_handles={instruction: listed(handles) for instruction, handles in handles_by_instruction.items()},
        delegates={instruction: delegate.name for instruction, delegate in delegates.items()},
    )


def is_read(name: str) -> bool:
    """Return whether a member is one that :func:`read_etrecord` or ExecuTorch's Inspector reads."""
    return name in {IDENTIFIER, _HANDLES, _DELEGATES, _OUTPUTS} or _is_graph(name)


def pickles_of(name: str) -> tuple[str, ...]:
    """Return the names of the members with the tensors of a graph; empty for other members."""
    return tuple(f"{name}{kind}" for kind in _PICKLED) if _is_graph(name) else ()


def _is_graph(name: str) -> bool:
    """Return whether a member is a graph; records with one method, or from before 1.0, store it under the bare name."""
    return name == _GRAPH or (name.startswith(f"{_GRAPH}/") and not name.endswith(_PICKLED))


def _read_method_graph(archive: Archive, name: str) -> EdgeGraph:
    program = _read_json_member(archive, name, _PROGRAM)
    if program is None:
        raise archive.error(f"the member {name!r} is missing")
    method = name.partition("/")[2] or _ONLY_METHOD
    try:
        return read_graph(method, program.graph_module.graph)
    except UnreadableError as error:
        raise archive.error(f"{name!r}: {error}") from error


def _read_json_member(archive: Archive, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    """Read a JSON member; None if it is absent. Raises TraceFormatError for unexpected content."""
    data = archive.read(name)
    if data is None:
        return None
    try:
        return _decode_json(data, decoder)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise archive.error(f"{name!r} has unexpected content: {error}") from error


def _decode_json(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON, also with the non-finite numbers that Python's own writer puts there against the standard.

    The exporter writes ``-Infinity`` for the mask of an attention and ``Infinity`` for an unbounded size. They
    stand where nothing is read, but msgspec refuses the whole text, so Python's reader, which takes them, goes
    first.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if not any(word in data for word in _NON_FINITE):
            raise
        # Python converts no number of more than 4,300 digits: an error like any other damage.
        content: T = msgspec.convert(json.loads(data), decoder.type, str_keys=True)
        return content


def _by_instruction(by_method: dict[str, dict[int, T]] | None) -> dict[tuple[str, int], T]:
    """Flatten records of instructions into one mapping by method and number."""
    maps = (by_method or {}).items()
    return {(method, instruction): value for method, by_number in maps for instruction, value in by_number.items()}


def slim_etrecord(path: Path) -> bytes:
    """Return the content of an ETRecord without tensors, which reads like the one at a path.

    The same record gives the same bytes, and a slim one gives itself.
    """
    with Archive(path) as archive:
        members = dict(_slim_members(archive))
    small, harmless = _write_zip(members, zipfile.ZIP_DEFLATED)
    return small if harmless else _write_zip(members, zipfile.ZIP_STORED)[0]


def _slim_members(archive: Archive) -> Iterator[tuple[str, bytes]]:
    """Yield the members of the slim record with their content, in the order of the file."""
    names = archive.names
    emptied = {pickle for name in names for pickle in pickles_of(name)}
    for name in names:
        if name in emptied:
            yield name, b""
        elif is_read(name) or name == _GRAPH_ID:
            yield name, archive.read(name) or b""


def _write_zip(members: Mapping[str, bytes], method: int) -> tuple[bytes, bool]:
    """Return a zip file, and whether no member of it expands so far that it would be refused."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, content in members.items():
            # Without the time of day, which ZipInfo leaves out, the same members are the same bytes.
            file.writestr(zipfile.ZipInfo(name), content, compress_type=method)
        harmless = not any(expands_too_far(info.file_size, info.compress_size) for info in file.infolist())
    return stream.getvalue(), harmless
