"""A runtime that is made up, in one file: what a new one has to bring, and nothing else.

Its programs are JSON: sizes of the one input, and operators that are applied to it one after the other. A run computes
them with numpy; how long it took is made up, so that tests need no clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from fakes import FakeTarget
from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.operators import OperatorFacts
from opscope.bundle.manifest import Measurement, Variant
from opscope.core.errors import FeatureError, TraceFormatError
from opscope.core.table import Clock, EventTable, Scope
from opscope.core.table.places import OperatorKey
from opscope.experiment.protocol import Job, ProbeAnswer
from opscope.experiment.target import Capabilities, JobOutcome
from opscope.experiment.tensors import random_inputs
from opscope.program.operators.kinds import Attribution
from opscope.program.structure.dtypes import NumberType
from opscope.program.structure.exported import Signature, Tensor
from opscope.program.structure.plan import Dynamism, PlannedTensor
from opscope.readers.outputs import values_sha256
from opscope.runtimes.attribution import AttributedSide
from opscope.runtimes.runtime import Runtime
from opscope.runtimes.side import Side

OPERATORS = {
    "Relu": lambda values: np.maximum(values, 0),
    "Softmax": lambda values: np.exp(values) / np.exp(values).sum(),
    "Neg": np.negative,
}
NANOSECONDS = {"Relu": 20_000, "Softmax": 60_000, "Neg": 10_000}
"""How long an operator takes; a call takes ten microseconds more."""
TRACE = "trace.made.json"


class MadeReader:
    """Reads the traces of the runtime: names of operators of each call, in their order."""

    name: ClassVar[str] = "made-trace"

    def sniff(self, head: bytes) -> bool:
        """By the first key."""
        return head.startswith(b'{"made-trace"')

    def read(self, data: bytes, path: Path) -> EventTable:
        """A call and its operators below it, one behind the other."""
        try:
            calls = json.loads(data)["made-trace"]
        except ValueError as error:
            raise TraceFormatError(f"not a made trace: {error}", where=path) from error
        rows: list[dict[str, object]] = []
        for run, names in enumerate(calls):
            root, start = len(rows), run * 1_000_000
            same = {"run": run, "method": "main"}
            whole = {"start": start, "duration": wall_ns(names), "parent": -1, "instruction": -1}
            rows.append({**same, **whole, "scope": Scope.EXECUTE.value, "name": "call"})
            for number, name in enumerate(names):
                placed = {"start": start, "duration": NANOSECONDS[name], "parent": root, "instruction": number}
                rows.append({**same, **placed, "scope": Scope.KERNEL.value, "name": f"{name}: {number}"})
                start += NANOSECONDS[name]
        return EventTable.build({column: [row[column] for row in rows] for column in rows[0]}, Clock.NS)


def wall_ns(names: Sequence[str]) -> int:
    """How long a call of these operators takes."""
    return 10_000 + sum(NANOSECONDS[name] for name in names)


class MadeTarget(FakeTarget):
    """Runs its programs in this process."""

    def capabilities(self) -> Capabilities:
        """The name of its traces."""
        return Capabilities(trace=TRACE)

    def probe(self) -> ProbeAnswer:
        """Nothing can be switched off."""
        raise FeatureError("the made runtime chooses its kernels when it is built")

    def ceilings(self, variant: Variant) -> None:
        """It measures no ceilings."""

    def execute(self, job: Job, directory: Path) -> JobOutcome:
        """Compute, and leave the trace and the outputs."""
        program = json.loads(Path(job.program).read_text())
        inputs = [Tensor(program["sizes"], "float32")]
        (values,) = random_inputs(inputs, job.seed)
        for name in program["operators"]:
            values = np.asarray(OPERATORS[name](values), np.float32)
        if job.traced:
            (directory / TRACE).write_text(json.dumps({"made-trace": [program["operators"]] * job.inferences}))
        np.savez(directory / "outputs.npz", values)
        wall, digest = [wall_ns(program["operators"])] * job.inferences, values_sha256([values])
        return JobOutcome(
            Measurement(None, inputs, inputs, digest, wall, 1_000, 1_000, 1 << 20, {"made": "1"}, threads=job.threads)
        )


class MadeRuntime(Runtime):
    """What opscope is told of the runtime."""

    name, title, suffixes = "made", "Made", (".made",)
    readers: ClassVar = {MadeReader.name: ("made_runtime", "MadeReader")}
    program_hint = "--program MODEL.made adds shapes"
    has_delegates = has_model = False

    def target_here(self) -> MadeTarget:
        """In this process."""
        return MadeTarget()

    def version(self) -> str:
        """Of this file."""
        return "1"

    def signatures(self, program: Path) -> Sequence[Signature]:
        """One function of one input."""
        sizes = tuple(json.loads(program.read_text())["sizes"])
        tensor = PlannedTensor(
            NumberType("float32", 32), sizes, (), Dynamism.STATIC, 0, planned=False, name="x", external=False
        )
        return (Signature("main", (tensor,), (msgspec.structs.replace(tensor, name="y"),)),)

    def attributed(self, side: Side, program: Path, record: Path | None) -> AttributedSide:  # noqa: ARG002 - it has none
        """Operators by their numbers, which stand in the trace."""
        told = json.loads(program.read_text())
        facts = OperatorFacts(attribution=Attribution.EXACT, shape=tuple(told["sizes"]), dtype="float32")
        operators = {OperatorKey("main", number, 0): facts for number in range(len(told["operators"]))}
        return AttributedSide(side, Attributions(operators, [], None, [], {}, {}))
