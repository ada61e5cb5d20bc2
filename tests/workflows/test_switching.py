"""Which mechanism switches features, what the variant without it shows, and what a bundle says of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeClock, FakeTarget, SwitchingFakeTarget
from opscope.api import Profiled, Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Mechanism, Role
from opscope.core.errors import FeatureError, MissingDependencyError, UsageError
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


def run(directory: Path, target: FakeTarget | None = None, **settings: Any) -> Profiled:
    """A run on a target with the trap."""
    program = write_tiny_program(directory)
    return profile(
        str(program),
        settings=Settings(**{"rounds": 8, "runs": 4, "warmup": 1, "ceilings": False, "switch": "trap", **settings}),
        out=directory / settings.pop("out", "out"),
        target=target or SwitchingFakeTarget(noise=0.005),
        clock=FakeClock(),
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
    """And its bundles say nothing of a mechanism, as they always did."""
    assert chosen_switch(SwitchingFakeTarget()).mechanism is Mechanism.CPUINFO
    done = run(tmp_path, switch="auto")
    assert [(v.name, v.switch) for v in done.content.manifest.variants] == [("accelerated", None), ("baseline", None)]


def test_auto_takes_the_trap_where_the_layout_is_not_known(tmp_path: Path) -> None:
    """Nobody has to ask for it."""
    done = run(tmp_path, SwitchingFakeTarget(noise=0.005, no_switch=UNKNOWN), switch="auto")
    assert names(done) == ["accelerated", "baseline", "untouched"]
    assert {v.switch for v in done.content.manifest.variants if v.cleared} == {Mechanism.TRAP}


def test_where_no_mechanism_can_be_used_all_reasons_are_told() -> None:
    """Those of the ones that were tried, too."""
    target = SwitchingFakeTarget(no_switch=UNKNOWN)
    target.no_trap = NO_COMPILER
    with pytest.raises(FeatureError, match=r"84 bytes; there is no C\+\+ compiler.*; hwcap needs Linux on aarch64"):
        chosen_switch(target)
    states = {state.name: (state.available, state.reason) for state in mechanism_states(target)}
    assert states["cpuinfo"] == (False, UNKNOWN.problem)
    assert states["trap"] == (False, NO_COMPILER.problem)


def test_a_target_without_the_mechanism_refuses_it(tmp_path: Path) -> None:
    """Nothing is measured with another one than was asked for."""
    with pytest.raises(FeatureError, match="the target fake switches features with cpuinfo only"):
        run(tmp_path, FakeTarget())
    assert not (tmp_path / "out").exists()


def test_an_unknown_mechanism_is_refused_with_the_near_one(tmp_path: Path) -> None:
    """Before anything runs."""
    with pytest.raises(UsageError, match='"tarp" is not allowed') as caught:
        run(tmp_path, switch="tarp")
    assert "trap" in str(caught.value.hint)


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
    """Though it would be begun with fewer by now."""
    run(tmp_path)
    done = profile(
        str(tmp_path / "tiny.pte"),
        settings=Settings(rounds=9, ceilings=False),
        out=tmp_path / "out",
        resume=True,
        target=SwitchingFakeTarget(noise=0.005),
        clock=FakeClock(),
    )
    assert names(done) == ["accelerated", "baseline", "untouched"]


def test_another_mechanism_contradicts_a_bundle(tmp_path: Path) -> None:
    """Its figures were measured with one."""
    run(tmp_path)
    with pytest.raises(UsageError, match="was begun with trap, not with cpuinfo"):
        profile(
            str(tmp_path / "tiny.pte"),
            settings=Settings(switch="cpuinfo", ceilings=False),
            out=tmp_path / "out",
            resume=True,
            target=SwitchingFakeTarget(),
            clock=FakeClock(),
            named=("--switch",),
        )


def _first_mask(manifest: Any) -> Any:
    repetitions = (one for one in manifest["repetitions"] if one["variant"] == "baseline")
    return next(repetitions)["measurement"]["mask"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: _first_mask(m).update(mechanism="cpuinfo"), "is cpuinfo, baseline is switched by trap"),
        (lambda m: _first_mask(m).update(masked=0), "is 0 where 2 fields are off"),
        (lambda m: m["variants"][2].update(switch="trap"), "is control, which must run without a switch"),
    ],
)
def test_a_proof_that_does_not_fit_its_variant_is_not_valid(
    change: Callable[[Any], object], problem: str, tmp_path: Path
) -> None:
    """As when somebody edited it."""
    run(tmp_path)
    file = tmp_path / "out/manifest.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")
    assert Bundle.open(tmp_path / "out").manifest.variants
    found = validate(tmp_path / "out")
    assert not found.valid
    assert any(problem in one.message for check in found.checks for one in check.problems), found
