"""Which mechanism switches features, what the variant without it shows, and what a bundle says of both."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeClock, FakeTarget, SwitchingFakeTarget
from opscope.api import Profiled, Settings, profile
from opscope.bundle.manifest import Mechanism, Role
from opscope.core.errors import FeatureError, MissingDependencyError, OpscopeError, UsageError
from opscope.reports.sections.metadata import reproduction
from opscope.workflows.measure.variants import chosen_switch, mechanism_states
from opscope.workflows.validate.validation import validate
from programs import write_tiny_program

UNKNOWN = FeatureError("this runtime's cpuinfo_isa has 84 bytes")
NO_COMPILER = MissingDependencyError("there is no C++ compiler: the library cannot be built")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown before is kept in a cache."""
    monkeypatch.setenv("OPSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()


def run(directory: Path, target: FakeTarget | None = None, *, resume: bool = False, **settings: Any) -> Profiled:
    """A run on a target with the trap."""
    program = write_tiny_program(directory)
    return profile(
        str(program),
        settings=Settings(**{"rounds": 8, "runs": 4, "warmup": 1, "ceilings": False, "switch": "trap", **settings}),
        out=directory / "out",
        target=target or SwitchingFakeTarget(noise=0.005),
        clock=FakeClock(),
        resume=resume,
        named=("--switch",) if resume and "switch" in settings else (),
    )


def names(done: Profiled) -> list[str]:
    """The variants of a bundle."""
    return [variant.name for variant in done.content.manifest.variants]


def again(directory: Path, number: int, target: FakeTarget | None = None, **settings: Any) -> Profiled:
    """Another run, in a directory of its own."""
    place = directory / str(number)
    place.mkdir()
    return run(place, target, **settings)


def test_auto_takes_cpuinfo_where_its_layout_is_proved(tmp_path: Path) -> None:
    """Say nothing of a mechanism then; the trap is taken where the layout is not known, without being asked for.

    Where none can be used all reasons are told, those of the ones that were tried, too.
    """
    assert chosen_switch(SwitchingFakeTarget()).mechanism is Mechanism.CPUINFO
    done = run(tmp_path, switch="auto")
    assert [(v.name, v.switch) for v in done.content.manifest.variants] == [("accelerated", None), ("baseline", None)]
    target = SwitchingFakeTarget(noise=0.005, no_switch=UNKNOWN)
    done = again(tmp_path, 1, target, switch="auto")
    assert names(done) == ["accelerated", "baseline", "untouched"]
    assert {v.switch for v in done.content.manifest.variants if v.cleared} == {Mechanism.TRAP}
    target.no_trap = NO_COMPILER
    with pytest.raises(FeatureError, match=r"84 bytes; there is no C\+\+ compiler.*; hwcap needs Linux on aarch64"):
        chosen_switch(target)
    states = {state.name: (state.available, state.reason) for state in mechanism_states(target)}
    assert states["cpuinfo"] == (False, UNKNOWN.problem)
    assert states["trap"] == (False, NO_COMPILER.problem)


@pytest.mark.parametrize(
    ("target", "switch", "error", "said"),
    [
        (FakeTarget(), "trap", FeatureError, "the target fake switches features with cpuinfo only"),
        (SwitchingFakeTarget(), "tarp", UsageError, '"tarp" is not allowed.*trap'),
    ],
    ids=["a target without it", "an unknown one"],
)
def test_a_mechanism_that_there_is_not_is_refused(
    target: FakeTarget, switch: str, error: type[OpscopeError], said: str, tmp_path: Path
) -> None:
    """Measure nothing with another one than was asked for."""
    with pytest.raises(error) as caught:
        run(tmp_path, target, switch=switch)
    assert re.search(said, f"{caught.value.problem} {caught.value.hint}")
    assert not (tmp_path / "out").exists()


def test_the_variant_without_the_mechanism_runs_without_it(tmp_path: Path) -> None:
    """The others run with it, whether features are off or not."""
    target = SwitchingFakeTarget(noise=0.005)
    done = run(tmp_path, target)
    assert {(bool(job.variant.cleared), job.variant.switch) for job in target.jobs} == {
        (False, Mechanism.TRAP),
        (True, Mechanism.TRAP),
        (False, None),
    }
    manifest = done.content.manifest
    assert [variant.name for variant in manifest.with_role(Role.CONTROL)] == ["untouched"]
    assert [(c.baseline.label, c.candidate.label) for c in done.content.comparisons] == [("baseline", "accelerated")]
    assert validate(tmp_path / "out").valid
    assert "--switch trap" in str(reproduction(manifest))


def test_it_is_left_out_once_it_has_shown_that_nothing_changes(tmp_path: Path) -> None:
    """For these libraries; of others nothing is known."""
    assert names(again(tmp_path, 1)) == ["accelerated", "baseline", "untouched"]
    assert names(again(tmp_path, 2)) == ["accelerated", "baseline"]
    assert names(again(tmp_path, 3, untouched=True)) == ["accelerated", "baseline", "untouched"]
    other = SwitchingFakeTarget(noise=0.005)
    other.libraries = "fedcba9876543210"
    assert names(again(tmp_path, 4, other)) == ["accelerated", "baseline", "untouched"]
    other.libraries = "00"
    assert names(again(tmp_path, 5, other, untouched=False)) == ["accelerated", "baseline"]


@pytest.mark.parametrize("fault", ["outputs", "time", "noise"])
def test_a_mechanism_that_changes_something_has_to_show_itself_again(fault: str, tmp_path: Path) -> None:
    """One other value, a slower process, or too much noise to tell: none of them is a proof."""

    def target() -> SwitchingFakeTarget:
        made = SwitchingFakeTarget(noise=0.3 if fault == "noise" else 0.005)
        if fault == "outputs":
            made.outputs = lambda job: np.arange(4, dtype=np.float32) * (1 if job.clear is None else 1.00001)
        if fault == "time":
            made.slower = lambda job: 1.0 if job.clear is None else 1.5
        return made

    done = again(tmp_path, 1, target())
    report = (tmp_path / "1/out/report.md").read_text(encoding="utf-8")
    told = {"outputs": "outputs differ", "time": "the mechanism itself changes the time", "noise": "outputs identical"}
    assert told[fault] in report
    assert names(done) == names(again(tmp_path, 2, target())) == ["accelerated", "baseline", "untouched"]


def test_a_run_is_finished_with_the_variants_it_was_begun_with(tmp_path: Path) -> None:
    """Though it would be begun with fewer by now; another mechanism contradicts its figures."""
    run(tmp_path)
    assert names(run(tmp_path, resume=True)) == ["accelerated", "baseline", "untouched"]
    with pytest.raises(UsageError, match="was begun with trap, not with cpuinfo"):
        run(tmp_path, resume=True, switch="cpuinfo")


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a run with the trap."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run(tmp_path_factory.mktemp("trapped")).path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda mask, _: mask.update(mechanism="cpuinfo"), "was changed after it was measured"),
        (lambda _, variant: variant.update(switch="trap"), "is control, which must run without a switch"),
    ],
    ids=["another mechanism", "a switched control"],
)
def test_a_proof_that_does_not_fit_its_variant_is_not_valid(
    change: Callable[[Any, Any], object], problem: str, trapped: Path, tmp_path: Path
) -> None:
    """Find a manifest that somebody edited."""
    file = shutil.copytree(trapped, tmp_path / "out") / "manifest.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    first = next(one for one in content["repetitions"] if one["variant"] == "baseline")
    change(first["measurement"]["mask"], content["variants"][2])
    file.write_text(json.dumps(content), encoding="utf-8")
    found = validate(tmp_path / "out")
    assert not found.valid
    assert any(problem in one.message for check in found.checks for one in check.problems), found
