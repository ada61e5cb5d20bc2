"""Which settings of a runtime are faster than its own default: schema ``opscope.tune/1``.

A search proposes settings from few samples, so its gains are too high: every figure that is told comes from a
confirmation, new interleaved processes that took no part in the choice. In each round every setting runs in one process
and the default twice, under two names; the second, the null candidate, shows how far equal settings seem to differ.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from opscope.core.stats.distributions import t_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

DEFAULT, NULL = "default", "null"  # names that a directory can have
"""The runtime's own default, and the same under another name."""
DROPPED_AT_ONCE = 0.67
"""Speed of the default below which a setting is dropped after one sample; others have three."""
SAMPLES_BEFORE_HALVING = 3
FINALISTS = 3
_HELPED = 0.02
"""Gain of a setting in the search from which it is joined with others, as the logarithm of a ratio."""
_FOREIGN_CPUS = 0.15
"""CPU time of other processes in CPUs, median of all processes, above which no winner is named."""
ROUNDING = 1e-4
"""Largest error that rounding explains, relative to the largest value; see ``analysis.compare.outputs``."""


class TuningCandidate(msgspec.Struct, frozen=True):
    """A setting to try.

    Attributes:
        name: unique among the candidates, in words.
        threads: size of the thread pool; 0: the runtime's own choice.
        options: of the runtime, by name.
        lines: what a user writes in a program of his own, a line each.
        parts: names of the candidates that it joins; empty for a single setting.
    """

    name: str
    threads: int = 0
    options: dict[str, str] = {}
    lines: list[str] = []
    parts: list[str] = []


class TuningSpace(NamedTuple):
    """The settings of a runtime that are worth a try."""

    default: TuningCandidate  # what a user gets who sets nothing
    candidates: list[TuningCandidate]
    reference: str = DEFAULT  # name of the candidate whose outputs are those of f32


def thread_candidates(cpus: int, default: int, line: str) -> list[TuningCandidate]:
    """Return a candidate for each thread count: powers of two up to the CPUs, and the CPUs.

    Args:
        cpus: that a process may use.
        default: count that the runtime chooses itself, which is no candidate; 0 where it depends on the machine.
        line: of a program that sets the count, with ``{threads}`` in its place.
    """
    counts = sorted({1 << power for power in range(cpus.bit_length()) if 1 << power <= cpus} | {cpus})
    return [
        TuningCandidate(f"{count} thread{'s' * (count > 1)}", count, lines=[line.format(threads=count)])
        for count in counts
        if count != default
    ]


def join_candidates(firsts: Sequence[TuningCandidate], seconds: Sequence[TuningCandidate]) -> list[TuningCandidate]:
    """Return every setting of one list together with every setting of another."""
    return [
        TuningCandidate(
            name=f"{first.name}, {second.name}",
            threads=first.threads or second.threads,
            options=first.options | second.options,
            lines=[*first.lines, *second.lines],
            parts=[first.name, second.name],
        )
        for first in firsts
        for second in seconds
    ]


class OutputClass(str, enum.Enum):
    """How the outputs of a setting compare with the reference, as it was measured."""

    SAME_BITS = "same bits"
    ROUNDING = "equal within rounding"
    OTHER_NUMBERS = "other numbers"


class TuningSample(NamedTuple):
    """What one process measured."""

    candidate: str
    round: int
    latency_ns: float  # median of its calls
    cpu_ns: float | None  # CPU time of a call, of all threads; None where the system does not tell
    foreign_cpus: float | None  # CPUs that other processes kept busy meanwhile; likewise
    peak_bytes: int | None  # largest resident memory; likewise
    load_ns: int | None  # loading the model; likewise


def log_gains(samples: Sequence[TuningSample], candidate: str) -> Floats:
    """Return the logarithm of default over candidate in each round that has both, in the order of the rounds.

    The default of a round is the mean of its two processes, where it ran twice.
    """
    bases: dict[int, list[float]] = {}
    times: dict[int, float] = {}
    for sample in samples:
        if sample.candidate in {DEFAULT, NULL} and sample.candidate != candidate:
            bases.setdefault(sample.round, []).append(math.log(sample.latency_ns))
        if sample.candidate == candidate:
            times[sample.round] = math.log(sample.latency_ns)
    rounds = sorted(bases.keys() & times.keys())
    return np.array([np.mean(bases[number]) - times[number] for number in rounds])


def select_survivors(samples: Sequence[TuningSample], alive: Sequence[TuningCandidate]) -> list[TuningCandidate]:
    """Return the candidates that are worth another round, the fastest first.

    What is far slower goes after one sample; from three samples on the slower half goes, down to the finalists.
    """
    gains = {candidate.name: log_gains(samples, candidate.name) for candidate in alive}
    sampled = [candidate for candidate in alive if len(gains[candidate.name])]
    fast = [candidate for candidate in sampled if np.median(gains[candidate.name]) >= math.log(DROPPED_AT_ONCE)]
    ordered = sorted(fast, key=lambda candidate: -float(np.median(gains[candidate.name])))
    if any(len(gains[candidate.name]) < SAMPLES_BEFORE_HALVING for candidate in ordered):
        return ordered
    return ordered[: max(FINALISTS, math.ceil(len(ordered) / 2))]


def helped_alone(samples: Sequence[TuningSample], candidate: TuningCandidate) -> bool:
    """Return whether every setting that a candidate joins was faster than the default by itself."""
    gains = [log_gains(samples, part) for part in candidate.parts]
    return all(len(values) and float(np.median(values)) > _HELPED for values in gains)


class ConfirmedGain(msgspec.Struct, frozen=True):
    """How much faster than the default a setting was in the confirmation.

    Attributes:
        speedup: default over candidate, geometric mean over the rounds.
        low: lower end of the interval, which holds all told gains together in 95 of 100 confirmations.
        high: upper end.
        smallest: the speedup that such data would show in 80 of 100 confirmations.
        rounds: of the confirmation.
    """

    speedup: float
    low: float
    high: float
    smallest: float
    rounds: int


def confirm_gain(gains: Floats, finalists: int) -> ConfirmedGain | None:
    """Return the gain of a candidate from the logarithms of its rounds; None with fewer than three.

    ``finalists`` is the number of gains that are told together: the interval is Student's, corrected by Bonferroni.
    """
    rounds = len(gains)
    if rounds < SAMPLES_BEFORE_HALVING:
        return None
    mean, error = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(rounds)
    width = t_quantile(1 - 0.05 / (2 * max(finalists, 1)), rounds - 1) * error
    detectable = width + t_quantile(0.8, rounds - 1) * error
    return ConfirmedGain(math.exp(mean), math.exp(mean - width), math.exp(mean + width), math.exp(detectable), rounds)


def find_foreign_load(samples: Sequence[TuningSample]) -> float | None:
    """Return the CPUs that other processes kept busy, median of all processes; None where the system does not tell."""
    loads = [sample.foreign_cpus for sample in samples if sample.foreign_cpus is not None]
    return float(np.median(loads)) if loads else None


class CandidateResult(msgspec.Struct, frozen=True):
    """What became of a setting.

    Attributes:
        candidate: the setting.
        outcome: in a word, such as ``winner``, ``slower`` or ``does not run``.
        seen: speedup in the search, which is too high for those that were chosen by it; null without a sample.
        confirmed: speedup in the confirmation; null for all but finalists.
        outputs: against the reference; null where they were not compared.
        max_rel_error: of the outputs, relative to the largest value; likewise.
        cpu_ratio: CPU time of a call by that of the default; null where the system does not tell.
        latency_ns: median of the processes of the last phase that it ran in; null where it did not.
        peak_bytes: largest resident memory, median; likewise.
        load_ns: loading the model, median; likewise.
        reason: why it was dropped, one sentence; empty where it was not.
        earlier: speedup in the confirmation that was replayed; null where nothing was replayed.
    """

    candidate: TuningCandidate
    outcome: str
    seen: float | None = None
    confirmed: ConfirmedGain | None = None
    outputs: OutputClass | None = None
    max_rel_error: float | None = None
    cpu_ratio: float | None = None
    latency_ns: float | None = None
    peak_bytes: int | None = None
    load_ns: int | None = None
    reason: str = ""
    earlier: ConfirmedGain | None = None


class Tuning(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.tune/1"):
    """Which settings of a model were tried, and which one is faster than the default and equal.

    Attributes:
        model: as it was named.
        runtime: that ran it.
        machine: its CPU, in words.
        base: the default.
        candidates: all settings, finalists first, then by what the search saw.
        null: the default against itself in the confirmation; null where nothing was confirmed.
        winner: name of the setting to use; null: keep the default.
        reference: whose outputs were the reference.
        foreign_cpus: CPUs that other processes kept busy, median; null where the system does not tell.
        disturbed: why no winner may be named, one sentence; null where nothing disturbed the run.
        seconds: of the search, to the first confirmed answer, and in all; of the last call where it was resumed.
        directory: of the results; the confirmation's bundle is in ``bundle`` there.
        replayed: directory of the result whose settings were confirmed again; null where settings were searched.
    """

    model: str
    runtime: str
    machine: str
    base: CandidateResult
    candidates: list[CandidateResult]
    null: ConfirmedGain | None
    winner: str | None
    reference: str
    foreign_cpus: float | None
    disturbed: str | None
    seconds: dict[str, float]
    directory: str
    replayed: str | None = None


def choose_winner(results: Sequence[CandidateResult], null: ConfirmedGain | None, disturbed: str | None) -> str | None:
    """Return the fastest confirmed setting whose outputs are equal; None: keep the default.

    Its interval must lie above 1 and above that of the null candidate.
    """
    if disturbed is not None or null is None:
        return None
    bar = max(1.0, null.high)
    faster = [
        result
        for result in results
        if result.confirmed and result.confirmed.low > bar and result.outputs is not OutputClass.OTHER_NUMBERS
    ]
    best = max(faster, key=lambda result: result.confirmed.speedup if result.confirmed else 0.0, default=None)
    return best.candidate.name if best else None


def find_visible_gain(results: Sequence[CandidateResult], null: ConfirmedGain | None) -> float | None:
    """Return the speedup that any finalist would have won with in 80 of 100 confirmations; None without a finalist.

    A winner's interval must lie above that of the null candidate, so a noisy null makes small gains invisible.
    """
    smallest = [result.confirmed.smallest for result in results if result.confirmed]
    return max(smallest) * max(1.0, null.high) if smallest and null else None


def needs_more_rounds(gains: Mapping[str, Floats]) -> bool:
    """Return whether some finalist's interval still holds 1."""
    confirmed = [confirm_gain(values, len(gains)) for values in gains.values()]
    return any(gain is None or gain.low <= 1.0 <= gain.high for gain in confirmed)


def find_disturbance(samples: Sequence[TuningSample]) -> str | None:
    """Return why a run may name no winner: other processes used the CPUs. None if they did not, or nothing tells."""
    load = find_foreign_load(samples)
    if load is None or load <= _FOREIGN_CPUS:
        return None
    return f"other processes kept {load:.2f} CPUs busy meanwhile"
