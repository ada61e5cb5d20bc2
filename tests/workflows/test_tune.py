"""``opscope tune``: planted gains, equal settings, other numbers, settings that do not run; and real runtimes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from installed import needs_executorch, needs_litert, needs_onnxruntime, needs_openvino
from opscope.analysis.tuning import OutputClass, Tuning
from opscope.api import Settings, tune, validate
from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import BundleError, RunError, UntrustedError, UsageError
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
