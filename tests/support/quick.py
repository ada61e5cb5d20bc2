"""``make quick``: the gates that take seconds, and the tests nearest to what was changed.

Of each room that was changed come the tests that name a changed module, then the cheapest, until they cost ``MOST`` CPU
seconds together. What was changed is what git says: since the last commit, or in it when nothing is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from durations import known, unit_costs

ROOT = Path(__file__).parents[2]
MOST = 10.0
_GATES = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",), ("lint-imports",))


def main() -> int:
    """Run them; 1 when one fails."""
    scripts = Path(sys.executable).parent
    failed = [
        gate for gate in _GATES if subprocess.run([scripts / gate[0], *gate[1:]], cwd=ROOT, check=False).returncode
    ]
    chosen, left = nearest(list_changed_files())
    if chosen:
        print(f"tests: {' '.join(chosen)}", flush=True)
        words = ["-m", "pytest", "-q", "-m", "not nightly", "-n", "auto", "--dist", "loadfile", *chosen]
        failed += [("tests",)] if _run([sys.executable, *words]) else []
    print(f"left to make test: {len(left)} other files of these rooms" if left else "all tests of these rooms were run")
    for gate in failed:
        print(f"failed: {' '.join(gate)}")
    return int(bool(failed))


def _run(command: Sequence[str | Path]) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def list_changed_files(since: str = "HEAD") -> list[str]:
    """List files that were changed or added since a commit; those of the last commit if there are none."""
    files = [*run_git("diff", "--name-only", since), *run_git("ls-files", "--others", "--exclude-standard")]
    return files or run_git("diff", "--name-only", "HEAD~1", "HEAD")


def nearest(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Test files of the rooms of some files, as many as cost little, and those that are left out."""
    rooms = sorted({room for room in map(tests_of, files) if room})
    paths = [str(path.relative_to(ROOT)) for room in rooms for path in sorted((ROOT / room).rglob("test_*.py"))]
    costs = known()
    cost = unit_costs(list(costs), costs)
    modules = {".".join(Path(file).with_suffix("").parts[1:]) for file in files if file.startswith("src/")}
    texts = {path: (ROOT / path).read_text("utf-8") for path in paths}

    def order(path: str) -> tuple[bool, float]:
        near = path in files or any(module in texts[path] for module in modules)
        return not near, cost[path]

    ordered, chosen, total = sorted(paths, key=order), list[str](), 0.0
    for path in ordered:
        if not chosen or total + cost[path] <= MOST:
            chosen.append(path)
            total += cost[path]
    return chosen, [path for path in ordered if path not in chosen]


def tests_of(file: str) -> Path | None:
    """Return the folder of tests of a file's room, within the repository. None if the file belongs to no room."""
    parts = Path(file).parts
    if parts[0] == "tests" and len(parts) > 2 and parts[1] not in {"support", "data", "golden"}:
        return Path("tests", parts[1])
    room = Path("tests", parts[2]) if parts[:2] == ("src", "opscope") and len(parts) > 3 else None
    return room if room and (ROOT / room).is_dir() else None


def run_git(*words: str) -> list[str]:
    """Return the lines that git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    sys.exit(main())
