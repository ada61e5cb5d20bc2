"""The whole pipeline on a fake target with faked time: what is found is what was put in."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest

import opscope
from fakes import FakeClock, FakeTarget
from opscope.api import Profiled, Settings, analyze, compare, content, profile, to_json
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Conditions, Failure, FailureKind, Role, Status, Target
from opscope.core.errors import RunError, TraceFormatError, UsageError
from opscope.core.stats.effect import Verdict
from opscope.experiment.config_rules import read_own
from opscope.experiment.protocol import ProbeAnswer
from opscope.measurements.analyses import comparison_within
from opscope.program.operators.kinds import Category
from opscope.reports.content.content import SHORTEST_NS, headline
from opscope.reports.report import html, summary
from opscope.workflows.measure.profiling import planned_experiment
from opscope.workflows.measure.variants import variants_of
from programs import write_tiny_program
from terminal_text import text_of
from texts import MISSING_OR_CHANGED, NO_TEMPERATURE, NOTHING_MEASURED
from whole_report import whole_report

SMALL = Settings(rounds=6, runs=4, warmup=1)


def run(directory: Path, target: FakeTarget, settings: Settings = SMALL) -> Profiled:
    """Profile the tiny program into ``out``."""
    program = write_tiny_program(directory)
    return profile(str(program), settings=settings, out=directory / "out", target=target, clock=FakeClock())


def test_a_slowdown_of_two_is_found(tmp_path: Path) -> None:
    """The convolution takes twice as long without AVX-512; the add does not care; the verdict says faster."""
    done = run(tmp_path, FakeTarget(slowdown=2.0))
    comparison = done.content.primary
    assert comparison is not None
    assert comparison.end_to_end.verdict is Verdict.FASTER
    assert comparison.end_to_end.speedup == pytest.approx(1.8, abs=0.1)
    speedups = {change.category: change.speedup for change in comparison.categories}
    assert speedups[Category.CONVOLUTION] == pytest.approx(2.0, abs=0.1)
    assert speedups[Category.ELEMENTWISE] == pytest.approx(1.0, abs=0.1)


def test_identical_variants_are_seldom_called_different(tmp_path: Path) -> None:
    """Twelve A/A experiments with noise between processes: at most two verdicts (more has a chance of 2 %)."""
    verdicts = []
    for seed in range(12):
        directory = tmp_path / str(seed)
        directory.mkdir()
        target = FakeTarget(slowdown=1.0, noise=0.1, seed=seed)
        comparison = run(directory, target, Settings(rounds=6, runs=2, warmup=0, seed=seed)).content.primary
        assert comparison is not None
        verdicts.append(comparison.end_to_end.verdict)
    assert sum(verdict is not Verdict.NO_DIFFERENCE for verdict in verdicts) <= 2


def test_the_bundle_holds_what_the_contract_names(tmp_path: Path) -> None:
    """Manifest, program, traces, analyses, comparison and both reports."""
    run(tmp_path, FakeTarget())
    out = tmp_path / "out"
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
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


def test_features_are_cleared_for_the_baseline_only(tmp_path: Path) -> None:
    """Half of the jobs clear AVX-512, the other half nothing; each in the same number, half of them without tracing."""
    target = FakeTarget()
    run(tmp_path, target)
    cleared = [tuple(job.clear) for job in target.jobs]
    assert cleared.count(()) == cleared.count(("avx512f", "avx512bw")) == 12
    assert [job.traced for job in target.jobs] == [False, False, True, True] * 6


def test_the_ladder_has_a_variant_for_each_step(tmp_path: Path) -> None:
    """The staircase of this CPU, its last step the baseline, each compared to it."""
    done = run(tmp_path, FakeTarget(), Settings(rounds=6, runs=2, warmup=0, ladder=True))
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


class WithAmx(FakeTarget):
    """Has tiles, too."""

    def probe(self) -> ProbeAnswer:
        """A CPU with AMX."""
        found = super().probe()
        return msgspec.structs.replace(found, fields=[*found.fields, "amx_tile", "amx_int8"])


def test_what_is_switched_off_depends_on_the_weights(toy_programs: dict[str, Path]) -> None:
    """AMX does nothing for single precision: to compare with it off would take time, and show no difference."""
    off = {}
    for dtype, program in toy_programs.items():
        asked = planned_experiment("one", str(program), SMALL, None)
        off[dtype] = [variant.ablated for variant in variants_of(asked, WithAmx())[0]]
    for dtype in ("fp32", "int8"):  # before its export, in the same way
        asked = planned_experiment("one", "mobilenet_v3_small", msgspec.structs.replace(SMALL, dtype=dtype), None)
        assert [variant.ablated for variant in variants_of(asked, WithAmx())[0]] == off[dtype]
    assert off == {"fp32": [[], ["avx512"]], "int8": [[], ["amx"]]}


def test_thread_counts_are_variants_of_their_own(tmp_path: Path) -> None:
    """Two thread counts make two pairs, compared within a thread count."""
    done = run(tmp_path, FakeTarget(), Settings(rounds=6, runs=2, warmup=0, threads=(1, 2)))
    pairs = [(c.baseline.label, c.candidate.label) for c in done.content.comparisons]
    assert pairs == [("baseline-t1", "accelerated-t1"), ("baseline-t2", "accelerated-t2")]
    first, second = headline(done.content).text.split("; ")
    assert first.startswith("1 thread: ")
    assert second.startswith("2 threads: ")
    told = text_of(summary(done.content), 160)
    assert ", 1 and 2 threads\n" in told
    assert "\nWith 1 thread, as accelerated-t1:\n\ncategory " in told
    assert ", 1 and 2 threads</h1>" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(("crashed", "pairs"), [(2, 6), (4, 7)])
def test_a_failed_round_leaves_the_others_and_is_told(tmp_path: Path, crashed: int, pairs: int) -> None:
    """The verdict rests on the untraced arm: a crash there leaves one pair out, one of a traced process none."""
    crash = Failure(FailureKind.SIGNAL, "the process was killed by SIGSEGV", signal="SIGSEGV")
    done = run(
        tmp_path, FakeTarget(fail=lambda job: crash if job == crashed else None), Settings(rounds=7, runs=2, warmup=0)
    )
    comparison = done.content.primary
    assert comparison is not None
    assert (comparison.end_to_end.baseline_processes, comparison.end_to_end.candidate_processes) == (pairs, pairs)
    assert "SIGSEGV" in (tmp_path / "out" / "report.md").read_text()
    assert "SIGSEGV" in (tmp_path / "out" / "report.html").read_text()


def test_nothing_measured_is_an_error_and_keeps_the_evidence(tmp_path: Path) -> None:
    """When every process crashes there is no report, and the manifest says why; with keep_going every one is tried."""
    crash = Failure(FailureKind.SIGNAL, "the process was killed by SIGSEGV", signal="SIGSEGV")
    with pytest.raises(RunError, match="SIGSEGV"):
        run(tmp_path, FakeTarget(fail=lambda _: crash), Settings(rounds=6, runs=2, warmup=0, keep_going=True))
    assert len(Bundle.open(tmp_path / "out").manifest.failures()) == 24


def test_what_fails_alike_on_two_variants_ends_the_run(tmp_path: Path) -> None:
    """The rest would fail alike: two processes are enough, and the message says how to run all."""
    missing = Failure(FailureKind.EXIT, "there is no input sr")
    with pytest.raises(RunError, match=f"{NOTHING_MEASURED}: there is no input sr") as caught:
        run(tmp_path, FakeTarget(fail=lambda _: missing))
    assert "skipped 22 more processes, --keep-going tries them" in str(caught.value.hint)
    assert len(Bundle.open(tmp_path / "out").manifest.failures()) == 2


def test_failures_of_an_earlier_attempt_end_no_later_one(tmp_path: Path) -> None:
    """Their cause may be mended: only what fails since then is asked whether it fails alike."""
    old, new = Failure(FailureKind.EXIT, "there is no input sr"), Failure(FailureKind.EXIT, "an accident")
    program, again = write_tiny_program(tmp_path), FakeTarget(fail=lambda job: new if job == 1 else None)
    for target, resume in ((FakeTarget(fail=lambda _: old), False), (again, True)):
        with contextlib.suppress(RunError):
            profile(str(program), settings=SMALL, out=tmp_path / "out", target=target, clock=FakeClock(), resume=resume)
    assert len(again.jobs) > 2


def test_what_fails_otherwise_on_the_other_variant_goes_on(tmp_path: Path) -> None:
    """Two causes may be two accidents; one success is enough, too."""
    causes = [Failure(FailureKind.EXIT, "one cause"), Failure(FailureKind.EXIT, "another cause")]
    for name in "ab":
        (tmp_path / name).mkdir()
    with pytest.raises(RunError):
        run(tmp_path / "a", FakeTarget(fail=lambda job: causes[job % 2]))
    assert len(Bundle.open(tmp_path / "a" / "out").manifest.failures()) == 24
    done = run(tmp_path / "b", FakeTarget(fail=lambda job: causes[0] if 4 < job < 9 else None))
    assert len(done.content.manifest.failures()) == 4


def test_a_variant_can_be_addressed(tmp_path: Path) -> None:
    """BUNDLE#variant names one, the bundle alone the accelerated one; two variants of a bundle are paired."""
    run(tmp_path, FakeTarget())
    out = tmp_path / "out"
    assert analyze(f"{out}#baseline").variant == "baseline"
    assert analyze(out) == analyze(f"{out}#accelerated")
    comparison = compare(f"{out}#baseline", f"{out}#accelerated")
    assert comparison.end_to_end.design == "paired"
    assert to_json(comparison_within(Bundle.open(out), comparison)) == to_json(content(out).primary)


def test_figures_of_a_bundle_are_those_of_its_traces(tmp_path: Path) -> None:
    """The median recomputed from the trace files by hand is the stated one."""
    run(tmp_path, FakeTarget())
    out = tmp_path / "out"
    table = opscope.read(out)
    measured = table.inferences().filter(~table.inferences()["warmup"])["duration"]
    found = analyze(out)
    assert found.traced
    assert found.traced.median_ns == measured.median()
    assert found.traced.n == 24
    assert sum(row.time_ns for row in (*found.operators, *found.outside)) == pytest.approx(found.headline_ns)


def test_a_directory_of_traces_is_one_side_with_as_many_processes(tmp_path: Path) -> None:
    """Traces from elsewhere, compared as independent groups: eight against eight decide."""
    run(tmp_path, FakeTarget(), Settings(rounds=8, runs=4, warmup=0))
    for name in ("baseline", "accelerated"):
        (tmp_path / name).mkdir()
        for number, path in enumerate(sorted((tmp_path / "out" / "variants" / name).rglob("*.etdump.zst"))):
            (tmp_path / name / f"{number}.etdump").write_bytes(path.read_bytes())
    found = compare(tmp_path / "baseline", tmp_path / "accelerated", warmup=0).end_to_end
    assert (found.design, found.verdict) == ("unpaired", Verdict.FASTER)
    assert found.baseline_processes == 8


@pytest.mark.parametrize(("noise", "rounds"), [(0.001, 6), (0.5, 13)])
def test_rounds_are_added_until_the_interval_is_narrow(tmp_path: Path, noise: float, rounds: int) -> None:
    """With quiet processes none are, with noisy ones as many as are allowed."""
    settings = Settings(rounds=6, runs=4, warmup=1, ceilings=False, until=0.05, max_rounds=13)
    done = run(tmp_path, FakeTarget(noise=noise), settings)
    assert done.content.manifest.plan.rounds == rounds
    assert done.content.manifest.status is Status.COMPLETE


def test_rounds_are_added_until_enough_was_measured(tmp_path: Path) -> None:
    """Four inferences of half a millisecond a round: fifteen milliseconds take more than six rounds."""
    done = run(tmp_path, FakeTarget(noise=0.0), Settings(rounds=6, runs=4, warmup=1, ceilings=False, min_seconds=0.015))
    assert done.content.manifest.plan.rounds == 9


def test_a_finished_profile_can_be_given_more_rounds(tmp_path: Path) -> None:
    """``--resume`` keeps the rounds of the bundle and adds some; the settings that the bundle holds have no effect."""
    run(tmp_path, FakeTarget(noise=0.5))
    target, settings = FakeTarget(noise=0.5), Settings(rounds=2, seed=7, ceilings=False, until=0.001, max_rounds=8)
    done = profile(str(tmp_path / "tiny.pte"), settings=settings, out=tmp_path / "out", resume=True, target=target)
    assert (done.content.manifest.plan.rounds, done.content.manifest.plan.seed) == (8, 0)
    assert len(target.jobs) == 2 * 2 * 2


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    """A temperature that cannot be read, and a width of intervals that there are none of."""

    class NoThermometer(FakeTarget):
        def conditions(self) -> Conditions:
            return Conditions(0.1, 3000.0, None)

    settings = Settings(rounds=2, runs=2, ceilings=False, ablate=("none",), until=0.1, max_temperature=60.0)
    assert run(tmp_path, NoThermometer(), settings).notes == [
        NO_TEMPERATURE,
        "nothing is compared with a baseline, so until has no effect",
    ]


def test_a_file_and_the_command_line_have_the_same_defaults(tmp_path: Path) -> None:
    """Settings and a file that names nothing but a model ask for the same."""
    from_file = read_own({"model": "m"}, tmp_path / "some.toml").experiments[0]
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


def test_no_option_is_advised_that_a_program_does_not_take(tmp_path: Path) -> None:
    """The number type of a .pte is fixed: the report speaks of exporting the model in another one."""
    run(tmp_path, FakeTarget())
    text = (tmp_path / "out/report.md").read_text() + (tmp_path / "out/report.html").read_text()
    assert "export the model in int8, profile it and compare" in text
    assert "--dtype" not in text


def test_rows_of_two_methods_are_told_apart(tmp_path: Path) -> None:
    """Operators of one name that two methods call are not two rows that are alike; of one method none is named."""
    shown = run(tmp_path, FakeTarget(), Settings(rounds=2, runs=2, ceilings=False, ablate=("none",))).content
    operators = whole_report(shown).partition("## All Operators")[2]
    assert "forward: " not in operators
    (result,) = shown.variants
    assert result.analysis is not None
    own = result.analysis.operators
    twice = msgspec.structs.replace(
        result.analysis, operators=[*own, *(msgspec.structs.replace(o, method="decode") for o in own)]
    )
    both = msgspec.structs.replace(shown, variants=[msgspec.structs.replace(result, analysis=twice)])
    text = whole_report(both).partition("## All Operators")[2].partition("\n## ")[0]
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    closing = len(result.analysis.outside) + 1  # what leads to the latency, and the latency
    short = 2 * sum(one.shown_ns < SHORTEST_NS for one in own)
    assert len(names) == len(set(names)) == 1 + 2 * len(own) - short + bool(short) + closing
    assert "| decode: " in text
    assert "decode: " in html(both)


def test_outputs_of_an_emulated_run_are_told_of_once(tmp_path: Path) -> None:
    """The headline compares them, so the quality below does not say that nobody did."""

    class Emulated(FakeTarget):
        def describe(self) -> Target:
            return Target("fake", "", emulated=True)

    target = Emulated()
    target.outputs = lambda _: np.ones(3, np.float32)
    run(tmp_path, target, Settings(rounds=2, runs=2, ceilings=False))
    text = whole_report(tmp_path / "out")
    assert "the outputs of accelerated equal those of baseline" in text
    assert "outputs were not compared" not in text
    assert "all variants compute the same results" in (tmp_path / "out/report.html").read_text()


def test_a_changed_program_is_not_resumed(tmp_path: Path) -> None:
    """Rounds of two programs are never mixed."""
    crash = Failure(FailureKind.EXIT, "stopped")
    run(tmp_path, FakeTarget(fail=lambda job: crash if job == 2 else None))
    (tmp_path / "out" / "model" / "tiny.pte").write_bytes(b"other")
    with pytest.raises(RunError, match=MISSING_OR_CHANGED):
        profile(str(tmp_path / "tiny.pte"), out=tmp_path / "out", resume=True, target=FakeTarget())


def test_all_inferences_as_warmup_leave_nothing_to_analyse(tmp_path: Path) -> None:
    """An error, not an empty result."""
    run(tmp_path, FakeTarget())
    with pytest.raises(TraceFormatError, match="no complete inference remains"):
        analyze(tmp_path / "out", warmup=100)


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
