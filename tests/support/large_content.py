"""What a report shows of a synthetic model of any size, by the real readers and analyses; the same every time.

The model is a chain of blocks, each a delegate call of nine operators and a portable one behind it. Its events are real
ETDump files; what a program would say of them (layers, lines, work) is said here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fakes import FakeClock, FakeTarget, round_ceilings
from opscope.analysis.analysis import Analysis, ProgramInfo, ProgramKnowledge, TraceSource, analyse
from opscope.analysis.compare.compare import Comparison, RelatedData, compare
from opscope.analysis.latency.latency import CallTimes
from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.delegates import DelegateCall
from opscope.analysis.operators.operators import OperatorFacts
from opscope.analysis.rules.rules import examine_comparison, merge_findings
from opscope.api import Settings, profile
from opscope.core.table import EventTable
from opscope.core.table.places import OperatorKey
from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import Attribution
from opscope.reports.content.content import ReportContent
from opscope.runtimes.executorch.etdump import EtdumpReader
from programs import write_tiny_program
from traces import Node, encode

ROUNDS = 6
_METHOD = "forward"
_WARMUP = 1
_BLOCK = 10
_PORTABLE = "native_call_native_layer_norm.out"


class Sort(NamedTuple):
    """One sort of operator: event, aten operator, class of module, time, slowdown without acceleration, and work."""

    event: str
    aten: str
    module: str
    nanoseconds: int
    slowdown: float
    macs: int


_SORTS = (
    Sort("Transpose (ND, X32)", "aten.permute_copy.default", "Mixer", 4_000, 1.0, 0),
    Sort("Convolution (NHWC, F32) IGEMM", "aten.convolution.default", "Conv2d", 61_000, 2.1, 2_000_000),
    Sort("HardSwish (NC)", "aten.hardswish.default", "Hardswish", 3_000, 1.3, 0),
    Sort("Convolution (NHWC, F32) DWConv", "aten.convolution.default", "Conv2d", 27_000, 1.0, 200_000),
    Sort("Fully Connected (NC, F32) GEMM", "aten.linear.default", "Linear", 44_000, 1.8, 2_400_000),
    Sort("Add (ND)", "aten.add.Tensor", "Residual", 2_000, 1.0, 0),
    Sort("Fully Connected (NC, F32) GEMM", "aten.linear.default", "Linear", 38_000, 1.7, 2_000_000),
    Sort("Multiply (ND)", "aten.mul.Tensor", "Gate", 2_000, 1.1, 0),
    Sort("Mean (ND) Reduce2", "aten.mean.dim", "Pool", 1_000, 1.0, 0),
)


def large_content(directory: Path, operators: int, inferences: int) -> ReportContent:
    """A report's content.

    Args:
        directory: for the bundle that the machine and the plan are taken from.
        operators: of the model; as many framework steps come on top as there are calls.
        inferences: measured without tracing, of each variant, all processes together; at least.
    """
    blocks = max(1, operators // _BLOCK)
    settings = Settings(rounds=ROUNDS, runs=2, warmup=_WARMUP)
    program = write_tiny_program(directory)
    small = profile(
        str(program), settings=settings, out=directory / "out", target=FakeTarget(), clock=FakeClock()
    ).content
    facts = dict(_facts(blocks))
    tables = {result.variant.name: _table(blocks, slow=bool(result.variant.cleared)) for result in small.variants}
    results = [
        msgspec.structs.replace(result, analysis=_analysis(result.variant.name, tables, facts, blocks, inferences))
        for result in small.variants
    ]
    comparison = _comparison(small.comparisons[0], tables, facts)
    content = msgspec.structs.replace(small, variants=results, comparisons=[comparison])
    assert content.shown
    groups = [(content.shown.findings, content.shown.ruled_out), examine_comparison(comparison)]
    findings, ruled_out = merge_findings(groups, {})
    return msgspec.structs.replace(content, findings=findings, ruled_out=ruled_out)


def _analysis(
    name: str,
    tables: dict[str, EventTable],
    facts: dict[OperatorKey, OperatorFacts],
    blocks: int,
    inferences: int,
) -> Analysis:
    table = tables[name]
    calls = [DelegateCall(_METHOD, 2 * b, b, "XnnpackBackend", 9, 9, "native", None) for b in range(blocks)]
    types = {(_METHOD, "blocks"): "torch.nn.modules.container.Sequential"}
    types |= {(_METHOD, f"blocks.{block}"): "nets.Block" for block in range(blocks)}
    types |= {(_METHOD, fact.module or ""): fact.module_type or "" for fact in facts.values()}
    known = ProgramKnowledge(
        ProgramInfo("net.pte", "0" * 64, "net.etrecord", "0" * 64, verified=True),
        Attributions(facts, calls, None, [], types, {}),
        round_ceilings(),
    )
    mean = int(table.inference_times().duration.mean())
    noise = random.Random(len(name))
    each = -(-inferences // ROUNDS) + _WARMUP
    untraced = {
        number: [round(mean * noise.gauss(1, 0.02) * (1 + 2 * (run < _WARMUP))) for run in range(each)]
        for number in range(ROUNDS)
    }
    source = TraceSource(f"out/{name}", "etdump", [("trace.etdump", "0" * 64)] * ROUNDS)
    return analyse(table, source, name, known, CallTimes(untraced, {}, _WARMUP, {}))


def _comparison(
    small: Comparison, tables: dict[str, EventTable], facts: dict[OperatorKey, OperatorFacts]
) -> Comparison:
    labels = ((small.baseline.label, small.baseline.path), (small.candidate.label, small.candidate.path))
    sides = tables[small.baseline.label], tables[small.candidate.label]
    return compare(*sides, labels=labels, paired=True, related=RelatedData((facts, facts)))


def _facts(blocks: int) -> Iterator[tuple[OperatorKey, OperatorFacts]]:
    for block in range(blocks):
        for position, sort in enumerate(_SORTS):
            yield OperatorKey(_METHOD, 2 * block, position), _fact(block, position, sort)
        yield OperatorKey(_METHOD, 2 * block + 1, 0), _fact(block, len(_SORTS), None)


def _fact(block: int, position: int, sort: Sort | None) -> OperatorFacts:
    return OperatorFacts(
        attribution=Attribution.EXACT,
        aten=sort.aten if sort else "aten.native_layer_norm.default",
        module=f"blocks.{block}.layers.{position}",
        module_type=f"torch.nn.{sort.module}" if sort else "torch.nn.LayerNorm",
        source=f"/models/net.py:{100 + position}",
        code=f"features = self.layers[{position}](features)",
        fused=("aten._native_batch_norm_legit_no_training.default",) if sort and sort.module == "Conv2d" else (),
        dtype="fp32",
        weights="fp32" if sort and sort.macs else None,
        shape=(1, 16, 16, 64),
        cost=Cost(sort.macs if sort else 0, 2 * sort.macs if sort else 0, 65_536, 65_536, 16_384),
        elements=16_384,
    )


def _table(blocks: int, *, slow: bool) -> EventTable:
    """Every round a process of one warm-up inference and one that is measured."""
    noise = random.Random(blocks + slow)
    traces = [encode([("Execute", [_inference(blocks, slow, noise)]) for _ in range(2)]) for _ in range(ROUNDS)]
    tables = [EtdumpReader().read(trace, Path("trace.etdump")) for trace in traces]
    return EventTable.concat(tables).with_warmup(_WARMUP).with_method(_METHOD)


def _inference(blocks: int, slow: bool, noise: random.Random) -> Node:
    calls = [call for block in range(blocks) for call in _calls(block, slow, noise)]
    return Node("Method::execute", sum(call.duration for call in calls) + 20_000, children=calls)


def _calls(block: int, slow: bool, noise: random.Random) -> Iterator[Node]:
    inside = []
    for sort in _SORTS:
        time = sort.nanoseconds * (sort.slowdown if slow else 1) * noise.gauss(1, 0.05) * (1 + block % 7 / 3)
        inside.append(Node(f"{sort.event} #{block + 1}", round(time) // 1_000 * 1_000, 2 * block, delegate=True))
    yield Node("DELEGATE_CALL", sum(node.duration for node in inside) + 6_000, 2 * block, children=inside)
    portable = Node(_PORTABLE, round(9_000 * noise.gauss(1, 0.05)), 2 * block + 1)
    yield Node("OPERATOR_CALL", portable.duration + 400, 2 * block + 1, children=[portable])
