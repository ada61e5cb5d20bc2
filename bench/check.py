"""How often `opscope check` of two programs is wrong and what it sees: real runs on this machine, A/A and planted.

    python bench/check.py                                one check of each kind, half a minute
    python bench/check.py --minutes 14 --bundles DIR     as many as fit, in turns; the bundles are kept
    python bench/check.py --minutes 0 --bundles DIR      kept bundles judged anew, by the opscope of now

A program is a chain of equal layers; a slower one has one, two or four layers more than twenty, so that it is slower by
5, 10 or 20 %. In A/A checks both sides are the same program. Every check is what users run: two programs in one bundle,
interleaved. Beside it stand bundles made one after the other: of each two neighbours, the new side of the one is judged
by the old side of the other. Checks on a quiet machine and on one where others compete for its CPUs are told apart by
the load average that each repetition notes.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibration_shares import Share, print_table

from opscope.analysis.gate.decision import Outcome
from opscope.analysis.gate.gate import end_to_end_slowdown, judge
from opscope.api import Settings, check_programs
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.core.errors import OpscopeError
from opscope.measurements.analyses import comparison_of
from opscope.measurements.sides import bundle_side
from opscope.runtimes.executorch.export.checked import export_live

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.runtimes.side import Side

LAYERS, WIDTH, ROWS = 20, 256, 64
PLANTED = (0, 0, 0, 0, 1, 2, 4)
"""Layers that the new program of each check has more, in turns; A/A checks are most of them."""
THRESHOLDS = (0.03, 0.05)
BUSY = 1.25
"""Load average for each CPU, our own process included, above which a machine is busy; the median over repetitions."""
TURNS, APART = "in turns", "one after the other"


class Measured(NamedTuple):
    """One bundle.

    Attributes:
        slower: how much slower the new program was made, as a fraction.
        busy: whether others competed for the CPUs.
        old: one side.
        new: the other.
    """

    slower: float
    busy: bool
    old: Side
    new: Side


class Judged(NamedTuple):
    """What a gate said.

    Attributes:
        busy: whether others competed for the CPUs, for either side.
        slower: how much slower the new program was made, as a fraction.
        design: whether both sides were measured in turns.
        threshold: of the gate.
        outcome: its answer.
    """

    busy: bool
    slower: float
    design: str
    threshold: float
    outcome: Outcome


def main(arguments: Sequence[str]) -> None:
    """Measure, judge, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=None, help="measure as long; one check of each kind if absent")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--bundles", type=Path, help="directory of the bundles; those that are there count, too")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as work:
        home = asked.bundles or Path(work)
        home.mkdir(parents=True, exist_ok=True)
        if asked.minutes != 0:
            _measure(
                home, asked.minutes, Settings(target="native", rounds=asked.rounds, runs=asked.runs, ceilings=False)
            )
        _report(home)


def _measure(home: Path, minutes: float | None, settings: Settings) -> None:
    """Check until the time is over, each kind in its turn."""
    with tempfile.TemporaryDirectory() as work:
        programs = {more: _program(more, Path(work)) for more in dict.fromkeys(PLANTED)}
        same = Path(shutil.copy(programs[0], Path(work) / "same.pte"))
        end = None if minutes is None else time.monotonic() + 60 * minutes
        order = dict.fromkeys(PLANTED) if end is None else itertools.cycle(PLANTED)
        first = len(list(home.iterdir()))
        for number, more in enumerate(order, first):
            if end is not None and time.monotonic() > end:
                return
            new = programs[more] if more else same
            check_programs(new, programs[0], settings=settings, out=home / f"{number:04}-plus-{more}")


def _program(more: int, work: Path) -> Path:
    """A chain with so many layers more, exported."""
    import torch  # noqa: PLC0415 - bundles are judged anew without it

    torch.manual_seed(0)
    layers: list[Any] = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS + more)]
    directory = work / f"plus-{more}"
    directory.mkdir()
    return export_live(torch.nn.Sequential(*layers), torch.randn(ROWS, WIDTH), "fp32", directory)


def _report(home: Path) -> None:
    """Judge all bundles of a directory, and print how often each answer came."""
    bundles = [Bundle.open(path) for path in sorted(home.iterdir()) if is_bundle(path)]
    told = Counter((bundle.manifest.plan.rounds, bundle.manifest.plan.runs) for bundle in bundles)
    for (rounds, runs), count in told.items():
        print(f"{count} checks of {rounds} rounds, {runs} measured inferences a process")
    print()
    found = list(_judged(bundles))
    groups: dict[tuple[bool, float, str, float], list[Outcome]] = defaultdict(list)
    for one in found:
        groups[one.busy, one.slower, one.design, one.threshold].append(one.outcome)
    rows = [
        (
            f"{'busy' if busy else 'quiet'}, slower by {slower:.0%}",
            design,
            f"{threshold:.0%}",
            *(_share(outcomes, wanted) for wanted in Outcome),
        )
        for (busy, slower, design, threshold), outcomes in sorted(groups.items(), key=lambda item: item[0])
    ]
    print_table(("new program", "measured", "threshold", *(f"{one.value} %" for one in Outcome)), rows)


def _share(outcomes: Sequence[Outcome], wanted: Outcome) -> str:
    found = Share(outcomes.count(wanted), len(outcomes))
    return f"{found.hits}/{found.of}: {found.with_interval}"


def _judged(bundles: Sequence[Bundle]) -> Iterator[Judged]:
    """Every bundle by itself, and every one with its successor, where the new program is slower by as much."""
    measured = [
        Measured(_slower(bundle), _busy(bundle), bundle_side(bundle, "old", None), bundle_side(bundle, "new", None))
        for bundle in bundles
    ]
    for one in measured:
        yield from _outcomes(one, TURNS)
    for before, after in itertools.pairwise(measured):
        yield from _outcomes(after._replace(old=before.old, busy=before.busy or after.busy), APART)


def _slower(bundle: Bundle) -> float:
    return int(bundle.path.name.rpartition("-")[2]) / LAYERS


def _busy(bundle: Bundle) -> bool:
    told = [repetition.before for repetition in bundle.manifest.repetitions]
    loads = [one.load_average / (one.usable_cpus or 1) for one in told if one.load_average is not None]
    return bool(loads) and statistics.median(loads) > BUSY


def _outcomes(one: Measured, design: str) -> Iterator[Judged]:
    try:
        shown = end_to_end_slowdown(comparison_of(one.old, one.new).end_to_end)
    except OpscopeError as error:
        print(f"{one.new.path}: {error}", file=sys.stderr)
        return
    for threshold in THRESHOLDS:
        yield Judged(one.busy, one.slower, design, threshold, judge(shown, threshold)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
