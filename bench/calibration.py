"""How often verdicts are wrong, and what they can see: on simulated noise and on real runs of identical variants.

The tables are those of docs/design/verdict.md, with small sampling errors where ``--full`` is given. Identical
variants must not be called different significantly more often than in 5 % of comparisons, where verdicts promise that.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.identical import read_runs
from bench.noise import NOISES
from bench.shares import Share, count_true, print_table, sum_shares
from bench.simulated import UNPAIRED, Cell, Power, coverage, false_calls, operator_calls, power
from bench.verdicts import call_signs
from opscope.core.stats.effect import ALPHA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.verdicts import Floats

_ROUNDS = (3, 4, 5, 6, 10, 20, UNPAIRED)
_COVERED_ROUNDS = 10
_CHANGES = (0.01, 0.02, 0.05, 0.1)
_BETWEEN = (0.005, 0.02, 0.05)
_GAPS = (1, 30)
_GATE_THRESHOLD = 0.03


class Size(NamedTuple):
    """How much is simulated.

    Attributes:
        comparisons: of identical variants, for each noise and number of rounds.
        moving: of these, where noise moves with time and sides are not in turns, which no verdict promises.
        covered: intervals that are counted for each noise.
        powers: experiments for each noise, number of rounds and change.
        rounds: at which power is computed.
        operators: experiments with 300 operators.
    """

    comparisons: int
    moving: int
    covered: int
    powers: int
    rounds: tuple[int, ...]
    operators: int


_QUICK = Size(1_000, 50, 100, 50, (6, 10), 40)
_FULL = Size(4_000, 500, 1_000, 500, (6, 10, 20, 40), 400)


def run(*, full: bool) -> bool:
    """Print the tables; return whether identical variants are called different as seldom as is promised."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process for each CPU computes cells of its own
    size = _FULL if full else _QUICK
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        kept = simulate_identical(pool, size)
        simulate_slower(pool, size)
        simulate_operators(pool, size)
    return judge_real_runs() and kept


def simulate_identical(pool: ProcessPoolExecutor, size: Size) -> bool:
    """Print how often identical variants are called different; return whether the promise is kept."""
    cells = {}
    for number, noise in enumerate(NOISES):
        for rounds in _ROUNDS:
            count = size.moving if rounds == UNPAIRED and noise.is_moving else size.comparisons
            cells[number, rounds] = pool.submit(false_calls, Cell(number, rounds, count))
    covered = [pool.submit(coverage, Cell(number, _COVERED_ROUNDS, size.covered)) for number in range(len(NOISES))]
    shares = {place: cell.result() for place, cell in cells.items()}
    print(f"## Identical variants, {size.comparisons:,} comparisons each: % called different (95 % interval)\n")
    designs = {rounds: f"{rounds} rounds" for rounds in _ROUNDS} | {UNPAIRED: "10 + 10, one side after the other"}
    rows = []
    for number, noise in enumerate(NOISES):
        row = [shares[number, rounds].with_interval for rounds in _ROUNDS]
        rows.append([noise.name, *row, covered[number].result().with_interval])
    print_table(["noise", *designs.values(), f"intervals that hold 1, {_COVERED_ROUNDS} rounds"], rows)
    promised = {
        place: share for place, share in shares.items() if place[1] != UNPAIRED or not NOISES[place[0]].is_moving
    }
    above = [place for place, share in promised.items() if share.interval[0] > ALPHA]
    # Bonferroni: by more than chance can do in so many cells.
    broken = [place for place in above if promised[place].bounds(1 - 0.05 / len(promised))[0] > ALPHA]
    print(f"{len(above)} of {len(promised)} cells with a 95 % interval above {ALPHA:.0%}, {len(broken)} beyond chance:")
    for place in above:
        print(f"  {NOISES[place[0]].name}, {designs[place[1]]}: {promised[place].with_interval}")
    print()
    return not broken


def simulate_slower(pool: ProcessPoolExecutor, size: Size) -> None:
    """Print how often slower candidates are called slower, and what experiments say that they could show."""
    places = [(between, rounds) for between in _BETWEEN for rounds in size.rounds]
    cells = {place: [pool.submit(power, *place, change, size.powers) for change in _CHANGES] for place in places}
    powers: dict[tuple[float, int], list[Power]] = {
        place: [cell.result() for cell in row] for place, row in cells.items()
    }
    stated = {place: pool.submit(power, *place, row[0].detectable, size.powers) for place, row in powers.items()}
    print(f"## Candidates that are slower, {size.powers:,} simulated experiments each: % called slower\n")
    rows = []
    for (between, rounds), row in powers.items():
        rows.append(
            [
                f"{between * 100:g} %, {rounds} rounds",
                *(cell.right.text for cell in row),
                sum_shares(cell.wrong for cell in row).text,
                sum_shares(cell.covered for cell in row).with_interval,
                f"{row[0].detectable * 100:.1f} %",
                stated[between, rounds].result().right.with_interval,
            ]
        )
    head = ["noise", *(f"{change:.0%}" for change in _CHANGES), "called faster", "intervals that hold the ratio"]
    print_table([*head, "smallest detectable", "called at that size"], rows)


def simulate_operators(pool: ProcessPoolExecutor, size: Size) -> None:
    """Print verdicts on 300 operators at once."""
    cells = {rounds: pool.submit(operator_calls, rounds, size.operators) for rounds in (10, 20, 40)}
    print(f"## 300 operators, {size.operators:,} simulated experiments each, in %\n")
    rows = []
    for rounds, future in cells.items():
        cell = future.result()
        figures = (cell.uncorrected.with_interval, cell.alarms.with_interval, f"{cell.false:.1%}", cell.found.text)
        rows.append([str(rounds), *figures])
    print_table(
        ["rounds", "any called, uncorrected", "any called", "false of those called", "changed ones called"], rows
    )


def judge_real_runs() -> bool:
    """Print verdicts on real experiments of identical variants; return whether they are called different too often."""
    rows, in_turns, later = [], [], {gap: list[tuple[Share, Share]]() for gap in _GAPS}
    for name, durations in read_runs().items():
        one, other = durations[:, 0], durations[:, 1]
        called = count_true(call_signs(one, other, paired=True) != 0)
        slower = [count_true(call_signs(one, other * (1 + change), paired=True) > 0) for change in _CHANGES]
        in_turns.append([called, *slower])
        rows.append([name, str(len(one)), called.with_interval, *(share.text for share in slower)])
        for gap in _GAPS:
            later[gap].append(_judge_apart(one[:-gap], other[gap:]))
    every = [sum_shares(column) for column in zip(*in_turns, strict=True)]
    rows.append(["all", str(every[0].of), every[0].with_interval, *(share.text for share in every[1:])])
    print("## Real runs in turns, in %: identical, and with the candidate's durations multiplied\n")
    print_table(["model", "experiments", "called different", *(f"slower by {change:.0%}" for change in _CHANGES)], rows)
    print("## Real runs one experiment after the other, in %\n")
    apart = {gap: [sum_shares(column) for column in zip(*shares, strict=True)] for gap, shares in later.items()}
    print_table(
        ["experiment", "comparisons", "called different", f"stopped by a gate at {_GATE_THRESHOLD:.0%}"],
        [[f"{gap} later", str(row[0].of), *(share.with_interval for share in row)] for gap, row in apart.items()],
    )
    return every[0].interval[0] <= ALPHA


def _judge_apart(one: Floats, other: Floats) -> tuple[Share, Share]:
    """Return the share of pairs called different, and of those called slower by more than the gate's threshold."""
    signs = call_signs(one, other, paired=False)
    levels: Sequence[Floats] = [np.log(np.median(side, axis=2)).mean(axis=1) for side in (one, other)]
    slowdown = np.expm1(levels[1] - levels[0])
    return count_true(signs != 0), count_true((signs > 0) & (slowdown > _GATE_THRESHOLD))
