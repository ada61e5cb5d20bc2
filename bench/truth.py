"""The examination: what opscope says beside what is known to be true, on this machine.

    python bench/truth.py                                      one of everything, a few minutes
    python bench/truth.py --minutes 20 --write docs/design/truth.md
    python bench/truth.py --bundles DIRECTORY                  the bundles are kept, and those that are there count

- Advice that was followed: a model with a flaw, and the same model without it, in one interleaved run. What a finding
  on the one said that it would save stands beside what the other really saved.
- Counts and sums: multiplications against PyTorch's own counter, and rows of the split against the latency above them.
- Planted changes and equal programs, in turns and one after the other: bench/check.py.
- Disturbance: which calls are marked, against what the kernel saw of each: bench/disturbance.py.
- Speedups beside busy processes, against those of a quiet machine: bench/disturbed_profiles.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import check
import disturbance
import disturbed_profiles
import torch
from calibration_shares import print_table
from scaling_truth import scaling
from torch.utils.flop_counter import FlopCounterMode

from opscope.api import Settings, check_programs
from opscope.bundle.bundle import Bundle, is_bundle
from opscope.core.files import text_of
from opscope.core.version import __version__
from opscope.machine.environment import cpu_name, versions
from opscope.measurements.analyses import analysis_of, comparison_of
from opscope.measurements.sides import bundle_side
from opscope.runtimes.executorch.export.checked import export_live

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.analysis.analysis import Analysis

_SETTINGS = Settings(target="native", rounds=6, runs=20, ceilings=False)
_MICROSECOND = 1e3


class Pair(NamedTuple):
    """A model with a flaw and without, and the finding that is about it.

    Attributes:
        name: for the table.
        rule: whose finding predicts.
        flawed: makes the one model and its example input.
        mended: makes the other.
    """

    name: str
    rule: str
    flawed: Callable[[], tuple[Any, Any]]
    mended: Callable[[], tuple[Any, Any]]


def _chain(*between: Callable[[], Any]) -> tuple[Any, Any]:
    """Matrix products with something between each two of them."""
    torch.manual_seed(0)
    layers: list[Any] = []
    for _ in range(6):
        layers += [torch.nn.Linear(256, 256), *(one() for one in between)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 256)), torch.randn(128, 256)


def _lambda(function: Callable[[Any], Any]) -> Callable[[], Any]:
    """A module that applies a function."""

    class Applied(torch.nn.Module):
        def forward(self, x: Any) -> Any:  # noqa: ANN401 - a tensor of a library without types here
            return function(x)

    return Applied


def pairs() -> list[Pair]:
    """Every pair that is examined."""
    chains: dict[str, Callable[[], Any]] = {
        "torch.roll between products": _lambda(lambda x: x.roll(1, 1)),
        "torch.flip between products": _lambda(lambda x: x.flip(1)),
        "LayerNorm between products": lambda: torch.nn.LayerNorm(256),
    }
    found = [Pair(name, "portable_operators", partial(_chain, one), _chain) for name, one in chains.items()]
    moved = _lambda(lambda x: x.view(128, 16, 16).transpose(1, 2).reshape(128, 256))
    return [*found, Pair("transposed between products", "data_movement", partial(_chain, moved), _chain)]


def advice(home: Path, settings: Settings) -> None:
    """Savings that findings predict, and those that were measured."""
    rows = []
    for number, pair in enumerate(pairs()):
        out = home / f"advice-{number}"
        bundle = _measured(pair, out, settings)
        analysis = analysis_of(bundle_side(bundle, "old", None))
        rows.append((pair.name, *_predicted(analysis, pair.rule), *_achieved(bundle)))
    print("## Advice that was followed\n")
    print_table(("flaw", "latency", "predicted saving", "95 % interval", "measured saving", "95 % interval"), rows)


def _measured(pair: Pair, out: Path, settings: Settings) -> Bundle:
    if not is_bundle(out):
        with tempfile.TemporaryDirectory() as work:
            programs = []
            for name, model in (("mended", pair.mended), ("flawed", pair.flawed)):
                directory = Path(work) / name
                directory.mkdir()
                programs.append(export_live(*model(), "fp32", directory))
            check_programs(programs[0], programs[1], settings=settings, out=out)
    return Bundle.open(out)


def _predicted(analysis: Analysis, rule: str) -> tuple[str, str, str]:
    latency = analysis.headline_ns
    found = next((one for one in analysis.findings if one.rule == rule), None)
    if found is None or found.saving_ns is None:
        return _text(latency), "no finding", ""
    return _text(latency), _text(found.saving_ns), _range(found.saving_ci95_ns)


def _achieved(bundle: Bundle) -> tuple[str, str]:
    found = comparison_of(bundle_side(bundle, "old", None), bundle_side(bundle, "new", None)).end_to_end
    ends = None if found.ci95 is None else tuple(found.baseline_ns * (1 - 1 / ratio) for ratio in found.ci95)
    return _text(found.baseline_ns - found.candidate_ns), _range(ends)


def _text(nanoseconds: float) -> str:
    return f"{nanoseconds / _MICROSECOND:.1f} us"


def _range(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{ends[0] / _MICROSECOND:.1f} to {ends[1] / _MICROSECOND:.1f}"


def sums(home: Path) -> None:
    """Rows of the split against the latency above them, and multiplications against PyTorch's counter."""
    rows = []
    for number, pair in enumerate(pairs()):
        analysis = analysis_of(bundle_side(Bundle.open(home / f"advice-{number}"), "old", None))
        model, inputs = pair.flawed()
        with FlopCounterMode(display=False) as counter:
            model(inputs)
        macs = sum(operator.macs or 0 for operator in analysis.operators)
        whole = sum(row.time_ns or 0.0 for row in (*analysis.operators, *analysis.outside))
        off = abs(whole - analysis.headline_ns) / analysis.headline_ns
        rows.append((pair.name, f"{macs:,}", f"{counter.get_total_flops() // 2:,}", f"{off:.0e}"))
    print("## Counts and sums\n")
    print_table(("model", "multiplications counted", "by PyTorch", "rows against latency, relative"), rows)


def main(arguments: Sequence[str]) -> None:
    """Examine, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=None, help="of planted changes; one of each kind if absent")
    parser.add_argument("--bundles", type=Path, help="directory of the bundles; those that are there count, too")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the page in place of printing it")
    asked = parser.parse_args(arguments)
    page = io.StringIO()
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(page if asked.write else sys.stdout):
        home = asked.bundles or Path(work)
        home.mkdir(parents=True, exist_ok=True)
        _head()
        advice(home, _SETTINGS)
        sums(home)
        print("## Times of operators against a clock inside of the process\n")
        scaling()
        print("## Planted changes and equal programs\n")
        planted = home / "planted"
        minutes = [] if asked.minutes is None else ["--minutes", f"{asked.minutes:g}"]
        check.main([*minutes, "--bundles", str(planted)])
        print("## Disturbance\n")
        print("```text")
        disturbance.detection()
        print("```\n")
        print("## Speedups beside busy processes\n")
        disturbed_profiles.disturbed(Path(work))
    if asked.write:
        asked.write.write_text(page.getvalue(), encoding="utf-8")


def _head() -> None:
    processor, own = cpu_name(text_of(Path("/proc/cpuinfo"))) or "an unknown CPU", {"opscope": __version__} | versions()
    print("# What opscope says, and what is true\n")
    print("Written by `make truth`: every table is measured, on the machine that it names.\n")
    print(f"{processor}, {os.cpu_count()} CPUs; {', '.join(f'{name} {one}' for name, one in own.items() if one)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
