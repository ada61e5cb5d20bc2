"""ETRecords without their tensors: smaller files that read the same, also with ExecuTorch's own parser."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from etrecords import GRAPH, MARK, SMALL, archive, graph, node
from opscope.core.errors import TraceFormatError
from opscope.runtimes.executorch.etrecord import is_etrecord, read_etrecord, slim_etrecord
from texts import NOT_WHAT_IT_SHOULD

WEIGHTS = b"\x80\x04 no pickle that anybody may open " * 1000


def _write_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _member_sizes(data: bytes) -> dict[str, int]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {info.filename: info.file_size for info in file.infolist()}


def test_tensors_are_left_out_and_what_is_read_stays(tmp_path: Path) -> None:
    """Empty members stand where ExecuTorch looks for tensors; the graph before the edge dialect goes with its own."""
    edge = graph(node(debug_handle="3"))
    full = archive(
        {
            "exported_program": graph(node()),
            "exported_program_state_dict": WEIGHTS,
            GRAPH: edge,
            f"{GRAPH}_state_dict": WEIGHTS,
            f"{GRAPH}_constants": WEIGHTS,
            f"{GRAPH}_example_inputs": WEIGHTS,
            "debug_handle_map": {"forward": {"0": [3]}},
            "reference_outputs": WEIGHTS,
            "export_graph_id": "140",
        }
    )
    slim = slim_etrecord(_write_file(tmp_path / "full.etrecord", full))
    assert _member_sizes(slim) == {
        MARK: 0,
        GRAPH: len(json.dumps(edge)),
        f"{GRAPH}_state_dict": 0,
        f"{GRAPH}_constants": 0,
        f"{GRAPH}_example_inputs": 0,
        "debug_handle_map": len('{"forward": {"0": [3]}}'),
        "export_graph_id": 3,
    }
    assert is_etrecord(slim[:64])
    assert read_etrecord(_write_file(tmp_path / "slim.etrecord", slim)) == read_etrecord(tmp_path / "full.etrecord")


def test_the_same_record_gives_the_same_bytes_and_a_slim_one_gives_itself(tmp_path: Path) -> None:
    """So that two bundles of one export have equal records."""
    slim = slim_etrecord(_write_file(tmp_path / "full.etrecord", SMALL))
    assert slim_etrecord(tmp_path / "full.etrecord") == slim
    assert slim_etrecord(_write_file(tmp_path / "slim.etrecord", slim)) == slim


def test_a_record_that_compresses_too_well_is_not_compressed(tmp_path: Path) -> None:
    """The reader would take it for a zip bomb."""
    monotonous = archive({GRAPH: graph(node(stack_trace=" " * 2**21))})
    slim = slim_etrecord(_write_file(tmp_path / "full.etrecord", monotonous))
    assert len(slim) > 2**21
    assert read_etrecord(_write_file(tmp_path / "slim.etrecord", slim)).graphs[0].nodes[0].target == "aten.relu.default"


@pytest.mark.parametrize("size", [0, 40, len(SMALL) - 1])
def test_a_damaged_record_is_not_slimmed(tmp_path: Path, size: int) -> None:
    """The error is that of reading it."""
    with pytest.raises(TraceFormatError, match="not an ETRecord"):
        slim_etrecord(_write_file(tmp_path / "cut.etrecord", SMALL[:size]))


def test_nonsense_that_is_not_unpacked_does_not_matter(tmp_path: Path) -> None:
    """A graph that cannot be read is kept as it is: reading it says what is wrong."""
    slim = slim_etrecord(_write_file(tmp_path / "full.etrecord", archive({GRAPH: "{", f"{GRAPH}_state_dict": WEIGHTS})))
    with pytest.raises(TraceFormatError, match=NOT_WHAT_IT_SHOULD):
        read_etrecord(_write_file(tmp_path / "slim.etrecord", slim))


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_executorchs_own_parser_opens_both(exported_toy: Path, tmp_path: Path) -> None:
    """The exported record with its weights; the slim one with the same graphs and handles, and no weights."""
    from executorch.devtools import parse_etrecord

    exported = exported_toy.with_suffix(".etrecord")
    slim = _write_file(tmp_path / "slim.etrecord", slim_etrecord(exported))
    assert slim.stat().st_size < exported.stat().st_size / 10
    assert read_etrecord(slim) == read_etrecord(exported)
    full, without = parse_etrecord(str(exported)), parse_etrecord(str(slim))
    graphs = [str(record.edge_dialect_program.graph) for record in (full, without)]
    assert graphs[0] == graphs[1]
    assert full.edge_dialect_program.state_dict
    assert not without.edge_dialect_program.state_dict
    assert (full.exported_program is None, without.exported_program is None) == (False, True)
    for part in ("_debug_handle_map", "_delegate_map", "_instruction_id_to_num_outs_map", "export_graph_id"):
        assert getattr(without, part) == getattr(full, part)
