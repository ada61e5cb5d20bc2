"""What a notebook gets: results as tables and as data frames, a live module profiled, examples that hold."""

from __future__ import annotations

import doctest
import html.parser
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import opscope
from fakes import FakeClock, FakeTarget
from opscope.core.errors import MissingDependencyError, UsageError
from programs import write_tiny_program
from traces import etdump

TRACE = """
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""
HOSTILE = TRACE.replace("Convolution (NHWC, F32) IGEMM #1", "<script>alert(1)</script>")
DOCUMENTED = (
    "opscope.measurements.results",
    "opscope.measurements.analyses",
    "opscope.workflows.measure.profiling",
    "opscope.measurements.sides",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a trace and a bundle, as the examples name them."""
    directory = tmp_path_factory.mktemp("notebook")
    (directory / "trace.etdump").write_bytes(etdump(TRACE, repeat=4))
    program = write_tiny_program(directory)
    settings = opscope.Settings(rounds=6, runs=3, warmup=1)
    opscope.profile(program, settings=settings, out=directory / "out", target=FakeTarget(), clock=FakeClock())
    return directory


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, as the working directory."""
    monkeypatch.chdir(place)
    return place


class Cells(html.parser.HTMLParser):
    """Cells of the tables in a piece of HTML, row by row, and the names of all tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, _attributes: list[tuple[str, str | None]]) -> None:
        """A row, a cell, or any other tag."""
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        """Text of the cell that was begun last."""
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.rstrip("\n")


def cells(result: object) -> Cells:
    """The tables that a notebook shows."""
    return Cells(result._repr_html_())


@pytest.mark.usefixtures("inside")
def test_events_become_a_frame_and_a_table() -> None:
    """Every event is a row of the frame; the notebook shows the inferences."""
    events = opscope.read("trace.etdump")
    assert events.to_polars().height == events.events == 20
    assert ["0", "0", "measured", "100,000"] in cells(events).rows
    assert "4 inferences, 1 trace file" in events._repr_html_()


@pytest.mark.usefixtures("inside")
def test_an_analysis_becomes_a_frame_and_a_table() -> None:
    """Operators add up to the mean latency; the table begins with the categories."""
    where = opscope.analyze("trace.etdump", warmup=0)
    frame = where.to_polars()
    assert frame["time_ns"].sum() == pytest.approx(where.latency.mean_ns)
    assert ["Convolution", "0.050", "50.0 %"] in cells(where).rows
    assert "median 100 µs per inference" in where._repr_html_()


@pytest.mark.usefixtures("inside")
def test_a_comparison_becomes_a_frame_and_a_table() -> None:
    """Savings add up to the difference of the means; the verdict is the first thing to read."""
    change = opscope.compare("out#baseline", "out#accelerated")
    frame = change.to_polars()
    assert frame["saved_ns"].sum() == pytest.approx(change.baseline.mean_ns - change.candidate.mean_ns)
    assert (frame["ci95_low_ns"] <= frame["saved_ns"]).all()
    assert "faster" in change._repr_html_().split("</b>")[0]
    convolution = next(one for one in change.categories if one.category.value == "Convolution")
    saved = f"{convolution.shown_saved_ns / 1e6:.3f}"
    assert any(row[0] == "Convolution" and row[-1] == saved for row in cells(change).rows)


def test_a_profile_becomes_a_frame_and_a_table(tmp_path: Path) -> None:
    """Operators of both variants in one frame; the answer, the variants and the place of the report in the table."""
    program = write_tiny_program(tmp_path)
    settings = opscope.Settings(rounds=6, runs=3, warmup=1)
    done = opscope.profile(program, settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    assert set(done.to_polars()["variant"]) == {"accelerated", "baseline"}
    shown = done._repr_html_()
    assert "with acceleration" in shown
    assert str(tmp_path / "out" / "report.html") in shown
    assert "Measurement quality: " in shown


@pytest.mark.usefixtures("inside")
def test_pandas_says_what_is_missing() -> None:
    """Whole numbers stay whole where some are missing: framework time has no instruction."""
    pandas = pytest.importorskip("pandas")
    frame = opscope.analyze("trace.etdump", warmup=0).to_pandas()
    assert str(frame["instruction"].dtype) == "Int64"
    assert frame["instruction"].isna().sum() == opscope.analyze("trace.etdump").to_polars()["instruction"].null_count()
    assert isinstance(frame, pandas.DataFrame)


@pytest.mark.parametrize(
    "result", ["read('trace.etdump')", "analyze('out')", "compare('out#baseline', 'out#accelerated')"]
)
@pytest.mark.usefixtures("inside")
def test_every_result_becomes_a_pandas_frame_of_the_same_rows(result: str) -> None:
    """Rows and columns are those of the polars frame."""
    pytest.importorskip("pandas")
    found = eval(f"opscope.{result}")  # noqa: S307 - the three calls above
    assert found.to_pandas().shape == found.to_polars().shape


@pytest.mark.usefixtures("inside")
def test_without_pandas_the_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pandas cannot be imported, only ``to_pandas`` fails."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    events = opscope.read("trace.etdump")
    assert events.to_polars().height == 20
    with pytest.raises(MissingDependencyError, match="pandas is not installed") as raised:
        events.to_pandas()
    assert raised.value.hint == "install it with: pip install pandas; or use .to_polars()"


def test_names_from_a_trace_are_text(tmp_path: Path) -> None:
    """An operator that is named like a tag is shown as its name."""
    path = tmp_path / "<b>trace.etdump"
    path.write_bytes(etdump(HOSTILE, repeat=2))
    found = cells(opscope.analyze(path, warmup=0))
    assert found.tags <= {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert any("<script>alert(1)</script>" in cell for row in found.rows for cell in row)


@pytest.mark.usefixtures("inside")
def test_inputs_belong_to_modules() -> None:
    """A .pte declares its own; the error says what to do."""
    with pytest.raises(UsageError, match="inputs are for PyTorch modules"):
        opscope.profile("tiny.pte", (1, 2), out="never", target=FakeTarget())
    assert not Path("never").exists()


def test_a_module_needs_inputs() -> None:
    """Nothing else tells its shapes."""
    with pytest.raises(UsageError, match="a PyTorch module needs inputs"):
        opscope.profile(object(), out="never", target=FakeTarget())


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_a_live_module_is_profiled(tmp_path: Path) -> None:
    """A module of a notebook is exported from a copy, its program kept beside the bundle, and measured for real."""
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).train()
    settings = opscope.Settings(rounds=1, runs=2, warmup=1, roofs=False, dtype="fp16")
    done = opscope.profile(net, torch.randn(1, 3, 16, 16), settings=settings, out=tmp_path / "out")
    assert net.training
    assert net[0].weight.dtype == torch.float32
    assert done.content.manifest.model.source == str(tmp_path / "out-model" / "Sequential_xnnpack_fp16.pte")
    assert set(done.to_polars()["variant"]) == {"accelerated", "baseline"}
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.usefixtures("inside")
def test_the_examples_of_the_documentation_hold(name: str) -> None:
    """Docstrings of the public functions and results show what really comes out."""
    module = import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried > 0 or not [t for t in doctest.DocTestFinder().find(module) if t.examples]
