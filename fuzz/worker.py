"""The process in which one target is fuzzed: ``python -m fuzz.worker`` with what :mod:`fuzz.run` gives it.

A crash or a hang outside of Python ends this process; the input that did it stays in a file that both processes map,
so nothing is lost. Everything else is caught here, made smaller and written down.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fuzz.corpus import MOST_BYTES, MOST_INPUTS, keep, kept
from fuzz.coverage import Lines
from fuzz.mutate import LARGEST, SMALL, enlarged, mutated
from fuzz.structure import FindingError
from fuzz.targets import target_named
from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from types import FrameType

    from fuzz.targets import Target

NOTHING_READ = "no seed is read"
"""The finding of a target that refuses all valid inputs: damage to them would show nothing."""

_ADDRESSES = 512 << 20
"""Addresses beyond the memory of an input that are left to threads and allocators before the system refuses more."""
_PROCESS = Path("/proc/self")
_REFUSED_SHARE = 0.2
_LARGE_SHARE = 0.02
_BUILT_SHARE = 0.7
_MINIMISING_SECONDS = 5.0
_HEAD = struct.Struct("<QQ")
CURRENT_BYTES = _HEAD.size + LARGEST


class HangError(BaseException):
    """An input took longer than it may. No ``except Exception`` of a reader can swallow it."""


class Effort(NamedTuple):
    """How long to fuzz: until both are reached.

    Attributes:
        seconds: time.
        least: number of inputs.
    """

    seconds: float
    least: int


@dataclass
class Report:
    """What a worker did, as it tells its parent.

    Attributes:
        inputs: executions, those of minimising left out.
        seconds: time that they took.
        corpus: inputs that showed something new.
        lines: lines of the readers that ran.
        refused: inputs that ended in a TraceFormatError.
        seeds: valid inputs that it began with, and how many of them were read.
        built: inputs that were changed as what they mean, not as bytes.
        findings: file and problem of each kind of failure.
    """

    inputs: int = 0
    seconds: float = 0.0
    corpus: int = 0
    lines: int = 0
    refused: int = 0
    seeds: tuple[int, int] = (0, 0)
    built: int = 0
    findings: list[tuple[str, str]] = field(default_factory=list)


class Current:
    """The input at work, in a file that outlives this process."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), CURRENT_BYTES)

    def put(self, number: int, data: bytes) -> None:
        """Announce an input before it is read."""
        self._map[_HEAD.size : _HEAD.size + len(data)] = data
        self._map[: _HEAD.size] = _HEAD.pack(number, len(data))

    def get(self) -> tuple[int, bytes]:
        """Number and bytes of the input that was announced last."""
        number, length = _HEAD.unpack(self._map[: _HEAD.size])
        return number, self._map[_HEAD.size : _HEAD.size + length]


class Input(NamedTuple):
    """An input.

    Attributes:
        data: its bytes.
        meaning: what they were written from, see :mod:`fuzz.structure`; None for what is bytes alone.
    """

    data: bytes
    meaning: object = None


@dataclass
class Corpus:
    """Inputs that showed something new, apart by whether they were read: damage to a refused one rarely goes deeper."""

    whole: list[Input]
    refused: list[Input] = field(default_factory=list)

    def chosen(self, rng: random.Random) -> Input:
        """One of them, mostly one that was read."""
        return rng.choice(self.refused if self.refused and rng.random() < _REFUSED_SHARE else self.whole)

    def next(self, rng: random.Random, target: Target) -> Input:
        """A changed copy of one of them."""
        one, other = self.chosen(rng), self.chosen(rng)
        if rng.random() < _LARGE_SHARE:
            return Input(enlarged(rng, one.data))
        if target.structure is None or one.meaning is None or rng.random() > _BUILT_SHARE:
            return Input(mutated(rng, one.data, other.data, target.tokens))
        meaning = target.structure.changed(rng, one.meaning, one.meaning if other.meaning is None else other.meaning)
        return Input(target.structure.written(meaning)[:SMALL], meaning)


class Executor:
    """Reads inputs within the limits and tells what came of each.

    Args:
        target: what to read with.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._limits = False
        self._before = 0
        signal.signal(signal.SIGPROF, _hang)

    def limit_memory(self) -> None:
        """Hold what each input takes against its size from here on; call it when everything is loaded."""
        self._limits = True

    def load(self, data: bytes) -> None:
        """Read a valid input without limits, so that all that reading needs is imported before it is measured."""
        with suppress(Exception):  # it is read again
            self._target.read(data)

    def outcome(self, data: bytes) -> tuple[str, str]:
        """Kind of outcome (``read``, ``refused`` or ``failed``) and what tells it from others of this kind."""
        try:
            return self._timed(data)
        except HangError:  # the alarm came while another outcome was being told
            return "failed", "hang"

    def _timed(self, data: bytes) -> tuple[str, str]:
        self._begin(len(data))
        signal.setitimer(signal.ITIMER_PROF, self._target.seconds_of(len(data)))
        try:
            self._target.read(data)
        except TraceFormatError as error:
            return self._within_memory(len(data), "refused", _pattern(error.problem))
        except HangError:
            return "failed", "hang"
        except FindingError as finding:
            return "failed", str(finding)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever else comes out of a reader is what is looked for
            return "failed", _place(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return self._within_memory(len(data), "read", "")

    def _begin(self, size: int) -> None:
        """Measure from here on what is taken, and let the system refuse what is far too much."""
        if not self._limits:
            return
        if _PROCESS.exists():  # macOS enforces no such limit, and tells the highest peak alone
            (_PROCESS / "clear_refs").write_text("5", "ascii")  # proc(5): the peak is what is taken now
            now = int((_PROCESS / "statm").read_text("ascii").split()[0]) * mmap.PAGESIZE
            most = now + _ADDRESSES + self._target.memory_of(size)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        self._before = _peak_memory()

    def _within_memory(self, size: int, kind: str, what: str) -> tuple[str, str]:
        grown = _peak_memory() - self._before
        return ("failed", "memory") if self._limits and grown > self._target.memory_of(size) else (kind, what)


def _hang(_number: int, _frame: FrameType | None) -> None:
    raise HangError


def _peak_memory() -> int:
    if not _PROCESS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = (_PROCESS / "status").read_text("ascii").partition("VmHWM:")[2]
    return int(told.split(maxsplit=1)[0]) << 10


def _pattern(message: str) -> str:
    """A message without its numbers and names, so that one problem counts once."""
    return "".join(letter for letter in message.partition("'")[0] if not letter.isdigit())[:80]


def _place(error: BaseException) -> str:
    """Type of an error and the innermost line of this program that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/opscope/" in frame.filename]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def fuzz(target: Target, seed: str, effort: Effort, current: Current, findings: Path) -> tuple[Report, Corpus]:
    """Fuzz a target so long and with so many inputs; every kind of failure is written down once."""
    # Seeds are arbitrary text: reproducible damage, not secrets.
    rng, report, lines, executor = random.Random(seed), Report(), Lines(), Executor(target)  # noqa: S311
    corpus, known, failed = Corpus(_seeds(target)), set(), set()
    pending = [*map(Input, kept(target.name)), *corpus.whole]
    begun, seeds = len(pending), len(corpus.whole)
    for valid in corpus.whole:
        executor.load(valid.data)
    began = time.monotonic()
    lines.start()
    while pending or report.inputs < effort.least or time.monotonic() - began < effort.seconds:
        with lines.paused():
            made = pending.pop() if pending else corpus.next(rng, target)
        current.put(report.inputs, made.data)
        kind, what = executor.outcome(made.data)
        report.inputs += 1
        report.built += made.meaning is not None
        if kind == "failed" and what not in failed:
            with lines.paused():  # watching takes time of the processor, too
                kind, what = executor.outcome(made.data)
                if kind == "failed" and what not in failed:
                    failed.add(what)
                    smaller = minimised(executor, made.data, what)
                    report.findings.append((write_finding(findings, target.name, smaller, what), what))
        report.refused += kind == "refused"
        if report.inputs <= seeds:
            report.seeds = seeds, report.seeds[1] + (kind == "read")
        if report.inputs == begun:
            executor.limit_memory()
        if kind != "failed" and len(made.data) <= SMALL and (lines.taken() or (kind, what) not in known):
            known.add((kind, what))
            (corpus.whole if kind == "read" else corpus.refused).append(made)
    lines.stop()
    if not report.seeds[1]:
        report.findings.append((write_finding(findings, target.name, b"", NOTHING_READ), NOTHING_READ))
    report.seconds, report.lines = time.monotonic() - began, len(lines.seen)
    report.corpus = len(corpus.whole) + len(corpus.refused)
    return report, corpus


def _seeds(target: Target) -> list[Input]:
    """The valid inputs of a target, and those that its structure starts from."""
    structure = target.structure
    built = [Input(structure.written(value), value) for value in structure.starts()] if structure else []
    return [*map(Input, target.seeds()), *built]


def distilled(target: Target, corpus: Corpus) -> list[bytes]:
    """Inputs of a corpus worth keeping: the shortest ones that reach new lines or new messages, one after the other."""
    lines, executor, known = Lines(), Executor(target), set()
    found, size = list[bytes](), 0
    lines.start()
    for seed in _seeds(target):
        known.add(executor.outcome(seed.data))
    lines.taken()
    for data in sorted({made.data for made in (*corpus.whole, *corpus.refused)}, key=lambda data: (len(data), data)):
        if len(found) == MOST_INPUTS or size + len(data) > MOST_BYTES:
            break
        outcome = executor.outcome(data)
        if lines.taken() or outcome not in known:
            known.add(outcome)
            found.append(data)
            size += len(data)
    lines.stop()
    return found


def minimised(executor: Executor, data: bytes, what: str) -> bytes:
    """A smaller input with the same failure: parts are removed, then set to zero, in ever smaller pieces."""
    if executor.outcome(b"")[1] == what:
        return b""  # every try of a hang costs seconds, so what is smallest comes first
    end = time.process_time() + _MINIMISING_SECONDS
    for filler in (b"", b"\0"):
        size = max(1, len(data) // 2)
        while size and time.process_time() < end:
            at = 0
            while at < len(data) and time.process_time() < end:
                smaller = data[:at] + filler * min(size, len(data) - at) + data[at + size :]
                if smaller != data and executor.outcome(smaller)[1] == what:
                    data = smaller
                    at += size * len(filler)
                else:
                    at += size
            size //= 2
    return data


def write_finding(findings: Path, name: str, data: bytes, what: str) -> str:
    """Write an input beside a line that says what it does; returns its path."""
    findings.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace(':', '.')}-{hashlib.sha256(data).hexdigest()[:12]}"
    path = findings / stem
    path.write_bytes(data)
    path.with_name(f"{stem}.txt").write_text(f"{what}\n", "utf-8")
    return str(path)


def main(arguments: list[str]) -> int:
    """Fuzz and print a Report as JSON; or, given a file, read it once and end with 1 where that fails."""
    warnings.simplefilter("error")  # arithmetic that only warns would reach the user as noise, or as a wrong figure
    name, current, *rest = arguments
    import_module("opscope.core.table.schema")  # and polars with it: an alarm within its import would leave half of it
    target = target_named(name)
    if len(rest) == 1:
        executor = Executor(target)
        for seed in _seeds(target):
            executor.load(seed.data)
        executor.limit_memory()
        kind, what = executor.outcome(Path(rest[0]).read_bytes())
        print(kind, what)
        return int(kind == "failed")
    seed, seconds, least, findings, *keeping = rest
    effort = Effort(float(seconds), int(least))
    report, corpus = fuzz(target, seed, effort, Current(Path(current)), Path(findings))
    if keeping:
        keep(name, distilled(target, corpus))
    print(json.dumps(asdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
