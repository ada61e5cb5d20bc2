"""The lines ``PyTorchObserver {...}`` that ExecuTorch's runners of language models print, in a log with other lines.

Source of fields and units: ``extension/llm/runner/stats.h`` and ``text_llm_runner.cpp`` of ExecuTorch (commits fc7917d6
and d4c1710c), and what executorch 1.5.1 prints, whose lines begin with rates. A line stands for a prompt: time stamps
of the system's clock in whole milliseconds (``1 / SCALING_FACTOR_UNITS_PER_SECOND`` seconds). Prefill lasts from
``inference_start_ms`` to ``prompt_eval_end_ms`` with the tokenizer and the first token in it, and decode from there to
``inference_end_ms`` for ``generated_tokens``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.core.table import TraceWarning
from opscope.core.units import counted_text
from opscope.program.phases import Phase, PhaseKind, phase_name
from opscope.readers.generation.report import MOST_TOKENS, PhaseCall, PhaseReport, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opscope.core.table import EventTable

_MARK = b"PyTorchObserver {"
_LINE = re.compile(rb'PyTorchObserver (\{"\w+":[^\r\n]*)')
_OBJECT = re.compile(rb"\{[^{}]*\}")
_LOGGED = re.compile(rb"[DIEF] \d\d:\d\d:\d\d\.\d+ executorch:")
_SECOND = 1_000_000_000
_DAMAGED = "the log was truncated or edited: keep all that the runner prints"


class ObservedRun(msgspec.Struct, frozen=True):
    """A line: tokens, and time stamps in units of which a second has ``SCALING_FACTOR_UNITS_PER_SECOND``."""

    prompt_tokens: int
    generated_tokens: int
    inference_start_ms: int
    inference_end_ms: int
    prompt_eval_end_ms: int
    model_load_start_ms: int = 0
    model_load_end_ms: int = 0
    aggregate_sampling_time_ms: int = 0
    units: int = msgspec.field(default=1000, name="SCALING_FACTOR_UNITS_PER_SECOND")

    @property
    def possible(self) -> bool:
        """Whether the counts can be, and the times follow each other."""
        stamps = (self.inference_start_ms, self.prompt_eval_end_ms, self.inference_end_ms)
        loaded = 0 <= self.model_load_start_ms <= self.model_load_end_ms
        counted = 0 < self.prompt_tokens <= MOST_TOKENS and 0 <= self.generated_tokens <= MOST_TOKENS
        sampled, unit = self.aggregate_sampling_time_ms >= 0, 0 < self.units <= _SECOND
        return 0 <= stamps[0] <= stamps[1] <= stamps[2] and loaded and counted and sampled and unit

    def ns(self, units: int) -> int:
        """Nanoseconds of a duration."""
        return units * _SECOND // self.units


class ObserverReader:
    """Reads a log with such lines."""

    name: ClassVar[str] = "pytorch-observer"
    suffixes: ClassVar[tuple[str, ...]] = ()

    def sniff(self, head: bytes) -> bool:
        """Whether a file begins with such a line, or with the log of an ExecuTorch runner."""
        start = bytes(head).lstrip()
        return start.startswith(_MARK) or _LOGGED.match(start) is not None

    def finds(self, data: bytes | memoryview) -> bool:
        """Whether such a line stands anywhere: what a model said may be in front of it."""
        return _LINE.search(data) is not None

    def read(self, data: bytes, path: Path) -> EventTable:
        """Prefill and decode of every prompt, and loading."""
        log = bytes(data)
        runs = [_run(match, path) for match in _LINE.finditer(log)]
        loads = dict.fromkeys((one.model_load_start_ms, one.model_load_end_ms, one.units) for one in runs)
        loading = [("loading of the model", (end - start) * _SECOND // units) for start, end, units in loads if end]
        calls = [call for run in runs for call in _calls(run)]
        short = 2 * len(runs) - len(calls)
        unit = max((_SECOND // run.units for run in runs), default=1)
        return table_of(PhaseReport("the runner", calls, loading, _limits(short), unit, log), path)


def _run(match: re.Match[bytes], path: Path) -> ObservedRun:
    whole = _OBJECT.match(match[1])
    if whole is None:
        raise TraceFormatError("a PyTorchObserver line is cut off", where=path, offset=match.start(), hint=_DAMAGED)
    try:
        run = from_json(whole[0], ObservedRun)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not a PyTorchObserver line: {error}"
        raise TraceFormatError(problem, where=path, offset=match.start(), hint=_DAMAGED) from error
    if not run.possible:
        problem = "a PyTorchObserver line has times or numbers of tokens that cannot be"
        raise TraceFormatError(problem, where=path, offset=match.start(), hint=_DAMAGED)
    return run


def _calls(run: ObservedRun) -> Iterator[PhaseCall]:
    """The phases that took at least a unit."""
    prefill = run.prompt_eval_end_ms - run.inference_start_ms
    decode = run.inference_end_ms - run.prompt_eval_end_ms
    if prefill:
        name = phase_name(Phase(PhaseKind.PREFILL, run.prompt_tokens))
        yield PhaseCall(name, run.ns(prefill))
    if decode and run.generated_tokens:
        name = phase_name(Phase(PhaseKind.DECODE, run.generated_tokens, run.prompt_tokens))
        sampling = run.aggregate_sampling_time_ms
        inside = (("sampling", run.ns(sampling)),) if 0 < sampling <= decode else ()
        yield PhaseCall(name, run.ns(decode), inside=inside)


def _limits(short: int) -> list[TraceWarning]:
    longer = "use longer prompts and more tokens"
    words = "times are whole milliseconds of the system's clock, which may be set while the runner runs"
    warnings = [TraceWarning("quantised_durations", words, longer)]
    words = (
        "prefill has tokenization and the first token in it, decode has sampling and printing, sampling that of the "
        "first token; positions are those of a conversation that begins with the prompt"
    )
    warnings.append(TraceWarning("mixed_clocks", words, "profile the methods with opscope"))
    words = "not in the file: model, threads, warm-up, how the prompt was split into calls"
    warnings.append(TraceWarning("settings_unknown", words, "keep them with the log"))
    if short:
        words = f"left out {counted_text(short, 'phase')} without tokens, or of less than a millisecond"
        warnings.append(TraceWarning("too_short", words, longer))
    return warnings
