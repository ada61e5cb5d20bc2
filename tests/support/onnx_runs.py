"""ONNX models that run for a test: their operators as opscope has them, and their work as the plain counter has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from onnx_counter import counted_macs
from opscope.api import analyze
from opscope.bundle.manifest import PlannedInput
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.program.operators.kinds import Attribution
from opscope.runtimes.onnxruntime.graph import GRAPH, read_session_graph
from opscope.runtimes.onnxruntime.target import TRACE, onnxruntime_here

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class AttributedRun:
    """A model that ran in a directory, and what is known of its operators."""

    def __init__(self, directory: Path, program: Path, inputs: Mapping[str, np.ndarray]) -> None:
        np.savez(directory / "inputs.npz", *inputs.values())
        planned = tuple(PlannedInput(list(one.shape), str(one.dtype)) for one in inputs.values())
        values = str(directory / "inputs.npz")
        asked = Job(str(program), AS_IT_IS, 4, 7, 300.0, traced=True, warmup=1, inputs=planned, values=values)
        outcome = onnxruntime_here().execute(asked, directory)
        assert outcome.measurement is not None, outcome.failure
        operators = analyze(directory / TRACE, program=program).operators
        self.program = program
        self.operators = [one for one in operators if one.kind != "framework"]
        self.graph = read_session_graph(directory / GRAPH)
        self.macs = sum(one.macs or 0 for one in self.operators)
        self.counted = sum(counted_macs(program, inputs).values())

    @property
    def exact(self) -> float:
        """Share of the time of operators that is known exactly."""
        known = sum(one.traced_ns for one in self.operators if one.attribution is Attribution.EXACT)
        return known / sum(one.traced_ns for one in self.operators)
