"""The recipes of docs/recipes, measured: each model before and after, in turns, on one thread of this machine.

    python bench/recipes.py                        prints what each page would show
    python bench/recipes.py --only layer-norm
    python bench/recipes.py --write                writes it into the pages

Both programs run in the native runner where there is one, in one interleaved experiment, so that work of others on the
machine meets both. The speedup is that of the untraced call, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

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


def measured(recipe: Recipe, work: Path) -> str:
    """What a page shows: counts, latency, difference of the outputs."""
    before, after = (recipe.exported(side, work) for side in SIDES)
    differs = difference(*recipe.outputs(work))
    check_programs(after, before, settings=_SETTINGS, out=work / "bundle")
    bundle = Bundle.open(work / "bundle")
    found = comparison_of(bundle_side(bundle, "old", None), bundle_side(bundle, "new", None))
    return f"{table_of(counts_of(before), counts_of(after))}\n\n{_latency(found, differs)}"


def _latency(found: Comparison, differs: float) -> str:
    result = found.end_to_end
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


def main() -> None:
    """Measure the recipes that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the name of one recipe")
    parser.add_argument("--write", action="store_true", help="write the figures into the pages")
    given = parser.parse_args()
    for recipe in recipes():
        if given.only not in {None, recipe.name}:
            continue
        with tempfile.TemporaryDirectory() as work:
            text = measured(recipe, Path(work))
        print(f"## {recipe.name}\n\n{text}\n", flush=True)
        if given.write:
            recipe.write(text)


if __name__ == "__main__":
    main()
