"""Savings that findings predict, replayed: PyTorch's own layers before and after their recipe, in turns.

    python bench/savings.py                              prints a row for each
    python bench/savings.py --only encoder decoder
    python bench/savings.py --write                      writes the table into docs/design/predicted-savings.md

It ends with exit code 1 where fewer than four of five predictions are within 30 % of what was saved.

Every model is exported as it comes and as the recipe of its finding makes it. Both programs run in one interleaved
experiment on one thread; the prediction is that of the finding on the first one, from the same run.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from opscope.core.files import text_of
from opscope.core.units import ratio_text, share_text, time_text
from opscope.machine.environment import cpu_name
from replayed import CLOSE, ENOUGH, SETTINGS, Replay, exported, replay, share_close
from stock_layers import STOCK

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "predicted-savings.md"
_MEASURED = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end of measured -->)", re.DOTALL)


def row(found: Replay) -> str:
    """A line of the table."""
    before, after, predicted, saved = (
        time_text(ns) for ns in (found.before_ns, found.after_ns, found.predicted_ns, found.saved_ns)
    )
    told = (f"at most {predicted}", "") if found.is_limit else (predicted, ratio_text(found.ratio))
    return f"| `{found.model}` | `{found.rule}` | {before} | {after} | {told[0]} | {saved} | {told[1]} |"


def table(rows: list[Replay], silent: list[str]) -> str:
    """The table of a page, with what it was measured on."""
    lines = ["| model | finding | before | after | predicted | saved | predicted / saved |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: |", *map(row, rows)]
    predictions = [one for one in rows if not one.is_limit]
    close = sum(one.close for one in predictions)
    told = (
        f"{close} of {len(predictions)} predictions ({share_text(share_close(rows))}) are within {share_text(CLOSE)}."
    )
    where = cpu_name(text_of(Path("/proc/cpuinfo"))) or "the machine of this page"
    how = (
        f"{SETTINGS.rounds} interleaved rounds of {SETTINGS.runs} inferences on one thread, executorch 1.5.1, {where}."
    )
    none = [f"No such finding, and so no prediction: {', '.join(f'`{name}`' for name in silent)}."] if silent else []
    return "\n".join([*lines, "", told, how, *none])


def main() -> None:
    """Replay the models that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(STOCK), choices=list(STOCK), metavar="MODEL")
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--programs", type=Path, help="keep the programs here, and take those that are here")
    given = parser.parse_args()
    rows: list[Replay] = []
    silent: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.only:
            programs = exported(name, (given.programs or Path(scratch)) / name)
            found = replay(name, programs, Path(scratch) / f"{name}-bundle")
            silent += [] if found else [name]
            rows += found
            print(*map(row, found), sep="\n", flush=True)
    text = table(rows, silent)
    print(f"\n{text}")
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_MEASURED.sub(lambda _: f"\n{text}\n\n", page), encoding="utf-8")
    sys.exit(share_close(rows) < ENOUGH)


if __name__ == "__main__":
    main()
