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
from typing import Any, TypeAlias

import jsonschema
import msgspec
import pytest

from command_line import ended_here
from ended import Command
from fakes import FakeClock, FakeTarget
from kit_files import pair
from opscope import api
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Conditions, Failure, FailureKind, Role, Status
from opscope.core.errors import BundleError, FeatureError, NotFoundError, RunError, UsageError
from opscope.experiment.config import template
from opscope.workflows.measure.experiments import Means
from opscope.workflows.measure.run_report import RunReport
from opscope.workflows.measure.running import read_experiments
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
HOT = PAIR + "max_temperature = 65"
Run: TypeAlias = Callable[..., tuple[int, str]]


def written(directory: Path, text: str, *, models: tuple[str, ...] = ("tiny",)) -> Path:
    """A configuration beside tiny programs."""
    for name in models:
        if not (directory / f"{name}.pte").exists():
            write_tiny_program(directory).rename(directory / f"{name}.pte")
    file = directory / "some.toml"
    file.write_text(text)
    return file


def ran(
    directory: Path,
    text: str,
    target: FakeTarget | None = None,
    sleep: Callable[[float], None] = lambda _: None,
    **options: Any,
) -> RunReport:
    """Run a configuration into ``out``, on a fake target, with a clock that stands still."""
    means = Means(lambda *_: None, target or FakeTarget(), FakeClock(), sleep)
    return api.run(written(directory, text), out=directory / "out", means=means, **options)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of commands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def manifest(directory: Path, name: str = "tiny-local") -> Any:
    """The manifest of an experiment."""
    return Bundle.open(directory / "out" / name).manifest


def two_models(directory: Path) -> str:
    """A configuration of two models that are there."""
    written(directory, "", models=("one", "two"))
    return PAIR.replace('model = "tiny.pte"', 'models = ["one.pte", "two.pte"]')


def test_a_file_does_what_profile_does(tmp_path: Path) -> None:
    """Compare the CPU with itself without its strongest group, and keep the file in the bundle beside all reports."""
    (result,) = ran(tmp_path, PAIR).experiments
    assert [v.name for v in result.content.manifest.variants] == ["accelerated", "baseline"]
    assert result.content.primary.end_to_end.verdict.value == "faster"
    names = {path.name for path in Path(result.path).iterdir()}
    assert {"manifest.json", "report.html", "report.md", "analysis.json", "comparison.json"} <= names
    assert (tmp_path / "out/tiny-local/config.toml").read_text() == PAIR


def test_variants_of_the_file_run_with_their_features_and_are_compared(tmp_path: Path) -> None:
    """Run each as often as there are rounds, timed and traced, in an order that the seed repeats.

    Comparisons with the baseline stand in the report, others beside it, paired by round.
    """
    target = FakeTarget()
    (result,) = ran(tmp_path, CHAIN, target).experiments
    found = manifest(tmp_path)
    assert [(v.name, v.role, v.ablated) for v in found.variants] == [
        ("full", Role.ACCELERATED, []),
        ("no-avx512", Role.INTERMEDIATE, ["avx512"]),
        ("no-avx2", Role.BASELINE, ["avx2"]),
    ]
    assert (len(target.jobs), found.plan.seed) == (2 * 3 * 6, 0)
    assert ("no-avx2", "no-avx512") in [(c.baseline.label, c.candidate.label) for c in result.content.comparisons]
    (more,) = result.comparisons
    assert (more.baseline.label, more.candidate.label, more.end_to_end.design) == ("no-avx512", "full", "paired")
    assert (Path(result.path) / "comparisons/full-against-no-avx512.json").exists()
    (tmp_path / "again").mkdir()
    ran(tmp_path / "again", CHAIN)
    assert manifest(tmp_path / "again").plan == found.plan


def test_cpus_are_those_of_the_variant(tmp_path: Path) -> None:
    """Take those of the experiment where the variant says nothing; ``untraced = false`` halves the processes."""
    text = PAIR + 'affinity = [0, 1]\nvariants = [{name = "a"}, {name = "b", ablate = ["avx2"], affinity = [1]}]\n'
    target = FakeTarget()
    ran(tmp_path, text + "untraced = false", target)
    cpus = {(False, (0, 1)), (True, (1,))}
    assert {(tuple(job.clear) != (), tuple(job.variant.affinity)) for job in target.jobs} == cpus
    assert [job.traced for job in target.jobs] == [True] * (2 * 6)


def test_a_variant_that_always_fails_adds_no_rounds(tmp_path: Path) -> None:
    """There would never be enough."""
    target = FakeTarget(fail=lambda number: CRASH if target.jobs[number - 1].clear else None)
    ran(tmp_path, PAIR + "until = 0.01", target)
    assert manifest(tmp_path).plan.rounds == 6


def test_processes_rest_between_each_other(tmp_path: Path) -> None:
    """Rest once fewer than there are processes."""
    rests: list[float] = []
    ran(tmp_path, PAIR + "cooldown_seconds = 3", sleep=rests.append)
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
    """Wait until it is below the limit; nothing waits, and a note says so, where no temperature can be read."""
    rests: list[float] = []
    ran(tmp_path, HOT, HotTarget(), rests.append)
    assert len(rests) >= 2 * 2 * 6 - 1
    (tmp_path / "unknown").mkdir()
    assert ran(tmp_path / "unknown", HOT, HotTarget(hottest=None)).notes == [f"tiny-local: {NO_TEMPERATURE}"]


def test_a_machine_that_stays_hot_ends_the_run_with_what_it_has(tmp_path: Path) -> None:
    """Keep the first repetition after a quarter of an hour; the run can be finished."""
    done = ran(tmp_path, HOT, HotTarget(cools=0.0))
    assert "still above 65" in (done.experiments[0].error or "")
    assert len(manifest(tmp_path).repetitions) == 1
    ran(tmp_path, HOT, resume=True)
    assert manifest(tmp_path).status is Status.COMPLETE


def test_only_what_is_named_runs(tmp_path: Path) -> None:
    """A variant by its name, with the comparisons that are left; an experiment by its own."""
    (result,) = ran(tmp_path, CHAIN, only=["full", "no-avx512"]).experiments
    assert [v.name for v in result.content.manifest.variants] == ["full", "no-avx512"]
    assert [(c.baseline.label, c.candidate.label) for c in result.comparisons] == [("no-avx512", "full")]
    with pytest.raises(UsageError) as caught:
        ran(tmp_path, CHAIN, only=["no-avx521"])
    assert caught.value.hint == "did you mean no-avx512 or no-avx2?"


@pytest.mark.parametrize("only", ["--only alpha beta --quiet", "--quiet --only alpha,beta", "--only alpha --only beta"])
def test_several_names_may_follow_the_option(only: str, here: Path, run: Run) -> None:
    """Take them as the kit does, with commas between, or each with an option of its own."""
    kit = kit_config(here)
    kit["experiments"].append(kit["experiments"][0] | {"name": "gamma"})
    code, said = run("run", runner_file(here, kit), *only.split())
    assert code == 0, said
    assert [variant.name for variant in manifest(here, "tiny-runner").variants] == ["alpha", "beta"]


def test_what_is_there_is_not_run_over(tmp_path: Path) -> None:
    """Run nothing at all then; a file with more rounds and --resume adds them."""
    ran(tmp_path, PAIR)
    target = FakeTarget()
    with pytest.raises(BundleError, match=HOLDS_A_BUNDLE) as caught:
        ran(tmp_path, PAIR, target)
    assert "--resume" in (caught.value.hint or "")
    assert target.jobs == []
    ran(tmp_path, PAIR.replace("rounds = 6", "rounds = 8"), target, resume=True)
    assert (len(target.jobs), manifest(tmp_path).plan.rounds) == (2 * 2 * 2, 8)


def test_a_run_is_finished_without_repeating(tmp_path: Path) -> None:
    """Make a bundle of every model; only what failed runs again, and experiments that had not begun begin."""
    text = two_models(tmp_path)
    ran(tmp_path, text, FakeTarget(fail=lambda number: CRASH if number in (3, 7) else None))
    shutil.rmtree(tmp_path / "out/two-local")
    target = FakeTarget()
    done = ran(tmp_path, text, target, resume=True)
    assert len(target.jobs) == 2 + 24
    assert [(result.name, result.error) for result in done.experiments] == [("one-local", None), ("two-local", None)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one-local", "two-local"]
    assert manifest(tmp_path, "one-local").status is Status.COMPLETE


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
    assert (said in (result.error or ""), result.exit_code) == (True, BundleError.exit_code), result.error


def test_reports_are_written_anew(tmp_path: Path) -> None:
    """Write those of what is there, and say what is not."""
    text = two_models(tmp_path)
    ran(tmp_path, text, only=["one-local"])
    report = tmp_path / "out/one-local/report.md"
    before = report.read_text()
    report.unlink()
    target = FakeTarget()
    done = ran(tmp_path, text, target, analysis_only=True)
    assert (report.read_text(), target.jobs) == (before, [])
    assert [result.name for result in done.experiments] == ["one-local"]
    assert done.notes == [f"two-local: there is no bundle in {tmp_path / 'out'}"]


def test_one_experiment_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """Tell its reason and its code."""
    target = FakeTarget(fail=lambda number: CRASH if number <= 2 else None)
    failed, whole = ran(tmp_path, two_models(tmp_path), target).experiments
    assert ("SIGSEGV" in (failed.error or ""), failed.exit_code) == (True, RunError.exit_code)
    assert whole.content is not None


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (PAIR + 'ablate = ["sme2"]', FeatureError, "sme2 is a feature of aarch64"),
        (PAIR.replace('model = "tiny.pte"', 'models = ["tiny.pte", "tony.pte"]'), NotFoundError, "tony.pte"),
    ],
    ids=["a feature of another CPU", "the second model is missing"],
)
def test_what_cannot_run_is_refused_before_anything_runs(
    text: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    """Name what is wrong with a file for another machine, or with its last model, at no cost of time."""
    target = FakeTarget()
    with pytest.raises(error) as caught:
        ran(tmp_path, text, target)
    assert said in str(caught.value)
    assert (target.jobs, (tmp_path / "out").exists()) == ([], False)


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


def test_the_kits_file_runs_as_it_is(here: Path, run: Run) -> None:
    """Interleave processes of the runner of each experiment, in a bundle in the kit's output directory.

    The command says where the report is, and writes JSON that obeys its schema.
    """
    code, said = run("run", runner_file(here, kit_config(here)), "--json", "run.json")
    assert (code, f"report: {here / 'out/tiny-runner/report.html'}" in said) == (0, True), said
    told = json.loads((here / "run.json").read_text())
    jsonschema.validate(told, msgspec.json.schema(RunReport))
    assert told["schema"] == "opscope.run/2"
    found = manifest(here, "tiny-runner")
    assert [(v.name, v.role) for v in found.variants] == [("alpha", Role.BASELINE), ("beta", Role.CANDIDATE)]
    assert (found.status, len(found.repetitions), found.plan.timed_order) == (Status.COMPLETE, 4, [])
    assert str(here / "on") in found.target.address
    assert {r.inferences for r in found.repetitions} == {3}
    comparisons = api.content(here / "out/tiny-runner").comparisons
    assert [(c.baseline.label, c.candidate.label) for c in comparisons] == [("alpha", "beta")]


def test_the_kits_trace_run_leaves_a_list_of_kernels(tmp_path: Path) -> None:
    """One run with the log kept, never mixed with what is timed."""
    line = "Note (XNNPACK): Using gemm microkernel 'xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast'. (x, y.c:1)"
    config = kit_config(tmp_path)
    config["experiments"][1] |= {"mode": "xnntrace"}
    config["analysis"] = {"compare_pairs": []}
    done = api.run(runner_file(tmp_path, config, f"print({line!r}, flush=True); {GOOD}"))
    (evidence,) = done.evidence
    assert (evidence.experiment, evidence.variant, evidence.kernels) == ("tiny-xnntrace", "beta", 1)
    assert evidence.failure is None
    assert Path(evidence.log).is_relative_to(tmp_path / "out/tiny-xnntrace/beta")
    assert [v.name for v in manifest(tmp_path, "tiny-runner").variants] == ["alpha"]


def test_a_runner_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    """With its path."""
    file = runner_file(tmp_path, kit_config(tmp_path))
    (tmp_path / "on").unlink()
    with pytest.raises(NotFoundError, match=NO_RUNNER):
        api.run(file)
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_told_by_the_exit_code(here: Path, run: Run) -> None:
    """Report the other variant where the runner of one crashes, with the code for incomplete."""
    file = runner_file(here, kit_config(here))
    write_runner(here, "os.abort()", name="off")
    code, said = run("run", file)
    assert (code, "SIGABRT" in said) == (11, True)
    write_runner(here, "os.abort()", name="on")
    shutil.rmtree(here / "out")
    code, said = run("run", file)
    assert (code, NOTHING_MEASURED in said) == (7, True)


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
    assert ended_here("run", file, "--resume", "--quiet") == 0
    found = Bundle.open(out).manifest
    assert (found.status, len(found.repetitions)) == (Status.COMPLETE, 4)
    assert found.repetitions[: len(kept)] == kept


@pytest.mark.parametrize("target", ["local", "native", "runner"])
def test_init_writes_a_template_once(target: str, here: Path, run: Run) -> None:
    """Never write over something."""
    words = ("init", "--target", target, "--out")
    assert run(*words, "new/some.toml")[0] == 0
    assert (here / "new/some.toml").read_text() == template(target)
    code, said = run(*words, "new/some.toml")
    assert (code, "already" in said) == (8, True)
    assert run(*words, "-") == (0, template(target))


def test_init_writes_devices(here: Path, run: Run) -> None:
    """Write a file that is right as it is, with what was named."""
    words = ["--device", "pixel8=adb:123", "--device", "rpi.5=ssh:pi@rpi5?dir=/data"]
    code, said = run("init", *words, "--out", "lab.toml")
    assert code == 0, said
    found = read_experiments(here / "lab.toml").experiments
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
def test_wrong_input_gets_a_message_and_a_code(
    arguments: str, code: int, said: str, here: Path, command: Command
) -> None:
    """Leave nothing behind."""
    written(here, PAIR)
    (here / "wrong.toml").write_text('model = "tiny.pte"\nrounds = 0')
    (here / "named.toml").write_text('model = "tiny.pte"\ndevices = ["rpi5"]')
    (here / "missing.toml").write_text('model = "none.pte"')
    before = sorted(here.rglob("*"))
    done = command(*arguments.split())
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert sorted(here.rglob("*")) == before


@pytest.mark.runtime
def test_a_file_runs_on_the_real_runtime(toy_program: Path, here: Path, run: Run) -> None:
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
    (here / "toy.toml").write_text(text)
    code, said = run("run", "toy.toml")
    assert code == 0, said
    assert "inconclusive: add rounds" in said or "no ratio: " in said  # where the machine is busy
    (path,) = (here / "opscope-out/toy").iterdir()
    found = Bundle.open(path).manifest
    assert (found.status, len(found.repetitions)) == (Status.COMPLETE, 4)
    assert run("run", "toy.toml", "--resume", "--quiet")[0] == 0
    assert Bundle.open(path).manifest.repetitions == found.repetitions
