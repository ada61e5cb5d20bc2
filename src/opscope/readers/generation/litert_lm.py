"""What LiteRT-LM prints of a benchmark: ``BenchmarkInfo`` of its C++ programs, and ``litert-lm benchmark``.

Sources: ``runtime/engine/io_types.cc`` of LiteRT-LM (commit 767d74f9; later releases add the time to the first token,
tokenization and an ``Init Total`` that the other phases are part of), and ``litert_lm_cli`` of the package (0.18.1).
The protocol buffer of a benchmark (``BenchmarkParams``) has settings and no results. The command prints rates alone:
each of them is the mean of the rates of its runs, from which the time of a phase is counted back.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from opscope.core.errors import TraceFormatError
from opscope.core.table import TraceWarning
from opscope.core.units import counted_text
from opscope.program.phases import Phase, PhaseKind, phase_name
from opscope.readers.generation.report import MOST_TOKENS, PhaseCall, PhaseReport, averages, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opscope.core.table import EventTable

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_DURATION = rf"(?:\d{{1,9}}h)?(?:\d{{1,9}}m(?!s))?(?:{_NUMBER}(?:ns|us|ms|s))?"
_PART = re.compile(rf"({_NUMBER})(ns|us|ms|s|m|h)")
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_BLOCK = re.compile(rb"^(?:[^\n]{0,200}\])?[ \t]*BenchmarkInfo:[ \t\r]*$", re.MULTILINE)
_COMMAND = re.compile(rb"^Benchmarking model: ", re.MULTILINE)
_RESULTS = re.compile(r"^----- Results -----[ \t\r]*$", re.MULTILINE)
_INIT = re.compile(rf"^[ \t]*(?:- )?(?P<name>[A-Z][\w .]{{0,80}}): (?P<ms>{_NUMBER}) ms[ \t\r]*$", re.MULTILINE)
_TURN = re.compile(
    r"^[ \t]*(?P<kind>Prefill|Decode) Turn \d{1,9}: "
    rf"Processed (?P<tokens>\d{{1,12}}) tokens in (?P<time>{_DURATION}) duration",
    re.MULTILINE,
)
_TURN_BEGINS = re.compile(r"^[ \t]*(?P<kind>Prefill|Decode) Turn \d{1,9}:", re.MULTILINE)
_TOTAL = re.compile(r"^[ \t]*(?P<kind>Prefill|Decode) Turns \(Total:? (?P<count>\d{1,9})(?: turns)?\):", re.MULTILINE)
_TEXT = re.compile(rf"^[ \t]*Turn \d{{1,9}}: (?P<time>{_DURATION}), \d{{1,12}} tokens[ \t\r]*$", re.MULTILINE)
_MARK = re.compile(rf"^[ \t]*- (?P<name>\w{{1,80}}): (?P<time>{_DURATION})[ \t\r]*$", re.MULTILINE)
_FIRST = re.compile(rf"^[ \t]*Time to first token: +(?P<s>{_NUMBER}) s[ \t\r]*$", re.MULTILINE)
_SPEED = re.compile(rf"^(?P<kind>Prefill|Decode) speed: +(?P<rate>{_NUMBER}) tokens/s[ \t\r]*$", re.MULTILINE)
_COUNT = re.compile(r"^Number of tokens in (?P<kind>prefill|decode) *: (?P<tokens>\d{1,12})[ \t\r]*$", re.MULTILINE)
_CACHE = re.compile(r"^Max number of tokens +: (?P<tokens>\d{1,12})[ \t\r]*$", re.MULTILINE)
_STARTED = re.compile(rf"^Init time: +(?P<s>{_NUMBER}) s[ \t\r]*$", re.MULTILINE)
_RUNS = re.compile(r"^Running iteration \d{1,9} of (?P<runs>\d{1,9})", re.MULTILINE)
_TOOL = "LiteRT-LM"
_DAMAGED = "the output was truncated or edited: keep all that the program prints"


class LitertLmReader:
    """Reads either of them, in a log with other lines."""

    name: ClassVar[str] = "litert-lm"
    suffixes: ClassVar[tuple[str, ...]] = ()

    def sniff(self, head: bytes) -> bool:
        """Whether a file begins as one of them does."""
        return bytes(head).lstrip().startswith((b"BenchmarkInfo:", b"Benchmarking model: "))

    def finds(self, data: bytes | memoryview) -> bool:
        """Whether one of them stands anywhere: what the model said and messages may be in front of it."""
        return any(pattern.search(data) is not None for pattern in (_BLOCK, _COMMAND))

    def read(self, data: bytes, path: Path) -> EventTable:
        """The turns of all blocks, or the phases of all commands."""
        whole = bytes(data)
        if blocks := _parts(whole, _BLOCK):
            return table_of(_of_turns(blocks, path)._replace(lines=whole), path)
        return table_of(_of_commands(_parts(whole, _COMMAND), path)._replace(lines=whole), path)


def _parts(data: bytes, begin: re.Pattern[bytes]) -> list[tuple[int, str]]:
    """What stands from each begin to the next one, with its offset."""
    places = [*(match.start() for match in begin.finditer(data)), len(data)]
    return [(first, data[first:end].decode("utf-8", "replace")) for first, end in pairwise(places)]


def _ns(duration: str) -> int:
    """Nanoseconds of a duration as abseil writes it: ``1m2.5s``, ``819.95ms``."""
    return round(sum(float(value) * _UNITS[unit] for value, unit in _PART.findall(duration)))


def _of_turns(blocks: Sequence[tuple[int, str]], path: Path) -> PhaseReport:
    calls, loading = list[PhaseCall](), list[tuple[str, int]]()
    for begin, block in blocks:
        _check_turns(begin, block, path)
        turns = list(_turns(block))
        if not turns:
            hint = "LiteRT-LM's releases of 2025 print rates without numbers of tokens: use a later one"
            raise TraceFormatError("a BenchmarkInfo has no turns with their times", where=path, offset=begin, hint=hint)
        calls += [PhaseCall("tokenization", ns) for match in _TEXT.finditer(block) if (ns := _ns(match["time"]))]
        calls += turns
        loading += _loading({match["name"]: round(float(match["ms"]) * 1e6) for match in _INIT.finditer(block)})
    return PhaseReport(_TOOL, calls, loading, _limits())


def _check_turns(begin: int, block: str, path: Path) -> None:
    """Refuse a block that has fewer turns than it says."""
    totals = {match["kind"]: int(match["count"]) for match in _TOTAL.finditer(block)}
    counts = dict.fromkeys(("Prefill", "Decode"), 0)
    for match in _TURN_BEGINS.finditer(block):
        counts[match["kind"]] += 1
    if totals != counts:
        raise TraceFormatError("a BenchmarkInfo has not all of its turns", where=path, offset=begin, hint=_DAMAGED)


def _turns(block: str) -> Iterator[PhaseCall]:
    """Turns in the order in which they happened: each prompt is followed by what the model makes of it."""
    found = {kind: [one for one in _TURN.finditer(block) if one["kind"] == kind] for kind in ("Prefill", "Decode")}
    marks = {one["name"]: _ns(one["time"]) for one in _MARK.finditer(block)}
    position = 0
    for number in range(max(map(len, found.values()))):
        for kind in ("Prefill", "Decode"):
            if number >= len(found[kind]):
                continue
            turn = found[kind][number]
            tokens, ns = int(turn["tokens"]), _ns(turn["time"])
            if not 0 < tokens <= MOST_TOKENS or position + tokens > MOST_TOKENS or not ns:
                continue
            alone = kind == "Decode" and len(found[kind]) == 1 and 0 < marks.get("sampling", 0) <= ns
            yield _call(kind, tokens, position, ns, inside=(("sampling", marks["sampling"]),) if alone else ())
            position += tokens


def _call(
    kind: str, tokens: int, position: int, ns: int, cache: int | None = None, inside: tuple[tuple[str, int], ...] = ()
) -> PhaseCall:
    phase = Phase(PhaseKind.PREFILL if kind == "Prefill" else PhaseKind.DECODE, tokens, position, cache)
    return PhaseCall(phase_name(phase), ns, inside=inside)


def _loading(phases: dict[str, int]) -> list[tuple[str, int]]:
    """The total where it is told, since later releases time phases that lie in each other; else the phases."""
    total = next((ns for name, ns in phases.items() if "otal" in name), None)
    return list(phases.items()) if total is None else [("initialisation", total)]


def _of_commands(parts: Sequence[tuple[int, str]], path: Path) -> PhaseReport:
    calls, loading, runs, first = list[PhaseCall](), list[tuple[str, int]](), 0, list[str]()
    for begin, part in parts:
        tokens = {one["kind"].title(): int(one["tokens"]) for one in _COUNT.finditer(part)}
        rates = {one["kind"]: float(one["rate"]) for one in _SPEED.finditer(part)}
        known = _RESULTS.search(part) and tokens.keys() == rates.keys() == {"Prefill", "Decode"}
        if not known or not all(rates.values()) or not all(0 < one <= MOST_TOKENS for one in tokens.values()):
            hint = f"speeds of 0.00 are those of a run that failed, see its messages; else {_DAMAGED}"
            raise TraceFormatError("a benchmark has no speeds with its tokens", where=path, offset=begin, hint=hint)
        cache = _CACHE.search(part)
        size = int(cache["tokens"]) if cache and 0 < int(cache["tokens"]) <= MOST_TOKENS else None
        for kind, position in (("Prefill", 0), ("Decode", tokens["Prefill"])):
            calls.append(_call(kind, tokens[kind], position, round(tokens[kind] * 1e9 / rates[kind]), size))
        loading += [("initialisation", round(float(one["s"]) * 1e9)) for one in _STARTED.finditer(part)]
        runs += int(match["runs"]) if (match := _RUNS.search(part)) else 1
        first += [f"{float(one['s']):.4g} s" for one in _FIRST.finditer(part)]
    return PhaseReport(_TOOL, calls, loading, [*_limits(first), averages("litert-lm", counted_text(runs, "run"))])


def _limits(first: Sequence[str] = ()) -> list[TraceWarning]:
    text = f"; it states a time to first token of {', '.join(first)}" if first else ""
    words = (
        "not in the file: when turns began, whether sampling is in decode, and whether the first token is counted in "
        f"prefill{text}"
    )
    return [TraceWarning("not_timed", words, "profile the signatures of the model with opscope")]
