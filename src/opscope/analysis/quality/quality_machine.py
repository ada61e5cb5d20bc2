"""What the machine's state says about the quality of a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.findings.message import Grade, Message, concern, not_checked, passed
from opscope.analysis.findings.rule import ask_rules, declare_rule
from opscope.analysis.quality.quality import grade_by_limits, graded_message
from opscope.core.units import counted_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable

# Where these come from: docs/design/quality.md.
LOAD = (1.0, 2.0)
CLOCK = 1.1
HOT = 85.0
THROTTLING = 2
"""Android's PowerManager.THERMAL_STATUS_MODERATE."""
FAILED = (0.0, 0.5)
STEAL = (0.01, 0.10)
EMULATED = "the CPU was emulated: results are valid, timings do not represent any device"
ON_THE_DEVICE = "measure times on a device (--target ssh:HOST, adb, or on the device itself)"


class Circumstances(NamedTuple):
    """State of the machine during an experiment; None where it could not be read."""

    known: bool  # whether the machine is known at all
    usable_cpus: tuple[int, int] | None  # smallest and largest number of CPUs that could be used
    load: float | None  # highest load average
    clock_mhz: tuple[float, float] | None  # lowest and highest clock frequency
    temperature: float | None  # highest, in degrees Celsius
    governor: str | None  # governor of the clock frequency
    virtual: bool | None  # whether it is a virtual machine
    largest_pool: int | None  # largest thread pool of all variants
    planned: int  # repetitions that were planned
    failed: int  # how many failed for good
    missing: int  # how many were not run
    emulated: bool = False  # whether the CPU was an emulated one
    # worst that an Android device told, from 0 (none) to 6 (shutdown); None where none was told
    thermal_status: int | None = None
    # lowest and highest limit of the same CPU's clock, of the one whose limit fell most
    limit_mhz: tuple[float, float] | None = None
    speed_limit: float | None = None  # macOS: lowest share of their speed that the CPUs were held to for heat
    low_power: bool | None = None  # macOS: whether the low power mode was on at any time
    steal: float | None = None  # part of the time of the CPUs that a hypervisor took, while inferences were measured
    # whether the machine was kept from other runs of opscope, as far as these knew; None where that is not known
    locked: bool | None = None
    beside: tuple[str, ...] = ()  # other runs of opscope that measured there at the same time
    off_cpu_recorded: bool = False  # whether every process tells how long its calls were kept off the CPU


def examine_machine(circumstances: Circumstances) -> list[Message]:
    """Check what the machine and the course of the experiment say about the quality of the figures."""
    if circumstances.emulated:
        return [concern("real_cpu", Grade.DO_NOT_TRUST, EMULATED, ON_THE_DEVICE), *ask_rules([complete], circumstances)]
    if not circumstances.known:
        return [*ask_rules([complete], circumstances), not_checked("machine", "the machine and its load are not known")]
    throttling = (
        circumstances.thermal_status,
        circumstances.limit_mhz,
        circumstances.speed_limit,
        circumstances.low_power,
    )
    optional_checks = [not_throttled] if any(state is not None for state in throttling) else []
    optional_checks += [one_run] if circumstances.locked is not None or circumstances.beside else []
    return ask_rules([*CHECKS, *optional_checks], circumstances)


@declare_rule(FAILED=FAILED)
def complete(circumstances: Circumstances) -> Message:
    """Repetitions that failed or were not run."""
    check = "complete"
    if not circumstances.failed and not circumstances.missing:
        return passed(check, f"all {counted_text(circumstances.planned, 'repetition')} succeeded")
    parts = [
        f"{circumstances.failed} failed" * bool(circumstances.failed),
        f"{circumstances.missing} were not run" * bool(circumstances.missing),
    ]
    text = f"of {counted_text(circumstances.planned, 'repetition')} {' and '.join(part for part in parts if part)}"
    grade = (
        grade_by_limits((circumstances.failed + circumstances.missing) / max(circumstances.planned, 1), FAILED)
        or Grade.USABLE
    )
    return concern(check, grade, text, "see what failed; --resume runs what is missing")


@declare_rule(LOAD=LOAD)
def idle(circumstances: Circumstances) -> Message:
    """Other programs that were running; their effect on the inferences is a check of its own if it was recorded."""
    check = "idle"
    if circumstances.load is None or circumstances.usable_cpus is None:
        return not_checked(check, "the load of the machine cannot be read")
    cpus = circumstances.usable_cpus[0]
    figures = f"the load average reached {circumstances.load:.1f} on {counted_text(cpus, 'CPU')}"
    grade = grade_by_limits(circumstances.load / cpus, LOAD)
    if circumstances.off_cpu_recorded and grade is Grade.DO_NOT_TRUST:
        grade = Grade.USABLE
    return graded_message(check, grade, figures, "close other programs and rerun", ": other programs were running")


@declare_rule()
def same_cpus(circumstances: Circumstances) -> Message:
    """CPUs that became unavailable during the run."""
    check = "same_cpus"
    if circumstances.usable_cpus is None:
        return not_checked(check, "the number of usable CPUs cannot be read")
    low, high = circumstances.usable_cpus
    if low == high:
        return passed(check, f"{counted_text(low, 'CPU')} available throughout")
    problem = f"the CPUs that could be used changed during the run, between {low} and {high}"
    return concern(check, Grade.DO_NOT_TRUST, problem, "rerun on CPUs that stay available (--affinity)")


@declare_rule()
def threads_fit(circumstances: Circumstances) -> Message:
    """As many threads as CPUs, or more."""
    check = "threads_fit"
    if circumstances.largest_pool is None or circumstances.usable_cpus is None:
        return not_checked(check, "the number of threads or of CPUs is not known")
    cpus = circumstances.usable_cpus[0]
    figures = f"{counted_text(circumstances.largest_pool, 'thread')} on {counted_text(cpus, 'CPU')}"
    if circumstances.largest_pool < cpus or circumstances.largest_pool == 1:
        return passed(check, figures)
    if circumstances.largest_pool == cpus:
        return concern(check, Grade.USABLE, f"{figures}: any other program takes one of them", "use fewer --threads")
    return concern(check, Grade.DO_NOT_TRUST, f"{figures}: threads compete for CPUs", "use fewer --threads")


@declare_rule(CLOCK=CLOCK)
def steady_clock(circumstances: Circumstances) -> Message:
    """A clock frequency that varied, or could have."""
    check = "steady_clock"
    if circumstances.clock_mhz is not None and circumstances.clock_mhz[1] > CLOCK * circumstances.clock_mhz[0]:
        low, high = circumstances.clock_mhz
        problem = f"the clock frequency varied between {low:.0f} and {high:.0f} MHz"
        return concern(check, Grade.USABLE, problem, "set the governor to performance, or cool down between rounds")
    if circumstances.governor is not None and circumstances.governor != "performance":
        problem = f"the governor is {circumstances.governor}: it follows the load"
        return concern(check, Grade.USABLE, problem, "set the governor to performance")
    if circumstances.clock_mhz is None and circumstances.governor is None:
        return not_checked(check, "the clock frequency cannot be read here, so throttling would go unnoticed")
    if circumstances.governor is not None:
        return passed(check, "the governor is performance")
    return passed(check, "the clock frequency was stable")


@declare_rule(HOT=HOT)
def cool(circumstances: Circumstances) -> Message:
    """Temperatures at which clocks are throttled."""
    check = "cool"
    if circumstances.temperature is None:
        return not_checked(check, "the temperature cannot be read here")
    figures = f"the temperature reached {circumstances.temperature:.0f} °C"
    grade = None if circumstances.temperature <= HOT else Grade.USABLE
    return graded_message(check, grade, figures, "cool down between rounds", ": the clock may have been throttled")


@declare_rule(THROTTLING=THROTTLING)
def not_throttled(circumstances: Circumstances) -> Message:
    """Throttling that an Android device or macOS reports; checked only on machines that report it."""
    check = "not_throttled"
    if circumstances.thermal_status is not None and circumstances.thermal_status >= THROTTLING:
        text = f"the device reported thermal status {circumstances.thermal_status}: it throttles"
        return concern(check, Grade.DO_NOT_TRUST, text, "let it cool out of its case, and pause between processes")
    if circumstances.limit_mhz is not None and circumstances.limit_mhz[0] < circumstances.limit_mhz[1]:
        low, high = circumstances.limit_mhz
        text = f"a CPU's clock limit fell from {high:.0f} to {low:.0f} MHz"
        return concern(check, Grade.USABLE, text, "let it cool between rounds, or plug it in")
    if circumstances.speed_limit is not None and circumstances.speed_limit < 1:
        text = f"macOS held the CPUs to {share_text(circumstances.speed_limit)} of their speed for heat"
        return concern(check, Grade.DO_NOT_TRUST, text, "let it cool, and pause between processes")
    if circumstances.low_power:
        return concern(
            check, Grade.USABLE, "the low power mode of macOS was on", "switch it off: pmset -a lowpowermode 0"
        )
    return passed(check, "the device reported no throttling")


@declare_rule(STEAL=STEAL)
def alone(circumstances: Circumstances) -> Message:
    """Other guests of the same machine, if the hypervisor reports stolen time."""
    check = "alone"
    if circumstances.steal:
        figures = f"the hypervisor took {share_text(circumstances.steal)} of the CPU time"
        return graded_message(
            check, grade_by_limits(circumstances.steal, STEAL), figures, "measure when the host is quiet"
        )
    if circumstances.virtual:
        return not_checked(check, "this is a virtual machine: other guests are not visible")
    if circumstances.virtual is None:
        return not_checked(check, "whether this is a virtual machine cannot be read")
    return passed(check, "this is not a virtual machine")


@declare_rule()
def one_run(circumstances: Circumstances) -> Message:
    """Other opscope runs that measured on the machine at the same time; checked only if the machine has a lock."""
    check = "one_run"
    if circumstances.beside:
        text = f"measured at the same time as another run, by {'; '.join(circumstances.beside)}"
        return concern(check, Grade.DO_NOT_TRUST, text, "run them one after another; --lock fail refuses a second run")
    if not circumstances.locked:
        return not_checked(check, "the machine has no lock, so another run would go unnoticed")
    return passed(check, "no other run of opscope measured on the machine")


CHECKS: tuple[Callable[[Circumstances], Message], ...] = (
    complete,
    idle,
    same_cpus,
    threads_fit,
    steady_clock,
    cool,
    alone,
)
