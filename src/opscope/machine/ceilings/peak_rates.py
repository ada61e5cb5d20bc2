"""Peak rates of this machine, which one native program measures: ``cpp/ceilings.cpp``.

It is built once with the compiler at hand. The rates depend on the machine, the threads and the CPU features that are
left, and on no runtime: a level of instructions is measured when none of its features is cleared.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import RunError
from opscope.core.json import from_json
from opscope.core.system.compiler import build_once, run_compiler, usual_compiler
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.program.ceilings import (
    Ceilings,
    Dispatch,
    DispatchCost,
    ElementCeiling,
    MacCeiling,
    MeasuredCeiling,
    MemoryCeiling,
    Pattern,
    Rate,
    unmeasured,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


LARGEST_SET = 1 << 28
"""Bytes of the largest working set: beyond the last cache of most machines."""
SHARE_OF_MEMORY = 16
"""Part of a machine's memory that the largest working set may take, as a divisor."""

LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "sse2": (),
        "avx": ("avx",),
        "fma3": ("avx", "fma3"),
        "avx2": ("avx2",),
        "avxvnni": ("avx2", "avxvnni"),
        "avx512f": ("avx512f",),
        "avx512bw": ("avx512f", "avx512bw"),
        "avx512vnni": ("avx512f", "avx512vnni"),
        "avx512bf16": ("avx512f", "avx512bf16"),
        "avx512fp16": ("avx512f", "avx512fp16"),
        "amx_int8": ("amx_tile", "amx_int8"),
        "amx_bf16": ("amx_tile", "amx_bf16"),
    },
    # The second version of SME adds no wider outer product, so that its peak is that of SME.
    "aarch64": {
        "neon": (),
        "fp16arith": ("fp16arith",),
        "dot": ("dot",),
        "i8mm": ("i8mm",),
        "bf16": ("bf16",),
        "sve": ("sve",),
        "sme": ("sme",),
    },
}
"""By architecture: levels of instructions, and the fields of ``cpuinfo_isa`` that each needs, weakest first."""

PROBE_SOURCE = Path(__file__).parent / "cpp" / "ceilings.cpp"
"""The native program; inside of one file where opscope is."""
_FLAGS = ("-O2", "-std=c++17", "-pthread")
_RUN_SECONDS = 100.0
_HINT = "install a C++17 compiler (Debian: apt install g++, macOS: xcode-select --install)"
_CONSEQUENCE = "the ceilings of this machine cannot be measured"
_DTYPES = {"f32": "f32", "f16": "f16", "bf16": "bf16", "i8": "qs8"}
_NANOSECONDS = 1e9
_TWO_RUNS = 2


class ProbeRuns(msgspec.Struct, frozen=True):
    """Runs of one kernel, as the native program answers."""

    kind: str  # `mac`, `element`, `memory` or `handover`
    name: str  # number type, pattern, or how work is handed over
    level: str  # of instructions; `libc` for copies of the C library
    size: int  # bytes of the working set; 0 where there is none
    work: int  # of one run, in the unit of its ceiling
    durations: list[int]  # of the runs, in ns


class ProbeReport(msgspec.Struct, frozen=True):
    """The answer of the native program."""

    cpu_share: float  # of the measuring time, in which the measuring thread had a processor
    probes: list[ProbeRuns]


def usable_levels(arch: str, fields: Collection[str], cleared: Collection[str] = ()) -> list[str]:
    """Return the levels whose fields the CPU has and none of which is cleared, weakest first."""
    usable_fields = set(fields) - set(cleared)
    return [level for level, required in LEVELS.get(arch, {}).items() if usable_fields.issuperset(required)]


def measure_peak_rates(
    cleared: Sequence[str], threads: int, seconds: float, memory: int, again: Ceilings | None = None
) -> Ceilings:
    """Measure the ceilings of this machine without some CPU features; takes these seconds and a little more.

    Args:
        cleared: fields of ``cpuinfo_isa`` whose instructions do not count.
        threads: that measure at once.
        seconds: how long measuring should take.
        memory: bytes of the machine's memory.
        again: ceilings to measure again, and no others; None for all.

    Raises:
        MissingDependencyError: no compiler builds the native program.
        FeatureError: the processor's features cannot be read.
        RunError: the native program failed.
    """
    began = time.perf_counter()
    arch, fields = fields_here()
    largest = min(LARGEST_SET, memory // SHARE_OF_MEMORY)
    if again is not None:
        largest = max((ceiling.working_set for ceiling in again.memory), default=0)
    arguments = [str(threads), str(seconds), str(largest), *usable_levels(arch, fields, cleared)]
    report = _run_program([str(native_program()), *arguments])
    return as_ceilings(
        report, Ceilings(isa.architecture(platform.machine()), [*cleared], threads, 0.0, [], [], [], []), began, again
    )


def native_program(cache: Path | None = None) -> Path:
    """Return the native program; it is built when there is none of this source and compiler.

    Raises:
        MissingDependencyError: no compiler builds it.
    """
    compiler, source = usual_compiler(_CONSEQUENCE, _HINT), probe_source()

    def build(path: Path) -> None:
        command = [*compiler.command, *_FLAGS, "-x", "c++", "-", "-o", str(path)]
        run_compiler(command, f"the compiler failed, so {_CONSEQUENCE}", _HINT, source=source)

    return build_once("native", "ceilings", (compiler.version, *compiler.command, *_FLAGS, source), build, cache)


def probe_source() -> str:
    """Return the text of the native program, also where opscope is one file."""
    return files(__package__ or "").joinpath(f"cpp/{PROBE_SOURCE.name}").read_text(encoding="utf-8")


def _run_program(command: Sequence[str]) -> ProbeReport:
    """Run the native program and return its answer; raise an error where it fails."""
    try:
        completed = subprocess.run(command, capture_output=True, timeout=_RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"the probe of peak rates did not end within {_RUN_SECONDS:.0f} s") from None
    if completed.returncode:
        raise RunError(f"the probe of peak rates exited with code {completed.returncode}")
    try:
        return from_json(completed.stdout, ProbeReport)
    except msgspec.MsgspecError as error:
        raise RunError(f"the answer of the probe of peak rates is damaged: {error}") from error


def as_ceilings(report: ProbeReport, of: Ceilings, began: float, again: Ceilings | None = None) -> Ceilings:
    """Return the ceilings of a report.

    Args:
        report: what was measured.
        of: ceilings without a rate: architecture, cleared fields and threads.
        began: ``time.perf_counter`` when measuring began.
        again: the only ceilings to return; None for all.
    """
    measured = [_as_ceiling(runs) for runs in report.probes]
    if again is not None:
        selected = [unmeasured(ceiling) for ceiling in again.all()]
        measured = [ceiling for ceiling in measured if unmeasured(ceiling) in selected]
    return msgspec.structs.replace(
        of,
        seconds=round(time.perf_counter() - began, 3),
        compute=[ceiling for ceiling in measured if isinstance(ceiling, MacCeiling)],
        elements=[ceiling for ceiling in measured if isinstance(ceiling, ElementCeiling)],
        memory=_best_of_each(ceiling for ceiling in measured if isinstance(ceiling, MemoryCeiling)),
        dispatch=[ceiling for ceiling in measured if isinstance(ceiling, DispatchCost)],
        cpu_share=round(min(report.cpu_share, 1.0), 3),
    )


def _as_ceiling(runs: ProbeRuns) -> MeasuredCeiling:
    """Return the runs of one kernel as a ceiling."""
    rate = rate_of(runs.work, runs.durations)
    if runs.kind == "mac":
        return MacCeiling(dtype=_DTYPES[runs.name], level=runs.level, rate=rate)
    if runs.kind == "element":
        return ElementCeiling(dtype=_DTYPES[runs.name], level=runs.level, rate=rate)
    if runs.kind == "memory":
        return MemoryCeiling(pattern=Pattern(runs.name), working_set=runs.size, rate=rate)
    return DispatchCost(dispatch=Dispatch(runs.name), rate=rate)


def rate_of(work: int, durations: Sequence[int]) -> Rate:
    """Return the rate per second of runs with so much work each; the clock's resolution bounds the shortest, 1 ns."""
    ordered = sorted(max(1, duration) for duration in durations)
    median = statistics.median(ordered)
    spread = 0.0
    if len(ordered) >= _TWO_RUNS:
        first, _, third = statistics.quantiles(ordered, n=4, method="inclusive")
        spread = (third - first) / median
    best, usual = (round(work * _NANOSECONDS / duration) for duration in (ordered[0], median))
    return Rate(best, usual, len(ordered), round(spread, 4))


def _best_of_each(ceilings: Iterable[MemoryCeiling]) -> list[MemoryCeiling]:
    """Keep the fastest way to pass over each working set in each pattern, in the order of the sets."""
    best: dict[tuple[int, Pattern], MemoryCeiling] = {}
    for ceiling in sorted(ceilings, key=lambda ceiling: ceiling.rate.best):
        best[ceiling.working_set, ceiling.pattern] = ceiling
    return [best[key] for key in sorted(best)]
