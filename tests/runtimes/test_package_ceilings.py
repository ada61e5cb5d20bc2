"""Ceilings of installed packages: measured with small models, with all features and with some off."""

from __future__ import annotations

import functools
import platform
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec
import pytest

from job_variants import run_as
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.program.ceilings import KernelClass, drift_of, drift_sample
from opscope.runtimes.package_target import PackageTarget
from opscope.runtimes.registry import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.program.ceilings import Ceilings

INSTALLED = [
    pytest.param("litert", marks=pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="no ai-edge-litert")),
    pytest.param("onnxruntime", marks=pytest.mark.skipif(find_spec("onnxruntime") is None, reason="no onnxruntime")),
    pytest.param("openvino", marks=pytest.mark.skipif(find_spec("openvino") is None, reason="no openvino")),
]
SECONDS = 0.8
"""Of measuring, in place of the usual ones: rates are there, their figures mean little."""
needs_trap = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="cpuid is trapped on x86-64 Linux"
)


def target_of(runtime: str) -> PackageTarget:
    """The target of an installed package."""
    target = next(one for one in RUNTIMES if one.name == runtime).target_here()
    assert isinstance(target, PackageTarget)
    return target


@pytest.fixture(autouse=True, scope="module")
def _short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("opscope.runtimes.package_target.CEILINGS_SECONDS", SECONDS)
        yield


@functools.cache
def ceilings(runtime: str) -> Ceilings:
    """Those of this machine, with all features; measured once."""
    return target_of(runtime).ceilings(run_as())


@pytest.mark.parametrize("runtime", INSTALLED)
def test_every_kind_of_ceiling_is_measured_with_the_operators_that_were_meant(runtime: str) -> None:
    """Products, functions, memory and the fixed cost of an operator have a rate, and the names of what ran."""
    found = ceilings(runtime)
    products = {(ceiling.dtype, ceiling.kernel) for ceiling in found.compute if ceiling.rate}
    convolution = KernelClass.IGEMM if runtime == "litert" else KernelClass.CONV
    for dtype in ("f32", "qs8"):
        wanted = {KernelClass.GEMM, KernelClass.GEMV, KernelClass.DWCONV, convolution}
        assert wanted <= {kernel for own, kernel in products if own == dtype}
    assert all(ceiling.operators for ceiling in found.all() if ceiling.rate)
    assert found.bandwidth(1 << 20)
    assert found.weight_bandwidth(1 << 20)
    assert found.dispatch_ns()
    sigmoid = found.element_ceiling("Sigmoid", "f32")
    assert sigmoid is not None
    assert sigmoid.rate is not None
    assert found.cleared == []
    assert found.threads == 1


@needs_trap
@pytest.mark.parametrize("runtime", INSTALLED)
def test_ceilings_without_features_are_measured_in_a_process_that_proves_them_off(runtime: str) -> None:
    """The answer holds the proof of the trap for these very fields."""
    arch, fields = fields_here()
    group = isa.strongest(arch, frozenset(fields))
    if group is None:
        pytest.skip("this CPU has no group of features to switch off")
    clear = isa.cleared_fields(arch, [group.name], frozenset(fields))
    assert target_of(runtime).ceilings(run_as(clear)).cleared == clear


@pytest.mark.parametrize("runtime", INSTALLED)
def test_kept_ceilings_are_tried_again_in_their_own_shapes(runtime: str) -> None:
    """The short probe finds each of its ceilings, with a rate."""
    kept = msgspec.structs.replace(ceilings(runtime), measured_at="2026-11-01T00:00:00+00:00")
    again = target_of(runtime).ceilings_again(drift_sample(kept))
    drift = drift_of(kept, [again], "2026-11-02T00:00:00+00:00")
    assert len(drift.checks) >= 3
    assert all(check.found for check in drift.checks)
    assert len(again.all()) == len({check.ceiling for check in drift.checks})
