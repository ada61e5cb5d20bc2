"""The exported graph as data: ``graph.json``, schema ``opscope.graph/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from opscope.export.trouble import source_of
from opscope.program.exported import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class GraphNode(msgspec.Struct, frozen=True):
    """One node of an exported graph.

    Attributes:
        name: unique in its method.
        op: kind of node, as torch.fx names it: ``placeholder``, ``call_function``, ``get_attr`` or ``output``.
        target: the operator with overload, or the name of a parameter or input.
        inputs: names of the nodes that it reads, each once.
        outputs: tensors that it makes.
        module: qualified name of the submodule it belongs to; null when not known.
        module_type: class of that submodule; likewise.
        source: file and line of the Python that caused it; likewise.
    """

    name: str
    op: str
    target: str
    inputs: list[str]
    outputs: list[TensorSpec]
    module: str | None
    module_type: str | None
    source: str | None


class MethodGraph(msgspec.Struct, frozen=True):
    """The nodes of one method in the order of execution; parameters and inputs come first."""

    name: str
    nodes: list[GraphNode]


class ModelGraph(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.graph/1"):
    """What torch.export made of a model, with quantisation, before it was lowered."""

    model: str
    dtype: str
    methods: list[MethodGraph]


def model_graph(model: str, dtype: str, programs: Mapping[str, Any]) -> ModelGraph:
    """The graphs of exported programs.

    Args:
        model: its name.
        dtype: that it was exported in.
        programs: exported programs by method.
    """
    return ModelGraph(model, dtype, [MethodGraph(name, _nodes(one.graph.nodes)) for name, one in programs.items()])


def _nodes(nodes: Iterable[Any]) -> list[GraphNode]:
    return [_node(node) for node in nodes]


def _node(node: Any) -> GraphNode:  # noqa: ANN401 - a node of torch.fx
    place, stack = source_of(node), list((node.meta.get("nn_module_stack") or {}).values())
    module, kind = stack[-1] if stack else (None, None)
    return GraphNode(
        name=node.name,
        op=node.op,
        target=str(node.target),
        inputs=[one.name for one in node.all_input_nodes],
        outputs=tensor_specs(node.meta.get("val")),
        module=module or None,
        module_type=kind if kind is None or isinstance(kind, str) else kind.__name__,
        source=None if place is None else f"{place.file}:{place.line}",
    )


def tensor_specs(value: Any) -> list[TensorSpec]:  # noqa: ANN401 - a tree of tensors and other values
    """Shape and type of every tensor in a tree of values."""
    from torch import Tensor
    from torch.utils import _pytree

    return [_spec(leaf) for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _spec(tensor: Any) -> TensorSpec:  # noqa: ANN401 - torch is not typed here
    shape = [size if isinstance(size, int) else str(size) for size in tensor.shape]
    return TensorSpec(shape, str(tensor.dtype).removeprefix("torch."))
