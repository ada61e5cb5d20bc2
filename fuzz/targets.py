"""What is fuzzed: one target per reader, with the inputs that its fuzzing starts from.

To add one, write a function from bytes to anything (``on_path`` wraps a reader of files) and one that gives valid
inputs, as small as they can be, and add a line to ``TARGETS``.
"""

from __future__ import annotations

import atexit
import gzip
import io
import shutil
import struct
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fuzz import SUPPORT, aie_commands, aie_tiles, etdump_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuzz.structure import Structure

    Read: TypeAlias = Callable[[bytes], object]
    Seeds: TypeAlias = Callable[[], list[bytes]]

DATA = SUPPORT.parent / "data"
WHERE = Path("fuzzed")
SECONDS_AN_INPUT, SECONDS_A_MEGABYTE = 1.0, 10.0
"""Of the processor: a busy machine is no finding."""
MEMORY_AN_INPUT, MEMORY_A_BYTE = 64 << 20, 256
"""Bytes that reading an input may take, and those for each byte of it."""
_UNFOLDED = 512 << 20
"""The same of formats in which few bytes stand for many, up to a limit of the reader."""
_LOOP = """
    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 80000
        Convolution (NHWC, F32) IGEMM #1 50000
        Clamp (NC) #1 1000
      OPERATOR_CALL @1 1500
        native_call_add.out 1400
      JF_CALL @2 10
      OPERATOR_CALL @1 1300
        native_call_add.out 1200
"""


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Attributes:
        name: as given to ``--target``.
        module: the reader's; without it the target is left out.
        read: reads an input; a TraceFormatError is the right answer to a damaged one.
        seeds: valid inputs to start from.
        tokens: pieces of the format, for damage that keeps it half right.
        structure: how inputs are built from what they mean, where that is known; else they are changed as bytes.
        seconds: of the processor that an input may take, however small it is.
        seconds_a_megabyte: that it may take beyond that.
        memory: bytes that reading an input may take beyond what the process had, however small it is.
        memory_a_byte: that each of its bytes may take beyond that.
    """

    name: str
    module: str
    read: Read
    seeds: Seeds
    tokens: tuple[bytes, ...] = ()
    structure: Structure | None = None
    seconds: float = SECONDS_AN_INPUT
    seconds_a_megabyte: float = SECONDS_A_MEGABYTE
    memory: int = MEMORY_AN_INPUT
    memory_a_byte: int = MEMORY_A_BYTE

    def seconds_of(self, size: int) -> float:
        """The time of the processor that an input of so many bytes may take."""
        return self.seconds + self.seconds_a_megabyte * size / (1 << 20)

    def memory_of(self, size: int) -> int:
        """The memory that an input of so many bytes may take."""
        return self.memory + self.memory_a_byte * size

    @property
    def available(self) -> bool:
        """Whether the reader is there."""
        return find_spec(self.module) is not None


def on_path(read: Callable[[Path], object]) -> Read:
    """A reader of bytes made from a reader of files."""

    def through_a_file(data: bytes) -> object:
        path = scratch_directory() / "input"
        path.write_bytes(data)
        return read(path)

    return through_a_file


@cache
def scratch_directory() -> Path:
    """A directory of this process; it goes when the process ends."""
    path = tempfile.mkdtemp(prefix="opscope-fuzz-")
    atexit.register(shutil.rmtree, path)
    return Path(path)


def etdump_traces() -> list[bytes]:
    """Traces written by hand and one of a real model, with and without inferences that repeat each other."""
    from traces import etdump

    short = "Method::execute 100\n  OPERATOR_CALL @0 60\n    native_call_add.out 50"
    return [
        (DATA / "toy_cnn.etdump").read_bytes(),
        etdump(_LOOP),
        etdump(_LOOP, repeat=8),
        etdump(short, repeat=6, size_prefix=False),
        etdump(short + "\nProgram::load_method 5\n" + short.replace("@0", "@1"), repeat=3),
    ]


def _read_etdump(data: bytes) -> object:
    """Events as columns, compared with those that a plain walk through the file finds.

    Values of delegates on other clocks are no events of the table: each of them is left out of the walk.
    """
    from fuzz.plain_etdump import PlainEvent, plain_events
    from opscope.runtimes.executorch import etdump as reader
    from opscope.runtimes.executorch.etdump import EtdumpReader

    reader.WORTH_BYTES = 0  # small inputs go the way of long ones

    table = EtdumpReader().read(data, WHERE)
    rows = table.frame.select(PlainEvent._fields).rows()
    values = sum(len(side.values) for side in table.side)
    place, set_aside = 0, 0
    for plain in plain_events(data):
        if place < len(rows) and rows[place] == plain:
            place += 1
        elif set_aside < values:
            set_aside += 1
        else:
            raise AssertionError(f"a wrong table: {rows[place : place + 1]} where the file has {plain}")
    if (place, set_aside) != (len(rows), values):
        raise AssertionError(f"a wrong table: {len(rows) - place} rows that the file does not have")
    return table.frame


def _table_of(reader: str, module: str) -> Read:
    """A reader class of the registry's kind."""

    def read(data: bytes) -> object:
        return getattr(import_module(module), reader)().read(data, WHERE).frame

    return read


def _read_flatbuffer(data: bytes) -> object:
    """Every kind of field in every slot, whatever it means, of the root and of what three levels of vectors hold."""
    from opscope.core.errors import TraceFormatError
    from opscope.readers.flatbuffer import FlatBuffer, Tables

    tables = FlatBuffer(data, str(WHERE), 4 if data[8:12] == b"ED00" else 0).root()
    for _ in range(3):
        nested = tables.at[:0]
        for slot in range(9):
            for gather in (tables.int32, tables.uint8, tables.uint64, tables.reference, tables.vector, tables.strings):
                with suppress(TraceFormatError):
                    gather(slot)
            with suppress(TraceFormatError):
                children = tables.children(slot)[0]
                Tables(tables.buffer, children)
                nested = children if len(children) > len(nested) else nested
        tables = Tables(tables.buffer, nested)
    return tables


def pte_programs() -> list[bytes]:
    """A program written by hand, and those of real models."""
    from programs import tiny_program

    return [tiny_program(), *(path.read_bytes() for path in sorted(DATA.glob("*.pte")))]


def _tflites() -> list[bytes]:
    return [path.read_bytes() for path in sorted((DATA / "tflite").glob("*.tflite"))[:6]]


def _read_tflite(data: bytes) -> object:
    from opscope.runtimes.litert.lowering import lowered
    from opscope.runtimes.litert.tflite import decode_tflite

    model = decode_tflite(data, str(WHERE))
    return lowered(model), lowered(model, delegated=False)


def _onnx_files() -> list[bytes]:
    return [path.read_bytes() for path in sorted((DATA / "onnx").glob("*.onnx"))]


def _read_onnx(data: bytes) -> object:
    from opscope.runtimes.onnxruntime.onnx_file import decode_onnx

    return decode_onnx(memoryview(data), str(WHERE))


def _read_program(data: bytes) -> object:
    from opscope.runtimes.executorch.pte import read_executable

    return on_path(read_executable)(data)


def _read_data_keys(data: bytes) -> object:
    from opscope.runtimes.executorch.program_files import data_keys

    return on_path(data_keys)(data)


def _read_bundled(data: bytes) -> object:
    from opscope.runtimes.executorch.program_files import read_bundled

    return on_path(read_bundled)(data)


def _find_sites(data: bytes) -> object:
    from opscope.core.errors import FeatureError
    from opscope.machine.switch.sites import cpuid_sites

    with suppress(FeatureError):  # a library that cannot be decoded is refused, which is no fault of the reader
        return on_path(cpuid_sites)(data)
    return None


def _libraries() -> list[bytes]:
    """A library of two functions, with a table of symbols and one for unwinding."""
    code = bytes.fromhex("b80fa2a2000fa2c362f17c48104424010fa2c5f877c3")
    names, head, first = b"\0one\0two\0", 64, 0x1000
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name, 0x12, 0, 1, first + at, size) for name, at, size in ((1, 0, 8), (5, 8, 14))
    )
    frames = bytes((1, 0x1B, 3, 0x3B)) + struct.pack("<iIiiii", 0, 2, -0x1000, 0, -0x1000 + 8, 0)
    parts, at, places = [code, symbols, names, frames], head + 56, []
    for part in parts:
        places.append(at)
        at += len(part)
    rows = [
        (1, 6, first, places[0], len(code), 0),
        (2, 0, 0, places[1], len(symbols), 3),
        (3, 0, 0, places[2], len(names), 0),
    ]
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, flags, address, offset, size, link, 0, 1, 24)
        for kind, flags, address, offset, size, link in [(0, 0, 0, 0, 0, 0), *rows]
    )
    table = struct.pack("<IIQQQQQQ", 0x6474E550, 4, places[3], 2 * first, 0, len(frames), len(frames), 4)
    header = (
        b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, head, at, 0, head, 56, 1, 64, 4, 0)
    )
    return [header + table + b"".join(parts) + sections]


def _read_inputs(data: bytes) -> object:
    from opscope.experiment.inputs import read_input_file

    return on_path(read_input_file)(data)


def _arrays() -> list[bytes]:
    import numpy as np

    stream = io.BytesIO()
    np.savez(stream, np.arange(4, dtype=np.float32), named=np.int64(3))
    return [stream.getvalue()]


def _payloads() -> list[bytes]:
    """What stands in the programs behind the mark of an XNNPACK header, and its graph alone, as old files have it."""
    mark, at, where_graph = b"XH00", 4, 10
    found = [program[program.find(mark) - at :] for program in pte_programs() if mark in program]
    graphs = [payload[struct.unpack_from("<I", payload, where_graph)[0] :] for payload in found]
    return [*found, *graphs]


def _read_payload(data: bytes) -> object:
    from opscope.runtimes.executorch.xnnpack import decode_xnn_graph

    return decode_xnn_graph(data, str(WHERE))


def _follow_graph(data: bytes) -> object:
    """A payload that can be read is replayed, aligned, attributed and costed; whatever it holds, that must end well."""
    from opscope.program.cost.cost import GraphCosts
    from opscope.program.xnnpack.attribution import match_events, predict_events
    from opscope.program.xnnpack.boundaries import Neighbours
    from opscope.runtimes.executorch.xnnpack import decode_xnn_graph

    graph = decode_xnn_graph(data, str(WHERE))
    names = [f"{event.operator} (NC) #1" for event in predict_events(graph)]
    costs, neighbours = GraphCosts(graph), Neighbours(graph)
    for rewrites in (True, False):
        for event in match_events(graph, [*names, "Clamp (NC) #1"][:200], rewrites=rewrites).events:
            costs.nodes(event.nodes)
    for number in range(min(len(graph.nodes), 200)):
        neighbours.around(number)
        costs.activation(number)
    return names


def _follow_program(data: bytes) -> object:
    """A program that can be read: costs, shapes from its inputs, links and reasons of every instruction."""
    from opscope.core.errors import TraceFormatError
    from opscope.program.cost.cost import step_cost
    from opscope.program.cost.shapes import propagate
    from opscope.program.partition.partition_reasons import PortableReasons
    from opscope.program.structure.plan import PlannedTensor
    from opscope.program.xnnpack.boundaries import Links
    from opscope.runtimes.executorch.pte import decode_executable
    from opscope.runtimes.executorch.xnnpack import delegate_graphs

    program = decode_executable(data, str(WHERE))
    with suppress(TraceFormatError):
        graphs = delegate_graphs(data, str(WHERE), program)
        for plan in program.plans:
            own = {graph.delegate: graph.graph for graph in graphs if graph.method == plan.name}
            values = [plan.values[number] for number in plan.inputs if 0 <= number < len(plan.values)]
            shapes = propagate(plan, own, [value.sizes for value in values if isinstance(value, PlannedTensor)])
            Links(plan, own)
            reasons = PortableReasons(plan)
            for number, step in enumerate(plan.chains[0].steps if plan.chains else ()):
                step_cost(plan, step, shapes.sizes)
                reasons.of(number)
    return program


def _read_log(data: bytes) -> object:
    from opscope.readers.kernels import parse_kernel_log

    return parse_kernel_log(data)


def _logs() -> list[bytes]:
    kernel = b"Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'."
    source = b" (init_f32_gemm_config, src/configs/gemm-config.c:97)"
    logcat = b"09-01 12:00:00.123  4242  4243 I XNNPACK : "
    note = b"Note (XNNPACK): "
    return [note + kernel + source + b"\n", note + kernel + b"\r\n", logcat + kernel + source + b"\n", b"other\n"]


def _read_counts(data: bytes) -> object:
    from opscope.readers.kernels import parse_kernel_counts

    return parse_kernel_counts(data, WHERE)


def _counts() -> list[bytes]:
    from kernel_files import FILE

    return [FILE]


def _read_kit(data: bytes) -> object:
    """As a timeline, as statistics or as kernels."""
    from opscope.core.errors import TraceFormatError
    from opscope.kit.readers import csv as kit_csv

    with suppress(TraceFormatError):
        return kit_csv.read_timeline(data, str(WHERE)).frame
    with suppress(TraceFormatError):
        return on_path(kit_csv.stats_rows)(data)
    return on_path(kit_csv.kernel_rows)(data)


def _read_kit_run(data: bytes) -> object:
    """As the manifest of a run directory; one that names nothing of the kit's is not found, as documented."""
    from opscope.core.errors import NotFoundError
    from opscope.kit.readers.directory import read_kit

    directory = scratch_directory() / "run"
    directory.mkdir(exist_ok=True)
    (directory / "manifest.json").write_bytes(data)
    with suppress(NotFoundError):
        return read_kit(directory)
    return None


def _manifests() -> list[bytes]:
    metrics = (
        b'{"runs":3,"threads":1,"latency_ms":[12.5,12.0,13.0],"median_ms":12.5,"min_ms":12.0,"max_ms":13.0,'
        b'"etdump":"m_on_t1.etdump","log":"m_on_t1_latency.log"}'
    )
    return [
        b'{"generated_at":"2026-01-01T00:00:00","config":"c.json","model":"m.pte","executorch":{"present":true,'
        b'"sha":"abc","dirty":false},"results":[{"experiment":"on","status":"ok","metrics":' + metrics + b"}]}",
    ]


def _read_onnxruntime_profile(data: bytes) -> object:
    from opscope.runtimes.onnxruntime.profile import OnnxRuntimeProfileReader

    return OnnxRuntimeProfileReader().read(data, WHERE).frame


def _read_bundle_manifest(data: bytes) -> object:
    """As the manifest of a bundle, with the hashes of its records."""
    from opscope.bundle.bundle import MANIFEST, Bundle
    from opscope.core.errors import BundleError

    directory = scratch_directory() / "bundle"
    directory.mkdir(exist_ok=True)
    (directory / MANIFEST).write_bytes(data)
    with suppress(BundleError):
        return Bundle.open(directory).record_hashes()
    return None


def _bundle_manifests() -> list[bytes]:
    return [
        (
            b'{"schema":"opscope.bundle/1","opscope":"0.1.0","created":"2026-01-01T00:00:00+00:00","status":"complete",'
            b'"model":{"name":"m","source":"m.pte","dtype":null,"program":"model/m.pte","etrecord":null,"sha256":"00","size":1,'
            b'"methods":["forward"],"backends":[]},"plan":{"rounds":1,"runs":1,"warmup":0,"seed":0,"order":[["a"]],'
            b'"timeout_seconds":1.0},"variants":[{"name":"a","role":"accelerated","ablated":[],"cleared":[],"threads":1}],'
            b'"target":{"kind":"local","address":""},"environment":{"system":null,"machine":null,"kernel":null,"cpu":null,'
            b'"logical_cpus":null,"usable_cpus":null,"memory_bytes":null,"hypervisor":null,"governor":null,"features":null,'
            b'"versions":{}},"repetitions":[{"variant":"a","round":0,"attempt":1,"started":null,"seconds":1.5,'
            b'"directory":"variants/a/round-00","trace":null,"trace_sha256":null,"inferences":0,"before":{"load_average":1.0,'
            b'"frequency_mhz":null,"temperature_celsius":null},"after":{"load_average":null,"frequency_mhz":null,'
            b'"temperature_celsius":null},"measurement":null,"failure":null,"record_sha256":"00"}]}'
        ),
    ]


def _kit() -> list[bytes]:
    timeline = (
        b"model_id,name,type,delegate_backend,start_us,end_us,duration_ms,pct_total,node_id,run_index,block\n"
        b"m,Convolution (NHWC) IGEMM #1,DELEGATE,XnnpackBackend,1.0,51.0,0.05,50.0,0,0,Execute\n"
        b"m,DELEGATE_CALL,OP,,1.0,81.5,0.0805,80.0,1,0,Execute\n"
        b"m,Method::execute,OP,,0.5,101.0,0.1005,100.0,2,0,Execute\n"
    )
    described = (
        b"name,duration_ms,run_index,timestamp_ms,parent_id,op_type,backend\n"
        b"native_call_add.out,0.5,0,1.0,,add,\nMethod::execute,2.5,0,0.5,,,\n"
    )
    statistics = b"model_id,name,type,delegate_backend,count,total_ms,avg_ms,pct_total\nm,add,OP,,3,1.5,0.5,12.5\n"
    kernels = (
        b"model_id,kernel_name,category,count,dtype,xnn_op,variant,ukernel_shape,arch_chain,has_sme,has_sme2\n"
        b"m,xnn_f32_vadd_ukernel__neon_u8,binary,2,f32,vadd,,u8,neon,False,False\n"
    )
    return [timeline, described, statistics, kernels]


def _tables_written(module: str, function: str) -> Seeds:
    """Tables of the hand-written traces in a format that this program writes itself."""

    def seeds() -> list[bytes]:
        from opscope.runtimes.executorch.etdump import EtdumpReader

        write = getattr(import_module(module), function)
        written = [write(EtdumpReader().read(trace, WHERE)) for trace in etdump_traces()]
        return [each if isinstance(each, bytes) else b"".join(each) for each in written]

    return seeds


def _read_etrecord(data: bytes) -> object:
    from opscope.runtimes.executorch.etrecord import read_etrecord

    return on_path(read_etrecord)(data)


_GRAPH, _HANDLES = "edge_dialect_exported_program", "debug_handle_map"
_DELEGATES, _OUTPUTS = "delegate_map", "instruction_id_to_num_outs_map"
_MEMBERS = (_HANDLES, _DELEGATES, _OUTPUTS, _GRAPH)


def _member(data: bytes) -> object:
    """An ETRecord whose member, chosen by the first byte, has the rest as content: damage behind the checksums."""
    return _read_etrecord(_archive({_MEMBERS[data[0] % len(_MEMBERS)]: data[1:]}) if data else b"")


def _archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in {"ETRECORD_V0": b"", **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def _members() -> list[tuple[str, bytes]]:
    graph = (
        b'{"graph_module":{"graph":{"inputs":[{"as_tensor":{"name":"x"}}],"outputs":[{"as_tensor":{"name":"add"}}],'
        b'"nodes":[{"target":"torch.ops.aten.add.Tensor","inputs":[{"name":"self","arg":{"as_tensor":{"name":"x"}}}],'
        b'"outputs":[{"as_tensor":{"name":"add"}}],"metadata":{"stack_trace":"File \\"m.py\\", line 3, in forward",'
        b'"nn_module_stack":"L__self__,,m.Net;L__self___a,a,torch.nn.Linear","debug_handle":"1"}}],'
        b'"tensor_values":{"x":{"dtype":7,"sizes":[{"as_int":1}],"requires_grad":false,"device":{"type":"cpu"},'
        b'"strides":[{"as_int":1}],"storage_offset":{"as_int":0},"layout":7}},"sym_int_values":{},'
        b'"sym_bool_values":{},"is_single_tensor_return":false,"custom_obj_values":{}}}}'
    )
    handles = b'{"forward":{"0":[1,2],"1":3}}'
    delegates = b'{"forward":{"0":{"name":"XnnpackBackend","delegate_map":{"0":[1,2],"conv":[3]}}}}'
    return [(_HANDLES, handles), (_DELEGATES, delegates), (_OUTPUTS, b'{"forward":{"0":1}}'), (_GRAPH, graph)]


def _etrecords() -> list[bytes]:
    return [_archive(dict(_members())), _archive(dict(_members()), zipfile.ZIP_DEFLATED)]


def _json_members() -> list[bytes]:
    return [bytes([_MEMBERS.index(name)]) + content for name, content in _members()]


def _read_compressed(data: bytes) -> object:
    from opscope.readers.compressed import inflated

    return inflated(data, WHERE)


def _compressed() -> list[bytes]:
    import zstandard

    trace = etdump_traces()[1]
    packed = gzip.compress(trace, mtime=0)
    return [packed, packed + packed, zstandard.compress(trace), zstandard.compress(b"\0" * 100_000)]


_JSON = (b"{}", b"[]", b"null", b'""', b"-1", b"1e400", b"[" * 3000, b'{"a":' * 3000, b"\\ud800", b'"as_int":', b"true")
_TILES_JSON = (b'"ph": "B"', b'"ph": "E"', b'"ts": ', b"INSTR_VECTOR", b"},\n", b'"tid": 12', b"\0" * 8, *_JSON)
_TILES_WORDS = (b"00820001\n", b"00000000\n", b"ffffffff\n", b"f0000000\n", b"e1e1dbff\n", b"\xff", b"\0" * 4, b"0x")
_CSV = (b",", b"\n", b'"', b'""', b"\r\n", b"\xef\xbb\xbf", b"Method::execute", b"DELEGATE_CALL", b"\0", b"-1")


def _read_signatures(data: bytes) -> object:
    from opscope.runtimes.litert.signatures import describe_callable
    from opscope.runtimes.litert.tflite import decode_tflite

    return describe_callable(decode_tflite(data, str(WHERE)))


def _tflite_models() -> list[bytes]:
    return [path.read_bytes() for path in sorted((DATA / "litert").glob("*.tflite"))]


def _read_benchmark_text(data: bytes) -> object:
    from opscope.runtimes.litert.benchmark_text import BenchmarkTextReader

    return BenchmarkTextReader().read(data, WHERE)


def _benchmark_reports(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((DATA / "benchmark_model").glob(pattern))]


def _read_litert_trace(data: bytes) -> object:
    from opscope.runtimes.litert.trace import LitertTraceReader

    return LitertTraceReader().read(data, WHERE)


def _read_openvino_trace(data: bytes) -> object:
    from opscope.runtimes.openvino.trace import OpenVinoTraceReader

    return OpenVinoTraceReader().read(data, WHERE)


def _openvino_traces() -> list[bytes]:
    return [(DATA / "openvino" / "cnn.openvino.json").read_bytes()]


def _read_openvino_counters(data: bytes) -> object:
    from opscope.runtimes.openvino.counters import OpenVinoCountersReader

    reader = OpenVinoCountersReader()
    return reader.read(data, WHERE) if reader.sniff(data[:64]) or reader.finds(data) else None


def _openvino_reports() -> list[bytes]:
    files = sorted((DATA / "openvino" / "reports").iterdir())
    return [file.read_bytes() for file in files if file.suffix in {".csv", ".json", ".log", ".xml"}]


def _read_openvino_ir(data: bytes) -> object:
    from opscope.runtimes.openvino.program_files import decode_ir

    return decode_ir(data, WHERE)


def _irs() -> list[bytes]:
    return [(DATA / "openvino" / "cnn.xml").read_bytes()]


def _litert_traces() -> list[bytes]:
    return [(DATA / "litert" / "partial.litert.json").read_bytes()]


TARGETS = (
    Target(
        "etdump",
        "opscope.runtimes.executorch.etdump",
        _read_etdump,
        etdump_traces,
        (b"ED00", b"\0" * 8, b"Method::execute"),
        etdump_tree.STRUCTURE,
    ),
    Target("pte", "opscope.runtimes.executorch.pte", _read_program, pte_programs, (b"ET12", b"eh00", b"\0" * 8)),
    Target("tflite", "opscope.runtimes.litert.tflite", _read_tflite, _tflites, (b"TFL3", b"\0" * 8)),
    Target(
        "onnx", "opscope.runtimes.onnxruntime.onnx_file", _read_onnx, _onnx_files, (b"\x08\x09", b"\x3a", b"\xff" * 9)
    ),
    Target(
        "ptd",
        "opscope.runtimes.executorch.program_files",
        _read_data_keys,
        lambda: [(DATA / "looked.ptd").read_bytes()],
        (b"FT01", b"FH01", b"\xff" * 8),
    ),
    Target(
        "bundled",
        "opscope.runtimes.executorch.program_files",
        _read_bundled,
        lambda: [(DATA / "scaled.bpte").read_bytes()],
        (b"BP08", b"\xff" * 4, b"\0" * 8),
    ),
    Target(
        "cpuid-sites", "opscope.machine.switch.sites", _find_sites, _libraries, (b"\x7fELF", b"\x0f\xa2", b"\0" * 8)
    ),
    Target(
        "tflite-signatures",
        "opscope.runtimes.litert.signatures",
        _read_signatures,
        _tflite_models,
        (b"TFL3", b"\xff" * 4, b"\0" * 8),
    ),
    Target(
        "benchmark-text",
        "opscope.runtimes.litert.benchmark_text",
        _read_benchmark_text,
        lambda: [*_benchmark_reports("*.txt"), *_benchmark_reports("*.csv")],
        (b"\t", b"[start]", b"%", b"Delegate internal:", b"Subgraph (index: 1, name: x) profile:", b"count="),
    ),
    Target("openvino-trace", "opscope.runtimes.openvino.trace", _read_openvino_trace, _openvino_traces, _JSON),
    Target(
        "openvino-counters",
        "opscope.runtimes.openvino.counters",
        _read_openvino_counters,
        _openvino_reports,
        (b"Total;", b"EXECUTED", b"realTime (ms):", b'execTimeMcs="', b'"real_time":'),
    ),
    Target("openvino-ir", "opscope.runtimes.openvino.program_files", _read_openvino_ir, _irs, (b"<layer", b'"', b"?,")),
    Target("litert-trace", "opscope.runtimes.litert.trace", _read_litert_trace, _litert_traces, _JSON),
    Target("inputs", "opscope.experiment.inputs", _read_inputs, _arrays, (b"PK\1\2", b"\x93NUMPY", b"'shape': ")),
    Target("attribution", "opscope.program.xnnpack.attribution", _follow_graph, _payloads, (b"XN01", b"\0" * 8)),
    Target("model", "opscope.program.model", _follow_program, pte_programs, (b"ET12", b"\0" * 8)),
    Target("flatbuffer", "opscope.readers.flatbuffer", _read_flatbuffer, lambda: etdump_traces() + pte_programs()),
    Target(
        "xnnpack-payload",
        "opscope.runtimes.executorch.xnnpack",
        _read_payload,
        _payloads,
        (b"XH00", b"XN01", b"XN00"),
    ),
    Target(
        "xnnpack-log",
        "opscope.readers.kernels",
        _read_log,
        _logs,
        (b"microkernel '", b"Using ", b" (", b": "),
    ),
    Target("kernel-counts", "opscope.readers.kernels", _read_counts, _counts, (b"OPKCNT01", b"\xff" * 4, b"\0" * 8)),
    Target(
        "etrecord",
        "opscope.runtimes.executorch.etrecord",
        _read_etrecord,
        _etrecords,
        (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"../"),
    ),
    Target("etrecord-json", "opscope.runtimes.executorch.etrecord", _member, _json_members, _JSON),
    Target(
        "onnxruntime-profile",
        "opscope.runtimes.onnxruntime.profile",
        _read_onnxruntime_profile,
        lambda: [path.read_bytes() for path in sorted((DATA / "onnxruntime").glob("loop-*.json"))],
        (b'"cat" : "Node"', b"_kernel_time", b'"dur" :', b'"ts" :-1', b"SequentialExecutor::Execute"),
    ),
    Target("kit-csv", "opscope.kit.readers.csv", _read_kit, _kit, _CSV),
    Target("bundle-manifest", "opscope.bundle.consistency", _read_bundle_manifest, _bundle_manifests, _JSON),
    Target("kit-run", "opscope.kit.readers.directory", _read_kit_run, _manifests, _JSON),
    Target(
        "events-csv",
        "opscope.readers.events_table",
        _table_of("EventsCsvReader", "opscope.readers.events_table"),
        _tables_written("opscope.reports.formats.event_files", "events_csv"),
        _CSV,
    ),
    Target(
        "events-parquet",
        "opscope.readers.events_table",
        _table_of("EventsParquetReader", "opscope.readers.events_table"),
        _tables_written("opscope.reports.formats.event_files", "parquet"),
        (b"PAR1",),
    ),
    Target("aie-json", "opscope.npu.readers.json", aie_tiles.read_json, aie_tiles.json_traces, _TILES_JSON),
    Target(
        "aie-words",
        "opscope.npu.readers.words",
        aie_tiles.read_words,
        aie_tiles.words_traces,
        _TILES_WORDS,
        aie_commands.STRUCTURE,
        memory=_UNFOLDED,
        memory_a_byte=4 * MEMORY_A_BYTE,
    ),
    Target(
        "compressed",
        "opscope.readers.compressed",
        _read_compressed,
        _compressed,
        (b"\x1f\x8b", b"\x28\xb5\x2f\xfd"),
        memory=_UNFOLDED,
        memory_a_byte=4 * MEMORY_A_BYTE,
    ),
)


def targets() -> dict[str, Target]:
    """The targets whose readers are there, by name."""
    return {target.name: target for target in TARGETS if target.available}


def target_named(name: str) -> Target:
    """Return a target of the list, one of ``fuzz/commands.py``, or ``MODULE:OBJECT`` of one that stands elsewhere.

    Raises:
        SystemExit: there is none of this name.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, Target)
        return found
    if name in targets():
        return targets()[name]
    from fuzz import commands

    if name not in commands.TARGETS:
        readers = ", ".join(targets())
        raise SystemExit(f"no target {name!r}; readers: {readers}; commands, such as {next(iter(commands.TARGETS))}")
    return commands.TARGETS[name]
