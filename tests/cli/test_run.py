"""Experiments from a file, end to end: on a fake target with faked time, pretended runners, and the real runtime."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from kit_files import pair, write_run
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Conditions, Failure, FailureKind, Role, Status
from opscope.core.errors import BundleError, FeatureError, NotFoundError, RunError, UsageError
from opscope.experiment.config import template
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.run_report import RunReport
from opscope.workflows.measure.running import read_experiments, run
from programs import write_tiny_program
from runners import GOOD, write_runner
from texts import HOLDS_A_BUNDLE, NO_RUNNER, NO_TEMPERATURE, NOTHING_MEASURED

PAIR = """
model = "tiny.pte"
rounds = 6
runs = 4
warmup = 1
ceilings = false
"""
CHAIN = (
    PAIR
    + """
[[variants]]
name = "full"

[[variants]]
name = "no-avx512"
ablate = ["avx512"]

[[variants]]
name = "no-avx2"
ablate = ["avx2"]

[[comparisons]]
baseline = "no-avx512"
candidate = "full"

[[comparisons]]
baseline = "no-avx2"
candidate = "no-avx512"
"""
)
CRASH = Failure(FailureKind.SIGNAL, "the process was killed by SIGSEGV", signal="SIGSEGV")


def written(directory: Path, text: str, *, models: tuple[str, ...] = ("tiny",)) -> Path:
    """A configuration beside tiny programs."""
    for name in models:
        if not (directory / f"{name}.pte").exists():
            write_tiny_program(directory).rename(directory / f"{name}.pte")
    file = directory / "some.toml"
    file.write_text(text)
    return file


def fake(target: FakeTarget, sleep: Callable[[float], None] = lambda _: None) -> Means:
    """Run on a fake target, with a clock that stands still."""
    return Means(lambda *_: None, target, FakeClock(), sleep)


def ran(directory: Path, text: str, target: FakeTarget | None = None, **options: Any) -> RunReport:
    """Run a configuration into ``out``."""
    file = written(directory, text)
    return run(file, out=directory / "out", means=fake(target or FakeTarget()), **options)


def manifest(directory: Path, name: str = "tiny-local") -> Any:
    """The manifest of an experiment."""
    return Bundle.open(directory / "out" / name).manifest


def test_a_file_does_what_profile_does(tmp_path: Path) -> None:
    """Without variants the CPU against itself without its strongest group, in a bundle with all reports."""
    (result,) = ran(tmp_path, PAIR).experiments
    assert result.content is not None
    assert [v.name for v in result.content.manifest.variants] == ["accelerated", "baseline"]
    assert result.content.primary is not None
    assert result.content.primary.end_to_end.verdict.value == "faster"
    names = {path.name for path in Path(result.path).iterdir()}
    assert {"manifest.json", "report.html", "report.md", "analysis.json", "comparison.json"} <= names


def test_every_model_becomes_a_bundle(tmp_path: Path) -> None:
    """In the directory of its experiment."""
    written(tmp_path, "", models=("one", "two"))
    done = ran(tmp_path, PAIR.replace('model = "tiny.pte"', 'models = ["one.pte", "two.pte"]'))
    assert [result.name for result in done.experiments] == ["one-local", "two-local"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one-local", "two-local"]


def test_variants_of_the_file_run_with_their_features(tmp_path: Path) -> None:
    """Each as often as there are rounds, timed and traced, in an order that the seed repeats."""
    target = FakeTarget()
    ran(tmp_path, CHAIN, target)
    found = manifest(tmp_path)
    assert [(v.name, v.role, v.ablated) for v in found.variants] == [
        ("full", Role.ACCELERATED, []),
        ("no-avx512", Role.INTERMEDIATE, ["avx512"]),
        ("no-avx2", Role.BASELINE, ["avx2"]),
    ]
    assert len(target.jobs) == 2 * 3 * 6
    assert found.plan.seed == 0
    (tmp_path / "again").mkdir()
    ran(tmp_path / "again", CHAIN)
    assert manifest(tmp_path / "again").plan == found.plan


def test_comparisons_of_the_file_are_made(tmp_path: Path) -> None:
    """Those with the baseline by the report, the others beside it, paired by round."""
    (result,) = ran(tmp_path, CHAIN).experiments
    assert result.content is not None
    pairs = [(c.baseline.label, c.candidate.label) for c in result.content.comparisons]
    assert ("no-avx2", "no-avx512") in pairs
    (more,) = result.comparisons
    assert (more.baseline.label, more.candidate.label) == ("no-avx512", "full")
    assert more.end_to_end.design == "paired"
    assert (Path(result.path) / "comparisons/full-against-no-avx512.json").exists()


def test_cpus_are_those_of_the_variant(tmp_path: Path) -> None:
    """Of the experiment where the variant says nothing."""
    text = PAIR + 'affinity = [0, 1]\nvariants = [{name = "a"}, {name = "b", ablate = ["avx2"], affinity = [1]}]'
    target = FakeTarget()
    ran(tmp_path, text, target)
    assert {(tuple(job.clear) != (), tuple(job.variant.affinity)) for job in target.jobs} == {
        (False, (0, 1)),
        (True, (1,)),
    }


def test_without_the_untraced_arm_each_round_runs_once(tmp_path: Path) -> None:
    """``untraced = false`` halves the processes."""
    target = FakeTarget()
    ran(tmp_path, PAIR + "untraced = false", target)
    assert len(target.jobs) == 2 * 6
    assert all(job.traced for job in target.jobs)


def test_rounds_are_added_until_the_interval_is_narrow(tmp_path: Path) -> None:
    """With quiet processes none are, with noisy ones as many as are allowed; the order of the first ones stays."""
    for noise, rounds in ((0.001, 6), (0.5, 13)):
        place = tmp_path / str(noise)
        place.mkdir()
        ran(place, PAIR + "until = 0.05\nmax_rounds = 13", FakeTarget(noise=noise))
        found = manifest(place)
        assert (found.plan.rounds, found.status) == (rounds, Status.COMPLETE)
        assert len(found.plan.order) == len(found.plan.timed_order) == rounds
    assert found.plan.order[:6] == manifest(tmp_path / "0.001").plan.order


def test_rounds_are_added_until_enough_was_measured(tmp_path: Path) -> None:
    """Four inferences of half a millisecond a round: ten milliseconds take more than six rounds."""
    ran(tmp_path, PAIR + "min_seconds = 0.015", FakeTarget(noise=0.0))
    found = manifest(tmp_path)
    assert found.plan.rounds == 9


def test_a_variant_that_always_fails_adds_no_rounds(tmp_path: Path) -> None:
    """There would never be enough."""
    target = FakeTarget(fail=lambda number: CRASH if target.jobs[number - 1].clear else None)
    ran(tmp_path, PAIR + "until = 0.01", target)
    assert manifest(tmp_path).plan.rounds == 6


def test_processes_rest_between_each_other(tmp_path: Path) -> None:
    """Once fewer than there are processes."""
    rests: list[float] = []
    file = written(tmp_path, PAIR + "cooldown_seconds = 3")
    run(file, out=tmp_path / "out", means=fake(FakeTarget(), rests.append))
    assert rests == [3.0] * (2 * 2 * 6 - 1)


class HotTarget(FakeTarget):
    """A machine that cools by ten degrees with every look at it, and is heated by every process."""

    def __init__(self, hottest: float | None = 90.0, cools: float = 10.0) -> None:
        super().__init__()
        self.hottest, self.cools, self.now = hottest, cools, hottest

    def conditions(self) -> Conditions:
        """The temperature falls with every look."""
        told = self.now
        self.now = None if told is None else told - self.cools
        return Conditions(0.1, 3000.0, told)

    def execute(self, job: Any, directory: Path) -> Any:
        """A process heats it again."""
        self.now = self.hottest
        return super().execute(job, directory)


def test_a_hot_machine_is_waited_for(tmp_path: Path) -> None:
    """Until it is below the limit."""
    rests: list[float] = []
    file = written(tmp_path, PAIR + "max_temperature = 65")
    run(file, out=tmp_path / "out", means=fake(HotTarget(), rests.append))
    assert len(rests) >= 2 * 2 * 6 - 1


def test_a_machine_that_stays_hot_ends_the_run_with_what_it_has(tmp_path: Path) -> None:
    """After a quarter of an hour; the first repetition is kept, and the run can be finished."""
    file = written(tmp_path, PAIR + "max_temperature = 65")
    done = run(file, out=tmp_path / "out", means=fake(HotTarget(cools=0.0)))
    assert "still above 65" in (done.experiments[0].error or "")
    assert len(manifest(tmp_path).repetitions) == 1
    done = run(file, out=tmp_path / "out", resume=True, means=fake(FakeTarget()))
    assert manifest(tmp_path).status is Status.COMPLETE


def test_a_machine_without_a_thermometer_is_said(tmp_path: Path) -> None:
    """Nothing waits, and a note tells why."""
    file = written(tmp_path, PAIR + "max_temperature = 65")
    done = run(file, out=tmp_path / "out", means=fake(HotTarget(hottest=None)))
    assert done.notes == [f"tiny-local: {NO_TEMPERATURE}"]


def test_only_what_is_named_runs(tmp_path: Path) -> None:
    """A variant by its name, with the comparisons that are left; an experiment by its own."""
    (result,) = ran(tmp_path, CHAIN, only=["full", "no-avx512"]).experiments
    assert result.content is not None
    assert [v.name for v in result.content.manifest.variants] == ["full", "no-avx512"]
    assert [(c.baseline.label, c.candidate.label) for c in result.comparisons] == [("no-avx512", "full")]
    with pytest.raises(UsageError) as caught:
        ran(tmp_path, CHAIN, only=["no-avx521"])
    assert caught.value.hint == "did you mean no-avx512 or no-avx2?"


@pytest.mark.parametrize("only", ["--only alpha beta --quiet", "--quiet --only alpha,beta", "--only alpha --only beta"])
def test_several_names_may_follow_the_option(only: str, tmp_path: Path) -> None:
    """As the kit takes them, with commas between, or each with an option of its own."""
    kit = kit_config(tmp_path)
    kit["experiments"].append(kit["experiments"][0] | {"name": "gamma"})
    done = opscope("run", runner_file(tmp_path, kit), *only.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [variant.name for variant in manifest(tmp_path, "tiny-runner").variants] == ["alpha", "beta"]


def test_what_is_there_is_not_run_over(tmp_path: Path) -> None:
    """Nothing at all runs then."""
    ran(tmp_path, PAIR)
    target = FakeTarget()
    with pytest.raises(BundleError, match=HOLDS_A_BUNDLE) as caught:
        ran(tmp_path, PAIR, target)
    assert "--resume" in (caught.value.hint or "")
    assert target.jobs == []


def test_a_run_is_finished_without_repeating(tmp_path: Path) -> None:
    """Only what failed runs again, and experiments that had not begun begin."""
    written(tmp_path, "", models=("one", "two"))
    text = PAIR.replace('model = "tiny.pte"', 'models = ["one.pte", "two.pte"]')
    ran(tmp_path, text, FakeTarget(fail=lambda number: CRASH if number in (3, 7) else None))
    shutil.rmtree(tmp_path / "out/two-local")
    target = FakeTarget()
    done = ran(tmp_path, text, target, resume=True)
    assert len(target.jobs) == 2 + 24
    assert [result.error for result in done.experiments] == [None, None]
    assert manifest(tmp_path, "one-local").status is Status.COMPLETE


def test_more_rounds_can_be_asked_of_a_finished_run(tmp_path: Path) -> None:
    """A file with more rounds and --resume adds them."""
    ran(tmp_path, PAIR)
    target = FakeTarget()
    ran(tmp_path, PAIR.replace("rounds = 6", "rounds = 8"), target, resume=True)
    assert len(target.jobs) == 2 * 2 * 2
    assert manifest(tmp_path).plan.rounds == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("runs = 4", "runs = 5", "runs = 4, not 5"),
        ("rounds = 6", "rounds = 6\nablate = ['avx2']", "variants differ"),
        ("rounds = 6", "rounds = 6\nablate = ['avx2']", "baseline (baseline, without avx512, threads 1)"),
        ("rounds = 6", "rounds = 6\nablate = ['avx2']", "baseline (baseline, without avx2, threads 1)"),
        ("rounds = 6", "rounds = 6\ntimeout = 7", "timeout = 600.0, not 7.0"),
        ("rounds = 6", "rounds = 6\nuntraced = false", "untraced: the bundle was measured with true, not with false"),
        ("rounds = 6", "rounds = 6\nnice = 3", "nice: the bundle was measured with 0, not with 3"),
        ("rounds = 6", "rounds = 6\nmethods = ['forward:2']", "the only method, not with forward, forward"),
        ("rounds = 6", "rounds = 6\ninput = ['default', '5']", "random inputs, not with default, 5"),
    ],
)
def test_a_run_is_not_finished_as_another(old: str, new: str, said: str, tmp_path: Path) -> None:
    """Rounds of two experiments are never mixed."""
    ran(tmp_path, PAIR)
    (result,) = ran(tmp_path, PAIR.replace(old, new), resume=True).experiments
    assert said in (result.error or "")
    assert result.exit_code == BundleError.exit_code


def test_reports_are_written_anew(tmp_path: Path) -> None:
    """Of what is there; what is not is said."""
    written(tmp_path, "", models=("one", "two"))
    text = PAIR.replace('model = "tiny.pte"', 'models = ["one.pte", "two.pte"]')
    ran(tmp_path, text, only=["one-local"])
    report = tmp_path / "out/one-local/report.md"
    before = report.read_text()
    report.unlink()
    target = FakeTarget()
    done = ran(tmp_path, text, target, analysis_only=True)
    assert report.read_text() == before
    assert target.jobs == []
    assert [result.name for result in done.experiments] == ["one-local"]
    assert done.notes == [f"two-local: there is no bundle in {tmp_path / 'out'}"]


def test_nothing_to_analyse_is_an_error(tmp_path: Path) -> None:
    """Not an empty result."""
    with pytest.raises(NotFoundError, match="no experiment of the file has a bundle"):
        ran(tmp_path, PAIR, analysis_only=True)


def test_one_experiment_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """It is told with its reason and its code."""
    written(tmp_path, "", models=("one", "two"))
    text = PAIR.replace('model = "tiny.pte"', 'models = ["one.pte", "two.pte"]')
    done = ran(tmp_path, text, FakeTarget(fail=lambda number: CRASH if number <= 2 else None))
    assert "SIGSEGV" in (done.experiments[0].error or "")
    assert done.experiments[0].exit_code == RunError.exit_code
    assert done.experiments[1].content is not None


def test_a_feature_of_another_cpu_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """The file may be for another machine: its groups are known, this CPU has none of them."""
    target = FakeTarget()
    with pytest.raises(FeatureError, match="sme2 is a feature of aarch64"):
        ran(tmp_path, PAIR + 'ablate = ["sme2"]', target)
    assert target.jobs == []


def test_a_model_that_is_not_there_is_told_before_another_runs(tmp_path: Path) -> None:
    """A slip in the second model does not cost the time of the first."""
    target = FakeTarget()
    with pytest.raises(NotFoundError):
        ran(tmp_path, PAIR.replace('model = "tiny.pte"', 'models = ["tiny.pte", "tony.pte"]'), target)
    assert target.jobs == []
    assert not (tmp_path / "out").exists()


def test_the_file_is_kept_in_the_bundle(tmp_path: Path) -> None:
    """What was asked for can be read beside what came out."""
    ran(tmp_path, PAIR)
    assert (tmp_path / "out/tiny-local/config.toml").read_text() == PAIR


def runner_file(directory: Path, kit: dict[str, Any], script: str = GOOD) -> Path:
    """A configuration of the kit beside a program and two pretended runners."""
    write_tiny_program(directory)
    for name in ("on", "off"):
        write_runner(directory, script, name=name)
    file = directory / "kit.json"
    file.write_text(json.dumps(kit))
    return file


def kit_config(directory: Path, **more: Any) -> dict[str, Any]:
    """Two timing experiments of the kit that compare."""
    experiments = [
        {"name": name, "runner_path": str(directory / runner), "mode": "timing", "runs": 2, "warmup": 1, "threads": [1]}
        for name, runner in (("alpha", "off"), ("beta", "on"))
    ]
    pairs = {"compare_pairs": [pair("alpha", "beta")]}
    config = {"model": str(directory / "tiny.pte"), "output_root": str(directory / "out"), "rounds": 2}
    return config | {"experiments": experiments, "analysis": pairs} | more


def test_the_kits_file_runs_as_it_is(tmp_path: Path) -> None:
    """Each experiment in processes of its runner, interleaved, in a bundle in the kit's output directory."""
    done = run(runner_file(tmp_path, kit_config(tmp_path)))
    (result,) = done.experiments
    assert result.error is None
    assert result.content is not None
    found = manifest(tmp_path, "tiny-runner")
    assert [(v.name, v.role) for v in found.variants] == [("alpha", Role.BASELINE), ("beta", Role.CANDIDATE)]
    assert (found.status, len(found.repetitions), found.plan.timed_order) == (Status.COMPLETE, 4, [])
    assert str(tmp_path / "on") in found.target.address
    assert {r.inferences for r in found.repetitions} == {3}
    assert [(c.baseline.label, c.candidate.label) for c in result.content.comparisons] == [("alpha", "beta")]


def test_the_kits_trace_run_leaves_a_list_of_kernels(tmp_path: Path) -> None:
    """One run with the log kept, never mixed with what is timed."""
    line = "Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'. (x, y.c:1)"
    config = kit_config(tmp_path)
    config["experiments"][1] |= {"mode": "xnntrace"}
    config["analysis"] = {"compare_pairs": []}
    done = run(runner_file(tmp_path, config, f"print({line!r}, flush=True); {GOOD}"))
    (evidence,) = done.evidence
    assert (evidence.experiment, evidence.variant, evidence.kernels) == ("tiny-xnntrace", "beta", 1)
    assert evidence.failure is None
    assert Path(evidence.log).is_relative_to(tmp_path / "out/tiny-xnntrace/beta")
    assert [v.name for v in manifest(tmp_path, "tiny-runner").variants] == ["alpha"]


def test_what_the_kit_left_is_reported(tmp_path: Path) -> None:
    """``--analysis-only`` on a directory that the kit itself filled: nothing is run, its runners need not be there."""
    write_run(tmp_path / "out", pairs=[pair("alpha", "beta")])
    done = run(runner_file(tmp_path, kit_config(tmp_path)), analysis_only=True)
    assert done.experiments[0].content is not None
    assert (tmp_path / "out/opscope/report.html").exists()


def test_a_runner_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    """With its path."""
    file = runner_file(tmp_path, kit_config(tmp_path))
    (tmp_path / "on").unlink()
    with pytest.raises(NotFoundError, match=NO_RUNNER):
        run(file)
    assert not (tmp_path / "out").exists()


def opscope(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "opscope", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_the_commands_answer_as_a_user_sees_it(tmp_path: Path) -> None:
    """The kit's file on pretended runners: a summary, JSON that obeys its schema, and a report where it says."""
    file = runner_file(tmp_path, kit_config(tmp_path))
    done = opscope("run", file, "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"report: {tmp_path / 'out/tiny-runner/report.html'}" in done.stdout
    found = json.loads((tmp_path / "run.json").read_text())
    jsonschema.validate(found, msgspec.json.schema(RunReport))
    assert found["schema"] == "opscope.run/2"


def test_what_is_missing_is_told_by_the_exit_code(tmp_path: Path) -> None:
    """A runner that crashes in one variant: the other is reported, and the code says incomplete."""
    file = runner_file(tmp_path, kit_config(tmp_path))
    write_runner(tmp_path, "os.abort()", name="off")
    done = opscope("run", file, cwd=tmp_path)
    assert done.returncode == 11
    assert "SIGABRT" in done.stderr
    write_runner(tmp_path, "os.abort()", name="on")
    shutil.rmtree(tmp_path / "out")
    done = opscope("run", file, cwd=tmp_path)
    assert done.returncode == 7
    assert NOTHING_MEASURED in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_ended_can_be_finished(number: int, tmp_path: Path) -> None:
    """Politely or not: what was finished is kept and not run again; the hint is the command that goes on."""
    file = runner_file(tmp_path, kit_config(tmp_path), f"{GOOD}; time.sleep(0.5)")
    command = [sys.executable, "-m", "opscope", "run", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        out = tmp_path / "out/tiny-runner"
        while not ((out / "manifest.json").exists() and Bundle.open(out).manifest.repetitions):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        errors = process.communicate()[1]
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or f"opscope run {file} --resume" in errors
    kept = Bundle.open(out).manifest.repetitions
    assert 1 <= len(kept) < 4
    assert opscope("run", file, "--resume", "--quiet", cwd=tmp_path).returncode == 0
    found = Bundle.open(out).manifest
    assert (found.status, len(found.repetitions)) == (Status.COMPLETE, 4)
    assert found.repetitions[: len(kept)] == kept


@pytest.mark.parametrize("target", ["local", "native", "runner"])
def test_init_writes_a_template_once(target: str, tmp_path: Path) -> None:
    """And never over something."""
    done = opscope("init", "--target", target, "--out", "new/some.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/some.toml").read_text() == template(target)
    done = opscope("init", "--target", target, "--out", "new/some.toml", cwd=tmp_path)
    assert done.returncode == 8
    assert "already" in done.stderr
    assert opscope("init", "--target", target, "--out", "-", cwd=tmp_path).stdout == template(target)


def test_init_writes_devices(tmp_path: Path) -> None:
    """A file that is right as it is, with what was named."""
    words = ["--device", "pixel8=adb:123", "--device", "rpi.5=ssh:pi@rpi5?dir=/data"]
    done = opscope("init", *words, "--out", "lab.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = read_experiments(tmp_path / "lab.toml").experiments
    assert [(one.device, one.target) for one in found] == [("pixel8", "adb:123"), ("rpi.5", "ssh:pi@rpi5?dir=/data")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("init --device rpi5", 2, "'rpi5' is not NAME=TARGET"),
        ("init --device rpi5=moon", 2, 'no target "moon"'),
        ("init --device a=local --device a=native", 2, "two devices are called a"),
        ("init --device a=local --target local", 2, "each --device names its own target"),
        ("run named.toml", 2, "no target given for the device rpi5"),
        ("run named.toml --only rpi", 2, "did you mean rpi5"),
        ("run none.toml", 3, "no such file"),
        ("run wrong.toml", 2, "wrong.toml: rounds: 0 is not allowed"),
        ("run some.toml --only nothing", 2, "--only"),
        ("run some.toml --only nothing other", 2, "no experiment, device or variant 'nothing'"),
        ("run some.toml other.toml", 2, "several configurations: some.toml, other.toml"),
        ("run some.toml --analysis-only --resume", 2, "--resume"),
        ("run some.toml --analysis-only", 3, "no experiment of the file has a bundle"),
        ("run missing.toml", 3, "no such file"),
        ("init --target moon", 2, "no template"),
    ],
)
def test_wrong_input_gets_a_message_and_a_code(arguments: str, code: int, said: str, tmp_path: Path) -> None:
    """No traceback, and nothing left behind."""
    written(tmp_path, PAIR)
    (tmp_path / "wrong.toml").write_text('model = "tiny.pte"\nrounds = 0')
    (tmp_path / "named.toml").write_text('model = "tiny.pte"\ndevices = ["rpi5"]')
    (tmp_path / "missing.toml").write_text('model = "none.pte"')
    before = sorted(tmp_path.rglob("*"))
    done = opscope(*arguments.split(), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.runtime
def test_a_file_runs_on_the_real_runtime(toy_program: Path, tmp_path: Path) -> None:
    """Two variants in two rounds, reported; run again with --resume there is nothing left to do."""
    text = f"""
    model = {json.dumps(str(toy_program))}
    rounds = 2
    runs = 3
    warmup = 1
    untraced = false
    ceilings = false
    affinity = [0]
    """
    (tmp_path / "toy.toml").write_text(text)
    done = opscope("run", "toy.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "inconclusive: add rounds" in done.stdout or "no ratio: " in done.stdout  # where the machine is busy
    (path,) = (tmp_path / "opscope-out/toy").iterdir()
    found = Bundle.open(path).manifest
    assert (found.status, len(found.repetitions)) == (Status.COMPLETE, 4)
    assert opscope("run", "toy.toml", "--resume", "--quiet", cwd=tmp_path).returncode == 0
    assert Bundle.open(path).manifest.repetitions == found.repetitions
