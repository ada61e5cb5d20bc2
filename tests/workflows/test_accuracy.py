"""Accuracy beside speed: outputs of two programs on the same inputs, and labelled inputs from a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import Settings, compare, content, profile, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import InvalidBundleError, OpscopeError, TraceFormatError, UsageError
from opscope.experiment.protocol import Job
from opscope.reports.report import markdown_report
from opscope.workflows.reports.reports import report
from texts import NOT_THE_MEASURED_FILE

pytestmark = [pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]  # of torch and its exporter
FEW = Settings(target="local", rounds=1, runs=2, warmup=1, ceilings=False, untraced=False)
LABELS = np.array([0, 1, 2, -1])
TWO, UNFIT = np.ones((2, 3)), TraceFormatError


def labelled(path: Path, labels: np.ndarray = LABELS, seed: int = 0) -> str:
    """Images of toy_cnn, which takes float32[1,3,64,64]."""
    images = np.random.RandomState(seed).standard_normal((4, 3, 64, 64)).astype(np.float32)
    np.savez(path, images=images, labels=labels)
    return str(path)


def measured(
    program: Path, out: Path, target: FakeTarget | None = None, *, resume: bool = False, **settings: object
) -> Bundle:
    """A bundle of a program on a fake target."""
    asked = msgspec.structs.replace(FEW, **settings)
    profile(program, settings=asked, out=out, resume=resume, target=target or FakeTarget(), clock=FakeClock())
    return Bundle.open(out)


def brightest(job: Job) -> np.ndarray:
    """Four values for each input, that depend on its own."""
    with np.load(job.values or "") as file:
        values = next(iter(file.values()))
    return np.asarray(values.reshape(4, -1).mean(axis=1), np.float32)


def test_real_programs_of_two_number_types(toy_programs: dict[str, Path], tmp_path: Path) -> None:
    """fp32 and int8 on the same four images: every figure is there, and nothing but the count is claimed."""
    settings = Settings(
        target="native",
        rounds=1,
        runs=2,
        warmup=1,
        ceilings=False,
        untraced=False,
        ablate=("none",),
        inputs=labelled(tmp_path / "set.npz"),
    )
    sides = {}
    for dtype, program in toy_programs.items():
        sides[dtype] = profile(program, settings=settings, out=tmp_path / dtype).path
    found = compare(sides["fp32"], sides["int8"]).accuracy
    (output,) = found.outputs
    assert (found.inputs, output.values) == (4, 40)
    assert 0 < output.max_rel < 0.2
    assert 0.99 < output.cosine < 1
    assert (found.top1.classes, found.top1.agreement.n, found.top1.baseline.n) == (10, 4, 3)
    assert validate(sides["int8"]).valid
    told = opscope("compare", str(sides["fp32"]), str(sides["int8"]))
    assert "Outputs on 4 inputs differ" in " ".join(told.stdout.split())


def test_without_labels_the_timed_input_is_compared(toy_program: Path, tmp_path: Path) -> None:
    """Draw the same numbers from the seed on both sides; the reason why others are not compared has the way out."""
    for name, seed in (("one", 0), ("equal", 0), ("seeded", 1), ("emptied", 0)):
        measured(toy_program, tmp_path / name, seed=seed)
    found = compare(tmp_path / "one", tmp_path / "equal").accuracy
    assert (found.inputs, found.equal, found.top1, found.reason) == (1, True, None, None)
    found = compare(tmp_path / "one", tmp_path / "seeded").accuracy
    assert (found.inputs, found.outputs) == (0, [])
    assert found.reason.startswith("input 0 has other values in the candidate (SHA-256 ")
    assert found.hint == "profile both programs with the same --seed, or the same --inputs"
    report(tmp_path / "one")
    for file in tmp_path.glob("emptied/variants/*/*/outputs.npz"):
        file.unlink()
    found = compare(tmp_path / "one", tmp_path / "emptied").accuracy
    assert (found.reason, found.hint) == ("the bundle of the candidate has no outputs", "profile it again")


def test_other_labelled_inputs_are_not_compared(toy_program: Path, tmp_path: Path) -> None:
    """Compare neither other images, nor other labels of the same images."""
    for name, labels, seed in (("images", LABELS, 0), ("others", LABELS, 1), ("labels", np.array([0, 1, 2, 3]), 0)):
        measured(toy_program, tmp_path / name, inputs=labelled(tmp_path / f"{name}.npz", labels, seed))
    images, labels = (compare(tmp_path / "images", tmp_path / other).accuracy.reason for other in ("others", "labels"))
    assert images.startswith("the labelled inputs differ: 4 inputs of ")
    assert labels == "the input labels differ"


def test_variants_of_one_program_have_no_accuracy_without_labels(toy_program: Path, tmp_path: Path) -> None:
    """Leave it to another field whether their outputs agree; a trace beside a bundle has none, whichever side it is."""
    out = measured(toy_program, tmp_path / "out").path
    assert compare(f"{out}#baseline", f"{out}#accelerated").accuracy is None
    trace = next(out.glob("variants/accelerated/*/trace.etdump.zst"))
    found = compare(trace, f"{out}#accelerated", warmup=1).accuracy
    assert found.reason == "the baseline is not a bundle, so its outputs are unknown"
    assert compare(trace, trace, warmup=1).accuracy is None


def test_labelled_inputs_run_once_after_everything_that_is_timed(toy_program: Path, tmp_path: Path) -> None:
    """Call each variant four times, untraced and without warm-up; outputs, labels and hashes are in the bundle.

    A changed file of them is noticed by who reads it, and by a validation.
    """
    target = FakeTarget()
    target.outputs = brightest
    bundle = measured(toy_program, tmp_path / "out", target, inputs=labelled(tmp_path / "set.npz"))
    timed, extra = target.jobs[:-8], target.jobs[-8:]
    assert all(job.inferences == 3 for job in timed)
    assert all((job.inferences, job.warmup, job.traced) == (1, 0, False) for job in extra)
    samples = bundle.manifest.samples
    assert (samples.count, sorted(samples.outputs_sha256), samples.failures) == (4, ["accelerated", "baseline"], {})
    with np.load(bundle.path / "variants/accelerated/samples.npz") as file:
        assert file["labels"].tolist() == LABELS.tolist()
        assert file["output_0"].shape == (4, 4)
    sides = f"{bundle.path}#baseline", f"{bundle.path}#accelerated"
    found = compare(*sides).accuracy
    assert (found.inputs, found.equal, found.top1.agreement.count) == (4, True, 4)
    assert "- Same top-1 class on 4 of 4 inputs (100.0 %" in markdown_report(content(bundle.path))
    assert validate(bundle.path).valid
    np.savez(bundle.path / "variants/baseline/samples.npz", labels=LABELS, output_0=np.ones((4, 4)))
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE):
        compare(*sides)
    assert not validate(bundle.path).valid


def test_an_input_that_fails_is_told_and_run_again_with_resume(toy_program: Path, tmp_path: Path) -> None:
    """Count the run itself; the comparison says why there are no outputs."""
    file = labelled(tmp_path / "set.npz")
    broken = FakeTarget(fail=lambda number: Failure(FailureKind.SIGNAL, "ended by SIGSEGV") if number == 4 else None)
    bundle = measured(toy_program, tmp_path / "out", broken, inputs=file)
    assert list(bundle.manifest.samples.failures.values()) == ["input 1: ended by SIGSEGV"]
    found = compare(f"{bundle.path}#baseline", f"{bundle.path}#accelerated").accuracy
    assert "has no outputs for the labelled inputs: input 1: ended by SIGSEGV" in found.reason
    samples = measured(toy_program, tmp_path / "out", resume=True, inputs=file).manifest.samples
    assert (samples.failures, len(samples.outputs_sha256)) == ({}, 2)


@pytest.mark.parametrize(
    ("arrays", "error", "said"),
    [
        ({"images": TWO, "labels": np.array([0.5, 1.0])}, UNFIT, r"labels is float64\[2\], not a list of whole"),
        ({"images": TWO, "labels": np.array([[0], [1]])}, UNFIT, r"labels is int64\[2, 1\]"),
        ({"images": TWO, "labels": np.array([0, 1, 2])}, UNFIT, r"3 labels, and images has the shape \[2, 3\]"),
        ({"images": TWO, "labels": np.array([0, -7])}, UNFIT, "a label is -7"),
        ({"images": TWO[:0], "labels": np.array([], np.int64)}, UNFIT, "0 labels for 1 array of"),
        ({"labels": np.array([1])}, UNFIT, "1 labels for 0 arrays"),
        (
            {"images": np.ones((2, 3, 8, 8), np.float32), "labels": np.array([0, 1])},
            UsageError,
            r"\[1,3,8,8\], the program takes float32\[1,3,64,64\]",
        ),
    ],
)
def test_labels_that_do_not_fit(
    arrays: dict[str, np.ndarray], error: type[OpscopeError], said: str, toy_program: Path, tmp_path: Path
) -> None:
    """Refuse them before anything runs, with the call of numpy that writes such a file; the first image is timed."""
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(error, match=said) as caught:
        measured(toy_program, tmp_path / "out", inputs=str(tmp_path / "wrong.npz"))
    assert error is not UNFIT or caught.value.hint.startswith("use numpy.savez(FILE, images, labels=classes)")
    assert not (tmp_path / "out").exists()
