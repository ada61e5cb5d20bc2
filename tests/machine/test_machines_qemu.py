"""Other x86-64 CPUs under QEMU, which executes no instruction that the CPU lacks: the native runner works on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from job_variants import run_as
from native_runner import native_target
from opscope.experiment.protocol import Job
from opscope.experiment.target import RunTarget
from opscope.machine import isa
from qemu import emulated_x86
from waiting import HANG

# QEMU's name of the CPU -> the groups that it has. None has AVX-512: QEMU's own code does not emulate it.
GROUPS = {
    "Haswell": ["avx2", "avx", "sse4"],
    "EPYC-Rome": ["avx2", "avx", "sse4"],
    "SandyBridge": ["avx", "sse4"],
    "Westmere": ["sse4"],
    "Penryn": ["sse4"],
    "core2duo": [],
    "Opteron_G1": [],
}
SWITCHED = {model: groups for model, groups in GROUPS.items() if groups}

pytestmark = pytest.mark.runtime


def output(target: RunTarget, program: Path, clear: list[str], place: Path) -> np.ndarray:
    """What one inference computes with these fields cleared."""
    place.mkdir()
    outcome = target.execute(Job(str(program), run_as(clear), 1, 0, timeout_seconds=HANG), place)
    assert outcome.failure is None
    return np.asarray(np.load(place / "outputs.npz")["arr_0"])


@pytest.fixture(scope="module")
def expected(toy_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What this machine computes, with all that it has."""
    place = tmp_path_factory.mktemp("native")
    return {dtype: output(native_target(), program, [], place / dtype) for dtype, program in toy_programs.items()}


def assert_close(one: np.ndarray, other: np.ndarray) -> None:
    """Equal but for the order of additions."""
    assert np.max(np.abs(one - other)) <= 1e-5 * np.max(np.abs(other))


@pytest.mark.parametrize(("model", "groups"), GROUPS.items())
def test_the_runner_sees_the_features_of_the_cpu_it_runs_on(model: str, groups: list[str]) -> None:
    """Those of the emulated one, though /proc/cpuinfo there is this machine's: a list of another CPU."""
    fields = frozenset(emulated_x86(model).probed.fields)
    assert [group.name for group in isa.present("x86_64", fields)] == groups


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("model", GROUPS)
def test_every_cpu_computes_the_same(
    model: str, dtype: str, toy_programs: dict[str, Path], expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The runtime has kernels for each, down to a CPU with SSE3 alone."""
    assert_close(output(emulated_x86(model), toy_programs[dtype], [], tmp_path / "emulated"), expected[dtype])


@pytest.mark.parametrize("model", SWITCHED)
def test_features_can_be_switched_off_there(
    model: str, toy_programs: dict[str, Path], expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The strongest group of each is cleared, and the result stays."""
    target = emulated_x86(model)
    fields = frozenset(target.probed.fields)
    clear = isa.cleared_fields("x86_64", [isa.default_ablation("x86_64", fields).name], fields)
    assert_close(output(target, toy_programs["fp32"], clear, tmp_path / "off"), expected["fp32"])
