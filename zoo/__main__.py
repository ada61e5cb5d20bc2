"""Try the models of the zoo: ``python -m zoo [NAME...]``, each in its own processes, one after the other.

A model and number type has a file in the output directory; what is there is not tried again, so that a run goes on
where it was ended. ``--write`` puts them together into ``zoo/results.json``, of which ``docs/build.py`` makes the page.
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
    known = {entry.name: entry for entry in catalogue()}
    parser = argparse.ArgumentParser(prog="python -m zoo", description="Export, run and analyse the zoo.")
    parser.add_argument("names", nargs="*", choices=[*known, []], metavar="NAME", help="models; none: all")
    parser.add_argument("--dtype", help="try this number type only")
    parser.add_argument("--out", type=Path, default=ROOT / "zoo" / "out", help="directory of the records")
    parser.add_argument("--write", action="store_true", help=f"put all records together: {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each model")
    options = parser.parse_args(arguments)
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
        print(f"{number}/{len(trials)} {describe_record(record)}", flush=True)
    if options.write:
        RESULTS.write_bytes(to_json(collect_results(options.out)))
    return 0


def collect_results(directory: Path) -> Results:
    """Return all records of a directory, in the order of the catalogue; what was not tried is left out."""
    files = [directory / f"{entry.name}-{dtype}.json" for entry in catalogue() for dtype in entry.dtypes]
    records = [msgspec.json.decode(file.read_bytes(), type=Record) for file in files if file.exists()]
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return Results(date, f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs", versions, records)


def describe_record(record: Record) -> str:
    """Return what came of a model, in a line."""
    head = f"{record.name} {record.dtype} {record.seconds:.0f} s:"
    if record.failure:
        return f"{head} {record.failure.step} failed: {record.failure.problem}"
    if record.export is None or record.run is None:
        return f"{head} not finished"
    exact = "no time delegated" if record.run.exact is None else f"{record.run.exact:.1%} exact"
    return f"{head} error {record.export.error:.1e}, {exact}, split {record.run.split:.3f}"


if __name__ == "__main__":
    sys.exit(main())
