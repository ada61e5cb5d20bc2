"""The user's own executor_runner: what is asked of it, what it tells, and what is said when it fails.

The runners are small executables of their own, so processes, files, signals and time limits are real.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from job_variants import run_as
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import FeatureError, NotFoundError, UsageError
from opscope.experiment.engine import _judge_outcome
from opscope.experiment.protocol import Job
from opscope.experiment.target import JobOutcome
from opscope.program.structure.exported import Tensor
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget, parse_help, parse_log
from processes import has_ended
from runners import FLAGS, GOOD, this_machine, write_runner
from texts import CANNOT_PIN, NO_RUNNER, OWN_FLAG, OWN_RUNNER
from traces import encode
from waiting import eventually

NO_TRACER = tuple(flag for flag in FLAGS if flag != "etdump_path")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux keeps a process on chosen CPUs")


class Tried(NamedTuple):
    """A repetition: its outcome, its directory, and the command line that the runner saw."""

    outcome: JobOutcome
    directory: Path
    words: list[str]
    cpus: list[int]


def _job(*, clear: tuple[str, ...] = (), threads: int = 1, affinity: tuple[int, ...] = (), **more) -> Job:
    """Three inferences of a program that a pretended runner does not open."""
    return Job("model.pte", run_as(clear, threads, affinity=affinity), 3, 0, 60.0, **more)


def _build(runner: Path, *arguments: object, **more: object) -> ExecutorRunnerTarget:
    return ExecutorRunnerTarget(this_machine(runner), runner, *arguments, **more)


def run(target: ExecutorRunnerTarget, directory: Path, asked: Job) -> Tried:
    """One repetition in a directory of its own."""
    work = directory / f"repetition-{len(list(directory.iterdir()))}"
    work.mkdir()
    outcome = target.execute(asked, work)
    seen = work / "seen"
    words, cpus = eval(seen.read_text()) if seen.exists() else ([], [])  # noqa: S307 - our own script wrote it
    seen.unlink(missing_ok=True)
    return Tried(outcome, work, words, cpus)


def judge(tried: Tried, asked: Job) -> tuple[int | None, object]:
    """Inferences and failure that the engine writes down."""

    def inferences() -> int:
        return len(read_trace(tried.directory / "trace.etdump").table.inference_times().duration)

    return _judge_outcome(tried.outcome, asked, inferences)


def judged(tried: Tried, asked: Job) -> tuple[FailureKind, str]:
    """Kind and message of the failure that the engine writes down."""
    failure = judge(tried, asked)[1]
    return failure.kind, failure.message


def test_a_good_run_is_a_measurement_of_what_the_runner_told(tmp_path: Path) -> None:
    """Threads, load time and every call come from the log, the trace is the runner's, and nothing else is left.

    A runner cannot be asked between its calls: counters of the system are those of its whole process, and no mask is
    proved.
    """
    script = "held = bytearray(b'x') * (64 << 20); sum(range(10**6)); " + GOOD
    tried = run(_build(write_runner(tmp_path, script)), tmp_path, _job(threads=2))
    assert judge(tried, _job(threads=2)) == (3, None)
    told = tried.outcome.measurement
    assert (told.threads, told.load_ns, told.wall_ns) == (2, 3_250_000, [100_000, 200_000, 300_000])
    assert 64 << 20 < told.peak_rss_bytes < 256 << 20
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", told.versions["executor_runner"])
    assert (told.mask, told.off_cpu_ns, told.usage.thread_cpu_ns, told.usage.whole_process) == (None, None, None, True)
    assert told.usage.cpu_ns > 0
    assert told.usage.minor_faults > 0
    assert sorted(path.name for path in tried.directory.iterdir()) == ["log.txt", "trace.etdump"]


@LINUX
def test_a_large_parent_hides_no_peak_memory(tmp_path: Path) -> None:
    """The system counts a parent's memory for the launcher; what the runner held is known all the same."""
    held = bytearray(b"x") * (320 << 20)
    tried = run(_build(write_runner(tmp_path, "held = bytearray(b'x') * (64 << 20); " + GOOD)), tmp_path, _job())
    told = tried.outcome.measurement
    assert 64 << 20 < told.peak_rss_bytes < len(held)


def test_the_runner_gets_the_flags_of_executor_runner(tmp_path: Path) -> None:
    """Model, executions, threads, trace and the one method that it calls, then the arguments of the user."""
    target = _build(write_runner(tmp_path), ["--data_path", "/weights.ptd"])
    words = run(target, tmp_path, _job(threads=2, calls=("decode",))).words
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--model_path": str(Path("model.pte").resolve()),
        "--num_executions": "3",
        "--cpu_threads": "2",
        "--etdump_path": "trace.etdump",
        "--method_name": "decode",
        "--data_path": "/weights.ptd",
    }
    refused = run(target, tmp_path, _job(calls=("prefill", "decode"))).outcome.failure
    assert "name one with --methods" in refused.message


@pytest.mark.parametrize("argument", ["--num_executions=9", "-cpu_threads", "--etdump_path"])
def test_flags_that_opscope_sets_are_refused(argument: str, tmp_path: Path) -> None:
    """The runner would take the last one and measure something else than was asked."""
    with pytest.raises(UsageError, match=OWN_FLAG):
        _build(write_runner(tmp_path), [argument])


def test_a_runner_that_is_not_there_or_not_executable_is_refused(tmp_path: Path) -> None:
    """At once, before anything runs, with the next step."""
    with pytest.raises(NotFoundError, match=NO_RUNNER):
        _build(tmp_path / "none")
    runner = write_runner(tmp_path)
    runner.chmod(0o644)
    with pytest.raises(UsageError, match="not executable") as caught:
        _build(runner)
    assert caught.value.hint == f"chmod +x {runner}"


def test_a_variant_with_cleared_features_is_refused(tmp_path: Path) -> None:
    """Nothing can be masked in a foreign runner, so it is never asked and nothing claims to be proved."""
    target = _build(write_runner(tmp_path))
    with pytest.raises(FeatureError, match=OWN_RUNNER) as caught:
        target.execute(_job(clear=("avx2",)), tmp_path)
    assert "one runner per variant" in str(caught.value.hint)
    with pytest.raises(FeatureError):
        target.probe()
    assert not (tmp_path / "seen").exists()


def test_a_runner_describes_itself_by_path_and_hash(tmp_path: Path) -> None:
    """The installed executorch is not what it was built from, so its version is not stated."""
    runner = write_runner(tmp_path)
    target = _build(runner)
    assert (target.describe().kind, target.describe().address) == ("runner", str(runner))
    machine = target.environment()
    assert machine.features is None
    assert set(machine.versions) == {"opscope", "python", "executor_runner"}
    assert target.ceilings(run_as([])) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("start(); os.kill(os.getpid(), signal.SIGSEGV)", FailureKind.SIGNAL, "SIGSEGV.*by hand.*Model loaded"),
        ("os.kill(os.getpid(), signal.SIGILL)", FailureKind.SIGNAL, "SIGILL.*instructions that this CPU lacks"),
        ("os.kill(os.getpid(), signal.SIGKILL)", FailureKind.SIGNAL, "SIGKILL.*run out of memory"),
        ("print('F check failed'); sys.stdout.flush(); os.abort()", FailureKind.SIGNAL, "SIGABRT.*F check failed"),
        ("log('Failed to load'); sys.exit(3)", FailureKind.EXIT, "code 3; its last output: .*Failed to load"),
        ("sys.exit(4)", FailureKind.EXIT, "code 4 and printed nothing"),
        ("pass", FailureKind.EXIT, "EXECUTORCH_ENABLE_LOGGING"),
        ("runs = 2; " + GOOD, FailureKind.EXIT, "executed the model 2 times, requested 3"),
        ("start(); infer(); close()", FailureKind.TRACE, "built without event tracing"),
        ("start(); infer(); close(); trace(b'')", FailureKind.TRACE, "EXECUTORCH_ENABLE_EVENT_TRACER"),
        ("start(); infer(); close(); trace(whole()[:200])", FailureKind.TRACE, "the ETDump is truncated"),
        ("start(); infer(); close(); trace(b'x' * 99)", FailureKind.TRACE, "unrecognised format"),
        (
            f"start(); infer(); close(); trace({encode([])!r})",
            FailureKind.TRACE,
            "no events.*built without event tracing",
        ),
    ],
)
def test_a_runner_that_fails_is_told_by_kind_with_what_to_do(
    script: str, kind: FailureKind, message: str, tmp_path: Path
) -> None:
    """Crash, error, silence, fewer inferences, no trace, an empty one, half of one and one without events."""
    found, text = judged(run(_build(write_runner(tmp_path, script)), tmp_path, _job()), _job())
    assert found is kind
    assert re.search(message, text)


def test_a_trace_that_a_full_disk_cut_is_a_storage_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """executor_runner does not check what it wrote; a disk without room tells why half a trace is there."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    target = _build(write_runner(tmp_path, "start(); infer(); close(); trace(whole()[:200])"))
    failure = run(target, tmp_path, _job()).outcome.failure
    assert failure.kind is FailureKind.STORAGE


@pytest.mark.parametrize(
    "text",
    [
        "OutputX 0: tensor(sizes=[2], [0.5, nan])",
        "OutputX 0: tensor(sizes=[2], [\\n  -nan, 1., ])",
        "Output[0][7]: (float) nan",
    ],
)
def test_nan_in_the_printed_outputs_is_a_failure(text: str, tmp_path: Path) -> None:
    """In every form in which the runner prints outputs, wrapped lines included."""
    script = f"start(); infer(); close(); output('{text}'); trace(whole())"
    failure = run(_build(write_runner(tmp_path, script)), tmp_path, _job()).outcome.failure
    assert failure.kind is FailureKind.OUTPUT
    assert "1 of the printed output values are NaN" in failure.message


def test_written_outputs_are_kept_and_searched_for_nan(tmp_path: Path) -> None:
    """The runner prints the first and last hundred values only; with --output_file all are read."""
    write = "pathlib.Path('output-0.bin').write_bytes(struct.pack('4f', 0.5, -1, 2, {}))"
    declared = [Tensor([1, 4], "float32")]
    good = _build(write_runner(tmp_path / "a", write.format(3) + "; " + GOOD), outputs=declared)
    tried = run(good, tmp_path / "a", _job())
    told = tried.outcome.measurement
    assert told.outputs == declared
    assert re.fullmatch("[0-9a-f]{64}", told.output_sha256)
    assert np.load(tried.directory / "outputs.npz")["arr_0"].tolist() == [[0.5, -1.0, 2.0, 3.0]]
    assert not (tried.directory / "output-0.bin").exists()

    bad = _build(write_runner(tmp_path / "b", write.format("float('nan')") + "; " + GOOD), outputs=declared)
    failure = run(bad, tmp_path / "b", _job()).outcome.failure
    assert "1 of the written output values are NaN" in failure.message


def test_a_runner_without_the_tracer_is_not_even_started(tmp_path: Path) -> None:
    """Its --help lists no --etdump_path: a traced repetition is refused, an untraced one runs without that flag."""
    target = _build(write_runner(tmp_path, "start(); infer(); close(); output()", NO_TRACER))
    assert target.always_traces is False
    refused = run(target, tmp_path, _job())
    assert (refused.words, refused.outcome.failure.kind) == ([], FailureKind.TRACE)
    timed = run(target, tmp_path, _job(traced=False))
    assert timed.outcome.failure is None
    assert "--etdump_path" not in timed.words


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        (GOOD, FLAGS, "leave out the untraced arm"),
        ("start(); close(); output()", NO_TRACER, "only the total time"),
    ],
    ids=["tracing is built in", "an older log without each call"],
)
def test_what_cannot_be_timed_untraced_is_refused(
    script: str, flags: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """A latency would not be an untraced one, or the mean of all calls, warm-up included, is not that of any."""
    target = _build(write_runner(tmp_path, script, flags))
    assert target.always_traces is (flags is FLAGS)
    failure = run(target, tmp_path, _job(traced=False)).outcome.failure
    assert failure.kind is (FailureKind.TRACE if flags is FLAGS else FailureKind.EXIT)
    assert words in failure.message


def without_help(runner: Path) -> Path:
    """The same runner, with a --help that says nothing."""
    text = runner.read_text()
    runner.write_text(text.replace('if words == ["--help"]:', 'if words == ["--help"]:\n    sys.exit(0)\nif False:'))
    return runner


def test_a_runner_whose_flags_are_not_known_is_judged_by_what_it_does(tmp_path: Path) -> None:
    """A trace that it leaves in an untraced repetition gives it away; it is removed, and not in the caller's place."""
    script = "start(); infer(); close(); output(); trace(whole())"
    target = _build(without_help(write_runner(tmp_path, script)))
    assert target.always_traces is None
    tried = run(target, tmp_path, _job(traced=False))
    assert "the runner traces every inference" in tried.outcome.failure.message
    assert not (tried.directory / "model.etdump").exists()
    assert not Path("model.etdump").exists()


@pytest.mark.parametrize(
    ("missing", "kind", "words"),
    [
        ("etdump_path", FailureKind.TRACE, "built without event tracing"),
        ("cpu_threads", FailureKind.EXIT, "does not know --cpu_threads"),
    ],
)
def test_a_flag_the_runner_refuses_is_named(missing: str, kind: FailureKind, words: str, tmp_path: Path) -> None:
    """Without --help to go by, the refusal of --etdump_path means no tracer, that of another an older runner."""
    runner = without_help(write_runner(tmp_path, GOOD, tuple(flag for flag in FLAGS if flag != missing)))
    found, text = judged(run(_build(runner), tmp_path, _job()), _job())
    assert found is kind
    assert words in text


def test_an_older_log_without_each_call_counts_where_the_trace_has_them(tmp_path: Path) -> None:
    """Before the runner printed each iteration there was only the total; a traced repetition needs no more."""
    tried = run(_build(write_runner(tmp_path, "start(); close(); finish()")), tmp_path, _job())
    assert tried.outcome.measurement.wall_ns == []


def test_threads_that_no_pool_was_set_to_are_not_believed(tmp_path: Path) -> None:
    """A runner without a thread pool runs on one thread whatever it is asked."""
    target = _build(write_runner(tmp_path, "infer(); close(); finish()"))
    assert run(target, tmp_path, _job()).outcome.measurement.threads == 1
    kind, text = judged(run(target, tmp_path, _job(threads=2)), _job(threads=2))
    assert kind is FailureKind.EXIT
    assert "set no thread pool" in text


def test_a_file_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    """A runner of another machine is not a crash of the model."""
    alien = tmp_path / "alien"
    alien.write_bytes(b"\x7fELF" + bytes(60))
    alien.chmod(0o755)
    failure = run(_build(alien), tmp_path, _job()).outcome.failure
    assert failure.kind is FailureKind.EXIT
    assert "another architecture" in failure.message


@LINUX
def test_the_runner_stays_on_the_cpus_that_were_asked(tmp_path: Path) -> None:
    """The CPUs are set before it starts, opscope's own stay as they were; one that was taken away is told."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    target = _build(write_runner(tmp_path))
    tried = run(target, tmp_path, _job(affinity=(cpu,)))
    assert (tried.outcome.failure, tried.cpus) == (None, [cpu])
    assert os.sched_getaffinity(0) == before
    failure = run(target, tmp_path, _job(affinity=(1023,))).outcome.failure
    assert f"{CANNOT_PIN} 1023" in failure.message


@LINUX
def test_nothing_the_runner_started_outlives_it(tmp_path: Path) -> None:
    """A runner that ends leaves no child behind."""
    script = "child = os.fork(); child or time.sleep(600); pathlib.Path(f'pid.{child}').touch(); sys.exit(5)"
    tried = run(_build(write_runner(tmp_path, script)), tmp_path, _job())
    assert tried.outcome.failure.kind is FailureKind.EXIT
    (child,) = tried.directory.glob("pid.*")
    assert eventually(lambda: has_ended(int(child.suffix[1:])))


def test_a_log_is_read_whatever_was_mixed_into_it() -> None:
    """Times in exponent form, a log line between outputs, and the word nan elsewhere than in a value."""
    log = parse_log(
        "I 00:00:00.000001 executorch:cpuinfo_utils.cpp:71] Reading nan file\n"
        "I 00:00:00.000123 executorch:executor_runner.cpp:1] Model executed successfully 1 time(s) in 1.5e+01 ms.\n"
        "OutputX 0: tensor(sizes=[2, 3], [1., \n"
        "I 00:00:00.000124 executorch:executor_runner.cpp:2] ETDump written to file 'nan.etdump'.\n"
        '2., ])\nOutputX 1: "banana"\n'
    )
    assert (log.executed, log.nan_outputs, log.shapes) == (1, 0, {0: [2, 3]})
    assert (log.threads, log.load_ns, log.calls_ns, log.unknown_flag) == (None, None, [], None)


@pytest.mark.parametrize(
    ("text", "flags", "always_traces"),
    [
        ("usage: thing\n  --etdump_path\n", set(), None),
        ("  -model_path (x)\n  -num_executions (y)\n", {"model_path", "num_executions"}, False),
        (
            '  -model_path (x)\n  -num_executions (y)\n  -etdump_path (z) default: "model.etdump"\n',
            {"model_path", "num_executions", "etdump_path"},
            True,
        ),
        (
            "  --model_path=...\n  --num_executions=...\n  --etdump_path=... none unless given\n",
            {"model_path", "num_executions", "etdump_path"},
            None,
        ),
    ],
)
def test_help_tells_whether_tracing_is_built_in(text: str, flags: set[str], always_traces: bool | None) -> None:
    """From another program's help nothing is concluded, nor from a trace flag without a default."""
    assert parse_help(text) == (flags, always_traces)
