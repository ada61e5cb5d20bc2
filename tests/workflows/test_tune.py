"""``opscope tune``: planted gains, equal settings, other numbers, settings that do not run; and real runtimes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from installed import needs_executorch, needs_litert, needs_onnxruntime, needs_openvino
from opscope.analysis.tuning import OutputClass, Tuning, TuningCandidate, TuningSpace
from opscope.api import Settings, replay_tuning, tune, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind, Repetition
from opscope.core.errors import BundleError, NotFoundError, RunError, TraceFormatError, UntrustedError, UsageError
from opscope.core.json import from_json
from opscope.experiment.protocol import Job
from programs import write_tiny_program

DATA = Path(__file__).parents[1] / "data"
SAMPLES = DATA / "onnx" / "cnn.onnx"


class TunedTarget(FakeTarget):
    """A fake target whose convolution takes 20 ms, and another time with some thread counts."""

    def __init__(self, times: dict[int, float], **more: float) -> None:
        clock = FakeClock()
        super().__init__(clock=clock, **more)
        self.clock = clock
        self.slower = lambda job: 50 * times.get(job.threads, 1.0)


def tuned(tmp_path: Path, target: TunedTarget) -> Tuning:
    """The result of a search on a fake target, in ``out``."""
    program = write_tiny_program(tmp_path)
    return tune(program, settings=Settings(), out=tmp_path / "out", target=target, clock=target.clock)


def test_a_planted_gain_is_found_and_confirmed(tmp_path: Path) -> None:
    """Its interval holds the truth, its lines stand in apply.md, and the bundle is whole."""
    found = tuned(tmp_path, TunedTarget({2: 0.4}))
    assert found.winner == "2 threads"
    winner = next(row for row in found.candidates if row.candidate.name == found.winner)
    truth = 20_108_523 / (20_108_523 - 0.6 * 20_000_000)
    assert winner.confirmed is not None
    assert winner.confirmed.low < truth < winner.confirmed.high
    assert winner.outputs is OutputClass.SAME_BITS
    assert "_unsafe_reset_threadpool(2)" in (tmp_path / "out" / "apply.md").read_text()
    assert from_json((tmp_path / "out" / "tune.json").read_bytes(), Tuning).winner == found.winner
    assert validate(tmp_path / "out" / "bundle").valid
    assert (tmp_path / "out" / "bundle" / "report.md").is_file()


@pytest.mark.parametrize("seed", range(2))
def test_among_equal_settings_the_default_stays(tmp_path: Path, seed: int) -> None:
    """And the smallest gain that would have been seen is told."""
    found = tuned(tmp_path, TunedTarget({}, seed=seed))
    assert found.winner is None
    assert {row.outcome for row in found.candidates} <= {"no difference", "dropped", "slower", "faster"}
    assert all(1 < row.confirmed.smallest < 1.2 for row in found.candidates if row.confirmed)


def test_other_numbers_are_not_even_timed(tmp_path: Path) -> None:
    """However fast they are."""
    target = TunedTarget({2: 0.1})
    target.outputs = lambda job: np.arange(4, dtype=np.float32) * (1.5 if job.threads == 2 else 1)
    found = tuned(tmp_path, target)
    other = next(row for row in found.candidates if row.candidate.threads == 2)
    assert (other.outcome, other.outputs, other.seen) == ("other numbers", OutputClass.OTHER_NUMBERS, None)
    assert other.max_rel_error == pytest.approx(0.5)
    assert sum(job.threads == 2 for job in target.jobs) == 1
    assert found.winner is None


def test_a_setting_that_does_not_run_is_named(tmp_path: Path) -> None:
    """With the runtime's message; a default that does not run is an error."""
    target = TunedTarget({})
    run = target.execute

    def failing(threads: int) -> None:
        def execute(job: Job, directory: Path) -> object:
            if job.threads == threads:
                return type(run(job, directory))(failure=Failure(FailureKind.EXIT, "no such kernel"))
            return run(job, directory)

        target.execute = execute  # type: ignore[method-assign, assignment]

    failing(2)
    found = tuned(tmp_path, target)
    failed = next(row for row in found.candidates if row.candidate.threads == 2)
    assert (failed.outcome, failed.reason) == ("does not run", "no such kernel")
    failing(0)
    with pytest.raises(RunError, match="no such kernel"):
        tune(tmp_path / "tiny.pte", out=tmp_path / "again", target=target, clock=target.clock)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    """A default whose outputs are not finite; and a directory that holds results already."""
    target = TunedTarget({})
    target.outputs = lambda _: np.full(4, np.nan, np.float32)
    with pytest.raises(UsageError, match="cannot be compared"):
        tuned(tmp_path, target)
    with pytest.raises(BundleError):
        tuned(tmp_path, TunedTarget({}))


def test_an_interrupted_tuning_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What was measured is not measured again, and the answer is that of a tuning that nothing interrupted."""
    whole = tuned(tmp_path, target := TunedTarget({2: 0.4}))
    processes = len(target.jobs)
    for stops in (processes // 3, processes - 5):  # in the search, and in the confirmation
        interrupted = TunedTarget({2: 0.4})
        interrupted.outputs = stop_after(interrupted, stops)
        directory = tmp_path / str(stops)
        with pytest.raises(KeyboardInterrupt):
            tune(tmp_path / "tiny.pte", out=directory, target=interrupted, clock=interrupted.clock)
        before = recorded(directory)
        target = TunedTarget({2: 0.4})
        found = tune(tmp_path / "tiny.pte", out=directory, resume=True, target=target, clock=target.clock)
        checks, after = len(found.candidates) + 1, recorded(directory)
        assert all(repetition in after for repetition in before)
        assert len(target.jobs) == checks + len(after) - len(before)
        assert found.winner == whole.winner
        assert validate(directory / "bundle").valid
        assert from_json((directory / "tune.json").read_bytes(), Tuning).winner == "2 threads"
    again = TunedTarget({2: 0.4})
    tune(tmp_path / "tiny.pte", out=directory, resume=True, target=again, clock=again.clock)
    assert len(again.jobs) == checks  # nothing is left to measure


def recorded(directory: Path) -> list[Repetition]:
    """All processes that the bundles of a tuning hold."""
    paths = [path for path in (directory / "search", directory / "bundle") if path.exists()]
    return [repetition for path in paths for repetition in Bundle.open(path).manifest.repetitions]


def stop_after(target: FakeTarget, count: int) -> Callable[[Job], np.ndarray]:
    """Outputs of a target that is interrupted once it ran so many processes."""

    def compute(_: Job) -> np.ndarray:
        if len(target.jobs) > count:
            raise KeyboardInterrupt
        return np.arange(4, dtype=np.float32)

    return compute


def test_what_is_resumed_was_begun_with_the_same_options(tmp_path: Path) -> None:
    """Other inputs or seeds are refused, and so is a directory where no tuning was begun."""
    tuned(tmp_path, target := TunedTarget({}))
    with pytest.raises(UsageError, match="seed = 0, not 3"):
        tune(tmp_path / "tiny.pte", settings=Settings(seed=3), out=tmp_path / "out", resume=True, target=target)
    with pytest.raises(UsageError, match="no tuning was begun"):
        tune(tmp_path / "tiny.pte", out=tmp_path / "other", resume=True, target=target)


def test_a_replay_confirms_the_winner_again(tmp_path: Path) -> None:
    """It runs the program that the bundle keeps, searches nothing, and tells the earlier gain beside the new one."""
    earlier = tuned(tmp_path, TunedTarget({2: 0.4}))
    (tmp_path / "tiny.pte").unlink()
    target = TunedTarget({2: 0.4}, seed=1)
    found = replay_tuning(tmp_path / "out", rounds=12, out=tmp_path / "again", target=target, clock=target.clock)
    (row,) = found.candidates
    assert (found.winner, found.model, found.replayed) == ("2 threads", earlier.model, str(tmp_path / "out"))
    assert row.earlier == next(each.confirmed for each in earlier.candidates if each.candidate == row.candidate)
    assert row.confirmed is not None
    assert row.confirmed.rounds == 12
    assert not (tmp_path / "again" / "search").exists()
    assert validate(tmp_path / "again" / "bundle").valid
    report = (tmp_path / "again" / "report.md").read_text()
    assert "Confirmed again, without a search" in report
    assert "in the search" not in report


def test_a_replay_of_a_gain_that_is_gone_keeps_the_default(tmp_path: Path) -> None:
    """The new measurement decides, whatever the earlier one said."""
    tuned(tmp_path, TunedTarget({2: 0.4}))
    target = TunedTarget({})
    found = replay_tuning(tmp_path / "out", out=tmp_path / "again", target=target, clock=target.clock)
    assert found.winner is None


def test_a_result_of_somebody_else_names_no_path(tmp_path: Path) -> None:
    """The runtime would open it; nothing runs. A directory without a result, or with garbage, is refused too."""
    tuned(tmp_path, TunedTarget({2: 0.4}))
    file = tmp_path / "out" / "tune.json"
    text = file.read_text().replace('"options": {}', '"options": {"library": "/tmp/evil.so"}')
    file.write_text(text)
    target = TunedTarget({})
    for content, error, words in (
        (text, UsageError, "names a path"),
        ("{}", TraceFormatError, "not a result of opscope tune"),
        (None, NotFoundError, "no tune.json"),
    ):
        file.unlink()
        if content is not None:
            file.write_text(content)
        with pytest.raises(error, match=words):
            replay_tuning(tmp_path / "out", out=tmp_path / "again", target=target, clock=target.clock)
    assert not target.jobs


def test_a_joined_setting_whose_processes_all_fail_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts help alone; together they run in the check of outputs and then never again."""
    parts = [TuningCandidate("1 thread", 1), TuningCandidate("2 threads", 2)]
    joined = TuningCandidate("both", 2, parts=["1 thread", "2 threads"])
    space = TuningSpace(TuningCandidate("default"), [*parts, joined])
    monkeypatch.setattr("opscope.runtimes.executorch.runtime.ExecuTorch.tuning_space", lambda *_: space)
    target = TunedTarget({1: 0.4, 2: 0.4})
    run = target.execute

    def execute(job: Job, directory: Path) -> object:
        outcome = run(job, directory)
        runs = sum(each.variant.name == "both" for each in target.jobs)
        return (
            type(outcome)(failure=Failure(FailureKind.EXIT, "no"))
            if job.variant.name == "both" and runs > 1
            else outcome
        )

    target.execute = execute  # type: ignore[method-assign, assignment]
    found = tuned(tmp_path, target)
    row = next(each for each in found.candidates if each.candidate == joined)
    assert (row.seen, row.confirmed, row.outcome) == (None, None, "not tried")
    assert found.winner in {"1 thread", "2 threads"}


MODELS = [
    pytest.param("onnx/cnn.onnx", (), marks=needs_onnxruntime, id="onnxruntime"),
    pytest.param("onnx/cnn.onnx", ("--runtime", "openvino"), marks=needs_openvino, id="openvino"),
    pytest.param("litert/tiny_fp32.tflite", (), marks=needs_litert, id="litert"),
    pytest.param(
        "programs/toy_cnn-fp32-5234ad148c4c/toy_cnn_xnnpack_fp32.pte", (), marks=needs_executorch, id="executorch"
    ),
]


@pytest.mark.nightly  # starts dozens of processes of a runtime
@pytest.mark.parametrize(("model", "more"), MODELS)
def test_each_runtime_is_searched_for_real(tmp_path: Path, model: str, more: tuple[str, ...]) -> None:
    """It ends with an answer, or with the exit code of a disturbed run; all settings have an outcome."""
    program = tmp_path / Path(model).name
    shutil.copy(DATA / model, program)
    done = opscope("tune", program, *more, "--minutes", "0.3", "--out", tmp_path / "out", "--lock", "warn")
    assert done.returncode in {0, UntrustedError.exit_code}, done.stderr
    found = from_json((tmp_path / "out" / "tune.json").read_bytes(), Tuning)
    assert found.candidates
    assert all(row.outcome for row in found.candidates)
    assert found.base.latency_ns
    assert (found.disturbed is not None) is (done.returncode == UntrustedError.exit_code)
    assert found.disturbed is None or found.winner is None
    if (tmp_path / "out" / "bundle").exists():
        assert validate(tmp_path / "out" / "bundle").valid
