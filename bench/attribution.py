"""How often opscope names the right nodes for XNNPACK's events: models of every kind, run for real, against the truth.

    python bench/attribution.py [DIRECTORY [NAME...]]

exports the models of ``attribution_models.py``, runs each as this CPU is and with features switched off, and lets
``attribution_truth.c``, preloaded into the same process, tell what each operator computed. The directory keeps
NAME.pte, NAME-VARIANT.etdump and truth.json, and what is there is not made again; without one it is temporary.
Needs gcc, x86-64 Linux and executorch 1.5.1. It takes about twenty minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from attribution_truth import NoTruthError, TrueDelegate, TrueEvent, read_records, true_delegates

from opscope.bundle.manifest import Mechanism, Variant
from opscope.experiment.protocol import TRACE, Job
from opscope.machine.isa import group
from opscope.program.operators.kinds import Attribution
from opscope.program.xnnpack.attribution import EventNodes, match_events
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.runners.python import python_here
from opscope.runtimes.executorch.xnnpack import read_xnn_graphs

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).parent
_INFERENCES, _WARMUP = 8, 2
_SECONDS = 300
_HALF_MICROSECOND = 500  # XNNPACK cuts durations to whole microseconds
_VARIANTS: dict[str, list[str]] = {
    "native": [],
    "no-avx512": list(group("x86_64", "avx512").fields),
    "no-avx2": list(group("x86_64", "avx2").fields),
    "no-f16c": ["f16c", "avx512fp16"],
    "no-sse4": list(group("x86_64", "sse4").fields),
}
_MODELS = """
    transformer-fp32 transformer-fp16 transformer-int8 transformer-dynamic8 transformer-dynamic8-whole
    transformer-group4 transformer-channel4 unmasked-shapes gated-fp32 gated-fp16 gated-int8 gated-dynamic8 gated-group4
    gated-group4-whole attention-fp32 attention-fp16 attention-int8 attention-dynamic8 linear-fp32 linear-fp16
    linear-bf16 linear-dynamic8 linear-group4 linear-channel4 linear-group4-fp16 linear-group4-fp16-whole
    convolutions-fp32 convolutions-fp16 convolutions-int8 convolutions-dynamic8-whole resnet-fp32 resnet-fp16
    resnet-int8 unet-fp32 unet-fp16 unet-int8 dense-fp32 dense-fp16 dense-int8 convnext-fp32 convnext-fp16 convnext-int8
    convnext-dynamic8 smooth-fp32 smooth-fp16 smooth-int8 bounded-fp32 bounded-fp16 means-fp32 means-fp16
    means-int8 weights-fp32 weights-fp16 weights-dynamic8-whole requantised-fp32 toy_cnn-fp32 toy_cnn-fp16 toy_cnn-int8
    mobilenet_v3_small-fp32 mobilenet_v3_small-fp16 mobilenet_v3_small-int8 vit_tiny-fp32 vit_tiny-fp16 vit_tiny-int8
    vit_tiny-dynamic8
""".split()
"""A network of ``attribution_models.py``, then its number type or how it is quantised. ``whole`` leaves dynamically
quantised products in one delegate with the rest."""
_KINDS = ("exact", "aligned", "ambiguous", "name")
Truth = dict[str, list[TrueDelegate]]


class Event(NamedTuple):
    """An event of one call: its name, and how long it took per inference in nanoseconds."""

    name: str
    duration: float


class Score(NamedTuple):
    """How the events of one trace were attributed.

    Attributes:
        delegates: number of them.
        exact: how many of them are.
        time: of delegates, by kind of attribution.
        events: by kind of attribution.
        wrong_main: events whose main node is given and is another.
        wrong_nodes: events that say exact with other nodes than the true ones.
        problems: why delegates are not exact.
    """

    delegates: int
    exact: int
    time: Counter[str]
    events: Counter[str]
    wrong_main: list[str]
    wrong_nodes: list[str]
    problems: list[str]

    def shares(self) -> str:
        """Number of delegates, of exact ones, shares of time and of events by kind."""
        pairs = ((self.time[kind] / self.time.total(), self.events[kind] / self.events.total()) for kind in _KINDS)
        shares = "".join(f"{time:>8.1%}{events:>7.1%}" for time, events in pairs)
        return f"{self.delegates:>9}{self.exact:>6}{shares}"


def build_shim(directory: Path) -> Path:
    """Compile the shim that is preloaded."""
    shim = directory / "truth.so"
    command = ["gcc", "-Wall", "-O1", "-shared", "-fPIC", "-o", str(shim), str(_HERE / "attribution_truth.c"), "-ldl"]
    subprocess.run(command, check=True)
    return shim


def export_missing(directory: Path, names: Sequence[str]) -> None:
    """Export the models that are not there yet, in one process, because importing torch costs the most."""
    missing = [name for name in names if not (directory / f"{name}.pte").exists()]
    if missing:
        command = [sys.executable, str(_HERE / "attribution_models.py"), str(directory), *missing]
        with (directory / "export.log").open("wb") as log:
            subprocess.run(command, stderr=log, check=True)


def run_with_shim(program: Path, variant: str, shim: Path) -> list[TrueDelegate]:
    """Run a program, keep its trace beside it and say what its events computed.

    Raises:
        NoTruthError: it did not run, or the truth cannot be told.
    """
    with tempfile.TemporaryDirectory() as place:
        records = Path(place) / "truth.jsonl"
        os.environ |= {"LD_PRELOAD": str(shim), "OPSCOPE_TRUTH": str(records)}
        try:
            job = Job(
                str(program),
                Variant(variant, None, None, _VARIANTS[variant], 1, switch=Mechanism.CPUINFO),
                _INFERENCES,
                0,
                _SECONDS,
            )
            outcome = python_here().execute(job, Path(place))
        finally:
            del os.environ["LD_PRELOAD"], os.environ["OPSCOPE_TRUTH"]
        if outcome.failure:
            raise NoTruthError(outcome.failure.message)
        shutil.copy(Path(place) / TRACE, trace_of(program, variant))
        if not records.exists():
            raise NoTruthError("no delegate of XNNPACK was created")
        return true_delegates(read_xnn_graphs(program), read_records(records))


def trace_of(program: Path, variant: str) -> Path:
    """Where the trace of a variant is kept."""
    return program.with_name(f"{program.stem}-{variant}.etdump")


def calls(trace: Path) -> dict[int, list[Event]]:
    """For each instruction that calls a delegate, the events of its first call in an inference, in order."""
    frame = read_trace(trace).table.frame
    own = frame.filter((frame["scope"] == "delegate_op") & (frame["inference"] >= _WARMUP))
    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for *key, name, duration in own.select("instruction", "position", "name", "duration").iter_rows():
        found[key[0], key[1]].append((name, duration))
    events: dict[int, list[Event]] = defaultdict(list)
    for (instruction, _), rows in sorted(found.items()):
        mean = sum(duration for _, duration in rows) / len(rows)
        events[instruction].append(Event(rows[0][0], mean + _HALF_MICROSECOND))
    return events


def score(program: Path, variant: str, truth: Sequence[TrueDelegate], *, rewrites: bool) -> Score:
    """Attribute the events of a trace and compare with the truth."""
    recorded = calls(trace_of(program, variant))
    found = Score(len(truth), 0, Counter(), Counter(), [], [], [])
    for each, true in zip(read_xnn_graphs(program), truth, strict=True):
        events = recorded[true.instruction]
        if [event.name for event in events] != [event.name for event in true.events]:
            raise SystemExit(f"{program.stem} {variant}: the trace has other events than the runtime")
        match = match_events(each.graph, [event.name for event in events], rewrites=rewrites)
        for event, said, fact in zip(events, match.events, true.events, strict=True):
            found.time[said.attribution.value] += int(event.duration)
            found.events[said.attribution.value] += 1
            _compare(found, true, said, fact)
        if match.problem:
            found.problems.append(f"delegate {true.delegate}: {match.problem}")
    return found._replace(exact=len(truth) - len(found.problems))


def _compare(found: Score, true: TrueDelegate, said: EventNodes, fact: TrueEvent) -> None:
    """Note what is claimed and is not so. Of two merged nodes of one kind, as clamps, either is the main one."""
    if said.attribution not in {Attribution.EXACT, Attribution.ALIGNED}:
        return
    place = f"delegate {true.delegate}, {fact.name}"
    alike = fact.main is None or said.main is None or true.xnodes[said.main] == true.xnodes[fact.main]
    if said.main != fact.main and not (alike and said.main in fact.nodes):
        found.wrong_main.append(f"{place}: {said.main}, truly {fact.main} of {fact.nodes}")
    if said.attribution is Attribution.EXACT and said.nodes != fact.nodes:
        found.wrong_nodes.append(f"{place}: {said.nodes}, truly {fact.nodes}")


def take_truth(directory: Path, names: Sequence[str]) -> Truth:
    """Run all models in all variants, as far as that is not done; what has no truth is said and left out."""
    shim, file = build_shim(directory), directory / "truth.json"
    truth = msgspec.json.decode(file.read_bytes(), type=Truth) if file.exists() else {}
    programs = [directory / f"{name}.pte" for name in names]
    for program, variant in product((each for each in programs if each.exists()), _VARIANTS):
        key = f"{program.stem}-{variant}"
        if key in truth and trace_of(program, variant).exists():
            continue
        try:
            truth[key] = run_with_shim(program, variant, shim)
        except NoTruthError as error:
            print(f"{key}: no truth: {error}", flush=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=1))
    return truth


def print_table(directory: Path, names: Sequence[str], truth: Truth, *, rewrites: bool) -> None:
    """One row for each model and the variants that came out alike: shares of time and of events, and errors."""
    print(f"\n{'with' if rewrites else 'without'} the replay of XNNPACK's rewrites; shares of delegate time, of events")
    heads = "".join(f"{kind:>15}" for kind in _KINDS)
    print(f"{'model':<30}{'delegates':>9}{'exact':>6}{heads}  main wrong, nodes wrong, variants")
    notes: dict[str, list[str]] = defaultdict(list)
    for name in names:
        rows: dict[str, list[str]] = defaultdict(list)
        for variant in (each for each in _VARIANTS if f"{name}-{each}" in truth):
            found = score(directory / f"{name}.pte", variant, truth[f"{name}-{variant}"], rewrites=rewrites)
            rows[f"{found.shares()}{len(found.wrong_main):>5}{len(found.wrong_nodes):>4}"].append(variant)
            for note in (*found.wrong_main, *found.wrong_nodes, *(found.problems if rewrites else ())):
                notes[f"{name} {note}"].append(variant)
        for row, variants in rows.items():
            print(f"{name:<30}{row}  {_listed(variants)}", flush=True)
    print(*(f"{note} ({_listed(variants)})" for note, variants in notes.items()), sep="\n")


def _listed(variants: Sequence[str]) -> str:
    return "all" if len(variants) == len(_VARIANTS) else ", ".join(variants)


def main(arguments: list[str]) -> None:
    """Make the models, take the truth and print both tables."""
    with tempfile.TemporaryDirectory() as temporary:
        directory, names = Path(arguments[0] if arguments else temporary), arguments[1:] or _MODELS
        directory.mkdir(exist_ok=True)
        export_missing(directory, names)
        truth = take_truth(directory, names)
        for rewrites in (True, False):
            print_table(directory, names, truth, rewrites=rewrites)


if __name__ == "__main__":
    main(sys.argv[1:])
