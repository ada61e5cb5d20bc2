"""The exporter's record of a model: operators of its graph, and the modules and source lines that caused them.

Debug handles lead from a delegate's node or from an instruction to these operators. Handles start anew in each
method.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class SourceLine(msgspec.Struct, frozen=True):
    """A line of Python that led to an operator."""

    file: str  # as the exporter saw it
    line: int  # number of the line
    function: str  # the function it stands in
    code: str  # its text; empty where the record does not say


class ModuleScope(msgspec.Struct, frozen=True):
    """A module that was being called."""

    path: str  # its name in the model, as `stem.0`; empty for the model itself
    type: str  # qualified name of its class


class EdgeNode(msgspec.Struct, frozen=True):
    """An operator of the graph."""

    name: str  # its own
    target: str  # what it calls, as `aten.convolution.default`
    inputs: tuple[str, ...]  # names of tensors, also those inside lists, in the order of the arguments
    outputs: tuple[str, ...]  # names of tensors
    # the lines of Python that led to it, outermost first; empty where the record does not say
    frames: tuple[SourceLine, ...]
    modules: tuple[ModuleScope, ...]  # the modules that were being called, outermost first
    handles: tuple[int, ...]  # its debug handles; nearly always one


class EdgeGraph(msgspec.Struct, frozen=True):
    """The operators of a method before its parts were handed to backends, those of its branches and loops behind."""

    method: str
    nodes: tuple[EdgeNode, ...]
    # of its tensors, by their names; a size is a number, or the text of an expression where it can differ between calls
    sizes: Mapping[str, tuple[int | str, ...]]

    def by_handle(self) -> dict[int, tuple[EdgeNode, ...]]:
        """Return the operators of each debug handle, in graph order. One handle covers what one call became."""
        nodes_by_handle: dict[int, list[EdgeNode]] = {}
        for node in self.nodes:
            for handle in node.handles:
                nodes_by_handle.setdefault(handle, []).append(node)
        return {handle: tuple(nodes) for handle, nodes in nodes_by_handle.items()}


class EtRecord(msgspec.Struct, frozen=True):
    """An ETRecord without its tensors; instructions are named by their method and number."""

    graphs: tuple[EdgeGraph, ...]  # one a method; empty when the record was written without them
    instruction_handles: dict[tuple[str, int], tuple[int, ...]]  # debug handles of what an instruction computes
    delegates: dict[tuple[str, int], str]  # backends of calls of delegates
