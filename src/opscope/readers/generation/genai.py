"""What ``benchmark_e2e.py`` of ONNX Runtime GenAI writes: averages or medians of its repetitions, JSON or CSV.

Source of names and units: ``benchmark/python/benchmark_e2e.py`` and ``metrics.py`` of onnxruntime-genai (commit
a0c04eb1, which writes JSON; earlier ones wrote CSV with the same names). Prompt processing is in milliseconds for each
token of the prompt, token generation for each token, with sampling in it; sampling is that of the first token, for
which the model does not run. The profile that the session of a GenAI model writes is one of ONNX Runtime.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, ClassVar

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.core.table import TraceWarning
from opscope.program.phases import Phase, PhaseKind, phase_name
from opscope.readers.generation.report import MOST_TOKENS, PhaseCall, PhaseReport, averages, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opscope.core.table import EventTable

_TOOL = "benchmark_e2e.py"
_CSV = b"Batch Size,Prompt Length,Tokens Generated,Max Length,"
_JSON = b'[{"config":{"backend":"onnxr'
_DAMAGED = "the file was truncated or edited: run benchmark_e2e.py again"
_MILLI = 1e6


class GenAiConfig(msgspec.Struct, frozen=True):
    """Settings; those that are 0 or empty are left out of the file, and JSON has whole numbers as ``64.0``."""

    prompt_length: int | float
    batch_size: int | float = 1
    tokens_generated: int | float = 0
    max_length: int | float = 0
    aggregation: str = ""

    @property
    def counts(self) -> tuple[float, float, float, float]:
        """Tokens of a prompt, prompts, tokens that were made of it, and places that were allocated."""
        return self.prompt_length, self.batch_size, self.tokens_generated, self.max_length


class GenAiMetrics(msgspec.Struct, frozen=True):
    """Results in milliseconds; of the prompt and of tokenization for each token, and for each token made."""

    prompt_processing_latency_ms: float
    token_generation_latency_ms: float
    tokenization_latency_ms: float = 0.0
    sampling_latency_ms: float = 0.0


class GenAiRecord(msgspec.Struct, frozen=True):
    """A row of the table."""

    config: GenAiConfig
    metrics: GenAiMetrics

    @property
    def possible(self) -> bool:
        """Whether its counts and times can be."""
        counts, rest = self.config.counts[:2], self.config.counts[2:]
        whole = all(0 <= one <= MOST_TOKENS and one == int(one) for one in (*counts, *rest))
        times = msgspec.structs.astuple(self.metrics)
        fits = all(0 < one <= MOST_TOKENS for one in counts) and counts[0] * counts[1] <= MOST_TOKENS
        return whole and fits and all(0 <= one < MOST_TOKENS for one in times)


class GenAiReader:
    """Reads either form."""

    name: ClassVar[str] = "genai-benchmark"
    suffixes: ClassVar[tuple[str, ...]] = ()

    def sniff(self, head: bytes) -> bool:
        """Whether a file begins with the tool's columns, or with a record of it."""
        start = bytes(head).removeprefix(b"\xef\xbb\xbf")
        return start.startswith(_CSV) or b"".join(start.split()).startswith(_JSON)

    def read(self, data: bytes, path: Path) -> EventTable:
        """The phases of every record."""
        records = _records(bytes(data).removeprefix(b"\xef\xbb\xbf"), path)
        for number, record in enumerate(records, 1):
            if not record.possible:
                problem = "it has times or numbers of tokens that cannot be"
                raise TraceFormatError(problem, where=f"{path}, record {number}", hint=_DAMAGED)
        calls = [call for record in records for call in _calls(record)]
        lines = b"\n" if bytes(data).lstrip().startswith(b"[") else bytes(data)
        return table_of(PhaseReport(_TOOL, calls, limits=_limits(records), lines=lines), path)


def _records(data: bytes, path: Path) -> list[GenAiRecord]:
    try:
        if data.lstrip().startswith(b"["):
            return from_json(data, list[GenAiRecord])
        head, *rows = list(csv.reader(io.StringIO(data.decode("utf-8")), strict=True)) or [[]]
        names = [_plain(name) for name in head]
        listed = [dict(zip(names, row, strict=True)) for row in rows]
        return [
            GenAiRecord(
                msgspec.convert(row, GenAiConfig, strict=False), msgspec.convert(row, GenAiMetrics, strict=False)
            )
            for row in listed
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, csv.Error) as error:
        raise TraceFormatError(f"not a report of {_TOOL}: {error}", where=path, hint=_DAMAGED) from error


def _plain(column: str) -> str:
    """The name that JSON has for a column: ``Prompt Processing Latency (ms)``."""
    return column.lower().replace("(", "").replace(")", "").replace(" ", "_")


def _calls(record: GenAiRecord) -> Iterator[PhaseCall]:
    config, metrics = record.config, record.metrics
    prompt, batch, _, cache = map(int, config.counts)
    if ns := round(metrics.tokenization_latency_ms * _MILLI):
        yield PhaseCall("tokenization", ns)
    prefill = phase_name(Phase(PhaseKind.PREFILL, prompt * batch, 0, cache or None))
    behind = f" batch_size={batch}" if batch > 1 else ""
    whole = metrics.prompt_processing_latency_ms * prompt
    yield PhaseCall(prefill + behind, round(whole * _MILLI))
    decode = phase_name(Phase(PhaseKind.DECODE, batch, prompt, cache or None))
    ns, sampling = (round(one * _MILLI) for one in (metrics.token_generation_latency_ms, metrics.sampling_latency_ms))
    inside = (("sampling", sampling),) if 0 < sampling <= ns else ()
    yield PhaseCall(decode + behind, ns, inside=inside)


def _limits(records: list[GenAiRecord]) -> list[TraceWarning]:
    of = "medians" if all(one.config.aggregation == "median" for one in records) else "averages"
    made = sorted({int(one.config.tokens_generated) for one in records})
    words = f"decode is of all {' or '.join(map(str, made))} tokens together ({of}): not each, at growing positions"
    warnings = [
        averages(_TOOL, "repetitions of an unknown number"),
        TraceWarning("tokens_together", words, "trace the session"),
    ]
    words = (
        "not in the file: loading, threads, the spread; sampling is that of the first token, and prefill has what "
        "append_tokens does outside of the model"
    )
    warnings.append(TraceWarning("not_timed", words, "enable profiling of the session in genai_config.json"))
    if any(one.config.batch_size > 1 for one in records):
        words = "with --use_random_tokens and several sequences the prompt is stated that many times too long"
        warnings.append(TraceWarning("batched", words, "use a batch of 1"))
    return warnings
