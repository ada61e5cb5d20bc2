"""How often `opscope check` of two programs is wrong and what it sees: real runs on this machine, A/A and planted.

A program is a chain of equal layers; a slower one has one, two or four layers more than twenty, so that it is slower by
5, 10 or 20 %. In A/A checks both sides are the same program. Every check is what users run: two programs in one bundle,
interleaved. Beside it stand bundles made one after the other: of each two neighbours, the new side of the one is judged
by the old side of the other. Checks on a quiet machine and on one where others compete for its CPUs are told apart by
the load average that each repetition notes. One check of each kind takes half a minute; ``--full`` takes 14 minutes.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.shares import Share, print_table
from opscope.analysis.gate.decision import Outcome
from opscope.analysis.gate.gate import Thresholds, gate
from opscope.api import Settings, check_programs
from opscope.bundle.bundle import Bundle
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
BUSY_LOAD = 1.25
"""Load average for each CPU, our own process included, above which a machine is busy; the median over repetitions."""
TURNS, APART = "in turns", "one after the other"
_SETTINGS = Settings(target="native", rounds=6, runs=20, ceilings=False)
_OUTCOMES = (Outcome.PASSED, Outcome.REGRESSION, Outcome.INCONCLUSIVE, Outcome.UNTRUSTED)
_FULL_SECONDS = 14 * 60
_MOST_FALSE = 0.05
"""The largest share of checks of equal programs, measured in turns, that may end as a regression."""


class Measured(NamedTuple):
    """One bundle: how much slower its new program was made, as a fraction; whether others competed; its two sides."""

    slower: float
    is_busy: bool
    old: Side
    new: Side


def run(*, full: bool) -> bool:
    """Measure, judge, and print the table; return whether equal programs are called slower in 5 % of checks at most."""
    with tempfile.TemporaryDirectory() as work:
        measured = [_read_bundle(path, more) for path, more in _check_programs(Path(work), full=full)]
        print(f"{len(measured)} checks of {_SETTINGS.rounds} rounds, {_SETTINGS.runs} measured inferences a process\n")
        outcomes: dict[tuple[bool, float, str, float], list[Outcome]] = defaultdict(list)
        for one in measured:
            _judge(one, TURNS, outcomes)
        for before, after in itertools.pairwise(measured):
            is_busy = before.is_busy or after.is_busy
            _judge(after._replace(old=before.old, is_busy=is_busy), APART, outcomes)
    rows = [
        (
            f"{'busy' if is_busy else 'quiet'}, slower by {slower:.0%}",
            design,
            f"{threshold:.0%}",
            *(_share_text(found, outcome) for outcome in _OUTCOMES),
        )
        for (is_busy, slower, design, threshold), found in sorted(outcomes.items(), key=lambda item: item[0])
    ]
    print_table(("new program", "measured", "threshold", *(f"{outcome.value} %" for outcome in _OUTCOMES)), rows)
    equal = [found for (_, slower, design, _), found in outcomes.items() if not slower and design == TURNS]
    false = [outcome is Outcome.REGRESSION for outcome in itertools.chain(*equal)]
    return bool(false) and Share(sum(false), len(false)).interval[0] <= _MOST_FALSE


def _check_programs(home: Path, *, full: bool) -> Iterator[tuple[Path, int]]:
    """Check each kind in its turn; yield the bundles and how many layers more their new programs have."""
    programs = {more: _export_chain(more, home) for more in dict.fromkeys(PLANTED)}
    same = Path(shutil.copy(programs[0], home / "same.pte"))
    end = time.monotonic() + _FULL_SECONDS
    for number, more in enumerate(itertools.cycle(PLANTED) if full else programs):
        if time.monotonic() > end:
            return
        bundle = home / f"bundle-{number:04}"
        check_programs(programs[more] if more else same, programs[0], settings=_SETTINGS, out=bundle)
        yield bundle, more


def _export_chain(more: int, home: Path) -> Path:
    """Export a chain with so many layers more."""
    import torch  # noqa: PLC0415 - what judges verdicts needs no torch

    torch.manual_seed(0)
    layers: list[Any] = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS + more)]
    directory = home / f"plus-{more}"
    directory.mkdir()
    return export_live(torch.nn.Sequential(*layers), torch.randn(ROWS, WIDTH), "fp32", directory)


def _read_bundle(path: Path, more: int) -> Measured:
    bundle = Bundle.open(path)
    states = [repetition.before for repetition in bundle.manifest.repetitions]
    loads = [state.load_average / (state.usable_cpus or 1) for state in states if state.load_average is not None]
    is_busy = bool(loads) and statistics.median(loads) > BUSY_LOAD
    return Measured(more / LAYERS, is_busy, bundle_side(bundle, "old", None), bundle_side(bundle, "new", None))


def _judge(one: Measured, design: str, outcomes: dict[tuple[bool, float, str, float], list[Outcome]]) -> None:
    """Add what a gate says at each threshold; a comparison that is refused is told and left out."""
    try:
        comparison = comparison_of(one.old, one.new)
    except OpscopeError as error:
        print(f"{one.new.path}: {error}", file=sys.stderr)
        return
    for threshold in THRESHOLDS:
        outcomes[one.is_busy, one.slower, design, threshold].append(
            gate(comparison, thresholds=Thresholds(threshold)).outcome
        )


def _share_text(outcomes: Sequence[Outcome], outcome: Outcome) -> str:
    share = Share(outcomes.count(outcome), len(outcomes))
    return f"{share.hits}/{share.of}: {share.with_interval}"
