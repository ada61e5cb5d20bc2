"""What is known of a model of the zoo after it was tried: one record a model and number type, and all of a run."""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """Why a model did not come through.

    Attributes:
        step: the command that failed: export, preflight or profile.
        problem: what it said, without paths.
    """

    step: str
    problem: str


class Counted(msgspec.Struct, frozen=True):
    """Delegate calls, operators inside of them and portable operators, over all methods.

    Attributes:
        calls: of delegates.
        delegated: operators that the delegates run.
        portable: operators that the runtime's own kernels run.
    """

    calls: int
    delegated: int
    portable: int


class Export(msgspec.Struct, frozen=True):
    """What the export said.

    Attributes:
        program_bytes: size of the program.
        error: largest against PyTorch in fp32, relative to the largest output.
        tolerance: that it had to keep.
        operators: delegated and portable.
        macs: multiply-accumulates whose work is known.
        delegated_macs: of those, the delegates'.
    """

    program_bytes: int
    error: float
    tolerance: float
    operators: Counted
    macs: int
    delegated_macs: int


class Run(msgspec.Struct, frozen=True):
    """What runs with acceleration on and off showed.

    Attributes:
        measured: the same of the trace.
        exact_operators: of the delegates' operators, the ones that are attributed exactly.
        delegate_ns: time that operators of delegates take in an inference, in nanoseconds.
        exact_ns: of that, what is attributed exactly.
        split: sum of the split of the latency, over the latency.
        framework: share of the latency that no operator claims.
        portable: share of the latency that portable operators take.
        forecast: that share as preflight predicts it, by nominal rates; null where it gives none.
        agree: outputs with acceleration off are those with it on; null where this was not compared.
        peak_bytes: largest resident size of a measured process.
        problems: why delegates are attributed less than exactly.
    """

    measured: Counted
    exact_operators: int
    delegate_ns: float
    exact_ns: float
    split: float
    framework: float
    portable: float
    forecast: float | None
    agree: bool | None
    peak_bytes: int
    problems: list[str]

    @property
    def exact(self) -> float | None:
        """Share of the delegates' time that is attributed exactly; None where no operator took a microsecond."""
        return self.exact_ns / self.delegate_ns if self.delegate_ns else None


class Record(msgspec.Struct, frozen=True):
    """One model in one number type.

    Attributes:
        name: of the model in the catalogue.
        dtype: number type.
        seconds: that all of it took.
        export: what the export said; null where it failed.
        preflight: what preflight counts; null likewise.
        run: what the runs showed; null where any of it failed.
        failure: why, and at which step; null where all went well.
    """

    name: str
    dtype: str
    seconds: float
    export: Export | None = None
    preflight: Counted | None = None
    run: Run | None = None
    failure: Failure | None = None


class Results(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.zoo/1"):
    """A whole run.

    Attributes:
        date: on which it was written, as YYYY-MM-DD.
        machine: what it ran on, in words.
        versions: of the packages.
        records: in the order of the catalogue.
    """

    date: str
    machine: str
    versions: dict[str, str]
    records: list[Record]
