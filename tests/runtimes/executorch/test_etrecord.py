"""ETRecords read: operators with their modules and lines, maps of handles, and archives built to do harm."""

from __future__ import annotations

import io
import json
import pickle
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from etrecords import GRAPH, MARK, SMALL, STACK, TRACE, archive, graph, named, node
from opscope.core.errors import NotFoundError, StorageError, TraceFormatError
from opscope.program.structure.etrecord import (
    EdgeNode,
    EtRecord,
    ModuleScope,
    SourceLine,
)
from opscope.runtimes.executorch import etrecord as etrecord_archive
from opscope.runtimes.executorch.etrecord import is_etrecord, read_etrecord
from opscope.runtimes.executorch.pte import read_executable
from texts import NO_ZIP_FILE, NOT_WHAT_IT_SHOULD


@pytest.fixture
def read(tmp_path):
    """Reads bytes as an ETRecord."""

    def written_and_read(data: bytes) -> EtRecord:
        path = tmp_path / "model.etrecord"
        path.write_bytes(data)
        return read_etrecord(path)

    return written_and_read


@pytest.fixture
def only_node(read):
    """The operator of a record that has no other."""

    def made_and_read(**fields: object) -> EdgeNode:
        return read(archive({GRAPH: graph(node(**fields))})).graphs[0].nodes[0]

    return made_and_read


def test_an_operator_with_its_modules_and_lines(only_node):
    """The module of a layer and the line that called it, outermost first; the target without torch's path."""
    found = only_node(
        target="executorch.exir.dialects.edge.ops.aten.convolution.default",
        inputs=(named("x"), named("weight"), {"as_none": []}, {"as_ints": [1, 1]}, {"as_float": 0.5}),
        debug_handle="7",
        stack_trace=TRACE,
        nn_module_stack=STACK,
        from_node="[...]",
    )
    assert found == EdgeNode(
        name="relu",
        target="aten.convolution.default",
        inputs=("x", "weight"),
        outputs=("relu",),
        frames=(SourceLine("net.py", 30, "forward", "x = self.stem(x)"), SourceLine("conv.py", 5, "forward", "")),
        modules=(ModuleScope("", "net.Net"), ModuleScope("stem.0", "torch.nn.Conv2d")),
        handles=(7,),
    )


TENSORS = (
    {"as_tensors": [{"name": "a"}, {"name": "b"}]},
    {"as_optional_tensors": [{"as_tensor": {"name": "c"}}, {"as_none": []}]},
    {"as_optional_tensor": {"as_tensor": {"name": "d"}}},
    {"as_sym_int": {"as_name": "s0"}},
)
BLOCK = "k,getattr(L['self'].layers, '0'),net.Block"
MASK = 'File "net.py", line 3, in forward\n    x = x.where(mask, -Infinity)'


@pytest.mark.parametrize(
    ("field", "written", "attribute", "expected"),
    [
        *(("debug_handle", text, "handles", (3,)) for text in ("3", 3)),
        ("debug_handle", "[1, 2]", "handles", (1, 2)),
        ("debug_handle", "(4,)", "handles", (4,)),
        ("debug_handle", None, "handles", ()),
        ("inputs", TENSORS, "inputs", ("a", "b", "c", "d")),
        ("nn_module_stack", BLOCK, "modules", (ModuleScope("getattr(L['self'].layers, '0')", "net.Block"),)),
        ("stack_trace", MASK, "frames", (SourceLine("net.py", 3, "forward", "x = x.where(mask, -Infinity)"),)),
    ],
)
def test_fields_of_an_operator(only_node, field, written, attribute, expected):
    """Handles as text or number; tensors inside lists; paths that are expressions; words of numbers inside texts."""
    assert getattr(only_node(**{field: written}), attribute) == expected


@pytest.mark.parametrize("written", ["", "one", "[]", "9" * 30, "[1, [2]]", "-1"])
def test_other_debug_handles_are_refused(read, written):
    """The text is shown."""
    with pytest.raises(TraceFormatError, match="is not a debug handle"):
        read(archive({GRAPH: graph(node(debug_handle=written))}))


def test_tensors_have_sizes(read):
    """A size that can differ between calls is an expression."""
    sizes = [{"as_int": 1}, {"as_expr": {"expr_str": "s0", "hint": {"as_int": 8}}}]
    record = read(archive({GRAPH: graph(x={"dtype": 6, "sizes": sizes, "layout": 7})}))
    assert record.graphs[0].sizes == {"x": (1, "s0")}


def test_operators_of_branches_are_behind_those_of_the_method(read):
    """They have debug handles too."""
    branch = graph(node(debug_handle="5"))["graph_module"]["graph"]
    cond = node(target="cond", inputs=({"as_graph": {"name": "true", "graph": branch}},), debug_handle="4")
    record = read(archive({GRAPH: graph(cond, node(debug_handle="6"))}))
    assert [found.handles for found in record.graphs[0].nodes] == [(4,), (6,), (5,)]


def test_operators_by_handle(read):
    """One handle covers everything that one call became; an operator may have several."""
    nodes = [node(debug_handle=written) for written in ("1", "1", "[1, 2]")]
    by_handle = read(archive({GRAPH: graph(*nodes)})).graphs[0].by_handle()
    assert {handle: len(found) for handle, found in by_handle.items()} == {1: 3, 2: 1}


def test_every_method_has_its_graph(read):
    """Older exporters wrote one graph, under the bare name; it is that of forward."""
    both = {f"edge_dialect_exported_program/{name}": graph() for name in ("prefill", "decode")}
    assert [found.method for found in read(archive(both)).graphs] == ["prefill", "decode"]
    assert [found.method for found in read(archive({"edge_dialect_exported_program": graph()})).graphs] == ["forward"]


MAPS = {
    "debug_handle_map": {"forward": {"0": [1, 2, 2], "1": 6}},
    "delegate_map": {"forward": {"0": {"name": "Other", "delegate_map": {"conv": [1, 2], "7": 3}}}},
    "instruction_id_to_num_outs_map": {"forward": {"0": 2}},
}


def test_maps_from_instructions(read):
    """Handles are one number or several; the mark alone is a record without any."""
    handles = {("forward", 0): (1, 2, 2), ("forward", 1): (6,)}
    assert read(archive(MAPS)) == EtRecord((), handles, {("forward", 0): "Other"})
    assert read(archive({})) == EtRecord((), {}, {})


class _Bomb:
    """Its pickle runs code when it is opened."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


def test_pickles_are_never_opened(read):
    """The tensors beside the graph are pickles."""
    tensors = dict.fromkeys((f"{GRAPH}_state_dict", f"{GRAPH}_constants", "reference_outputs"), pickle.dumps(_Bomb()))
    assert len(read(archive({GRAPH: graph(node()), **tensors})).graphs) == 1


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../up", "a/../../up", "..", "C:/windows", "a\\..\\b", "edge_dialect_exported_program/../x"]
)
def test_names_that_point_out_of_the_archive_are_refused(read, tmp_path, name):
    """Nothing is extracted, and whoever writes such names means harm."""
    with pytest.raises(TraceFormatError, match="points outside the archive"):
        read(archive({name: "x"}))
    assert [path.name for path in tmp_path.iterdir()] == ["model.etrecord"]


def _zip_with(member: str | zipfile.ZipInfo, content: str, begun: bytes = b"") -> bytes:
    stream = io.BytesIO(begun)
    with zipfile.ZipFile(stream, "a") as file:
        file.writestr(member, content)
    return stream.getvalue()


def _link() -> bytes:
    """A member that is a symbolic link, as Unix zip files have them."""
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return _zip_with(link, "/etc/passwd", archive({}))


def _directory_with(offset: int, content: bytes) -> bytes:
    """A record with other bytes in the last entry of its directory."""
    data = archive({"debug_handle_map": {}})
    at = data.rindex(b"PK\x01\x02") + offset
    return data[:at] + content + data[at + len(content) :]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_link, "'link' is a link"),
        (lambda: _zip_with(MARK, "again", archive({})), "two members have the name 'ETRECORD_V0'"),
        (lambda: _directory_with(8, b"\x01"), "is encrypted"),
        (lambda: archive({GRAPH: graph()}, zipfile.ZIP_LZMA), "by an unusual method"),
        (lambda: _directory_with(20, struct.pack("<II", 2**31, 2**31)), r"would need 2,147,483,648 bytes"),
        (lambda: archive({f"m{number}": "" for number in range(10_001)}), "has 10,002 members"),
        (lambda: _zip_with("x", "y"), "the member ETRECORD_V0 is missing"),
        (lambda: b"", f"not an ETRecord: it is {NO_ZIP_FILE}"),
        (lambda: b"PK", f"not an ETRecord: it is {NO_ZIP_FILE}"),
        (lambda: b"PK\x03\x04" + bytes(60), f"not an ETRecord: it is {NO_ZIP_FILE}"),
        (lambda: b"\x10\0\0\0ET12" + bytes(64), f"not an ETRecord: it is {NO_ZIP_FILE}"),
    ],
    ids=["link", "name twice", "encrypted", "lzma", "huge", "many", "no mark", "empty", "two bytes", "zeros", "pte"],
)
def test_archives_that_no_exporter_writes_are_refused(read, make, problem):
    """Members that lead elsewhere, on which readers would disagree, or that need another decoder or much memory."""
    with pytest.raises(TraceFormatError, match=problem):
        read(make())


def test_deflated_members_are_read(read):
    """An archive that was packed again."""
    assert read(archive({GRAPH: graph(node())}, zipfile.ZIP_DEFLATED)) == read(archive({GRAPH: graph(node())}))


def test_a_zip_bomb_is_refused_before_it_is_inflated(read):
    """32 MiB of blanks in 32 kB."""
    bomb = archive({"debug_handle_map": " " * 2**25}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 2**16
    tracemalloc.start()
    with pytest.raises(TraceFormatError, match=r"would grow from [\d,]+ to 33,554,432 bytes: a zip bomb"):
        read(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_json_has_a_limit_over_all_members(read, monkeypatch):
    """Many members of legal size are as bad as one that is too large."""
    monkeypatch.setattr(etrecord_archive, "LARGEST_JSON", 3_000)
    graphs = {f"edge_dialect_exported_program/{number}": graph(node(name="x" * 1_000)) for number in range(3)}
    with pytest.raises(TraceFormatError, match="the limit is 3,000 for all"):
        read(archive(graphs))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[" * 100_000, NOT_WHAT_IT_SHOULD),
        ("{", NOT_WHAT_IT_SHOULD),
        ('{"graph_module": -Infinity}', NOT_WHAT_IT_SHOULD),
        ('{"a": NaN', NOT_WHAT_IT_SHOULD),
        ("[" * 100_000 + "NaN", NOT_WHAT_IT_SHOULD),
        ('{"x": NaN, "y": ' + "9" * 5000 + "}", NOT_WHAT_IT_SHOULD),
        (json.dumps(graph())[:-1] + ', "extra": ' + "[" * 50_000 + "]" * 50_000 + "}", "recursion"),
        (b"\xff\xfe", NOT_WHAT_IT_SHOULD),
        ({"graph_module": {}}, "missing required field"),
        ({"graph_module": {"graph": {"nodes": 3, "tensor_values": {}}}}, "Expected `array`"),
        (graph(node(nn_module_stack="one,two")), "not a module stack entry"),
        (graph(x={"dtype": 7, "sizes": [{}]}), "neither a number nor an expression"),
        (graph(x={"dtype": 7, "sizes": [{"as_int": -1}]}), "neither a number nor an expression"),
    ],
)
def test_json_of_another_shape_is_refused(read, content, problem):
    """The member is named, whichever reader goes last: one for numbers that are not finite, or the one for all else."""
    with pytest.raises(TraceFormatError, match=problem) as caught:
        read(archive({GRAPH: content}))
    assert GRAPH in str(caught.value)
    assert "export the model or copy the file again" in caught.value.hint


def test_a_missing_record_is_not_found(tmp_path):
    """A directory cannot be read."""
    with pytest.raises(NotFoundError, match="no such file"):
        read_etrecord(tmp_path / "absent.etrecord")
    with pytest.raises(StorageError, match="cannot be read"):
        read_etrecord(tmp_path)


def test_records_are_recognised_by_their_first_bytes():
    """A zip file whose first member is the mark."""
    assert is_etrecord(SMALL[:64])
    assert not is_etrecord(b"PK\x03\x04" + bytes(60))
    assert not is_etrecord(b"")


@pytest.fixture
def survives(read):
    """Whether damaged bytes still are a record; anything but a record or a format error is raised."""

    def tried(data: bytes) -> bool:
        try:
            read(data)
        except TraceFormatError:
            return False
        return True

    return tried


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_truncation_is_refused(survives, method):
    """A zip file has its directory at the end."""
    data = archive({GRAPH: graph(node(debug_handle="1"))}, method)
    assert survives(data)
    assert not any(survives(data[:size]) for size in range(len(data)))


@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1], ids=hex)
def test_no_size_or_offset_of_the_directory_is_trusted(survives, value):
    """Every byte position of the zip structures, four bytes replaced."""
    start = SMALL.index(b"PK\x01\x02")
    for at in [*range(60), *range(start, len(SMALL) - 3)]:
        survives(SMALL[:at] + struct.pack("<I", value) + SMALL[at + 4 :])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, None], ids=["stored", "deflated", "json"])
def test_flipped_bytes_are_an_error_or_a_record(survives, method):
    """800 records with one to four random bytes changed; checksums catch nearly all inside of members.

    Then with its checksum right, as a program that writes nonsense would do it.
    """
    rng = np.random.default_rng(8)
    content = graph(node(debug_handle="1", stack_trace=TRACE, nn_module_stack=STACK))
    whole = json.dumps(content).encode() if method is None else archive({GRAPH: content}, method)
    data = np.frombuffer(whole, np.uint8)
    outcomes = []
    for _ in range(800):
        damaged = data.copy()
        count = rng.integers(1, 5)
        damaged[rng.integers(0, len(data), count)] = rng.integers(0, 256, count)
        changed = damaged.tobytes()
        outcomes.append(survives(changed if method is not None else archive({GRAPH: changed})))
    assert 0 < sum(outcomes) < 800


@pytest.mark.runtime
def test_a_record_of_the_exporter(toy_program):
    """Operators, modules and lines of a real model, and instructions that agree with the program beside it."""
    record = read_etrecord(toy_program.with_suffix(".etrecord"))
    (edge,) = record.graphs
    assert [found.target for found in edge.nodes[:3]] == [
        "aten.convolution.default",
        "aten._native_batch_norm_legit_no_training.default",
        "aten.relu.default",
    ]
    assert edge.nodes[0].modules[-1] == ModuleScope("stem.0", "torch.nn.modules.conv.Conv2d")
    assert Path(edge.nodes[0].frames[0].file).name == "toy_cnn.py"
    assert edge.sizes["image"] == (1, 3, 64, 64)
    (plan,) = read_executable(toy_program).plans
    calls = {step for steps in plan.callers().values() for step in steps}
    assert {number for _, number in record.delegates} == calls
    assert {number for _, number in record.instruction_handles} == set(range(len(plan.chains[0].steps)))


@pytest.mark.parametrize("number", [float("-inf"), float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_read_wherever_they_stand(read, number):
    """Masks of attention are full of them, a size without an upper bound has one; the exporter writes bare words."""
    inputs = (named("x"), {"as_float": number}, {"as_floats": [1.0, number]})
    record = graph(node(inputs=inputs, debug_handle="3", stack_trace=TRACE), x={"dtype": 7, "sizes": [{"as_int": 2}]})
    record["range_constraints"] = {"s0": {"min_val": 0, "max_val": number}}
    found = read(archive({GRAPH: record, "debug_handle_map": {"forward": {"0": [3]}}}))
    assert [own.inputs for own in found.graphs[0].nodes] == [("x",)]
    assert found.graphs[0].nodes[0].handles == (3,)
    assert found.instruction_handles == {("forward", 0): (3,)}


@pytest.mark.parametrize(
    "members",
    [
        {"et_dialect_graph_module": b"\x80\x04pickle", "debug_handle_map": {"0": [1, 2]}},
        {"et_dialect_graph_module/forward": b"\x80\x04pickle", "program_buffer": b"....ET10"},
        {"program_buffer": b"....ET10", "debug_handle_map": {"forward": {"0": [1]}}, GRAPH: b"\x80\x04pickle"},
    ],
)
def test_a_record_of_2023_is_called_old(read, members):
    """Not corrupted: its graphs are pickles, which are never loaded."""
    with pytest.raises(TraceFormatError, match=r"ExecuTorch 0\.1, from 2023") as caught:
        read(archive(members))
    assert "export the model again" in caught.value.hint


def test_an_old_record_whose_graph_is_json_is_read(read):
    """The layout of the graph came before the program was left out."""
    record = read(archive({"program_buffer": b"....ET10", GRAPH: graph(node(debug_handle="3"))}))
    assert record.graphs[0].nodes[0].handles == (3,)
