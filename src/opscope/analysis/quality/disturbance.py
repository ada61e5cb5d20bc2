"""CPU time that other processes and the hypervisor took from the measured inferences, as the kernel counted it.

Inferences that were preempted are left out of the latency and of the comparison. Where hardly any is left, or where
others had more of the CPU than the process itself, what remains is not that of a quiet machine: then no ratio is told.
Interleaving rounds cancels contention that is the same for all variants; here is seen whether it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.findings.message import Grade, Message, concern, not_checked, passed
from opscope.analysis.findings.rule import ask_rules, declare_rule
from opscope.analysis.latency.latency import FEWEST_QUIET, OFF_CPU, is_crowded, preempted_calls, undisturbed_calls
from opscope.analysis.quality.quality import grade_by_limits
from opscope.core.grouping import grouped
from opscope.core.system.usage import stolen_share
from opscope.core.units import counted_text, ratio_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.core.system.usage import ProcessUsage

# Where these come from: docs/design/quality.md.
MARKED = 0.05
LOST = 0.55
CROWDED_PROCESSES = 0.25
UNEVEN = (0.02, 0.10)
_MOSTLY = 0.5
_MOST = 0.9
_ALONE = "stop other programs, or pin the run to idle CPUs (--affinity), and measure again"


class ProcessCalls(NamedTuple):
    """Measured calls of one process."""

    wall_ns: Sequence[int]  # duration of each
    off_cpu_ns: Sequence[int]  # how much of each was off the CPU; as many
    usage: ProcessUsage | None = None  # what the system counted meanwhile; None if unknown
    methods: Sequence[str] = ()  # method of each call; empty where all are of one

    @property
    def marked(self) -> int:
        """Number of its calls that were preempted."""
        return sum(preempted_calls(self.wall_ns, self.off_cpu_ns))

    @property
    def crowded(self) -> bool:
        """Return whether almost all calls, of all or of a method, were preempted, so that figures rest on them."""
        return is_crowded(self.wall_ns, self.off_cpu_ns) or self.interrupted is not None

    @property
    def interrupted(self) -> str | None:
        """Name of the first method of which every call was preempted; None if there is none."""
        calls = zip(self.methods, preempted_calls(self.wall_ns, self.off_cpu_ns), strict=False)
        by_method = grouped(calls, lambda pair: pair[0])
        return next(
            (name for name, method_calls in by_method.items() if all(is_preempted for _, is_preempted in method_calls)),
            None,
        )

    @property
    def lengthening(self) -> float:
        """Factor by which its median is longer than with the time off the CPU taken out."""
        is_undisturbed = np.asarray(undisturbed_calls(self.wall_ns, self.off_cpu_ns), bool)
        wall = np.asarray(self.wall_ns, np.float64)[is_undisturbed]
        on_cpu = wall - np.minimum(np.asarray(self.off_cpu_ns, np.float64)[is_undisturbed], _MOST * wall)
        return float(np.median(wall) / max(np.median(on_cpu), 1.0))


class VariantCalls(NamedTuple):
    """Measured calls of one variant."""

    name: str  # name of the variant
    processes: Sequence[ProcessCalls]  # those whose time off the CPU was recorded
    unrecorded: int = 0  # how many have no such record

    @property
    def lengthening(self) -> float:
        """Geometric mean of the lengthening of its processes; at least 1."""
        return math.exp(float(np.mean([math.log(process.lengthening) for process in self.processes])))

    @property
    def crowded(self) -> int:
        """Number of its processes of which almost all calls were preempted."""
        return sum(process.crowded for process in self.processes)

    @property
    def lost(self) -> float:
        """Share of the time of its calls that it was kept off the CPU."""
        return lost_share(self.processes)


def examine_disturbance(variants: Sequence[VariantCalls]) -> list[Message]:
    """Check what other processes took from the inferences."""
    checks = CHECKS if len(variants) > 1 else (preemption,)
    return ask_rules(checks, variants)


def lost_share(processes: Sequence[ProcessCalls]) -> float:
    """Return the share of the time of calls that their processes were kept off the CPU."""
    return sum(sum(process.off_cpu_ns) for process in processes) / max(
        sum(sum(process.wall_ns) for process in processes), 1
    )


def withheld_reason(variants: Sequence[VariantCalls]) -> str | None:
    """Return why no ratio of the variants can be given, as a sentence without a full stop; None if one can."""
    variant_calls = [variant for variant in variants if variant.processes]
    for variant in variant_calls:
        if variant.lost > LOST:
            return f"other processes took {share_text(variant.lost)} of the CPU time of {variant.name}"
        if variant.crowded > CROWDED_PROCESSES * len(variant.processes):
            count = f"{variant.crowded} of {len(variant.processes)} processes"
            method = _method_suffix(variant.processes)
            return f"{count} of {variant.name} were interrupted in nearly every inference{method}"
    if len(variant_calls) < 2:  # noqa: PLR2004 - nothing to be uneven with
        return None
    least, most = (choose(variant_calls, key=lambda variant: variant.lengthening) for choose in (min, max))
    if most.lengthening / least.lengthening - 1 <= UNEVEN[1]:
        return None
    return (
        f"other processes slowed {most.name} by {ratio_text(most.lengthening)} and {least.name} by "
        f"{ratio_text(least.lengthening)}"
    )


@declare_rule(OFF_CPU=OFF_CPU, MARKED=MARKED, LOST=LOST, CROWDED_PROCESSES=CROWDED_PROCESSES, FEWEST_QUIET=FEWEST_QUIET)
def preemption(variants: Sequence[VariantCalls]) -> Message:
    """Inferences during which the process was off the CPU, and what ran instead."""
    check = "preemption"
    variant_calls = [variant for variant in variants if variant.processes]
    if not variant_calls or any(variant.unrecorded for variant in variants):
        return not_checked(check, "off-CPU time was not recorded")
    processes = [process for variant in variant_calls for process in variant.processes]
    calls, marked = sum(len(process.wall_ns) for process in processes), sum(process.marked for process in processes)
    counted = f"{marked:,} of {counted_text(calls, 'inference', ',')} preempted{_steal_text(processes)}"
    too_many = any(
        variant.lost > LOST or variant.crowded > CROWDED_PROCESSES * len(variant.processes) for variant in variant_calls
    )
    grade = Grade.DO_NOT_TRUST if too_many else Grade.USABLE if marked > MARKED * calls else None
    if grade is None:
        return passed(check, counted)
    figures = f"{_culprit_text(processes)} took {share_text(lost_share(processes))} of the CPU time ({counted})"
    return concern(check, grade, f"{figures}; {_exclusion_text(processes)}", _ALONE)


@declare_rule(UNEVEN=UNEVEN)
def even_contention(variants: Sequence[VariantCalls]) -> Message:
    """Contention that hits one variant more than another, which interleaving cannot cancel."""
    check = "even_contention"
    variant_calls = [variant for variant in variants if variant.processes]
    if len(variant_calls) < len(variants) or any(variant.unrecorded for variant in variants):
        return not_checked(check, "contention per variant was not recorded")
    least, most = (choose(variant_calls, key=lambda variant: variant.lengthening) for choose in (min, max))
    shift = most.lengthening / least.lengthening
    lengths = " and ".join(f"{variant.name} by {ratio_text(variant.lengthening)}" for variant in (most, least))
    grade = grade_by_limits(shift - 1, UNEVEN)
    if grade is None:
        return passed(check, f"contention slowed all variants alike, by {ratio_text(most.lengthening)}")
    return concern(
        check,
        grade,
        f"contention slowed {lengths}, which interleaving cannot cancel",
        _ALONE,
    )


CHECKS: tuple[Callable[[Sequence[VariantCalls]], Message], ...] = (preemption, even_contention)


def _steal_text(processes: Sequence[ProcessCalls]) -> str:
    """Return how much of its CPUs' time a hypervisor took, in words to append; empty if unknown."""
    share = stolen_share(process.usage for process in processes if process.usage)
    return "" if share is None else f", steal {share_text(share)}"


def _culprit_text(processes: Sequence[ProcessCalls]) -> str:
    """Return who took the time, as far as the kernel's counters show."""
    lost = sum(sum(process.off_cpu_ns) for process in processes)
    usages = [process.usage for process in processes if process.usage]
    waited = sum(usage.run_delay_ns or 0 for usage in usages)
    stolen = sum(usage.steal_ns or 0 for usage in usages)
    if stolen > _MOSTLY * lost and stolen > waited:
        return "the hypervisor"
    if waited > _MOSTLY * lost:
        return "another process"
    if not usages or any(usage.run_delay_ns is None for usage in usages):
        return "something else"
    return "waiting for storage or another program"


def _exclusion_text(processes: Sequence[ProcessCalls]) -> str:
    """Return what was done about the preempted inferences."""
    crowded = sum(process.crowded for process in processes)
    excluded = "excluded from latency and comparison"
    few = f"{excluded}, which leaves hardly any{_method_suffix(processes)} in {crowded} of {len(processes)} processes"
    return few if crowded else excluded


def _method_suffix(processes: Sequence[ProcessCalls]) -> str:
    """Return the method whose inferences were preempted, if it is one method in all processes."""
    names = {process.interrupted for process in processes if process.crowded}
    name = names.pop() if len(names) == 1 else None
    return f" of {name}" if name else ""
