"""The Arm kit's files read: timelines against the ETDump they were made of, then whole directories, then damage."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path

import msgspec
import pytest

import kit_files
from kit_files import BASELINE, CANDIDATE, KERNEL_LOG, pair, write_run
from opscope.bundle.manifest import Role
from opscope.core.errors import EmptyTraceError, NotFoundError, TraceFormatError
from opscope.core.table import EventTable
from opscope.kit.readers.csv import KitTimelineReader, kernel_rows, read_timeline, stats_rows
from opscope.kit.readers.directory import is_kit_run, read_kit
from opscope.kit.readers.run import KitRun
from opscope.readers.registry import read_trace
from traces import table as etdump_table

HEADER = ",".join(kit_files.TIMELINE)
ONE = "toy,Method::execute,Method::execute,portable,1.0,5.0,0.004,100.0,0,0,Execute"


def events(text: str) -> EventTable:
    """The events of a timeline."""
    return read_timeline(text.encode(), "t.csv")


def seen(found: EventTable) -> list[tuple[object, ...]]:
    """What an event is and where it lies: its name, scope, backend, instruction, duration, own time and parent."""
    frame = found.frame
    names = frame["name"].to_list()
    rows = frame.select("inference", "scope", "name", "backend", "instruction", "duration", "self_time").rows()
    parents = [None if parent is None else names[parent] for parent in frame["parent"]]
    return sorted((*row, parent) for row, parent in zip(rows, parents, strict=True) if row[0] is not None)


def codes(found: EventTable | KitRun) -> list[str]:
    """Codes of warnings."""
    return [warning.code for warning in found.warnings]


def lines(*rows: str) -> str:
    """A timeline of these rows."""
    return "\n".join([HEADER, *rows]) + "\n"


@pytest.mark.parametrize("write", [kit_files.timeline, kit_files.described_timeline])
def test_a_timeline_tells_what_its_etdump_tells(write):
    """Tree, scopes, instructions and self times to the nanosecond, in both sets of columns."""
    assert seen(events(write(BASELINE))) == seen(etdump_table(BASELINE, repeat=3))


def test_each_run_is_an_inference():
    """One for each Method::execute; loading belongs to none."""
    found = events(kit_files.timeline(BASELINE, runs=3))
    assert found.inferences()["duration"].to_list() == [4_000_000] * 3
    assert found.frame.filter(found.frame["inference"].is_null())["name"].to_list() == [
        "Program::load_method",
        "Method::init",
    ]


def test_times_are_exact():
    """Decimal fractions become the nearest nanosecond, whatever a floating-point number makes of them."""
    row = "toy,Method::execute,x,portable,9007199.254740993,9007199.504740993,2.50001e-04,100,0,0,Execute"
    found = events(lines(row))
    assert found.frame.select("start", "duration").row(0) == (9_007_199_255, 250)


def test_what_printing_moved_is_put_back():
    """At clocks of 10^18 ns a printed start is off by 128 ns; children still lie in their parents."""
    start = 1_700_000_000_000_000_000
    rows = [
        f"toy,native_call_add.out,x,portable,{start / 1000 - 0.12},{start / 1000 + 0.88},0.001,0,0,0,Execute",
        f"toy,Method::execute,x,portable,{start / 1000},{start / 1000 + 4},0.004,0,1,0,Execute",
    ]
    found = events(lines(*rows))
    assert found.frame["parent"].to_list() == [None, 0]


def test_the_percentages_are_said_to_count_twice():
    """Method::execute reads less than a third of the time that it is all of."""
    (warning,) = [w for w in events(kit_files.timeline(BASELINE)).warnings if w.code == "kit_percentages"]
    assert "counts nested time 3.1 times: Method::execute reads 32.8 %" in warning.message


def test_percentages_of_the_latency_are_right():
    """Then there is nothing to say, nor about shares of self time; percentages of nothing are wrong."""
    child = "toy,native_call_add.out,x,portable,1.0,3.0,0.002,{},1,0,Execute"
    assert codes(events(lines(child.format(50), ONE.replace("100.0", "50.0")))) == ["instructions_rebuilt"]
    assert codes(events(lines(child.format(50), ONE))) == ["instructions_rebuilt"]
    assert "kit_percentages_wrong" in codes(events(lines(child.format(7), ONE)))


def test_without_a_backend_column_the_call_decides():
    """What lies in a delegate's call is the delegate's."""
    text = kit_files.described_timeline(BASELINE).splitlines()
    cut = "\n".join(line.rpartition(",")[0] for line in text) + "\n"
    assert seen(events(cut)) == seen(etdump_table(BASELINE, repeat=3))


def test_a_timeline_is_recognised_by_its_header(tmp_path):
    """Also with a byte order mark and CRLF, and whatever the file is called."""
    path = tmp_path / "anything"
    for text in (kit_files.timeline(BASELINE), "\ufeff" + kit_files.described_timeline(BASELINE)):
        path.write_bytes(text.encode())
        assert read_trace(path).format == "kit-timeline-csv"


@pytest.mark.parametrize("head", [b"", b"a,b\n", b"name,type\n1,2", b"name\n", b"ED00", b"start_us", b"x,start_us\n"])
def test_other_tables_are_not_taken(head):
    """Only headers of nothing but the kit's columns."""
    assert not KitTimelineReader().sniff(head)


def test_missing_columns_are_named_with_those_that_are_there():
    """The file, what it lacks, what it has."""
    with pytest.raises(TraceFormatError, match="no column run_index, end_us; it has name, start_us") as caught:
        read_timeline(b"name,start_us,duration_ms\nx,1,1\n", "dir/t.csv")
    assert caught.value.where == "dir/t.csv"


def test_statistics_are_no_timeline():
    """The hint says which file to give."""
    with pytest.raises(TraceFormatError, match="not a timeline") as caught:
        events(kit_files.stats(BASELINE))
    assert "give the timeline next to it" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("0.004", "nan", "line 2: duration_ms is 'nan', no number"),
        ("0.004", "inf", "duration_ms is 'inf'"),
        ("0.004", "", "duration_ms is empty"),
        ("0.004", "=1+1", "duration_ms is '=1\\+1', no number"),
        ("0.004", "1_0", "no number"),
        ("0.004", "٣", "no number"),
        ("0.004", "0.005", "duration_ms says 5.00 µs, end_us - start_us is 4.00 µs"),
        ("1.0,5.0,0.004", "5.0,1.0,-0.004", "duration_ms is negative"),
        ("1.0,5.0", "1e99,1e99", "larger than any time"),
        ("0,0,Execute", "0,-1,Execute", "run_index is negative"),
        ("100.0", "many", "pct_total is 'many'"),
        (",Execute", "", "10 cells under a header of 11"),
        ("toy,Method::execute", "toy,", "the event has no name"),
        ("toy", '"toy', "line 2"),
        ("toy", "x" * 200_000, "field larger than field limit"),
    ],
)
def test_wrong_cells_are_refused(old, new, problem):
    """With the line, the column and the value."""
    with pytest.raises(TraceFormatError, match=problem):
        events(lines(ONE.replace(old, new, 1)))


def test_empty_files_are_empty_traces():
    """No header, or nothing under it."""
    for text in ("", HEADER + "\n"):
        with pytest.raises(EmptyTraceError):
            events(text)


def test_names_stay_text():
    """A formula and a name of 10,000 characters are names."""
    for name in ("=cmd|' /C calc'!A0", "n" * 10_000):
        found = events(lines(f"toy,{name},x,portable,1.0,2.0,0.001,0,0,0,Execute", ONE))
        assert name in found.frame["name"].to_list()


def test_statistics_and_kernels_are_rows(tmp_path):
    """Exact times, the share as it is stated; kernels parsed from their names, the count as registrations."""
    (tmp_path / "s.csv").write_text(kit_files.stats(BASELINE))
    row = next(row for row in stats_rows(tmp_path / "s.csv") if row.name.startswith("Convolution"))
    assert (row.total_ns, row.count, row.backend, round(row.share, 3)) == (3_000_000, 1, "delegated", 0.226)
    (tmp_path / "k.csv").write_text(kit_files.kernels(["xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2", "kai"]))
    first, second = kernel_rows(tmp_path / "k.csv")
    assert (first.kernel.sme2, first.registrations, second.kernel.parsed) == (True, 1, False)


@pytest.mark.parametrize("nested", [True, False])
def test_a_run_is_read_in_both_layouts(tmp_path, nested):
    """Experiments with thread counts, files, stated medians and whether the runner finished."""
    run = read_kit(write_run(tmp_path / "mac", nested=nested))
    assert [e.key for e in run.experiments] == ["alpha_t1", "beta_t1"]
    alpha = run.experiment("alpha")
    assert all([alpha.files.etdump, alpha.files.timeline, alpha.files.run0, alpha.files.stats, alpha.files.latency_log])
    assert [(s.file, s.median_ms) for s in alpha.stated] == [("manifest.json", 4.0), ("metrics.json", 4.0)]
    assert alpha.finished
    assert (run.model, run.executorch.sha, run.executorch.dirty) == (kit_files.MODEL, "0123abcd", True)


def test_roles_come_from_the_comparisons_else_from_names_with_on_and_off(tmp_path):
    """The kit's template asks for no comparison; where a config asks, it decides."""
    directory = write_run(tmp_path / "mac")
    for name, other in (("alpha", "sme2_on"), ("beta", "sme2_off")):
        for file in ("manifest.json", "metrics.json"):
            (directory / file).write_text((directory / file).read_text().replace(name, other))
        shutil.move(directory / name, directory / other)
        for path in (directory / other).iterdir():
            path.rename(path.with_name(path.name.replace(name, other)))
    run = read_kit(directory)
    roles = [(experiment.listed.experiment, experiment.role) for experiment in run.experiments]
    assert roles == [("sme2_on", Role.CANDIDATE), ("sme2_off", Role.BASELINE)]
    assert codes(run) == ["kit_roles_by_name"]
    asked = read_kit(write_run(tmp_path / "asked", pairs=[pair("beta", "alpha")]))
    assert [e.role for e in asked.experiments] == [Role.CANDIDATE, Role.BASELINE]
    assert [(p.baseline, p.candidate) for p in asked.comparisons] == [("beta_t1", "alpha_t1")]
    assert codes(asked) == []


def test_a_comparison_of_other_thread_counts_is_said(tmp_path):
    """The kit pairs whatever it was told to; so is one with an experiment that is not there."""
    directory = write_run(tmp_path / "mac", pairs=[pair("alpha", "beta", (1, 4)), pair("alpha", "gamma")])
    kit_files.write_experiment(directory, "beta", CANDIDATE, nested=True, threads=4)
    run = read_kit(directory)
    assert codes(run) == ["kit_pair_threads_differ", "kit_pair_unknown"]
    assert [(p.baseline, p.candidate) for p in run.comparisons] == [("alpha_t1", "beta_t4")]
    with pytest.raises(NotFoundError, match="several thread counts") as caught:
        run.experiment("beta")
    assert "beta_t1, beta_t4" in (caught.value.hint or "")


def test_a_config_that_is_gone_is_said(tmp_path):
    """The roles may have stood in it."""
    directory = write_run(tmp_path / "mac", pairs=[pair("alpha", "beta")])
    (directory / "toy.json").unlink()
    assert codes(read_kit(directory)) == ["kit_config_missing", "kit_no_roles"]


def test_a_crash_that_is_recorded_as_ok_is_said(tmp_path):
    """The summary says ok and nan, the log has no closing line, no file is there."""
    directory = tmp_path / "mac"
    directory.mkdir()
    crash = {
        "experiment": "alpha",
        "threads": 1,
        "mode": "timing",
        "status": "ok",
        "metrics": {"median_ms": float("nan")},
    }
    lost = {"experiment": "beta", "threads": 1, "mode": "timing", "status": "ok"}
    kit_files.write_json(directory / "toy_pipeline_summary.json", {"model": kit_files.MODEL, "runs": [crash, lost]})
    (directory / "toy_fp32_alpha_t1_latency.log").write_text("Command failed with exit code -11\n")
    alpha, beta = read_kit(directory).experiments
    assert [w.code for w in alpha.warnings] == ["kit_runner_not_finished", "kit_ok_without_result"]
    assert [w.code for w in beta.warnings] == ["kit_experiment_without_files"]
    assert alpha.stated[0].median_ms is None


def test_statistics_that_count_twice_are_said(tmp_path):
    """With the factor and what the longest operator really is."""
    (warning,) = read_kit(write_run(tmp_path / "mac")).experiment("alpha").warnings
    assert warning.code == "kit_percentages"
    assert "count nested time 3.3 times" in warning.message
    assert "Convolution (NHWC, F32) IGEMM reads 22.6 % and is 75.0 %" in warning.message


def test_kernels_are_registrations(tmp_path):
    """A trace-enabled run gives kernels, and a warning what they are not; an empty log gives another."""
    directory = write_run(tmp_path / "mac")
    (directory / "toy_fp32_trace_t1_xnntrace.log").write_text(KERNEL_LOG)
    (directory / "toy_fp32_quiet_t1_xnntrace.log").write_text("nothing\n")
    run = read_kit(directory)
    assert run.experiment("trace").kernels.entries[0].kernel.sme2
    assert [w.code for w in run.experiment("trace").warnings] == ["kit_kernels_registered"]
    assert [w.code for w in run.experiment("quiet").warnings] == ["kit_log_without_kernels"]


def test_only_some_files_are_enough(tmp_path):
    """Experiments are known from file names where nothing lists them; the directory's name helps."""
    directory = tmp_path / "mac"
    kit_files.write_experiment(directory, "alpha", BASELINE, nested=True, threads=2)
    (experiment,) = read_kit(directory).experiments
    assert (experiment.key, experiment.mode, experiment.status, experiment.role) == ("alpha_t2", None, None, None)
    assert is_kit_run(directory)


def test_a_directory_of_something_else_is_not_the_kits(tmp_path):
    """Nor is a bundle, nor a directory that does not exist."""
    (tmp_path / "manifest.json").write_text('{"schema": "opscope.bundle/1", "results": []}')
    assert not is_kit_run(tmp_path)
    assert not is_kit_run(tmp_path / "absent")
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match="no Arm kit files"):
        read_kit(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not valid JSON"),
        ('{"results": [', "not valid JSON"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
        ('{"results": {}}', "differs from what the kit writes"),
        ('{"results": [{"experiment": 5}]}', "differs from what the kit writes"),
        ('{"results": [{"experiment": "a", "threads": NaN}]}', "differs from what the kit writes"),
        ('{"results": [{"experiment": "a", "metrics": {"median_ms": "fast"}}]}', "'fast', no number"),
        ('{"results": [{"experiment": "a", "threads": ' + "1" * 5_000 + "}]}", "5,000 digits"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_damaged_json_is_refused(tmp_path, content, problem):
    """With the file and the place."""
    directory = write_run(tmp_path / "mac")
    (directory / "manifest.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TraceFormatError, match=problem) as caught:
        read_kit(directory)
    assert caught.value.where == str(directory / "manifest.json")


def test_paths_lead_nowhere_else(tmp_path):
    """A recorded path means a file of the directory, never one outside of it."""
    directory = write_run(tmp_path / "mac")
    (tmp_path / "outside.etdump").write_bytes(b"x")
    listed = {"experiment": "x", "metrics": {"etdump": "../outside.etdump", "log": "/etc/passwd"}}
    kit_files.write_json(directory / "metrics.json", {"results": [listed]})
    experiment = read_kit(directory).experiment("x")
    assert not any(msgspec.structs.astuple(experiment.files))


def _harmed(data: bytes) -> list[bytes]:
    """Truncations and flipped bytes of a file."""
    rng = random.Random(3)
    cut = [data[: len(data) * part // 24] for part in range(24)]
    flipped = []
    for _ in range(40):
        place = rng.randrange(len(data))
        flipped.append(data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :])
    return [*cut, *flipped]


def test_every_file_may_be_damaged(tmp_path):
    """Truncated or with a bit flipped: a typed error or a value, never anything else."""
    directory = write_run(tmp_path / "mac", nested=False, pairs=[pair("alpha", "beta")])
    kit_files.write_json(directory / "toy_pipeline_summary.json", {"runs": [{"experiment": "alpha", "threads": 1}]})
    (directory / "toy_fp32_alpha_t1_xnntrace.log").write_text(KERNEL_LOG)
    (directory / "toy_fp32_alpha_t1_kernels.csv").write_text(kit_files.kernels(["xnn_f32_vadd_ukernel__neon_u8"]))
    for path in sorted(p for p in directory.iterdir() if "beta" not in p.name and p.suffix != ".etdump"):
        whole = path.read_bytes()
        for harmed in _harmed(whole):
            path.write_bytes(harmed)
            _read_or_refuse(directory, path)
        path.write_bytes(whole)


def _read_or_refuse(directory: Path, path: Path) -> None:
    with contextlib.suppress(TraceFormatError):
        if path.name.endswith("_timeline.csv"):
            read_timeline(path.read_bytes(), path.name)
        else:
            json.loads(msgspec.json.encode(read_kit(directory)))
