"""What other processes and the hypervisor took from the measured inferences, as the kernel counted it.

Inferences that were preempted are left out of the latency and of the comparison. Where hardly any is left, or where
others had more of the CPU than the process itself, what remains is not that of a quiet machine: then no ratio is told.
Interleaving rounds cancels contention that is the same for all variants; here is seen whether it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.findings.message import Grade, Message, concern, not_checked, passed
from opscope.analysis.findings.rule import asked, declare_rule
from opscope.analysis.latency.latency import FEWEST_QUIET, OFF_CPU, is_crowded, preempted_calls, undisturbed_calls
from opscope.analysis.quality.quality import beyond
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
    """The measured calls of one process."""

    wall_ns: Sequence[int]  # duration of each
    off_cpu_ns: Sequence[int]  # how much of each was off the CPU; as many
    usage: ProcessUsage | None = None  # what the system counted meanwhile; None where that is not known
    methods: Sequence[str] = ()  # of each call; empty where all are of one

    @property
    def marked(self) -> int:
        """How many of its calls were preempted."""
        return sum(preempted_calls(self.wall_ns, self.off_cpu_ns))

    @property
    def crowded(self) -> bool:
        """Whether hardly any was not, of all or of a method, so that figures rest on preempted calls, too."""
        return is_crowded(self.wall_ns, self.off_cpu_ns) or self.interrupted is not None

    @property
    def interrupted(self) -> str | None:
        """The first method of which every call was preempted; None where there is none."""
        marked = zip(self.methods, preempted_calls(self.wall_ns, self.off_cpu_ns), strict=False)
        each = grouped(marked, lambda pair: pair[0])
        return next((name for name, own in each.items() if all(hit for _, hit in own)), None)

    @property
    def lengthening(self) -> float:
        """How much longer its median is than it would have been with the time off the CPU taken out."""
        kept = np.asarray(undisturbed_calls(self.wall_ns, self.off_cpu_ns), bool)
        wall = np.asarray(self.wall_ns, np.float64)[kept]
        alone = wall - np.minimum(np.asarray(self.off_cpu_ns, np.float64)[kept], _MOST * wall)
        return float(np.median(wall) / max(np.median(alone), 1.0))


class VariantCalls(NamedTuple):
    """The measured calls of one variant."""

    name: str  # of the variant
    processes: Sequence[ProcessCalls]  # those whose time off the CPU was recorded
    unrecorded: int = 0  # how many have no such record

    @property
    def lengthening(self) -> float:
        """Geometric mean of its processes'; at least one."""
        return math.exp(float(np.mean([math.log(process.lengthening) for process in self.processes])))

    @property
    def crowded(self) -> int:
        """How many of its processes have hardly any call that nobody preempted."""
        return sum(process.crowded for process in self.processes)

    @property
    def lost(self) -> float:
        """Share of the time of its calls that it was kept off the CPU."""
        return lost_share(self.processes)


def examine_disturbance(variants: Sequence[VariantCalls]) -> list[Message]:
    """What was taken from the inferences."""
    own = CHECKS if len(variants) > 1 else (preemption,)
    return asked(own, variants)


def lost_share(processes: Sequence[ProcessCalls]) -> float:
    """Share of the time of calls that their processes were kept off the CPU."""
    return sum(sum(one.off_cpu_ns) for one in processes) / max(sum(sum(one.wall_ns) for one in processes), 1)


def withheld_reason(variants: Sequence[VariantCalls]) -> str | None:
    """Why no ratio of the variants can be told, as a sentence without a full stop; None when one can."""
    variant_calls = [variant for variant in variants if variant.processes]
    for variant in variant_calls:
        if variant.lost > LOST:
            return f"other processes took {share_text(variant.lost)} of the CPU time of {variant.name}"
        if variant.crowded > CROWDED_PROCESSES * len(variant.processes):
            count = f"{variant.crowded} of {len(variant.processes)} processes"
            return f"{count} of {variant.name} were interrupted in nearly every inference{_of(variant.processes)}"
    if len(variant_calls) < 2:  # noqa: PLR2004 - nothing to be uneven with
        return None
    least, most = (choose(variant_calls, key=lambda one: one.lengthening) for choose in (min, max))
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
    calls, marked = sum(len(one.wall_ns) for one in processes), sum(one.marked for one in processes)
    counted = f"{marked:,} of {counted_text(calls, 'inference', ',')} preempted{_stolen(processes)}"
    too_many = any(one.lost > LOST or one.crowded > CROWDED_PROCESSES * len(one.processes) for one in variant_calls)
    grade = Grade.DO_NOT_TRUST if too_many else Grade.USABLE if marked > MARKED * calls else None
    if grade is None:
        return passed(check, counted)
    figures = f"{_cause(processes)} took {share_text(lost_share(processes))} of the CPU time ({counted})"
    return concern(check, grade, f"{figures}; {_kept(processes)}", _ALONE)


@declare_rule(UNEVEN=UNEVEN)
def even_contention(variants: Sequence[VariantCalls]) -> Message:
    """Contention that hits one variant more than another, which interleaving cannot cancel."""
    check = "even_contention"
    variant_calls = [variant for variant in variants if variant.processes]
    if len(variant_calls) < len(variants) or any(variant.unrecorded for variant in variants):
        return not_checked(check, "contention per variant was not recorded")
    least, most = (choose(variant_calls, key=lambda one: one.lengthening) for choose in (min, max))
    shift = most.lengthening / least.lengthening
    lengths = " and ".join(f"{one.name} by {ratio_text(one.lengthening)}" for one in (most, least))
    grade = beyond(shift - 1, UNEVEN)
    if grade is None:
        return passed(check, f"contention slowed all variants alike, by {ratio_text(most.lengthening)}")
    return concern(
        check,
        grade,
        f"contention slowed {lengths}, which interleaving cannot cancel",
        _ALONE,
    )


CHECKS: tuple[Callable[[Sequence[VariantCalls]], Message], ...] = (preemption, even_contention)


def _stolen(processes: Sequence[ProcessCalls]) -> str:
    """How much of the time of its CPUs a hypervisor took, for a figure in brackets; empty where that is not known."""
    share = stolen_share(one.usage for one in processes if one.usage)
    return "" if share is None else f", steal {share_text(share)}"


def _cause(processes: Sequence[ProcessCalls]) -> str:
    """Who took the time, as far as the kernel's counters tell."""
    lost = sum(sum(one.off_cpu_ns) for one in processes)
    usages = [one.usage for one in processes if one.usage]
    waited = sum(usage.run_delay_ns or 0 for usage in usages)
    stolen = sum(usage.steal_ns or 0 for usage in usages)
    if stolen > _MOSTLY * lost and stolen > waited:
        return "the hypervisor"
    if waited > _MOSTLY * lost:
        return "another process"
    if not usages or any(usage.run_delay_ns is None for usage in usages):
        return "something else"
    return "waiting for storage or another program"


def _kept(processes: Sequence[ProcessCalls]) -> str:
    """What was done about the marked inferences."""
    crowded = sum(process.crowded for process in processes)
    excluded = "excluded from latency and comparison"
    few = f"{excluded}, which leaves hardly any{_of(processes)} in {crowded} of {len(processes)} processes"
    return few if crowded else excluded


def _of(processes: Sequence[ProcessCalls]) -> str:
    """Of which method the inferences are that were preempted, where it is one in all of the processes."""
    names = {process.interrupted for process in processes if process.crowded}
    name = names.pop() if len(names) == 1 else None
    return f" of {name}" if name else ""
