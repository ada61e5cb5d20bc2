"""Reports of tools that time phases of a language model: their phases, rates, and what they cannot tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import opscope
from opscope.api import analyze, compare
from opscope.core.errors import EmptyTraceError, MismatchError, TraceFormatError
from opscope.core.table import EventTable, Scope
from opscope.program.phases import PhaseKind
from opscope.readers.registry import read_trace
from opscope.reports.formats.event_files import events_csv

DATA = Path(__file__).parents[1] / "data" / "generation"
LLAMA = DATA / "llama-bench.json"


def calls(path: Path) -> list[tuple[str, int]]:
    """Every call by its method with its nanoseconds."""
    found = read_trace(path).table.inference_times()
    return [(str(found.method[row]), int(ns)) for row, ns in enumerate(found.duration)]


def told(path: Path) -> set[str]:
    """Codes of the notes on a file."""
    return {one.code for one in read_trace(path).table.warnings}


def written(directory: Path, name: str, text: str) -> Path:
    """A changed report as a file."""
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def events(table: EventTable, scope: Scope) -> list[tuple[str, int]]:
    """Events of a scope with their nanoseconds."""
    frame = table.frame
    return list(frame.filter(frame["scope"] == scope.value).select("name", "duration").iter_rows())


def test_the_files_are_those_that_their_script_makes(tmp_path: Path) -> None:
    """So that what stands in them can be looked up."""
    subprocess.run([sys.executable, DATA / "made.py", tmp_path], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in DATA.iterdir() if path.suffix != ".py" and path.is_file()}
    assert made == kept


def test_each_repetition_of_llama_bench_is_a_call() -> None:
    """Named by its phase; its tokens and the size of the model are known."""
    tests = json.loads(LLAMA.read_text("utf-8"))
    wanted = [("prefill_512", ns) for ns in tests[0]["samples_ns"]] + [
        ("decode_128_at_0", ns) for ns in tests[1]["samples_ns"]
    ]
    assert calls(LLAMA) == wanted
    work = read_trace(LLAMA).table.work
    assert {name: one.weights for name, one in work.items()} == {
        "prefill_512": 4_368_000_000,
        "decode_128_at_0": 4_368_000_000,
    }


def test_lines_of_json_are_the_same_report() -> None:
    """As ``-o jsonl`` writes them."""
    assert calls(DATA / "llama-bench.jsonl") == calls(LLAMA)
    assert read_trace(DATA / "llama-bench.jsonl").table.work == read_trace(LLAMA).table.work


def test_csv_has_the_mean_alone_and_says_so() -> None:
    """One call for each test."""
    tests = json.loads(LLAMA.read_text("utf-8"))
    assert calls(DATA / "llama-bench.csv") == [
        ("prefill_512", tests[0]["avg_ns"]),
        ("decode_128_at_0", tests[1]["avg_ns"]),
    ]
    assert "averages_only" in told(DATA / "llama-bench.csv")


@pytest.mark.parametrize(("suffix", "repetitions", "prompt"), [("json", 3, 9_027_207), ("jsonl", 3, 11_200_847)])
def test_what_the_tool_wrote_is_read(suffix: str, repetitions: int, prompt: int) -> None:
    """Every test of ``-p 128 -n 64 -pg 128,64 -d 0,512``, with the bandwidth that 14,689,280 bytes a token imply."""
    found = {row.method: row for row in analyze(DATA / "written" / f"llama-bench.{suffix}").methods}
    assert list(found) == [
        "prefill_128",
        "decode_64_at_0",
        "prompt_128_and_64",
        "prefill_128_at_512",
        "decode_64_at_512",
        "prompt_128_and_64_at_512",
    ]
    assert {row.calls for row in found.values()} == {repetitions}
    assert found["prefill_128"].latency.median_ns == prompt
    decode = found["decode_64_at_0"]
    assert decode.weights_per_s == pytest.approx(14_689_280 * 64e9 / decode.latency.median_ns)


def test_averages_of_the_tool_are_one_call_each() -> None:
    """CSV has no samples."""
    rows = analyze(DATA / "written" / "llama-bench.csv").methods
    assert {row.calls for row in rows} == {1}
    assert len(rows) == 6
    assert "averages_only" not in told(LLAMA)


def test_the_analysis_has_tokens_per_second_with_their_interval() -> None:
    """Of the median, by the tokens of a call; the tool's own mean rate lies in the interval."""
    tests = json.loads(LLAMA.read_text("utf-8"))
    rows = analyze(LLAMA).methods
    assert [(row.phase.kind, row.phase.tokens) for row in rows] == [(PhaseKind.PREFILL, 512), (PhaseKind.DECODE, 128)]
    for row, test in zip(rows, tests, strict=True):
        low, high = row.tokens_ci95
        assert low <= row.tokens_per_second <= high
        assert low <= test["avg_ts"] <= high


def test_tests_with_different_settings_are_never_one_method() -> None:
    """A sweep of threads and depths: each has its name, and prompt with generation has no rate."""
    rows = {row.method: row for row in analyze(DATA / "llama-bench-sweep.json").methods}
    assert list(rows) == [
        *(f"decode_64_at_{depth} n_threads={threads}" for threads in (1, 2, 4) for depth in (0, 4096)),
        "prompt_512_and_128 n_threads=4",
    ]
    assert {row.calls for name, row in rows.items() if name.startswith("decode")} == {5}
    assert rows["decode_64_at_4096 n_threads=2"].phase.position == 4096
    assert rows["prompt_512_and_128 n_threads=4"].tokens_per_second is None
    assert {"several_settings", "mixed_phases"} <= told(DATA / "llama-bench-sweep.json")


def test_decoding_implies_a_bandwidth_where_the_model_is_stated() -> None:
    """All weights for each token; a prompt reads them once for many, and other tools state no size."""
    prefill, decode = analyze(LLAMA).methods
    assert decode.weights_per_s == pytest.approx(4_368_000_000 * decode.tokens_per_second)
    assert prefill.weights_per_s is None
    assert {row.weights_per_s for row in analyze(DATA / "observer.log").methods} == {None}
    shown = opscope("analyze", LLAMA).stdout
    assert "11 [11, 11] tokens per second in decode_128_at_0" in shown
    assert "decode_128_at_0 reads weights at up to 48 GB/s" in shown


def test_no_line_over_positions_is_made_of_calls_of_several_tokens() -> None:
    """They are of no one position, and rows of a sweep are of different settings."""
    assert analyze(DATA / "llama-bench-sweep.json").growth == []


def test_models_of_one_file_are_rows_of_their_own(tmp_path: Path) -> None:
    """Named by their files, which stand for type and size."""
    tests = json.loads(LLAMA.read_text("utf-8"))
    other = tests[1] | {"model_filename": "/models/tiny 1b.gguf", "model_size": 10, "model_type": "tiny"}
    path = written(tmp_path, "two.json", json.dumps([tests[1], other]))
    names = ["decode_128_at_0 model_filename=small-7b-q4_k_m.gguf", "decode_128_at_0 model_filename=tiny 1b.gguf"]
    assert [row.method for row in analyze(path).methods] == names
    assert [one.weights for one in read_trace(path).table.work.values()] == [4_368_000_000, 10]


def test_files_of_different_settings_are_not_analysed_as_one(tmp_path: Path) -> None:
    """A directory is one run with several processes; the same settings twice are."""
    text = LLAMA.read_text("utf-8")
    written(tmp_path, "a.json", text)
    written(tmp_path, "b.json", text)
    assert [row.calls for row in analyze(tmp_path).methods] == [12, 12]
    written(tmp_path, "b.json", text.replace('"n_threads": 4', '"n_threads": 8'))
    with pytest.raises(MismatchError, match="n_threads=4 and n_threads=8"):
        analyze(tmp_path)


def test_numbers_of_tokens_are_told_apart(tmp_path: Path) -> None:
    """64 and 128 tokens from one position are different calls."""
    tests = json.loads(LLAMA.read_text("utf-8"))
    path = written(tmp_path, "two.json", json.dumps([tests[1], tests[1] | {"n_gen": 64}]))
    assert [(row.method, row.phase.tokens) for row in analyze(path).methods] == [
        ("decode_128_at_0", 128),
        ("decode_64_at_0", 64),
    ]


def test_nothing_is_set_aside_as_warm_up(tmp_path: Path) -> None:
    """Tools leave theirs out; a slow prefill before quick tokens would look like one."""
    tests = json.loads(LLAMA.read_text("utf-8"))
    slow, quick = (
        tests[0] | {"samples_ns": [9_000_000_000]},
        tests[1] | {"samples_ns": [1_000_000 + n for n in range(30)]},
    )
    assert analyze(written(tmp_path, "a.json", json.dumps([slow, quick]))).trace.warmup == 0


def test_a_table_of_the_report_keeps_the_tokens_of_its_calls(tmp_path: Path) -> None:
    """They are in the names, which every format of events has."""
    path = tmp_path / "events.csv"
    path.write_bytes(b"".join(events_csv(read_trace(LLAMA).table)))
    again = analyze(path, warmup=0).methods
    assert [row.tokens_per_second for row in again] == [row.tokens_per_second for row in analyze(LLAMA).methods]


def test_two_reports_are_compared_by_phase(tmp_path: Path) -> None:
    """A process a side is never more than undecidable."""
    text = LLAMA.read_text("utf-8").replace('"n_threads": 4', '"n_threads": 8')
    found = compare(LLAMA, written(tmp_path, "b.json", text))
    assert [one.method for one in found.methods] == ["prefill_512", "decode_128_at_0"]
    assert {one.end_to_end.verdict for one in found.methods} == {"undecidable"}


def test_a_log_of_an_executorch_runner_has_its_prompts() -> None:
    """Found behind what the model said; loading once, sampling inside of decode, times of whole milliseconds."""
    path = DATA / "observer.log"
    ms = 1_000_000
    assert calls(path) == [
        ("prefill_64", 412 * ms),
        ("decode_100_at_64", 5020 * ms),
        ("prefill_64", 405 * ms),
        ("decode_100_at_64", 4988 * ms),
    ]
    table = read_trace(path).table
    assert [row.phase.tokens for row in analyze(path).methods] == [64, 100]
    assert table.loading() == [2700 * ms]
    assert events(table, Scope.CONTROL) == [("sampling", 31 * ms)] * 2
    assert set(table.frame["resolution"]) == {ms}


def test_what_the_runner_of_executorch_wrote_is_read() -> None:
    """Three prompts of executorch 1.5.1's TextLLMRunner, from its Python bindings, with a program of export_llm.

    The rates that it prints are those of the phases.
    """
    path = DATA / "written" / "observer.log"
    printed = [json.loads(line.partition(" ")[2]) for line in path.read_text("utf-8").splitlines() if "{" in line]
    assert [name for name, _ in calls(path)] == ["prefill_109", "decode_199_at_109"] * 3
    rates = [tokens * 1e9 / ns for (_, ns), tokens in zip(calls(path), [109, 199] * 3, strict=True)]
    said = [stats[name] for stats in printed for name in ("prefill_token_per_sec", "decode_token_per_sec")]
    assert rates == pytest.approx(said, rel=1e-5)
    assert read_trace(path).table.loading() == [22_000_000]
    assert analyze(path).growth == []


def test_phases_below_a_millisecond_are_left_out_and_told(tmp_path: Path) -> None:
    """No rate is made of a duration of zero."""
    line = DATA.joinpath("observer.log").read_text("utf-8").splitlines()[2]
    stats = json.loads(line.partition(" ")[2])
    stats["prompt_eval_end_ms"] = stats["inference_start_ms"]
    path = written(tmp_path, "a.log", f"said\nPyTorchObserver {json.dumps(stats, separators=(',', ':'))}\n")
    assert [name for name, _ in calls(path)] == ["decode_100_at_64"]
    assert "too_short" in told(path)


def test_what_the_benchmark_of_litert_lm_wrote_is_read() -> None:
    """Three runs of litert-lm 0.18.1 with a 4-layer model of litert-torch: its rates are those of the phases."""
    path = DATA / "written" / "litert-lm-benchmark.txt"
    rates = {row.method: row.tokens_per_second for row in analyze(path).methods}
    assert rates == {
        "prefill_128_of_1024": pytest.approx(11_917.30, abs=0.01),
        "decode_64_at_128_of_1024": pytest.approx(1_616.59, abs=0.01),
    }
    assert read_trace(path).table.loading() == [27_900_000]


def test_turns_of_litert_lm_stand_at_their_positions() -> None:
    """Behind the tokens of all turns before them; durations as abseil writes them."""
    path = DATA / "litert-lm-main.log"
    assert calls(path) == [
        ("tokenization", 46_100),
        ("prefill_16", 819_951_400),
        ("decode_88_at_16", 8_703_800_500),
        ("prefill_20_at_104", 1_000_500_000),
        ("decode_10_at_124", 60_500_000_000),
    ]
    table = read_trace(path).table
    assert table.loading() == [680_100_000]
    assert [row.phase.tokens for row in analyze(path).methods if row.phase] == [16, 88, 20, 10]


def test_rates_of_the_litert_lm_command_become_times() -> None:
    """The tokens by the rate, which is a mean of runs; the cache is part of the phase."""
    path = DATA / "litert-lm-benchmark.txt"
    assert calls(path) == [("prefill_256_of_4096", 1_160_997_732), ("decode_100_at_256_of_4096", 8_000_000_000)]
    rows = analyze(path).methods
    assert [row.tokens_per_second for row in rows] == pytest.approx([220.5, 12.5])
    assert [row.phase.cache for row in rows] == [4096, 4096]
    averaged = next(one for one in read_trace(path).table.warnings if one.code == "averages_only")
    assert "3 runs" in averaged.message


@pytest.mark.parametrize("name", ["genai.json", "genai.csv"])
def test_both_forms_of_the_genai_benchmark_are_one_report(name: str) -> None:
    """Prompt processing is stated for a token, tokenization and sampling of the first token for all."""
    assert calls(DATA / name) == [
        ("tokenization", 75_000),
        ("prefill_64_of_320", 400_000_000),
        ("decode_at_64_of_320", 62_500_000),
    ]
    rows = {row.method: row.tokens_per_second for row in analyze(DATA / name).methods}
    assert rows == {"tokenization": None, "prefill_64_of_320": 160.0, "decode_at_64_of_320": 16.0}
    assert events(read_trace(DATA / name).table, Scope.CONTROL) == [("sampling", 1_500_000)]


@pytest.mark.parametrize(
    "name", sorted(path.name for path in DATA.iterdir() if path.suffix in {".json", ".txt", ".log"})
)
def test_every_report_says_that_it_has_no_operators(name: str) -> None:
    """There is no split, and none is printed."""
    assert "phases_only" in told(DATA / name)
    assert not analyze(DATA / name).has_split


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("llama-bench.json", '"n_gen": 128', '"n_gen": -1', "test 2: it has an impossible number of tokens"),
        ("llama-bench.json", '"model_size": 43', '"model_size": -43', "impossible size"),
        ("llama-bench.json", '"samples_ns": [', '"samples_ns": [-1,', "impossible time"),
        ("llama-bench.json", '"samples_ns": [', '"samples_ns": [9007199254740993,', "impossible time"),
        ("llama-bench.json", '"avg_ns":', '"average":', "test 1: not a test of llama-bench"),
        ("llama-bench.csv", '"0.01"', '"0.01","1"', "line 2: it has"),
        ("observer.log", '"inference_end_ms":1', '"inference_end_ms":0', "not a PyTorchObserver line"),
        ("observer.log", '"generated_tokens":100', '"generated_tokens":-1', "numbers of tokens that cannot be"),
        ("observer.log", '"SCALING_FACTOR_UNITS_PER_SECOND":1000}', "", "is cut off"),
        ("litert-lm-benchmark.txt", "Decode speed:         12.50", "Decode speed:         0.00", "no speeds"),
        ("litert-lm-benchmark.txt", "----- Results -----", "", "no speeds"),
        ("litert-lm-main.log", "Decode Turns (Total 2", "Decode Turns (Total 3", "not all of its turns"),
        ("litert-lm-main.log", "  Decode Turns (Total 2 turns):\n", "", "not all of its turns"),
        ("genai.json", '"prompt_length": 64', '"prompt_length": -64', "record 1: it has times"),
        ("genai.json", '"prompt_length": 64.0', '"prompt_length": 64.5', "record 1: it has times"),
        ("genai.csv", ",62.5,", ",-62.5,", "record 1: it has times"),
        ("genai.csv", ",62.5,", ",", "not a report of benchmark_e2e.py"),
    ],
)
def test_damage_is_refused_with_its_place(name: str, old: str, new: str, problem: str, tmp_path: Path) -> None:
    """No figure is made of what cannot be."""
    text = (DATA / name).read_text("utf-8")
    assert old in text
    path = written(tmp_path, name, text.replace(old, new))
    with pytest.raises(TraceFormatError, match=problem) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", ["llama-bench.json", "genai.json"])
def test_a_truncated_report_says_where_it_ends(name: str, tmp_path: Path) -> None:
    """As a benchmark that was killed leaves it."""
    path = written(tmp_path, name, (DATA / name).read_text("utf-8")[:-40])
    with pytest.raises(TraceFormatError, match="truncated"):
        read_trace(path)


def test_reports_without_phases_are_refused(tmp_path: Path) -> None:
    """What releases of 2025 printed has rates and no tokens; a log may hold no line of the observer."""
    rates = (
        "BenchmarkInfo:\n  Prefill Turns (Total: 1):\n    Prefill Turn 1:\n      Prefill Speed: 500.00 tokens/sec.\n"
        "  Decode Turns (Total: 0):\n    No decode turns recorded.\n"
    )
    with pytest.raises(TraceFormatError, match="no turns"):
        read_trace(written(tmp_path, "old.log", rates))
    with pytest.raises(EmptyTraceError, match="no phase"):
        read_trace(written(tmp_path, "run.log", "I 00:00:00.000123 executorch:main.cpp:80] nothing\n"))
    with pytest.raises(EmptyTraceError, match="no phase"):
        read_trace(written(tmp_path, "b.csv", "build_commit,build_number,cpu_info\n"))
