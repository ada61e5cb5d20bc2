"""What a long lowering is at, and why it is long: layers that the exporter unrolls into operators for each step."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from opscope.core.units import counted_text
from opscope.program.structure.exported import UnrolledLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opscope.core.system.stages import StageProgress

LOWERING, PARTITIONING, COMPILING = "lowering to the edge dialect", "partitioning", "compiling delegates"
_RECURRENT = {f"aten.{name}.input": name.partition("_")[0] for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")}
_SECONDS = 10.0
"""Between two details of a stage: there may be hundreds of delegates, and a log is no place for all."""
_BATCH_FIRST = -1
"""Place of the argument ``batch_first`` of the recurrent operators of ATen."""


def unrolled_layers(program: Any) -> list[UnrolledLayer]:  # noqa: ANN401 - torch is not typed here
    """The recurrent layers of an exported program that lowering turns into operators for each of their steps."""
    return [_layer(node) for node in program.graph.nodes if str(node.target) in _RECURRENT]


def _layer(node: Any) -> UnrolledLayer:  # noqa: ANN401 - a node of torch.fx
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    shape = node.args[0].meta["val"].shape
    steps = shape[1 if node.args[_BATCH_FIRST] else 0]
    known = int(steps) if isinstance(steps, int) else None
    return UnrolledLayer(stack[-1][0] if stack else "", _RECURRENT[str(node.target)], known)


def told(layers: list[UnrolledLayer]) -> str:
    """That layers are unrolled, in a few words; empty without any."""
    return ", ".join(
        f"{one.module or 'the model'}: {one.kind} of {one.steps or 'all'} steps, unrolled" for one in layers
    )


class Lowering:
    """Says what a lowering is at.

    Args:
        heard: hears of it.
    """

    def __init__(self, heard: StageProgress) -> None:
        self._heard = heard
        self._delegates = self._done = 0

    def announced(self, partitioner: Any) -> Any:  # noqa: ANN401 - torch is not typed here
        """The partitioner, which says when it begins, and how many delegates are compiled then."""
        partition = partitioner.partition

        def saying(program: Any) -> Any:  # noqa: ANN401 - likewise
            operators = sum(node.op == "call_function" for node in program.graph.nodes)
            self._heard(PARTITIONING, "")
            self._heard(PARTITIONING, counted_text(operators, "operator"))
            found = partition(program)
            self._delegates += len(found.partition_tags)
            self._heard(COMPILING, "")
            self._heard(COMPILING, f"{self._done} of {self._delegates}")
            return found

        partitioner.partition = saying
        return partitioner

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Say every few seconds how many delegates XNNPACK's backend has compiled by then."""
        from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

        compile_one, said = XnnpackBackend.preprocess, time.monotonic()

        def counting(*given: Any) -> Any:  # noqa: ANN401 - likewise
            nonlocal said
            made = compile_one(*given)
            self._done += 1
            if time.monotonic() - said >= _SECONDS:
                said = time.monotonic()
                self._heard(COMPILING, f"{self._done} of {self._delegates}")
            return made

        XnnpackBackend.preprocess = staticmethod(counting)
        try:
            yield
        finally:
            XnnpackBackend.preprocess = staticmethod(compile_one)


def of_methods(programs: Mapping[str, Any]) -> dict[str, list[UnrolledLayer]]:
    """The unrolled layers of each method."""
    return {name: unrolled_layers(program) for name, program in programs.items()}
