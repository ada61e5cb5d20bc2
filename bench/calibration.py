"""How often verdicts are wrong, and what they can see: on simulated noise and on real runs of identical variants.

    python bench/calibration.py                      a quick version, and the real runs that are kept in bench/data
    python bench/calibration.py --full [--pictures DIRECTORY]
    python bench/calibration.py --measure EXPERIMENTS [--keep]      new real runs on this machine; of five conditions

The tables are those of docs/concepts/verdicts.md. Its exit code is 1 when identical variants are called different
significantly more often than in 5 % of comparisons, where verdicts promise that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process for each CPU computes cells of its own

from calibration_methods import BESIDE
from calibration_noise import NOISES
from calibration_pictures import draw_false_calls, draw_methods, draw_power
from calibration_real import CHANGES, apart, in_rounds, made_slower, spread
from calibration_runs import Runs, load, measure, save
from calibration_shares import Share, print_table, total
from calibration_simulated import (
    GREAT_CHANGES,
    LEVEL,
    UNPAIRED,
    Cell,
    Operators,
    Power,
    Seen,
    coverage,
    false_calls,
    operators,
    power,
    seen,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

_DATA = Path(__file__).parent / "data" / "identical_variants.npz"
_BESIDE = ("means", "one process each", "U test", "t-test")
_ROUNDS = (3, 4, 5, 6, 10, 20, UNPAIRED)
_SHOWN = 10
"""Rounds at which the other methods stand beside, and intervals are counted."""
_GAPS = (1, 30)


class Size(NamedTuple):
    """How much is simulated.

    Attributes:
        comparisons: of identical variants, for each noise and number of rounds.
        moving: likewise where noise moves with time and sides are not in turns, which no verdict promises.
        covered: intervals that are counted for each noise.
        powers: experiments for each noise, number of rounds and change.
        rounds: at which power is computed.
        operators: experiments with 300 operators.
        compared: experiments for each noise and change where methods stand side by side.
    """

    comparisons: int
    moving: int
    covered: int
    powers: int
    rounds: tuple[int, ...]
    operators: int
    compared: int


_QUICK = Size(1_000, 50, 100, 50, (6, 10), 40, 200)
_FULL = Size(4_000, 500, 1_000, 500, (6, 10, 20, 40), 400, 1_000)
_COMPARED = (6, 10)
_BETWEEN = (0.005, 0.02, 0.05)


def main(arguments: Sequence[str]) -> int:
    """Print the tables; 1 when a promise is broken."""
    asked = _asked(arguments)
    size = _FULL if asked.full else _QUICK
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        shares, broken = identical(pool, size)
        beside = compared(pool, size)
        powers = changed(pool, size)
        many_operators(pool, size)
    runs = load(_DATA) if asked.measure is None else measure(asked.measure)
    called, failed = real(runs)
    if asked.keep:
        _DATA.parent.mkdir(exist_ok=True)
        save(runs, _DATA)
    if asked.pictures:
        draw_false_calls(shares | called, LEVEL, asked.pictures / "calibration.svg")
        draw_power(powers, asked.pictures / "power.svg")
        draw_methods(beside, asked.pictures / "power-of-methods.svg")
    return int(broken or failed)


def identical(pool: ProcessPoolExecutor, size: Size) -> tuple[dict[str, dict[str, Share]], bool]:
    """Simulated comparisons of identical variants: shares by noise and method, and whether a promise is broken."""
    futures = {
        (number, rounds): pool.submit(false_calls, _cell(number, rounds, size))
        for number in range(len(NOISES))
        for rounds in _ROUNDS
    }
    covered = [pool.submit(coverage, Cell(number, _SHOWN, size.covered, beside=False)) for number in range(len(NOISES))]
    found = {place: future.result() for place, future in futures.items()}
    print(
        f"## Identical variants, {size.comparisons:,} simulated comparisons each: % called different (95 % interval)\n"
    )
    rows = [
        [noise.name, *(found[number, rounds]["opscope"].with_interval for rounds in _ROUNDS)]
        for number, noise in enumerate(NOISES)
    ]
    print_table(["noise", *(_design(rounds) for rounds in _ROUNDS)], rows)
    print(f"## Other methods on the same data, {_SHOWN} rounds: % called different\n")
    print_table(
        ["noise", "opscope", *_BESIDE, "intervals that hold 1"],
        (
            [
                noise.name,
                *(found[number, _SHOWN][name].text for name in ("opscope", *_BESIDE)),
                covered[number].result().with_interval,
            ]
            for number, noise in enumerate(NOISES)
        ),
    )
    promised = {
        place: shares["opscope"]
        for place, shares in found.items()
        if place[1] != UNPAIRED or not NOISES[place[0]].moving
    }
    shown = {noise.name: found[number, _SHOWN] for number, noise in enumerate(NOISES)}
    return shown, _report(promised)


def _cell(number: int, rounds: int, size: Size) -> Cell:
    moving = rounds == UNPAIRED and NOISES[number].moving
    return Cell(number, rounds, size.moving if moving else size.comparisons, beside=rounds == _SHOWN)


def _design(rounds: int) -> str:
    return "10 + 10, one side after the other" if rounds == UNPAIRED else f"{rounds} rounds"


def _report(promised: dict[tuple[int, int], Share]) -> bool:
    """Say which cells are above 5 %, and whether one is by more than chance can do in so many of them (Bonferroni)."""
    names = {place: f"{NOISES[place[0]].name}, {_design(place[1])}" for place in promised}
    above = [place for place, one in promised.items() if one.interval[0] > LEVEL]
    broken = [place for place in above if promised[place].bounds(1 - 0.05 / len(promised))[0] > LEVEL]
    print(f"{len(above)} of {len(promised)} cells with a 95 % interval above {LEVEL:.0%}, {len(broken)} beyond chance:")
    print("".join(f"  {names[place]}: {promised[place].with_interval}\n" for place in above))
    return bool(broken)


def compared(pool: ProcessPoolExecutor, size: Size) -> dict[tuple[str, int], Seen]:
    """The product beside other methods that take processes for the unit, under every noise."""
    cells = [(number, rounds) for rounds in _COMPARED for number in range(len(NOISES))]
    futures = {cell: pool.submit(seen, *cell, size.compared) for cell in cells}
    found = {(NOISES[number].name, rounds): future.result() for (number, rounds), future in futures.items()}
    for rounds in _COMPARED:
        own = {name: one for (name, count), one in found.items() if count == rounds}
        print(f"## {rounds} rounds: identical variants called different, intervals that hold the ratio, in %\n")
        print_table(
            ["noise", "opscope", *BESIDE, "intervals"],
            (
                [name, *(one.called[method].text for method in ("opscope", *BESIDE)), one.covered.with_interval]
                for name, one in own.items()
            ),
        )
        print(
            f"## {rounds} rounds: slower candidates called slower, in %: opscope, and the best of the other methods\n"
        )
        print_table(
            [
                "noise",
                *(f"+{change:.0%}, {column}" for change in GREAT_CHANGES for column in ("opscope", "best other")),
            ],
            (
                [name, *(text for change in GREAT_CHANGES for text in _beside_best(one, change))]
                for name, one in own.items()
            ),
        )
    return found


def _beside_best(one: Seen, change: float) -> tuple[str, str]:
    shares = one.seen[change]
    best = max(BESIDE, key=lambda name: shares[name].value)
    return shares["opscope"].text, f"{shares[best].text} ({best})"


def changed(pool: ProcessPoolExecutor, size: Size) -> dict[tuple[float, int, float], Power]:
    """Power for changes of several sizes, by noise, rounds and change."""
    places = [(between, rounds, change) for between in _BETWEEN for rounds in size.rounds for change in CHANGES]
    futures = {place: pool.submit(power, *place, size.powers) for place in places}
    found = {place: future.result() for place, future in futures.items()}
    stated = {
        place[:2]: pool.submit(power, *place[:2], cell.detectable, size.powers)
        for place, cell in found.items()
        if place[2] == CHANGES[0]
    }
    print(f"## Candidates that are slower, {size.powers:,} simulated experiments each: % called slower\n")
    head = ["noise", *(f"{change:.0%}" for change in CHANGES), "called faster", "intervals that hold the ratio"]
    head += ["smallest detectable", "called at that size"]
    rows = [_power_row(found, place, future) for place, future in stated.items()]
    print_table(head, rows)
    return found


def _power_row(
    found: dict[tuple[float, int, float], Power], place: tuple[float, int], stated: Future[Power]
) -> list[str]:
    cells = [found[place[0], place[1], change] for change in CHANGES]
    return [
        f"{place[0] * 100:g} %, {place[1]} rounds",
        *(cell.right.text for cell in cells),
        total(cell.wrong for cell in cells).text,
        total(cell.covered for cell in cells).with_interval,
        f"{cells[0].detectable * 100:.1f} %",
        stated.result().right.with_interval,
    ]


def many_operators(pool: ProcessPoolExecutor, size: Size) -> None:
    """Verdicts on 300 operators at once."""
    futures: dict[int, Future[Operators]] = {r: pool.submit(operators, r, size.operators) for r in (10, 20, 40)}
    print(f"## 300 operators, {size.operators:,} simulated experiments each, in %\n")
    print_table(
        ["rounds", "any called, uncorrected", "any called", "false of those called", "changed ones called"],
        (
            [
                str(rounds),
                cell.uncorrected.with_interval,
                cell.alarms.with_interval,
                f"{cell.false:.1%}",
                cell.found.text,
            ]
            for rounds, cell in ((rounds, future.result()) for rounds, future in futures.items())
        ),
    )


def real(runs: dict[str, Runs]) -> tuple[dict[str, dict[str, Share]], bool]:
    """Real experiments: shares of all of them by method, and whether identical variants are called too often."""
    found = {name: in_rounds(own) for name, own in runs.items()}
    print("## Identical variants, real runs in turns: % called different\n")
    rows = [
        [
            name,
            str(len(runs[name].durations)),
            f"{min(runs[name].load):.1f} to {max(runs[name].load):.1f}",
            " / ".join(f"{value * 100:.1f}" for value in spread(runs[name])),
            called.shares["opscope"].with_interval,
            *(called.shares[method].text for method in _BESIDE),
        ]
        for name, called in found.items()
    ]
    everything = {name: total(called.shares[name] for called in found.values()) for name in ("opscope", *_BESIDE)}
    ours = everything["opscope"]
    rows.append(["all", str(ours.of), "", "", ours.with_interval, *(everything[name].text for name in _BESIDE)])
    print_table(["model", "experiments", "load", "sd / robust sd, %", "opscope", *_BESIDE], rows)
    _one_after_other(runs)
    _made_slower(runs)
    shown = {f"real runs on this machine, {ours.of} experiments": everything}
    return shown, ours.interval[0] > LEVEL


def _one_after_other(runs: dict[str, Runs]) -> None:
    print("## Likewise between experiments, one after the other\n")
    rows = []
    for gap in _GAPS:
        cells = [apart(own, gap) for own in runs.values() if len(own.durations) > gap]
        if cells:
            methods = [total(cell.shares[name] for cell in cells) for name in ("opscope", *_BESIDE[:-1])]
            regressions = total(cell.regressions for cell in cells)
            shown = [methods[0].with_interval, regressions.with_interval, *(one.text for one in methods[1:])]
            rows.append([f"{gap} later", str(methods[0].of), *shown])
    print_table(["experiment", "comparisons", "opscope", "stopped by the gate at 3 %", *_BESIDE[:-1]], rows)


def _made_slower(runs: dict[str, Runs]) -> None:
    print("## Real runs in turns, durations of the candidate multiplied: % called slower\n")
    cells = {name: [made_slower(own, change) for change in CHANGES] for name, own in runs.items()}
    rows = [[name, *(cell.right.text for cell in row)] for name, row in cells.items()]
    columns = list(zip(*cells.values(), strict=True))
    rows.append(["all", *(total(cell.right for cell in column).text for column in columns)])
    rows.append(["all, called faster", *(total(cell.wrong for cell in column).text for column in columns)])
    rows.append(["all, t-test", *(total(cell.tested for cell in column).text for column in columns)])
    print_table(["model", *(f"{change:.0%}" for change in CHANGES)], rows)


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="everything, with small sampling errors")
    parser.add_argument("--measure", type=int, metavar="EXPERIMENTS", help="new real runs of each condition")
    parser.add_argument("--keep", action="store_true", help="keep them in bench/data")
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="where to draw")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
