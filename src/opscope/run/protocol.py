"""What the runner asks of its child process and what it answers: JSON files, typed on both sides."""

from __future__ import annotations

import msgspec

from opscope.bundle.manifest import MaskProof, Measurement
from opscope.program.roofs import Roofs


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The CPU's features as the runtime sees them.

    Attributes:
        arch: architecture, as in ``opscope.run.isa``.
        fields: set fields of ``cpuinfo_isa``.
        struct_size: of ``cpuinfo_isa``; null where the library's symbol table states none.
    """

    arch: str
    fields: list[str]
    struct_size: int | None


class RunRequest(msgspec.Struct, frozen=True):
    """One repetition.

    Attributes:
        program: the .pte.
        calls: methods to call, over and over in this order; empty for ``forward``, or for the only one there is.
        clear: fields of ``cpuinfo_isa`` to clear before the backend is loaded.
        threads: size of the thread pool.
        inferences: calls of methods, warm-up included.
        seed: of the random inputs.
        trace: where to write the ETDump; null for a run without event tracing.
        outputs: where to write the outputs of the last call of each method, as .npz; null when they are not wanted.
        answer: where to write the RunAnswer.
        affinity: CPUs to stay on; empty for all.
    """

    program: str
    calls: tuple[str, ...]
    clear: list[str]
    threads: int
    inferences: int
    seed: int
    trace: str | None
    outputs: str | None
    answer: str
    affinity: tuple[int, ...] = ()


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


class RoofsRequest(msgspec.Struct, frozen=True):
    """The ceilings of one variant.

    Attributes:
        clear: fields of ``cpuinfo_isa`` to clear before the backend is loaded.
        threads: size of the thread pool.
        seconds: how long measuring should take.
        answer: where to write the RoofsAnswer.
    """

    clear: list[str]
    threads: int
    seconds: float
    answer: str


class RoofsAnswer(msgspec.Struct, frozen=True):
    """What became of such a request: ceilings with the proof that the features were off, or an error.

    Attributes:
        roofs: null when there was an error.
        mask: the proof; null likewise.
        error: the error's sentence; null when there was none.
        kind: of the error: ``mask`` or ``exit``.
    """

    roofs: Roofs | None = None
    mask: MaskProof | None = None
    error: str | None = None
    kind: str = "exit"
