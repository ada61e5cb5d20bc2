"""``opscope aie`` as a program: its answer, its files, its exit codes; and compare and check of such traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest

from aie_gemm import Gemm
from aie_traces import Span, Tile, json_text
from ended import Command
from opscope.npu.analysis.tiles_result import TilesAnalysis
from pseudo_terminal import on_terminal

FLAGS = "--M 48 --K 128 --N 32 --m 16 --k 32 --n 32 --row 2 --col 2 --hwid npu1 --warmup 0 --iterations 1 --dtype bf16"
TRACE = Path(__file__).parents[1] / "data" / "toy_cnn.etdump"
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"


def saved(path: Path, *tiles: Tile) -> Path:
    """A trace in JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json_text(tiles)))
    return path


@pytest.fixture(scope="module")
def array(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of four cores and a memory tile; core 3,1 waits longer than the others."""
    cores = [
        Gemm(outputs=3, rest=900 if (row, column) == (3, 1) else 90, row=row, column=column, begin=1 + 9 * row)
        for row in (2, 3)
        for column in (0, 1)
    ]
    memtile = Tile("memtile", 1, 0, ("DMA_S2MM_SEL0_START_TASK", *("NONE",) * 7), [Span(0, 5, 6)])
    return saved(tmp_path_factory.mktemp("aie") / "trace.json", *(core.tile() for core in cores), memtile)


def test_the_first_lines_answer_the_question(command: Command, array: Path, tmp_path: Path) -> None:
    """Busy or not, what stalls them, what sets the pace, how much is seen; then what to do; then the files."""
    done = command("aie", array, *FLAGS.replace("--M 48", "--M 192").split(), "--out", tmp_path / "out")
    lines = done.stdout.splitlines()
    starts = [
        "The 4 cores are",
        "stalled: ",
        "period of tile 3,1, the slowest: ",
        "together: an iteration takes",
        "seen: ",
    ]
    places = [next(number for number, line in enumerate(lines) if line.startswith(start)) for start in starts]

    assert done.returncode == 0, done.stderr
    assert "(aie-json), 4 cores, 1 memory tile" in " ".join(done.stdout.split())
    assert places == sorted(places)
    assert places[-1] < 14
    assert sum(line.startswith("next: ") for line in lines) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "aggregate_perf.json",
        "analysis.json",
        "details.md",
        "index.json",
        "report.html",
        "report.md",
        *(f"tile{row},{column}.json" for row in (2, 3) for column in (0, 1)),
    ]
    written = json.loads((tmp_path / "out" / "analysis.json").read_text())
    jsonschema.validate(written, msgspec.json.schema(TilesAnalysis))
    assert written["array"]["slowest"]["tile"] == "3,1"
    assert done.stderr == ""
    assert max(map(len, on_terminal("aie", array).lines)) <= 80


def test_json_on_standard_output_is_all_of_it(command: Command, array: Path, tmp_path: Path) -> None:
    """Print what the published schema says; with --quiet the file is there all the same."""
    found = json.loads(command("aie", array, "--json", "-").stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / "tiles.schema.json").read_text()))
    assert (found["schema"], len(found["tiles"])) == ("opscope.tiles/2", 5)
    assert command("aie", array, "--quiet", "--json", tmp_path / "a.json") == (0, "", "")
    assert json.loads((tmp_path / "a.json").read_text())["trace"]["complete"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["missing.json"], 3, "no such file"),
        (["."], 3, "a directory, not a trace"),
        (["empty.json"], 4, "the file is empty"),
        (["text.json"], 4, "neither a trace in JSON nor raw trace words"),
        (["mem.json", "--json", "found.json"], 4, "no core was traced"),
        (["part.json", "--json", "found.json"], 11, "part of the trace is missing"),
        (
            ["one.json", "--M", "-4", "--K", "1", "--N", "1", "--m", "1", "--k", "1", "--n", "1"],
            2,
            "M = -4 is not a size",
        ),
        (["one.json", "--row", "0", "--col", "4", "--m", "1", "--k", "1", "--n", "1"], 2, "0 x 4 cores is impossible"),
        ([], 2, "no trace given"),
    ],
)
def test_bad_input_has_its_own_code(command: Command, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    """One line says what happened and where, another what to do; what could be known is written."""
    whole = saved(tmp_path / "one.json", Gemm(outputs=8).tile()).read_bytes()
    (tmp_path / "part.json").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "text.json").write_text("hello there")
    saved(tmp_path / "mem.json", Tile("mem", 2, 1, ("LOCK_3_REL", *("NONE",) * 7), [Span(0, 5, 6)]))
    done = command("aie", *words, cwd=tmp_path)

    assert done.returncode == code, done.stderr
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert all(line.startswith("hint:  ") for line in rest)
    if "--json" in words:
        assert json.loads((tmp_path / "found.json").read_text())["findings"]


def test_that_cores_start_apart_is_said_and_hidden_only_when_asked(command: Command, tmp_path: Path) -> None:
    """One of two starts 20,000 cycles later: it counts, unless the first calls shall be one moment."""
    cores = [Gemm(fill=0), Gemm(fill=0, column=1, begin=20_001)]
    saved(tmp_path / "t.json", *(core.tile() for core in cores))
    words = "t.json --M 8 --K 128 --N 64 --m 8 --k 32 --n 32 --row 1 --col 2 --warmup 0 --iterations 3".split()
    asked = ([], ["--align", "first-call"])
    real, aligned = (" ".join(command("aie", *words, *more, cwd=tmp_path).stdout.split()) for more in asked)

    assert (
        "an iteration takes 21,839 cycles from the first start to the last end, because the cores start up to 20,000 "
        "cycles apart; a single core takes at most 1,839, balanced to 100.0 %"
    ) in real
    assert "the cores start an iteration 20,000 cycles apart" in real
    assert "an iteration takes 1,839 cycles on all cores, balanced to 100.0 %" in aligned
    assert "apart" not in aligned


def test_the_published_flags_alone_name_trace_and_directory(command: Command, tmp_path: Path) -> None:
    """Find the trace and write beside it, as the published tool does."""
    place = tmp_path / "outputs" / "npu1-gemm_48_128_32-1_row_1_col" / "traces"
    saved(place / "trace_mm_48_128_32.json", Gemm(outputs=3, rest=9000).tile())
    done = command("aie", *FLAGS.replace("--row 2 --col 2", "--row 1 --col 1").split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    core = json.loads((place / "tile2,0.json").read_text())
    assert (core["expected_total_iterations"], core["performance_window"]) == (1, [0])
    assert json.loads((place / "index.json").read_text())["hwid"] == "npu1"


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("", "GMAC/s at an assumed 1250 MHz; "),
        ("--no-assumed-clock", None),
        ("--arch npu2", "at an assumed 1800 MHz; "),
    ],
)
def test_streams_line_needs_no_clock(command: Command, tmp_path: Path, words: str, rate: str | None) -> None:
    """Its hardware model stands in --hwid; the clock that is assumed is said on the terminal, or none is."""
    place = tmp_path / "outputs" / "single_core-gemm_48_128_32-1_row_1_col" / "traces"
    saved(place / "trace_mm_48_128_32.json", Gemm(outputs=3).tile())
    flags = FLAGS.replace("--row 2 --col 2", "--row 1 --col 1").replace("npu1", "single_core").split()
    done = command("aie", *flags, *words.split(), cwd=tmp_path)
    best = json.loads((place / "aggregate_perf.json").read_text())["best"]

    assert done.returncode == 0, done.stderr
    assert ("gmacs_per_second" in best) is (rate is not None)
    assert "GMAC/s" not in done.stdout if rate is None else rate in done.stdout


def test_compare_and_check_take_traces_of_tiles(command: Command, tmp_path: Path) -> None:
    """One a side is undecidable, for people and for CI; four a side stop a slower candidate."""
    for name, call in (("old", 300), ("new", 620)):
        for number in range(4):
            saved(tmp_path / name / f"{number}.json", Gemm(call=call + number).tile())
    one = command("compare", "old/0.json", "new/0.json", cwd=tmp_path)
    few = command("check", "new/0.json", "--against", "old/0.json", cwd=tmp_path)
    all_of_them = command("check", "new", "--against", "old", "--markdown", "-", cwd=tmp_path)
    junit = command("check", "new", "--against", "old", "--junit", "-", "--threshold", "5%", cwd=tmp_path)

    assert "inconclusive: too few traces" in " ".join(one.stdout.split())
    assert (one.returncode, few.returncode, all_of_them.returncode, junit.returncode) == (0, 14, 1, 1)
    assert all_of_them.stdout.startswith("## opscope check: regression, the candidate is slower (+")
    assert '<failure message="slower by' in junit.stdout
    assert 'time="' not in junit.stdout
    for sides in (("old/0.json", TRACE), (TRACE, "old/0.json")):
        mixed = command("compare", *sides)
        assert (mixed.returncode, str(TRACE) in mixed.stderr) == (13, True), mixed


@pytest.mark.parametrize("options", [[], ["--m", "16", "--k", "32", "--n", "32", "--arch", "npu1", "--dtype", "bf16"]])
def test_the_first_screen_is_short(options: list[str], command: Command, tmp_path: Path) -> None:
    """Busy share, waits, pace, what was seen, one next step, and at most three findings, those that save most first."""
    saved(tmp_path / "t.json", Gemm(outputs=9, rest=9000).tile())
    lines = command("aie", "t.json", *options, cwd=tmp_path).stdout.splitlines()
    findings = [line for line in lines if re.match(r"\d+\. ", line)]
    savings = [int(found[1].replace(",", "")) for line in findings if (found := re.search(r"up to ([\d,]+) cyc", line))]
    assert sum(line.startswith("next: ") for line in lines) == 1
    assert len(findings) <= 3
    assert savings == sorted(savings, reverse=True)
    assert len(lines) <= 12
