"""A user's statements on a traced run: its product and tiling, device, type and clock. No trace holds them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, Severity
from opscope.core.errors import UsageError, did_you_mean
from opscope.core.units import size_text
from opscope.npu.analysis.findings import tile_finding
from opscope.npu.devices import AieDevice, aie_devices
from opscope.program.cost.gemm import Operand, Tiling, dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

_FASTEST_MHZ = 10_000.0
ROUNDING = 1e-9
"""How far a rate may be above a peak by the rounding of its arithmetic."""
_PLACE = "options"


class NamedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """A matrix product and the hardware it ran on, as far as a user says it.

    Attributes:
        hwid: name of the hardware; one of a device names its architecture as well, and one of a device or of Stream's
            models a clock to assume.
        M: rows of A, of the whole matrix product.
        K: columns of A.
        N: columns of B.
        m: rows of A in one call.
        k: columns of A in one call.
        n: columns of B in one call.
    """

    hwid: str | None = None
    M: int | None = None
    K: int | None = None
    N: int | None = None
    m: int | None = None
    k: int | None = None
    n: int | None = None


class AssumedClock(msgspec.Struct, frozen=True):
    """A clock that nobody gave, so that rates in seconds can be given and marked as made from it.

    Attributes:
        mhz: that is assumed.
        low_mhz: lowest that the array can have.
        high_mhz: highest.
        source: why this one.
    """

    mhz: float
    low_mhz: float
    high_mhz: float
    source: str


def assumed_clock(device: AieDevice | None, hwid: str | None) -> AssumedClock | None:
    """Return the clock to assume of a run. None if neither device nor the name of its hardware tell one."""
    if device is not None:
        why = f"the level that the amdxdna driver sets on {device.name} unless a program asks for another"
        return AssumedClock(device.assumed_clock_mhz, min(device.clock_levels), max(device.clock_levels), why)
    known = aie_devices()
    if hwid not in known.models:
        return None
    levels = [level for known_device in known.devices for level in known_device.clock_levels]
    why = f"the clock that Stream's scripts assume; {hwid} is not a device, so the range covers all devices"
    return AssumedClock(known.models_clock_mhz, min(levels), max(levels), why)


class RunSpecification(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge of a run besides its trace; made by :func:`run_specification`, which checks it.

    Attributes:
        tiling: what one call works on, and the whole product; null when not given.
        device: array that it ran on; null likewise.
        dtype: of the operands; null likewise.
        clock_mhz: of the array during the run; null likewise.
        runs: how often the whole product was computed, warm-up included; null likewise.
        assumed_clock: in place of the clock that was not given; null with a clock, or where none is to be assumed.
    """

    tiling: Tiling | None = None
    device: AieDevice | None = None
    dtype: str | None = None
    clock_mhz: float | None = None
    runs: int | None = None
    assumed_clock: AssumedClock | None = None

    @property
    def peak(self) -> int | None:
        """Peak multiply-accumulates of one core in a cycle. None without device or type, or if the table has none."""
        return None if self.device is None or self.dtype is None else self.device.mac_per_cycle.get(self.dtype)

    @property
    def ceiling(self) -> int:
        """Largest peak of one core for what is not known: of any device, of any type."""
        peaks = [device.mac_per_cycle for device in ((self.device,) if self.device else aie_devices().devices)]
        of_type = [peak[self.dtype] for peak in peaks if self.dtype in peak]
        return max(of_type or [value for peak in peaks for value in peak.values()])

    def is_above_ceiling(self, mac_per_cycle: float) -> bool:
        """Return whether no core can be so fast."""
        return mac_per_cycle > self.ceiling * (1 + ROUNDING)


def run_specification(
    *,
    tiling: Tiling | None = None,
    arch: str | None = None,
    dtype: str | None = None,
    clock_mhz: float | None = None,
    runs: int | None = None,
    assumed: AssumedClock | None = None,
) -> RunSpecification:
    """Check what is known of a run."""
    if clock_mhz is not None and not 0 < clock_mhz <= _FASTEST_MHZ:
        raise UsageError(f"a clock of {clock_mhz:g} MHz is impossible", hint="give the clock in MHz, such as 1267")
    if runs is not None and runs < 1:
        raise UsageError(f"{runs} iterations leave nothing to analyse", hint="count warm-up and measured iterations")
    if dtype is not None and dtype not in dtypes():
        raise UsageError(f"unknown operand type '{dtype}'", hint=did_you_mean(dtype, dtypes()))
    device = None if arch is None else aie_devices().named(arch)
    if arch is not None and device is None:
        names = [known.name for known in aie_devices().devices]
        raise UsageError(f"unknown architecture '{arch}'", hint=did_you_mean(arch, names))
    if tiling and device and (tiling.rows > device.core_rows or tiling.columns > device.core_columns):
        raise UsageError(
            f"{tiling.rows} x {tiling.columns} cores (rows x columns) were given, {device.name} has "
            f"{device.core_rows} x {device.core_columns}",
            hint="check --row, --col and --arch",
        )
    return RunSpecification(
        tiling=tiling,
        device=device,
        dtype=dtype,
        clock_mhz=clock_mhz,
        runs=runs,
        assumed_clock=assumed if clock_mhz is None else None,
    )


def inconsistencies(specification: RunSpecification) -> Iterator[Message]:
    """Report what does not fit together in a specification."""
    tiling, device, dtype = specification.tiling, specification.device, specification.dtype
    if tiling is not None and tiling.macs is not None and tiling.problem is not None:
        yield tile_finding(
            "sizes_do_not_divide",
            Severity.MEDIUM,
            title="the sizes of the product do not divide into tiles",
            evidence=tiling.problem,
            where=_PLACE,
            step="check M, K, N, m, k, n, row and col; without them coverage is unknown",
        )
    if device is None:
        return
    least = sum(min(tiling.buffer_bytes(operand, dtype)) for operand in Operand) if tiling and dtype else 0
    if tiling is not None and least > device.core_memory_bytes:
        yield tile_finding(
            "tile_exceeds_memory",
            Severity.HIGH,
            title="one buffer of each operand exceeds the memory of a core",
            evidence=(
                f"tiles of {tiling.m} x {tiling.k} x {tiling.n} in {dtype} take at least {size_text(least)}, "
                f"a core has {size_text(device.core_memory_bytes)}"
            ),
            where=_PLACE,
            step="check m, k, n and dtype",
        )
    if dtype is not None and specification.peak is None:
        yield tile_finding(
            "no_peak",
            Severity.INFO,
            title=f"the peak of {device.name} in {dtype} is unknown",
            evidence=f"the table has {', '.join(device.mac_per_cycle)}",
            where=_PLACE,
            step="utilisation is omitted; check dtype and arch",
        )
    clock = specification.clock_mhz
    if clock is not None and not any(math.isclose(clock, level, abs_tol=0.5) for level in device.clock_levels):
        yield tile_finding(
            "clock_is_no_level",
            Severity.INFO,
            title=f"the driver of {device.name} does not set the clock to {clock:g} MHz",
            evidence=f"its levels are {', '.join(map(str, device.clock_levels))} MHz",
            where=_PLACE,
            step="read it during the run, or omit it",
        )
