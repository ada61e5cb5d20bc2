"""``--resume``: the same line again finishes a run, one that asks for another experiment is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fakes import FakeClock, FakeTarget
from opscope import api
from opscope.api import Profiled, Settings, profile
from opscope.bundle.bundle import SCRATCH, SWITCH_SCRATCH, Bundle
from opscope.bundle.manifest import Status, Target
from opscope.core.errors import UsageError
from opscope.workflows.measure.experiments import Means
from programs import write_tiny_program

BEGUN = Settings(target="local", rounds=2, runs=4, warmup=1, threads=(1, 2), oversubscribe=True, ceilings=False)


def begun(directory: Path, settings: Settings = BEGUN) -> Bundle:
    """A run that is there."""
    write_tiny_program(directory)
    resumed(directory, settings, resume=False)
    return Bundle.open(directory / "out")


def resumed(directory: Path, settings: Settings, *named: str, resume: bool = True) -> Profiled:
    """The run again, with options that were given."""
    place, target = directory / "out", FakeTarget(noise=0.5)
    program = str(directory / "tiny.pte")
    clock = FakeClock()
    return profile(program, settings=settings, out=place, resume=resume, target=target, clock=clock, named=named)


@pytest.mark.parametrize(
    "named",
    [
        ("--target", "--threads", "--rounds", "--runs", "--warmup", "--seed", "--timeout"),
        ("--oversubscribe", "--no-ceilings"),
    ],
)
def test_the_same_line_again_finishes_the_run(named: tuple[str, ...], tmp_path: Path) -> None:
    """Take every option as it was given at first."""
    begun(tmp_path)
    assert resumed(tmp_path, BEGUN, *named).content.manifest.plan.rounds == 2


@pytest.mark.parametrize(
    ("option", "change", "recorded", "asked"),
    [
        ("--target", {"target": "ssh:board"}, "fake", "ssh:board"),
        ("--threads", {"threads": (1,)}, "1,2", "1"),
        ("--affinity", {"affinity": (1, 0)}, "all CPUs", "0,1"),
        ("--nice", {"nice": 5}, "0", "5"),
        ("--ablate", {"ablate": ("avx2",)}, "avx512", "avx2"),
        ("--ladder", {"ladder": True}, "--ablate avx512", "--ladder"),
        ("--rounds", {"rounds": 3}, "2", "3"),
        ("--runs", {"runs": 5}, "4", "5"),
        ("--warmup", {"warmup": 0}, "1", "0"),
        ("--seed", {"seed": 7}, "0", "7"),
        ("--timeout", {"timeout": 60.5}, "600", "60.5"),
        ("--traced-only", {"untraced": False}, "untraced runs too", "traced runs only"),
        ("--methods", {"methods": ("forward:2",)}, "the only method", "forward, forward"),
        ("--input", {"input": ("default", "float32[2]=ones")}, "random inputs", "default, float32[2]=ones"),
        ("--models", {"models": "mine"}, "the default directory", "mine"),
    ],
)
def test_another_experiment_is_not_finished(
    option: str, change: dict[str, object], recorded: str, asked: str, tmp_path: Path
) -> None:
    """The error names the option, what the bundle has and what was given; what was not given is not asked for."""
    bundle = begun(tmp_path)
    before = (bundle.path / "manifest.json").read_bytes()
    with pytest.raises(UsageError) as caught:
        resumed(tmp_path, msgspec.structs.replace(BEGUN, **change), option)
    problem = f"the bundle in {tmp_path}/out was begun with {recorded}, not with {asked}"
    assert (caught.value.where, caught.value.problem) == (option, problem)
    assert (bundle.path / "manifest.json").read_bytes() == before


def test_a_run_is_finished_at_the_pace_it_was_begun(tmp_path: Path) -> None:
    """Add rounds although nobody says so again: four times those asked for, and no more later.

    Rounds that were asked for are no contradiction then, although the plan has more by now.
    """
    growing = msgspec.structs.replace(BEGUN, until=0.001, max_rounds=4)
    begun(tmp_path, growing)
    manifest = resumed(tmp_path, growing, "--rounds", "--until", "--max-rounds").content.manifest
    assert (manifest.plan.rounds, manifest.request.rounds) == (4, 2)
    asked = msgspec.structs.replace(manifest.request, max_rounds=None)
    file = tmp_path / "out" / "manifest.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, request=asked)))
    for _ in range(2):
        assert resumed(tmp_path, Settings(ceilings=False)).content.manifest.plan.rounds == 8


def test_arrays_that_changed_meanwhile_are_other_inputs(tmp_path: Path) -> None:
    """A file of the same name with other values; the same values are the same experiment."""
    program, file = Path(__file__).parents[1] / "data/two_methods.pte", tmp_path / "my.npz"
    settings = msgspec.structs.replace(BEGUN, inputs=str(file), methods=("prefill",))

    def again(*named: str, resume: bool = True) -> Profiled:
        target, out = FakeTarget(), tmp_path / "out"
        return profile(program, settings=settings, out=out, resume=resume, target=target, named=named)

    np.savez(file, np.ones((2, 4), np.float32))
    again(resume=False)
    again("--inputs", "--methods")
    np.savez(file, np.zeros((2, 4), np.float32))
    with pytest.raises(UsageError, match=r"arr_0 of my\.npz as it was, not with arr_0 of my\.npz as it is"):
        again("--inputs")


def test_a_file_that_moved_to_another_target_is_refused(tmp_path: Path) -> None:
    """Of `opscope run`: the error names where it was begun and where it would go on."""
    write_tiny_program(tmp_path)
    file = tmp_path / "some.toml"
    file.write_text('model = "tiny.pte"\nrounds = 2\nruns = 2\nwarmup = 1\nceilings = false\n')
    api.run(file, out=tmp_path / "out", means=Means(target=FakeTarget(), clock=FakeClock()))
    elsewhere = FakeTarget()
    elsewhere.describe = lambda: Target("ssh", "board")
    means = Means(target=elsewhere, clock=FakeClock())
    (result,) = api.run(file, out=tmp_path / "out", resume=True, means=means).experiments
    assert "target: the bundle was measured with fake, not with ssh:board" in (result.error or "")


@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_a_program_has_its_number_type(dtype: str, tmp_path: Path, run: Callable[..., tuple[int, str]]) -> None:
    """Refuse ``--dtype``, which would change nothing, even for the usual type, when somebody names it."""
    code, said = run("profile", write_tiny_program(tmp_path), "--dtype", dtype, "--out", tmp_path / "out")
    assert (code, "--dtype: the number type of a program is fixed when it is exported" in said) == (2, True)
    assert "export the model again" in said
    assert not (tmp_path / "out").exists()


def test_only_options_that_were_given_are_compared(tmp_path: Path, run: Callable[..., tuple[int, str]]) -> None:
    """Find no contradiction in a usual value that nobody named, so that only the made-up target is wrong."""
    begun(tmp_path)
    line = ("profile", tmp_path / "tiny.pte", "--out", tmp_path / "out", "--resume", "--no-ceilings")
    assert 'no target "fake"' in run(*line)[1]
    code, said = run(*line, "--rounds", "10")
    assert (code, "out was begun with 2, not with 10" in said) == (2, True)


def test_what_a_killed_run_left_is_removed_at_the_end(tmp_path: Path) -> None:
    """Scratch of its runner and its switch, what a process was asked, half-written files; files of others stay."""
    bundle = begun(tmp_path)
    manifest = bundle.manifest
    lost = manifest.repetitions[-1]
    shutil.rmtree(bundle.path / lost.directory)
    bundle.restate(msgspec.structs.replace(manifest, repetitions=manifest.repetitions[:-1], status=Status.INCOMPLETE))
    killed, foreign = bundle.path / lost.directory, bundle.path / f"{lost.directory}-attempt-9"
    for directory in (killed, foreign):
        (directory / SCRATCH).mkdir(parents=True)
        (directory / SCRATCH / "answer.json").write_text("{}")
        (directory / SWITCH_SCRATCH).mkdir()
        (directory / "request.json").write_text("{}")
    (bundle.path / ".manifest.json.1f3a5b7c.tmp").write_text("{")
    (foreign / "notes.txt").write_text("mine")
    alike = bundle.path / ".notes.1f.tmp"  # opscope names none of its files so
    alike.write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / SCRATCH).mkdir(parents=True)
    link = killed.with_name("round-77")
    link.symlink_to(elsewhere)
    own_directory = killed.with_name("my-notes")
    own_directory.mkdir()
    resumed(tmp_path, BEGUN)
    assert (elsewhere / SCRATCH).is_dir()
    assert own_directory.is_dir()
    link.unlink()
    assert alike.read_text() == "mine"
    alike.unlink()
    assert not [path for name in (SCRATCH, SWITCH_SCRATCH, "request.json", "*.tmp") for path in bundle.path.rglob(name)]
    assert not killed.exists()
    assert (foreign / "notes.txt").read_text() == "mine"
