"""``opscope convert``: a trace or a bundle in another format, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import pytest
from polars.testing import assert_frame_equal

import opscope
from bundle_damage import edit
from command_line import ended_here
from fakes import FakeClock, FakeTarget
from kit_files import TIMELINE, pair, write_run
from opscope.api import CONVERT_FORMATS, Settings, analyze, convert, converted, profile
from opscope.bundle.bundle import Bundle
from opscope.core.errors import BundleError, RunError, UsageError
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
Run: TypeAlias = Callable[..., tuple[int, str]]
LOAD = "Program::load_method"
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
        ("github-benchmark", ["model.benchmark.json"]),
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
    """Take the suffix of the format, and write a second time only when that is asked for.

    What goes to standard output is what goes to a single file.
    """
    assert convert(trace, form) == [trace.parent / name for name in names]
    assert sorted(path.name for path in trace.parent.iterdir()) == sorted(["model.etdump", *names])
    with pytest.raises(BundleError):
        convert(trace, form)
    assert convert(trace, form, force=True) == [trace.parent / name for name in names]
    if len(names) == 1:
        assert (trace.parent / names[0]).read_bytes() == b"".join(converted(trace, form))


def test_the_command_lists_the_files(trace: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Print one name a line, nothing with --quiet, and the bytes of one file alone where standard output is named.

    The help lists the formats in their order.
    """
    names = "".join(f"{trace.parent / name}\n" for name in ("model_operators.csv", "model_categories.csv"))
    for words, printed in (
        (("--to", "tables"), names.encode()),
        (("--to", "tables", "--force", "--quiet"), b""),
        (("--to", "parquet", "--out", "-"), b"".join(converted(trace, "parquet"))),
    ):
        assert ended_here("convert", trace, *words) == 0
        assert capfdbinary.readouterr() == (printed, b"")
    assert ended_here("convert", "--help") == 0
    options = capfdbinary.readouterr().out.decode().replace("\n", " ").split("--")
    (listed,) = (option.replace(",", "").replace(".", "").split() for option in options if option.startswith("to FORM"))
    assert [word for word in listed if word in CONVERT_FORMATS] == list(CONVERT_FORMATS)


def test_what_is_converted_is_a_trace_again(trace: Path) -> None:
    """End a chain of formats with the table it began with, its marks of warm-up, latency and operators."""
    (first,) = convert(trace, "parquet", warmup=1)
    (second,) = convert(first, "csv", warmup=1)
    (third,) = convert(second, "parquet", warmup=1, out=trace.parent / "third.parquet")
    assert_frame_equal(opscope.read(third).frame, opscope.read(trace).with_warmup(1).frame)
    expected = opscope.analyze(trace, warmup=1)
    for path in (second, third):
        found = opscope.analyze(path, warmup=1)
        assert (found.latency, found.operators) == (expected.latency, expected.operators)
    assert sum(row["warmup"] == "true" for row in rows(second.read_bytes())) == 5


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
    alone = json.loads(b"".join(converted(f"{bundle}#baseline", "speedscope")))["profiles"]
    assert [own["name"].partition(":")[0] for own in alone] == ["baseline"]


def test_a_whole_bundle_is_one_table(bundle: Path, tmp_path: Path) -> None:
    """Operators and categories of each variant, and the name of the variant in front."""
    operators, categories = convert(bundle, "tables", out=tmp_path)
    for name in ("accelerated", "baseline"):
        found = analyze(f"{bundle}#{name}")
        copies = sum(row.time_ns for row in found.outside)
        for file, whole in ((operators, found.headline_ns - copies), (categories, found.headline_ns)):
            own = [float(row["time_ns"]) for row in rows(file.read_bytes()) if row["variant"] == name]
            assert sum(own) == pytest.approx(whole)


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


def test_the_program_of_a_trace_can_be_named(trace: Path) -> None:
    """Make nodes of its operators, which say in a timeline how they are known; alone it is a graph without values."""
    program = write_tiny_program(trace.parent)
    (alone,) = convert(program, "model-explorer")
    assert alone == trace.parent / "tiny.graph.json"
    assert [node["id"] for node in json.loads(alone.read_bytes())["graphs"][0]["nodes"]] == ["i0", "i1"]
    named = ConvertOptions(program=program)
    written = convert(trace, "model-explorer", options=named)
    assert [file.name for file in written] == [f"model.{what}.json" for what in ("graph", "time", "share")]
    events = json.loads(b"".join(converted(trace, "perfetto", options=named)))["traceEvents"]
    known = {event["args"].get("attribution") for event in events if event["name"] == "native_call_add.out"}
    assert known == {"exact"}


def test_a_run_of_the_kit_is_converted_whole(tmp_path: Path) -> None:
    """Every experiment, the candidate of its comparison first."""
    run = write_run(tmp_path / "run", pairs=[pair("alpha", "beta")])
    profiles = json.loads(b"".join(converted(run, "speedscope")))["profiles"]
    assert [own["name"].partition(":")[0] for own in profiles] == ["beta_t1", "alpha_t1"]
    figures = json.loads(b"".join(converted(run, "github-benchmark")))
    assert {"toy_fp32/alpha_t1: latency", "toy_fp32/beta_t1: latency"} <= {figure["name"] for figure in figures}
    named = [e["args"] for e in json.loads(b"".join(converted(run, "perfetto")))["traceEvents"] if e["ph"] == "M"]
    assert [args["labels"].partition(",")[0] for args in named if "labels" in args] == ["beta_t1", "alpha_t1"]


@pytest.mark.parametrize("form", ["perfetto", "speedscope", "tables"])
def test_a_bundle_in_which_nothing_succeeded_has_nothing_to_convert(form: str, bundle: Path, tmp_path: Path) -> None:
    """Say so as for reports, whatever the format."""
    shutil.copytree(bundle, tmp_path / "out")
    edit("manifest.json", lambda document: document["repetitions"].clear())(tmp_path / "out")
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
        ("model.etdump --to speedscope --by line", 2, "known: module, operator"),
        ("model.etdump --to speedscope --by modul", 2, "did you mean module"),
        ("model.etdump --to csv --by module", 2, "it applies to speedscope"),
        ("model.etdump --to speedscope --by module", 2, "--etrecord"),
        ("model.etdump", 2, "--to"),
        ("model.etdump --to kit-csv --out -", 2, "give a directory"),
        ("model.etdump --to csv --out there.csv", 19, "opscope did not write it"),
        ("model.etdump --to csv --out there.csv/x.csv", 9, "cannot be written"),
        ("model.etdump --to csv --out model.etdump", 19, "model.etdump"),
        ("model.etdump --to csv --warmup some", 2, "--warmup"),
        ("nowhere.etdump --to csv", 3, "no such file"),
        ("nowhere --to github-benchmark", 3, "no such file"),
        ("there.csv --to parquet", 4, "unrecognised format"),
    ],
)
def test_wrong_input_gets_a_message_a_hint_and_a_code(
    arguments: str, code: int, said: str, trace: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show no traceback, and leave nothing behind."""
    (trace.parent / "there.csv").write_text("something")
    monkeypatch.chdir(trace.parent)
    ended, written = run("convert", *arguments.split())
    assert (ended, said in written) == (code, True), written
    assert "Traceback" not in written
    assert sorted(path.name for path in trace.parent.iterdir()) == ["model.etdump", "there.csv"]


def test_the_figures_of_a_whole_bundle_are_those_of_its_report(bundle: Path) -> None:
    """So another warm-up is refused there, and taken for one variant."""
    with pytest.raises(UsageError, match="covers the whole bundle") as refused:
        convert(bundle, "github-benchmark", warmup=1)
    assert "BUNDLE#variant" in str(refused.value.hint)
    assert b"latency" in b"".join(converted(f"{bundle}#baseline", "github-benchmark", warmup=1))


@pytest.mark.parametrize("form", ["github-benchmark", "kit-csv"])
def test_columns_of_times_need_a_clock_in_nanoseconds(form: str, tmp_path: Path) -> None:
    """Refuse cycles, which are not seconds, where a format states times; others take them."""
    given = table(TRACE).frame
    columns = {name: given[name] for name in ("run", "scope", "name", "start", "duration")}
    events = EventTable.build(columns | {"parent": given["parent"].fill_null(-1)}, Clock.CYCLES)
    (tmp_path / "cycles.csv").write_bytes(b"".join(events_csv(events)))
    with pytest.raises(UsageError, match="cycles"):
        convert(tmp_path / "cycles.csv", form)
    assert convert(tmp_path / "cycles.csv", "speedscope")


DESCRIBED = "timestamp_ms parent_id op_type backend".split()
"""Columns of the kit's documents that its scripts do not write."""


def test_the_kit_files_have_the_kits_columns() -> None:
    """Name the kit's columns in its order, and state times as exact decimals.

    Loading stands before the first run, which has a file of its own. Percentages are of self time, so that each of the
    three files adds up to 100.
    """
    content = kit_csv(table(TRACE, repeat=3), "model")
    assert [text.decode().splitlines()[0].split(",") for text in content] == [
        *[[*TIMELINE, *DESCRIBED]] * 2,
        STATISTICS,
    ]
    for text in content:
        assert sum(float(row["pct_total"]) for row in rows(text)) == pytest.approx(100)
    found, first, _ = map(rows, content)
    assert (len(first), {row["run_index"] for row in first}) == (6, {"0"})
    exact = [name for name in TIMELINE if name not in {"pct_total", "block"}]
    loading = ["model", LOAD, LOAD, "portable", "1000.000", "1000.900", "0.000900", "0", "0"]
    assert [found[0][name] for name in exact] == loading
    name = "Convolution (NHWC, F32) IGEMM"
    operator = ["model", f"{name} #1", name, "XNNPACK", "1102.900", "1152.900", "0.050000", "1", "1"]
    assert [found[6][name] for name in exact] == operator


def test_the_kits_way_to_latencies_gives_ours() -> None:
    """Sum Method::execute by run_index, as the kit's scripts do it.

    Events of an unfinished inference belong to none, and so to nothing that is of one; the timeline keeps them.
    """
    events = EventTable.concat([table(TRACE, repeat=2), table(TRACE, repeat=3)])
    latencies: dict[int, Decimal] = {}
    for row in rows(kit_csv(events, "model")[0]):
        if row["name"] == "Method::execute":
            index = int(row["run_index"])
            latencies[index] = latencies.get(index, Decimal(0)) + Decimal(row["duration_ms"])
    assert latencies == dict.fromkeys(range(5), Decimal("0.1"))
    assert sum(latencies.values()) * 10**6 == events.inferences()["duration"].sum()
    whole = EventTable.concat([events, table("OPERATOR_CALL @1 500000\n  native_call_odd.out 400000")])
    timeline, _, statistics = kit_csv(whole, "model")
    assert "native_call_odd.out" in {row["name"] for row in rows(timeline)}
    assert "native_call_odd.out" not in {row["name"] for row in rows(statistics)}


def test_the_kits_statistics_are_of_one_inference() -> None:
    """Give one line to a name without its number, longest first, over the inferences that count.

    Operators of one type are counted, added up, and have their mean; a number sign within a name stays; loading is of a
    process.
    """
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
    twice = TRACE.replace("50000", "50000\n        Convolution (NHWC, F32) IGEMM #2 10000\n        Odd #1 of 2 #3 5000")
    by_name = {row["name"]: row for row in rows(kit_csv(table(twice, repeat=4), "model")[2])}
    both = by_name["Convolution (NHWC, F32) IGEMM"]
    assert (both["count"], both["total_ms"], both["avg_ms"]) == ("2", "0.060000000", "0.030000000")
    assert by_name["Odd #1 of 2"]["type"] == "Odd #1 of 2"


@pytest.mark.parametrize(("variant", "name"), [("", "accelerated"), ("#baseline", "baseline")])
def test_the_kits_files_of_a_bundle_are_called_as_the_kit_calls_them(variant: str, name: str, tmp_path: Path) -> None:
    """Name them by model, experiment and threads, as the kit's reports do."""
    bundle = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
    written = convert(f"{bundle}{variant}", "kit-csv", out=tmp_path)
    assert written[0].name.startswith(f"{Bundle.open(bundle).manifest.model.name}_{name}_t1_exec")
