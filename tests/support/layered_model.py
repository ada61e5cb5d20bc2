"""A model of two layers with its trace and record, for formats that show layers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from graphs import graph
from opscope.analysis.analysis import Analysis, ProgramInfo, ProgramKnowledge, TraceSource, analyse
from opscope.analysis.operators.attribution import attribute
from opscope.program.model import ProgramModel
from opscope.program.structure.etrecord import (
    EdgeGraph,
    EdgeNode,
    EtRecord,
    ModuleScope,
    SourceLine,
)
from opscope.program.structure.plan import Delegate, Executable, InstructionKind
from opscope.program.xnnpack.graph import DelegateGraph
from plans import Method, tensor
from traces import table

PAYLOAD = """
    input x fp32 1x8x8x4
    const w fp32 16x3x3x4
    t fp32 1x8x8x4 = StaticTranspose x handle=65535
    a fp32 1x8x8x16 = Conv2d t w handle=1
    b fp32 1x8x8x16 = Add a a min=0 max=6 handle=2
    output b
"""


TRACE = """
    Method::execute 1000000
      DELEGATE_CALL @0 610000
        Transpose (ND, X32) #1 50000
        Convolution (NHWC, F32) IGEMM #1 300000
        Add (ND, F32) #1 200000
        Clamp (NC, F32) #1 40000
      OPERATOR_CALL @1 100000
        native_call_mean.out 90000
      DELEGATE_CALL @2 200000
        whatever 150000
"""


FRAME = SourceLine("/home/me/model.py", 12, "forward", "return self.conv(x)")


def scopes(path: str) -> tuple[ModuleScope, ...]:
    """The modules around an operator of a module, itself last."""
    parts = path.split(".")
    inner = (ModuleScope(".".join(parts[: n + 1]), f"my.{part.title()}") for n, part in enumerate(parts))
    return (ModuleScope("", "my.Model"), *inner)


def edge(name: str, target: str, handle: int, module: str) -> EdgeNode:
    """An operator of the exporter's graph."""
    return EdgeNode(name, target, (), (name,), (FRAME,), scopes(module), (handle,))


def record(modules: Sequence[str] = ("stem.conv", "stem", "head")) -> EtRecord:
    """What the exporter knew: a convolution, an addition and a portable mean, each in a module."""
    operators = (
        edge("conv", "aten.convolution.default", 1, modules[0]),
        edge("add", "aten.add.Tensor", 2, modules[1]),
        edge("mean", "aten.mean.dim", 3, modules[2]),
    )
    handles = {("forward", 0): (1, 2), ("forward", 1): (3,)}
    return EtRecord((EdgeGraph("forward", operators, {"conv": (1, 16, 8, 8)}),), handles, {})


def model(recorded: EtRecord | None = None, *, calls: int = 1, name: str = "XnnpackBackend") -> ProgramModel:
    """A delegate that can be read, a portable mean, and a delegate of another kind.

    Args:
        recorded: what the exporter knew.
        calls: how often the first delegate is called, one call behind the other.
        name: of the first delegate's backend.
    """
    image, first, mean, out = (tensor(1, size) for size in (4, 16, 1, 2))
    method = Method(image)
    for _ in range(calls):
        method.step(InstructionKind.DELEGATE, (method.number(image), method.number(first)), target=0)
    method.call("aten::mean.out", first, out=mean)
    method.step(InstructionKind.DELEGATE, (method.number(mean), method.number(out)), target=1)
    delegates = (Delegate(name, None), Delegate("OtherBackend", None))
    plan = msgspec.structs.replace(method.plan(), delegates=delegates, outputs=(method.number(out),))
    executable = Executable("ET12", 0, (plan,), (), ())
    return ProgramModel(executable, [DelegateGraph("forward", 0, tuple(range(calls)), graph(PAYLOAD))], recorded)


def analysed(text: str = TRACE, of: ProgramModel | None = None, variant: str = "fast") -> Analysis:
    """The analysis of a trace of the model."""
    events = table(text).with_method_names({None: "forward"})
    known = ProgramKnowledge(
        ProgramInfo("m.pte", "0", None, None, verified=True), attribute(events, of or model(record()))
    )
    return analyse(events, TraceSource("t", "etdump", [("t", "0")]), variant, known)
