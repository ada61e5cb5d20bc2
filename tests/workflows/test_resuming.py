"""``--resume``: the same line again finishes a run, one that asks for another experiment is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import Profiled, Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Target
from opscope.core.errors import UsageError
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.running import run
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


EVERY = ("--target", "--threads", "--rounds", "--runs", "--warmup", "--seed", "--timeout")


@pytest.mark.parametrize("named", [EVERY, ("--oversubscribe", "--no-ceilings")])
def test_the_same_line_again_finishes_the_run(named: tuple[str, ...], tmp_path: Path) -> None:
    """Every option as it was given at first."""
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
    settings = msgspec.structs.replace(BEGUN, **change)
    with pytest.raises(UsageError) as caught:
        resumed(tmp_path, settings, option)
    assert caught.value.where == option
    assert caught.value.problem == f"the bundle in {tmp_path}/out was begun with {recorded}, not with {asked}"
    assert (bundle.path / "manifest.json").read_bytes() == before


def test_rounds_that_were_asked_for_are_no_contradiction_after_some_were_added(tmp_path: Path) -> None:
    """The plan has more of them by then."""
    growing = msgspec.structs.replace(BEGUN, until=0.001, max_rounds=4)
    begun(tmp_path, growing)
    done = resumed(tmp_path, growing, "--rounds", "--until", "--max-rounds")
    assert done.content.manifest.plan.rounds == 4
    assert done.content.manifest.request is not None
    assert done.content.manifest.request.rounds == 2


def test_a_run_is_finished_at_the_pace_it_was_begun(tmp_path: Path) -> None:
    """Rounds are added although nobody says so again: four times those asked for, and no more later."""
    bundle = begun(tmp_path)
    assert bundle.manifest.request is not None
    asked = msgspec.structs.replace(bundle.manifest.request, until=0.001)
    (bundle.path / "manifest.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(bundle.manifest, request=asked))
    )
    usual = Settings(ceilings=False)
    assert resumed(tmp_path, usual).content.manifest.plan.rounds == 8
    assert resumed(tmp_path, usual).content.manifest.plan.rounds == 8


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
    text = 'model = "tiny.pte"\nrounds = 2\nruns = 2\nwarmup = 1\nceilings = false\n'
    file.write_text(text)
    means = Means(lambda *_: None, FakeTarget(), FakeClock())
    run(file, out=tmp_path / "out", means=means)

    class Elsewhere(FakeTarget):
        def describe(self) -> Target:
            return Target("ssh", "board")

    (result,) = run(
        file, out=tmp_path / "out", resume=True, means=Means(lambda *_: None, Elsewhere(), FakeClock())
    ).experiments
    assert "target: the bundle was measured with fake, not with ssh:board" in (result.error or "")


@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_a_program_has_its_number_type(dtype: str, tmp_path: Path) -> None:
    """``--dtype`` would change nothing, and that is said; the usual type, too, when somebody names it."""
    write_tiny_program(tmp_path)
    done = opscope("profile", "tiny.pte", "--dtype", dtype, "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "--dtype: the number type of a program is fixed when it is exported" in done.stderr
    assert "export the model again" in done.stderr
    assert not (tmp_path / "out").exists()


def test_only_options_that_were_given_are_compared(tmp_path: Path) -> None:
    """A usual value that nobody named contradicts nothing, so that only the made-up target is wrong; a named does."""
    begun(tmp_path)
    line = ("profile", tmp_path / "tiny.pte", "--out", "out", "--resume", "--no-ceilings")
    assert 'no target "fake"' in opscope(*line, cwd=tmp_path).stderr
    done = opscope(*line, "--rounds", "10", cwd=tmp_path)
    assert done.returncode == 2
    assert "--rounds: the bundle in out was begun with 2, not with 10" in done.stderr
