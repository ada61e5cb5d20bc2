"""The published post-processor's files: its own values where its arithmetic holds, and true ones where it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aie_captures import NPU1_GEMM, Captures
from aie_gemm import Gemm
from aie_published import (
    Clean,
    Flags,
    expected_aggregate,
    expected_core,
    expected_details,
    stream_plot_rate,
    stream_runtimes,
)
from aie_traces import json_text
from command_line import opscope as command
from opscope.core.errors import EmptyTraceError
from opscope.npu.workflows.aie import TilesRequest, analyze_tiles, published

SIZES = {"m": 8, "k": 8, "n": 8}


def written(tmp_path: Path, cores: list[Clean] | list[Gemm], request: TilesRequest) -> dict[str, Any]:
    """What the JSON files hold, by name, and details.md; the trace has these cores."""
    trace = tmp_path / "trace.json"
    trace.write_bytes(b"".join(json_text([core.tile() for core in cores])))
    return files_of(trace, tmp_path / "out", request)


def files_of(trace: Path, out: Path, request: TilesRequest) -> dict[str, Any]:
    """The same of a trace that is there."""
    files = published(analyze_tiles(trace, request), str(out))
    return {name: text.decode() if name.endswith(".md") else json.loads(text) for name, text in files.items()}


def asked(flags: Flags, **more: object) -> TilesRequest:
    """The request that the flags stand for, at the published tool's clock."""
    words = {
        "M": flags.M,
        "K": flags.K,
        "N": flags.N,
        "row": flags.rows,
        "col": flags.columns,
        "warmup": flags.warmup,
        "iterations": flags.iterations,
        "clock_mhz": 1250.0,
        "hwid": "lab",
    }
    return TilesRequest(**(words | SIZES | more))


@pytest.mark.parametrize(
    ("cores", "flags"),
    [
        ([Clean()], Flags(16, 24, 8, 1, 1, 1, 3)),
        ([Clean(iterations=7, rest=4000)], Flags(16, 24, 8, 1, 1, 2, 5)),
        (
            [Clean(row=2), Clean(row=3, first=140), Clean(row=2, column=1, rest=8000), Clean(row=3, column=1)],
            Flags(32, 24, 16, 2, 2, 1, 3),
        ),
    ],
)
def test_a_clean_run_has_the_published_values(tmp_path: Path, cores: list[Clean], flags: Flags) -> None:
    """On a clean, complete run of one kind with lock stalls between iterations, every file agrees."""
    found = written(tmp_path, cores, asked(flags))
    expected = [expected_core(pid, core, flags) for pid, core in enumerate(cores)]

    for core in expected:
        assert found[f"{core['tile_name']}.json"] == core
    assert list(found[f"{expected[0]['tile_name']}.json"]) == list(expected[0])
    assert found["aggregate_perf.json"] == expected_aggregate(expected, flags)
    assert found["details.md"] == expected_details("lab", expected, flags)
    out = str(tmp_path / "out")
    assert found["index.json"] == {
        "hwid": "lab",
        "M": flags.M,
        "K": flags.K,
        "N": flags.N,
        **SIZES,
        "rows": flags.rows,
        "cols": flags.columns,
        "input_path": str(tmp_path / "trace.json"),
        "output_dir": out,
        "warmup": flags.warmup,
        "iterations": flags.iterations,
        "clock_GHz": 1.25,
        "notes": [],
        "details_md": f"{out}/details.md",
    }


def test_without_a_clock_there_is_no_rate_in_seconds(tmp_path: Path) -> None:
    """Of unknown hardware none is assumed: rates of cores are null, that of the system is left out with the reason."""
    flags = Flags(16, 24, 8, 1, 1, 1, 3)
    found = written(tmp_path, [Clean()], asked(flags, clock_mhz=None))
    system = found["aggregate_perf.json"]

    rows = found["tile2,0.json"]["iterations"]
    assert [row["gmacs_per_second"] for row in rows] == [None] * 4
    assert [row["total_span_cycles"] for row in rows] == [
        row["total_span_cycles"] for row in expected_core(0, Clean(), flags)["iterations"]
    ]
    assert set(system["average"]) == {"runtime_cycles"}
    assert set(system["best"]) == {"iteration_index", "runtime_cycles"}
    assert system["best"]["runtime_cycles"] == min(r["total_span_cycles"] for r in rows[1:])
    assert "gmacs_per_second is omitted: the clock is unknown" in system["note"]
    assert found["index.json"]["clock_GHz"] is None


@pytest.mark.parametrize(
    ("said", "mhz", "low", "high"),
    [
        ({"hwid": "npu1"}, 1600, 800, 1600),
        ({"hwid": "lab", "arch": "npu2"}, 1800, 792, 1800),
        ({"hwid": "single_core"}, 1250, 792, 1800),
        ({"hwid": "single_col"}, 1250, 792, 1800),
        ({"hwid": "whole_array_strix"}, 1800, 792, 1800),
    ],
)
def test_an_assumed_clock_is_marked_in_every_file(
    tmp_path: Path, said: dict[str, str], mhz: int, low: int, high: int
) -> None:
    """Rates are made from it, and each file that has one says so, with the range and why this clock."""
    flags = Flags(16, 24, 8, 1, 1, 1, 3)
    found = written(tmp_path, [Clean()], asked(flags, clock_mhz=None, **said))
    marks = [found[name]["assumed_clock"] for name in ("tile2,0.json", "aggregate_perf.json", "index.json")]
    best = found["aggregate_perf.json"]["best"]

    assert best["gmacs_per_second"] == pytest.approx(16 * 24 * 8 * mhz / 1e3 / best["runtime_cycles"])
    assert found["index.json"]["clock_GHz"] == mhz / 1e3
    assert [(own["mhz"], own["low_mhz"], own["high_mhz"]) for own in marks] == [(mhz, low, high)] * 3
    assert f"GMAC/s at an assumed clock of {mhz} MHz ({low} to {high} MHz)" in found["details.md"]


def test_no_clock_is_assumed_where_that_is_asked_for(tmp_path: Path) -> None:
    """The name of the hardware still counts for all else."""
    asking = asked(Flags(16, 24, 8, 1, 1, 1, 3), clock_mhz=None, hwid="npu1", assume_clock=False)
    found = written(tmp_path, [Clean()], asking)

    assert found["index.json"]["clock_GHz"] is None
    assert "assumed_clock" not in found["index.json"]
    assert "gmacs_per_second" not in found["aggregate_perf.json"]["best"]
    assert "assumed" not in found["details.md"]


def test_streams_hardware_has_the_rates_of_its_own_scripts(tmp_path: Path) -> None:
    """Without --clock-mhz: the same arithmetic at the same clock, in every file, and the mark besides."""
    flags = Flags(16, 24, 8, 1, 1, 1, 3)
    found = written(tmp_path, [Clean()], asked(flags, clock_mhz=None, hwid="single_core"))
    core, system = found["tile2,0.json"], found["aggregate_perf.json"]
    del core["assumed_clock"], system["assumed_clock"]

    assert core == expected_core(0, Clean(), flags)
    assert system == expected_aggregate([core], flags)


@pytest.mark.parametrize(
    ("said", "cores", "best"),
    [
        ({"clock_mhz": 1250.0}, 1, 1250),
        ({"clock_mhz": None, "hwid": "single_core"}, 1, 1250),
        ({"clock_mhz": None, "hwid": "npu2"}, 1, 1800),
        ({"clock_mhz": None}, 1, 0),
        ({"clock_mhz": None, "hwid": "npu2", "assume_clock": False}, 1, 0),
        ({"clock_mhz": 1250.0, "row": 2, "M": 32}, 2, 0),
        ({"clock_mhz": 1250.0, "row": None, "col": None}, 1, 0),
    ],
)
def test_streams_plot_reads_a_number(tmp_path: Path, said: dict[str, Any], cores: int, best: int) -> None:
    """Its float() never meets a null: the rate at the clock of these MHz, or 0.0 where it was left out."""
    found = written(tmp_path, [Clean()], asked(Flags(16, 24, 8, cores, 1, 1, 3), **said))
    fastest = found["aggregate_perf.json"]["best"]["runtime_cycles"]

    rate = stream_plot_rate(found["aggregate_perf.json"])
    assert rate == pytest.approx(16 * 24 * 8 * best / 1e3 / fastest)


def test_streams_plot_survives_a_run_without_common_iterations(tmp_path: Path) -> None:
    """There is no best one, and no list to look through: it gets no number, and no error."""
    cores = [Clean(iterations=4), Clean(iterations=1, row=3)]
    found = written(tmp_path, cores, asked(Flags(16, 24, 16, 2, 1, 1, 3)))

    assert stream_plot_rate(found["aggregate_perf.json"]) is None


def test_streams_own_aggregate_of_our_cores_is_ours(tmp_path: Path) -> None:
    """From the files of the cores it reads indices and spans, whatever else is null in them."""
    cores = [Clean(row=2), Clean(row=3, first=140)]
    found = written(tmp_path, cores, asked(Flags(32, 24, 8, 2, 1, 1, 3), clock_mhz=None))
    runtimes = stream_runtimes([found["tile2,0.json"], found["tile3,0.json"]])

    own = found["aggregate_perf.json"]
    assert runtimes == {row["iteration_index"]: row["runtime_cycles"] for row in own["per_iteration"]}
    assert list(runtimes) == own["iterations_considered"] == [1, 2, 3]


def test_fewer_iterations_than_expected_are_said(tmp_path: Path) -> None:
    """Both numbers stand in the core's note, and in the notes of the run."""
    found = written(tmp_path, [Clean(iterations=3)], asked(Flags(16, 24, 8, 1, 1, 1, 4)))

    core = found["tile2,0.json"]
    assert (core["detected_total_iterations"], core["expected_total_iterations"]) == (3, 5)
    assert core["mismatch_note"].startswith("Detected 3 iterations but expected 5.")
    assert found["index.json"]["notes"] == [core["mismatch_note"]]
    assert core["performance_window"] == [1, 2]


def test_a_zero_fill_is_a_call_of_its_own(tmp_path: Path) -> None:
    """The published tool fuses it with the next call; here it counts, and does no multiply-accumulates."""
    gemm = Gemm(outputs=2, each=4, rest=9000)
    request = TilesRequest(M=32, K=256, N=128, m=32, k=64, n=64, row=1, col=1, clock_mhz=1000.0, warmup=0, iterations=1)
    core = written(tmp_path, [gemm], request)["tile2,0.json"]

    (row,) = core["iterations"]
    assert row["num_kernels"] == 10
    assert row["min_duration_cycles"] == 21
    assert row["gmacs_per_second"] == pytest.approx(32 * 256 * 128 / row["total_span_cycles"])


def test_cores_without_a_trace_leave_the_rate_of_the_system_open(tmp_path: Path) -> None:
    """The whole product over the time of one core of four says nothing; what the traced core did in it is beside it."""
    found = written(tmp_path, [Clean()], asked(Flags(32, 24, 16, 2, 2, 1, 3)))
    core, system = found["tile2,0.json"], found["aggregate_perf.json"]

    assert core["iterations"][1]["gmacs_per_second"] is not None
    assert "gmacs_per_second" not in system["best"]
    assert "gmacs_per_second is omitted: 1 of 4 cores were traced" in system["note"]
    measured = [core["iterations"][index]["gmacs_per_second"] for index in (1, 2, 3)]
    assert [row["gmacs_per_second_traced_cores"] for row in system["per_iteration"]] == pytest.approx(measured)
    assert system["average"]["gmacs_per_second_traced_cores"] == pytest.approx(sum(measured) / 3)
    assert any("1 core traced, 2 x 2 given" in note for note in found["index.json"]["notes"])


def test_cores_without_a_common_iteration_have_no_aggregate(tmp_path: Path) -> None:
    """As in the published tool, a note stands in its place."""
    cores = [Clean(iterations=4), Clean(iterations=1, row=3)]
    found = written(tmp_path, cores, asked(Flags(16, 24, 16, 2, 1, 1, 3)))

    assert found["aggregate_perf.json"] == {"note": "No common perf iterations across all cores."}


def test_a_real_capture_is_never_credited_with_work_that_it_does_not_hold(captures: Captures, tmp_path: Path) -> None:
    """The published tool says 568 to 1522 MAC per cycle on such captures, of a core that can do 128."""
    request = TilesRequest(
        M=256, K=768, N=768, m=32, k=64, n=64, row=1, col=1, warmup=0, iterations=1, dtype="bf16", arch="npu1"
    )
    found = files_of(captures.json(NPU1_GEMM), tmp_path / "out", msgspec.structs.replace(request, clock_mhz=1000.0))

    core = found["tile2,1.json"]
    (row,) = core["iterations"]
    assert (row["num_kernels"], row["phase"]) == (80, "partial")
    assert row["gmacs_per_second"] == pytest.approx(74 * 32 * 64 * 64 / 156016)
    assert core["performance_window"] == []
    assert "1 of 1 iterations lack calls" in core["mismatch_note"]
    assert found["aggregate_perf.json"] == {"note": "No common perf iterations across all cores."}


def test_the_name_of_the_hardware_stays_text(tmp_path: Path) -> None:
    """It stands in markup of details.md."""
    found = written(tmp_path, [Clean()], asked(Flags(16, 24, 8, 1, 1, 1, 3), hwid="</summary><script>x</script>"))

    assert "[&lt;/summary&gt;&lt;script&gt;x" in found["details.md"]
    assert "<script" not in found["details.md"]
    assert found["index.json"]["hwid"] == "</summary><script>x</script>"


def test_a_tile_that_is_traced_twice_has_two_files(tmp_path: Path) -> None:
    """Neither takes the other's place."""
    found = written(tmp_path, [Clean(), Clean(iterations=2)], asked(Flags(16, 24, 8, 1, 1, 0, 4)))

    assert len(found["tile2,0.json"]["iterations"]) == 4
    assert len(found["tile2,0 (2).json"]["iterations"]) == 2


def test_marks_in_a_slot_that_is_named_twice_end_calls(tmp_path: Path) -> None:
    """The slot that was active counts, wherever it stands."""
    tile = Clean().tile()
    names = [*tile.names[:4], "INSTR_EVENT_1", *tile.names[5:]]
    moved = tile._replace(names=names, spans=[s._replace(slot=4 if s.slot == 1 else s.slot) for s in tile.spans])
    trace = tmp_path / "trace.json"
    trace.write_bytes(b"".join(json_text([moved])))
    found = files_of(trace, tmp_path / "out", asked(Flags(16, 24, 8, 1, 1, 1, 3)))

    assert found["tile2,0.json"] == expected_core(0, Clean(), Flags(16, 24, 8, 1, 1, 1, 3))


@pytest.mark.parametrize(
    ("records", "note", "tiles"),
    [
        ([], "No cores to aggregate.", []),
        (
            [{"name": "process_name", "ph": "M", "pid": 3, "args": {"name": "core_trace for tile2,1"}}],
            "No common perf iterations across all cores.",
            ["tile2,1.json"],
        ),
    ],
)
def test_a_trace_without_events_leaves_the_same_files(
    tmp_path: Path, records: list[Any], note: str, tiles: list[str]
) -> None:
    """They say that there is nothing, and so does the exit code."""
    trace, out = tmp_path / "trace.json", tmp_path / "out"
    trace.write_text(json.dumps(records))
    done = command("aie", trace, "--out", out, "--warmup", "1", "--iterations", "3", "--hwid", "lab")
    assert done.returncode == EmptyTraceError.exit_code
    assert sorted(path.name for path in out.iterdir()) == ["aggregate_perf.json", "index.json", *tiles]
    assert json.loads((out / "aggregate_perf.json").read_text()) == {"note": note}
    assert json.loads((out / "index.json").read_text())["details_md"] is None
    for name in tiles:
        core = json.loads((out / name).read_text())
        assert (core["pid"], core["expected_total_iterations"], core["iterations"]) == (3, 4, [])
