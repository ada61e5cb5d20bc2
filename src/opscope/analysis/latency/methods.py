"""Methods of a program: latency, share of the time, tokens per second."""

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
    """Method of a program that calls several, or whose calls stand for tokens.

    Attributes:
        method: its name.
        calls: measured calls in all traced processes.
        share: share of the time of all measured calls.
        latency: latency of its calls without event tracing where there are any, else of the traced ones.
        traced: Method::execute of its traced calls, where ``latency`` is not of these; else null.
        categories: self time per call of this method, and share of it.
        phase: what a call does for a language model, with its tokens; null where it stands for no phase.
        tokens_per_second: tokens by the median of ``latency``; null if unknown.
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
    """Return every method that was called, in the order of first calls; empty if a single method stands for all."""
    measured = _durations_by_process(table)
    phases = {name: known.get(name) or phase_of(name) for name in measured}
    if len(measured) < 2 and not any(phases.values()):  # noqa: PLR2004 - one method is the whole
        return []
    total = sum(sum(map(sum, durations)) for durations in measured.values())
    count = sum(
        len(calls_of_process) for process_durations in measured.values() for calls_of_process in process_durations
    )
    without = _untraced_latencies(calls) if calls else {}
    return [
        _method_time(
            name, durations, without.get(name), _category_shares(operators, name, count, durations), total, phases[name]
        )
        for name, durations in measured.items()
    ]


def _method_time(
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
        tokens_per_second=_tokens_per_second(tokens, used.median_ns),
        tokens_ci95=_tokens_per_second_interval(tokens, interval) if interval else None,
    )


def _tokens_per_second(tokens: int | None, nanoseconds: float) -> float | None:
    return tokens * _SECOND / nanoseconds if tokens and nanoseconds else None


def _tokens_per_second_interval(tokens: int | None, interval: tuple[float, float]) -> tuple[float, float] | None:
    slowest, fastest = _tokens_per_second(tokens, interval[1]), _tokens_per_second(tokens, interval[0])
    return None if slowest is None or fastest is None else (slowest, fastest)


def _category_shares(
    operators: Sequence[Operator], method: str, count: int, measured: list[list[int]]
) -> list[CategoryTime]:
    """Return self time by category per call of a method, from times that are per call of any method."""
    method_calls = sum(map(len, measured))
    category_times = categories(operator for operator in operators if operator.method == method)
    total_share = sum(row.share for row in category_times)
    return [
        CategoryTime(
            row.category,
            time_ns=None if row.time_ns is None else row.time_ns * count / method_calls,
            share=row.share / total_share if total_share else 0.0,
        )
        for row in category_times
    ]


def _durations_by_process(table: EventTable) -> dict[str, list[list[int]]]:
    """Return measured durations by method and process, without processes that called nothing."""
    listed = {
        name: [durations.tolist() for durations in process_durations if len(durations)]
        for name, process_durations in durations_by_method(table).items()
    }
    return {name: durations for name, durations in listed.items() if durations}


def durations_by_method(table: EventTable) -> dict[str, list[NDArray[np.int64]]]:
    """Return measured durations of every process by method, in the order of first calls."""
    inferences = table.inference_times()
    texts = [*inferences.method.texts, UNKNOWN_METHOD]
    is_measured = ~inferences.warmup
    return {
        texts[code]: [
            inferences.duration[is_measured & (inferences.method.codes == code) & (inferences.process == process)]
            for process in range(table.processes)
        ]
        for code in dict.fromkeys(inferences.method.codes[is_measured].tolist())
    }


def timed_by_method(
    name: str, latency: Latency, untraced: Untraced | None, methods: Sequence[MethodTime]
) -> dict[str, tuple[Latency, Untraced | None]]:
    """Return the latencies that quality is judged by: of each method if there are several, else of all calls."""
    if len(methods) < 2:  # noqa: PLR2004 - one method is the whole
        return {name: (latency, untraced)}
    return {
        f"{name}, {row.method}": (
            row.traced or row.latency,
            Untraced(row.latency, untraced.tracing if untraced else None) if row.traced else None,
        )
        for row in methods
    }


def _untraced_latencies(calls: CallTimes) -> dict[str, Latency]:
    """Return the latency of the untraced calls of each method that count in a comparison."""
    rounds = sorted(calls.settled())
    by_method = {
        name: [durations.astype(int).tolist() for durations in calls.durations(rounds, name)] for name in calls.order
    }
    listed = {name: [durations for durations in durations if durations] for name, durations in by_method.items()}
    return {
        name: latency_of("untraced", durations, [[]] * len(durations), [None] * len(durations))
        for name, durations in listed.items()
        if durations
    }
