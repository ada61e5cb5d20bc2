"""Finding the ceilings: every probe is run again and again, in more than one pass, and the shortest run counts.

What is measured, in which order, and how much work one run of a graph is: matrices, convolutions of four kinds and
batches multiply and accumulate. Functions without that have their data in cache: what arithmetic alone allows. Sums,
updates and copies pass over memory, and products of one row over weights. Operators with next to nothing to compute
show the fixed cost of one. A graph holds an operator often enough that calling the library does not show. How a runtime
builds such graphs is said by its :class:`ProbeGraphs`.
"""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from opscope.program.ceilings import (
    Dispatch,
    DispatchCost,
    ElementCeiling,
    KernelClass,
    KernelUse,
    MacCeiling,
    MemoryCeiling,
    Pattern,
    Rate,
    kernel_use,
    operator_name,
    unmeasured,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opscope.program.ceilings import Ceilings, MeasuredCeiling


GraphT = TypeVar("GraphT")
"""What a runtime's graphs are built with."""


class RefusedError(Exception):
    """The library does not do what was asked, with its own reason."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(f"{function}: {reason}")


@dataclass(frozen=True)
class ProbeCandidate(Generic[GraphT]):
    """One way to reach a ceiling."""

    ceiling: MeasuredCeiling  # the ceiling as it is kept, without its rate
    work: int  # of one invocation, in the ceiling's unit
    build: Callable[[GraphT], None]  # puts operators into an empty graph


@dataclass(frozen=True)
class Probe(Generic[GraphT]):
    """One ceiling to measure."""

    candidates: list[ProbeCandidate[GraphT]]  # of which the fastest counts; at least one
    # whether an operator, by the name that the library reports, is of the kind that was meant. The library may
    # run another one: where it has no half precision it converts, and computes with single
    meant: Callable[[str], bool]


PASSES = 3
"""Passes over all probes, so that a disturbance of a second does not fall on every run of a ceiling."""

LEAST_RUNS = 2
"""Runs of a candidate in a pass, even when its time is up; the first does not count."""

PATIENCE = 5
"""After so many times the time that was given, what has not begun is left out. Slow processors come here."""

OPENING_PATIENCE = 20
"""Likewise where opening a model takes longer than measuring it."""

_BILLION = 1_000_000_000
_LATE = "not measured: the time limit for ceilings was reached"


class ProbeRunner(Protocol):
    """A compiled graph."""

    @property
    def operators(self) -> Sequence[str]:
        """Names of its operators, as the library reports them."""
        ...

    def invoke(self) -> None:
        """Run every operator once."""
        ...

    def delete(self) -> None:
        """Give its memory back."""
        ...


class _Trial(Generic[GraphT]):
    """A candidate that is measured."""

    def __init__(self, candidate: ProbeCandidate[GraphT], runner: ProbeRunner) -> None:
        self.candidate, self.runner = candidate, runner
        self.durations: list[int] = []

    def sample(self, nanoseconds: float, clock: Callable[[], int]) -> None:
        """Run for so long. The first run does not count: its data are not in cache."""
        end, durations = clock() + nanoseconds, list[int]()
        while clock() < end or len(durations) < LEAST_RUNS:
            before = clock()
            self.runner.invoke()
            durations.append(max(1, clock() - before))
        self.durations += durations[1:]

    @property
    def best(self) -> float:
        """Work per second of the shortest run; 0 before any."""
        return self.candidate.work * _BILLION / min(self.durations, default=math.inf)

    def ceiling(self) -> MeasuredCeiling:
        """The ceiling with its rate."""
        low, median, high = (float(value) for value in np.percentile(self.durations, (25, 50, 75)))
        usual = self.candidate.work * _BILLION / median
        rate = Rate(round(self.best), round(usual), len(self.durations), round((high - low) / median, 4))
        names = list(dict.fromkeys(self.runner.operators))
        return msgspec.structs.replace(self.candidate.ceiling, rate=rate, operators=names)


def measure(
    probes: Sequence[Probe[GraphT]],
    compiled: Callable[[ProbeCandidate[GraphT]], ProbeRunner],
    seconds: float,
    clock: Callable[[], int],
    patience: int = PATIENCE,
) -> list[MeasuredCeiling]:
    """One ceiling for each probe, in their order.

    A probe that the library refuses, or answers with an operator of another kind, becomes a ceiling without a rate and
    with the reason.
    """
    share = seconds * _BILLION / PASSES / max(1, len(probes))
    deadline = clock() + seconds * _BILLION * patience
    tried: list[list[_Trial[GraphT] | str]] = []
    for number in range(PASSES):
        for place, probe in enumerate(probes):
            late = clock() > deadline
            if number == 0:
                tried.append(
                    [_LATE] if late else [_opened(candidate, probe, compiled) for candidate in probe.candidates]
                )
            if not late:
                tried[place] = [_sampled(trial, share / len(tried[place]), clock) for trial in tried[place]]
    return [_ceiling(probe, found) for probe, found in zip(probes, tried, strict=True)]


def _opened(
    candidate: ProbeCandidate[GraphT], probe: Probe[GraphT], compiled: Callable[[ProbeCandidate[GraphT]], ProbeRunner]
) -> _Trial[GraphT] | str:
    """A candidate that runs the operators that were meant, or why it does not."""
    try:
        runner = compiled(candidate)
    except RefusedError as error:
        return str(error)
    if all(probe.meant(operator) for operator in runner.operators):
        return _Trial(candidate, runner)
    runner.delete()
    return f"no separate kernel: runs as {', '.join(dict.fromkeys(runner.operators))}"


def _sampled(trial: _Trial[GraphT] | str, share: float, clock: Callable[[], int]) -> _Trial[GraphT] | str:
    """A candidate after more runs, or why it cannot be run."""
    if isinstance(trial, str):
        return trial
    try:
        trial.sample(share, clock)
    except RefusedError as error:
        trial.runner.delete()
        return str(error)
    return trial


def _ceiling(probe: Probe[GraphT], found: list[_Trial[GraphT] | str]) -> MeasuredCeiling:
    """The ceiling of the fastest candidate, or the reason of the first one when none could be run."""
    trials = [trial for trial in found if isinstance(trial, _Trial)]
    if trials:
        return max(trials, key=lambda trial: trial.best).ceiling()
    reason = next((trial for trial in found if isinstance(trial, str)), _LATE)
    return msgspec.structs.replace(probe.candidates[0].ceiling, unsupported=reason)


Sizes: TypeAlias = "tuple[int, ...]"
"""What a runtime's graphs are built with."""

# Chosen from some forty shapes under every group of features of an x86-64 CPU with AVX-512: each is within 2 % of the
# best under one group at least. A run takes less than 2 ms, so that a busy machine leaves some of them undisturbed.
# The first number of each is for each thread: rows, images, or matrices.
GEMMS: Sequence[Sizes] = ((56, 512, 512), (128, 512, 512), (112, 256, 1024))
"""Rows, output channels, input channels."""
CONVOLUTIONS: Sequence[Sizes] = ((1, 28, 64, 64, 3), (1, 14, 128, 128, 3), (1, 14, 256, 128, 3))
"""Images, their height and width, input channels, output channels, height and width of the filter."""
DEPTHWISE: Sequence[Sizes] = ((1, 28, 128, 128), (1, 28, 256, 256), (1, 7, 512, 512))
"""The same without the filter, of which there are several."""
DEPTHWISE_FILTERS = (3, 5)
TRANSPOSED: Sequence[Sizes] = ((1, 14, 128, 64, 4), (1, 14, 128, 128, 2), (1, 7, 256, 128, 4))
"""As of convolutions; the stride is 2, which doubles height and width."""
MATMULS: Sequence[Sizes] = ((8, 128, 128, 64), (1, 256, 256, 256))
"""Matrices, rows, columns, inner size."""

ROW = 512
"""Elements in a row of a matrix whose shape does not matter."""
MEAN_IMAGE = (16, 16)
WIDTH = 4
"""Bytes of a float."""
_SMALLEST_SET = 1 << 15
# From beyond the smallest caches to beyond the last one of most machines. Each is made and packed.
_WEIGHT_SETS = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_WEIGHT_CHANNELS = 512
_ROWS = 8
_TINY = 16


class ProbeGraphs(ABC, Generic[GraphT]):
    """What a runtime says of its probes: which of them it has, and how each is put into one of its graphs."""

    multiplying: Sequence[tuple[Sequence[str], Sequence[KernelClass]]]  # number types, each with all these classes
    channels_last: bool  # whether channels are the last dimension of an image, else the first behind the images
    operators: Mapping[Pattern | Dispatch, str]  # what passes over memory, in this order, and has least to compute
    macs_at_once: int  # multiply-accumulates below which a product is put into a graph several times
    tiny_at_once: int  # operators with next to nothing to compute in a graph
    largest_set: int  # bytes of the largest working set
    share_of_memory: int  # of which a working set takes one part at most
    convolutions_in_a_row = 1
    patience = PATIENCE
    """As of :func:`opscope.runtimes.ceilings.probes.measure`."""

    def __init__(self, threads: int, again: Ceilings | None = None) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.threads, self._again = threads, again
        self.largest = min(self.largest_set, memory // self.share_of_memory)
        """Bytes of the largest working set; where some ceilings are measured again, the largest of theirs."""
        if again is not None:
            self.largest = max((ceiling.working_set for ceiling in again.memory), default=0)

    @abstractmethod
    def shapes(self, kernel: KernelClass, dtype: str) -> Sequence[Sequence[Sizes]]:
        """Shapes to try, one sequence for each ceiling."""

    @abstractmethod
    def product(self, graph: GraphT, dtype: str, sizes: Sizes, times: int) -> None:
        """Products of rows, output channels and input channels."""

    @abstractmethod
    def convolution(self, graph: GraphT, dtype: str, image: Sizes, filters: Sizes) -> None:
        """A convolution that keeps height and width, or some in a row."""

    @abstractmethod
    def depthwise(self, graph: GraphT, dtype: str, image: Sizes, filters: Sizes) -> None:
        """The same with a filter for each channel."""

    @abstractmethod
    def transposed(self, graph: GraphT, dtype: str, image: Sizes, filters: Sizes) -> None:
        """A transposed convolution that doubles height and width."""

    @abstractmethod
    def matmul(self, graph: GraphT, dtype: str, sizes: Sizes) -> None:
        """Products of two batches: matrices, rows, columns, inner size."""

    @abstractmethod
    def elements(self) -> Iterator[Probe[GraphT]]:
        """Probes of functions, see :func:`element_candidate`."""

    @abstractmethod
    def passes(self, pattern: Pattern, size: int) -> int:
        """How often a graph passes over a working set; 0: it is not measured."""

    @abstractmethod
    def passing(self, graph: GraphT, pattern: Pattern, dims: Sizes, times: int) -> None:
        """Operators that read a matrix of floats, and write as the pattern says; a read one is summed row by row."""

    @abstractmethod
    def tiny(self, graph: GraphT, dispatch: Dispatch, dims: Sizes) -> None:
        """Operators on so few floats."""

    @abstractmethod
    def is_operator(self, name: str, operator: str) -> bool:
        """Whether a name that the library reports is of an operator."""

    @abstractmethod
    def multiplies(self, name: str, dtype: str, kernel: KernelClass) -> bool:
        """Whether such a name is of a kernel of this class and number type."""

    def times(self, dtype: str, macs: int) -> int:  # noqa: ARG002 - for those of whose types some cannot be repeated
        """How often a product is put into a graph."""
        return max(1, self.macs_at_once // macs)

    def rows_to_sum(self, numbers: int) -> int:  # noqa: ARG002 - for those whose rows depend on it
        """Rows of a matrix of so many numbers that is summed."""
        return _ROWS * self.threads

    def weights(self, size: int) -> Sizes:
        """How many products of one row have weights that fill so many bytes together, and their channels."""
        channels = min(_WEIGHT_CHANNELS, math.isqrt(size // WIDTH))
        return max(1, size // (channels * channels * WIDTH)), channels, channels

    def weighing(self, graph: GraphT, sizes: Sizes) -> None:
        """So many products, output channels and input channels; the weights of each are other memory."""
        products, *channels = sizes
        self.product(graph, "f32", (1, *channels), products)

    def per_thread(self, shapes: Sequence[Sizes]) -> list[Sizes]:
        """Shapes whose first number is for each thread."""
        return [(self.threads * first, *sizes) for first, *sizes in shapes]

    @cached_property
    def probes(self) -> list[Probe[GraphT]]:
        """All of them, or those of the ceilings to measure again, each with the one candidate that was the fastest."""
        computing = [*self.compute_probes(), *self.elements()]
        probes = [*computing, *self._memory_probes(), *self._weight_probes(), *self._dispatch_probes()]
        if self._again is None:
            return probes
        wanted = [unmeasured(ceiling) for ceiling in self._again.all()]
        same = [Probe([one for one in probe.candidates if one.ceiling in wanted], probe.meant) for probe in probes]
        return [probe for probe in same if probe.candidates]

    def compute_probes(self) -> Iterator[Probe[GraphT]]:
        """Every number type with every class of kernels that the runtime has for it."""
        for dtypes, kernels in self.multiplying:
            for dtype, kernel in itertools.product(dtypes, kernels):
                meant = partial(self.multiplies, dtype=dtype, kernel=kernel)
                for shapes in self.shapes(kernel, dtype):
                    yield Probe([self._multiplying(dtype, kernel, sizes) for sizes in shapes], meant)

    def _multiplying(self, dtype: str, kernel: KernelClass, sizes: Sizes) -> ProbeCandidate[GraphT]:
        if kernel in (KernelClass.GEMM, KernelClass.GEMV):
            rows, outputs, inputs = sizes
            times = self.times(dtype, math.prod(sizes))
            shape = f"[{rows}, {inputs}] x [{inputs}, {outputs}]"
            build = partial(self.product, dtype=dtype, sizes=sizes, times=times)
        elif kernel is KernelClass.BMM:
            count, rows, columns, inner = sizes
            times, shape = 1, f"{count} of [{rows}, {inner}] x [{inner}, {columns}]"
            build = partial(self.matmul, dtype=dtype, sizes=sizes)
        else:
            return self._convolving(dtype, kernel, sizes)
        return ProbeCandidate(MacCeiling(dtype=dtype, kernel=kernel, shape=shape), times * math.prod(sizes), build)

    def _convolving(self, dtype: str, kernel: KernelClass, sizes: Sizes) -> ProbeCandidate[GraphT]:
        images, side, inputs, outputs, width = sizes
        depthwise, doubles = kernel is KernelClass.DWCONV, kernel is KernelClass.SUBCONV
        if self.channels_last:
            image: Sizes = (images, side, side, inputs)
            filters: Sizes = (1 if depthwise else outputs, width, width, inputs)
        else:
            image = (images, inputs, side, side)
            filters = (*((inputs, outputs) if doubles else (outputs, 1 if depthwise else inputs)), width, width)
        times = 1 if doubles else self.convolutions_in_a_row
        remark = ", stride 2" if doubles else f", {times} times" if times > 1 else ""
        taps = width * width if kernel in (KernelClass.DWCONV, KernelClass.CONV) else None
        ceiling = MacCeiling(dtype=dtype, kernel=kernel, taps=taps, shape=f"{list(image)} * {list(filters)}{remark}")
        build = self.depthwise if depthwise else self.transposed if doubles else self.convolution
        macs = math.prod(image) * width * width * (1 if depthwise else outputs)
        return ProbeCandidate(ceiling, times * macs, partial(build, dtype=dtype, image=image, filters=filters))

    def _memory_probes(self) -> Iterator[Probe[GraphT]]:
        """Sums, updates and copies over working sets from 32 KiB on, each twice the one before."""
        size = _SMALLEST_SET
        while size <= self.largest:
            for pattern, operator in self.operators.items():
                if isinstance(pattern, Pattern) and self.passes(pattern, size):
                    yield Probe([self._passing(pattern, size)], partial(self.is_operator, operator=operator))
            size *= 2

    def _passing(self, pattern: Pattern, size: int) -> ProbeCandidate[GraphT]:
        """A working set is read and next to nothing written, or updated in place, or half of it copied to the other."""
        times, reads = self.passes(pattern, size), pattern is Pattern.READ
        numbers = size // WIDTH // (2 if pattern is Pattern.COPY else 1)
        rows = self.rows_to_sum(numbers) if reads else numbers // ROW
        dims = (rows, numbers // rows)
        build = partial(self.passing, pattern=pattern, dims=dims, times=times)
        work = math.prod(dims) * WIDTH * times * (1 if reads else 2)
        return ProbeCandidate(MemoryCeiling(pattern=pattern, working_set=size), work, build)

    def _weight_probes(self) -> Iterator[Probe[GraphT]]:
        """One-row products whose weights fill a working set together, and are evicted where it is too large."""
        meant = partial(self.multiplies, dtype="f32", kernel=KernelClass.GEMV)
        for size in _WEIGHT_SETS:
            if size <= self.largest:
                sizes, ceiling = self.weights(size), MemoryCeiling(pattern=Pattern.WEIGHTS, working_set=size)
                build = partial(self.weighing, sizes=sizes)
                yield Probe([ProbeCandidate(ceiling, math.prod(sizes) * WIDTH, build)], meant)

    def _dispatch_probes(self) -> Iterator[Probe[GraphT]]:
        """An operator on 16 numbers, which one thread computes, and one on 16 numbers for each thread."""
        for dispatch, rows in ((Dispatch.SERIAL, 1), (Dispatch.PARALLEL, self.threads))[: min(self.threads, 2)]:
            build = partial(self.tiny, dispatch=dispatch, dims=(rows, _TINY))
            candidate = ProbeCandidate(DispatchCost(dispatch=dispatch), self.tiny_at_once, build)
            yield Probe([candidate], partial(self.is_operator, operator=self.operators[dispatch]))


class XnnpackGraphs(ProbeGraphs[GraphT]):
    """Probes of a runtime whose operators are XNNPACK's."""

    channels_last = True

    def is_operator(self, name: str, operator: str) -> bool:
        """By the operator in the name."""
        return operator_name(name) == operator

    def multiplies(self, name: str, dtype: str, kernel: KernelClass) -> bool:
        """By types and algorithm in the name; a conversion belongs to what is quantised at run time."""
        quantises = dtype.startswith("qd8") and name.startswith("Convert (NC, ")
        return quantises or kernel_use(name, 1 if kernel is KernelClass.GEMV else None) == KernelUse(dtype, kernel)


def element_candidate(
    function: str, dtype: str, dims: Sizes, times: int, build: Callable[[GraphT], None], *, scalar: bool = False
) -> ProbeCandidate[GraphT]:
    """A function of tensors of these sizes, or of one and a single number, put so many times into a graph."""
    shape = f"{list(dims)} and [1, 1]" if scalar else str(list(dims))
    return ProbeCandidate(ElementCeiling(function=function, dtype=dtype, shape=shape), math.prod(dims) * times, build)
