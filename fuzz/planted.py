"""Libraries with bytes that look like ``cpuid``: ``python -m fuzz.planted --count 100``.

Each is built from its seed; no planted byte may be taken for an instruction, and every instruction of a function must
be found. ``tests/support/planted_libraries.py`` builds them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"


def main(arguments: list[str] | None = None) -> int:
    """Build and look at that many; 1 when one was told wrong."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.planted", description="Look for planted cpuid bytes.")
    parser.add_argument("--count", type=int, default=100, help="libraries")
    parser.add_argument("--seed", type=int, default=1000, help="of the first")
    options = parser.parse_args(arguments)
    sys.path.append(str(SUPPORT))
    from opscope.machine.switch.sites import cpuid_sites
    from planted_libraries import planted_library

    planted = patched = real = missed = unnamed = 0
    with tempfile.TemporaryDirectory() as place:
        for seed in range(options.seed, options.seed + options.count):
            library = planted_library(Path(place), seed)
            found = set(cpuid_sites(library.path).addresses)
            wrong, left = found - library.real, library.real - found
            planted, patched = planted + len(library.planted), patched + len(wrong)
            real, missed = real + len(library.real), missed + len(left)
            unnamed += len(library.unnamed)
            if wrong or left:
                print(f"seed {seed}: patched {sorted(map(hex, wrong))}, missed {sorted(map(hex, left))}")
    print(f"{options.count} libraries, {planted} planted places, {patched} taken for instructions; ", end="")
    print(f"{real} instructions in functions, {missed} missed; {unnamed} outside of functions left")
    return 1 if patched or missed else 0


if __name__ == "__main__":
    sys.exit(main())
