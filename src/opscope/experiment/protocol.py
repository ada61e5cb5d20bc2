"""What the runner asks of its child process and what it answers: JSON files, typed on both sides."""

from __future__ import annotations

from typing import Any

import msgspec

from opscope.bundle.manifest import MaskProof, Measurement, Mechanism, PlannedInput
from opscope.bundle.settings import DelegateName
from opscope.hosts.host import PRINTED
from opscope.program.ceilings.ceilings import Ceilings


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The CPU's features as the runtime sees them.

    Attributes:
        arch: architecture, as in ``opscope.machine.isa``.
        fields: set fields of ``cpuinfo_isa``.
        struct_size: of ``cpuinfo_isa``; null where the library's symbol table states none.
        layout_size: of the layout that was proved.
        offsets: field -> byte offset in it, of all fields whose place is certain.
        fixed: fields that libraries set because they know the cores: the mechanism ``hwcap`` cannot switch them off.
    """

    arch: str
    fields: list[str]
    struct_size: int | None
    layout_size: int
    offsets: dict[str, int]
    fixed: list[str] = []


class ProbeRefusal(msgspec.Struct, frozen=True):
    """Why features cannot be switched, or asked for: the parts of an error.

    Attributes:
        problem: its sentence.
        where: the file that it concerns; null for none.
        hint: what to do next; null likewise.
        missing: whether something is not installed, rather than not provable.
    """

    problem: str
    where: str | None
    hint: str | None
    missing: bool = False


class Job(msgspec.Struct, frozen=True):
    """One repetition to run, in the target's own terms.

    Attributes:
        program: the .pte on this machine.
        clear: fields of ``cpuinfo_isa`` to clear; None: the switch is not used, and nothing is proved about it.
        threads: size of the thread pool.
        inferences: calls of methods, warm-up included.
        seed: of the inputs.
        timeout_seconds: after this the process and all it started are ended.
        traced: with event tracing; without it no trace is left, and the calls are timed all the same.
        affinity: CPUs to stay on; empty for all.
        counter: library on this machine that counts calls of kernels, to preload into the process; the counts
            are left beside the trace as ``kernels.counts``. Such a job is never timed.
        calls: methods to call, over and over in this order; empty for ``forward``, or for the only one there is.
        inputs: of the methods, one method after the other; empty: random tensors of the sizes that they declare.
        values: .npz on this machine with the tensors among ``inputs``, ``arr_`` and the number of each; None: they are
            drawn from the seed.
        data: .ptd on this machine with weights that the program keeps apart; None for none.
        warmup: of the inferences, the first ones, over which the use of the system is not counted.
        switch: mechanism that switches the fields off; without a meaning where ``clear`` is None.
        delegate: ``xnnpack`` or ``none``, for a runtime that can do without its delegate; None: as the runtime does.
        options: of a session of ONNX Runtime; None for none.
        nice: how far the process gives way to others, as of nice(1).
    """

    program: str
    clear: list[str] | None
    threads: int
    inferences: int
    seed: int
    timeout_seconds: float
    traced: bool = True
    affinity: tuple[int, ...] = ()
    counter: str | None = None
    calls: tuple[str, ...] = ()
    inputs: tuple[PlannedInput, ...] = ()
    values: str | None = None
    data: str | None = None
    warmup: int = 0
    switch: Mechanism = Mechanism.CPUINFO
    delegate: DelegateName | None = None
    options: dict[str, str] | None = None
    nice: int = 0


class RunRequest(Job, frozen=True, kw_only=True):
    """A job as its process is asked for it: paths are those of the machine that it runs on.

    Attributes:
        trace: where to write the trace; null for a run without event tracing.
        outputs: where to write the outputs of the last call of each method, as .npz; null when they are not wanted.
        answer: where to write the RunAnswer.
        kernels: modules to import, which register further kernels.
        record: of the switch that the process was started with, see :mod:`opscope.machine.switch.switch`; null: fields
            of ``cpuinfo_isa`` are cleared.
    """

    trace: str | None
    outputs: str | None
    answer: str
    kernels: tuple[str, ...] = ()
    record: str | None = None

    @classmethod
    def of(cls, job: Job, **places: Any) -> RunRequest:  # noqa: ANN401 - of any field
        """A job with what its process must know besides, and paths in place of those of this machine."""
        return cls(**(msgspec.structs.asdict(job) | places))


class RunAnswer(msgspec.Struct, frozen=True):
    """What became of a request: a measurement, or an error.

    Attributes:
        measurement: null when there was an error.
        error: the error's sentence; null when there was none.
        kind: of the error: ``mask``, ``storage`` or ``exit``.
    """

    measurement: Measurement | None = None
    error: str | None = None
    kind: str = "exit"


class CeilingsRequest(msgspec.Struct, frozen=True):
    """The ceilings of one variant.

    Attributes:
        clear: fields of ``cpuinfo_isa`` to clear before the backend is loaded; null: the switch is not used.
        threads: size of the thread pool.
        seconds: how long measuring should take.
        answer: where to write the CeilingsResponse.
        again: ceilings to measure again, in the very shapes that they were seen in, and no others; null for all.
        record: file with the counters of a mechanism that works from outside of the process; null without one.
    """

    clear: list[str] | None
    threads: int
    seconds: float
    answer: str
    again: Ceilings | None = None
    record: str | None = None


class CeilingsResponse(msgspec.Struct, frozen=True):
    """What became of such a request: ceilings with the proof that the features were off, or an error.

    Attributes:
        ceilings: null when there was an error.
        mask: the proof; null likewise.
        error: the error's sentence; null when there was none.
        kind: of the error: ``mask`` or ``exit``.
    """

    ceilings: Ceilings | None = None
    mask: MaskProof | None = None
    error: str | None = None
    kind: str = "exit"


TRACE, OUTPUTS, LOG = "trace.etdump", "outputs.npz", PRINTED
