"""What a notebook gets: results as tables and as data frames, a live module profiled, examples that hold."""

from __future__ import annotations

import doctest
import html
import html.parser
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import polars as pl
import pytest
import vl_convert

import opscope
from aie_gemm import Gemm
from aie_traces import json_text
from bisections import found, state
from fakes import FakeClock, FakeTarget
from kernel_files import REPORT
from many_bundles import Made, Mint
from opscope.analysis.work.work import CountedOperator, RestWork, Work
from opscope.api import to_json
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.fleet.reports.answer import answer_parts
from opscope.fleet.results import HistoryResult
from opscope.measurements.notebook import NotebookResult, shown_as
from opscope.measurements.results import BisectionResult, WorkResult
from programs import write_tiny_program
from texts import WITHOUT_ITS_PROGRAM
from traces import etdump

TRACE = """
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""
HOSTILE = TRACE.replace("Convolution (NHWC, F32) IGEMM #1", "<script>alert(1)</script>")
LAYERED = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
"""A bundle with the record of its export."""
QUICK = opscope.Settings(rounds=6, runs=3, warmup=1)
TILES = opscope.TilesRequest(m=32, k=64, n=64, dtype="bf16", arch="npu1")
TAGS = set("div p b br table thead tbody tr th td ul li".split())
DOCUMENTED = (
    "opscope.measurements.results",
    "opscope.measurements.analyses",
    "opscope.workflows.measure.profiling",
    "opscope.measurements.sides",
)


COUNTED = CountedOperator(
    "forward",
    0,
    0,
    "Conv",
    "block.conv",
    "Convolution",
    "convolution",
    9,
    {"multiply_add": 5, "load": 4},
    64,
    8,
    0,
    40,
    36,
)
WORK = Work("tiny.pte", "00", "ExecuTorch", "x86-64", "Valgrind", [], [], [COUNTED], RestWork(3, 2, 1))
RESULTS: dict[str, Callable[[], NotebookResult]] = {
    "read": lambda: opscope.read("trace.etdump"),
    "analyze": lambda: opscope.analyze("out"),
    "compare": lambda: opscope.compare("out#baseline", "out#accelerated"),
    "profile": lambda: opscope.profile("tiny.pte", settings=QUICK, out="new", target=FakeTarget(), clock=FakeClock()),
    "check": lambda: opscope.check("out#accelerated", "out#baseline"),
    "validate": lambda: opscope.validate("out"),
    "preflight": lambda: opscope.preflight("tiny.pte"),
    "count": lambda: shown_as(WorkResult, WORK),
    "bisect": lambda: shown_as(BisectionResult, found(Path("releases"), [state(0, 1.0), state(1, 1.4)])),
    "kernels": lambda: opscope.kernels(["kernels.txt"]),
    "analyze_tiles": lambda: opscope.analyze_tiles("tiles/0.json", TILES),
    "combined": lambda: opscope.combined(["out", "nights/00"]),
    "sweep_tiles": lambda: opscope.sweep_tiles(["tiles/0.json", "tiles/1.json"], TILES),
    "compare_tiles": lambda: opscope.compare_tiles("tiles", "tiles/0.json"),
    "check_tiles": lambda: opscope.check_tiles("tiles", "tiles/0.json"),
    "add_to_store": lambda: opscope.add_to_store(["out"], "another"),
    "remove_from_store": lambda: opscope.remove_from_store([], "store", older_than=10_000),
    "verify_store": lambda: opscope.verify_store("store"),
    "store_entries": lambda: opscope.store_entries("store"),
    "query_store": lambda: opscope.query_store("SELECT variant, created, latency_ns, threads FROM runs", "store"),
    "stored_history": lambda: opscope.stored_history("latency", "history"),
    "stored_fleet": lambda: opscope.stored_fleet("store"),
    "check_fleet": lambda: opscope.check_fleet("2000-01-01", "history", where={"variant": "accelerated"}),
    "check_history": lambda: opscope.check_history("later", "store:", store="history"),
}
"""One call of every function of the package that gives a result, in the directory of the examples."""
PLAIN = set(
    """
    acknowledge_changes, check_kinds, check_new_changes, check_programs, combined_report,
    compact_store, content, convert, converted, count_kernels, default_directory, doctor, entries_stream,
    export, features, fleet_report, inspect, install_skills, keep_counts, kernel_filter, query_stream, report, run,
    skills, store_metrics, to_json, track, write_model, write_sweep, write_tiles
    """.replace(",", " ").split()
)
"""Functions that give no result to be looked at."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a trace and a bundle, as the examples name them."""
    directory = tmp_path_factory.mktemp("notebook")
    (directory / "trace.etdump").write_bytes(etdump(TRACE, repeat=4))
    program = write_tiny_program(directory)
    opscope.profile(program, settings=QUICK, out=directory / "out", target=FakeTarget(), clock=FakeClock())
    (directory / "kernels.txt").write_text(REPORT)
    (directory / "tiles").mkdir()
    for number in range(4):
        tile = Gemm(outputs=6, each=4, call=300 + number, rest=90).tile()
        (directory / "tiles" / f"{number}.json").write_bytes(b"".join(json_text([tile])))
    opscope.add_to_store([directory / "out"], directory / "store")
    mint = Mint(directory / "mint", operators=6, rounds=2, runs=2)
    for number in range(14):
        mint.make(directory / "nights" / f"{number:02}", Made(number, hours=number, factor=1.0 if number < 7 else 1.3))
    opscope.add_to_store([directory / "nights"], directory / "history")
    mint.make(directory / "later", Made(99, hours=99, factor=1.3))
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


def test_every_function_that_gives_a_result_gives_one_for_a_notebook() -> None:
    """By its annotation: a new function has to have frames, a short line and tables too, and an example below."""
    functions = {name for name in opscope.__all__ if inspect.isfunction(getattr(opscope, name))}
    assert functions - PLAIN == set(RESULTS)
    for name in RESULTS:
        kind = getattr(opscope, inspect.signature(getattr(opscope, name)).return_annotation)
        assert issubclass(kind, NotebookResult), name


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.usefixtures("inside")
def test_every_result_is_one_line_a_card_and_a_frame(name: str) -> None:
    """The line names the kind, what it is of, and the answer; pandas has the rows and columns of polars."""
    result = RESULTS[name]()
    line, card, frame = repr(result), result._repr_html_(), result.to_polars()
    assert line.startswith(f"<{type(result).__name__} ")
    assert line.endswith(">")
    assert len(line) < 450
    assert line.isprintable()
    assert cells(result).tags <= TAGS
    assert result._card().answer in html.unescape(card)
    assert all(kind not in {pl.List, pl.Object, pl.Null} for kind in frame.dtypes)
    pytest.importorskip("pandas")
    assert result.to_pandas().shape == frame.shape


@pytest.mark.usefixtures("inside")
def test_events_become_a_frame_and_a_table() -> None:
    """Every event is a row of the frame; the notebook shows the inferences."""
    events = opscope.read("trace.etdump")
    assert events.to_polars().height == events.events == 20
    assert ["0", "0", "measured", "100,000"] in cells(events).rows
    assert "4 inferences, 1 trace file" in events._repr_html_()


@pytest.mark.usefixtures("inside")
def test_an_analysis_becomes_a_frame_and_a_table() -> None:
    """Operators add up to the latency; the table begins with the categories."""
    where = opscope.analyze("trace.etdump", warmup=0)
    frame = where.to_polars()
    assert frame["time_ns"].sum() == pytest.approx(where.latency.mean_ns)
    assert ["Convolution", "0.050", "50.0 %"] in cells(where).rows
    assert "100 µs per inference on average" in where._repr_html_()


@pytest.mark.usefixtures("inside")
def test_a_comparison_becomes_a_frame_and_a_table() -> None:
    """Savings add up to the difference of the latencies; the verdict is the first thing to read."""
    change = opscope.compare("out#baseline", "out#accelerated")
    frame = change.to_polars()
    outside = sum(row.saved_ns for row in change.shift.outside)
    assert frame["saved_ns"].sum() + outside == pytest.approx(change.shift.saved_ns)
    assert (frame["ci95_low_ns"] <= frame["saved_ns"]).all()
    assert "faster" in change._repr_html_().split("</b>")[0]
    convolution = next(one for one in change.categories if one.category.value == "Convolution")
    saved = f"{convolution.saved_ns / 1e6:.3f}"
    assert any(row[0] == "Convolution" and saved in row[1:] for row in cells(change).rows)


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
    assert found.tags <= TAGS
    assert any("<script>alert(1)</script>" in cell for row in found.rows for cell in row)


def test_a_line_holds_no_control_characters(tmp_path: Path) -> None:
    """Whatever a file is called, a terminal is told nothing but text, in a list of results too."""
    path = tmp_path / "red\x1b[31m\nline.etdump"
    path.write_bytes(etdump(HOSTILE, repeat=2))
    assert repr(opscope.read(path)).isprintable()
    assert repr([opscope.analyze(path, warmup=0)]).count("red\\x1b[31m\\nline.etdump") == 1


def test_names_from_a_trace_are_text_in_a_chart(tmp_path: Path) -> None:
    """Also one that Vega could take for an expression; the picture is drawn."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump(TRACE.replace("Convolution (NHWC, F32) IGEMM #1", "datum['\\x1b'] <b>"), repeat=2))
    picture = vl_convert.vegalite_to_svg(opscope.analyze(path, warmup=0).plot().to_dict())
    assert "&lt;b&gt;" in picture
    assert "<b>" not in picture


@pytest.mark.usefixtures("inside")
def test_a_chart_of_nothing_is_refused() -> None:
    """A negative number would silently leave out the longest."""
    for chart in (opscope.analyze("out").plot, opscope.stored_history("latency", "history").plot):
        with pytest.raises(UsageError, match="shows nothing"):
            chart(most=-1)


@pytest.mark.usefixtures("inside")
def test_events_of_tiles_are_in_no_layer() -> None:
    """They are in no inference either."""
    events = opscope.read("tiles/0.json")
    assert events.with_layers().height == events.events > 0
    assert events.by_layer().height == 0


@pytest.mark.usefixtures("inside")
def test_inputs_belong_to_modules() -> None:
    """A .pte declares its own; the error says what to do."""
    with pytest.raises(UsageError, match="only PyTorch modules take inputs"):
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
    settings = opscope.Settings(rounds=1, runs=2, warmup=1, ceilings=False, dtype="fp16")
    done = opscope.profile(net, torch.randn(1, 3, 16, 16), settings=settings, out=tmp_path / "out")
    assert net.training
    assert net[0].weight.dtype == torch.float32
    assert done.content.manifest.model.source == str(tmp_path / "out-model" / "Sequential_xnnpack_fp16.pte")
    assert set(done.to_polars()["variant"]) == {"accelerated", "baseline"}
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.usefixtures("inside")
def test_a_result_is_written_as_the_plain_one() -> None:
    """JSON has the same schema and fields, of a list of results too."""
    for name in ("analyze", "compare", "check", "validate", "compare_tiles", "stored_history", "store_entries"):
        result = RESULTS[name]()
        plain = list(result) if isinstance(result, list) else shown_as(type(result).__mro__[2], result)
        assert type(plain) is not type(result)
        assert to_json(result) == to_json(plain), name
    assert json.loads(to_json(RESULTS["check"]()))["schema"] == "opscope.check/2"


def test_events_have_layers() -> None:
    """Of a bundle with the record of its export; the time of each inference is that of its layers and of the rest."""
    events = opscope.read(LAYERED)
    layers = events.by_layer()
    measured = events.inferences()
    for process, inference, duration in measured.select("process", "inference", "duration").iter_rows():
        own = layers.filter((pl.col("process") == process) & (pl.col("inference") == inference))
        assert own["self_time"].sum() == duration
    assert {"stem.0", "body", "norm", "head", None} <= set(layers["module"])
    rows = events.with_layers()
    assert rows.columns == [*events.to_polars().columns, "module", "module_type", "aten", "source", "attribution"]
    assert rows.select(events.to_polars().columns).equals(events.to_polars())
    assert rows.filter(~pl.col("scope").cast(pl.String).is_in(["delegate_op", "kernel"]))["module"].is_null().all()


def test_layers_are_those_of_the_analysis() -> None:
    """Every operator of the analysis has the module that its events have; a program alone gives no modules."""
    analysis, events = opscope.analyze(LAYERED), opscope.read(LAYERED).with_layers()
    for operator in analysis.operators:
        if operator.instruction is not None and operator.position is not None:
            place = (pl.col("instruction") == operator.instruction) & (pl.col("position") == operator.position)
            work = pl.col("scope").cast(pl.String).is_in(["delegate_op", "kernel"])
            assert set(events.filter(place & work)["module"]) == {operator.module}
    trace, model = LAYERED / "variants" / "accelerated" / "round-00" / "trace.etdump", next(LAYERED.glob("model/*.pte"))
    alone = opscope.read(trace, program=model)
    assert alone.by_layer()["module"].is_null().all()
    record = opscope.read(trace, program=model, etrecord=model.with_suffix(".etrecord"))
    assert "stem.0" in set(record.by_layer()["module"])


@pytest.mark.usefixtures("inside")
def test_without_a_program_no_layer_is_known() -> None:
    """The columns are there and empty, and nothing of the time is lost."""
    layers = opscope.read("trace.etdump").by_layer()
    assert layers["module"].is_null().all()
    assert layers["self_time"].to_list() == [100_000] * 4
    with pytest.raises(UsageError, match=f"{WITHOUT_ITS_PROGRAM}"):
        opscope.read("trace.etdump", etrecord="trace.etrecord")


@pytest.mark.usefixtures("inside")
def test_an_analysis_becomes_a_chart() -> None:
    """Bars of the longest operators in their order; the title says what is left out."""
    chart = opscope.analyze("trace.etdump", warmup=0).plot(most=1).to_dict()
    assert [(row["operator"], row["ms"]) for row in chart["data"]["values"]] == [
        ("Convolution (NHWC, F32) IGEMM #1", 0.05)
    ]
    assert chart["title"] == "1 of 2 operators, 50.0 % of the latency"


@pytest.mark.usefixtures("inside")
def test_a_comparison_becomes_a_chart() -> None:
    """Steps from the one latency to the other."""
    change = opscope.compare("out#baseline", "out#accelerated")
    chart = change.plot().to_dict()
    rows = (chart.get("data") or chart["layer"][0]["data"])["values"]
    assert rows[0]["high"] == pytest.approx(change.baseline.headline_ns / 1e6)
    assert rows[-1]["high"] == pytest.approx(change.candidate.headline_ns / 1e6)


@pytest.mark.usefixtures("inside")
def test_a_history_becomes_a_frame_and_a_chart() -> None:
    """Runs with their level and the change; one chart a series, and a title where some are left out."""
    history = RESULTS["stored_history"]()
    assert isinstance(history, HistoryResult)
    frame = history.to_polars()
    own = frame.filter(pl.col("variant") == "accelerated")
    assert own["run"].to_list() == list(range(14))
    assert own.filter(pl.col("change").is_not_null()).select("run", "change").rows() == [(7, pytest.approx(1.3))]
    assert own["level"].n_unique() == 2
    assert own["placed"].dtype == pl.Datetime("us")
    assert len(history.plot().to_dict()["vconcat"]) == len(history.series) == 2
    assert history.plot(most=1).to_dict()["title"] == "1 of 2 series, changed ones first"


@pytest.mark.usefixtures("inside")
def test_entries_of_a_store_are_a_list() -> None:
    """As before, and a frame besides."""
    entries = opscope.store_entries("history")
    assert isinstance(entries, list)
    assert [entry.bundle for entry in entries] == entries.to_polars()["bundle"].to_list()
    assert repr(entries).endswith("history: 14 bundles>")
    assert "showing the newest 10" in entries._repr_html_()


@pytest.mark.usefixtures("inside")
def test_types_of_an_answer_do_not_depend_on_its_rows() -> None:
    """A column of SQL keeps its type where all cells are null, or there are none."""
    sql = "SELECT latency_ns, threads, variant, created, role = 'baseline' AS base FROM runs"
    some, none = (opscope.query_store(f"{sql} WHERE {limit}", "store").to_polars() for limit in ("true", "false"))
    assert some.schema == none.schema
    assert list(some.dtypes) == [pl.Float64, pl.Int64, pl.String, pl.Datetime("us"), pl.Boolean]


@pytest.mark.usefixtures("inside")
def test_what_no_column_holds_is_its_text() -> None:
    """A UUID, also in a Parquet file; lists and structs stay what they are."""
    found = opscope.query_store("SELECT uuid() AS u, [1, 2] AS l, {'a': 1} AS s", "store")
    frame = found.to_polars()
    assert frame.schema == {"u": pl.String, "l": pl.List(pl.Int64), "s": pl.Struct({"a": pl.Int64})}
    assert found.to_pandas().shape == (1, 3)
    assert b"".join(answer_parts(found.columns, found.types, [found.rows], "parquet")).startswith(b"PAR1")


@pytest.mark.usefixtures("inside")
def test_traces_of_tiles_have_functions_of_their_own() -> None:
    """The errors of the others name them."""
    for function in (opscope.compare, opscope.check):
        with pytest.raises(UsageError, match="AI Engine traces") as caught:
            function("tiles", "tiles/0.json")
        assert caught.value.hint == f"call opscope.{function.__name__}_tiles"
    with pytest.raises(UsageError, match="budgets limit operators"):
        opscope.check("tiles", "tiles/0.json", budget="budget.toml")


@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.usefixtures("inside")
def test_the_examples_of_the_documentation_hold(name: str) -> None:
    """Docstrings of the public functions and results show what really comes out."""
    module = import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried > 0 or not [t for t in doctest.DocTestFinder().find(module) if t.examples]
