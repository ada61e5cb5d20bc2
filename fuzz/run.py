"""Targets fuzzed in processes of their own, one after the other, which are watched from here.

A finding is anything but a value or a TraceFormatError: another exception, a crash, more time of the processor or more
memory than the size allows, a table that differs from a plain reading, or a target that reads none of its valid inputs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.targets import target_named
from fuzz.worker import CURRENT_BYTES, Current, Report, write_finding

if TYPE_CHECKING:
    from fuzz.targets import Target
    from fuzz.worker import Effort

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = Path(__file__).resolve().parent / "findings"
_UNHEARD = 10
"""Times the seconds of the processor that an input may take: what takes longer does not even hear the alarm. An input
that fails is tried several times, to make it smaller."""
_IDLE_SECONDS = 300.0
"""Without any work, after which a process waits for what does not come, however busy the machine is."""
_POLL = 0.25
_MOST_CRASHES = 5
_MOST_MINIMISING = 40


def read_again(name: str, path: Path) -> int:
    """Read one file with a target, print what comes of it, and return 1 where that is a finding."""
    return _start_worker([name, "-", str(path)], capture=False).wait()


def describe_report(report: Report) -> str:
    """Return what was done to a target, in a line."""
    rate = report.inputs / report.seconds if report.seconds else 0.0
    return (
        f"{report.inputs:,} inputs in {report.seconds:.0f} s ({rate:,.0f} a second), "
        f"{report.seeds[1]} of {report.seeds[0]} seeds read, {report.refused:,} refused, {report.built:,} built, "
        f"corpus {report.corpus:,}, {report.lines:,} lines covered, {len(report.findings)} findings"
    )


def fuzz_target(name: str, seed: int, effort: Effort, findings: Path, *, keeping: bool = False) -> Report:
    """Fuzz one target. A worker that dies leaves its input as a finding, and another one goes on."""
    total, crashes, keep = Report(), 0, ["keep"] * keeping
    end = time.monotonic() + effort.seconds
    with tempfile.TemporaryDirectory(prefix="opscope-fuzz-") as directory:
        shared = Path(directory) / "current"
        shared.write_bytes(bytes(CURRENT_BYTES))
        while crashes < _MOST_CRASHES and (total.inputs < effort.least or time.monotonic() < end):
            began = time.monotonic()
            left = str(end - began), str(effort.least - total.inputs)
            process = _start_worker([name, str(shared), f"{seed}.{crashes}", *left, str(findings), *keep])
            output, failure = _watch_worker(process, Current(shared), target_named(name))
            if failure is None:
                _add_part(total, Report(**json.loads(output.splitlines()[-1])))
                break
            number, data = Current(shared).get()
            _add_part(total, Report(number + 1, time.monotonic() - began))
            smaller = _minimise_crash(name, data, Path(directory) / "candidate", failure)
            total.findings.append((write_finding(findings, name, smaller, failure), failure))
            crashes += 1
    return total


def _add_part(total: Report, part: Report) -> None:
    total.inputs += part.inputs
    total.seconds += part.seconds
    total.refused += part.refused
    total.built += part.built
    total.seeds = max(total.seeds, tuple(part.seeds), key=lambda seeds: seeds[1])
    total.corpus, total.lines = max(total.corpus, part.corpus), max(total.lines, part.lines)
    total.findings += [(path, what) for path, what in part.findings]


def _start_worker(arguments: list[str], *, capture: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fuzz.worker", *arguments]
    environment = {**os.environ, "OPSCOPE_RAISE": "1"}  # a part of a result that fails is a finding
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE if capture else None)


def _watch_worker(process: subprocess.Popen[str], current: Current, target: Target) -> tuple[str, str | None]:
    """Output of a worker, and how it failed: a signal, or an input that even an alarm does not end.

    Raises:
        SystemExit: it could not start.
    """
    watch = _Watch(process.pid, target)
    while process.poll() is None:
        try:
            output, _ = process.communicate(timeout=_POLL)
        except subprocess.TimeoutExpired:
            if watch.hangs(*current.get()):
                process.kill()
                process.communicate()
                return "", "hang outside of Python"
            continue
        break
    else:
        output, _ = process.communicate()  # what was read before the last timeout is in it, too
    if process.returncode < 0:
        return "", f"crash by {signal.Signals(-process.returncode).name}"
    if process.returncode:
        raise SystemExit(f"the worker ended with {process.returncode}: this is the fuzzer's fault")
    return output, None


class _Watch:
    """Whether a worker hangs: by the time of the processor that an input took, or because it does nothing at all."""

    def __init__(self, process: int, target: Target) -> None:
        self._process, self._target = process, target
        self._number, self._begun = -1, 0.0
        self._used, self._moved = 0.0, time.monotonic()

    def hangs(self, number: int, data: bytes) -> bool:
        """Whether an input does, the last one that was announced."""
        used, now = _processor_seconds(self._process), time.monotonic()
        if used != self._used:
            self._used, self._moved = used, now
        if number != self._number:
            self._number, self._begun, self._moved = number, used, now
        return used - self._begun > _UNHEARD * self._target.seconds_of(len(data)) or now - self._moved > _IDLE_SECONDS


def _processor_seconds(process: int) -> float:
    """What a process used so far."""
    try:
        words = Path(f"/proc/{process}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except FileNotFoundError:  # macOS, whose ps tells it; or the process has ended
        told = subprocess.run(
            ["/bin/ps", "-o", "time=", "-p", str(process)], capture_output=True, text=True, check=False
        )
        return sum(
            60**place * float(part) for place, part in enumerate(reversed(told.stdout.strip().split(":"))) if part
        )
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")  # proc(5): in its own code, and in the system's


def _minimise_crash(name: str, data: bytes, candidate: Path, failure: str) -> bytes:
    """A smaller input that kills a worker in the same way, each tried in its own process."""
    tries, size = 0, len(data) // 2
    while size and failure.startswith("crash") and tries < _MOST_MINIMISING:
        at = 0
        while at < len(data) and tries < _MOST_MINIMISING:
            candidate.write_bytes(data[:at] + data[at + size :])
            tries += 1
            code = _start_worker([name, "-", str(candidate)]).wait()
            if code < 0:
                data = candidate.read_bytes()
            else:
                at += size
        size //= 2
    return data
