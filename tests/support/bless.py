"""``make bless``: show how each expected report would change, and ask; without a terminal, leave all for review.

A test with ``--bless`` writes what it got beside what it expected, as ``NAME.new``, and fails as always.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
NEW = ".new"


def differences(expected: Path) -> str:
    """What changes in a file: lines before and after, with three around them."""
    new = expected.with_name(expected.name + NEW)
    before = expected.read_text("utf-8") if expected.exists() else ""
    sides = before.splitlines(), new.read_text("utf-8").splitlines()
    return "\n".join(difflib.unified_diff(*sides, expected.name, new.name, lineterm=""))


def review(directory: Path, ask: Callable[[str], bool] | None) -> list[Path]:
    """Show all files that differ and replace those that are agreed to; the others, which stay beside.

    Args:
        directory: of the expected files.
        ask: whether a file is right, given its name; None: nobody can be asked.
    """
    left = []
    for new in sorted(directory.glob(f"*{NEW}")):
        expected = new.with_name(new.name.removesuffix(NEW))
        print(differences(expected))
        if ask is not None and ask(expected.name):
            new.replace(expected)
        else:
            left.append(new)
    return left


def _asked(name: str) -> bool:
    return input(f"{name}: is this right? [y/N] ").strip().lower() in {"y", "yes"}


def main() -> int:
    """Run the tests of the expected reports, and review what they got; 1 when something is left beside."""
    for new in GOLDEN.glob(f"*{NEW}"):
        new.unlink()
    tests = [sys.executable, "-m", "pytest", "-q", "tests/reports/test_golden.py", "--bless"]
    subprocess.run(tests, cwd=GOLDEN.parents[1], stdout=subprocess.DEVNULL, check=False)
    left = review(GOLDEN, _asked if sys.stdin.isatty() else None)
    for new in left:
        print(f"left for review: {new.relative_to(GOLDEN.parents[1])}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
