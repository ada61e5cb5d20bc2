"""Files that are no traces are distinguished by content, and what they hold is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from opscope.analysis.analysis import Analysis
from opscope.analysis.preflight.contents import Count, KernelSummary, ProgramSummary, RecordSummary
from opscope.api import inspect
from opscope.core.errors import TraceFormatError
from programs import tiny_program
from traces import etdump

LOG = b"""Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'. (init, gemm.c:9)
Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'.
I/XNNPACK ( 4711): Note (XNNPACK): Using dwconv microkernel 'strange'.
"""


def test_a_program_tells_its_methods_operators_and_delegates(tmp_path: Path) -> None:
    """Whatever its name."""
    path = tmp_path / "model.bin"
    path.write_bytes(tiny_program())
    found = inspect(path)
    assert isinstance(found, ProgramSummary)
    (method,) = found.methods
    assert (method.name, method.instructions, method.portable) == ("forward", 2, [Count("aten::add.out", 1)])
    assert [(delegate.backend, delegate.instructions) for delegate in method.delegates] == [("XnnpackBackend", [0])]


def test_a_delegate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """In what a person reads, though its nodes are not known."""
    path = tmp_path / "tiny.pte"
    path.write_bytes(tiny_program())
    command = [sys.executable, "-m", "opscope", "analyze", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 instructions, 1 delegate, " in text
    assert "delegate 0: XnnpackBackend, nodes unknown" in text


def test_the_heading_names_the_format_of_the_program(tmp_path: Path) -> None:
    """A .tflite is read as LiteRT and its delegate run it, whatever the file is called."""
    path = tmp_path / "model.bin"
    path.write_bytes((Path(__file__).parents[1] / "data" / "tflite" / "cnn.tflite").read_bytes())
    command = [sys.executable, "-m", "opscope", "analyze", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.splitlines()[0].endswith("model.bin (tflite)")


def test_a_log_tells_registered_kernels_and_no_more(tmp_path: Path) -> None:
    """Each kernel once, what does not parse is named, and the evidence is registration."""
    path = tmp_path / "run.log"
    path.write_bytes(LOG)
    found = inspect(path)
    assert isinstance(found, KernelSummary)
    assert found.evidence == "registration"
    assert found.kernels == ["xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast", "strange"]
    assert found.unparsed == ["strange"]


def test_a_trace_is_analysed(tmp_path: Path) -> None:
    """As before."""
    path = tmp_path / "trace"
    path.write_bytes(etdump("Method::execute 100", repeat=3))
    assert isinstance(inspect(path), Analysis)


@pytest.mark.runtime
def test_a_real_program_and_its_record(toy_program: Path) -> None:
    """Nodes of the delegates by kind; every node of the record's graph names the line it came from."""
    program, record = inspect(toy_program), inspect(toy_program.with_suffix(".etrecord"))
    assert isinstance(program, ProgramSummary)
    assert Count("Conv2d", 2) in program.methods[0].delegates[0].nodes
    assert program.methods[0].inputs[0].shape == [1, 3, 64, 64]
    assert isinstance(record, RecordSummary)
    assert record.with_source == sum(count.count for count in record.nodes) > 0


def test_several_files_at_once_are_a_list(tmp_path: Path) -> None:
    """Each by itself, in the order given, valid against its schema."""
    (tmp_path / "a.etdump").write_bytes(etdump("Method::execute 100", repeat=3))
    (tmp_path / "b.pte").write_bytes(tiny_program())
    command = [sys.executable, "-m", "opscope", "analyze", "a.etdump", "b.pte", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    first, second = json.loads(done.stdout)
    jsonschema.validate(first, msgspec.json.schema(Analysis))
    jsonschema.validate(second, msgspec.json.schema(ProgramSummary))
    text = subprocess.run(command[:-2], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert "median 100 ns" in text
    assert "aten::add.out" in text


def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    """Not taken for something else."""
    path = tmp_path / "b.pte"
    path.write_bytes(tiny_program()[:80])
    with pytest.raises(TraceFormatError):
        inspect(path)
