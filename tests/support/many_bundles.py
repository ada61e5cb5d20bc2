"""Bundles by the thousand: a few are profiled for real on a fake target, the others are made from them.

A bundle that is made has a manifest of its own (model, machine, time, versions), the traces of the one it is made from
as hard links, and its analyses with every time multiplied by a factor. So files, sizes and figures are those of real
bundles; only that the times do not follow from the traces. A store looks into that for its own version, so they are of
another one.
"""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.manifest import Manifest
from opscope.experiment.protocol import Job
from programs import write_tiny_program
from traces import Node

_BEGINNING = datetime(2026, 1, 1, tzinfo=timezone.utc)
_DOCUMENTS = (
    "analysis.json",
    "comparison.json",
    "variants/baseline/analysis.json",
)
_SORTS = (
    ("Convolution (NHWC, F32) IGEMM", 61_000, 2.1),
    ("HardSwish (NC)", 3_000, 1.3),
    ("Convolution (NHWC, F32) DWConv", 27_000, 1.0),
    ("Fully Connected (NC, F32) GEMM", 44_000, 1.8),
    ("Add (ND)", 2_000, 1.0),
    ("Transpose (ND, X32)", 4_000, 1.0),
)
_PORTABLE = 20
_MODULE = 8


class WideTarget(FakeTarget):
    """A fake target whose program has as many operators as one likes; one in twenty is portable."""

    def __init__(self, operators: int, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self._operators = operators

    def _inference(self, job: Job) -> Node:
        calls, generator = [], self._random
        level = generator.gauss(1, 0.005)
        for first in range(0, self._operators, _PORTABLE):
            own = range(first, min(first + _PORTABLE, self._operators) - 1)
            instruction = 2 * (first // _PORTABLE)
            children = [self._event(number, instruction, level, slow=bool(job.clear)) for number in own]
            spent = sum(child.duration for child in children)
            calls.append(Node("DELEGATE_CALL", spent + 2_000, instruction, children=children))
            portable = Node("native_call_add.out", 6_000, instruction + 1)
            calls.append(Node("OPERATOR_CALL", 6_500, instruction + 1, children=[portable]))
        return Node("Method::execute", sum(call.duration for call in calls) + 900, children=calls)

    def _event(self, number: int, instruction: int, level: float, *, slow: bool) -> Node:
        name, nanoseconds, slowdown = _SORTS[number % len(_SORTS)]
        duration = round(nanoseconds * level * (slowdown if slow else 1) * self._random.gauss(1, 0.02))
        return Node(f"{name} #{number + 1}", duration // 1_000 * 1_000, instruction, delegate=True)


class Made(NamedTuple):
    """What a bundle that is made is about.

    Attributes:
        number: makes it different from all others.
        model: its name.
        cpu: of its machine.
        hours: since the beginning of 2026.
        factor: by which all times are multiplied.
        executorch: its version.
    """

    number: int
    model: str = "toy"
    cpu: str = "Test CPU"
    hours: float = 0.0
    factor: float = 1.0
    executorch: str = "1.5.1"


class Mint:
    """Makes bundles from one that was profiled.

    Args:
        directory: for what bundles share.
        operators: of the program.
        rounds: of each bundle.
        runs: inferences of each process, of which one is warm-up.
    """

    def __init__(self, directory: Path, operators: int = 12, rounds: int = 5, runs: int = 3) -> None:
        self._shared = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.original = directory / "original"
        settings = Settings(rounds=rounds, runs=runs, warmup=1, ceilings=False)
        program = write_tiny_program(directory)
        profile(str(program), settings=settings, out=self.original, target=WideTarget(operators), clock=FakeClock())
        self._manifest = msgspec.json.decode((self.original / "manifest.json").read_bytes(), type=Manifest)
        self._documents = {name: _described(name, (self.original / name).read_bytes()) for name in _DOCUMENTS}
        self._links = self._files()

    def make(self, path: Path, made: Made) -> Path:
        """Make a bundle at a path."""
        path.mkdir(parents=True)
        folders = {(path / name).parent for name in (*self._links, *_DOCUMENTS)}
        for folder in sorted(folders):
            folder.mkdir(parents=True, exist_ok=True)
        for name, source in {**self._links, **self._scaled(made.factor)}.items():
            os.link(source, path / name)
        (path / "manifest.json").write_bytes(msgspec.json.encode(self._manifest_of(made)))
        return path

    def _manifest_of(self, made: Made) -> Manifest:
        old, replace = self._manifest, msgspec.structs.replace
        versions = old.environment.versions | {"executorch": made.executorch}
        return replace(
            old,
            opscope="0.0.1",
            created=(_BEGINNING + timedelta(hours=made.hours)).isoformat(timespec="seconds"),
            model=replace(old.model, name=made.model),
            plan=replace(old.plan, seed=made.number),
            environment=replace(old.environment, cpu=made.cpu, versions=versions),
        )

    def _files(self) -> dict[str, Path]:
        """Traces and program, which all bundles share."""
        every = [file for file in self.original.rglob("*") if file.is_file()]
        kept = [file for file in every if file.suffix in {".zst", ".pte"}]
        return {file.relative_to(self.original).as_posix(): file for file in kept}

    def _scaled(self, factor: float) -> dict[str, Path]:
        """Analyses with all times multiplied, written once for each factor."""
        folder = self._shared / f"factor-{factor!r}"
        found = {name: folder / name for name in _DOCUMENTS}
        if not folder.exists():
            for name, file in found.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(msgspec.json.encode(_multiplied(self._documents[name], factor)))
        return found


def fleet(count: int, models: int = 8, devices: int = 6, figures: int = 5, seed: int = 0) -> list[Made]:
    """So many bundles of a fleet: models of different sizes on devices of different speeds, an hour apart."""
    generator = random.Random(seed)
    sizes = [1.5**number for number in range(models)]
    speeds = [1.2**number for number in range(devices)]
    noise = [generator.gauss(1, 0.01) for _ in range(figures)]
    return [
        Made(
            number=number,
            model=f"model-{number % models}",
            cpu=f"device {number // models % devices}",
            hours=float(number),
            factor=sizes[number % models] * speeds[number // models % devices] * noise[number % figures],
            executorch=f"1.{number * 10 // max(count, 1)}.0",
        )
        for number in range(count)
    ]


def _described(name: str, content: bytes) -> Any:
    """A document; an analysis with a module for every eight operators, since the tiny program tells of none."""
    found = msgspec.json.decode(content)
    if name.endswith("analysis.json"):
        groups = [found["operators"][first : first + _MODULE] for first in range(0, len(found["operators"]), _MODULE)]
        found["modules"] = [_module(number, own) for number, own in enumerate(groups)]
    return found


def _module(number: int, operators: list[Any]) -> dict[str, Any]:
    spent, share = (sum(one[name] for one in operators) for name in ("time_ns", "share"))
    place = {"method": "forward", "path": f"layers.{number}", "type": "Block", "depth": 1}
    counts = {"operators": len(operators), "macs": None}
    return {**place, "self_ns": spent, "total_ns": spent, "share": share, **counts, "self_share": share}


def _multiplied(value: Any, factor: float, name: str = "") -> Any:
    """The document with every number below a key that ends in ``_ns`` multiplied."""
    if isinstance(value, dict):
        return {key: _multiplied(own, factor, key) for key, own in value.items()}
    if isinstance(value, list):
        return [_multiplied(own, factor, name) for own in value]
    if not name.endswith("_ns") or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return round(value * factor) if isinstance(value, int) else value * factor
