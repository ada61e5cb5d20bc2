"""How long commands take before they do anything, beside an empty Python process in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

_RUNS = 15
_COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "opscope --help": [sys.executable, "-m", "opscope", "--help"],
    "import opscope": [sys.executable, "-c", "import opscope"],
    "import executorch.devtools.Inspector": [sys.executable, "-c", "from executorch.devtools import Inspector"],
}


def seconds(command: list[str]) -> float:
    """Wall time of one process."""
    before = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - before


def main() -> None:
    """Print median seconds of each command, measured in turn, and the ratio to an empty process."""
    times: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for number in range(_RUNS):
        for name, command in _COMMANDS.items():
            if number < 3 or "Inspector" not in name:  # noqa: PLR2004 - that one takes seconds; three are enough
                times[name].append(seconds(command))
    empty = statistics.median(times["python -c pass"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:<40} {middle:7.3f} s   {middle / empty:6.1f} x an empty process   (n = {len(values)})")


if __name__ == "__main__":
    main()
