"""Ceilings of one machine under one variant, as they were measured: schema ``opscope.ceilings/2``.

A ceiling is the best rate that the instructions of a level were seen to reach with the same features and threads,
whatever runtime runs there. How it is measured: ``docs/concepts/roofline.md``.

Ceilings that were kept are tried again by a short probe; where its tolerances come from is said there too.
"""

from __future__ import annotations

import enum
import math
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opscope.core.units import share_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


UNSTEADY = 0.25
"""Relative spread above which a rate is unstable."""

DISTURBED = 0.25
"""Share of unstable rates above which other work disturbed the measurement: its ceilings may be too low."""

UNDISTURBED_CPU_SHARE = 0.8
"""Share of the measuring time with a processor below which other work disturbed it, however steady the rates are."""


class KernelClass(str, enum.Enum):
    """Families of kernels that multiply and accumulate."""

    GEMM = "gemm"
    GEMV = "gemv"
    """A matrix with one row: other kernels, which read each weight for a single multiply-accumulate."""
    IGEMM = "igemm"
    DWCONV = "dwconv"
    BMM = "bmm"
    SUBCONV = "subconv"
    """A transposed convolution with a stride, taken apart into one convolution for each of its phases."""
    CONV = "conv"
    """A convolution of a runtime that does not tell by which way it computes it."""


class Pattern(str, enum.Enum):
    """Order in which a measurement passes over memory."""

    COPY = "copy"
    READ = "read"
    UPDATE = "update"
    """Each element is read and written in its place."""


class Dispatch(str, enum.Enum):
    """Way of starting work: by a call, or by sharing it among the threads and waiting for all of them."""

    SERIAL = "serial"
    PARALLEL = "parallel"


class Rate(msgspec.Struct, frozen=True):
    """Repeated measurements of one rate.

    Attributes:
        best: per second, of the shortest run; the ceiling.
        median: per second, of the median run.
        n: number of runs.
        spread: interquartile range of the durations, relative to their median.
    """

    best: int
    median: int
    n: int
    spread: float


class MeasuredCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was measured."""

    rate: Rate


_R = TypeVar("_R", bound=MeasuredCeiling)
# A runtime may convert a narrow float to a wider one and compute with that.
_COMPUTED_IN = {"f16": ("f16", "f32"), "bf16": ("bf16", "f32"), "qd8": ("qs8",)}


class MacCeiling(MeasuredCeiling, frozen=True, kw_only=True):
    """Multiply-accumulates per second of one number type with the instructions of one level.

    Attributes:
        dtype: ``f32``, ``f16``, ``bf16`` or ``qs8`` (int8).
        level: of instructions, named by the field of ``cpuinfo_isa`` that it needs most: ``avx512vnni``.
    """

    dtype: str
    level: str


class ElementCeiling(MeasuredCeiling, frozen=True, kw_only=True):
    """Elements per second of the simplest operation on each, the data in the first cache.

    Attributes:
        dtype: ``f32``, ``f16`` or ``qs8``.
        level: of instructions.
    """

    dtype: str
    level: str


class MemoryCeiling(MeasuredCeiling, frozen=True, kw_only=True):
    """Bytes per second of passing over memory again and again: bytes read plus bytes written.

    Attributes:
        pattern: how.
        working_set: distinct bytes.
    """

    pattern: Pattern
    working_set: int


class DispatchCost(MeasuredCeiling, frozen=True, kw_only=True):
    """Pieces of next to no work per second: the fixed cost of beginning one.

    Attributes:
        dispatch: how it is begun.
    """

    dispatch: Dispatch


class Origin(str, enum.Enum):
    """Source of ceilings."""

    MEASURED = "measured"
    """They were measured after the repetitions."""
    CACHE = "cache"
    """They were measured for an earlier run on the same machine, and hold by a short probe."""


class DriftCheck(msgspec.Struct, frozen=True):
    """One kept ceiling beside the rate that a short probe reached now.

    Attributes:
        ceiling: what is measured, in words: ``f32 with avx512f``.
        kept: per second, as it was kept.
        found: per second, the best that the probe reached; null when it could not be run.
        tolerance: by which both may differ, relative to the kept one.
    """

    ceiling: str
    kept: int
    found: int | None
    tolerance: float

    @property
    def ratio(self) -> float | None:
        """Ratio of the probed rate to the kept one; None when the probe could not be run."""
        return None if self.found is None else self.found / self.kept

    @property
    def agrees(self) -> bool:
        """Return whether the difference is within the tolerance."""
        return self.ratio is not None and abs(self.ratio - 1) <= self.tolerance


class Drift(msgspec.Struct, frozen=True):
    """A short probe of kept ceilings, by which it was decided whether they still hold.

    Attributes:
        kept_since: when the kept ones were measured, ISO 8601 with time zone.
        checked_at: when the probe ran, likewise.
        seconds: how long it took.
        checks: ceilings that were tried again.
    """

    kept_since: str
    checked_at: str
    seconds: float
    checks: list[DriftCheck]

    @property
    def agrees(self) -> bool:
        """Return whether the stored ceilings still hold; without a single check nothing shows that they do."""
        return bool(self.checks) and all(check.agrees for check in self.checks)

    @property
    def exceeded(self) -> bool:
        """Return whether a stored ceiling was exceeded by more than its tolerance: the stored ones are too low."""
        return any(check.ratio is not None and check.ratio > 1 + check.tolerance for check in self.checks)


class Ceilings(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.ceilings/2"):
    """All ceilings of one variant on one machine.

    Instructions that need a cleared feature were not measured.

    Attributes:
        arch: architecture of the CPU.
        cleared: fields of ``cpuinfo_isa`` whose instructions do not count.
        threads: that measured at once.
        seconds: how long the measurement took.
        compute: by number type and level of instructions.
        elements: likewise.
        memory: by working set, ascending, and pattern.
        dispatch: fixed cost of beginning a piece of work.
        cpu_share: of the measuring time, in which the measuring thread had a processor; near 1 on a quiet machine.
        measured_at: when, ISO 8601 with time zone; null before it is stated.
        origin: whether they were measured for this run.
        drift: the probe of ceilings that were kept from before; of measured ones, why those were not used. Null when
            there were none.
        notes: what else is to be known of where they come from.
    """

    arch: str
    cleared: list[str]
    threads: int
    seconds: float
    compute: list[MacCeiling]
    elements: list[ElementCeiling]
    memory: list[MemoryCeiling]
    dispatch: list[DispatchCost]
    cpu_share: float | None = None
    measured_at: str | None = None
    origin: Origin = Origin.MEASURED
    drift: Drift | None = None
    notes: list[str] = []

    def all(self) -> list[MeasuredCeiling]:
        """Return every ceiling."""
        return [*self.compute, *self.elements, *self.memory, *self.dispatch]

    def mac_ceiling(self, dtype: str) -> MacCeiling | None:
        """Return the best level for a number type of an event; None when none was measured."""
        return _find_best(ceiling for ceiling in self.compute if ceiling.dtype in computing_types(dtype))

    def element_ceiling(self, dtype: str) -> ElementCeiling | None:
        """Return the best level for elements of a number type; None when none was measured."""
        return _find_best(ceiling for ceiling in self.elements if ceiling.dtype in computing_types(dtype))

    def bandwidth(self, working_set: float, *, in_place: bool = False) -> float | None:
        """Return bytes per second at a working set, the best of the patterns; None if nothing was measured.

        Between measured sizes both are interpolated on logarithmic scales; beyond them the nearest one counts.
        """
        return self._pattern_bandwidth((Pattern.UPDATE,) if in_place else (Pattern.COPY, Pattern.READ), working_set)

    def _pattern_bandwidth(self, patterns: Sequence[Pattern], working_set: float) -> float | None:
        measured: dict[int, int] = {}
        for ceiling in self.memory:
            if ceiling.pattern in patterns:
                measured[ceiling.working_set] = max(ceiling.rate.best, measured.get(ceiling.working_set, 0))
        return _interpolate_rate(measured, working_set) if measured else None

    def unsteady(self) -> float:
        """Return the share of the ceilings whose runs scatter; near 0 on a quiet machine.

        If it is large, other work disturbed the measurement, and ceilings may be too low.
        """
        rates = [ceiling.rate for ceiling in self.all()]
        return sum(rate.spread > UNSTEADY for rate in rates) / len(rates) if rates else 0.0

    def disturbance(self) -> str:
        """Return how other work disturbed the measurement, so that ceilings may be too low.

        Empty if nothing shows it.
        """
        if self.unsteady() > DISTURBED:
            return f"{share_text(self.unsteady())} of the ceilings were unstable"
        if self.cpu_share is not None and self.cpu_share < UNDISTURBED_CPU_SHARE:
            return f"other programs used the CPU for {share_text(1 - self.cpu_share)} of the time"
        return ""

    def dispatch_ns(self) -> float | None:
        """Return the fixed cost of an operator in ns, divided among the threads; None if it was not measured."""
        dispatch_kind = Dispatch.PARALLEL if self.threads > 1 else Dispatch.SERIAL
        return next((1e9 / ceiling.rate.best for ceiling in self.dispatch if ceiling.dispatch is dispatch_kind), None)


def computing_types(dtype: str) -> tuple[str, ...]:
    """Return the number types that a runtime may compute a type of an event in: weights may be of fewer bits."""
    activations = dtype.partition("_")[0]
    return _COMPUTED_IN.get(activations, (activations,))


def _interpolate_rate(measured: dict[int, int], size: float) -> float:
    sizes = sorted(measured)
    upper = next((known for known in sizes if known >= size), sizes[-1])
    lower = max((known for known in sizes if known <= size), default=sizes[0])
    if upper <= lower:
        return float(measured[lower])
    part = math.log(size / lower) / math.log(upper / lower)
    return float(measured[lower] ** (1 - part) * measured[upper] ** part)


def _find_best(ceilings: Iterable[_R]) -> _R | None:
    return max(ceilings, key=lambda ceiling: ceiling.rate.best, default=None)


class NoCeilings(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.no-ceilings/1"):
    """Reason why ceilings could not be measured."""

    reason: str


class KernelUse(msgspec.Struct, frozen=True):
    """Number type and class of the kernels of an event."""

    # ``f32``, ``f16``, ``qs8`` (static int8), ``qd8`` (int8, quantised at run time), ``qd8_qc4w`` and ``qd8_qb4w`` (the
    # same with 4-bit weights, a scale per channel or per block); another one is named as the event names it
    dtype: str
    kernel: KernelClass  # the class


_EVENT = re.compile(r"(?P<operator>[^(#]+?)(?: \((?P<tags>[^)#]*)\)(?: (?P<algorithm>[^#]+?))?)?(?: #\d+)?\Z")
_ALGORITHMS = {
    "GEMM": KernelClass.GEMM,
    "IGEMM": KernelClass.IGEMM,
    "DWConv": KernelClass.DWCONV,
    "Subconv2D": KernelClass.SUBCONV,
}
_OPERATORS = {
    "Fully Connected": KernelClass.GEMM,
    "Dynamic Fully Connected": KernelClass.GEMM,
    "Batch Matrix Multiply": KernelClass.BMM,
}
# Number types of inputs and weights in an event's name, packed forms (P) and unsigned ones (DU) with the plain ones.
_DTYPES: dict[tuple[str, ...], str] = {
    ("f32",): "f32",
    ("f16",): "f16",
    ("qs8",): "qs8",
    ("qc8",): "qs8",
    ("qs8", "qc8w"): "qs8",
    ("qs8", "qs8", "qc8w"): "qs8",
    **dict.fromkeys((("qd8", "f32", "qc8w"), ("qd8", "f16", "qc8w")), "qd8"),
    **dict.fromkeys((("qd8", "f32", "qc4w"), ("qd8", "f16", "qc4w")), "qd8_qc4w"),
    **dict.fromkeys((("qd8", "f32", "qb4w"), ("qd8", "f16", "qb4w"), ("qd8", "bf16", "qb4w")), "qd8_qb4w"),
}
_PACKED = {"pf32": "f32", "pf16": "f16", "pqs8": "qs8", "qdu8": "qd8", "qp8": "qd8"}


def kernel_use(event: str, rows: int | None = None) -> KernelUse | None:
    """Return number type and kernel class of an event by its name; None for events without multiply-accumulates."""
    form = _EVENT.match(event)
    if form is None:
        return None
    kernel = _OPERATORS.get(form["operator"]) or _ALGORITHMS.get(form["algorithm"] or "")
    if kernel is KernelClass.GEMM and rows == 1:
        kernel = KernelClass.GEMV
    types = _event_types(form["tags"])
    return KernelUse(_DTYPES.get(types, "_".join(types)), kernel) if kernel and types else None


def operator_name(event: str) -> str:
    """Return XNNPACK's operator in an event's name: ``Sigmoid`` of ``Sigmoid (NC) #2``.

    Other names are returned unchanged.

    A conversion includes its target if the name states it: ``Convert to qd8`` of ``Convert (NC, F32, QDU8)``.
    """
    form = _EVENT.match(event)
    if form is None:
        return event
    types = _event_types(form["tags"])
    return f"Convert to {types[-1]}" if form["operator"] == "Convert" and types else form["operator"]


def _event_types(tags: str | None) -> tuple[str, ...]:
    """Return the number types in an event's name, which follow its layout."""
    return tuple(_PACKED.get(tag, tag) for tag in (tags or "").lower().split(", ")[1:])


_VIEWING_KERNELS = ("Static Reshape", "Static Expand Dims", "Fuse Dims", "Split Dims")
_VIEWING_NODES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
VIEWS = frozenset((*_VIEWING_KERNELS, *_VIEWING_NODES))
"""Operators of XNNPACK and of ONNX Runtime that change a shape and need not move a byte, though they may."""


COMPUTE_TOLERANCE = 0.10
CACHE_TOLERANCE = 0.10
FAR_TOLERANCE = 0.30

_TRIED_DTYPES = ("f32", "qs8")
_NO_RATE = Rate(0, 0, 0, 0.0)
# The first is in the smaller caches of any processor; the second is beyond those of most, and its memory is there in
# some hundredths of a second.
_NEAR_SET, _FAR_SET = 1 << 18, 1 << 26


def drift_sample(stored: Ceilings) -> Ceilings:
    """Return the few ceilings that a short probe measures again: arithmetic, and memory near and far."""
    chosen = [ceiling for ceiling, _ in _choose_samples(stored)]
    return msgspec.structs.replace(
        stored,
        compute=_select_same(stored.compute, chosen),
        elements=_select_same(stored.elements, chosen),
        memory=_select_same(stored.memory, chosen),
        dispatch=_select_same(stored.dispatch, chosen),
    )


def drift_of(stored: Ceilings, probes: Sequence[Ceilings], checked_at: str) -> Drift:
    """Compare the ceilings that were measured again with the best rate that any of the probes reached."""
    seconds = round(sum(probe.seconds for probe in probes), 3)
    checks = [
        msgspec.structs.replace(check, found=_best_again(ceiling, probes)) for ceiling, check in _choose_samples(stored)
    ]
    return Drift(stored.measured_at or "", checked_at, seconds, checks)


def unmeasured(ceiling: _R) -> _R:
    """Return a ceiling without its rate, so that ceilings of the same instructions are equal."""
    return msgspec.structs.replace(ceiling, rate=_NO_RATE)


def _best_again(sample: MeasuredCeiling, probes: Iterable[Ceilings]) -> int | None:
    key = unmeasured(sample)
    rates = [ceiling.rate.best for probe in probes for ceiling in probe.all() if unmeasured(ceiling) == key]
    return max(rates, default=None)


def _choose_samples(stored: Ceilings) -> list[tuple[MeasuredCeiling, DriftCheck]]:
    """Return the ceilings to measure again, each with what is known of its check before."""
    samples: list[tuple[MeasuredCeiling, str, float]] = [
        (ceiling, f"{ceiling.dtype} with {ceiling.level}", COMPUTE_TOLERANCE)
        for dtype in _TRIED_DTYPES
        if (ceiling := stored.mac_ceiling(dtype))
    ]
    for limit, tolerance in ((_NEAR_SET, CACHE_TOLERANCE), (_FAR_SET, FAR_TOLERANCE)):
        copies = [
            ceiling for ceiling in stored.memory if ceiling.pattern is Pattern.COPY and ceiling.working_set <= limit
        ]
        if copies:
            largest = max(copies, key=lambda ceiling: ceiling.working_set)
            samples.append((largest, f"copy of {size_text(largest.working_set)}", tolerance))
    return [(ceiling, DriftCheck(words, ceiling.rate.best, None, tolerance)) for ceiling, words, tolerance in samples]


def _select_same(ceilings: Iterable[_R], chosen: list[MeasuredCeiling]) -> list[_R]:
    return [ceiling for ceiling in ceilings if any(ceiling is selected for selected in chosen)]
