"""One fault in one file of a store, a thousand times: ``python -m fuzz.store_faults --count 1000 --seed 1``.

The faults and what is asked of the store stand in ``tests/support/store_faults.py``. Each fault must make `verify` end
with another code than 0, be told by the next `add`, and cost no file that counts when `compact` runs. The one exception
is an anchor of an earlier moment: the chain proves the commits behind it, `verify` says that they are newer, and the
next `add` lets the anchor know them. The exit code is 1 when a fault was not seen.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from store_faults import FAULTS, KINDS, Seen, fits, store_sample, tried

_COLUMNS = ("verify", "next add", "compact kept all")


def main(arguments: list[str] | None = None) -> int:
    """Try faults, and print the table of them; 1 when one was not seen."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.store_faults", description="Damage stores.")
    parser.add_argument("--count", type=int, default=1_000, help="faults to try")
    parser.add_argument("--seed", type=int, default=1, help="decides what is tried")
    options = parser.parse_args(arguments)
    pairs = [(fault, kind) for fault in FAULTS for kind in KINDS if fits(fault, kind)]
    rng, counts, missed = random.Random(options.seed), Counter[tuple[str, str, str]](), 0  # noqa: S311 - not secret
    with tempfile.TemporaryDirectory(prefix="opscope-faults-") as directory:
        sample = store_sample(Path(directory) / "sample", adds=12, idle=36)
        for number in range(options.count):
            fault, kind = pairs[number % len(pairs)]
            seen = tried(sample, fault, kind, rng, Path(directory))
            if not as_it_must(fault, seen):
                missed += 1
                print(f"not seen: {fault}, {', '.join(seen.changed)}: {seen}", flush=True)
            counts.update((fault, kind, name) for name in ("tried", *_columns_of(seen)))
    print(f"{'fault':<14}{'file':<26}{'tried':>7}" + "".join(f"{name:>18}" for name in _COLUMNS))
    for fault, kind in pairs:
        cells = "".join(f"{counts[fault, kind, name]:>18}" for name in _COLUMNS)
        print(f"{fault:<14}{kind:<26}{counts[fault, kind, 'tried']:>7}{cells}")
    print(f"store: {options.count:,} faults, {missed} not seen")
    return int(missed > 0)


def as_it_must(fault: str, seen: Seen) -> bool:
    """Whether a fault was seen everywhere; an anchor of an earlier moment is noted, and takes nothing."""
    return seen.kept and (seen.noted if fault == "roll back" else seen.verified and seen.told)


def _columns_of(seen: Seen) -> list[str]:
    found = (seen.verified or seen.noted, seen.told, seen.kept)
    return [name for name, held in zip(_COLUMNS, found, strict=True) if held]


if __name__ == "__main__":
    sys.exit(main())
