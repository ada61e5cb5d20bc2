"""What other processes and the hypervisor took from the measured inferences, as the kernel counted it.

Inferences are marked, and none is left out: the headline rests on medians of processes, which bear marked inferences
as long as they are few. Where they are not, the grade says so. Interleaving rounds cancels contention that is the same
for all variants; here is seen whether it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.analysis.findings.message import Message, not_checked, passed
from opscope.analysis.findings.quality import Grade, concern
from opscope.analysis.findings.rule import asked, declare_rule
from opscope.analysis.latency.preemption import OFF_CPU, preempted
from opscope.analysis.quality.quality import beyond
from opscope.core.system.usage import stolen_share
from opscope.core.units import ratio_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opscope.core.system.usage import ProcessUsage

# Where these come from: docs/design/quality.md.
MARKED = 0.05
DISTURBED = 0.25
DISTURBED_PROCESSES = (0.0, 0.5)
UNEVEN = (0.02, 0.10)
_MOSTLY = 0.5
_MOST = 0.9
_ALONE = "stop other programs, or pin the run to CPUs that nothing else uses (affinity), and measure again"


class ProcessCalls(NamedTuple):
    """The measured calls of one process.

    Attributes:
        wall_ns: duration of each.
        off_cpu_ns: how much of each was off the CPU; as many.
        usage: what the system counted meanwhile; None where that is not known.
    """

    wall_ns: Sequence[int]
    off_cpu_ns: Sequence[int]
    usage: ProcessUsage | None = None

    @property
    def marked(self) -> int:
        """How many of its calls were preempted."""
        return sum(preempted(self.wall_ns, self.off_cpu_ns))

    @property
    def disturbed(self) -> bool:
        """Whether so many were that its median is no longer that of an undisturbed process."""
        return self.marked > DISTURBED * len(self.wall_ns)

    @property
    def lengthening(self) -> float:
        """How much longer its median is than it would have been with the time off the CPU taken out."""
        wall = np.asarray(self.wall_ns, np.float64)
        alone = wall - np.minimum(np.asarray(self.off_cpu_ns, np.float64), _MOST * wall)
        return float(np.median(wall) / max(np.median(alone), 1.0))


class VariantCalls(NamedTuple):
    """The measured calls of one variant.

    Attributes:
        name: of the variant.
        processes: those whose time off the CPU was recorded.
        unrecorded: how many have no such record.
    """

    name: str
    processes: Sequence[ProcessCalls]
    unrecorded: int = 0

    @property
    def lengthening(self) -> float:
        """Geometric mean of its processes'; at least one."""
        return math.exp(float(np.mean([math.log(process.lengthening) for process in self.processes])))

    @property
    def disturbed(self) -> float:
        """Share of its processes that were disturbed."""
        return sum(process.disturbed for process in self.processes) / len(self.processes)


def examine_disturbance(variants: Sequence[VariantCalls]) -> list[Message]:
    """What was taken from the inferences.

    Args:
        variants: whose figures are judged.
    """
    own = CHECKS if len(variants) > 1 else (preemption,)
    return asked(own, variants)


@declare_rule(OFF_CPU=OFF_CPU, MARKED=MARKED, DISTURBED=DISTURBED, DISTURBED_PROCESSES=DISTURBED_PROCESSES)
def preemption(variants: Sequence[VariantCalls]) -> Message:
    """Inferences during which the process did not run, and what ran instead."""
    check = "preemption"
    told = [variant for variant in variants if variant.processes]
    if not told or any(variant.unrecorded for variant in variants):
        return not_checked(check, "how long inferences were off the CPU was not recorded")
    processes = [process for variant in told for process in variant.processes]
    calls, marked = sum(len(one.wall_ns) for one in processes), sum(one.marked for one in processes)
    counted = f"{marked:,} of {calls:,} inferences preempted{_stolen(processes)}"
    worst = max(variant.disturbed for variant in told)
    grade = beyond(worst, DISTURBED_PROCESSES) or (Grade.USABLE if marked > MARKED * calls else None)
    if grade is None:
        return passed(check, counted)
    lost = sum(sum(one.off_cpu_ns) for one in processes) / max(sum(sum(one.wall_ns) for one in processes), 1)
    figures = f"{_cause(processes)} took {share_text(lost)} of the CPU time of these rounds ({counted})"
    return concern(check, grade, f"{figures}; {_kept(processes)}", _ALONE)


@declare_rule(UNEVEN=UNEVEN)
def even_contention(variants: Sequence[VariantCalls]) -> Message:
    """Contention that hits one variant more than another, which interleaving cannot cancel."""
    check = "even_contention"
    told = [variant for variant in variants if variant.processes]
    if len(told) < len(variants) or any(variant.unrecorded for variant in variants):
        return not_checked(check, "whether contention hit all variants alike was not recorded")
    least, most = (choose(told, key=lambda one: one.lengthening) for choose in (min, max))
    shift = most.lengthening / least.lengthening
    lengths = " and of ".join(f"{one.name} {ratio_text(one.lengthening)}" for one in (most, least))
    grade = beyond(shift - 1, UNEVEN)
    if grade is None:
        return passed(check, f"contention made the medians of {lengths} as long, in all variants alike")
    return concern(
        check,
        grade,
        f"contention made the medians of {lengths} as long, which interleaving cannot cancel",
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
    return "waiting, for storage or for another program,"


def _kept(processes: Sequence[ProcessCalls]) -> str:
    """What was done about the marked inferences."""
    disturbed = sum(process.disturbed for process in processes)
    if not disturbed:
        return "none excluded: medians of processes tolerate that many"
    return f"none excluded; {disturbed} of {len(processes)} processes are disturbed"
