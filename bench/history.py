"""How often a history tells of a change that is none, and how soon it finds one that is.

Simulated series have a known truth. Real ones are experiments of identical variants that were run on one machine for
hours (``bench/data/identical_variants.npz``): each experiment is taken for a run, its latency for the run's figure.
With ``OTAVA_PYTHON``, the Python of an environment that has `apache-otava`, the same series are given to Apache Otava.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opscope.analysis.gate.gate import DEFAULT_THRESHOLD
from opscope.core.stats.effect import FEWEST, Verdict, predict
from opscope.core.stats.segments import firm_segments, segments
from opscope.fleet.analysis.history_gate import current_level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opscope.core.stats.segments import SeriesSegment

Floats: TypeAlias = NDArray[np.float64]
DATA = Path(__file__).parent / "data" / "identical_variants.npz"
_SERIES = 2_000
_LENGTHS = (12, 20, 50, 100)
_SCATTER = 0.02
_STEPS = (0.03, 0.05, 0.1, 0.2)
_NEAR = 2
_NIGHTS = 30
_NIGHTLY = 500
_SCATTERS = (0.003, 0.01, 0.02)


def normal(generator: np.random.Generator, count: int) -> Floats:
    """Independent scatter of 2 %."""
    return generator.normal(0, _SCATTER, count)


def heavy(generator: np.random.Generator, count: int) -> Floats:
    """Student's t with two degrees of freedom: now and then a run is far off."""
    return generator.standard_t(2, count) * _SCATTER


def wandering(generator: np.random.Generator, count: int) -> Floats:
    """An autoregressive process with a correlation of 0.5."""
    values = generator.normal(0, _SCATTER, count)
    for place in range(1, count):
        values[place] = 0.5 * values[place - 1] + math.sqrt(0.75) * values[place]
    return values


SHAPES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": normal,
    "heavy tails": heavy,
    "autocorrelated": wandering,
}


def main() -> None:
    """Print the tables."""
    _nightly()
    print(f"\nlevels of a gate: series with a change that is none, of {_SERIES} of each sort")
    print(f"{'scatter of 2 %':<20}" + "".join(f"{f'{count} runs':>12}" for count in _LENGTHS))
    for name, shape in SHAPES.items():
        shares = [_changed(shape, count) for count in _LENGTHS]
        print(f"{name:<20}" + "".join(f"{share:>12.1%}" for share in shares))
    print(f"\nsteps that are found within {_NEAR} runs of their place, 15 runs before and behind, of {_SERIES // 4}")
    print(f"{'scatter of 2 %':<20}" + "".join(f"{f'+{step:.0%}':>12}" for step in _STEPS))
    for name, shape in SHAPES.items():
        print(f"{name:<20}" + "".join(f"{_found(shape, step):>12.1%}" for step in _STEPS))
    print(f"\nnext runs called slower, and by more than {DEFAULT_THRESHOLD:.0%} (which a gate fails), of {_SERIES}")
    print(f"{'scatter of 2 %':<20}" + "".join(f"{f'{count} before':>18}" for count in (FEWEST, 10, 30)))
    for name, shape in SHAPES.items():
        pairs = [_gated(shape, count) for count in (FEWEST, 10, 30)]
        print(f"{name:<20}" + "".join(f"{f'{slower:.1%}, {failed:.1%}':>18}" for slower, failed in pairs))
    if DATA.exists():
        _real()


def _nightly() -> None:
    """Shares of histories of thirty nights in which `opscope history` tells a change, beside Apache Otava's."""
    print(f"histories of {_NIGHTS} nights with a change, of {_NIGHTLY}; scatter of the nights: 0.3, 1 and 2 %")
    made = {f"{name}, {noise}, {scatter}": _nights(name, noise, scatter) for name, noise, scatter in _cells()}
    otava = _otava(made)
    print(f"{'':<34}{'opscope':>24}{'Apache Otava':>24}")
    for name in _COURSES:
        for noise in SHAPES:
            keys = [f"{name}, {noise}, {scatter}" for scatter in _SCATTERS]
            ours = [sum(_changes(segments(row)) for row in made[key]) / _NIGHTLY for key in keys]
            theirs = [otava.get(key) for key in keys]
            shown = "".join(f"{share:>8.1%}" for share in ours)
            beside = "".join("     n/a" if share is None else f"{share:>8.1%}" for share in theirs)
            print(f"{f'{name}, {noise}':<34}{shown}{beside}")


def _drift(size: float) -> Floats:
    return math.log1p(size) * np.arange(_NIGHTS) / (_NIGHTS - 1)


def _step(size: float, nights: int) -> Floats:
    return math.log1p(size) * (np.arange(_NIGHTS) >= _NIGHTS - nights)


_COURSES: dict[str, Floats] = {
    "no change": np.zeros(_NIGHTS),
    "drift of 6 %": _drift(0.06),
    "drift of 10 %": _drift(0.1),
    "drift of 20 %": _drift(0.2),
    "step of 3 %": _step(0.03, 15),
    "step of 5 %": _step(0.05, 15),
    "step of 3 % six nights ago": _step(0.03, 6),
    "step of 5 % six nights ago": _step(0.05, 6),
}


def _cells() -> Iterator[tuple[str, str, float]]:
    for name in _COURSES:
        for noise in SHAPES:
            for scatter in _SCATTERS:
                yield name, noise, scatter


def _nights(name: str, noise: str, scatter: float) -> Floats:
    """Series, one a row; the same for both tools."""
    generator = np.random.default_rng(list(f"{name}{noise}{scatter}".encode()))
    rows = [_COURSES[name] + SHAPES[noise](generator, _NIGHTS) * scatter / _SCATTER for _ in range(_NIGHTLY)]
    return 100 * np.exp(np.array(rows))


def _changes(found: Sequence[SeriesSegment]) -> bool:
    return len(found) > 1 or found[0].drifts


def _otava(made: dict[str, Floats]) -> dict[str, float]:
    python = os.environ.get("OTAVA_PYTHON")
    if not python:
        return {}
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "series.npz"
        np.savez(path, **made)
        script = Path(__file__).with_name("otava_changes.py")
        done = subprocess.run([python, str(script), str(path)], check=True, capture_output=True, text=True)
    return {name: float(share) for name, share in (line.split("\t") for line in done.stdout.splitlines())}


def _real() -> None:
    print("\nreal runs of identical variants")
    print(
        f"{'condition':<36}{'runs':>6}{'scatter':>9}{'series':>8}{'changed':>9}{'gated':>8}{'slower':>8}{'failed':>8}"
    )
    for name, values in _real_series():
        parts = [values[first : first + 30] for first in range(0, len(values) - 29, 30)] or [values]
        changed = sum(_changes(firm_segments(np.exp(part))) for part in parts)
        calls = [(values[max(0, n - 30) : n], values[n]) for n in range(FEWEST, len(values))]
        judged = [_judged(before, value) for before, value in calls]
        slower, failed = (sum(column) / len(judged) for column in zip(*judged, strict=True))
        scatter = float(values.std(ddof=1))
        row = f"{name:<36}{len(values):>6}{scatter:>9.1%}{len(parts):>8}{changed:>9}{len(judged):>8}"
        print(f"{row}{slower:>8.1%}{failed:>8.1%}")


def _real_series() -> Iterator[tuple[str, Floats]]:
    """Logarithms of the latencies of each side of the experiments of every condition, in their order."""
    with np.load(DATA) as file:
        for key in (name for name in file.files if name.endswith("/units")):
            planes = np.ascontiguousarray(np.moveaxis(file[key], 0, -1))
            durations = planes.view("<u4")[..., 0].astype(np.float64)
            levels = np.log(np.median(durations, axis=3)).mean(axis=2)
            for side in range(levels.shape[1]):
                yield f"{key.removesuffix('/units')}, side {side + 1}", levels[:, side]


def _changed(shape: Callable[[np.random.Generator, int], Floats], count: int) -> float:
    generator = np.random.default_rng(count)
    return sum(_changes(firm_segments(np.exp(shape(generator, count)))) for _ in range(_SERIES)) / _SERIES


def _found(shape: Callable[[np.random.Generator, int], Floats], step: float) -> float:
    generator, side, tries = np.random.default_rng(1), 15, _SERIES // 4
    hits = 0
    for _ in range(tries):
        values = shape(generator, 2 * side)
        values[side:] += math.log1p(step)
        hits += any(abs(one.first - side) <= _NEAR for one in firm_segments(np.exp(values))[1:])
    return hits / tries


def _gated(shape: Callable[[np.random.Generator, int], Floats], before: int) -> tuple[float, float]:
    generator = np.random.default_rng(before)
    judged = []
    for _ in range(_SERIES):
        values = shape(generator, before + 1)
        judged.append(_judged(values[:-1], values[-1]))
    return sum(slower for slower, _ in judged) / _SERIES, sum(failed for _, failed in judged) / _SERIES


def _judged(before: Floats, value: float) -> tuple[bool, bool]:
    """Whether the next run is called slower, and whether a gate would fail it."""
    first = current_level(np.exp(before))
    found = predict(before[first:], value)
    slower = found.verdict() is Verdict.SLOWER
    return slower, slower and math.expm1(found.excess) > DEFAULT_THRESHOLD


if __name__ == "__main__":
    main()
