"""How long commands take before they do anything, beside an empty Python process in the same run.

An analysis of a tiny trace is nearly all start-up: what Python, typer, msgspec and numpy take to import is its floor
and stands beside it. Each process but Inspector's runs once unmeasured, since the first compiles the modules. What
`opscope analyze` takes beside Inspector on large traces: bench/decode.py.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from processes import Process, run

_RUNS = 25
_TARGET_SECONDS = 0.15
_TINY = str(Path(__file__).parents[1] / "tests" / "data" / "toy_cnn.etdump")
_ANALYZE = "opscope analyze TINY --json -"
_INSPECTOR = "import executorch.devtools.Inspector"
_COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import typer, msgspec, numpy": ["-c", "import typer, msgspec, numpy"],
    "import opscope": ["-c", "import opscope"],
    "opscope --help": ["-m", "opscope", "--help"],
    _ANALYZE: ["-m", "opscope", "analyze", _TINY, "--json", "-"],
    "opscope analyze TINY": ["-m", "opscope", "analyze", _TINY],
    "opscope.analyze(TINY)": ["-c", f"import opscope; opscope.analyze({_TINY!r})"],
}


def main() -> None:
    """Print medians of each command, measured in turn, with the ratio to an empty process."""
    for command in _COMMANDS.values():
        run([sys.executable, *command])
    runs: dict[str, list[Process]] = {name: [] for name in _COMMANDS}
    for _ in range(_RUNS):
        for name, command in _COMMANDS.items():
            runs[name].append(run([sys.executable, *command]))
    runs[_INSPECTOR] = [run([sys.executable, "-c", "from executorch.devtools import Inspector"])]
    empty = statistics.median(own.seconds for own in runs["python -c pass"])
    for name, own in runs.items():
        wall = statistics.median(one.seconds for one in own)
        cpu = statistics.median(one.cpu_seconds for one in own)
        figures = f"{wall:7.3f} s   processor {cpu:7.3f} s   {wall / empty:6.1f} x an empty process"
        print(f"{name:<40} {figures}   (n = {len(own)})")
    wall = statistics.median(own.seconds for own in runs[_ANALYZE])
    verdict = "reached" if wall < _TARGET_SECONDS else "missed"
    print(f"{_ANALYZE}: {wall:.3f} s, target below {_TARGET_SECONDS} s: {verdict}")


if __name__ == "__main__":
    main()
