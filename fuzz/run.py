"""Fuzz the readers: ``python -m fuzz.run --seconds 60 --seed 1 --target etdump``.

Each target runs in its own process, one after the other. A finding is anything but a value or a TraceFormatError:
another exception, a crash, more time of the processor or more memory than the size allows, a table that differs from a
plain reading, or a target that reads none of its valid inputs.
Findings are made smaller and written to ``fuzz/findings``; then the exit code is 1. The seed decides which inputs are
tried, the time how many. ``--input FILE --target NAME`` reads one file again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.targets import target_named, targets
from fuzz.worker import CURRENT_BYTES, Current, Effort, Report, write_finding

if TYPE_CHECKING:
    from fuzz.targets import Target

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


def main(arguments: list[str] | None = None) -> int:
    """Fuzz the chosen targets; 1 when something was found."""
    options = _options(arguments)
    names = options.target or list(targets())
    findings = options.findings.resolve()
    if options.input:
        return max(_worker([name, "-", str(options.input.resolve())], capture=False).wait() for name in names)
    found = 0
    for name in names:
        effort = Effort(options.seconds, options.least)
        report = fuzz_target(name, options.seed, effort, findings, keeping=options.keep)
        found += len(report.findings)
        print(line(name, report), flush=True)
        for path, what in report.findings:
            print(f"  {what}: {os.path.relpath(path)}", flush=True)
    return int(found > 0)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description="Fuzz the readers.")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each target")
    parser.add_argument("--least", type=int, default=1, help="inputs for each target, however long they take")
    parser.add_argument("--seed", type=int, default=1, help="decides what is tried")
    parser.add_argument("--target", action="append", help="one of the targets, or MODULE:OBJECT; may be repeated")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="directory for failing inputs")
    parser.add_argument("--keep", action="store_true", help="write the inputs worth keeping into fuzz/corpus")
    parser.add_argument("--input", type=Path, help="read this file once and say what comes of it")
    return parser.parse_args(arguments)


def line(name: str, report: Report) -> str:
    """What was done to a target, in a line."""
    rate = report.inputs / report.seconds if report.seconds else 0.0
    return (
        f"{name}: {report.inputs:,} inputs in {report.seconds:.0f} s ({rate:,.0f} a second), "
        f"{report.seeds[1]} of {report.seeds[0]} seeds read, {report.refused:,} refused, {report.built:,} built, "
        f"corpus {report.corpus:,}, {report.lines:,} lines covered, "
        f"{len(report.findings)} findings"
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
            process = _worker([name, str(shared), f"{seed}.{crashes}", *left, str(findings), *keep])
            output, failure = _watched(process, Current(shared), target_named(name))
            if failure is None:
                _add(total, Report(**json.loads(output.splitlines()[-1])))
                break
            number, data = Current(shared).get()
            _add(total, Report(number + 1, time.monotonic() - began))
            smaller = _smaller(name, data, Path(directory) / "candidate", failure)
            total.findings.append((write_finding(findings, name, smaller, failure), failure))
            crashes += 1
    return total


def _add(total: Report, part: Report) -> None:
    total.inputs += part.inputs
    total.seconds += part.seconds
    total.refused += part.refused
    total.built += part.built
    total.seeds = max(total.seeds, tuple(part.seeds), key=lambda seeds: seeds[1])
    total.corpus, total.lines = max(total.corpus, part.corpus), max(total.lines, part.lines)
    total.findings += [(path, what) for path, what in part.findings]


def _worker(arguments: list[str], *, capture: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fuzz.worker", *arguments]
    environment = {**os.environ, "OPSCOPE_RAISE": "1"}  # a part of a result that fails is a finding
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE if capture else None)


def _watched(process: subprocess.Popen[str], current: Current, target: Target) -> tuple[str, str | None]:
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


def _smaller(name: str, data: bytes, candidate: Path, failure: str) -> bytes:
    """A smaller input that kills a worker in the same way, each tried in its own process."""
    tries, size = 0, len(data) // 2
    while size and failure.startswith("crash") and tries < _MOST_MINIMISING:
        at = 0
        while at < len(data) and tries < _MOST_MINIMISING:
            candidate.write_bytes(data[:at] + data[at + size :])
            tries += 1
            code = _worker([name, "-", str(candidate)]).wait()
            if code < 0:
                data = candidate.read_bytes()
            else:
                at += size
        size //= 2
    return data


if __name__ == "__main__":
    sys.exit(main())
