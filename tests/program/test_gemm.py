"""A matrix product cut into calls: counts, bytes, and sizes that cannot be."""

from __future__ import annotations

import re

import pytest

from opscope.core.errors import UsageError
from opscope.npu.devices import aie_devices
from opscope.program.cost.gemm import Operand, dtypes, tiling

TILE, WHOLE = (32, 64, 64), (256, 768, 768)


def test_calls_and_work_of_a_product() -> None:
    """Each core makes its share of the output tiles, each in K/k calls; all calls together are the whole product."""
    cut = tiling(TILE, WHOLE, (4, 2))
    assert (cut.calls_per_output, cut.outputs, cut.outputs_per_core, cut.calls_per_core) == (12, 96, 12, 144)
    assert cut.macs_per_call * cut.calls_per_core * cut.cores == cut.macs == 256 * 768 * 768
    assert cut.problem is None


def test_a_tile_alone_tells_the_work_of_a_call_and_nothing_of_the_whole() -> None:
    """Rates and buffers need no M, K and N; what does is unknown, and says why."""
    cut = tiling(TILE)
    assert cut.macs_per_call == 32 * 64 * 64
    assert (cut.macs, cut.calls_per_output, cut.outputs, cut.calls_per_core) == (None,) * 4
    assert "not given" in str(cut.problem)


@pytest.mark.parametrize(
    ("whole", "cores", "words"),
    [
        ((250, 768, 768), (1, 1), "m = 32 does not divide M = 250"),
        ((256, 768, 700), (1, 1), "n = 64 does not divide N = 700"),
        ((256, 700, 768), (1, 1), "k = 64 does not divide K = 700"),
        (WHOLE, (5, 1), "96 output tiles cannot be divided evenly among 5 x 1 cores"),
    ],
)
def test_sizes_that_do_not_divide_leave_the_calls_unknown(
    whole: tuple[int, int, int], cores: tuple[int, int], words: str
) -> None:
    """A product may be padded by its program, so this is no error, but its calls are not counted."""
    cut = tiling(TILE, whole, cores)
    assert cut.calls_per_core is None
    assert words in str(cut.problem)


@pytest.mark.parametrize(
    ("tile", "whole", "cores", "words"),
    [
        ((0, 64, 64), None, (1, 1), "m = 0"),
        ((32, -64, 64), None, (1, 1), "k = -64"),
        ((32, 64, 1 << 40), None, (1, 1), "the maximum is"),
        (TILE, (256, -768, 768), (1, 1), "K = -768"),
        (TILE, (16, 768, 768), (1, 1), "m = 32 is larger than M = 16"),
        (TILE, WHOLE, (0, 1), "rows = 0"),
        (TILE, WHOLE, (1000, 1000), "exceed every array"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    tile: tuple[int, int, int], whole: tuple[int, int, int] | None, cores: tuple[int, int], words: str
) -> None:
    """The message names the size, and the hint what the sizes are."""
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        tiling(tile, whole, cores)
    assert "M, K, N" in str(refused.value.hint)


def test_bytes_of_buffers() -> None:
    """Inputs have the width of their type; an output may keep the width in which it was added up."""
    cut = tiling(TILE)
    assert cut.buffer_bytes(Operand.A, "bf16") == (4096,)
    assert cut.buffer_bytes(Operand.B, "int8") == (4096,)
    assert cut.buffer_bytes(Operand.C, "bf16") == (4096, 8192)
    assert cut.buffer_bytes(Operand.A, "bfp16") == (32 * 64 * 9 // 8, 4096)
    with pytest.raises(UsageError, match="bf61"):
        cut.buffer_bytes(Operand.A, "bf61")


def test_every_type_with_a_peak_has_a_width() -> None:
    """A type that a device's table knows can be used for buffers as well."""
    peaks = {name for device in aie_devices().devices for name in device.mac_per_cycle}
    assert peaks <= set(dtypes())
