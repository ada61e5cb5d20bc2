"""The native runner: built once by the compiler at hand, proved, measured; and what happens when things go wrong.

The faults are real: compilers that fail, programs that are damaged, runners that crash, hang or find no room.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from job_variants import run_as
from native_runner import native_target, runner_path
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import MissingDependencyError, StorageError
from opscope.core.system.cache import cache_directory
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.experiment.tensors import random_inputs
from opscope.program.structure.exported import Tensor
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch.installed import BACKEND, library_directory, library_path
from opscope.runtimes.executorch.runners.native import NativeAnswer, build_runner, native_here
from opscope.runtimes.native.building import find_compiler
from texts import CANNOT_PIN, LOADED_BEFORE, OUTPUT_OF_ANOTHER_PROGRAM
from waiting import HANG

runtime = pytest.mark.runtime


def _job(program: Path, clear: list[str] | None = None, affinity: tuple[int, ...] = (), **other: object) -> Job:
    how = run_as(clear or [], affinity=affinity)
    return msgspec.structs.replace(Job(str(program), how, 3, 0, timeout_seconds=HANG), **other)


def _executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _compiler(path: Path, compile_script: str, version: str = "cc 1.0") -> Path:
    """A compiler that says its version, writes down each other call, and then does this with ``$out``."""
    return _executable(
        path,
        f'if [ "$1" = --version ]; then echo "{version}"; exit 0; fi\n'
        f'echo call >> "{path}.calls"\n'
        'for word in "$@"; do out="$word"; done\n'
        f"{compile_script}",
    )


WORKING = r'printf "#!/bin/sh\nexit 0\n" > "$out"; chmod +x "$out"'


@pytest.mark.parametrize(
    ("named", "words", "hint"),
    [
        (None, "there is no C\\+\\+ compiler", "--target local"),
        ("no-such-compiler -O1", "no-such-compiler -O1 \\(CXX\\) does not work", ""),
    ],
    ids=["nothing on the path", "one that is named is not replaced"],
)
def test_without_a_compiler_the_next_step_is_said(
    named: str | None, words: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What to install, and which target needs none."""
    if named:
        monkeypatch.setenv("CXX", named)
    else:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=words) as caught:
        find_compiler()
    assert hint in str(caught.value.hint)


@runtime
def test_a_runner_is_built_once_by_each_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second request finds the first one's runner, alone but for its hash; an upgraded compiler does not."""
    monkeypatch.setenv("CXX", str(_compiler(tmp_path / "cc", WORKING)))
    first, second = build_runner(tmp_path / "cache"), build_runner(tmp_path / "cache")
    assert first == second
    calls = tmp_path / "cc.calls"
    assert len(calls.read_text().splitlines()) == 1
    assert {path.name for path in first[0].parent.iterdir()} == {"runner", "runner.sha256"}
    _compiler(tmp_path / "cc", WORKING, version="cc 2.0")
    assert build_runner(tmp_path / "cache")[0] != first[0]
    assert len(calls.read_text().splitlines()) == 2


@runtime
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'a.h: note: seen' >&2; echo 'a.cpp:7: fatal error: x.h: no such file' >&2; exit 1", "a.cpp:7: fatal.*"),
        ("echo 'collect2 failed' >&2; exit 4", "cannot build the native runner: collect2 failed"),
        ("exit 3", "cannot build the native runner: exit code 3"),
        ("kill -SEGV $$", "cannot build the native runner: exit code -11"),
        (
            WORKING.replace("exit 0", "echo no such library >\\&2; exit 127").replace("\\&", "&"),
            "not start: no such lib",
        ),
    ],
)
def test_a_compiler_that_fails_is_quoted(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its first error or last words; and nothing is kept that a later request could take for a runner."""
    monkeypatch.setenv("CXX", str(_compiler(tmp_path / "cc", script)))
    with pytest.raises(MissingDependencyError, match=message):
        build_runner(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("runner"))


@runtime
def test_a_cache_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The place of the cache is a file."""
    monkeypatch.setenv("CXX", str(_compiler(tmp_path / "cc", WORKING)))
    (tmp_path / "cache").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        build_runner(tmp_path / "cache")


def test_the_cache_is_where_the_system_keeps_such_things(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment's word counts, else the home directory's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_directory() == tmp_path / "x" / "opscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in cache_directory().parents


@runtime
def test_outputs_are_those_of_the_python_runtime(toy_program: Path, tmp_path: Path) -> None:
    """The same inputs through both runtimes give the same values."""
    outcome = native_target().execute(_job(toy_program, seed=5), tmp_path)
    inputs = random_inputs([Tensor(t.shape, t.dtype) for t in outcome.measurement.inputs], 5)
    np.save(tmp_path / "in.npy", inputs[0])
    script = (
        "import sys, numpy, torch\n"
        "from executorch.extension.pybindings import portable_lib as runtime\n"
        "module = runtime._load_for_executorch(sys.argv[1])\n"
        "out = module.forward([torch.from_numpy(numpy.load(sys.argv[2]))])\n"
        "numpy.save(sys.argv[3], out[0].numpy())\n"
    )
    files = [str(toy_program), str(tmp_path / "in.npy"), str(tmp_path / "out.npy")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, *files], check=True, capture_output=True)
    ours = np.load(tmp_path / "outputs.npz")["arr_0"]
    np.testing.assert_allclose(ours, np.load(tmp_path / "out.npy"), rtol=1e-5, atol=1e-6)


@runtime
def test_a_seed_decides_the_inputs(toy_program: Path, tmp_path: Path) -> None:
    """The same seed, the same outputs, traced or not; another seed, others. An untraced run leaves no trace."""
    target, found = native_target(), []
    for name, seed, traced in (("a", 1, True), ("b", 1, False), ("c", 2, False)):
        (tmp_path / name).mkdir()
        measurement = target.execute(_job(toy_program, seed=seed, traced=traced), tmp_path / name).measurement
        assert len(measurement.wall_ns) == 3
        found.append(measurement.output_sha256)
    assert found[0] == found[1] != found[2]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["log.txt", "outputs.npz"]


@runtime
def test_a_measurement_tells_its_parts(toy_program: Path, tmp_path: Path) -> None:
    """Starting, loading, inferring and writing took time; threads and memory are the process's own."""
    measurement = native_target().execute(_job(toy_program, variant=run_as([], 2)), tmp_path).measurement
    parts = (measurement.start_ns, measurement.load_ns, *measurement.wall_ns, measurement.write_ns or 0)
    assert all(part > 0 for part in parts)
    assert measurement.threads == 2
    assert measurement.peak_rss_bytes > toy_program.stat().st_size
    assert measurement.inputs == [Tensor([1, 3, 64, 64], "float32")]
    assert measurement.outputs == [Tensor([1, 10], "float32")]
    assert {"executorch", "compiler"} <= measurement.versions.keys()


@runtime
def test_memory_is_not_that_of_the_process_that_started_it(toy_program: Path, tmp_path: Path) -> None:
    """A parent of 300 MB does not make a small runner large, as Linux's resource usage would have it."""
    if sys.platform != "linux":
        pytest.skip("the trap is Linux's")
    ballast = np.ones(300_000_000, dtype=np.uint8)
    measurement = native_target().execute(_job(toy_program), tmp_path).measurement
    assert measurement.peak_rss_bytes < 100_000_000 < ballast.nbytes


@runtime
def test_a_job_stays_on_its_processors(toy_program: Path, tmp_path: Path) -> None:
    """One that exists is kept to; one that does not is a failure with the system's reason."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no affinity")
    usable = min(os.sched_getaffinity(0))
    assert native_target().execute(_job(toy_program, affinity=(usable,)), tmp_path).failure is None
    failure = native_target().execute(_job(toy_program, affinity=(1000,)), tmp_path).failure
    assert re.search(CANNOT_PIN, failure.message)


@runtime
def test_a_hanging_run_is_ended_and_leaves_no_half_trace(toy_program: Path, tmp_path: Path) -> None:
    """A run far longer than its limit: the process is ended, and only its log stays."""
    failure = native_target().execute(_job(toy_program, inferences=10**8, timeout_seconds=1.0), tmp_path).failure
    assert failure.kind is FailureKind.TIMEOUT
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@runtime
@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("kill -SEGV $$", FailureKind.SIGNAL, "SIGSEGV"),
        ("kill -ABRT $$", FailureKind.SIGNAL, "SIGABRT"),
        ("echo no such kernel; exit 3", FailureKind.EXIT, "exited with code 3.*no such kernel"),
        ("exit 0", FailureKind.EXIT, "exited with code 0 and no answer"),
        ('echo nonsense > "$OLDPWD/answer.json"', FailureKind.EXIT, "answer is damaged"),
        ("exit 9", FailureKind.STORAGE, "disk is full"),
    ],
)
def test_a_runner_that_fails_is_an_outcome_with_its_reason(
    script: str, kind: FailureKind, message: str, toy_program: Path, tmp_path: Path
) -> None:
    """Crash, abort, error, silence, nonsense and a full disk are told apart; none is an exception."""
    broken = _executable(tmp_path / "runner", f"cd {tmp_path}; {script}")
    directory = tmp_path / "out"
    directory.mkdir()
    failure = native_here(runner=[str(broken)]).execute(_job(toy_program), directory).failure
    assert failure.kind is kind
    assert re.search(message, failure.message)


@runtime
@pytest.mark.parametrize("keep", [0, 40, 5_000, 60_000])
def test_a_damaged_program_is_a_failure(keep: int, toy_program: Path, tmp_path: Path) -> None:
    """A program that was cut anywhere: the runtime refuses it, or ends by a signal; never a measurement."""
    cut = tmp_path / "cut.pte"
    failure = native_target().execute(_job(cut), tmp_path).failure
    assert "cut.pte: No such file" in failure.message
    cut.write_bytes(toy_program.read_bytes()[:keep])
    outcome = native_target().execute(_job(cut), tmp_path)
    assert outcome.measurement is None
    assert outcome.failure.kind in (FailureKind.EXIT, FailureKind.SIGNAL)


@runtime
@pytest.mark.parametrize(("blocks", "message"), [(4, "trace.etdump: cannot be written"), (0, "disk is full")])
def test_no_room_is_said_and_no_half_trace_stays(blocks: int, message: str, toy_program: Path, tmp_path: Path) -> None:
    """Files may not grow beyond a few blocks: the trace, or even the answer, does not fit."""
    command = ["sh", "-c", f'ulimit -f {blocks}; exec "$0" "$@"', str(runner_path())]
    failure = native_here(runner=command).execute(_job(toy_program, inferences=50), tmp_path).failure
    assert failure.kind is FailureKind.STORAGE
    assert message in failure.message
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@runtime
def test_clearing_what_cannot_be_cleared_is_refused(toy_program: Path, tmp_path: Path) -> None:
    """A field without a known offset, and any once the backend is loaded: it has taken its copy of the features."""
    if sys.platform != "linux":
        pytest.skip("preloading is Linux's")
    backend = library_path(library_directory(), BACKEND)
    late = native_here(runner=["env", f"LD_PRELOAD={backend}", str(runner_path())])
    for target, field, words in (
        (native_target(), "warp_drive", "no field warp_drive"),
        (late, late.probe().fields[0], LOADED_BEFORE),
    ):
        failure = target.execute(_job(toy_program, [field]), tmp_path).failure
        assert failure.kind is FailureKind.MASK
        assert words in failure.message


def _runner_answer(tmp_path: Path, *flags: str) -> NativeAnswer:
    path = tmp_path / "answer.json"
    subprocess.run([runner_path(), *flags, f"--answer_path={path}"], check=False, capture_output=True)
    return msgspec.json.decode(path.read_bytes(), type=NativeAnswer)


@runtime
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clear=x=3"], "--clear needs --cpuinfo_size"),
        (["--cpuinfo_size=7"], "bytes, 7 are known"),
        (["--cpuinfo_size=SIZE", "--clear=x=5000"], "x stands outside of cpuinfo_isa"),
        (["--cpuinfo_size=SIZE", "--detected=x=OFF"], "another layout than the known one: x is not set"),
    ],
)
def test_a_layout_that_is_not_the_known_one_is_refused(
    flags: list[str], message: str, toy_program: Path, tmp_path: Path
) -> None:
    """Without the struct's size, with another size, beyond its end, or where a known feature is not found."""
    probed = native_target().probe()
    off = next(offset for field, offset in probed.offsets.items() if field not in probed.fields)
    words = [word.replace("SIZE", str(probed.layout_size)).replace("OFF", str(off)) for word in flags]
    heard = _runner_answer(tmp_path, f"--model_path={toy_program}", *words)
    assert heard.kind == "mask"
    assert message in (heard.error or "")


@runtime
def test_the_runner_takes_executor_runners_flags(toy_program: Path, tmp_path: Path) -> None:
    """Both spellings, its closing line, its names of output files; warm-up is apart from the measured calls."""
    path = tmp_path / "answer.json"
    words = ["-model_path", toy_program, "--num_executions", "3", "--cpu_threads=1", "--warmup=2"]
    files = [f"--etdump_path={tmp_path / 't.etdump'}", f"--output_file={tmp_path / 'o'}", "--answer_path", path]
    done = subprocess.run([runner_path(), *words, *files], check=True, capture_output=True, text=True)
    assert re.search(r"^Model executed successfully 3 time\(s\) in [\d.]+ ms\.$", done.stdout, re.MULTILINE)
    heard = msgspec.json.decode(path.read_bytes(), type=NativeAnswer)
    assert (len(heard.warmup_ns), len(heard.wall_ns)) == (2, 3)
    assert heard.planned_bytes > 0
    assert read_trace(tmp_path / "t.etdump")[0].inferences().height == 5
    assert (tmp_path / "o-0.bin").stat().st_size == 40


@runtime
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--modelpath=x"], "unknown flag: --modelpath"),
        (["model.pte"], "not a flag: model.pte"),
        (["--model_path"], "--model_path needs a value"),
        ([], "--model_path is missing"),
    ],
)
def test_a_wrong_flag_is_named_with_those_there_are(words: list[str], message: str) -> None:
    """Exit code 2, the flag, and the list."""
    done = subprocess.run([runner_path(), *words], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "--num_executions=..." in done.stderr


@runtime
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method_name=backward"], "no method 'backward'; it has: forward"),
        (["--inputs=/dev/null,/dev/null"], "the method takes 1 inputs, 2 are given"),
        (["--inputs=/dev/null"], "an input of 49152 bytes is needed"),
        (["--input_file=/nowhere/x"], "/nowhere/x-0.bin: cannot be read"),
        (["--output_file=/nowhere/x"], "/nowhere/x-0.bin: cannot be written"),
    ],
)
def test_what_a_run_lacks_is_said(flags: list[str], message: str, toy_program: Path, tmp_path: Path) -> None:
    """A method, inputs of the right number and size, a place for outputs."""
    assert message in (_runner_answer(tmp_path, f"--model_path={toy_program}", *flags).error or "")


@runtime
def test_an_output_of_another_size_fails_one_repetition(toy_program: Path, tmp_path: Path) -> None:
    """The runner says four numbers and leaves three bytes: no exception, and nothing is believed."""
    told = '{"outputs":[{"sizes":[4],"dim_order":[0],"type":6}],"wall_ns":[1000]}'
    runner = _executable(tmp_path / "runner", f"printf abc >out-0.bin\necho '{told}' >answer.json")
    asked = msgspec.structs.replace(_job(toy_program), variant=AS_IT_IS)
    failure = native_here(runner=[str(runner)]).execute(asked, tmp_path).failure
    assert (failure.kind, OUTPUT_OF_ANOTHER_PROGRAM in failure.message) == (FailureKind.EXIT, True)
