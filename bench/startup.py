"""How long commands take before they do anything, beside an empty Python process in the same run.

An analysis of a tiny trace is nearly all start-up: what Python, typer, msgspec and numpy take to import is its floor
and stands beside it. ``bench.decode`` shows large traces.
"""

from __future__ import annotations

from bench import ROOT
from bench.processes import Process, median_process, run_python

_TARGET_SECONDS = 0.15
_TINY = str(ROOT / "tests" / "data" / "toy_cnn.etdump")
_EMPTY, _ANALYZE = "python -c pass", "opscope analyze TINY --json -"
_COMMANDS = {
    _EMPTY: ["-c", "pass"],
    "import typer, msgspec, numpy": ["-c", "import typer, msgspec, numpy"],
    "import opscope": ["-c", "import opscope"],
    "opscope --help": ["-m", "opscope", "--help"],
    _ANALYZE: ["-m", "opscope", "analyze", _TINY, "--json", "-"],
    "opscope analyze TINY": ["-m", "opscope", "analyze", _TINY],
    "opscope.analyze(TINY)": ["-c", f"import opscope; opscope.analyze({_TINY!r})"],
}
_INSPECTOR = "import executorch.devtools.Inspector"


def run(*, full: bool) -> bool:
    """Print the medians of each command, measured in turn, and whether the target is reached.

    A missed target does not fail: seconds depend on the machine.
    """
    for command in _COMMANDS.values():
        run_python(*command)  # the first one compiles the modules
    processes: dict[str, list[Process]] = {name: [] for name in _COMMANDS}
    for _ in range(25 if full else 7):
        for name, command in _COMMANDS.items():
            processes[name].append(run_python(*command))
    processes[_INSPECTOR] = [run_python("-c", "from executorch.devtools import Inspector")]
    medians = {name: median_process(runs) for name, runs in processes.items()}
    for name, median in medians.items():
        ratio = median.seconds / medians[_EMPTY].seconds
        print(
            f"{name:<40} {median.seconds:7.3f} s   processor {median.cpu_seconds:7.3f} s   "
            f"{ratio:6.1f} x an empty process   (n = {len(processes[name])})"
        )
    seconds = medians[_ANALYZE].seconds
    verdict = "reached" if seconds < _TARGET_SECONDS else "missed"
    print(f"{_ANALYZE}: {seconds:.3f} s, target {_TARGET_SECONDS} s: {verdict}")
    return True
