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
from kernel_files import FILE
from many_bundles import Made, Mint
from opscope.analysis.tuning import CandidateResult, ConfirmedGain, Tuning, TuningCandidate
from opscope.analysis.work.work import CountedOperator, RestWork, Work
from opscope.api import to_json
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.fleet.reports.tables import answer_parts
from opscope.measurements.notebook import NotebookResult, shown_as
from opscope.measurements.results import BisectionResult, TuningResult, WorkResult
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
HOSTILE = "datum['\\x1b'] <script>alert(1)</script>"
LAYERED = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
"""A bundle with the record of its export."""
QUICK = opscope.Settings(rounds=6, runs=3, warmup=1)
TILES = opscope.TilesRequest(m=32, k=64, n=64, dtype="bf16", arch="npu1")
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
_SETTING = CandidateResult(TuningCandidate("2 threads", 2), "winner", 1.6, ConfirmedGain(1.5, 1.4, 1.6, 1.05, 8))
TUNING = Tuning(
    model="tiny.pte",
    runtime="ExecuTorch",
    machine="a CPU",
    base=CandidateResult(TuningCandidate("default"), ""),
    candidates=[_SETTING],
    null=ConfirmedGain(1.0, 0.98, 1.02, 1.03, 8),
    winner="2 threads",
    reference="default",
    foreign_cpus=None,
    disturbed=None,
    seconds={"search": 10.0, "first": 20.0, "all": 21.0},
    directory="out",
)
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
    "replay_tuning": lambda: shown_as(TuningResult, TUNING),
    "tune": lambda: shown_as(TuningResult, TUNING),
    "kernels": lambda: opscope.kernels(["kernels.counts"]),
    "analyze_tiles": lambda: opscope.analyze_tiles("tiles/0.json", TILES),
    "combined": lambda: opscope.combined(["out", "nights/00"]),
    "compare_tiles": lambda: opscope.compare_tiles("tiles", "tiles/0.json"),
    "check_tiles": lambda: opscope.check_tiles("tiles", "tiles/0.json"),
    "add_to_store": lambda: opscope.add_to_store(["out"], "another"),
    "remove_from_store": lambda: opscope.remove_from_store([], "store", older_than=10_000),
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
    check_kinds, check_new_changes, check_programs, combined_report,
    content, convert, converted, count_kernels, default_directory, doctor, entries_stream,
    export, features, fleet_report, inspect, install_skills, keep_counts, kernel_filter, query_stream,
    read_guide, report, run, skills, to_json, write_model, write_tiles
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
    (directory / "kernels.counts").write_bytes(FILE)
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
    """Read it off its annotation: a new function has to have frames, a short line and tables too, and an example."""
    functions = {name for name in opscope.__all__ if inspect.isfunction(getattr(opscope, name))}
    assert functions - PLAIN == set(RESULTS)
    for name in RESULTS:
        kind = getattr(opscope, inspect.signature(getattr(opscope, name)).return_annotation)
        assert issubclass(kind, NotebookResult), name


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.usefixtures("inside")
def test_every_result_is_a_line_a_document_and_a_frame(name: str) -> None:
    """The line names the kind, what it is of, and the answer; pandas has the rows and columns of polars."""
    result = RESULTS[name]()
    line, shown, frame = repr(result), result._repr_html_(), result.to_polars()
    assert line.startswith(f"<{type(result).__name__} ")
    assert line.endswith(">")
    assert len(line) < 450
    assert line.isprintable()
    assert not cells(result).tags & {"script", "style", "iframe", "object", "svg"}
    assert result.answer in html.unescape(shown)
    assert all(kind not in {pl.List, pl.Object, pl.Null} for kind in frame.dtypes)
    pytest.importorskip("pandas")
    assert result.to_pandas().shape == frame.shape


@pytest.mark.usefixtures("inside")
def test_events_and_entries_become_a_frame_and_a_table() -> None:
    """Make a row of every event, and show the inferences; entries of a store are a list besides."""
    events = opscope.read("trace.etdump")
    assert events.to_polars().height == events.events == 20
    assert ["0", "0", "measured", "100,000"] in cells(events).rows
    assert "4 inferences, 1 trace file" in events._repr_html_()
    entries = opscope.store_entries("history")
    assert isinstance(entries, list)
    assert [entry.bundle for entry in entries] == entries.to_polars()["bundle"].to_list()
    assert repr(entries).endswith("history: 14 bundles>")
    assert "4 more" in entries._repr_html_()


@pytest.mark.usefixtures("inside")
def test_an_analysis_becomes_a_frame_a_table_and_a_chart() -> None:
    """Add operators up to the latency; begin the table with the categories; say what the chart leaves out."""
    where = opscope.analyze("trace.etdump", warmup=0)
    frame = where.to_polars()
    assert frame["time_ns"].sum() == pytest.approx(where.latency.mean_ns)
    assert ["Convolution", "0.050", "50.0 %"] in cells(where).rows
    assert "100 µs per inference on average" in where._repr_html_()
    chart = where.plot(most=1).to_dict()
    bars = [(row["operator"], row["ms"]) for row in chart["data"]["values"]]
    assert bars == [("Convolution (NHWC, F32) IGEMM #1", 0.05)]
    assert chart["title"] == "1 of 2 operators, 50.0 % of the latency"


@pytest.mark.usefixtures("inside")
def test_a_comparison_becomes_a_frame_a_table_and_a_chart() -> None:
    """Add savings up to the difference of the latencies; begin with the verdict; draw steps between the latencies."""
    change = opscope.compare("out#baseline", "out#accelerated")
    frame = change.to_polars()
    outside = sum(row.saved_ns for row in change.shift.outside)
    assert frame["saved_ns"].sum() + outside == pytest.approx(change.shift.saved_ns)
    assert (frame["ci95_low_ns"] <= frame["saved_ns"]).all()
    assert "faster" in change._repr_html_().split("</b>")[0]
    chart = change.plot().to_dict()
    rows = (chart.get("data") or chart["layer"][0]["data"])["values"]
    assert rows[0]["high"] == pytest.approx(change.baseline.headline_ns / 1e6)
    assert rows[-1]["high"] == pytest.approx(change.candidate.headline_ns / 1e6)


def test_a_profile_becomes_a_frame_and_a_table(tmp_path: Path) -> None:
    """Hold the operators of both variants in one frame; show the answer, the variants and the report's place."""
    program = write_tiny_program(tmp_path)
    done = opscope.profile(program, settings=QUICK, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    assert set(done.to_polars()["variant"]) == {"accelerated", "baseline"}
    assert [name for name, *_ in cells(done).rows[:2]] == ["with acceleration", "without acceleration"]
    for words in (str(tmp_path / "out"), "Measurement quality of latency"):
        assert words in done._repr_html_()


@pytest.mark.usefixtures("inside")
def test_pandas_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep numbers whole where some are missing, as framework time has no instruction; without pandas say so."""
    pytest.importorskip("pandas")
    analysis = opscope.analyze("trace.etdump", warmup=0)
    column = analysis.to_pandas()["instruction"]
    assert str(column.dtype) == "Int64"
    assert column.isna().sum() == analysis.to_polars()["instruction"].null_count() > 0
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert analysis.to_polars().height == len(column)
    with pytest.raises(MissingDependencyError, match="pandas") as raised:
        analysis.to_pandas()
    assert "pip install pandas" in str(raised.value.hint)


def test_names_from_a_trace_are_text(tmp_path: Path) -> None:
    """Show an operator named like a tag, or like an expression of Vega, by its name, and no control characters."""
    path = tmp_path / "<b>red\x1b[31m\nline.etdump"
    path.write_bytes(etdump(TRACE.replace("Convolution (NHWC, F32) IGEMM #1", HOSTILE), repeat=2))
    analysis = opscope.analyze(path, warmup=0)
    assert "script" not in cells(analysis).tags
    assert any(HOSTILE in cell for row in cells(analysis).rows for cell in row)
    assert repr(opscope.read(path)).isprintable()
    assert repr([analysis]).count("red\\x1b[31m\\nline.etdump") == 1
    picture = vl_convert.vegalite_to_svg(analysis.plot().to_dict())
    assert "&lt;script&gt;" in picture
    assert "<script>" not in picture


@pytest.mark.usefixtures("inside")
def test_a_history_becomes_a_frame_and_a_chart() -> None:
    """Show runs with their level and the change, one chart a series, and a title where some are left out.

    A chart of a negative number would silently leave out the longest, and is refused.
    """
    history = RESULTS["stored_history"]()
    frame = history.to_polars()
    own = frame.filter(pl.col("variant") == "accelerated")
    assert own["run"].to_list() == list(range(14))
    assert own.filter(pl.col("change").is_not_null()).select("run", "change").rows() == [(7, pytest.approx(1.3))]
    assert own["level"].n_unique() == 2
    assert own["placed"].dtype == pl.Datetime("us")
    assert len(history.plot().to_dict()["vconcat"]) == len(history.series) == 2
    assert history.plot(most=1).to_dict()["title"] == "1 of 2 series, changed ones first"
    for chart in (opscope.analyze("out").plot, history.plot):
        with pytest.raises(UsageError, match="shows nothing"):
            chart(most=-1)


@pytest.mark.usefixtures("inside")
def test_without_a_program_no_layer_is_known() -> None:
    """Leave the columns empty and lose nothing of the time; events of tiles are in no inference either."""
    layers = opscope.read("trace.etdump").by_layer()
    assert layers["module"].is_null().all()
    assert layers["self_time"].to_list() == [100_000] * 4
    with pytest.raises(UsageError, match=f"{WITHOUT_ITS_PROGRAM}"):
        opscope.read("trace.etdump", etrecord="trace.etrecord")
    events = opscope.read("tiles/0.json")
    assert events.with_layers().height == events.events > 0
    assert events.by_layer().height == 0


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        ("tiny.pte", (1, 2), "only PyTorch modules take inputs"),
        (object(), None, "a PyTorch module needs inputs"),
    ],
    ids=["a program with inputs", "a module without"],
)
@pytest.mark.usefixtures("inside")
def test_inputs_belong_to_modules(model: object, inputs: tuple[int, ...] | None, said: str) -> None:
    """Take them with a module, whose shapes nothing else tells, and not with a .pte, which declares its own."""
    with pytest.raises(UsageError, match=said):
        opscope.profile(model, inputs, out="never", target=FakeTarget())
    assert not Path("never").exists()


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


def test_events_have_the_layers_of_the_analysis() -> None:
    """Split the time of each inference of a bundle by the layers of its record; a program alone gives no modules."""
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
    work = pl.col("scope").cast(pl.String).is_in(["delegate_op", "kernel"])
    assert rows.filter(~work)["module"].is_null().all()
    for operator in opscope.analyze(LAYERED).operators:
        if operator.instruction is not None and operator.position is not None:
            place = (pl.col("instruction") == operator.instruction) & (pl.col("position") == operator.position)
            assert set(rows.filter(place & work)["module"]) == {operator.module}
    trace, model = LAYERED / "variants" / "accelerated" / "round-00" / "trace.etdump", next(LAYERED.glob("model/*.pte"))
    assert opscope.read(trace, program=model).by_layer()["module"].is_null().all()
    record = opscope.read(trace, program=model, etrecord=model.with_suffix(".etrecord"))
    assert "stem.0" in set(record.by_layer()["module"])


@pytest.mark.usefixtures("inside")
def test_types_of_an_answer_do_not_depend_on_its_rows() -> None:
    """Keep the type of a column whose cells are null or absent; what no column holds, as a UUID, is its text."""
    sql = "SELECT latency_ns, threads, variant, created, role = 'baseline' AS base FROM runs"
    some, none = (opscope.query_store(f"{sql} WHERE {limit}", "store").to_polars() for limit in ("true", "false"))
    assert some.schema == none.schema
    assert list(some.dtypes) == [pl.Float64, pl.Int64, pl.String, pl.Datetime("us"), pl.Boolean]
    found = opscope.query_store("SELECT uuid() AS u, [1, 2] AS l, {'a': 1} AS s", "store")
    assert found.to_polars().schema == {"u": pl.String, "l": pl.List(pl.Int64), "s": pl.Struct({"a": pl.Int64})}
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
