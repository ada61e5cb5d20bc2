"""What the XNNPACK delegate makes of a .tflite, held against what LiteRT 2.3.0 ran.

``events.json`` holds, for each model, the events of one inference as LiteRT's profiler recorded them on x86-64: name,
type (2 an operator outside, 8 an operator of the delegate) and number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import pytest

from opscope.api import preflight
from opscope.program.cost.cost import GraphCosts
from opscope.program.model import ProgramModel
from opscope.program.partition.verdicts import Cause
from opscope.program.xnnpack.attribution import match_events
from opscope.runtimes.litert.delegation import DELEGATED
from opscope.runtimes.litert.lowering import UNSIGNED, read_tflite_model
from texts import NO_DELEGATE_RULE

Event: TypeAlias = tuple[str, int, int]

MODELS = Path(__file__).parents[2] / "data" / "tflite"
EVENTS: dict[str, list[Event]] = json.loads((MODELS / "events.json").read_text())
_OUTSIDE, _DELEGATED = 2, 8


def _calls(events: list[Event]) -> list[list[str]]:
    """Names of the delegate's operators, by call: numbers begin anew with each."""
    found: list[list[str]] = []
    for name, kind, number in events:
        if kind == _DELEGATED:
            if number == 0:
                found.append([])
            found[-1].append(name)
    return found


def _model(name: str) -> ProgramModel:
    return read_tflite_model(MODELS / f"{name}.tflite")


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_attributed_exactly(name: str) -> None:
    """The graph predicted from the file explains each event that ran, in order and by kind, outside too."""
    model, calls = _model(name), _calls(EVENTS[name])
    assert len(model.graphs) == len(calls)
    for graph, names in zip(model.graphs, calls, strict=True):
        match = match_events(graph.graph, names)
        assert match.problem is None
        assert all(event.main is not None for event in match.events)
    plan = model.executable.plans[0]
    steps = [(plan.called(s), n) for n, s in enumerate(plan.chains[0].steps) if s.kind.value == "kernel"]
    assert steps == [(event[0], event[2]) for event in EVENTS[name] if event[1] == _OUTSIDE]


def test_products_of_sparse_weights_are_convolutions_of_planes_on_arm() -> None:
    """Names as a model of MediaPipe with sparse weights gave them under QEMU; x86-64 has no kernels for these."""
    names = _calls(EVENTS["cnn"])[0]
    planes = {
        "Convolution (NHWC, F32) IGEMM": "Convolution (NCHW, F32) Conv2D HWC2CHW",
        "Convolution (NHWC, F32) DWConv": "Convolution (NCHW, F32) DWConv",
    }
    told = [planes.get(name, name) for name in names]
    told[2] = "Convolution (NCHW, F32) SPMM"
    (graph,) = _model("cnn").graphs
    match = match_events(graph.graph, told)
    assert match.problem is None
    assert [event.main for event in match.events] == [e.main for e in match_events(graph.graph, names).events]
    told[2] = "Convolution (NCHW, F32) SPMM #3"  # as the runtime of ExecuTorch numbers names
    assert match_events(graph.graph, told) == match
    told[1] = "Convolution (NCHW, F32) SPMM"  # XNNPACK never runs a depthwise convolution so
    assert match_events(graph.graph, told).problem
    assert match_events(_model("outside").graphs[0].graph, names).foreign, "another number of them is another model"


def _reasons(name: str) -> list[str]:
    method = _model(name).methods[UNSIGNED]
    return [f"{reason.text}; {reason.evidence}" for reason in (method.reasons or {}).values()]


def test_limits_of_single_operators() -> None:
    """What a function of the delegate checks, with the figure that breaks its limit; or that it has no rule.

    Its function for dimensions begins by refusing; a model of bird songs ran all of its own outside.
    """
    (rule,) = (_model("outside").methods[UNSIGNED].reasons or {}).values()
    assert (rule.cause, rule.text) == (Cause.NO_RULE, NO_DELEGATE_RULE)
    (number_type,) = (_model("pooled_int8").methods[UNSIGNED].reasons or {}).values()
    assert number_type.cause is Cause.NUMBER_TYPE
    assert number_type.evidence.endswith(": int8")
    assert _reasons("joined") == ["2 to 5 tensors can be concatenated; 6 tensors"]
    assert _reasons("parts") == ["2 to 4 parts are supported; 5 parts"]
    assert sorted(_reasons("strided")) == [
        "slice is supported only if it keeps the number of dimensions; None",
        "slice is supported only with stride 1; strides 1, 2, 1, 1",
    ]
    (scales,) = [reason for reason in _reasons("norm_int8") if reason.startswith("input scales")]
    assert scales.startswith("input scales must be 0.000976562 to 256 times the output scale; ")
    assert "EXPAND_DIMS" not in DELEGATED


def test_sparse_weights_are_made_dense_by_the_delegate() -> None:
    """The operator that makes them dense runs once, and is no work of an inference."""
    method = preflight(MODELS / "sparse.tflite").methods[0]
    assert (method.partition.calls, method.partition.portable_operators) == (1, 0)
    assert [node.kind for node in _model("sparse").graphs[0].graph.nodes] == ["Conv2d", "Conv2d"]


def test_costs_of_what_moves_and_reduces() -> None:
    """Each is known: what moves computes nothing, and a reduction looks at each element of its input once."""
    for name in ("blocks", "parts", "reduced", "rounded", "cropped"):
        method = preflight(MODELS / f"{name}.tflite").methods[0]
        assert sum(row.delegated.unknown + row.portable.unknown for row in method.work) == 0, name


def test_preflight_of_a_tflite() -> None:
    """The same answers as for a .pte."""
    found = preflight(MODELS / "cnn.tflite")
    method = found.methods[0]
    assert found.partition_rules.startswith("LiteRT f6745779")
    assert (method.partition.calls, method.partition.portable_operators) == (1, 0)
    # stem 8*8*8*27, depthwise 8*8*8*9, pointwise 8*8*8*8, fully connected 8*4
    assert method.matrix.macs == 8 * 8 * 8 * (27 + 9 + 8) + 32
    assert preflight(MODELS / "outside.tflite").methods[0].portable[0].operator == "CUMSUM"


@pytest.mark.parametrize("name", EVENTS)
def test_without_the_delegate_every_operator_is_a_step_of_its_own(name: str) -> None:
    """In the order of the file, by its number, with nothing delegated and the reason for that."""
    model = read_tflite_model(MODELS / f"{name}.tflite", delegated=False)
    (method,) = model.methods.values()
    steps = method.plan.chains[0].steps
    assert not model.graphs
    assert {step.kind.value for step in steps} == {"kernel"}
    assert {reason.cause for reason in (method.reasons or {}).values()} == {Cause.SWITCHED_OFF}
    assert set(method.reasons or {}) == set(range(len(steps)))


def test_operators_of_own_kernels_cost_what_the_same_work_costs_in_the_delegate() -> None:
    """Multiply-accumulates of all operators together; those that the delegate refuses have no costs."""
    own = read_tflite_model(MODELS / "cnn.tflite", delegated=False).methods[UNSIGNED]
    delegated = _model("cnn")
    costs = GraphCosts(delegated.graphs[0].graph)
    count = len(delegated.graphs[0].graph.nodes)
    macs = [cost.macs for number in range(count) if (cost := costs.nodes([number])) is not None]
    assert sum(macs) > 0
    known = [cost for of in (own.costs or {}).values() if (cost := of()) is not None]
    assert sum(cost.macs for cost in known) == sum(macs)
    refused = set(_model("outside").methods[UNSIGNED].reasons or {})
    assert refused.isdisjoint(
        read_tflite_model(MODELS / "outside.tflite", delegated=False).methods[UNSIGNED].costs or {}
    )


def test_a_model_is_read_whatever_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed where they are asked for, so that a bug in them costs nothing else."""

    def broken(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(GraphCosts, "nodes", broken)
    own = read_tflite_model(MODELS / "cnn.tflite", delegated=False).methods[UNSIGNED]
    assert own.costs
    with pytest.raises(KeyError, match="planted"):
        next(iter(own.costs.values()))()
