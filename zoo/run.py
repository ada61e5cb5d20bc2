"""Try the models of the zoo: ``python -m zoo.run [NAME...]``, each in its own processes, one after the other.

A model and number type has a file in the output directory; what is there is not tried again. ``--write
zoo/results.json`` puts them together, from which ``docs/build.py`` makes the page.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.json import to_json
from zoo.catalogue import catalogue
from zoo.page import RESULTS
from zoo.record import Record, Results
from zoo.trial import ROOT, tried, warm_up

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGES = ("torch", "executorch", "torchao", "transformers", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what was not tried, and write the results where that is asked for."""
    options = _options(arguments)
    known = {entry.name: entry for entry in catalogue()}
    chosen = [known[name] for name in options.names or known]
    trials = [(entry, dtype) for entry in chosen for dtype in entry.dtypes if options.dtype in (None, dtype)]
    options.out.mkdir(parents=True, exist_ok=True)
    files = [options.out / f"{entry.name}-{dtype}.json" for entry, dtype in trials]
    if not all(file.exists() for file in files):
        warm_up()
    for number, ((entry, dtype), file) in enumerate(zip(trials, files, strict=True), start=1):
        if not file.exists():
            file.write_bytes(to_json(tried(entry, dtype, options.timeout)))
        record = msgspec.json.decode(file.read_bytes(), type=Record)
        print(f"{number}/{len(trials)} {_line(record)}", flush=True)
    if options.write:
        options.write.write_bytes(to_json(results(options.out)))
    return 0


def results(directory: Path) -> Results:
    """All records of a directory, in the order of the catalogue; what was not tried is left out."""
    files = [directory / f"{entry.name}-{dtype}.json" for entry in catalogue() for dtype in entry.dtypes]
    records = [msgspec.json.decode(file.read_bytes(), type=Record) for file in files if file.exists()]
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return Results(date, f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs", versions, records)


def _line(record: Record) -> str:
    head = f"{record.name} {record.dtype} {record.seconds:.0f} s:"
    if record.failure:
        return f"{head} {record.failure.step} failed: {record.failure.problem}"
    if record.export is None or record.run is None:
        return f"{head} not finished"
    exact = "no time delegated" if record.run.exact is None else f"{record.run.exact:.1%} exact"
    return f"{head} error {record.export.error:.1e}, {exact}, split {record.run.split:.3f}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m zoo.run", description="Export, run and analyse the zoo.")
    names = [entry.name for entry in catalogue()]
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME", help="models; none: all")
    parser.add_argument("--dtype", help="try this number type only")
    parser.add_argument("--out", type=Path, default=ROOT / "zoo" / "out", help="directory of the records")
    parser.add_argument("--write", type=Path, help=f"put all records together, as in {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each model")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
