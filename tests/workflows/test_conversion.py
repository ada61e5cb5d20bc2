"""``opscope convert``: a trace or a bundle in another format, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import opscope
from command_line import opscope as command
from fakes import FakeClock, FakeTarget
from kit_files import pair, write_run
from opscope.api import CONVERT_FORMATS, Settings, analyze, convert, converted, profile
from opscope.bundle.bundle import Bundle
from opscope.cli.main import main
from opscope.core.errors import (
    BundleError,
    NotFoundError,
    OverwriteError,
    RunError,
    StorageError,
    TraceFormatError,
    UsageError,
)
from opscope.core.table import Clock, EventTable
from opscope.kit.run_files import kit_csv
from opscope.reports.formats.event_files import events_csv
from opscope.workflows.reports.conversion import ConvertOptions
from programs import write_tiny_program
from texts import ALL_FEATURES_ON
from traces import etdump, table

TRACE = """
    Program::load_method 900
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""
SEVERAL = ("model-explorer", "tables", "kit-csv", "kit")
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
    profile(
        str(program), settings=Settings(rounds=2, runs=3), out=directory / "out", target=FakeTarget(), clock=FakeClock()
    )
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
        ("speedscope", ["model.speedscope.json"]),
        ("folded", ["model.folded.txt"]),
        ("pprof", ["model.pb.gz"]),
        ("sarif", ["model.sarif"]),
        ("openmetrics", ["model.openmetrics.txt"]),
        ("github-benchmark", ["model.benchmark.json"]),
        ("bencher", ["model.bmf.json"]),
        ("model-card", ["model.card.md"]),
        ("tables", ["model_operators.csv", "model_categories.csv"]),
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
def test_files_are_written_beside_the_trace(trace: Path, form: str, names: list[str]) -> None:
    """With the suffix of the format; a second time only when that is asked for."""
    assert convert(trace, form) == [trace.parent / name for name in names]
    assert sorted(path.name for path in trace.parent.iterdir()) == sorted(["model.etdump", *names])
    with pytest.raises(BundleError):
        convert(trace, form)
    assert convert(trace, form, force=True) == [trace.parent / name for name in names]


def test_the_command_lists_the_files(trace: Path) -> None:
    """One name a line on standard output; --quiet says nothing."""
    done = command("convert", trace, "--to", "tables")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["model_operators.csv", "model_categories.csv"]
    assert done.stdout.splitlines() == [str(trace.parent / name) for name in names]
    again = command("convert", trace, "--to", "tables", "--force", "--quiet")
    assert (again.returncode, again.stdout) == (0, "")


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


@pytest.mark.parametrize("form", [form for form in CONVERT_FORMATS if form not in {*SEVERAL}])
def test_one_file_is_the_same_in_parts(trace: Path, form: str) -> None:
    """What goes to standard output is what goes to the file."""
    (written,) = convert(trace, form)
    assert written.read_bytes() == b"".join(converted(trace, form))


def test_one_file_can_go_to_standard_output(trace: Path) -> None:
    """The bytes of the file, and nothing beside them."""
    import subprocess
    import sys

    line = [sys.executable, "-m", "opscope", "convert", str(trace), "--to", "parquet", "--out", "-"]
    done = subprocess.run(line, capture_output=True, check=True)
    assert done.stdout == b"".join(converted(trace, "parquet"))
    assert done.stderr == b""


def test_warm_up_is_marked_as_asked(trace: Path) -> None:
    """In the rows of the CSV file."""
    counted = {
        number: sum(row["warmup"] == "true" for row in rows(b"".join(converted(trace, "csv", warmup=number))))
        for number in (0, 2)
    }
    assert counted == {0: 0, 2: 10}


def test_a_whole_bundle_is_a_timeline_of_all_its_processes(bundle: Path) -> None:
    """Named by variant and round, the accelerated ones first, with what is switched off beside the name."""
    document = json.loads(b"".join(converted(bundle, "perfetto")))
    records = [event for event in document["traceEvents"] if event["ph"] == "M"]
    named = {event["args"]["name"]: event["pid"] for event in records if event["name"] == "process_name"}
    variants = ("accelerated", "baseline")
    assert list(named) == [f"{variant}, round {number}" for variant in variants for number in (0, 1)]
    labels = {event["pid"]: event["args"]["labels"] for event in records if event["name"] == "process_labels"}
    assert labels[named["accelerated, round 0"]].startswith(f"{ALL_FEATURES_ON}, threads: 1")
    assert labels[named["baseline, round 1"]].startswith("avx512 off, threads: 1")
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == set(named.values())
    for variant in variants:
        own = sum(e["args"]["self_ns"] for e in events if e["pid"] in {named[f"{variant}, round {n}"] for n in (0, 1)})
        assert own == opscope.read(f"{bundle}#{variant}").frame["self_time"].sum()


def test_a_whole_bundle_is_a_profile_for_each_variant(bundle: Path) -> None:
    """The accelerated one first; their weights are their latencies without what is outside of operators."""
    profiles = json.loads(b"".join(converted(bundle, "speedscope")))["profiles"]
    assert [own["name"].partition(":")[0] for own in profiles] == ["accelerated", "baseline"]
    found = [analyze(f"{bundle}#{name}") for name in ("accelerated", "baseline")]
    inside = [own.headline_ns - sum(row.time_ns for row in own.outside) for own in found]
    assert [own["endValue"] for own in profiles] == pytest.approx(inside, abs=1)
    lines = b"".join(converted(bundle, "folded")).decode().splitlines()
    assert {line.partition(";")[0] for line in lines} == {"accelerated", "baseline"}
    alone = b"".join(converted(f"{bundle}#baseline", "folded")).decode().splitlines()
    assert [f"baseline;{line}" for line in alone] == [line for line in lines if line.startswith("baseline")]


def test_a_whole_bundle_is_one_table(bundle: Path, tmp_path: Path) -> None:
    """Operators and categories of each variant, and the name of the variant in front."""
    operators, categories = convert(bundle, "tables", out=tmp_path)
    for name in ("accelerated", "baseline"):
        found = analyze(f"{bundle}#{name}")
        copies = sum(row.time_ns for row in found.outside)
        for file, whole in ((operators, found.headline_ns - copies), (categories, found.headline_ns)):
            own = [float(row["time_ns"]) for row in rows(file.read_bytes()) if row["variant"] == name]
            assert sum(own) == pytest.approx(whole)


def test_a_whole_bundle_has_metrics_of_its_report(bundle: Path) -> None:
    """Of every variant, and of their comparison; one variant has its own and no comparison."""
    whole = b"".join(converted(bundle, "openmetrics")).decode()
    assert 'variant="baseline"' in whole
    labels = 'model="tiny",device="Test CPU, Linux x86_64",target="fake",cpu="Test CPU"'
    assert f'opscope_speedup_ratio{{{labels},candidate="accelerated"' in whole
    alone = b"".join(converted(f"{bundle}#baseline", "openmetrics")).decode()
    assert f'{labels},variant="baseline",role="baseline",threads="1"' in alone
    assert "speedup" not in alone
    assert 'variant="accelerated"' not in alone


def test_a_whole_bundle_is_a_graph_with_values_of_each_variant(bundle: Path, tmp_path: Path) -> None:
    """And of their comparison; one variant alone is not named again."""
    written = convert(bundle, "model-explorer", out=tmp_path)
    assert [file.name for file in written] == [
        "out.graph.json",
        "out.accelerated.time.json",
        "out.accelerated.share.json",
        "out.baseline.time.json",
        "out.baseline.share.json",
        "out.accelerated.against.baseline.speedup.json",
    ]
    graph, *values = [json.loads(file.read_bytes()) for file in written]
    (name,) = [each["id"] for each in graph["graphs"]]
    times = {own[name]["name"]: own[name]["results"] for own in values}
    assert times["baseline: mean ms"]["i0"]["value"] > times["accelerated: mean ms"]["i0"]["value"]
    alone = convert(f"{bundle}#baseline", "model-explorer", out=tmp_path)
    assert [file.name for file in alone] == [f"out-baseline.{what}.json" for what in ("graph", "time", "share")]
    with pytest.raises(BundleError):
        convert(bundle, "model-explorer", out=tmp_path)


def test_a_program_alone_is_a_graph(tmp_path: Path) -> None:
    """Without any values."""
    (written,) = convert(write_tiny_program(tmp_path), "model-explorer")
    assert written == tmp_path / "tiny.graph.json"
    assert [node["id"] for node in json.loads(written.read_bytes())["graphs"][0]["nodes"]] == ["i0", "i1"]


def test_the_program_of_a_trace_can_be_named(trace: Path) -> None:
    """Its operators then have nodes, and say in a timeline how they are known."""
    named = ConvertOptions(program=write_tiny_program(trace.parent))
    written = convert(trace, "model-explorer", options=named)
    assert [file.name for file in written] == [f"model.{what}.json" for what in ("graph", "time", "share")]
    document = json.loads(b"".join(converted(trace, "perfetto", options=named)))
    known = {
        event["args"].get("attribution") for event in document["traceEvents"] if event["name"] == "native_call_add.out"
    }
    assert known == {"exact"}


def test_a_run_of_the_kit_is_converted_whole(tmp_path: Path) -> None:
    """Every experiment, the candidate of its comparison first."""
    run = write_run(tmp_path / "run", pairs=[pair("alpha", "beta")])
    profiles = json.loads(b"".join(converted(run, "speedscope")))["profiles"]
    assert [own["name"].partition(":")[0] for own in profiles] == ["beta_t1", "alpha_t1"]
    metrics = b"".join(converted(run, "openmetrics")).decode()
    labels = 'model="toy_fp32",device="unknown CPU",target="Arm kit run"'
    assert f'opscope_speedup_ratio{{{labels},candidate="beta_t1"' in metrics
    named = [e["args"] for e in json.loads(b"".join(converted(run, "perfetto")))["traceEvents"] if e["ph"] == "M"]
    assert [args["labels"].partition(",")[0] for args in named if "labels" in args] == ["beta_t1", "alpha_t1"]


def test_a_bundle_in_which_nothing_succeeded_has_nothing_to_convert(bundle: Path, tmp_path: Path) -> None:
    """That is said as for reports, whatever the format."""
    import shutil

    shutil.copytree(bundle, tmp_path / "out")
    manifest = json.loads((tmp_path / "out/manifest.json").read_bytes())
    manifest["repetitions"] = []
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    for form in ("perfetto", "folded", "tables"):
        with pytest.raises(RunError):
            convert(tmp_path / "out", form)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("model.etdump --to parket", 2, "did you mean parquet"),
        ("model.etdump --to xml", 2, "speedscope, tables"),
        ("model.etdump --to model-explorer", 2, "name it with --program"),
        ("model.etdump --to model-explorer --out -", 2, "give a directory"),
        ("model.etdump --to csv --program tiny.pte", 2, "supported formats"),
        ("model.etdump --to tables --etrecord tiny.etrecord", 2, "add --program"),
        ("model.etdump --to tables --program there.csv", 4, "there.csv"),
        ("model.etdump --to folded --by line", 2, "known: module, operator"),
        ("model.etdump --to folded --by modul", 2, "did you mean module"),
        ("model.etdump --to csv --by module", 2, "speedscope, folded, pprof"),
        ("model.etdump --to speedscope --by module", 2, "--etrecord"),
        ("model.etdump", 2, "--to"),
        ("model.etdump --to kit-csv --out -", 2, "give a directory"),
        ("model.etdump --to csv --out there.csv", 19, "opscope did not write it"),
        ("model.etdump --to csv --out there.csv/x.csv", 9, "cannot be written"),
        ("model.etdump --to csv --warmup some", 2, "--warmup"),
        ("nowhere.etdump --to csv", 3, "no such file"),
        ("nowhere --to openmetrics", 3, "no such file"),
        ("there.csv --to parquet", 4, "unrecognised format"),
    ],
)
def test_wrong_input_gets_a_message_a_hint_and_a_code(
    arguments: str,
    code: int,
    said: str,
    trace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No traceback, and nothing left behind."""
    (trace.parent / "there.csv").write_text("something")
    monkeypatch.chdir(trace.parent)
    monkeypatch.setattr("sys.argv", ["opscope", "convert", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        main()
    written = capsys.readouterr()
    assert (left.value.code, written.out) == (code, "")
    assert said in written.err
    assert "Traceback" not in written.err
    assert sorted(path.name for path in trace.parent.iterdir()) == ["model.etdump", "there.csv"]


def test_the_figures_of_a_whole_bundle_are_those_of_its_report(bundle: Path) -> None:
    """So another warm-up is refused there, and taken for one variant."""
    with pytest.raises(UsageError, match="covers the whole bundle") as refused:
        convert(bundle, "openmetrics", warmup=1)
    assert "BUNDLE#variant" in str(refused.value.hint)
    assert b"opscope_latency" in b"".join(converted(f"{bundle}#baseline", "openmetrics", warmup=1))


def test_metrics_need_a_clock_in_nanoseconds(tmp_path: Path) -> None:
    """Cycles are not seconds."""
    columns = {name: table(TRACE).frame[name] for name in ("run", "scope", "name", "start", "duration")}
    events = EventTable.build(columns | {"parent": table(TRACE).frame["parent"].fill_null(-1)}, Clock.CYCLES)
    (tmp_path / "cycles.csv").write_bytes(b"".join(events_csv(events)))
    with pytest.raises(UsageError, match="cycles"):
        convert(tmp_path / "cycles.csv", "openmetrics")
    assert convert(tmp_path / "cycles.csv", "speedscope")


def test_errors_are_of_the_kind_that_fits(trace: Path) -> None:
    """For a notebook, which sees no exit code."""
    kinds = {
        UsageError: {"to": "xml"},
        OverwriteError: {"to": "csv", "out": trace},
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
    done = command("convert", "--help")
    (listed,) = [line for line in done.stdout.replace("\n", " ").split("--") if line.startswith("to FORMAT")]
    assert [word.strip(",.") for word in listed.split() if word.strip(",.") in CONVERT_FORMATS] == list(CONVERT_FORMATS)


LOAD = "Program::load_method"


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
            ["model", LOAD, LOAD, "portable", "1000.000", "1000.900", "0.000900", "", "0", "0", ""],
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
                "Convolution (NHWC, F32) IGEMM",
                "XNNPACK",
                "1102.900",
                "1152.900",
                "0.050000",
                "",
                "1",
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


def test_the_kits_statistics_are_of_one_inference() -> None:
    """By name without its number, longest first, over the inferences that count; loading is of a process."""
    events = EventTable.concat([table(TRACE, repeat=3, warmup=1), table(TRACE, repeat=3, warmup=1)])
    found = [(row["name"], row["count"], row["total_ms"], row["avg_ms"]) for row in rows(kit_csv(events, "model")[2])]
    assert found == [
        ("Method::execute", "1", "0.100000000", "0.100000000"),
        ("DELEGATE_CALL", "1", "0.070000000", "0.070000000"),
        ("Convolution (NHWC, F32) IGEMM", "1", "0.050000000", "0.050000000"),
        ("OPERATOR_CALL", "1", "0.020000000", "0.020000000"),
        ("native_call_add.out", "1", "0.019000000", "0.019000000"),
        (LOAD, "1", "0.000900000", "0.000900000"),
    ]


def test_an_unfinished_inference_is_in_no_statistics_of_the_kit() -> None:
    """Its events belong to no inference, and so to nothing that is of one; the timeline keeps them."""
    whole = EventTable.concat([table(TRACE, repeat=2), table("OPERATOR_CALL @1 500000\n  native_call_odd.out 400000")])
    timeline, _, statistics = kit_csv(whole, "model")
    assert "native_call_odd.out" in {row["name"] for row in rows(timeline)}
    assert "native_call_odd.out" not in {row["name"] for row in rows(statistics)}


def test_operators_of_one_type_are_one_line_of_the_kits_statistics() -> None:
    """Two in an inference: counted, added up, and their mean; a number sign within a name stays."""
    text = """
        Method::execute 100000
          DELEGATE_CALL @0 90000
            Convolution (NHWC, F32) IGEMM #1 50000
            Convolution (NHWC, F32) IGEMM #2 30000
            Odd #1 of 2 #3 10000
    """
    found = {row["name"]: row for row in rows(kit_csv(table(text, repeat=4), "model")[2])}
    both = found["Convolution (NHWC, F32) IGEMM"]
    assert (both["count"], both["total_ms"], both["avg_ms"]) == ("2", "0.080000000", "0.040000000")
    assert found["Odd #1 of 2"]["type"] == "Odd #1 of 2"


def test_the_kits_files_of_a_bundle_are_called_as_the_kit_calls_them(tmp_path: Path) -> None:
    """By model, experiment and threads, so that its reports name them."""
    bundle = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
    written = convert(bundle, "kit-csv", out=tmp_path)
    off = convert(f"{bundle}#baseline", "kit-csv", out=tmp_path)
    manifest = Bundle.open(bundle).manifest
    stems = [f"{manifest.model.name}_{name}_t1_exec" for name in ("accelerated", "baseline")]
    assert [path.name.startswith(stem) for path, stem in zip((written[0], off[0]), stems, strict=True)] == [True, True]


def test_a_trace_in_cycles_has_no_kit_files() -> None:
    """The kit's columns are microseconds."""
    given = table(TRACE).frame
    columns = {name: given[name] for name in ("run", "scope", "name", "start", "duration")}
    events = EventTable.build(columns | {"parent": given["parent"].fill_null(-1)}, Clock.CYCLES)
    with pytest.raises(UsageError, match="cycles"):
        kit_csv(events, "model")
