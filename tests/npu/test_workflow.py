"""Analyses of AI Engine traces as callers see them: what is written, adds up, is refused, and is compared."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import zstandard

import opscope
from aie_captures import NPU1_GEMM, NPU2_GEMM, Captures
from aie_gemm import Gemm
from aie_traces import Span, Tile, json_text, records, words_text
from opscope.analysis.gate.decision import Decision, Outcome
from opscope.api import to_json
from opscope.core.errors import EmptyTraceError, IncompleteError, MismatchError, NotFoundError, OpscopeError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.npu.analysis.compare import TilesComparison, TilesEvidence
from opscope.npu.analysis.tiles_result import TilesAnalysis
from opscope.npu.reports.page import tiles_markdown
from opscope.npu.workflows.aie import Tiles, TilesRequest, analyze_tiles, missing, published, published_path
from opscope.npu.workflows.sides import is_tiles

PRODUCT = {"M": 48, "K": 128, "N": 32, "m": 16, "k": 32, "n": 32, "row": 1, "col": 1, "dtype": "bf16", "arch": "npu1"}
SIZES = TilesRequest(**PRODUCT)


def saved(path: Path, *tiles: Tile) -> Path:
    """A trace in JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json_text(tiles)))
    return path


def plain(tiles: Tiles) -> dict[str, Any]:
    """What is written to analysis.json, checked against its published schema."""
    found = json.loads(to_json(tiles.analysis))
    jsonschema.validate(found, msgspec.json.schema(TilesAnalysis))
    return found


def rules(tiles: Tiles) -> list[str]:
    """Rules of all findings."""
    return [found.rule for found in tiles.analysis.findings]


@pytest.mark.parametrize(
    ("name", "request_", "figures"),
    [
        (
            NPU1_GEMM,
            TilesRequest(M=256, K=768, N=768, m=32, k=64, n=64, row=1, col=1, dtype="bf16", arch="npu1"),
            ("2,1", 80, 74, 1385.0, 2049.0, 2048.0, 62.169),
        ),
        (
            NPU2_GEMM,
            TilesRequest(m=16, k=32, n=256, dtype="bf16", arch="npu2"),
            ("2,0", 117, 113, 1622.0, 2049.0, 2048.0, 63.228),
        ),
    ],
)
def test_the_captures_have_their_measured_figures(
    captures: Captures, name: str, request_: TilesRequest, figures: tuple[Any, ...]
) -> None:
    """Calls, the multiplying kind, its duration, the period measured and predicted, and the rate."""
    found = plain(analyze_tiles(captures.json(name), request_))
    (tile,) = found["tiles"]
    (kind,) = (kind for kind in tile["kinds"] if kind["multiplies"])
    periods = [tile["bound"][f"{how}_period_cycles"] for how in ("measured", "predicted")]
    shown = (tile["tile"], tile["calls"]["paired"], kind["n"], kind["median_cycles"], *periods)

    assert shown == figures[:6]
    assert tile["mac_per_cycle"] == pytest.approx(figures[6], abs=1e-3)
    assert tile["bound"]["by"] == "B input stream"
    assert found["schema"] == "opscope.tiles/2"


def test_the_npu1_capture_splits_into_its_measured_shares(captures: Captures) -> None:
    """The cycles of the window are those that were counted by hand on this capture."""
    (tile,) = plain(analyze_tiles(captures.json(NPU1_GEMM)))["tiles"]
    inside, between = (tile["cycles"][where] for where in ("in_call", "between_calls"))
    shares = [inside["vector"], inside["memory_stall"], inside["other"], between["lock_stall"], between["other"]]

    assert [round(100 * share / tile["window_cycles"], 1) for share in shares] == [48.6, 5.6, 12.4, 31.7, 1.6]


@pytest.mark.parametrize("cores", [[Gemm()], [Gemm(rest=700, row=row, column=1) for row in range(2, 6)]])
def test_every_cycle_of_every_window_is_counted_once(tmp_path: Path, cores: list[Gemm]) -> None:
    """In calls and between them add up to the window, for any number of cores."""
    found = plain(analyze_tiles(saved(tmp_path / "t.json", *(core.tile() for core in cores)), SIZES))

    for tile in found["tiles"]:
        splits = (tile["cycles"]["in_call"], tile["cycles"]["between_calls"])
        assert sum(sum(split.values()) for split in splits) == tile["window_cycles"] > 0
    assert len(found["tiles"]) == len(cores)


def test_the_fields_of_a_tile_are_those_of_the_contract(tmp_path: Path) -> None:
    """More may be added; none of these may go, or change its place."""
    found = plain(analyze_tiles(saved(tmp_path / "t.json", Gemm().tile()), SIZES))
    (tile,) = found["tiles"]
    categories = {"vector", "memory_stall", "stream_stall", "cascade_stall", "lock_stall", "other"}
    kind = {"kind", "n", "vector_cycles", "first_cycles"} | {
        f"{name}_cycles" for name in ("median", "p10", "p90", "min", "max")
    }

    assert {"schema", "trace", "tiles", "findings"} <= set(found)
    assert {"tile", "unit", "calls", "kinds", "window_cycles", "cycles", "bound", "iterations"} <= set(tile)
    assert {"mac_per_cycle", "utilisation", "coverage"} <= set(tile)
    assert set(tile["calls"]) == {"paired", "dropped", "ambiguous"}
    assert all(kind <= set(own) for own in tile["kinds"])
    assert all(set(tile["cycles"][where]) == categories for where in ("in_call", "between_calls"))
    assert {"by", "predicted_period_cycles", "measured_period_cycles"} <= set(tile["bound"])


def test_without_sizes_nothing_is_rated(tmp_path: Path) -> None:
    """Rates, utilisation and coverage are null with a reason; durations and cycles are there."""
    (tile,) = plain(analyze_tiles(saved(tmp_path / "t.json", Gemm().tile())))["tiles"]

    assert [tile[name] for name in ("mac_per_cycle", "utilisation", "coverage", "gmac_per_s")] == [None] * 4
    assert "m, k, n" in tile["rate_reason"]
    assert tile["kinds"][0]["n"] == 12


def test_other_units_stand_beside_the_cores(tmp_path: Path) -> None:
    """They have slots and no calls, and their window is empty."""
    names = ("DMA_S2MM_SEL0_START_TASK", *("NONE",) * 7)
    memtile = Tile("memtile", 1, 0, names, [Span(0, 5, 6), Span(0, 900, 901)])
    found = plain(analyze_tiles(saved(tmp_path / "t.json", Gemm().tile(), memtile), SIZES))
    core, other = found["tiles"]

    assert (core["unit"], other["unit"], other["tile"]) == ("core", "memtile", "1,0")
    assert other["calls"] == {"paired": 0, "dropped": 0, "ambiguous": 0}
    assert (other["window_cycles"], other["bound"], other["mac_per_cycle"]) == (0, None, None)
    assert other["slots"][0] == {
        "slot": 0,
        "event": "DMA_S2MM_SEL0_START_TASK",
        "spans": 2,
        "cycles": 2,
        "addresses": [],
    }


@pytest.mark.parametrize("lists", [(",".join(Gemm().tile().names),), (f"core={','.join(Gemm().tile().names)}",)])
def test_raw_words_take_their_events_from_a_list(tmp_path: Path, lists: tuple[str, ...]) -> None:
    """The same run as words and as JSON gives the same tile."""
    tile = Gemm(cut=4000).tile()
    tile = tile._replace(spans=[span for span in tile.spans if span.end is not None])
    words = tmp_path / "words.txt"
    words.write_bytes(words_text([tile]))
    asked = msgspec.structs.replace(SIZES, slots=lists)
    from_words = plain(analyze_tiles(words, asked))["tiles"][0]
    from_json = plain(analyze_tiles(saved(tmp_path / "t.json", tile), SIZES))["tiles"][0]

    for name in ("calls", "kinds", "window_cycles", "cycles", "mac_per_cycle", "bound"):
        assert from_words[name] == from_json[name], name


@pytest.mark.parametrize(
    "text",
    [
        ",".join(Gemm().tile().names),
        f"# slots\ncore: {', '.join(Gemm().tile().names)}\nmem: NONE\n",
    ],
)
def test_or_from_a_file(tmp_path: Path, text: str) -> None:
    """As one line, or one for each kind of unit."""
    words, slots = tmp_path / "words.txt", tmp_path / "slots"
    words.write_bytes(words_text([Gemm().tile()]))
    slots.write_text(text)

    (tile,) = analyze_tiles(words, TilesRequest(slots_file=slots)).analysis.tiles
    assert [slot.event for slot in tile.slots] == list(Gemm().tile().names)[: len(tile.slots)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"M": -1}, "M = -1"),
        ({"m": 0}, "m = 0"),
        ({"k": 1 << 40}, "k = 1099511627776"),
        ({"m": 4096}, "larger than M"),
        ({"N": None}, "only some of the sizes"),
        ({"m": None, "k": None, "n": None}, "the sizes of one call are missing"),
        ({"row": 0}, "0 x 1 cores"),
        ({"row": 5000}, "rows = 5000"),
        ({"warmup": -1}, "-1 is not a number of iterations"),
        ({"iterations": 1 << 40}, "is not a number of iterations"),
        ({"clock_mhz": float("nan")}, "nan MHz"),
        ({"dtype": "fp8"}, "'fp8'"),
        ({"arch": "npu9"}, "'npu9'"),
        ({"slots": ("INSTR_EVNT_0",)}, "has no event 'INSTR_EVNT_0'"),
        ({"slots": ("A,B,C,D,E,F,G,H,I",)}, "9 slots of core"),
        ({"slots": ("cpu=NONE",)}, "unknown kind of unit: 'cpu'"),
        ({"slots": ("NONE", "core=NONE")}, "named twice"),
        ({"slots": ("",)}, "no slot named"),
    ],
)
def test_what_cannot_be_true_is_refused(tmp_path: Path, words: dict[str, Any], problem: str) -> None:
    """Negative, absurd, contradicting and unknown values, each with a hint."""
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")) as error:
        analyze_tiles(saved(tmp_path / "t.json", Gemm().tile()), TilesRequest(**(PRODUCT | words)))
    assert error.value.hint


def test_a_cut_off_file_is_analysed_as_far_as_it_goes(tmp_path: Path) -> None:
    """What is whole counts, and the result says that the rest is missing."""
    whole = saved(tmp_path / "t.json", Gemm(outputs=9).tile()).read_bytes()
    part = tmp_path / "part.json"
    part.write_bytes(whole[: len(whole) * 2 // 3])
    tiles = analyze_tiles(part, SIZES)

    assert not plain(tiles)["trace"]["complete"]
    assert rules(tiles)[0] == "truncated"
    assert 0 < tiles.analysis.tiles[0].calls.paired < 45
    assert isinstance(missing(tiles), IncompleteError)


def damaged(events: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """Events with some lost, doubled, moved, renamed, or at impossible times."""
    found = [dict(event) for event in events]
    for _ in range(rng.randint(1, 20)):
        place = rng.randrange(4, len(found))
        event = found[place]
        kind = rng.randrange(6)
        if kind == 0:
            del found[place]
        elif kind == 1:
            found.insert(rng.randrange(4, len(found)), dict(event))
        elif kind == 2:
            event["ts"] = rng.choice([-5, 0, 10**15, 2**62, 1.5, "x"])
        elif kind == 3:
            event["ph"] = rng.choice("BEXM")
        elif kind == 4:
            event["name"] = rng.choice(["INSTR_EVENT_0", "INSTR_EVENT_1", "LOCK_STALL", "WHAT"])
        else:
            event["tid"] = rng.choice([0, 3, 9, -1])
    return found


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_trace_adds_up_or_is_refused(tmp_path: Path, seed: int) -> None:
    """Every cycle of the window is still counted once, rates stay below the peak, and every file can be written."""
    rng = random.Random(seed)
    events = list(records([Gemm(outputs=2, rest=600, column=column).tile() for column in range(2)]))
    path = tmp_path / "t.json"
    path.write_text(json.dumps(damaged(events, rng)))
    try:
        tiles = analyze_tiles(path, SIZES)
    except OpscopeError:
        return
    for tile in json.loads(to_json(tiles.analysis))["tiles"]:
        counts = [count for split in tile["cycles"].values() for count in split.values()]
        assert sum(counts) == tile["window_cycles"]
        assert min(counts) >= 0
        assert tile["utilisation"] is None or tile["utilisation"] <= 1
    assert published(tiles, "out")
    assert tiles_markdown(tiles.examined)


def test_without_a_core_or_a_call_there_is_nothing_to_judge(tmp_path: Path) -> None:
    """Other units, and cores without marks, are shown; the question is not answered."""
    mem = Tile("mem", 2, 1, ("LOCK_3_REL", *("NONE",) * 7), [Span(0, 5, 6)])
    idle = Tile("core", 2, 1, ("LOCK_STALL", *("NONE",) * 7), [Span(0, 5, 6)])
    problems = [missing(analyze_tiles(saved(tmp_path / f"{one.unit}.json", one))) for one in (mem, idle)]

    assert [type(problem) for problem in problems] == [EmptyTraceError] * 2
    assert ["no core was traced" in str(problems[0]), "no slot for INSTR_EVENT_0" in str(problems[1])] == [True, True]


def test_more_cores_than_were_given_do_not_match(tmp_path: Path) -> None:
    """Fewer may be: not every core need be traced."""
    path = saved(tmp_path / "t.json", *(Gemm(row=row).tile() for row in (2, 3, 4)))
    asked = [msgspec.structs.replace(SIZES, M=48 * 12, row=rows) for rows in (2, 3, 4)]
    found = [missing(analyze_tiles(path, request)) for request in asked]

    assert [type(one) for one in found] == [MismatchError, type(None), type(None)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"col": 5, "N": 160}, "1 x 5 cores .* were given, npu1 has 4 x 4"),
        ({"row": 5, "M": 240}, "5 x 1 cores"),
        ({"col": 5, "N": 160, "arch": None, "hwid": "npu1_4col"}, "npu1 has 4 x 4"),
    ],
)
def test_a_device_refuses_cores_that_it_does_not_have(tmp_path: Path, words: dict[str, Any], problem: str) -> None:
    """Given by --row and --col; the same is fine on a larger array."""
    path = saved(tmp_path / "t.json", Gemm().tile())
    with pytest.raises(UsageError, match=problem):
        analyze_tiles(path, TilesRequest(**(PRODUCT | words)))
    if "col" in words:
        assert analyze_tiles(path, TilesRequest(**(PRODUCT | words | {"arch": "npu2"}))).analysis.tiles


def side(directory: Path, calls: list[int]) -> Path:
    """A directory of traces whose calls last so long."""
    for number, call in enumerate(calls):
        saved(directory / f"{number}.json", Gemm(outputs=4, call=call).tile())
    return directory


def test_one_trace_a_side_decides_nothing(tmp_path: Path) -> None:
    """However large the difference, a run says nothing about the next one."""
    before, after = side(tmp_path / "a", [300]), side(tmp_path / "b", [900])
    found = opscope.compare_tiles(before / "0.json", after)

    assert isinstance(found, TilesComparison)
    assert found.overall.verdict is Verdict.UNDECIDABLE
    assert found.overall.ci95 is None
    assert {row.verdict for row in [*found.kinds, *found.stall_cycles]} == {Verdict.UNDECIDABLE}
    assert found.overall.ratio == pytest.approx(Gemm(call=300).period / Gemm(call=900).period, rel=0.2)


def test_several_traces_a_side_can_decide(tmp_path: Path) -> None:
    """Four a side are enough for the whole, more for each of many figures, which say where the difference is."""
    before, after = side(tmp_path / "a", [*range(300, 306)]), side(tmp_path / "b", [*range(600, 606)])
    found = opscope.compare_tiles(before, after)
    assert isinstance(found, TilesComparison)
    jsonschema.validate(json.loads(to_json(found)), msgspec.json.schema(TilesComparison))

    assert (found.baseline.traces, found.candidate.traces) == (6, 6)
    assert found.overall.verdict is Verdict.SLOWER
    assert found.overall.ci95 is not None
    assert [(row.name, row.verdict) for row in found.kinds] == [
        ("kernel 1", Verdict.SLOWER),
        ("zero-fill", Verdict.NO_DIFFERENCE),
    ]
    assert found.kinds[0].ratio == pytest.approx(0.5, abs=0.01)


def test_written_analyses_are_sides_with_rates(tmp_path: Path) -> None:
    """A trace does not hold the sizes; what opscope aie wrote does."""
    for name, call in (("a", 300), ("b", 600)):
        tiles = analyze_tiles(saved(tmp_path / f"{name}.json", Gemm(call=call).tile()), SIZES)
        (tmp_path / name).mkdir()
        (tmp_path / name / "analysis.json").write_bytes(to_json(tiles.analysis))
    found = opscope.compare_tiles(tmp_path / "a", tmp_path / "b" / "analysis.json")

    assert isinstance(found, TilesComparison)
    (rate,) = found.rates
    assert rate.ratio is not None
    assert rate.ratio < 1


def test_compressed_traces_are_sides_too(tmp_path: Path) -> None:
    """By gzip and by zstd; what is damaged is not a trace."""
    traces = [saved(tmp_path / f"{call}.json", Gemm(call=call).tile()).read_bytes() for call in (300, 320)]
    packed, packed_too, broken = (tmp_path / name for name in ("a.json.gz", "b.json.zst", "c.json.gz"))
    packed.write_bytes(gzip.compress(traces[0]))
    packed_too.write_bytes(zstandard.ZstdCompressor().compress(traces[1]))
    broken.write_bytes(b"\x1f\x8b" + b"\x00" * 40)
    found = opscope.compare_tiles(packed, packed_too)

    assert isinstance(found, TilesComparison)
    assert found.kinds[0].candidate == pytest.approx(320)
    assert [is_tiles(path) for path in (packed, packed_too, broken)] == [True, True, False]


@pytest.mark.parametrize(
    ("calls", "outcome"), [([600, 601, 602, 603], Outcome.REGRESSION), ([300, 301, 303, 302], None)]
)
def test_the_gate_stops_a_slower_candidate(tmp_path: Path, calls: list[int], outcome: Outcome | None) -> None:
    """By the same rules as for models: shown to be slower, and by more than is let through."""
    before, after = side(tmp_path / "a", [301, 300, 302, 304]), side(tmp_path / "b", calls)
    report = opscope.check_tiles(after, before, threshold=0.05)

    assert isinstance(report.evidence, TilesEvidence)
    jsonschema.validate(json.loads(to_json(report)), msgspec.json.schema(Decision[TilesEvidence]))
    assert report.outcome is (outcome or Outcome.PASSED)
    assert report.let_through is (outcome is None)


def test_the_gate_refuses_what_cannot_be_compared(tmp_path: Path) -> None:
    """The same traces, and something that is no trace of tiles."""
    before, words = side(tmp_path / "a", [300]), tmp_path / "notes.txt"
    words.write_text("hello")
    with pytest.raises(MismatchError, match="the same traces"):
        opscope.check_tiles(before, before)
    with pytest.raises(MismatchError, match="not an AI Engine trace"):
        opscope.check_tiles(words, before)
    with pytest.raises(NotFoundError, match="no such file"):
        opscope.compare_tiles(before, tmp_path / "nothing")
    assert not is_tiles(words)


def test_the_published_flags_name_their_trace() -> None:
    """Where the published tool looks for it."""
    request = TilesRequest(hwid="npu2", M=1, K=2, N=3, row=4, col=8)

    assert str(published_path(request)) == "outputs/npu2-gemm_1_2_3-4_row_8_col/traces/trace_mm_1_2_3.json"
    assert published_path(TilesRequest(hwid="npu2", M=1, K=2, N=3)) is None
