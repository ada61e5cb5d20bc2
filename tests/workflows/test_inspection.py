"""Files that are no traces are distinguished by content, and what they hold is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import jsonschema
import msgspec
import pytest

from opscope.analysis.analysis import Analysis
from opscope.analysis.preflight.contents import Count, KernelSummary, ProgramSummary, RecordSummary
from opscope.api import inspect
from opscope.core.errors import TraceFormatError
from programs import tiny_program
from traces import etdump

Run: TypeAlias = Callable[..., tuple[int, str]]
LOG = b"""Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'. (init, gemm.c:9)
Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'.
I/XNNPACK ( 4711): Note (XNNPACK): Using dwconv microkernel 'strange'.
"""


def test_a_program_tells_its_methods_operators_and_delegates(tmp_path: Path, run: Run) -> None:
    """Read it whatever its name; a delegate whose nodes are not known is named in what a person reads.

    The heading names the format: a .tflite is read as LiteRT and its delegate run it. A damaged program is refused, and
    not taken for something else.
    """
    path = tmp_path / "model.bin"
    path.write_bytes(tiny_program())
    (method,) = inspect(path).methods
    assert (method.name, method.instructions, method.portable) == ("forward", 2, [Count("aten::add.out", 1)])
    assert [(delegate.backend, delegate.instructions) for delegate in method.delegates] == [("XnnpackBackend", [0])]
    _, text = run("analyze", path)
    assert "2 instructions, 1 delegate, " in text
    assert "delegate 0: XnnpackBackend, nodes unknown" in text
    path.write_bytes((Path(__file__).parents[1] / "data" / "tflite" / "cnn.tflite").read_bytes())
    assert run("analyze", path)[1].splitlines()[0].endswith("model.bin (tflite)")
    path.write_bytes(tiny_program()[:80])
    with pytest.raises(TraceFormatError):
        inspect(path)


def test_a_log_tells_registered_kernels_and_no_more(tmp_path: Path) -> None:
    """List each kernel once, and name what does not parse; the evidence is registration."""
    path = tmp_path / "run.log"
    path.write_bytes(LOG)
    found = inspect(path)
    assert isinstance(found, KernelSummary)
    assert found.kernels == ["xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast", "strange"]
    assert (found.evidence, found.unparsed) == ("registration", ["strange"])


@pytest.mark.runtime
def test_a_real_program_and_its_record(toy_program: Path) -> None:
    """Count nodes of the delegates by kind; every node of the record's graph names the line it came from."""
    program, record = inspect(toy_program), inspect(toy_program.with_suffix(".etrecord"))
    assert Count("Conv2d", 2) in program.methods[0].delegates[0].nodes
    assert program.methods[0].inputs[0].shape == [1, 3, 64, 64]
    assert isinstance(record, RecordSummary)
    assert record.with_source == sum(count.count for count in record.nodes) > 0


def test_several_files_at_once_are_a_list(tmp_path: Path, run: Run) -> None:
    """Keep each by itself, in the order given, valid against its schema."""
    trace, program = tmp_path / "a.etdump", tmp_path / "b.pte"
    trace.write_bytes(etdump("Method::execute 100", repeat=3))
    program.write_bytes(tiny_program())
    assert isinstance(inspect(trace), Analysis)
    first, second = json.loads(run("analyze", trace, program, "--json", "-")[1])
    jsonschema.validate(first, msgspec.json.schema(Analysis))
    jsonschema.validate(second, msgspec.json.schema(ProgramSummary))
    _, text = run("analyze", trace, program)
    assert "100 ns per inference" in text
    assert "aten::add.out" in text
