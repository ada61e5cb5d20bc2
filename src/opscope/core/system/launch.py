"""Starts a foreign program and reports how it ended: ``launch.py REPORT DIRECTORY CPUS PROGRAM ARGUMENT...``.

A file to run, not to import: it stands between opscope and a program that cannot be asked anything, so it loads nothing
but the standard library. REPORT is a JSON file, DIRECTORY where the program runs, CPUS a comma-separated list, empty
for all. On Linux the program ends when this process does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

_KIB = 1024
_PR_SET_PDEATHSIG = 1
_CANNOT_START = 126
_ABOVE = 1.1  # the copy made by fork may grow a little before it becomes the program


def main(report: str, directory: str, cpus: str, *command: str) -> None:
    """Run the command and write to the report how it ended, its peak memory, and what it used of the system.

    The report has ``code``, negative for a signal, ``start_error``, ``peak_rss_bytes`` and ``usage``, which has
    fields of ``opscope.core.system.usage.ProcessUsage``.
    """
    end_with_parent()
    own = own_peak()  # a new process begins with this as its first peak
    began = time.monotonic_ns()
    reader, writer = os.pipe()  # closed by a start that succeeds, else it carries the reason
    child = os.fork()
    if child == 0:
        os.close(reader)
        start(directory, cpus, command, writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        problem = pipe.read() or None
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    peak = in_bytes(usage.ru_maxrss)
    told = {
        "code": code,
        "start_error": problem,
        "peak_rss_bytes": peak if peak > own * _ABOVE else None,
        "usage": usage_of(usage, time.monotonic_ns() - began),
    }
    Path(report).write_text(json.dumps(told), encoding="utf-8")


def usage_of(told: resource.struct_rusage, wall_ns: int) -> dict[str, int | bool]:
    """What a process that has ended used of the system, from its start on."""
    return {
        "wall_ns": wall_ns,
        "cpu_ns": int((told.ru_utime + told.ru_stime) * 1e9),
        "involuntary_switches": told.ru_nivcsw,
        "voluntary_switches": told.ru_nvcsw,
        "minor_faults": told.ru_minflt,
        "major_faults": told.ru_majflt,
        "whole_process": True,
    }


def own_peak() -> int:
    """Largest resident memory of this program, in bytes.

    Linux counts for a process the memory of the one that it was before it became this program, which a large parent
    makes large; VmHWM begins anew with each program.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = (line.split() for line in status.read_text("ascii", "replace").splitlines())
        return next(int(words[1]) * _KIB for words in lines if words[:1] == ["VmHWM:"])
    return in_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def in_bytes(maxrss: int) -> int:
    """The ``ru_maxrss`` of this system in bytes."""
    return maxrss if sys.platform == "darwin" else maxrss * _KIB


def start(directory: str, cpus: str, command: tuple[str, ...], problems: int) -> None:
    """Become the command; when that fails, write why and end."""
    try:
        end_with_parent()
        os.chdir(directory)
        stay_on(cpus)
        os.set_inheritable(problems, False)  # noqa: FBT003 - the function takes no keyword
        os.execv(command[0], command)  # noqa: S606 - a list, no shell
    except OSError as error:
        os.write(problems, (error.strerror or str(error)).encode())
    finally:
        os._exit(_CANNOT_START)


def stay_on(cpus: str) -> None:
    """Keep this process on these CPUs."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise OSError(errno.ENOTSUP, "this system cannot pin a process to CPUs")
    try:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    except OSError as error:
        raise OSError(error.errno, f"cannot pin to CPUs {cpus}: {error.strerror}") from None


def end_with_parent() -> None:
    """On Linux, end when the parent does: an orphan would disturb the next measurement."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
