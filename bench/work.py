"""How far counted work tells time: instructions of each operator against the time that it takes without AVX-512.

    python bench/work.py [PROGRAM]

The program is counted under Valgrind, which shows AVX2 at most, and profiled with AVX-512 off on this machine. One
constant, ns an instruction, is fitted to all operators; what it gets wrong is printed by kind.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from opscope.api import Settings, analyze, count, profile
from opscope.core.grouping import grouped
from opscope.core.units import share_text

DEMO = Path(__file__).resolve().parents[1] / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte"
LEAST_NS = 3000.0
"""Operators that take less are left out: XNNPACK keeps whole microseconds."""


def main() -> None:
    """Print the correlation, the error of one constant, and the kinds that it fits worst."""
    program = Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO
    work = {(one.method, one.instruction, one.position): one.instructions for one in count(program).operators}
    with tempfile.TemporaryDirectory() as place:
        how = Settings(rounds=6, runs=60, warmup=5, ceilings=False, ablate=("avx512",))
        profile(program, settings=how, out=Path(place) / "run")
        operators = analyze(Path(place) / "run#baseline").operators
    pairs = [
        (one, work[one.method, one.instruction, one.position])
        for one in operators
        if (one.method, one.instruction, one.position) in work and one.traced_ns >= LEAST_NS
    ]
    times = np.array([one.traced_ns for one, _ in pairs])
    counts = np.array([number for _, number in pairs], float)
    scale = np.median(times / counts)
    errors = np.abs(scale * counts / times - 1)
    print(f"{len(pairs)} operators of {LEAST_NS / 1000:g} us or more, {scale:.3f} ns an instruction")
    print(f"r {np.corrcoef(times, counts)[0, 1]:.2f}; error median {share_text(float(np.median(errors)))}, ", end="")
    print(f"p90 {share_text(float(np.quantile(errors, 0.9)))}")
    kinds = grouped(range(len(pairs)), lambda at: pairs[at][0].kind)
    for kind, places in sorted(kinds.items(), key=lambda item: -float(np.median(errors[item[1]]))):
        ratio = float(np.median(times[places] / (scale * counts[places])))
        print(f"  {kind}: {len(places)} operators take {ratio:.2f} of what their instructions say")


if __name__ == "__main__":
    main()
