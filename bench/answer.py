"""How long a user waits for the report of a small model: ceilings measured, kept from before, and left out.

The same command in turn, in a cache directory of its own. Ceilings that other work disturbs are not kept, and a probe
of kept ones may disagree on a busy machine: how often they were really used is printed beside the times.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from bench.processes import Process, median_process, run_opscope
from opscope.runtimes.executorch.export.process import export_model

_MODEL = "toy_cnn"
_MEASURED, _KEPT = "measured", "kept"
_WAYS = {_MEASURED: ["--ceilings"], _KEPT: [], "left out": ["--no-ceilings"]}


def run(*, full: bool) -> bool:
    """Print medians of wall and processor time, and their ratio to a run that measures its ceilings."""
    processes: dict[str, list[Process]] = {name: [] for name in _WAYS}
    origins: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_CACHE_HOME"] = f"{work}/cache"
        program, _ = export_model(_MODEL, "fp32", Path(work))
        profile = ("profile", program, "--quiet", "--out")
        run_opscope(*profile, f"{work}/first", "--no-ceilings", "--rounds", 1)  # builds the native runner
        for number in range(7 if full else 3):
            for name, options in _WAYS.items():
                out = Path(work) / f"{name}-{number}"
                processes[name].append(run_opscope(*profile, out, *options))
                if name == _KEPT:
                    files = out.glob("variants/*/ceilings.json")
                    origins += [json.loads(file.read_text())["origin"] for file in files]
    medians = {name: median_process(runs) for name, runs in processes.items()}
    for name, median in medians.items():
        ratios = [median[figure] / medians[_MEASURED][figure] for figure in (0, 1)]
        print(
            f"ceilings {name:<9} {median.seconds:6.2f} s, {median.cpu_seconds:6.2f} s of a processor: "
            f"{ratios[0]:.2f} and {ratios[1]:.2f} of measuring them (n = {len(processes[name])})"
        )
    print(f"kept ceilings were used {origins.count('cache')} times of {len(origins)}, measured anew in the others")
    return True
