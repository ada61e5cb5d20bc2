"""End to end with the real runtime: export, masked processes, traces, reports; crashes and interruptions included."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import ended_here
from exports import served
from opscope.api import Settings, analyze, content, doctor, features, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import FailureKind, Role, Status
from opscope.core.errors import RunError, StorageError
from opscope.program.structure.plan import PlannedTensor
from opscope.readers.flatbuffer import FlatBuffer, Tables
from opscope.runtimes.executorch.export.registry import build
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.executorch.runners.python import python_here
from waiting import eventually

pytestmark = pytest.mark.runtime
PROFILE = [sys.executable, "-m", "opscope", "profile", "--no-ceilings", "--target", "local"]
TRACED = ("--traced-only",)
SMALL = Settings(rounds=2, runs=4, warmup=2, ceilings=False)


@pytest.fixture(scope="module")
def bundle(toy_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """toy_cnn profiled with both variants."""
    out = tmp_path_factory.mktemp("e2e") / "out"
    profile(str(toy_program), settings=SMALL, out=out)
    return out


def test_both_variants_run_and_are_split(bundle: Path) -> None:
    """Run two processes of each, whose split adds up to its latency.

    Method::execute is never longer than the call around it, and is most of it.
    """
    shown = content(bundle)
    assert shown.manifest.status is Status.COMPLETE
    for result in shown.variants:
        traced = result.analysis.traced
        assert traced.n == 8
        assert sum(operator.traced_ns for operator in result.analysis.operators) == pytest.approx(traced.mean_ns)
        assert {backend.backend for backend in result.analysis.backends} == {"XNNPACK", "portable", "framework"}
    assert shown.primary.outputs.agree
    samples = analyze(f"{bundle}#accelerated").traced.samples_ns[:4]
    walls = Bundle.open(bundle).manifest.completed("accelerated")[0].measurement.wall_ns[2:]
    assert all(inside < outside < 3 * inside + 1_000_000 for inside, outside in zip(samples, walls, strict=True))


LARGE_ADD = """
import torch


class Add(torch.nn.Module):
    def forward(self, left, right):
        return left + right


def model():
    return Add(), (torch.rand(1024, 1024), torch.rand(1024, 1024))
"""


@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_the_copies_of_large_tensors_are_in_the_table(tmp_path: Path) -> None:
    """An add of tensors of 4 MB copies them: a row says so, all rows together are the latency of the answer."""
    (tmp_path / "large.py").write_text(LARGE_ADD)
    once = Settings(rounds=2, runs=6, warmup=2, ceilings=False, ablate=("none",))
    program = served(tmp_path / "program", f"{tmp_path}/large.py:model").program
    shown = profile(str(program), settings=once, out=tmp_path / "out").content.shown
    # Two tensors in and one out, 12 MB: no core moves a byte in less than 5 ps, and a busy machine is only slower.
    assert shown.copies.traced_ns > 12e6 * 0.005
    assert sum(row.share for row in (*shown.operators, *shown.outside)) == pytest.approx(1)


def test_the_mask_is_proved_for_every_process(bundle: Path) -> None:
    """Clear what the plan says in baselines, nothing in accelerated ones, and load the backend before in none.

    Versions, features, hashes and inputs are there for whoever reads it later.
    """
    manifest = Bundle.open(bundle).manifest
    for repetition in manifest.repetitions:
        variant, measurement = manifest.variant(repetition.variant), repetition.measurement
        assert measurement.mask.cleared == variant.cleared
        assert bool(variant.cleared) is (variant.role is Role.BASELINE)
        assert (measurement.mask.same_symbol, measurement.threads) == (True, 1)
    told = json.loads((bundle / "manifest.json").read_text())
    assert told["environment"]["versions"]["executorch"].startswith("1.5")
    assert (told["model"]["backends"], told["model"]["methods"]) == (["XnnpackBackend"], ["forward"])
    assert told["repetitions"][0]["measurement"]["inputs"] == [{"shape": [1, 3, 64, 64], "dtype": "float32"}]
    assert len({rep["measurement"]["output_sha256"] for rep in told["repetitions"]}) <= 2


def test_exported_files_read_back(toy_program: Path) -> None:
    """The program has a method with delegates and portable kernels; the record lies beside it."""
    (plan,) = read_executable(toy_program).plans
    assert plan.name == "forward"
    assert [plan.called(step) for step in plan.chains[0].steps if step.kind.value == "kernel"] == [
        "aten::native_layer_norm.out",
        "aten::mean.out",
    ]
    assert toy_program.with_suffix(".etrecord").stat().st_size > 0


def test_mobilenet_is_the_published_network() -> None:
    """Count 2,542,856 parameters, as in the reference models of the paper."""
    assert sum(parameter.numel() for parameter in build("mobilenet_v3_small").module.parameters()) == 2_542_856


def crashing(program: Path, directory: Path) -> Path:
    """A program that is whole by its structure and crashes the runtime: a kernel gets a number for a tensor."""
    (plan,) = read_executable(program).plans
    number = next(index for index, value in enumerate(plan.values) if not isinstance(value, PlannedTensor))
    data = bytearray(program.read_bytes())
    buffer = FlatBuffer(bytes(data), "program")
    plans = Tables(buffer, buffer.root().children(1)[0])
    instructions = Tables(buffer, Tables(buffer, plans.children(5)[0]).children(2)[0])
    kernels = Tables(buffer, instructions.reference(1)[instructions.uint8(0) == 1])
    struct.pack_into("<i", data, int(kernels.vector(1)[0][0]), number)
    path = directory / "crashing.pte"
    path.write_bytes(data)
    return path


def test_a_model_that_crashes_the_runtime(toy_program: Path, tmp_path: Path) -> None:
    """The runtime aborts: recorded with its signal, its last words and its log, and never a result."""
    program = crashing(toy_program, tmp_path)
    with pytest.raises(RunError, match=r"SIGABRT.*not a Tensor"):
        profile(str(program), settings=Settings(rounds=1, runs=2, ceilings=False), out=tmp_path / "out")
    manifest = Bundle.open(tmp_path / "out").manifest
    assert manifest.status is Status.INCOMPLETE
    for repetition in manifest.repetitions:
        assert (repetition.failure.kind, repetition.failure.signal) == (FailureKind.SIGNAL, "SIGABRT")
        assert (tmp_path / "out" / repetition.directory / "log.txt").exists()


def test_a_crash_in_one_round_leaves_the_others(toy_program: Path, tmp_path: Path) -> None:
    """The second of eight processes dies by a signal; seven count, and resuming runs the missing one."""
    counter = tmp_path / "count"
    script = (
        "import os, pathlib, runpy, signal, sys\n"
        f"counter = pathlib.Path({str(counter)!r})\n"
        "if sys.argv[1] == 'run':\n"
        "    number = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "    counter.write_text(str(number))\n"
        "    if number == 2:\n"
        "        os.kill(os.getpid(), signal.SIGBUS)\n"
        "runpy.run_module('opscope.runtimes.executorch.runners.child', run_name='__main__')\n"
    )
    target = python_here([sys.executable, "-c", script])
    out = tmp_path / "out"
    done = profile(str(toy_program), settings=SMALL, out=out, target=target)
    assert [r.failure.signal for r in done.content.manifest.failures() if r.failure] == ["SIGBUS"]
    assert len(done.content.manifest.pending()) == 1
    done = profile(str(toy_program), out=out, resume=True, target=target)
    assert done.content.manifest.status is Status.COMPLETE
    assert len(done.content.manifest.repetitions) == 9


@pytest.mark.nightly  # several processes of the real runtime
@pytest.mark.parametrize(
    ("number", "kept", "more", "planned"),
    [
        (signal.SIGINT, 1, (), 8),
        (signal.SIGTERM, 1, TRACED, 4),
        (signal.SIGKILL, 1, TRACED, 4),
        (signal.SIGKILL, 3, (), 8),
    ],
)
def test_a_run_that_was_ended_is_finished_without_repeating_anything(
    toy_program: Path, tmp_path: Path, number: int, kept: int, more: tuple[str, ...], planned: int
) -> None:
    """Leave a bundle that says it is incomplete, and a hint; SIGKILL leaves no chance to say anything.

    What was recorded stays as it is, byte for byte.
    """
    out = tmp_path / "out"
    command = [*PROFILE, str(toy_program), "--out", str(out)]
    effort = ["--rounds", "2", "--runs", "3", *more]
    with subprocess.Popen([*command, *effort], stderr=subprocess.PIPE, text=True) as process:
        assert eventually(
            lambda: (out / "manifest.json").exists() and len(Bundle.open(out).manifest.repetitions) >= kept
        )
        process.send_signal(number)
        _, errors = process.communicate()
    before = Bundle.open(out).manifest
    if number != signal.SIGKILL:
        assert (process.returncode, before.status) == (130, Status.INCOMPLETE)
        assert "--resume" in errors
        assert "Traceback" not in errors
        assert len(before.repetitions) < planned
    assert ended_here(*command[3:], "--resume", "--quiet") == 0
    manifest = Bundle.open(out).manifest
    assert manifest.repetitions[: len(before.repetitions)] == before.repetitions
    assert (manifest.status, len({rep.place for rep in manifest.repetitions})) == (Status.COMPLETE, planned)


def test_a_full_disk_loses_nothing(toy_program: Path, tmp_path: Path) -> None:
    """On a real file system without space the run stops, says so, keeps what it has, and can be finished."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        settings = Settings(rounds=6, runs=100, warmup=2, untraced=False, ceilings=False)
        with pytest.raises(StorageError) as caught:
            profile(str(toy_program), settings=settings, out=disk / "out")
        assert "--resume" in (caught.value.hint or "")
        manifest = Bundle.open(disk / "out").manifest
        assert manifest.status is Status.INCOMPLETE
        kept = sum(repetition.ok for repetition in manifest.repetitions)
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        done = profile(str(toy_program), out=disk / "out", resume=True)
        assert done.content.manifest.status is Status.COMPLETE
        assert sum(r.ok for r in done.content.manifest.repetitions) == 12
        assert kept >= 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_machine_is_described() -> None:
    """Features, the default and the ladder agree with each other; the doctor finds nothing missing here."""
    found = features()
    present = [group.name for group in found.groups if group.present]
    assert set(found.ladder) <= set(present)
    assert found.default is None or found.default in present
    assert os.cpu_count()
    assert not [check for check in doctor() if check.state.value == "problem" and check.name != "disk"]
