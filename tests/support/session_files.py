"""Files that are made once for all tests of a session, by whichever worker needs them first.

The workers of pytest-xdist are separate processes, so a session fixture is made once in each. What costs an export
or a compiler is kept in one directory for all of them. It is empty when the session begins and removed at its end, so
nothing of an earlier state of the code can be in it. Tests read these files; one that changes a file changes a copy.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_VARIABLE = "OPSCOPE_TEST_SESSION"
costs: list[float] = []
"""CPU seconds of what this process made for all."""


def cpu_seconds() -> float:
    """CPU time of this process and of the children that it waited for, so far."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def begin_session() -> None:
    """Make the directory; the processes that this one starts find it through the environment."""
    os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="opscope-test-")


def end_session() -> None:
    """Remove it."""
    shutil.rmtree(os.environ.pop(_VARIABLE, ""), ignore_errors=True)


def session_directory() -> Path:
    """The directory of this session."""
    return Path(os.environ[_VARIABLE])


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """A directory that all workers share.

    Args:
        name: of what is in it.
        make: fills an empty directory. When it raises, nothing is kept and the next who asks tries again.
    """
    place = session_directory() / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished, before = Path(tempfile.mkdtemp(dir=place.parent)), cpu_seconds()
            make(unfinished)
            unfinished.rename(place)
            costs.append(cpu_seconds() - before)
    return place
