"""How long a user waits for the report of a small model: ceilings measured, kept from before, and left out.

The same command in turn, in a cache directory of its own. Ceilings that other work disturbs are not kept, and a probe
of kept ones may disagree on a busy machine: how often they were really used is printed beside the times.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from processes import Process, run

from opscope.runtimes.executorch.export.process import export_model

_MODEL = "toy_cnn"
_ROUNDS = 3
_WAYS = {"measured": ["--ceilings"], "kept": [], "left out": ["--no-ceilings"]}


def answered(program: Path, out: Path, words: list[str]) -> Process:
    """One profile of the program, from the command to the end of its report."""
    command = [sys.executable, "-m", "opscope", "profile", str(program), "--out", str(out), "--quiet", *words]
    return run(command)


def origins(out: Path) -> list[str]:
    """Where the ceilings of a bundle come from."""
    return [json.loads(file.read_text())["origin"] for file in out.glob("variants/*/ceilings.json")]


def main() -> None:
    """Print medians of wall and processor time, and their ratio to a run that measures its ceilings."""
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
        program, _ = export_model(_MODEL, "fp32", directory)
        answered(program, directory / "first", ["--no-ceilings", "--rounds", "1"])  # builds the native runner
        found: dict[str, list[Process]] = {name: [] for name in _WAYS}
        used: list[str] = []
        for number in range(_ROUNDS):
            for name, words in _WAYS.items():
                out = directory / f"{name}-{number}"
                found[name].append(answered(program, out, words))
                used += origins(out) if name == "kept" else []
    for name, processes in found.items():
        wall = statistics.median(process.seconds for process in processes)
        cpu = statistics.median(process.cpu_seconds for process in processes)
        ratios = [
            statistics.median(
                own.seconds / whole.seconds for own, whole in zip(processes, found["measured"], strict=True)
            )
        ]
        ratios.append(cpu / statistics.median(process.cpu_seconds for process in found["measured"]))
        print(
            f"ceilings {name:<9} {wall:6.2f} s, {cpu:6.2f} s of a processor: {ratios[0]:.2f} and {ratios[1]:.2f} of "
            f"measuring them (n = {len(processes)})"
        )
    print(f"kept ceilings were used {used.count('cache')} times of {len(used)}, measured anew in the others")


if __name__ == "__main__":
    main()
