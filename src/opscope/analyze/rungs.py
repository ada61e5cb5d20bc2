"""The questions of the evidence ladder, and what is known of a variant to answer them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.kernel_symbols import IsaClass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analyze.compare import Comparison
    from opscope.analyze.findings import Place
    from opscope.analyze.kernel_sources import KernelSource
    from opscope.analyze.operators import Operator
    from opscope.program.eligibility import Eligibility
    from opscope.program.kernel_calls import OperatorCalls


class Rung(str, enum.Enum):
    """A question, in the order in which they build on each other."""

    ELIGIBLE = "eligible"
    IN_BINARY = "in binary"
    SELECTED = "selected"
    EXECUTED = "executed"
    FASTER = "faster"


class Answer(str, enum.Enum):
    """The answer to one question."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "not known here"


class Step(msgspec.Struct, frozen=True):
    """One rung.

    Attributes:
        rung: the question.
        answer: to it.
        detail: what the answer rests on, or why there is none.
        source: where that is from; null without a source.
        isa: the strongest instruction set of kernels that ran; null where none is known to have run.
    """

    rung: Rung
    answer: Answer
    detail: str
    source: str | None = None
    isa: IsaClass | None = None


class Known(NamedTuple):
    """What is known of one variant.

    Attributes:
        variant: its name.
        threads: size of its thread pool.
        operators: of its analysis.
        sme: whether SME can run an operator, where the program tells.
        machine: architecture as the operating system names it; None where it is not known.
        features: feature groups that the CPU has and that are on; likewise.
        emulated: whether an emulator ran it, so that times mean nothing.
        switched: groups that the experiment switches off elsewhere; empty when none is.
        exported: kernels that the library exports; None where nobody looked.
        calls: of every operator, by a counter; None where nothing was counted.
        problem: why calls could not be given to operators; None when they could.
        counted: everything that was counted in the process.
        sampled: what a profiler saw in it.
        registered: what the library listed in it.
        comparison: with the baseline, where this variant is the candidate.
    """

    variant: str
    threads: int | None
    operators: Sequence[Operator]
    sme: Mapping[Place, Eligibility]
    machine: str | None = None
    features: frozenset[str] | None = None
    emulated: bool = False
    switched: tuple[str, ...] = ()
    exported: frozenset[str] | None = None
    calls: Mapping[Place, OperatorCalls] | None = None
    problem: str | None = None
    counted: KernelSource | None = None
    sampled: KernelSource | None = None
    registered: KernelSource | None = None
    comparison: Comparison | None = None

    @property
    def arm(self) -> bool:
        """Whether the questions are about SME: on Arm, and where nothing says otherwise for packed number types."""
        return self.machine in {"aarch64", "arm64"}

    @property
    def about(self) -> str:
        """The instruction sets in question."""
        return "SME and SME2" if self.arm else ", ".join(self.switched) or "acceleration"
