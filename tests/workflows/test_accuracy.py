"""Accuracy beside speed: outputs of two programs on the same inputs, and labelled inputs from a file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from opscope.analysis.compare.outputs import Accuracy
from opscope.api import Settings, compare, profile, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind
from opscope.core.errors import InvalidBundleError, TraceFormatError, UsageError
from opscope.experiment.protocol import Job
from opscope.workflows.reports.reports import report
from texts import NOT_THE_MEASURED_FILE
from whole_report import whole_report

pytestmark = [pytest.mark.runtime, pytest.mark.filterwarnings("ignore")]  # of torch and its exporter
FEW = Settings(target="local", rounds=1, runs=2, warmup=1, ceilings=False, untraced=False)
LABELS = np.array([0, 1, 2, -1])


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


def accuracy(baseline: Path, candidate: Path) -> Accuracy:
    """Of two bundles."""
    found = compare(f"{baseline}#accelerated", f"{candidate}#accelerated").accuracy
    assert found is not None
    return found


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
    assert found is not None
    assert found.inputs == 4
    (output,) = found.outputs
    assert output.values == 40
    assert output.max_rel is not None
    assert output.cosine is not None
    assert 0 < output.max_rel < 0.2
    assert 0.99 < output.cosine < 1
    assert found.top1 is not None
    assert found.top1.baseline is not None
    assert (found.top1.classes, found.top1.agreement.n, found.top1.baseline.n) == (10, 4, 3)
    assert validate(sides["int8"]).valid
    told = opscope("compare", str(sides["fp32"]), str(sides["int8"]))
    assert "Outputs on 4 inputs: largest difference" in " ".join(told.stdout.split())


def test_without_labels_the_timed_input_is_compared(toy_program: Path, tmp_path: Path) -> None:
    """Both sides drew the same numbers from the seed; the outputs of the fake are equal."""
    for name in ("one", "other"):
        measured(toy_program, tmp_path / name)
    found = accuracy(tmp_path / "one", tmp_path / "other")
    assert (found.inputs, found.equal, found.top1, found.reason) == (1, True, None, None)


def test_other_inputs_are_not_compared(toy_program: Path, tmp_path: Path) -> None:
    """The reason has the hashes, and the hint the way."""
    measured(toy_program, tmp_path / "one")
    measured(toy_program, tmp_path / "other", seed=1)
    found = accuracy(tmp_path / "one", tmp_path / "other")
    assert (found.inputs, found.outputs) == (0, [])
    assert found.reason is not None
    assert found.reason.startswith("input 0 has other values in the candidate (SHA-256 ")
    assert found.hint == "profile both programs with the same --seed, or the same --inputs"
    report(tmp_path / "one")


def test_outputs_that_were_not_kept(toy_program: Path, tmp_path: Path) -> None:
    """A bundle from which somebody removed them."""
    for name in ("one", "other"):
        bundle = measured(toy_program, tmp_path / name)
    for file in bundle.path.glob("variants/*/*/outputs.npz"):
        file.unlink()
    found = accuracy(tmp_path / "one", tmp_path / "other")
    assert (found.reason, found.hint) == ("the bundle of the candidate has no outputs", "profile it again")


def test_variants_of_one_program_have_no_accuracy_without_labels(toy_program: Path, tmp_path: Path) -> None:
    """Their outputs have to agree, which another field says."""
    out = measured(toy_program, tmp_path / "out").path
    assert compare(f"{out}#baseline", f"{out}#accelerated").accuracy is None


def test_labelled_inputs_run_once_after_everything_that_is_timed(toy_program: Path, tmp_path: Path) -> None:
    """Four calls of each variant, untraced and without warm-up; outputs, labels and hashes are in the bundle."""
    target = FakeTarget()
    target.outputs = brightest
    bundle = measured(toy_program, tmp_path / "out", target, inputs=labelled(tmp_path / "set.npz"))
    timed, extra = target.jobs[:-8], target.jobs[-8:]
    assert all(job.inferences == 3 for job in timed)
    assert all((job.inferences, job.warmup, job.traced) == (1, 0, False) for job in extra)
    samples = bundle.manifest.samples
    assert samples is not None
    assert (samples.count, sorted(samples.outputs_sha256), samples.failures) == (4, ["accelerated", "baseline"], {})
    with np.load(bundle.path / "variants/accelerated/samples.npz") as file:
        assert file["labels"].tolist() == LABELS.tolist()
        assert file["output_0"].shape == (4, 4)
    found = compare(f"{bundle.path}#baseline", f"{bundle.path}#accelerated").accuracy
    assert found is not None
    assert found.top1 is not None
    assert (found.inputs, found.equal, found.top1.agreement.count) == (4, True, 4)
    assert "- Same top-1 class on 4 of 4 inputs (100.0 %" in whole_report(bundle.path)
    assert validate(bundle.path).valid


def test_a_changed_file_of_outputs_is_noticed(toy_program: Path, tmp_path: Path) -> None:
    """By who reads it, and by a validation."""
    bundle = measured(toy_program, tmp_path / "out", inputs=labelled(tmp_path / "set.npz"))
    np.savez(bundle.path / "variants/baseline/samples.npz", labels=LABELS, output_0=np.ones((4, 4)))
    with pytest.raises(InvalidBundleError, match=NOT_THE_MEASURED_FILE):
        compare(f"{bundle.path}#baseline", f"{bundle.path}#accelerated")
    assert not validate(bundle.path).valid


def test_an_input_that_fails_is_told_and_run_again_with_resume(toy_program: Path, tmp_path: Path) -> None:
    """The run itself counts; the comparison says why there are no outputs."""
    file = labelled(tmp_path / "set.npz")
    broken = FakeTarget(fail=lambda number: Failure(FailureKind.SIGNAL, "ended by SIGSEGV") if number == 4 else None)
    bundle = measured(toy_program, tmp_path / "out", broken, inputs=file)
    samples = bundle.manifest.samples
    assert samples is not None
    assert list(samples.failures.values()) == ["input 1: ended by SIGSEGV"]
    found = compare(f"{bundle.path}#baseline", f"{bundle.path}#accelerated").accuracy
    assert found is not None
    assert found.reason is not None
    assert "has no outputs for the labelled inputs: input 1: ended by SIGSEGV" in found.reason
    bundle = measured(toy_program, tmp_path / "out", resume=True, inputs=file)
    assert bundle.manifest.samples is not None
    assert (bundle.manifest.samples.failures, len(bundle.manifest.samples.outputs_sha256)) == ({}, 2)


def test_other_labelled_inputs_are_not_compared(toy_program: Path, tmp_path: Path) -> None:
    """Neither other images, nor other labels of the same images."""
    measured(toy_program, tmp_path / "one", inputs=labelled(tmp_path / "one.npz"))
    measured(toy_program, tmp_path / "two", inputs=labelled(tmp_path / "two.npz", seed=1))
    measured(toy_program, tmp_path / "three", inputs=labelled(tmp_path / "three.npz", np.array([0, 1, 2, 3])))
    images = accuracy(tmp_path / "one", tmp_path / "two").reason
    labels = accuracy(tmp_path / "one", tmp_path / "three").reason
    assert images is not None
    assert images.startswith("the labelled inputs differ: 4 inputs of ")
    assert labels == "the input labels differ"


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": np.ones((2, 3)), "labels": np.array([0.5, 1.0])}, r"labels is float64\[2\], not a list of whole"),
        ({"images": np.ones((2, 3)), "labels": np.array([[0], [1]])}, r"labels is int64\[2, 1\]"),
        ({"images": np.ones((2, 3)), "labels": np.array([0, 1, 2])}, r"3 labels, and images has the shape \[2, 3\]"),
        ({"images": np.ones((2, 3)), "labels": np.array([0, -7])}, "a label is -7"),
        ({"images": np.ones((0, 3)), "labels": np.array([], np.int64)}, "0 labels for 1 array of"),
        ({"labels": np.array([1])}, "1 labels for 0 arrays"),
    ],
)
def test_labels_that_do_not_fit(arrays: dict[str, np.ndarray], said: str, toy_program: Path, tmp_path: Path) -> None:
    """Before anything runs, with the call of numpy that writes such a file."""
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(TraceFormatError, match=said) as caught:
        measured(toy_program, tmp_path / "out", inputs=str(tmp_path / "wrong.npz"))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("use numpy.savez(FILE, images, labels=classes)")
    assert not (tmp_path / "out").exists()


def test_images_of_other_sizes_are_refused_like_any_input(toy_program: Path, tmp_path: Path) -> None:
    """Their first one is what is timed."""
    np.savez(tmp_path / "small.npz", images=np.ones((2, 3, 8, 8), np.float32), labels=np.array([0, 1]))
    with pytest.raises(UsageError, match=r"\[1,3,8,8\], the program takes float32\[1,3,64,64\]"):
        measured(toy_program, tmp_path / "out", inputs=str(tmp_path / "small.npz"))


def test_a_trace_beside_a_bundle_has_no_outputs(toy_program: Path, tmp_path: Path) -> None:
    """The reason names the side."""
    bundle = measured(toy_program, tmp_path / "out")
    trace = next(bundle.path.glob("variants/accelerated/*/trace.etdump.zst"))
    found = compare(trace, f"{bundle.path}#accelerated", warmup=1).accuracy
    assert found is not None
    assert found.reason == "the baseline is not a bundle, so its outputs are unknown"
    assert compare(trace, trace, warmup=1).accuracy is None
