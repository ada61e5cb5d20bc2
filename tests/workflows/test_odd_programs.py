"""Programs with parts that do not count: bundled inputs, constants, loops; and calls that take less than 10 µs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnx_models import body, model, node
from opscope.api import analyze, inspect, preflight
from opscope.core.errors import TraceFormatError
from opscope.reports.document.blocks import Format, column, table
from opscope.reports.document.terminal import terminal_document
from opscope.reports.inspected import inspected_document
from terminal_text import text_of
from traces import etdump

DATA = Path(__file__).parents[1] / "data"
GETTERS = DATA / "wild" / "getters.pte"
"""Methods ``encode`` and ``decode``, and 27 constants that executorch 1.5.1 exported as methods."""
_WIDTH = 32


def test_a_bundled_program_is_read_like_the_program_in_it() -> None:
    """Analysis and preflight see the linear layer, the addition and the multiplication of its delegate."""
    bundled = DATA / "scaled.bpte"
    summary = inspect(bundled)
    assert [row.name for row in summary.methods[0].delegates[0].nodes] == ["Add", "FullyConnected", "Multiply"]
    (method,) = preflight(bundled).methods
    assert (method.partition.delegated_operators, method.matrix.macs) == (3, 64)


def test_a_bundle_without_a_program_is_refused(tmp_path: Path) -> None:
    """Its first bytes say what it was."""
    cut = tmp_path / "cut.bpte"
    cut.write_bytes((DATA / "scaled.bpte").read_bytes()[:60])
    with pytest.raises(TraceFormatError):
        preflight(cut)


def test_constants_are_counted_and_not_listed() -> None:
    """A line names the first of them; the others are methods with their own blocks."""
    screen = text_of(terminal_document(inspected_document(inspect(GETTERS))))
    assert "2 methods, 27 constants" in screen
    assert screen.count("get_setting_") == 6
    assert len(inspect(GETTERS).methods) == 29
    assert [method.name for method in preflight(GETTERS).methods] == ["decode", "encode"]


def looped_model(trips: int | None) -> bytes:
    """Return a product before a loop whose graph has another product; None: an input says how often it runs."""
    loop = body(
        [node("Identity", "c", "c2"), node("MatMul", "s w", "s2", "inner")],
        {"i": ("int64", []), "c": ("bool", []), "s": ("float32", None)},
        {"c2": ("bool", []), "s2": ("float32", None)},
        {"w": np.eye(_WIDTH, dtype=np.float32)},
    )
    weights = {"cond": np.ones((), bool), "v": np.eye(_WIDTH, dtype=np.float32)}
    inputs: dict[str, tuple[str, list[int | str]]] = {"x": ("float32", [8, _WIDTH])}
    if trips is None:
        inputs["n"] = ("int64", [])
    else:
        weights["n"] = np.array(trips, np.int64)
    nodes = [node("MatMul", "x v", "y0", "first"), node("Loop", "n cond y0", "y", "loop", body=loop)]
    return model(body(nodes, inputs, {"y": ("float32", None)}, weights))


@pytest.mark.parametrize(("trips", "counted"), [(10, 10), (None, 1), (0, 0)])
def test_products_in_a_loop_count_once_for_each_iteration(trips: int | None, counted: int, tmp_path: Path) -> None:
    """The one inference that told the shapes ran the loop so often; an input that nobody gave is 1."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "loop.onnx").write_bytes(looped_model(trips))
    (method,) = preflight(tmp_path / "loop.onnx").methods
    assert method.loop_runs == counted
    assert method.matrix.macs == (1 + counted) * 8 * _WIDTH * _WIDTH
    assert "branches" in {message.rule for message in method.findings}


def test_short_times_have_their_unit(tmp_path: Path) -> None:
    """Of a call of 1.9 µs, 300 ns is no zero and no blank."""
    trace = tmp_path / "trace.etdump"
    lines = "Method::execute 1900\n  OPERATOR_CALL @0 500\n    native_call_add.out 300\n"
    trace.write_bytes(etdump(lines, repeat=9))
    screen = text_of(terminal_document(inspected_document(analyze(trace))))
    assert "300 ns" in screen
    assert "1.90 µs" in screen
    assert "0.001" not in screen


@pytest.mark.parametrize(
    ("times", "heads"),
    [
        ((300.0, 9_999.0), ("time", "baseline")),
        ((300.0, 10_000.0), ("ms", "baseline ms")),
        ((0.0, None), ("ms", "baseline ms")),
        (((1.0, 2.0), None), ("time", "baseline")),
    ],
)
def test_a_table_of_times_has_one_kind_of_unit(times: tuple[object, ...], heads: tuple[str, str]) -> None:
    """Milliseconds from 10 µs on."""
    ms = (column(head, Format.MS, lambda row: row) for head in ("ms", "baseline ms"))
    assert tuple(one.head for one in table(times, *ms).columns) == heads
