"""Less instead of nothing: a profile where acceleration cannot be switched, or where the runtime writes no traces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Profiled, Settings, compare, content, profile, report, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Failure, FailureKind, Role, Status
from opscope.core.errors import FeatureError, MissingDependencyError, NotFoundError, RunError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.reports.content.content import headline
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.running import run as run_file
from programs import write_tiny_program
from texts import NO_SPLIT, NOTHING_MEASURED

SMALL = Settings(rounds=6, runs=4, warmup=1)
REFUSED = FeatureError("cpuinfo_isa has 99 bytes", where="lib.so", hint="--ablate none")
NO_TRACES = "executorch 1.4.1 writes no traces; 1.5.0 and later do"


def run(directory: Path, target: FakeTarget, settings: Settings = SMALL, **more: bool) -> Profiled:
    """Profile the tiny program into ``out``."""
    program = write_tiny_program(directory)
    clock = FakeClock()
    return profile(str(program), settings=settings, out=directory / "out", target=target, clock=clock, **more)


def opscope(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What a command prints, with its exit code."""
    command = [sys.executable, "-m", "opscope", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def failed(bundle: Path) -> set[str]:
    """Names of the checks of ``opscope validate`` that fail."""
    return {check.name for check in validate(bundle).checks if check.status.value == "failed"}


def refused() -> FakeTarget:
    """A target whose switch cannot be proved."""
    return FakeTarget(no_switch=REFUSED)


def test_a_switch_that_cannot_be_proved_costs_only_the_comparison(tmp_path: Path) -> None:
    """One accelerated variant with its split, layers and findings; the reason in one line; the bundle is valid."""
    done = run(tmp_path, refused())
    manifest = Bundle.open(done.path).manifest
    assert [(one.name, one.role, one.cleared) for one in manifest.variants] == [("accelerated", Role.ACCELERATED, [])]
    assert manifest.left_out.switch == "lib.so: cpuinfo_isa has 99 bytes"
    assert headline(done.content).trust == (
        "acceleration on and off was not compared: lib.so: cpuinfo_isa has 99 bytes"
    )
    assert done.content.shown is not None
    assert done.content.shown.has_split
    assert not (done.path / "comparison.json").exists()
    assert "lib.so: cpuinfo_isa has 99 bytes" in (done.path / "report.html").read_text(encoding="utf-8")
    assert failed(done.path) == set()


def test_nothing_is_proved_about_a_switch_that_is_not_used(tmp_path: Path) -> None:
    """The runner is not asked to touch cpuinfo_isa, and there is no proof to keep."""
    target = refused()
    done = run(tmp_path, target)
    assert {job.clear for job in target.jobs} == {None}
    assert all(one.measurement and one.measurement.mask is None for one in Bundle.open(done.path).manifest.repetitions)


def test_a_plain_profile_can_be_asked_for(tmp_path: Path) -> None:
    """``--ablate none`` on a CPU whose features could be switched."""
    done = run(tmp_path, FakeTarget(), Settings(rounds=2, runs=2, ablate=("none",)))
    assert done.content.manifest.left_out.switch == "--ablate none was given"
    assert done.content.comparisons == []


@pytest.mark.parametrize("asked", [Settings(ablate=("avx512",)), Settings(ladder=True)])
def test_what_the_user_asks_for_and_cannot_be_is_an_error(asked: Settings, tmp_path: Path) -> None:
    """Not a plain profile in place of a comparison that was wanted."""
    with pytest.raises(FeatureError, match="99 bytes"):
        run(tmp_path, refused(), asked)


def test_none_beside_a_feature_is_refused(tmp_path: Path) -> None:
    """It says that nothing is switched off."""
    with pytest.raises(UsageError, match="none must be the only value"):
        run(tmp_path, FakeTarget(), Settings(ablate=("none", "avx2")))


def test_a_plain_profile_is_resumed(tmp_path: Path) -> None:
    """The repetition that failed is run again, plainly too."""
    crash = Failure(FailureKind.EXIT, "gone")
    broken = FakeTarget(no_switch=REFUSED, fail=lambda job: crash if job == 3 else None)
    run(tmp_path, broken)
    assert Bundle.open(tmp_path / "out").manifest.status is Status.INCOMPLETE
    again = refused()
    run(tmp_path, again, resume=True)
    assert [job.clear for job in again.jobs] == [None]
    assert Bundle.open(tmp_path / "out").manifest.status is Status.COMPLETE


def test_other_commands_take_a_plain_profile_or_say_why_not(tmp_path: Path) -> None:
    """Report and store add take it; compare names the reason why there is no baseline in it."""
    done = run(tmp_path, refused())
    assert report(done.path, ("md",))
    assert "Not known: there is no baseline to compare with, lib.so" in (done.path / "report.md").read_text("utf-8")
    with pytest.raises(NotFoundError, match=r"acceleration was not switched off in it.*99 bytes"):
        compare(f"{done.path}#baseline", f"{done.path}#accelerated")
    added = opscope("store", "add", done.path, "--store", tmp_path / "store")
    assert (added.returncode, "1 added" in added.stdout) == (0, True)


def test_experiments_of_a_file_run_plainly_too(tmp_path: Path) -> None:
    """Where the switch cannot be proved, and where the file asks for it."""
    program = write_tiny_program(tmp_path)
    for name, lines in (("default", ""), ("asked", 'ablate = ["none"]\n')):
        file = tmp_path / f"{name}.toml"
        text = f'model = "{program.name}"\nrounds = 2\nruns = 2\nceilings = false\nout = "{name}"\n{lines}'
        file.write_text(text, encoding="utf-8")
        means = Means(lambda *_: None, target=refused() if name == "default" else FakeTarget(), clock=FakeClock())
        (result,) = run_file(file, means=means).experiments
        assert result.error is None
        assert result.content is not None
        assert [one.variant.name for one in result.content.variants] == ["accelerated"]


def untraced(slowdown: float = 2.0) -> FakeTarget:
    """A target whose runtime writes no traces."""
    return FakeTarget(slowdown=slowdown, untraceable=NO_TRACES)


def test_a_runtime_without_traces_still_gets_its_verdict(tmp_path: Path) -> None:
    """On and off without tracing, paired; no traced process is started."""
    target = untraced()
    done = run(tmp_path, target)
    assert not any(job.traced for job in target.jobs)
    comparison = done.content.primary
    assert comparison is not None
    assert (comparison.end_to_end.verdict, comparison.end_to_end.arm) == (Verdict.FASTER, "untraced")
    assert comparison.end_to_end.speedup == pytest.approx(1.8, abs=0.1)
    assert not comparison.has_split


def test_a_missing_split_is_said_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    """The reports name the version that traces; no category, operator or finding stands in for what is not known."""
    done = run(tmp_path, untraced())
    shown = done.content.shown
    assert shown is not None
    assert not shown.has_split
    assert shown.trace.format == "calls"
    assert sum(one.time_ns for one in shown.operators) == pytest.approx(shown.headline_ns)
    assert {finding.rule for finding in done.content.findings} <= {"slow_first_inference", "slow_loading"}
    for name in ("report.md", "report.html"):
        text = (done.path / name).read_text(encoding="utf-8")
        assert f"{NO_SPLIT}executorch 1.4.1 writes no traces; 1.5.0 and later do" in text
        assert "Elementwise" not in text
    analysis = json.loads((done.path / "analysis.json").read_text("utf-8"))
    assert [warning["code"] for warning in analysis["trace"]["warnings"]] == ["no_trace"]
    schema = json.loads(Path("docs/reference/schemas/analysis.schema.json").read_text("utf-8"))
    jsonschema.validate(analysis, schema)


def test_a_bundle_without_traces_is_valid_and_can_be_kept(tmp_path: Path) -> None:
    """Validate finds nothing wrong, the store takes it, reports are rewritten, and the plan can be resumed."""
    done = run(tmp_path, untraced())
    assert failed(done.path) == set()
    assert content(done.path).primary == done.content.primary
    added = opscope("store", "add", done.path, "--store", tmp_path / "store")
    assert (added.returncode, "1 added" in added.stdout) == (0, True)
    printed = opscope("compare", f"{done.path}#baseline", f"{done.path}#accelerated").stdout
    assert "The difference is not split into operators: nothing was traced" in printed
    assert "Elementwise" not in opscope("analyze", done.path).stdout


def test_a_bundle_without_traces_that_is_damaged_is_not_valid(tmp_path: Path) -> None:
    """A duration that was changed in the manifest no longer gives the figures that are stated."""
    done = run(tmp_path, untraced())
    file = done.path / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    manifest["repetitions"][0]["measurement"]["wall_ns"][2] += 1_000_000
    file.write_text(json.dumps(manifest), encoding="utf-8")
    assert failed(done.path) > set()


def test_traced_runs_alone_are_refused_where_there_are_none(tmp_path: Path) -> None:
    """--traced-only on a runtime without traces: nothing would be left."""
    with pytest.raises(MissingDependencyError, match="writes no traces"):
        run(tmp_path, untraced(), Settings(untraced=False))


def test_all_processes_failing_is_still_an_error(tmp_path: Path) -> None:
    """A plain profile of nothing is not a profile."""
    gone = FakeTarget(no_switch=REFUSED, fail=lambda _: Failure(FailureKind.EXIT, "gone"))
    with pytest.raises(RunError, match=f"{NOTHING_MEASURED}: gone"):
        run(tmp_path, gone)


@pytest.mark.runtime
def test_the_command_line_runs_a_plain_profile(toy_program: Path, tmp_path: Path) -> None:
    """``--ablate none`` with the real runtime: exit code 0, a split, no comparison, a valid bundle."""
    words = ["--ablate", "none", "--rounds", "1", "--runs", "3", "--no-ceilings", "--out", tmp_path / "out"]
    done = opscope("profile", toy_program, *words)
    assert done.returncode == 0, done.stderr
    assert "--ablate none was given" in done.stdout.replace("\n", " ")
    assert not (tmp_path / "out" / "comparison.json").exists()
    assert opscope("validate", tmp_path / "out").returncode == 0
