"""Makes the reports of language models in this folder: ``python tests/data/generation/made.py [DIRECTORY]``.

``written`` holds what llama-bench of llama.cpp 0c1e570 wrote of a model of four layers, on two busy CPUs. No tool
wrote the others: their shape is that of the sources which the readers name, and of what onnxruntime-genai 0.18 and
the command of litert-lm 0.18.1 really wrote. Their figures are invented ones that could be.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

RULE = "-" * 50
SETTINGS = {
    "cpu_info": "Some CPU with 8 cores",
    "gpu_info": "",
    "backends": "CPU",
    "model_filename": "models/small-7b-q4_k_m.gguf",
    "model_type": "small 7B Q4_K - Medium",
    "model_size": 4_368_000_000,
    "model_n_params": 7_240_000_000,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_threads": 4,
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 50,
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": -1,
    "split_mode": "layer",
    "main_gpu": 0,
    "no_kv_offload": False,
    "flash_attn": -1,
    "devices": "auto",
    "tensor_split": "0.00",
    "load_mode": "mmap",
    "embeddings": False,
}
PREFILL = [12_801_200_345, 12_790_118_020, 12_822_400_117, 12_795_003_904, 12_812_775_811, 12_799_431_226]
DECODE = [11_640_300_118, 11_652_774_090, 11_638_902_551, 11_671_005_202, 11_645_110_377, 11_649_820_914]


def llama_test(prompt: int, made: int, depth: int, samples: list[int], **settings: object) -> dict[str, object]:
    """A test with its figures in the order of the tool."""
    rates = [1e9 * (prompt + made) / ns for ns in samples]
    mean = sum(samples) // len(samples)
    spread = int((sum((ns - mean) ** 2 for ns in samples) / (len(samples) - 1)) ** 0.5)
    return {
        "build_commit": "0104b151",
        "build_number": 7000,
        **SETTINGS,
        **settings,
        "n_prompt": prompt,
        "n_gen": made,
        "n_depth": depth,
        "test_time": "2026-01-02T03:04:05Z",
        "avg_ns": mean,
        "stddev_ns": spread,
        "avg_ts": round(sum(rates) / len(rates), 6),
        "stddev_ts": 0.01,
        "samples_ns": samples,
        "samples_ts": [float(f"{rate:.6g}") for rate in rates],
    }


def llama_json(tests: list[dict[str, object]]) -> str:
    """As ``-o json`` prints it: an object a test, its lists on one line."""
    bodies = [",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in one.items()) for one in tests]
    return "[\n" + ",\n".join(f"  {{\n{body}\n  }}" for body in bodies) + "\n]\n"


def llama_csv(tests: list[dict[str, object]]) -> str:
    """As ``-o csv`` prints it: every value in quotation marks, without the samples."""
    kept = [{key: value for key, value in one.items() if not key.startswith("samples")} for one in tests]
    cells = [[str(int(value) if isinstance(value, bool) else value) for value in one.values()] for one in kept]
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(cells)
    return ",".join(kept[0]) + "\n" + stream.getvalue()


def observer() -> str:
    """Two prompts of one process, as a runner prints them among its other lines."""
    start, lines = 1_767_323_045_000, ["Once upon a time, there was a model.", ""]
    for prompt, made, prefill, decode in ((64, 100, 412, 5_020), (64, 100, 405, 4_988)):
        stats = {
            "prompt_tokens": prompt,
            "generated_tokens": made,
            "model_load_start_ms": 1_767_323_041_200,
            "model_load_end_ms": 1_767_323_043_900,
            "inference_start_ms": start,
            "inference_end_ms": start + prefill + decode,
            "prompt_eval_end_ms": start + prefill,
            "first_token_ms": start + prefill,
            "aggregate_sampling_time_ms": 31,
            "SCALING_FACTOR_UNITS_PER_SECOND": 1000,
        }
        lines.append(f"PyTorchObserver {json.dumps(stats, separators=(',', ':'))}")
        lines.append(f"I 00:00:09.036773 executorch:stats.h:104] \tPrompt Tokens: {prompt}    Generated Tokens: {made}")
        start += prefill + decode + 20
    return "\n".join(lines) + "\n"


def litert_lm_main() -> str:
    """Two turns, as the C++ programs print them behind what the model said."""
    return f"""INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
The old lighthouse stood.
BenchmarkInfo:
  Init Phases (3):
    - Init Executor: 577.30 ms
    - Init Tokenizer: 101.68 ms
    - Init Total: 680.10 ms
{RULE}
  Time to first token: 0.92 s
{RULE}
  Prefill Turns (Total 2 turns):
    Prefill Turn 1: Processed 16 tokens in 819.9514ms duration.
      Prefill Speed: 19.51 tokens/sec.
    Prefill Turn 2: Processed 20 tokens in 1.0005s duration.
      Prefill Speed: 19.99 tokens/sec.
{RULE}
  Decode Turns (Total 2 turns):
    Decode Turn 1: Processed 88 tokens in 8.7038005s duration.
      Decode Speed: 10.11 tokens/sec.
    Decode Turn 2: Processed 10 tokens in 1m0.5s duration.
      Decode Speed: 0.17 tokens/sec.
{RULE}
  TextToTokenIds Turns (Total 1 turns):
    Turn 1: 46.1us, 15 tokens
{RULE}
  Mark Durations (1):
    - sampling: 12.5ms
{RULE}
"""


def litert_lm_command() -> str:
    """As ``litert-lm benchmark --runs 3`` prints it."""
    return "\n".join(
        [
            "Benchmarking model: small (models/small.litertlm)",
            "Backend                    : cpu",
            "Number of tokens in prefill: 256",
            "Number of tokens in decode : 100",
            "Max number of tokens       : 4096",
            "Cache                      : disk",
            "Speculative decoding       : auto",
            "Running warmup..",
            *(f"Running iteration {number} of 3.." for number in (1, 2, 3)),
            "----- Results -----",
            "Prefill speed:        220.50 tokens/s",
            "Decode speed:         12.50 tokens/s",
            "Init time:            7.6006 s",
            "Time to first token:  1.2410 s",
            "",
        ]
    )


def genai(*, as_csv: bool) -> str:
    """A prompt of 64 tokens and 256 that were made of it, by either release of ``benchmark_e2e.py``."""
    figures = {
        "Tokenization Throughput (tps)": 853_333.3333,
        "Tokenization Latency (ms)": 0.075,
        "Prompt Processing Throughput (tps)": 160.0,
        "Prompt Processing Latency (ms)": 6.25,
        "Time to First Token (ms)": 401.5,
        "Time to First Token StdDev (ms)": 3.1,
        "Token Generation Throughput (tps)": 16.0,
        "Token Generation Latency (ms)": 62.5,
        "Sampling Throughput (tps)": 666.6667,
        "Sampling Latency (ms)": 1.5,
        "Wall Clock Throughput (tps)": 19.5,
        "Wall Clock Time (s)": 16.4,
    }
    counts = {"Batch Size": 1, "Prompt Length": 64, "Tokens Generated": 256, "Max Length": 320}
    if as_csv:
        rows = [[*counts, *figures], [*counts.values(), *figures.values()]]
        return "\n".join(",".join(map(str, row)) for row in rows) + "\n"
    plain = {key.lower().replace("(", "").replace(")", "").replace(" ", "_"): value for key, value in figures.items()}
    record = {
        "config": {
            "backend": "onnxruntime-genai",
            "batch_size": 1.0,
            "precision": "int4",
            "warmup_runs": 1,
            "measured_runs": 10,
            "model_info": {"full_name": "small"},
            "prompt_length": 64.0,
            "tokens_generated": 256.0,
            "max_length": 320.0,
            "aggregation": "mean",
        },
        "metadata": {"device": "cpu", "package_name": "onnxruntime-genai", "package_version": "0.18.0"},
        "metrics": plain,
        "trigger_date": "2026-01-02 03:04:05",
    }
    return json.dumps([record], indent=4)


def files() -> dict[str, str]:
    """The files by name."""
    tests = [llama_test(512, 0, 0, PREFILL), llama_test(0, 128, 0, DECODE)]
    sweep = [
        llama_test(0, 64, depth, [ns * 4 // threads + depth * 100_000 for ns in DECODE[:5]], n_threads=threads)
        for threads in (1, 2, 4)
        for depth in (0, 4096)
    ]
    return {
        "llama-bench.json": llama_json(tests),
        "llama-bench.jsonl": "".join(json.dumps(one) + "\n" for one in tests),
        "llama-bench.csv": llama_csv(tests),
        "llama-bench-sweep.json": llama_json([*sweep, llama_test(512, 128, 0, PREFILL)]),
        "observer.log": observer(),
        "litert-lm-main.log": litert_lm_main(),
        "litert-lm-benchmark.txt": litert_lm_command(),
        "genai.json": genai(as_csv=False),
        "genai.csv": genai(as_csv=True),
    }


if __name__ == "__main__":
    here = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent
    for name, text in files().items():
        (here / name).write_text(text, encoding="utf-8")
