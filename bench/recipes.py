"""The recipes of docs/recipes, measured: each model before and after, in turns, on one thread of this machine.

Figures are written into the pages: into those that have none yet, or into all with ``--full``. Both programs run in the
native runner where there is one, in one interleaved experiment, so that work of others on the machine meets both. The
speedup is that of the untraced call, with its 95 % interval.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.api import Settings, check_programs
from opscope.bundle.bundle import Bundle
from opscope.core.files import text_of
from opscope.core.units import ratio_text, time_text
from opscope.machine.environment import cpu_name
from opscope.measurements.analyses import comparison_of
from opscope.measurements.sides import bundle_side
from recipe_pages import SIDES, Recipe, counts_of, difference, recipes, table_of

if TYPE_CHECKING:
    from opscope.analysis.compare.compare import Comparison

_SETTINGS = Settings(rounds=10, runs=20, warmup=3, ceilings=False)
_VERDICTS = {"faster": "faster", "slower": "slower", "no_difference": "no difference detected"}


def run(*, full: bool) -> bool:
    """Measure recipes, one after the other, and write their pages."""
    for recipe in recipes():
        if full or not recipe.shown():
            with tempfile.TemporaryDirectory() as work:
                text = measure_recipe(recipe, Path(work))
            recipe.write(text)
            print(f"## {recipe.name}\n\n{text}\n", flush=True)
    return True


def measure_recipe(recipe: Recipe, work: Path) -> str:
    """Return what a page shows: counts, latency, difference of the outputs."""
    before, after = (recipe.exported(side, work) for side in SIDES)
    differs = difference(*recipe.outputs(work))
    check_programs(after, before, settings=_SETTINGS, out=work / "bundle")
    bundle = Bundle.open(work / "bundle")
    comparison = comparison_of(bundle_side(bundle, "old", None), bundle_side(bundle, "new", None))
    return f"{table_of(counts_of(before), counts_of(after))}\n\n{_latency_text(comparison, differs)}"


def _latency_text(comparison: Comparison, differs: float) -> str:
    result = comparison.end_to_end
    interval = f", 95 % interval {ratio_text(result.ci95[0])} to {ratio_text(result.ci95[1])}" if result.ci95 else ""
    verdict = _VERDICTS.get(result.verdict.value, result.verdict.value)
    times = f"{time_text(result.baseline_ns)} before, {time_text(result.candidate_ns)} after"
    lines = [
        f"Measured: {times}, a speedup of {ratio_text(result.speedup)}{interval} ({verdict}).",
        f"The outputs differ by {differs:.1e} of their largest value at most.",
        f"{_SETTINGS.rounds} interleaved rounds of {_SETTINGS.runs} inferences on one thread, executorch 1.5.1,",
        f"{cpu_name(text_of(Path('/proc/cpuinfo'))) or 'the machine of this page'}.",
    ]
    return "\n".join(lines)
