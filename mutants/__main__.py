"""How many small changes of the code the tests of its own room notice, without torch.

``python -m mutants`` tries a fixed set: one mutant in each of five modules of each of twelve rooms. ``--changed BASE``
tries five in each module that differs from a commit. A room whose tests fail unchanged is named, and the others are
tried. Ends with 1 then, and where fewer than five in six are noticed.
"""

from __future__ import annotations

import argparse
import hashlib
import queue
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mutants.mutations import Mutant, mutants
from mutants.trial import ROOT, SOURCES, Copy, copies

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = "analysis bundle core fleet hosts machine measurements npu program reports runtimes workflows".split()
EACH = 5
LEAST = 5 / 6
CPU_SECONDS = 300


class Trial(NamedTuple):
    """A mutant of a module, and what became of it.

    Attributes:
        module: its path.
        mutant: the change.
        killer: the test that noticed it; None where none did, or it was not tried.
        broken: the test of the room that fails without any change, which is why the mutant was not tried.
    """

    module: str
    mutant: Mutant
    killer: str | None = None
    broken: str | None = None

    @property
    def room(self) -> str:
        """The folder of the module in the package."""
        return Path(self.module).relative_to(SOURCES).parts[0]


def fixed(rooms: list[str]) -> Iterator[Trial]:
    """One mutant in each of five modules of each room: those whose paths have the smallest hashes."""
    for room in rooms:
        modules = sorted((ROOT / SOURCES / room).rglob("*.py"), key=lambda file: _hash(_name(file)))
        found = (Trial(_name(file), one) for file in modules if _runs_without_torch(file) for one in _mutants(file, 1))
        yield from islice(found, EACH)


def changed(base: str) -> Iterator[Trial]:
    """Five mutants in each module that differs from a commit, or is new, and has a room of tests."""
    since = _git("merge-base", base, "HEAD").strip()
    listed = _git("diff", "--name-only", since), _git("ls-files", "--others", "--exclude-standard")
    for file in sorted(ROOT / name for text in listed for name in text.splitlines() if name.startswith(f"{SOURCES}/")):
        if file.suffix == ".py" and file.exists() and _is_tested(file) and _runs_without_torch(file):
            yield from (Trial(_name(file), one) for one in _mutants(file, EACH))


def _is_tested(file: Path) -> bool:
    return (ROOT / "tests" / file.relative_to(ROOT / SOURCES).parts[0]).is_dir()


def tried(trials: list[Trial], made: list[Copy]) -> Iterator[Trial]:
    """Try mutants, one at a time in each copy; tell of each as soon as it is known, in the given order.

    Those of a room whose tests fail without a change say nothing: they come back untried.
    """
    idle: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in made:
        idle.put(copy)
    broken: dict[str, str | None] = {}

    def without_change(module: str) -> str | None:
        copy = idle.get()
        try:
            return copy.failure(module, CPU_SECONDS)
        finally:
            idle.put(copy)

    def with_change(trial: Trial) -> Trial:
        if broken[trial.room]:
            return trial._replace(broken=broken[trial.room])
        copy = idle.get()
        try:
            with copy.changed(trial.module, trial.mutant.source):
                return trial._replace(killer=copy.failure(trial.module, CPU_SECONDS))
        finally:
            idle.put(copy)

    with ThreadPoolExecutor(len(made)) as pool:
        rooms = {trial.room: trial.module for trial in trials}
        for room, failure in zip(rooms, pool.map(without_change, rooms.values()), strict=True):
            broken[room] = failure
            print(f"{room:<14} unchanged: {failure or 'passes'}", flush=True)
        yield from pool.map(with_change, trials)


def main() -> int:
    """Try the mutants that the command line asks for."""
    options = _options()
    base = options.changed
    trials = list(fixed(options.room or ROOMS) if base is None else changed(base or _main()))
    found = []
    with copies(options.jobs) as made:
        for trial in tried(trials, made):
            found.append(trial)
            print(f"{_line(trial)}\n    {_outcome(trial)}", flush=True)
    print(table(found))
    return int(not passes(found))


def passes(trials: list[Trial]) -> bool:
    """Whether every room was tried, and five in six mutants were killed."""
    killed = sum(one.killer is not None for one in trials)
    return not any(one.broken for one in trials) and killed >= LEAST * len(trials)


def table(trials: list[Trial]) -> str:
    """Killed of tried, by room, who survived, and the rooms whose tests fail without a change."""
    rows = [""]
    for room in dict.fromkeys(trial.room for trial in trials):
        own = [trial for trial in trials if trial.room == room]
        untried = f"  not tried: {own[0].broken} fails unchanged" if own[0].broken else ""
        rows.append(f"{room:<14}{_killed(own)}{untried}")
    survivors = [_line(one) for one in trials if one.killer is None and one.broken is None]
    return "\n".join([*rows, f"{'together':<14}{_killed(trials)}", "", *survivors])


def _killed(trials: list[Trial]) -> str:
    return f"{sum(one.killer is not None for one in trials):>4} of {len(trials)}"


def _outcome(trial: Trial) -> str:
    return "not tried" if trial.broken else trial.killer or "SURVIVED"


def _line(trial: Trial) -> str:
    return f"{trial.module}:{trial.mutant.line}: {trial.mutant.before} -> {trial.mutant.after}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--changed", nargs="?", const="", metavar="BASE", help="modules that differ from a commit")
    parser.add_argument("--room", action="append", choices=ROOMS, help="only this room of the fixed set; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once; 2 unless given")
    return parser.parse_args()


def _mutants(file: Path, count: int) -> list[Mutant]:
    return mutants(file.read_text("utf-8"), count)


def _runs_without_torch(file: Path) -> bool:
    return "import torch" not in file.read_text("utf-8")


def _main() -> str:
    """The commit that a branch began from; on main the one before."""
    own, start = (_git("rev-parse", name).strip() for name in ("HEAD", "main"))
    return "HEAD~1" if own == start else "main"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    sys.exit(main())
