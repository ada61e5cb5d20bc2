"""The whole pipeline on a fake target with faked time: what is found is what was put in.

Less instead of nothing: a profile where acceleration cannot be switched, or where the runtime writes no traces.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias

import jsonschema
import msgspec
import numpy as np
import pytest

import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import Profiled, Settings, analyze, compare, content, profile, report, to_json, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Conditions, Failure, FailureKind, Role, Status, Target
from opscope.core.errors import (
    FeatureError,
    MissingDependencyError,
    NotFoundError,
    RunError,
    TraceFormatError,
    UsageError,
)
from opscope.core.stats.effect import Verdict
from opscope.experiment.config_rules import read_opscope_config
from opscope.measurements.analyses import comparison_within
from opscope.program.operators.kinds import Category
from opscope.reports.content.content import SHORTEST_NS, headline
from opscope.reports.report import html_report, markdown_report, summary
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.profiling import planned_experiment
from opscope.workflows.measure.running import run as run_file
from opscope.workflows.measure.variants import variants_of
from programs import write_tiny_program
from terminal_text import text_of
from texts import MISSING_OR_CHANGED, NO_SPLIT, NO_TEMPERATURE, NOTHING_MEASURED

SMALL = Settings(rounds=6, runs=4, warmup=1)
GONE = Failure(FailureKind.EXIT, "gone")
Run: TypeAlias = Callable[..., tuple[int, str]]
REFUSED = FeatureError("cpuinfo_isa has 99 bytes", where="lib.so", hint="--ablate none")
NO_TRACES = "executorch 1.4.1 writes no traces; 1.5.0 and later do"


def measured(directory: Path, target: FakeTarget, settings: Settings = SMALL, **more: bool) -> Profiled:
    """Profile the tiny program into ``out``."""
    program = write_tiny_program(directory)
    clock = FakeClock()
    return profile(str(program), settings=settings, out=directory / "out", target=target, clock=clock, **more)


class Ran(NamedTuple):
    """A run with usual settings, and the target that it ran on."""

    done: Profiled
    target: FakeTarget


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The convolution takes twice as long without AVX-512; the add does not care."""
    return ran(tmp_path_factory.mktemp("usual"), FakeTarget(slowdown=2.0))


def ran(directory: Path, target: FakeTarget) -> Ran:
    """A run of a target with usual settings."""
    return Ran(measured(directory, target), target)


def test_a_slowdown_of_two_is_found(usual: Ran) -> None:
    """Clear AVX-512 in half of the jobs, and trace half of those of each; the verdict says faster."""
    comparison = usual.done.content.primary
    assert comparison.end_to_end.verdict is Verdict.FASTER
    assert comparison.end_to_end.speedup == pytest.approx(1.8, abs=0.1)
    speedups = {change.category: change.speedup for change in comparison.categories}
    assert speedups[Category.CONVOLUTION] == pytest.approx(2.0, abs=0.1)
    assert speedups[Category.ELEMENTWISE] == pytest.approx(1.0, abs=0.1)
    cleared = [tuple(job.clear) for job in usual.target.jobs]
    assert cleared.count(()) == cleared.count(("avx512f", "avx512bw")) == 12
    assert [job.traced for job in usual.target.jobs] == [False, False, True, True] * 6


def test_identical_variants_are_seldom_called_different(tmp_path: Path) -> None:
    """Twelve A/A experiments with noise between processes: at most two verdicts (more has a chance of 2 %)."""
    verdicts = []
    for seed in range(12):
        directory = tmp_path / str(seed)
        directory.mkdir()
        target = FakeTarget(slowdown=1.0, noise=0.1, seed=seed)
        comparison = measured(directory, target, Settings(rounds=6, runs=2, warmup=0, seed=seed)).content.primary
        verdicts.append(comparison.end_to_end.verdict)
    assert sum(verdict is not Verdict.NO_DIFFERENCE for verdict in verdicts) <= 2


def test_the_bundle_holds_what_the_contract_names(usual: Ran) -> None:
    """Write manifest, program, traces, analyses, comparison and both reports.

    The number type of a .pte is fixed: the report speaks of exporting the model in another one, not of an option.
    """
    names = {str(path.relative_to(usual.done.path)) for path in usual.done.path.rglob("*") if path.is_file()}
    assert {
        "manifest.json",
        "analysis.json",
        "comparison.json",
        "report.md",
        "report.html",
        "model/tiny.pte",
        "variants/baseline/analysis.json",
        "variants/accelerated/round-00/trace.etdump.zst",
    } <= names
    assert "variants/accelerated/analysis.json" not in names  # it is the one beside the report
    text = (usual.done.path / "report.md").read_text() + (usual.done.path / "report.html").read_text()
    assert "export the model in int8" in text
    assert "--dtype" not in text


def test_the_ladder_has_a_variant_for_each_step(tmp_path: Path) -> None:
    """The staircase of this CPU, its last step the baseline, each compared to it."""
    done = measured(tmp_path, FakeTarget(), Settings(rounds=6, runs=2, warmup=0, ladder=True))
    variants = [(v.name, v.role) for v in done.content.manifest.variants]
    assert variants == [
        ("accelerated", Role.ACCELERATED),
        ("without-avx512", Role.INTERMEDIATE),
        ("without-avx2", Role.INTERMEDIATE),
        ("without-avx", Role.INTERMEDIATE),
        ("baseline", Role.BASELINE),
    ]
    assert done.content.comparisons[0].candidate.label == "accelerated"
    assert len(done.content.comparisons) == 4


def test_what_is_switched_off_depends_on_the_weights(toy_programs: dict[str, Path]) -> None:
    """Leave AMX on for single precision, for which it does nothing: a comparison would show no difference."""
    target = FakeTarget()
    found = target.probe()
    target.probe = lambda: msgspec.structs.replace(found, fields=[*found.fields, "amx_tile", "amx_int8"])
    off = {}
    for dtype, program in toy_programs.items():
        asked = planned_experiment("one", str(program), SMALL, None)
        off[dtype] = [variant.ablated for variant in variants_of(asked, target)[0]]
    for dtype in ("fp32", "int8"):  # before its export, in the same way
        asked = planned_experiment("one", "mobilenet_v3_small", msgspec.structs.replace(SMALL, dtype=dtype), None)
        assert [variant.ablated for variant in variants_of(asked, target)[0]] == off[dtype]
    assert off == {"fp32": [[], ["avx512"]], "int8": [[], ["amx"]]}


def test_thread_counts_are_variants_of_their_own(tmp_path: Path) -> None:
    """Two thread counts make two pairs, compared within a thread count."""
    done = measured(tmp_path, FakeTarget(), Settings(rounds=6, runs=2, warmup=0, threads=(1, 2)))
    pairs = [(c.baseline.label, c.candidate.label) for c in done.content.comparisons]
    assert pairs == [("baseline-t1", "accelerated-t1"), ("baseline-t2", "accelerated-t2")]
    assert [part.partition(":")[0] for part in headline(done.content).text.split("; ")] == ["1 thread", "2 threads"]
    told = text_of(summary(done.content), 160)
    assert ", 1 and 2 threads\n" in told
    assert "\nWith 1 thread, as accelerated-t1:\n\ncategory " in told
    assert ", 1 and 2 threads</h1>" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(("crashed", "pairs"), [(2, 6), (4, 7)])
def test_a_failed_round_leaves_the_others_and_is_told(tmp_path: Path, crashed: int, pairs: int) -> None:
    """The verdict rests on the untraced arm: a crash there leaves one pair out, one of a traced process none."""
    crash = Failure(FailureKind.SIGNAL, "the process was killed by SIGSEGV", signal="SIGSEGV")
    done = measured(
        tmp_path, FakeTarget(fail=lambda job: crash if job == crashed else None), Settings(rounds=7, runs=2, warmup=0)
    )
    ends = done.content.primary.end_to_end
    assert (ends.baseline_processes, ends.candidate_processes) == (pairs, pairs)
    for name in ("report.md", "report.html"):
        assert "SIGSEGV" in (tmp_path / "out" / name).read_text()


@pytest.mark.parametrize(("keep_going", "failures"), [(False, 2), (True, 24)])
def test_nothing_measured_is_an_error_and_keeps_the_evidence(
    tmp_path: Path, failures: int, *, keep_going: bool
) -> None:
    """End a run once both variants failed alike, as the rest would, unless it is told to keep going."""
    missing = Failure(FailureKind.EXIT, "there is no input sr")
    settings = msgspec.structs.replace(SMALL, keep_going=keep_going)
    with pytest.raises(RunError, match=f"{NOTHING_MEASURED}: there is no input sr") as caught:
        measured(tmp_path, FakeTarget(fail=lambda _: missing), settings)
    assert ("skipped 22 more processes, --keep-going tries them" in str(caught.value.hint)) is not keep_going
    assert len(Bundle.open(tmp_path / "out").manifest.failures()) == failures


def test_failures_of_an_earlier_attempt_end_no_later_one(tmp_path: Path) -> None:
    """Ask only what fails since then whether it fails alike, as the cause may be mended; refuse a changed program."""
    old, new = Failure(FailureKind.EXIT, "there is no input sr"), Failure(FailureKind.EXIT, "an accident")
    with contextlib.suppress(RunError):
        measured(tmp_path, FakeTarget(fail=lambda _: old))
    again, resumed = FakeTarget(fail=lambda job: new if job == 1 else None), {"out": tmp_path / "out", "resume": True}
    profile(tmp_path / "tiny.pte", settings=SMALL, target=again, clock=FakeClock(), **resumed)
    assert len(again.jobs) > 2
    (tmp_path / "out" / "model" / "tiny.pte").write_bytes(b"other")
    with pytest.raises(RunError, match=MISSING_OR_CHANGED):
        profile(tmp_path / "tiny.pte", target=FakeTarget(), **resumed)


def test_what_fails_otherwise_on_the_other_variant_goes_on(tmp_path: Path) -> None:
    """Two causes may be two accidents; one success is enough, too."""
    causes = [Failure(FailureKind.EXIT, "one cause"), Failure(FailureKind.EXIT, "another cause")]
    for name in "ab":
        (tmp_path / name).mkdir()
    with pytest.raises(RunError):
        measured(tmp_path / "a", FakeTarget(fail=lambda job: causes[job % 2]))
    assert len(Bundle.open(tmp_path / "a" / "out").manifest.failures()) == 24
    done = measured(tmp_path / "b", FakeTarget(fail=lambda job: causes[0] if 4 < job < 9 else None))
    assert len(done.content.manifest.failures()) == 4


@pytest.mark.parametrize(("keep_going", "hung"), [(False, 2), (True, 12)])
def test_a_variant_that_hangs_is_tried_twice(tmp_path: Path, hung: int, *, keep_going: bool) -> None:
    """Run the other variant to its end, and call the run incomplete: each further try costs the whole time limit."""
    target = FakeTarget(fail=lambda _: TIMED_OUT if target.jobs[-1].variant.cleared else None)
    done = measured(tmp_path, target, msgspec.structs.replace(SMALL, keep_going=keep_going)).content.manifest
    assert [one.variant for one in done.failures()] == ["baseline"] * hung
    assert sum(one.ok for one in done.repetitions) == 12
    assert (done.status, len(done.pending())) == (Status.INCOMPLETE, 12)


TIMED_OUT = Failure(FailureKind.TIMEOUT, "timed out")


def test_a_variant_can_be_addressed(usual: Ran) -> None:
    """Read one by BUNDLE#variant, the accelerated one by the bundle alone; two variants of a bundle are paired.

    The median is the one that follows from the trace files; with warm-up alone there is none, and no empty result.
    """
    out = usual.done.path
    assert analyze(f"{out}#baseline").variant == "baseline"
    found = analyze(out)
    assert found == analyze(f"{out}#accelerated")
    comparison = compare(f"{out}#baseline", f"{out}#accelerated")
    assert comparison.end_to_end.design == "paired"
    assert to_json(comparison_within(Bundle.open(out), comparison)) == to_json(content(out).primary)
    table = opscope.read(out)
    measured = table.inferences().filter(~table.inferences()["warmup"])["duration"]
    assert (found.traced.median_ns, found.traced.n) == (measured.median(), 24)
    assert sum(row.time_ns for row in (*found.operators, *found.outside)) == pytest.approx(found.headline_ns)
    with pytest.raises(TraceFormatError, match="no complete inference remains"):
        analyze(out, warmup=100)


def test_a_directory_of_traces_is_one_side_with_as_many_processes(tmp_path: Path) -> None:
    """Traces from elsewhere, compared as independent groups: eight against eight decide."""
    measured(tmp_path, FakeTarget(), Settings(rounds=8, runs=4, warmup=0))
    for name in ("baseline", "accelerated"):
        (tmp_path / name).mkdir()
        for number, path in enumerate(sorted((tmp_path / "out" / "variants" / name).rglob("*.etdump.zst"))):
            (tmp_path / name / f"{number}.etdump").write_bytes(path.read_bytes())
    found = compare(tmp_path / "baseline", tmp_path / "accelerated", warmup=0).end_to_end
    assert (found.design, found.verdict) == ("unpaired", Verdict.FASTER)
    assert found.baseline_processes == 8


@pytest.mark.parametrize(
    ("noise", "pace", "rounds"),
    [
        (0.001, {"until": 0.05, "max_rounds": 13}, 6),
        (0.5, {"until": 0.05, "max_rounds": 13}, 13),
        (0.0, {"min_seconds": 0.015}, 9),
    ],
    ids=["narrow at once", "never narrow", "until enough was measured"],
)
def test_rounds_are_added(tmp_path: Path, usual: Ran, noise: float, pace: dict[str, float], rounds: int) -> None:
    """Add none for quiet processes, as many as are allowed for noisy ones; the order of the first ones stays.

    Four inferences of half a millisecond a round: fifteen milliseconds take more than six rounds.
    """
    settings = msgspec.structs.replace(SMALL, ceilings=False, **pace)
    manifest = measured(tmp_path, FakeTarget(noise=noise), settings).content.manifest
    assert (manifest.plan.rounds, manifest.status) == (rounds, Status.COMPLETE)
    assert len(manifest.plan.order) == len(manifest.plan.timed_order) == rounds
    assert manifest.plan.order[:6] == usual.done.content.manifest.plan.order


def test_a_finished_profile_can_be_given_more_rounds(tmp_path: Path) -> None:
    """``--resume`` keeps the rounds of the bundle and adds some; the settings that the bundle holds have no effect."""
    measured(tmp_path, FakeTarget(noise=0.5))
    target, settings = FakeTarget(noise=0.5), Settings(rounds=2, seed=7, ceilings=False, until=0.001, max_rounds=8)
    done = profile(str(tmp_path / "tiny.pte"), settings=settings, out=tmp_path / "out", resume=True, target=target)
    assert (done.content.manifest.plan.rounds, done.content.manifest.plan.seed) == (8, 0)
    assert len(target.jobs) == 2 * 2 * 2


def test_a_file_and_the_command_line_have_the_same_defaults(tmp_path: Path) -> None:
    """Settings and a file that names nothing but a model ask for the same."""
    from_file = read_opscope_config({"model": "m"}, tmp_path / "some.toml").experiments[0]
    assert from_file.own() == Settings().own()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(rounds=0),
        Settings(runs=0),
        Settings(warmup=-1),
        Settings(threads=(0,)),
        Settings(threads=()),
        Settings(ladder=True, ablate=("avx2",)),
        Settings(timeout=0.0),
        Settings(until=2.0),
        Settings(cooldown_seconds=-1.0),
        Settings(max_temperature=1_000.0),
        Settings(max_rounds=20),
        Settings(until=0.1, max_rounds=5),
        Settings(target="toaster"),
        Settings(target="adb:-x"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Settings, tmp_path: Path) -> None:
    """Before anything is written, with the option named."""
    program = write_tiny_program(tmp_path)
    target = None if settings.target != "local" else FakeTarget()
    with pytest.raises(UsageError) as caught:
        profile(str(program), settings=settings, out=tmp_path / "out", target=target)
    assert (caught.value.where or "").startswith("--")
    assert not (tmp_path / "out").exists()


def test_rows_of_two_methods_are_told_apart(tmp_path: Path) -> None:
    """Operators of one name that two methods call are not two rows that are alike; of one method none is named."""
    shown = measured(tmp_path, FakeTarget(), Settings(rounds=2, runs=2, ceilings=False, ablate=("none",))).content
    operators = markdown_report(shown).partition("## All Operators")[2]
    assert "forward: " not in operators
    (result,) = shown.variants
    own = result.analysis.operators
    twice = msgspec.structs.replace(
        result.analysis, operators=[*own, *(msgspec.structs.replace(o, method="decode") for o in own)]
    )
    both = msgspec.structs.replace(shown, variants=[msgspec.structs.replace(result, analysis=twice)])
    text = markdown_report(both).partition("## All Operators")[2].partition("\n## ")[0]
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    closing = len(result.analysis.outside) + 1  # what leads to the latency, and the latency
    short = 2 * sum(one.shown_ns < SHORTEST_NS for one in own)
    assert len(names) == len(set(names)) == 1 + 2 * len(own) - short + bool(short) + closing
    assert "| decode: " in text
    assert "decode: " in html_report(both)


def test_outputs_of_an_emulated_run_are_told_of_once(tmp_path: Path) -> None:
    """Compare them in the headline, so that the quality below does not say that nobody did."""
    target = FakeTarget()
    target.describe = lambda: Target("fake", "", emulated=True)
    target.outputs = lambda _: np.ones(3, np.float32)
    measured(tmp_path, target, Settings(rounds=2, runs=2, ceilings=False))
    text = markdown_report(content(tmp_path / "out"))
    assert "the outputs of accelerated equal those of baseline" in text
    assert "outputs were not compared" not in text
    assert "all variants compute the same results" in (tmp_path / "out/report.html").read_text()


def test_api_names_are_functions_although_rooms_have_them() -> None:
    """``opscope.read`` and ``opscope.report`` stay callable after the rooms of that name were imported."""
    import opscope.readers.registry
    import opscope.reports.report

    assert callable(opscope.read)
    assert callable(opscope.report)
    assert "profile" in dir(opscope)
    with pytest.raises(AttributeError, match="no attribute 'profle'"):
        _ = opscope.profle


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    """The wall clock is set back by a day between repetitions: durations come from the other one."""

    class JumpingClock(FakeClock):
        def now(self) -> datetime:
            return super().now() - timedelta(days=self.seconds * 1e3)

    clock = JumpingClock()
    done = profile(
        str(write_tiny_program(tmp_path)),
        settings=SMALL,
        out=tmp_path / "out",
        target=FakeTarget(clock=clock),
        clock=clock,
    )
    repetitions = done.content.manifest.repetitions
    assert all(repetition.seconds is not None and repetition.seconds >= 0 for repetition in repetitions)
    assert done.content.manifest.status is Status.COMPLETE
    assert len({repetition.started for repetition in repetitions}) > 1


def failed(bundle: Path) -> set[str]:
    """Names of the checks of ``opscope validate`` that fail."""
    return {check.name for check in validate(bundle).checks if check.status.value == "failed"}


def refused() -> FakeTarget:
    """A target whose switch cannot be proved."""
    return FakeTarget(no_switch=REFUSED)


def untraced() -> FakeTarget:
    """A target whose runtime writes no traces."""
    return FakeTarget(untraceable=NO_TRACES)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run on a target whose switch cannot be proved, and that target."""
    return ran(tmp_path_factory.mktemp("plain"), refused())


@pytest.fixture(scope="module")
def without_traces(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run on a target whose runtime writes no traces, and that target."""
    return ran(tmp_path_factory.mktemp("untraced"), untraced())


def test_a_switch_that_cannot_be_proved_costs_only_the_comparison(plain: Ran) -> None:
    """Measure one accelerated variant with its split, and say the reason in one line; the bundle is valid.

    The runner is not asked to touch cpuinfo_isa, so there is no proof to keep.
    """
    done, target = plain
    manifest = Bundle.open(done.path).manifest
    assert [(one.name, one.role, one.cleared) for one in manifest.variants] == [("accelerated", Role.ACCELERATED, [])]
    assert {job.clear for job in target.jobs} == {None}
    assert {one.measurement.mask for one in manifest.repetitions} == {None}
    assert manifest.left_out.switch == "lib.so: cpuinfo_isa has 99 bytes"
    assert headline(done.content).trust.endswith(": lib.so: cpuinfo_isa has 99 bytes")
    assert done.content.shown.has_split
    assert not (done.path / "comparison.json").exists()
    assert "lib.so: cpuinfo_isa has 99 bytes" in (done.path / "report.html").read_text(encoding="utf-8")
    assert failed(done.path) == set()


def test_a_plain_profile_can_be_asked_for(tmp_path: Path) -> None:
    """Take ``--ablate none`` on a CPU whose features could be switched, and say what has no effect then.

    There are no intervals for a width of them, and a temperature cannot be read.
    """
    target = FakeTarget()
    target.conditions = lambda: Conditions(0.1, 3000.0, None)
    settings = Settings(rounds=2, runs=2, ceilings=False, ablate=("none",), until=0.1, max_temperature=60.0)
    done = measured(tmp_path, target, settings)
    assert (done.content.manifest.left_out.switch, done.content.comparisons) == ("--ablate none was given", [])
    assert done.notes == [NO_TEMPERATURE, "nothing is compared with a baseline, so until has no effect"]


@pytest.mark.parametrize(
    ("target", "settings", "error", "said"),
    [
        (refused(), Settings(ablate=("avx512",)), FeatureError, "99 bytes"),
        (refused(), Settings(ladder=True), FeatureError, "99 bytes"),
        (FakeTarget(), Settings(ablate=("none", "avx2")), UsageError, "none must be the only value"),
        (untraced(), Settings(untraced=False), MissingDependencyError, "writes no traces"),
        (FakeTarget(no_switch=REFUSED, fail=lambda _: GONE), SMALL, RunError, f"{NOTHING_MEASURED}: gone"),
    ],
    ids=["features", "a ladder", "none beside a feature", "traced runs alone", "all processes fail"],
)
def test_what_the_user_asks_for_and_cannot_be_is_an_error(
    target: FakeTarget, settings: Settings, error: type[Exception], said: str, tmp_path: Path
) -> None:
    """Give no plain profile in place of what was wanted."""
    with pytest.raises(error, match=said):
        measured(tmp_path, target, settings)


def test_a_plain_profile_is_resumed(tmp_path: Path) -> None:
    """Run the repetition that failed again, plainly too."""
    measured(tmp_path, FakeTarget(no_switch=REFUSED, fail=lambda job: GONE if job == 3 else None))
    assert Bundle.open(tmp_path / "out").manifest.status is Status.INCOMPLETE
    again = refused()
    measured(tmp_path, again, resume=True)
    assert [job.clear for job in again.jobs] == [None]
    assert Bundle.open(tmp_path / "out").manifest.status is Status.COMPLETE


def test_other_commands_take_a_plain_profile_or_say_why_not(plain: Ran, tmp_path: Path, run: Run) -> None:
    """Report it and add it to a store; compare names the reason why there is no baseline in it."""
    done = plain.done
    (page,) = report(done.path, ("md",), out=tmp_path)
    assert "Not known: there is no baseline to compare with, lib.so" in page.read_text("utf-8")
    with pytest.raises(NotFoundError, match=r"acceleration was not switched off in it.*99 bytes"):
        compare(f"{done.path}#baseline", f"{done.path}#accelerated")
    code, said = run("store", "add", done.path, "--store", tmp_path / "store")
    assert (code, "1 added" in said) == (0, True)


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
        assert [one.variant.name for one in result.content.variants] == ["accelerated"]


def test_a_runtime_without_traces_still_gets_its_verdict(without_traces: Ran) -> None:
    """Pair on and off without tracing; no traced process is started."""
    done, target = without_traces
    assert not any(job.traced for job in target.jobs)
    ends = done.content.primary.end_to_end
    assert (ends.verdict, ends.arm) == (Verdict.FASTER, "untraced")
    assert ends.speedup == pytest.approx(1.8, abs=0.1)
    assert not done.content.primary.has_split


def test_a_missing_split_is_said_and_nothing_is_made_of_it(without_traces: Ran) -> None:
    """Name the version that traces; no category, operator or finding stands in for what is not known."""
    done = without_traces.done
    shown = done.content.shown
    assert (shown.has_split, shown.trace.format) == (False, "calls")
    assert sum(one.time_ns for one in shown.operators) == pytest.approx(shown.headline_ns)
    assert {finding.rule for finding in done.content.findings} <= {"slow_first_inference", "slow_loading"}
    for name in ("report.md", "report.html"):
        text = (done.path / name).read_text(encoding="utf-8")
        assert f"{NO_SPLIT}{NO_TRACES}" in text
        assert "Elementwise" not in text
    analysis = json.loads((done.path / "analysis.json").read_text("utf-8"))
    assert [warning["code"] for warning in analysis["trace"]["warnings"]] == ["no_trace"]
    schema = json.loads(Path("docs/reference/schemas/analysis.schema.json").read_text("utf-8"))
    jsonschema.validate(analysis, schema)


def test_a_bundle_without_traces_is_valid_and_can_be_kept(without_traces: Ran, tmp_path: Path, run: Run) -> None:
    """Validate, store and compare it; a duration that was changed in its manifest is found all the same."""
    done = without_traces.done
    assert failed(done.path) == set()
    assert content(done.path).primary == done.content.primary
    code, said = run("store", "add", done.path, "--store", tmp_path / "store")
    assert (code, "1 added" in said) == (0, True)
    _, said = run("compare", f"{done.path}#baseline", f"{done.path}#accelerated")
    assert "The difference is not split into operators: nothing was traced" in said
    assert "Elementwise" not in run("analyze", done.path)[1]
    copy = shutil.copytree(done.path, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    manifest["repetitions"][0]["measurement"]["wall_ns"][2] += 1_000_000
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert failed(copy) > set()


@pytest.mark.nightly  # a real run
@pytest.mark.runtime
def test_the_command_line_runs_a_plain_profile(toy_program: Path, tmp_path: Path, run: Run) -> None:
    """Take ``--ablate none`` with the real runtime: exit code 0, a split, no comparison, a valid bundle."""
    words = ["--ablate", "none", "--rounds", "1", "--runs", "3", "--no-ceilings", "--out", tmp_path / "out"]
    code, said = run("profile", toy_program, *words)
    assert (code, "--ablate none was given" in said.replace("\n", " ")) == (0, True), said
    assert not (tmp_path / "out" / "comparison.json").exists()
    assert failed(tmp_path / "out") == set()
