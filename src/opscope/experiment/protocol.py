"""Messages between the runner and its child process: JSON files, typed on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from opscope.bundle.manifest import Measurement, PlannedInput, Variant
from opscope.hosts.host import PRINTED, ProcessSettings
from opscope.program.ceilings import Ceilings
from opscope.program.structure.exported import Tensor

if TYPE_CHECKING:
    from opscope.core.errors import OpscopeError

Result = TypeVar("Result")


class ProbeAnswer(msgspec.Struct, frozen=True):
    """Features of the CPU as the runtime sees them."""

    arch: str  # architecture, as in `opscope.machine.isa`
    fields: list[str]  # set fields of `cpuinfo_isa`
    struct_size: int | None  # size of `cpuinfo_isa`; null where the library's symbol table states none
    layout_size: int  # size of the layout that was proved
    offsets: dict[str, int]  # field -> byte offset in it, of all fields whose place is certain
    # fields that libraries set because they know the cores: the mechanism `hwcap` cannot switch them off
    fixed: list[str] = []
    needed: list[str] = []  # fields without which the runtime runs no model


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Error that ended a process of opscope, by its parts."""

    problem: str  # its sentence
    hint: str | None  # what to do next; null for nothing
    kind: str  # name of its class
    where: str | None = None  # the file or option that it concerns; null for none

    @classmethod
    def of(cls, error: OpscopeError) -> Refusal:
        """Return the parts of an error."""
        return cls(error.problem, error.hint, type(error).__name__, error.where)


class Job(msgspec.Struct, frozen=True):
    """Repetition to run, in the target's own terms."""

    program: str  # the .pte on this machine
    # how its process runs: with its number of threads stated, and the switch's mechanism; without one the switch is not
    # used, and nothing is proved about it
    variant: Variant
    inferences: int  # calls of methods, warm-up included
    seed: int  # seed of the inputs
    timeout_seconds: float  # after this the process and all it started are ended
    traced: bool = True  # with event tracing; without it no trace is left, and the calls are timed all the same
    # library on this machine that counts calls of kernels, to preload into the process; the counts are left
    # beside the trace as `kernels.counts`. Such a job is never timed
    counter: str | None = None
    # methods to call, over and over in this order; empty for `forward`, or for the only one there is
    calls: tuple[str, ...] = ()
    # of the methods, one method after the other; empty: random tensors of the sizes that they declare
    inputs: tuple[PlannedInput, ...] = ()
    # .npz on this machine with the tensors among `inputs`, `arr_` and the number of each; None: they are drawn
    # from the seed
    values: str | None = None
    data: str | None = None  # .ptd on this machine with weights that the program keeps apart; None for none
    warmup: int = 0  # first inferences, over which the use of the system is not counted
    process: ProcessSettings = ProcessSettings()

    @property
    def clear(self) -> list[str] | None:
        """Fields of ``cpuinfo_isa`` to clear; None if the switch is not used."""
        return self.variant.clear

    @property
    def threads(self) -> int:
        """Size of the thread pool; 0 for the runtime's own choice."""
        return 1 if self.variant.threads is None else self.variant.threads


AS_IT_IS = Variant("plain", role=None, ablated=None, cleared=[], threads=1)
"""Variant with one thread, and the CPU unchanged."""

SETTINGS_OF_A_JOB = {
    "affinity": "affinity",
    "calls": "methods",
    "inputs": "input",
    "values": "inputs",
    "data": "data",
    "delegate": "delegate",
    "options": "session_options",
}
"""Fields of a :class:`Job` or its variant that not every runner honours, and the setting that each comes from."""


class ProgramSides(msgspec.Struct, frozen=True):
    """Inputs and outputs of a program, as the process that requests a run knows them."""

    method: str  # method that is called
    tensors: list[Tensor]  # its inputs as the program declares them
    inputs: list[str] | None  # names of tensors, in this order; null: in the order of the runtime
    outputs: list[str] | None  # names of its outputs, in this order; null: in the order of the runtime


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to a process to run a job."""

    job: Job  # its paths are those of the machine that it runs on
    trace: str | None  # where to write the trace; null for a run without event tracing
    # where to write the outputs of the last call of each method, as .npz; null when they are not wanted
    outputs: str | None
    answer: str  # where to write the RunAnswer
    kernels: tuple[str, ...] = ()  # modules to import, which register further kernels
    sides: ProgramSides | None = None  # for a runtime whose processes do not read the program themselves
    recorder: str | None = None  # library that times operators for a runtime without a profiler; null for none
    # of the switch that the process was started with, see switch; null: fields of `cpuinfo_isa` are cleared
    record: str | None = None


class CeilingsRequest(msgspec.Struct, frozen=True):
    """Request for the ceilings of a machine without some features."""

    cleared: list[str]  # fields of `cpuinfo_isa` whose instructions do not count
    threads: int  # threads that measure at once
    seconds: float  # how long measuring should take
    answer: str  # where to write the CeilingsAnswer
    again: Ceilings | None = None  # ceilings to measure again, and no others; null for all


class ChildAnswer(msgspec.Struct, Generic[Result], frozen=True):
    """Answer to a request: a result, or an error."""

    result: Result | None = None  # null when there was an error
    error: str | None = None  # the error's sentence; null when there was none
    kind: str = "exit"  # of the error: `mask`, `storage` or `exit`


RunAnswer: TypeAlias = ChildAnswer[Measurement]
CeilingsAnswer: TypeAlias = ChildAnswer[Ceilings]

TRACE, OUTPUTS, LOG = "trace.etdump", "outputs.npz", PRINTED
