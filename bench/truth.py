"""What opscope says beside what is known to be true, on this machine: ``python -m bench truth``.

- Advice that was followed: a model with a flaw, and the same model without it, in one interleaved run. What a finding
  on the one said that it would save stands beside what the other really saved.
- Counts and sums: multiplications against PyTorch's own counter, and rows of the split against the latency above them.
- Times of operators against a clock inside of the process: ``bench.scaling``.

Planted changes and equal programs are the benchmark ``check``. The figures of a run are in docs/design/truth.md.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.scaling import compare_times
from bench.shares import print_table
from opscope.api import Settings, check_programs
from opscope.bundle.bundle import Bundle
from opscope.measurements.analyses import analysis_of, comparison_of
from opscope.measurements.sides import bundle_side
from opscope.runtimes.executorch.export.checked import export_live

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis

_MICROSECOND = 1e3
_MOST_OFF = 1e-9
"""How far the rows of a split may be from the latency, relative."""


class Pair(NamedTuple):
    """A model with a flaw and without.

    Attributes:
        name: for the table.
        rule: whose finding predicts what the flaw costs.
        flawed: makes the one model and its example input.
        mended: makes the other.
    """

    name: str
    rule: str
    flawed: Callable[[], tuple[Any, Any]]
    mended: Callable[[], tuple[Any, Any]]


def run(*, full: bool) -> bool:
    """Print the tables; return whether all sums and counts are right."""
    settings = Settings(target="native", rounds=12 if full else 6, runs=20, ceilings=False)
    with tempfile.TemporaryDirectory() as work:
        bundles = {pair: measure_pair(pair, Path(work) / str(number), settings) for number, pair in enumerate(pairs())}
        print_advice(bundles)
        are_right = print_sums(bundles)
    print("## Times of operators against a clock inside of the process\n")
    compare_times()
    return are_right


def pairs() -> list[Pair]:
    """Return every pair that is examined."""
    between: dict[str, Callable[[], Any]] = {
        "torch.roll between products": _apply(lambda x: x.roll(1, 1)),
        "torch.flip between products": _apply(lambda x: x.flip(1)),
        "LayerNorm between products": lambda: torch.nn.LayerNorm(256),
    }
    found = [Pair(name, "portable_operators", partial(_chain, one), _chain) for name, one in between.items()]
    moved = _apply(lambda x: x.view(128, 16, 16).transpose(1, 2).reshape(128, 256))
    return [*found, Pair("transposed between products", "data_movement", partial(_chain, moved), _chain)]


def _chain(*between: Callable[[], Any]) -> tuple[Any, Any]:
    """Make matrix products with something between each two of them, and an input."""
    torch.manual_seed(0)
    layers: list[Any] = []
    for _ in range(6):
        layers += [torch.nn.Linear(256, 256), *(make() for make in between)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 256)), torch.randn(128, 256)


def _apply(function: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a module type that applies a function."""

    class Applied(torch.nn.Module):
        def forward(self, x: Any) -> Any:  # noqa: ANN401 - a tensor of a library without types here
            return function(x)

    return Applied


def measure_pair(pair: Pair, place: Path, settings: Settings) -> Bundle:
    """Export both models of a pair and measure them in one interleaved run."""
    programs = []
    for name, make in (("mended", pair.mended), ("flawed", pair.flawed)):
        directory = place / name
        directory.mkdir(parents=True)
        programs.append(export_live(*make(), "fp32", directory))
    check_programs(programs[0], programs[1], settings=settings, out=place / "bundle")
    return Bundle.open(place / "bundle")


def print_advice(bundles: dict[Pair, Bundle]) -> None:
    """Print the savings that findings predict, and those that were measured."""
    rows = []
    for pair, bundle in bundles.items():
        old, new = (bundle_side(bundle, name, None) for name in ("old", "new"))
        result = comparison_of(old, new).end_to_end
        ends = None if result.ci95 is None else [result.baseline_ns * (1 - 1 / ratio) for ratio in result.ci95]
        saved = _time_text(result.baseline_ns - result.candidate_ns)
        rows.append((pair.name, *_predicted_texts(analysis_of(old), pair.rule), saved, _range_text(ends)))
    print("## Advice that was followed\n")
    print_table(("flaw", "latency", "predicted saving", "95 % interval", "measured saving", "95 % interval"), rows)


def _predicted_texts(analysis: Analysis, rule: str) -> tuple[str, str, str]:
    """Return the latency, the saving that a rule's finding predicts, and its interval."""
    latency = _time_text(analysis.headline_ns)
    finding = next((finding for finding in analysis.findings if finding.rule == rule), None)
    if finding is None or finding.saving_ns is None:
        return latency, "no finding", ""
    return latency, _time_text(finding.saving_ns), _range_text(finding.saving_ci95_ns)


def _time_text(nanoseconds: float) -> str:
    return f"{nanoseconds / _MICROSECOND:.1f} us"


def _range_text(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{ends[0] / _MICROSECOND:.1f} to {ends[1] / _MICROSECOND:.1f}"


def print_sums(bundles: dict[Pair, Bundle]) -> bool:
    """Print rows of splits against the latency, and multiplications against PyTorch's; return whether all agree."""
    rows, are_right = [], True
    for pair, bundle in bundles.items():
        analysis = analysis_of(bundle_side(bundle, "old", None))
        model, inputs = pair.flawed()
        with FlopCounterMode(display=False) as counter:
            model(inputs)
        counted, true = sum(row.macs or 0 for row in analysis.operators), counter.get_total_flops() // 2
        times = [row.time_ns for row in (*analysis.operators, *analysis.outside)]
        known = [time for time in times if time is not None]
        off = abs(sum(known) - analysis.headline_ns) / analysis.headline_ns if len(known) == len(times) else None
        are_right &= counted == true and (off is None or off <= _MOST_OFF)
        rows.append((pair.name, f"{counted:,}", f"{true:,}", "times withheld" if off is None else f"{off:.0e}"))
    print("## Counts and sums\n")
    print_table(("model", "multiplications counted", "by PyTorch", "rows against latency, relative"), rows)
    return are_right
