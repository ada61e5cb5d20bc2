"""Commands whose n-th write, fsync, rename or mmap fails, for every n.

``fuzz/failing_calls.c`` is preloaded into the process of ``profile``, ``store add`` and ``report``; each is run in a
directory of its own with n = 1, 2, ... until it ends before anything fails. After each run the exit code must be one of
opscope's and no bug, the inputs and a foreign directory beside them must be as they were, no temporary file may be
left, and the result is absent, or true as ``validate`` and the store's own queries say, or becomes so when the command
is given again. A command that ends with 0 must have left the whole result. Linux only.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from opscope.core.errors import EXIT_OK, OpscopeError, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / "tests" / "data" / "bundles" / "with-ceilings"
PROGRAM = BUNDLE / "model" / "toy_cnn_xnnpack_fp32.pte"
KINDS = ("write", "fsync", "rename", "mmap")
ABSENT, WHOLE, RESUMED, FAILED = "absent", "validated", "resumed", "failed"
_OUTCOMES = (ABSENT, WHOLE, RESUMED, FAILED)
_CODES = {EXIT_OK, *(kind.exit_code for kind in kinds() if kind is not OpscopeError)}
_SECONDS = 300
_DERIVED = {"analysis.json", "comparison.json", "report.html", "report.md"}
_QUERY = "SELECT * FROM operators ORDER BY ALL"


class Fault(NamedTuple):
    """One call that fails: its kind, and which of those that count, from 1."""

    kind: str
    number: int


class Ended(NamedTuple):
    """How a command ended: its exit code, what it said on standard error, and the file on which a call failed."""

    code: int
    said: str
    failed_on: str | None


class Materials:
    """What commands are given, made once: a program, bundles, a store of several files, a cache with what is built.

    Args:
        place: directory for all of it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.library = place / "failing_calls.so"
        self.cache = place / "cache"

    def make(self, trials: Iterable[Trial]) -> None:
        """Compile the library, make the bundles, and run each command once without a fault."""
        source = Path(__file__).with_suffix(".c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", self.library, source], check=True)
        self.cache.mkdir()
        with mock.patch.dict(os.environ, {"OPSCOPE_CACHE": str(self.cache)}):
            self._make_bundles()
        for trial in trials:
            with self.prepared(trial) as place:
                done = run(self, place, trial.command)
                assert done.code == EXIT_OK, f"{trial.name} without a fault: {done.said}"
                if trial.name == "profile":  # the runner is built once, the peak rates are kept
                    shutil.rmtree(self.cache)
                    shutil.copytree(place / "cache", self.cache)

    def _make_bundles(self) -> None:
        """Bundles and a store with several files a table, by a fake target, as the tests make them."""
        from many_bundles import Made, Mint
        from opscope.api import add_to_store, report

        mint = Mint(self.place / "mint", operators=4, rounds=2, runs=2)
        for number in range(3):
            made = mint.make(self.place / "bundles" / str(number), Made(number, hours=float(number), factor=1 + number))
            add_to_store([made], str(self.place / "store"))
        add_to_store([self.place / "bundles" / "0"], str(self.place / "one"))
        shutil.copytree(BUNDLE, self.place / "bundle")
        for path in (self.place / "bundle").rglob("*"):
            if path.name in _DERIVED:
                path.unlink()
        report(self.place / "bundle")

    @contextlib.contextmanager
    def prepared(self, trial: Trial) -> Iterator[Path]:
        """A new directory with what a command is given, a foreign directory, and the cache."""
        with tempfile.TemporaryDirectory(prefix="opscope-failing-") as directory:
            place = Path(os.path.realpath(directory)) / "work"
            (place / "foreign").mkdir(parents=True)
            (place / "foreign" / "thesis.txt").write_text("not ours\n", "utf-8")
            shutil.copytree(self.cache, place / "cache")
            trial.prepare(self, place)
            yield place


@dataclass(frozen=True)
class Trial:
    """A command that is tried.

    Attributes:
        name: as it is shown.
        command: its arguments, in its directory.
        again: the arguments that end well what was begun.
        prepare: puts into a directory what the command is given.
        problem: what is wrong with the result in a directory; None: nothing, empty: there is none.
    """

    name: str
    command: tuple[str, ...]
    again: tuple[str, ...]
    prepare: Callable[[Materials, Path], None]
    problem: Callable[[Path], str | None]


@dataclass
class Row:
    """What came of one command and one kind of call.

    Attributes:
        name: of the command.
        kind: of call.
        tried: how many calls failed, one in each run.
        outcomes: how often each.
        failures: in words.
    """

    name: str
    kind: str
    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def try_call(self, materials: Materials, number: int) -> bool:
        """Let the call of this number fail; return False where the command makes fewer."""
        came = attempt(materials, TRIALS[self.name], Fault(self.kind, number))
        if came is None:
            return False
        outcome, failure = came
        self.tried += 1
        self.outcomes[outcome] += 1
        self.failures += [failure] if failure else []
        return True


def run(materials: Materials, place: Path, arguments: Sequence[str], fault: Fault | None = None) -> Ended:
    """Run a command in a directory, in which a call fails."""
    told = place.parent / "told"
    command = [sys.executable, "-m", "opscope", *arguments]
    done = subprocess.run(
        command,
        cwd=place,
        env=_environment(materials, place, told, fault),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, told.read_text("utf-8") if told.exists() else None)


def _environment(materials: Materials, place: Path, told: Path, fault: Fault | None) -> Mapping[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FAILING_", "OPSCOPE_"))}
    own |= {"OPSCOPE_CACHE": str(place / "cache"), "OPSCOPE_RAISE": "1", "PYTHONUTF8": "1", "NO_COLOR": "1"}
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), own.get("PYTHONPATH", "")])
    if fault is not None:
        own |= {
            "LD_PRELOAD": str(materials.library),
            "FAILING_KIND": fault.kind,
            "FAILING_NUMBER": str(fault.number),
            "FAILING_BELOW": str(place),
            "FAILING_TOLD": str(told),
        }
    return own


def attempt(materials: Materials, trial: Trial, fault: Fault) -> tuple[str, str] | None:
    """What came of one fault: the outcome, and what failed in words; None when the command made fewer calls."""
    with materials.prepared(trial) as place:
        before = kept(place)
        done = run(materials, place, trial.command, fault)
        if done.failed_on is None:
            assert done.code == EXIT_OK, done.said
            return None
        failed_on = os.path.relpath(done.failed_on, place)
        problems = list(_problems(place, done, before))
        outcome, problem = _outcome(materials, trial, place, done)
        problems += [problem] if problem else []
        if kept(place) != before:
            problems.append("the second command changed inputs or foreign files")
        if problems:
            said = f"{fault.kind} {fault.number} of {trial.name} ({failed_on}), exit code {done.code}"
            return FAILED, f"{said}: {'; '.join(problems)}\n{done.said[-1500:]}"
        return outcome, ""


def _problems(place: Path, done: Ended, before: Mapping[str, str]) -> Iterator[str]:
    if done.code not in _CODES or "Traceback" in done.said:
        yield "ended by a bug or a signal"
    if done.code != EXIT_OK and "error:" not in done.said:
        yield "says nothing"
    if kept(place) != before:
        yield f"changed inputs or foreign files: {sorted(set(before.items()) ^ set(kept(place).items()))[:4]}"
    left = [path.name for path in place.rglob(".*.tmp")]
    if left:
        yield f"left behind: {left}"


def _outcome(materials: Materials, trial: Trial, place: Path, done: Ended) -> tuple[str, str]:
    """How the result is, and what is wrong with it in spite of the command being given again."""
    problem = trial.problem(place)
    if done.code == EXIT_OK:
        return WHOLE, "" if problem is None else f"ended with 0, and the result: {problem or 'is not there'}"
    if not problem:
        return (WHOLE if problem is None else ABSENT), ""
    again = run(materials, place, trial.again)
    after = trial.problem(place)
    if again.code != EXIT_OK or after is not None:
        return RESUMED, f"{problem}; again: exit code {again.code}, {after or 'nothing'}\n{again.said[-1500:]}"
    return RESUMED, ""


def kept(place: Path) -> dict[str, str]:
    """Hashes of all that a command must leave as it is: inputs, foreign files, the record of a bundle."""
    files = [path for name in ("inputs", "foreign", "bundle") for path in sorted((place / name).rglob("*"))]
    mine = (path for path in files if path.is_file() and path.name not in _DERIVED and "problems" not in path.parts)
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in mine
        if path.name != ".lock" and not path.name.endswith(".tmp")
    }


def _give_program(_: Materials, place: Path) -> None:
    (place / "inputs").mkdir()
    shutil.copy(PROGRAM, place / "inputs" / "toy.pte")


def _give_bundle(materials: Materials, place: Path) -> None:
    """A bundle with reports, two of which are to be written for the first time."""
    shutil.copytree(materials.place / "bundle", place / "bundle")
    (place / "bundle" / "report.md").unlink()
    (place / "bundle" / "comparison.json").unlink()


def _give_bundles(materials: Materials, place: Path, store: str = "") -> None:
    shutil.copytree(materials.place / "bundles", place / "inputs")
    if store:
        shutil.copytree(materials.place / store, place / "store")


def _bundle_problem(name: str, place: Path) -> str | None:
    from opscope.api import validate
    from opscope.reports.validation import answer

    if not (place / name / "manifest.json").exists():
        return "no manifest" if (place / name).exists() else ""
    try:
        found = validate(place / name)
    except OpscopeError as error:
        return str(error)
    return answer(found) if found.failed() else None


def _store_problem(held: Sequence[int], place: Path) -> str | None:
    """Whether a store is sound, and holds so many bundles: each of these numbers is one that it may hold."""
    from opscope.api import query_store, store_entries

    store = str(place / "store")
    if not (place / "store" / "_delta_log").exists():
        return ""
    try:
        entries = store_entries(store)
        query_store(_QUERY, store)
    except OpscopeError as error:
        return str(error)
    count = len(entries)
    return None if count in held else f"holds {count} bundles"


_PROFILE = (
    "profile inputs/toy.pte --target native --rounds 1 --runs 2 --warmup 0 --no-ceilings --lock warn --quiet --out out"
)
TRIALS = {
    trial.name: trial
    for trial in (
        Trial(
            "profile",
            tuple(_PROFILE.split()),
            (*_PROFILE.split(), "--resume"),
            _give_program,
            partial(_bundle_problem, "out"),
        ),
        Trial("report", ("report", "bundle"), ("report", "bundle"), _give_bundle, partial(_bundle_problem, "bundle")),
        Trial(
            "store add",
            ("store", "add", "inputs", "--store", "store"),
            ("store", "add", "inputs", "--store", "store"),
            _give_bundles,
            partial(_store_problem, [3]),
        ),
        Trial(
            "store add, more",
            ("store", "add", "inputs", "--store", "store"),
            ("store", "add", "inputs", "--store", "store"),
            partial(_give_bundles, store="one"),
            partial(_store_problem, [3]),
        ),
    )
}


def try_calls(seconds: float, _seed: int) -> int:
    """Let the first call of each kind fail in each command, then the second, until the time is over or all were tried.

    Returns:
        The number of failures, which are printed with a table of what came of all.
    """
    if sys.platform != "linux":
        print("failing-calls: not tried, this is not Linux")
        return 0
    rows = {(name, kind): Row(name, kind) for name, kind in itertools.product(TRIALS, KINDS)}
    with tempfile.TemporaryDirectory(prefix="opscope-failing-") as directory:
        materials, left = Materials(Path(directory)), dict(rows)
        materials.make(TRIALS.values())
        end = time.monotonic() + seconds
        for number in itertools.count(1):
            for place, row in list(left.items()):
                if time.monotonic() > end:
                    break
                if not row.try_call(materials, number):
                    del left[place]
            if not left or time.monotonic() > end:
                break
    print(f"{'command':16} {'call':7} {'tried':>6} " + " ".join(f"{one:>9}" for one in _OUTCOMES))
    for place, row in rows.items():
        counts = " ".join(f"{row.outcomes[one]:9}" for one in _OUTCOMES)
        print(f"{row.name:16} {row.kind:7} {row.tried:6} {counts}{'   not all' if place in left else ''}")
        print(*(f"  {failure}\n" for failure in row.failures), sep="", end="", flush=True)
    found = sum(len(row.failures) for row in rows.values())
    print(f"failing-calls: {sum(row.tried for row in rows.values())} calls failed, {found} findings", flush=True)
    return found
