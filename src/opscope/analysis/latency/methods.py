"""The methods of a program one by one: latency, share of the time, tokens per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.latency.latency import Latency, Untraced, latency_of
from opscope.analysis.operators.operators import UNKNOWN_METHOD, CategoryTime, Operator, categories
from opscope.program.phases import Phase, phase_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from opscope.analysis.latency.latency import CallTimes
    from opscope.core.table import EventTable

_SECOND = 1e9


class MethodTime(msgspec.Struct, frozen=True):
    """One method of a program that calls several, or whose calls stand for tokens.

    Attributes:
        method: its name.
        calls: measured calls in all traced processes.
        share: of the time of all measured calls.
        latency: of its calls without event tracing where there are any, else of the traced ones.
        traced: Method::execute of its traced calls, where ``latency`` is not of these; else null.
        categories: self time per call of this method, and share of it.
        phase: what a call does for a language model, with its tokens; null where it stands for no phase.
        tokens_per_second: tokens by the median of ``latency``; null where they are not known.
        tokens_ci95: 95 % interval of it; null where the median has none.
    """

    method: str
    calls: int
    share: float
    latency: Latency
    traced: Latency | None
    categories: list[CategoryTime]
    phase: Phase | None
    tokens_per_second: float | None
    tokens_ci95: tuple[float, float] | None


def method_times(
    table: EventTable, operators: Sequence[Operator], calls: CallTimes | None, known: Mapping[str, Phase]
) -> list[MethodTime]:
    """Every method that was called, in the order of their first calls; empty where one method stands for all."""
    measured = _durations(table)
    phases = {name: known.get(name) or phase_of(name) for name in measured}
    if len(measured) < 2 and not any(phases.values()):  # noqa: PLR2004 - one method is the whole
        return []
    total = sum(sum(map(sum, own)) for own in measured.values())
    count = sum(len(one) for own in measured.values() for one in own)
    without = _untraced(calls) if calls else {}
    return [
        _method(name, own, without.get(name), _shares(operators, name, count, own), total, phases[name])
        for name, own in measured.items()
    ]


def _method(
    name: str,
    measured: list[list[int]],
    without: Latency | None,
    parts: list[CategoryTime],
    total: int,
    phase: Phase | None,
) -> MethodTime:
    traced = latency_of("traced", measured, [[]] * len(measured), [None] * len(measured))
    used = without or traced
    interval, tokens = used.ci95_median_ns, phase.tokens if phase else None
    return MethodTime(
        method=name,
        calls=traced.n,
        share=sum(map(sum, measured)) / total if total else 0.0,
        latency=used,
        traced=traced if without else None,
        categories=parts,
        phase=phase,
        tokens_per_second=_rate(tokens, used.median_ns),
        tokens_ci95=_rates(tokens, interval) if interval else None,
    )


def _rate(tokens: int | None, nanoseconds: float) -> float | None:
    return tokens * _SECOND / nanoseconds if tokens and nanoseconds else None


def _rates(tokens: int | None, interval: tuple[float, float]) -> tuple[float, float] | None:
    slowest, fastest = _rate(tokens, interval[1]), _rate(tokens, interval[0])
    return None if slowest is None or fastest is None else (slowest, fastest)


def _shares(operators: Sequence[Operator], method: str, count: int, measured: list[list[int]]) -> list[CategoryTime]:
    """Self time by category per call of a method, from times that are per call of any."""
    own = sum(map(len, measured))
    category_times = categories(operator for operator in operators if operator.method == method)
    whole = sum(row.share for row in category_times)
    return [
        CategoryTime(
            row.category,
            time_ns=None if row.time_ns is None else row.time_ns * count / own,
            share=row.share / whole if whole else 0.0,
        )
        for row in category_times
    ]


def _durations(table: EventTable) -> dict[str, list[list[int]]]:
    """Measured durations of each process by method, processes without any left out."""
    listed = {name: [own.tolist() for own in each if len(own)] for name, each in durations_by_method(table).items()}
    return {name: own for name, own in listed.items() if own}


def durations_by_method(table: EventTable) -> dict[str, list[NDArray[np.int64]]]:
    """Measured durations of every process by method, in the order of first calls."""
    inferences = table.inference_times()
    texts = [*inferences.method.texts, UNKNOWN_METHOD]
    kept = ~inferences.warmup
    return {
        texts[code]: [
            inferences.duration[kept & (inferences.method.codes == code) & (inferences.process == process)]
            for process in range(table.processes)
        ]
        for code in dict.fromkeys(inferences.method.codes[kept].tolist())
    }


def timed_by_method(
    name: str, latency: Latency, untraced: Untraced | None, methods: Sequence[MethodTime]
) -> dict[str, tuple[Latency, Untraced | None]]:
    """What the quality of a measurement is judged by: the methods one by one, since together they are mixed."""
    if len(methods) < 2:  # noqa: PLR2004 - one method is the whole
        return {name: (latency, untraced)}
    return {
        f"{name}, {row.method}": (
            row.traced or row.latency,
            Untraced(row.latency, untraced.tracing if untraced else None) if row.traced else None,
        )
        for row in methods
    }


def _untraced(calls: CallTimes) -> dict[str, Latency]:
    """Latency of the untraced calls of each method, of those that a comparison of it counts."""
    rounds = sorted(calls.settled())
    each = {name: [own.astype(int).tolist() for own in calls.durations(rounds, name)] for name in calls.order}
    listed = {name: [own for own in durations if own] for name, durations in each.items()}
    return {
        name: latency_of("untraced", own, [[]] * len(own), [None] * len(own)) for name, own in listed.items() if own
    }
