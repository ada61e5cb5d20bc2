"""How often opscope names the right nodes for XNNPACK's events: models of every kind, run for real, against the truth.

``python -m bench attribution`` exports a few models of ``bench.attribution_models``, all of them with ``--full``, runs
each as this CPU is and with features switched off, and lets ``attribution_truth.c``, preloaded into the same process,
tell what each operator computed. Needs gcc, x86-64 Linux and executorch 1.5.1. The long form takes
twenty minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.attribution_truth import NoTruthError, TrueDelegate, TrueEvent, read_records, true_delegates
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

_SHIM = Path(__file__).with_name("attribution_truth.c")
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
_QUICK = "transformer-fp32 gated-group4 convolutions-int8 u_net-fp16 toy_cnn-fp32 weights-dynamic8-whole".split()
_FULL = """
    transformer-fp32 transformer-fp16 transformer-int8 transformer-dynamic8 transformer-dynamic8-whole
    transformer-group4 transformer-channel4 unmasked-shapes gated-fp32 gated-fp16 gated-int8 gated-dynamic8 gated-group4
    gated-group4-whole attention-fp32 attention-fp16 attention-int8 attention-dynamic8 linear-fp32 linear-fp16
    linear-bf16 linear-dynamic8 linear-group4 linear-channel4 linear-group4-fp16 linear-group4-fp16-whole
    convolutions-fp32 convolutions-fp16 convolutions-int8 convolutions-dynamic8-whole residual-fp32 residual-fp16
    residual-int8 u_net-fp32 u_net-fp16 u_net-int8 dense_net-fp32 dense_net-fp16 dense_net-int8 conv_next-fp32
    conv_next-fp16 conv_next-int8 conv_next-dynamic8 efficient_net-fp32 efficient_net-int8 bilinear-fp32 bilinear-int8
    super_resolution-fp32 super_resolution-int8 smooth-fp32 smooth-fp16 smooth-int8 bounded-fp32 bounded-fp16 means-fp32
    means-fp16 means-int8 weights-fp32 weights-fp16 weights-dynamic8-whole requantised-fp32 toy_cnn-fp32 toy_cnn-fp16
    toy_cnn-int8 mobilenet_v3_small-fp32 mobilenet_v3_small-fp16 mobilenet_v3_small-int8 vit_tiny-fp32 vit_tiny-fp16
    vit_tiny-int8 vit_tiny-dynamic8
""".split()
"""A network of ``bench.attribution_models``, then its number type or how it is quantised. ``whole`` leaves dynamically
quantised products in one delegate with the rest."""
_KINDS = ("exact", "aligned", "ambiguous", "name")


class Trial(NamedTuple):
    """A program that ran in one variant: its trace, and what its delegates' events truly computed."""

    program: Path
    variant: str
    trace: Path
    truth: list[TrueDelegate]


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

    @property
    def shares_text(self) -> str:
        """Number of delegates, of exact ones, shares of time and of events by kind."""
        pairs = ((self.time[kind] / self.time.total(), self.events[kind] / self.events.total()) for kind in _KINDS)
        shares = "".join(f"{time:>8.1%}{events:>7.1%}" for time, events in pairs)
        return f"{self.delegates:>9}{self.exact:>6}{shares}"


def run(*, full: bool) -> bool:
    """Make the models, take the truth and print both tables; return whether no attribution is wrong."""
    with tempfile.TemporaryDirectory() as work:
        directory, names = Path(work), _FULL if full else _QUICK
        export = [sys.executable, "-m", "bench.attribution_models", work, *names]
        subprocess.run(export, stderr=subprocess.DEVNULL, check=True)  # in one process: importing torch costs the most
        trials = run_trials(directory, names)
        is_right = print_scores(trials, rewrites=True)
        return print_scores(trials, rewrites=False) and is_right


def run_trials(directory: Path, names: Sequence[str]) -> list[Trial]:
    """Run all programs in all variants; what has no truth is told and left out."""
    shim = directory / "truth.so"
    subprocess.run(["gcc", "-Wall", "-O1", "-shared", "-fPIC", "-o", str(shim), str(_SHIM), "-ldl"], check=True)
    trials = []
    for program in (directory / f"{name}.pte" for name in names):
        for variant in _VARIANTS if program.exists() else ():
            try:
                trials.append(run_with_shim(program, variant, shim))
            except NoTruthError as error:  # noqa: PERF203 - one program without truth costs the others nothing
                print(f"{program.stem}-{variant}: no truth: {error}", flush=True)
    return trials


def run_with_shim(program: Path, variant: str, shim: Path) -> Trial:
    """Run a program and say what its events computed.

    Raises:
        NoTruthError: it did not run, or the truth cannot be told.
    """
    place = program.with_name(f"{program.stem}-{variant}")
    place.mkdir()
    records = place / "truth.jsonl"
    target = python_here()
    cleared = [field for field in _VARIANTS[variant] if field in target.probe().fields]
    features = Variant(variant, None, None, cleared, 1, switch=Mechanism.CPUINFO)
    os.environ |= {"LD_PRELOAD": str(shim), "OPSCOPE_TRUTH": str(records)}
    try:
        outcome = target.execute(Job(str(program), features, _INFERENCES, 0, _SECONDS), place)
    finally:
        del os.environ["LD_PRELOAD"], os.environ["OPSCOPE_TRUTH"]
    if outcome.failure:
        raise NoTruthError(outcome.failure.message)
    if not records.exists():
        raise NoTruthError("no delegate of XNNPACK was created")
    return Trial(program, variant, place / TRACE, true_delegates(read_xnn_graphs(program), read_records(records)))


def events_by_instruction(trace: Path) -> dict[int, list[Event]]:
    """For each instruction that calls a delegate, return the events of its first call in an inference, in order."""
    frame = read_trace(trace).table.frame
    delegated = frame.filter((frame["scope"] == "delegate_op") & (frame["inference"] >= _WARMUP))
    rows: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for *key, name, duration in delegated.select("instruction", "position", "name", "duration").iter_rows():
        rows[key[0], key[1]].append((name, duration))
    events: dict[int, list[Event]] = defaultdict(list)
    for (instruction, _), own in sorted(rows.items()):
        mean = sum(duration for _, duration in own) / len(own)
        events[instruction].append(Event(own[0][0], mean + _HALF_MICROSECOND))
    return events


def score_trial(trial: Trial, *, rewrites: bool) -> Score:
    """Attribute the events of a trace and compare with the truth."""
    recorded = events_by_instruction(trial.trace)
    score = Score(len(trial.truth), 0, Counter(), Counter(), [], [], [])
    for delegate, true in zip(read_xnn_graphs(trial.program), trial.truth, strict=True):
        events = recorded[true.instruction]
        if [event.name for event in events] != [event.name for event in true.events]:
            raise SystemExit(f"{trial.program.stem} {trial.variant}: the trace has other events than the runtime")
        match = match_events(delegate.graph, [event.name for event in events], rewrites=rewrites)
        for event, claim, fact in zip(events, match.events, true.events, strict=True):
            score.time[claim.attribution.value] += int(event.duration)
            score.events[claim.attribution.value] += 1
            _note_errors(score, true, claim, fact)
        if match.problem:
            score.problems.append(f"delegate {true.delegate}: {match.problem}")
    return score._replace(exact=len(trial.truth) - len(score.problems))


def _note_errors(score: Score, true: TrueDelegate, claim: EventNodes, fact: TrueEvent) -> None:
    """Note what is claimed and is not so. Of two merged nodes of one kind, as clamps, either is the main one."""
    if claim.attribution not in {Attribution.EXACT, Attribution.ALIGNED}:
        return
    place = f"delegate {true.delegate}, {fact.name}"
    alike = fact.main is None or claim.main is None or true.xnodes[claim.main] == true.xnodes[fact.main]
    if claim.main != fact.main and not (alike and claim.main in fact.nodes):
        score.wrong_main.append(f"{place}: {claim.main}, truly {fact.main} of {fact.nodes}")
    if claim.attribution is Attribution.EXACT and claim.nodes != fact.nodes:
        score.wrong_nodes.append(f"{place}: {claim.nodes}, truly {fact.nodes}")


def print_scores(trials: Sequence[Trial], *, rewrites: bool) -> bool:
    """Print a row for each model and the variants that came out alike; return whether no claim is wrong."""
    print(f"\n{'with' if rewrites else 'without'} the replay of XNNPACK's rewrites; shares of delegate time, of events")
    heads = "".join(f"{kind:>15}" for kind in _KINDS)
    print(f"{'model':<30}{'delegates':>9}{'exact':>6}{heads}  main wrong, nodes wrong, variants")
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    notes: dict[str, list[str]] = defaultdict(list)
    are_right = True
    for trial in trials:
        name, score = trial.program.stem, score_trial(trial, rewrites=rewrites)
        wrong = len(score.wrong_main), len(score.wrong_nodes)
        are_right &= not any(wrong)
        rows[name, f"{score.shares_text}{wrong[0]:>5}{wrong[1]:>4}"].append(trial.variant)
        for note in (*score.wrong_main, *score.wrong_nodes, *(score.problems if rewrites else ())):
            notes[f"{name} {note}"].append(trial.variant)
    for (name, row), variants in rows.items():
        print(f"{name:<30}{row}  {_variants_text(variants)}", flush=True)
    for note, variants in notes.items():
        print(f"{note} ({_variants_text(variants)})")
    return are_right


def _variants_text(variants: Sequence[str]) -> str:
    return "all" if len(variants) == len(_VARIANTS) else ", ".join(variants)
