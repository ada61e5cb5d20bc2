"""``opscope convert``: a trace in another format, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import CONVERT_FORMATS, Settings, convert, converted, profile
from opscope.errors import BundleError, NotFoundError, StorageError, TraceFormatError, UsageError
from opscope.report.kit_csv import kit_csv
from opscope.table import Clock, EventTable
from programs import write_tiny_program
from test_cli import opscope as command
from traces import etdump, table

TRACE = """
    Program::load_method 900
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""
TIMELINE = "model_id,name,type,delegate_backend,start_us,end_us,duration_ms,pct_total,node_id,run_index,block".split(
    ","
)
STATISTICS = "model_id,name,type,delegate_backend,count,total_ms,avg_ms,pct_total".split(",")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of four inferences."""
    path = tmp_path / "model.etdump"
    path.write_bytes(etdump(TRACE, repeat=4))
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle of two rounds."""
    directory = tmp_path_factory.mktemp("convert")
    program = write_tiny_program(directory)
    profile(str(program), Settings(rounds=2, runs=3), out=directory / "out", target=FakeTarget(), clock=FakeClock())
    return directory / "out"


def rows(content: bytes) -> list[dict[str, str]]:
    """Rows of a CSV file by column."""
    return list(csv.DictReader(io.StringIO(content.decode())))


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("csv", ["model.csv"]),
        ("parquet", ["model.parquet"]),
        ("perfetto", ["model.perfetto.json"]),
        (
            "kit-csv",
            [
                "model_exec_all_runs_timeline.csv",
                "model_exec_run0_timeline.csv",
                "model_exec_ops_stats.csv",
            ],
        ),
    ],
)
def test_files_are_written_beside_the_trace_and_listed(trace: Path, form: str, names: list[str]) -> None:
    """One name a line on standard output; --quiet says nothing."""
    done = command("convert", trace, "--to", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str(trace.parent / name) for name in names]
    again = command("convert", trace, "--to", form, "--force", "--quiet")
    assert (again.returncode, again.stdout) == (0, "")
    assert sorted(path.name for path in trace.parent.iterdir()) == sorted(["model.etdump", *names])


def test_what_is_converted_is_a_trace_again(trace: Path) -> None:
    """A chain of formats ends with the table it began with, and keeps its marks of warm-up."""
    (first,) = convert(trace, "parquet", warmup=1)
    (second,) = convert(first, "csv", warmup=1)
    (third,) = convert(second, "parquet", warmup=1, out=trace.parent / "third.parquet")
    assert_frame_equal(opscope.read(third).frame, opscope.read(trace).with_warmup(1).frame)


def test_what_is_converted_is_analysed_alike(trace: Path) -> None:
    """The same latency and the same operators."""
    expected = opscope.analyze(trace, warmup=1)
    for form in ("csv", "parquet"):
        found = opscope.analyze(convert(trace, form)[0], warmup=1)
        assert (found.latency, found.operators) == (expected.latency, expected.operators)


@pytest.mark.parametrize(
    ("variant", "name"), [("", "out.parquet"), ("#baseline", "out-baseline.parquet")], ids=["bundle", "variant"]
)
def test_bundles_and_variants_are_converted_beside_the_bundle(bundle: Path, variant: str, name: str) -> None:
    """All processes of the variant in one file, nothing written into the bundle."""
    before = sorted(bundle.rglob("*"))
    (written,) = convert(f"{bundle}{variant}", "parquet", force=True)
    assert written == bundle.parent / name
    assert sorted(bundle.rglob("*")) == before
    assert opscope.read(written).processes == 2


def test_a_directory_of_traces_is_one_file(tmp_path: Path) -> None:
    """Its processes are called after their files."""
    for name in ("a", "b"):
        (tmp_path / "runs").mkdir(exist_ok=True)
        (tmp_path / "runs" / f"{name}.etdump").write_bytes(etdump(TRACE))
    (written,) = convert(tmp_path / "runs", "perfetto")
    assert written == tmp_path / "runs.perfetto.json"
    events = json.loads(written.read_text())["traceEvents"]
    named = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [Path(name).name for name in named] == ["a.etdump", "b.etdump"]


@pytest.mark.parametrize("form", ["csv", "parquet", "perfetto"])
def test_one_file_can_go_to_standard_output(trace: Path, form: str) -> None:
    """The same bytes as in the file, and nothing beside them."""
    import subprocess
    import sys

    line = [sys.executable, "-m", "opscope", "convert", str(trace), "--to", form, "--out", "-"]
    done = subprocess.run(line, capture_output=True, check=True)
    (written,) = convert(trace, form)
    assert done.stdout == written.read_bytes() == b"".join(converted(trace, form))
    assert done.stderr == b""


def test_warm_up_is_marked_as_asked(trace: Path) -> None:
    """In the rows of the CSV file."""
    counted = {
        number: sum(row["warmup"] == "true" for row in rows(b"".join(converted(trace, "csv", warmup=number))))
        for number in (0, 2)
    }
    assert counted == {0: 0, 2: 10}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("model.etdump --to parket", 2, "did you mean parquet"),
        ("model.etdump --to xml", 2, "csv, kit-csv, parquet, perfetto"),
        ("model.etdump --to model-explorer", 2, "not available yet"),
        ("model.etdump", 2, "--to"),
        ("model.etdump --to kit-csv --out -", 2, "give a directory"),
        ("model.etdump --to csv --out there.csv", 8, "--force"),
        ("model.etdump --to csv --out there.csv/x.csv", 9, "cannot be written"),
        ("model.etdump --to csv --warmup some", 2, "--warmup"),
        ("nowhere.etdump --to csv", 3, "no such file"),
        ("there.csv --to parquet", 4, "not recognised"),
    ],
)
def test_wrong_input_gets_a_message_a_hint_and_a_code(arguments: str, code: int, said: str, trace: Path) -> None:
    """No traceback, and nothing left behind."""
    (trace.parent / "there.csv").write_text("something")
    done = command("convert", *arguments.split(), cwd=trace.parent)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in trace.parent.iterdir()) == ["model.etdump", "there.csv"]


def test_errors_are_of_the_kind_that_fits(trace: Path) -> None:
    """For a notebook, which sees no exit code."""
    kinds = {
        UsageError: {"to": "xml"},
        BundleError: {"to": "csv", "out": trace},
        StorageError: {"to": "csv", "out": trace / "below"},
    }
    for kind, arguments in kinds.items():
        with pytest.raises(kind):
            convert(trace, **arguments)
    with pytest.raises(NotFoundError):
        convert(trace.parent / "nowhere", "csv")
    trace.write_bytes(b"text")
    with pytest.raises(TraceFormatError):
        convert(trace, "csv")


def test_the_formats_are_listed() -> None:
    """In the order of the help."""
    assert CONVERT_FORMATS == ("csv", "parquet", "perfetto", "kit-csv")


def test_the_kit_files_have_the_kits_columns() -> None:
    """Name by name, in its order."""
    content = kit_csv(table(TRACE, repeat=2), "model")
    assert [text.decode().splitlines()[0].split(",") for text in content] == [TIMELINE, TIMELINE, STATISTICS]


def test_the_kits_way_to_latencies_gives_ours() -> None:
    """Method::execute, summed by run_index, as the kit's scripts do it."""
    events = EventTable.concat([table(TRACE, repeat=2), table(TRACE, repeat=3)])
    latencies: dict[int, Decimal] = {}
    for row in rows(kit_csv(events, "model")[0]):
        if row["name"] == "Method::execute":
            index = int(row["run_index"])
            latencies[index] = latencies.get(index, Decimal(0)) + Decimal(row["duration_ms"])
    assert latencies == dict.fromkeys(range(5), Decimal("0.1"))
    assert sum(latencies.values()) * 10**6 == events.inferences()["duration"].sum()


def test_a_row_of_the_kits_timeline() -> None:
    """Times are exact decimals; loading stands before the first run."""
    found = rows(kit_csv(table(TRACE, repeat=2), "model")[0])
    assert found[0] | {"pct_total": "", "block": ""} == dict(
        zip(
            TIMELINE,
            ["model", "Program::load_method", "load", "", "1000.000", "1000.900", "0.000900", "", "", "0", ""],
            strict=True,
        )
    )
    operator = found[6] | {"pct_total": "", "block": ""}
    assert operator == dict(
        zip(
            TIMELINE,
            [
                "model",
                "Convolution (NHWC, F32) IGEMM #1",
                "delegate_op",
                "XNNPACK",
                "1102.900",
                "1152.900",
                "0.050000",
                "",
                "0",
                "1",
                "",
            ],
            strict=True,
        )
    )


def test_the_first_run_stands_alone() -> None:
    """With its loading."""
    _, first, _ = kit_csv(table(TRACE, repeat=3), "model")
    assert {row["run_index"] for row in rows(first)} == {"0"}
    assert len(rows(first)) == 6


def test_percentages_are_of_self_time_and_add_up_to_100() -> None:
    """In each of the three files; nested time is counted once."""
    for content in kit_csv(table(TRACE, repeat=3), "model"):
        assert sum(float(row["pct_total"]) for row in rows(content)) == pytest.approx(100)


def test_the_kits_statistics_leave_warm_up_out() -> None:
    """By name, longest first, over the inferences that count."""
    _, _, content = kit_csv(table(TRACE, repeat=3, warmup=1), "model")
    found = [(row["name"], row["count"], row["total_ms"], row["avg_ms"]) for row in rows(content)]
    assert found == [
        ("Method::execute", "2", "0.200000", "0.100000"),
        ("DELEGATE_CALL", "2", "0.140000", "0.070000"),
        ("Convolution (NHWC, F32) IGEMM #1", "2", "0.100000", "0.050000"),
        ("OPERATOR_CALL", "2", "0.040000", "0.020000"),
        ("native_call_add.out", "2", "0.038000", "0.019000"),
    ]


def test_a_trace_in_cycles_has_no_kit_files() -> None:
    """The kit's columns are microseconds."""
    given = table(TRACE).frame
    columns = {name: given[name] for name in ("run", "scope", "name", "start", "duration")}
    events = EventTable.build(columns | {"parent": given["parent"].fill_null(-1)}, Clock.CYCLES)
    with pytest.raises(UsageError, match="cycles"):
        kit_csv(events, "model")
