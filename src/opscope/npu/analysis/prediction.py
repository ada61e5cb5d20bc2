"""What a cost model predicted against what a trace shows: step, overlap, latency of an iteration, and total.

The model: an iteration takes ``latency_per_iteration`` cycles; the next one starts ``iteration_step`` cycles after it
did, and so overlaps its end by ``overlap`` = latency - step. All ``iterations`` take ``total``: the latency, and a step
for each further one.

Only like is compared with like. Where the latency is a sum over the slots of a schedule, with those of transfers, no
trace of cores has anything of the kind: neither the latency, nor the overlap, nor a total that holds one latency. The
step is the period, and the total without its latency is the time from the first start to the last.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import counted_text
from opscope.npu.analysis.findings import tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.npu.analysis.array import ArrayView
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.cost_model import CostModel

_ROUNDING = 0.01


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the model against the trace.

    Attributes:
        quantity: which number.
        predicted: by the model, in cycles.
        measured: median in the trace, or the total; null when it cannot be measured.
        error_cycles: predicted less measured; null likewise.
        error: the same as a share of the measured; null likewise, and when that is 0.
        n: measurements.
        extrapolated: whether the measured total is that of fewer iterations, continued at their step.
        note: what the measured number is, or why there is none.
    """

    quantity: str
    predicted: float
    measured: float | None = None
    error_cycles: float | None = None
    error: float | None = None
    n: int = 0
    extrapolated: bool = False
    note: str = ""


class Prediction(msgspec.Struct, frozen=True):
    """A cost model against a trace.

    Attributes:
        of: what counts as an iteration.
        rows: one for each number that was given.
        findings: what in the model contradicts itself, or the run.
        of_slots: whether the model's latency is a sum over the slots of a schedule, transfers included.
    """

    of: str
    rows: tuple[Against, ...]
    findings: tuple[Message, ...] = ()
    of_slots: bool = False


class Repeated(NamedTuple):
    """Something that happened again and again."""

    what: str  # it was
    start: tuple[int, ...]  # of each, in order of time
    end: tuple[int, ...]  # of each
    follows: tuple[bool, ...]  # whether each is the very next one after the one before it; the first one counts as such


def repeated_iterations(view: ArrayView) -> Repeated:
    """The common iterations of all cores, in aligned time."""
    iterations = sorted(view.iterations, key=lambda one: one.number)
    follows = [later.number == earlier.number + 1 for earlier, later in pairwise(iterations)]
    starts, ends = tuple(one.start for one in iterations), tuple(one.end for one in iterations)
    return Repeated("iterations of all cores", starts, ends, (True, *follows)[: len(iterations)])


def repeated_calls(work: MacCalls, tile: str) -> Repeated:
    """The multiplying calls of a tile, for a model whose iteration is a single call."""
    starts, ends = tuple(work.start.tolist()), tuple(work.end.tolist())
    return Repeated(f"multiplying calls of tile {tile}", starts, ends, (True,) * len(starts))


_OF_SLOTS = "counts all slots of the schedule, including transfers; core traces have no such time"
_WITH_LATENCY = "holds one such latency; first to last start excludes it"
_FIRST_TO_LAST = "first_to_last_start"


def against(model: CostModel, seen: Repeated, needed: int | None = None) -> Prediction:
    """The numbers of a model against what was seen.

    Where its latency is a sum over slots, its step stands against the period, and the steps of all its iterations
    against the time from the first start to the last.
    """
    findings = tuple(_contradictions(model))
    rows: list[Against | None]
    if model.of_slots:
        other = tuple(_other_iteration(model, seen, needed))
        reason, steps = (other[0].title, []) if other else (None, _steps(seen))
        findings = (*other, *findings)
        rows = [
            _median("iteration_step", model.step, steps, "from one start to the next", reason),
            _row_without("overlap", model.overlap, _OF_SLOTS),
            _row_without("latency_per_iteration", model.latency_per_iteration, _OF_SLOTS),
            _row_without("total", model.total, _WITH_LATENCY),
            _first_to_last(model, seen, steps, reason),
        ]
    else:
        rows = [
            _median("iteration_step", model.iteration_step, _steps(seen), "from one start to the next"),
            _median("overlap", model.overlap, _overlaps(seen), "end minus next start; negative means a gap"),
            _median("latency_per_iteration", model.latency_per_iteration, _latencies(seen), "from start to end"),
            _total(model, seen),
        ]
    return Prediction(seen.what, tuple(row for row in rows if row is not None), findings, model.of_slots)


def _row_without(quantity: str, predicted: float | None, note: str) -> Against | None:
    """A number that nothing is compared with."""
    return None if predicted is None else Against(quantity=quantity, predicted=predicted, note=note)


def _first_to_last(model: CostModel, seen: Repeated, steps: list[int], reason: str | None) -> Against | None:
    """From the start of the first iteration to that of the last: all of the total but one latency."""
    if model.total is None or model.latency_per_iteration is None:
        return None
    predicted, count = model.total - model.latency_per_iteration, model.count
    if not steps or count is None:
        words = reason or "the model's number of iterations is unknown" if count is None else _TOO_FEW
        return Against(quantity=_FIRST_TO_LAST, predicted=predicted, note=words)
    have = len(seen.start)
    if have == count and all(seen.follows):
        note = f"measured, {counted_text(have, 'iteration')}"
        return _row(_FIRST_TO_LAST, predicted, seen.start[-1] - seen.start[0], have, note=note)
    note = f"extrapolated: {count - 1:,} steps of the median of {len(steps)} steps in the trace"
    return _row(_FIRST_TO_LAST, predicted, (count - 1) * median(steps), have, note=note, extrapolated=True)


def _other_iteration(model: CostModel, seen: Repeated, needed: int | None) -> Iterable[Message]:
    """That an iteration of the model is not one of those that were seen, since the product takes another number."""
    count = model.count
    if count is None or needed is None or count == needed:
        return
    title = "the cost model's iteration differs from the traced one, so its step is not compared"
    evidence = f"the model has {counted_text(count, 'iteration', ',')}, the product takes {needed:,} {seen.what}"
    step = "check that the model is for this product, tiling and number of cores, or give --predicted-per"
    yield tile_finding("cost_model_other_iteration", Severity.MEDIUM, title, evidence, "options", step)


def _latencies(seen: Repeated) -> list[int]:
    return [end - start for start, end in zip(seen.start, seen.end, strict=True)]


def _steps(seen: Repeated) -> list[int]:
    pairs = zip(seen.start, seen.start[1:], seen.follows[1:], strict=False)
    return [later - earlier for earlier, later, follows in pairs if follows]


def _overlaps(seen: Repeated) -> list[int]:
    pairs = zip(seen.end, seen.start[1:], seen.follows[1:], strict=False)
    return [end - later for end, later, follows in pairs if follows]


_TOO_FEW = "the trace has too few complete iterations to measure it"


def _median(
    quantity: str, predicted: float | None, values: list[int], note: str, reason: str | None = None
) -> Against | None:
    if predicted is None:
        return None
    if not values:
        return Against(quantity=quantity, predicted=predicted, note=reason or _TOO_FEW)
    return _row(quantity, predicted, median(values), len(values), note=f"median: {note}")


def _row(quantity: str, predicted: float, measured: float, n: int, *, note: str, extrapolated: bool = False) -> Against:
    return Against(
        quantity=quantity,
        predicted=predicted,
        measured=measured,
        error_cycles=predicted - measured,
        error=(predicted - measured) / abs(measured) if measured else None,
        n=n,
        extrapolated=extrapolated,
        note=note,
    )


def _total(model: CostModel, seen: Repeated) -> Against | None:
    if model.total is None:
        return None
    count, have = model.count, len(seen.start)
    whole = have > 0 and all(seen.follows)
    if whole and count in {None, have}:
        note = f"first start to last end of {counted_text(have, 'iteration')}"
        if count is None:
            note += "; the model's number was not given"
        return _row("total", model.total, seen.end[-1] - seen.start[0], have, note=note)
    steps = _steps(seen)
    if count is None or not steps:
        return Against(quantity="total", predicted=model.total, note="the trace lacks the iterations for it")
    measured = median(_latencies(seen)) + (count - 1) * median(steps)
    note = f"extrapolated: the trace has {have} of {counted_text(count, 'iteration')}, continued at their median step"
    return _row("total", model.total, measured, have, note=note, extrapolated=True)


def _contradictions(model: CostModel) -> Iterable[Message]:
    step, latency = model.step, model.latency_per_iteration
    if None not in {model.iteration_step, model.overlap, latency}:
        yield from _differs("iteration_step", model.iteration_step, "latency minus overlap", (latency, model.overlap))
    if model.total is not None and latency is not None and step is not None and model.iterations is not None:
        sums = latency + (model.iterations - 1) * step
        yield from _differs("total", model.total, "latency plus one step per further iteration", (sums, 0.0))


def _differs(name: str, value: float | None, words: str, parts: tuple[float | None, float | None]) -> Iterable[Message]:
    expected = (parts[0] or 0.0) - (parts[1] or 0.0)
    if value is not None and not math.isclose(value, expected, rel_tol=_ROUNDING, abs_tol=1.0):
        title = f"the cost model's numbers contradict each other: {name} is not {words}"
        evidence = f"{name} = {value:g}, {words} = {expected:g}"
        step = "check which iteration each number refers to"
        yield tile_finding("cost_model_contradiction", Severity.MEDIUM, title, evidence, "options", step)
