"""A Dask scheduler and workers as processes of this machine, started by the commands that the docs name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_BIN = Path(sys.executable).parent
ADDRESS = re.compile(r"Scheduler at:\s+(tcp://\S+)")
READY = re.compile(r"Registered to:")
_SECONDS = 60.0


class Process:
    """A command whose output is read until it says that it is ready; the rest is read so that it never waits.

    Args:
        words: of the command.
        ready: what it prints then; the first group is kept as ``found``.
        variables: more of its environment.
    """

    def __init__(self, words: Sequence[str], ready: re.Pattern[str], variables: Mapping[str, str] = {}) -> None:
        environment = os.environ | {"DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "0.99"} | dict(variables)
        self.process = subprocess.Popen(
            [str(_BIN / words[0]), *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self._lines: list[str] = []
        self._ready, self._pattern = threading.Event(), ready
        self.found = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(_SECONDS), f"it did not start: {self._lines}"

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it; a process that does not is killed."""
        self.process.terminate()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            match = self._pattern.search(line)
            if match and not self._ready.is_set():
                self.found = match[1] if match.groups() else match[0]
                self._ready.set()


class Cluster:
    """A scheduler with workers.

    Args:
        workers: how many, each of one thread.
        resources: of each worker; shorter lists leave the others without.
        kept: words of each worker's command line besides.

    Attributes:
        address: of the scheduler.
        scheduler: its process.
        workers: theirs.
    """

    def __init__(self, workers: int = 1, resources: Sequence[str] = (), kept: Sequence[str] = ()) -> None:
        words = ["dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"]
        self.scheduler = Process(words, ADDRESS)
        self.address = self.scheduler.found
        self.workers: list[Process] = []
        for number in range(workers):
            self.add_worker(resources[number] if number < len(resources) else "", kept)

    def add_worker(self, resources: str = "", kept: Sequence[str] = (), variables: Mapping[str, str] = {}) -> Process:
        """One more worker."""
        words = ["dask", "worker", self.address, "--nthreads", "1", "--no-dashboard", *kept]
        words += ["--resources", resources] if resources else []
        self.workers.append(Process(words, READY, variables))
        return self.workers[-1]

    def __enter__(self) -> Cluster:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self.scheduler):
            process.stop()
