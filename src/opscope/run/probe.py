"""A probe: small graphs in which one kind of operator is at its best, to find the ceiling of that kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.roofs import Roof
    from opscope.run.xnnpack_graph import Subgraph


class Candidate(NamedTuple):
    """One way to reach a ceiling.

    Attributes:
        roof: the ceiling as it is kept, without its rate.
        work: of one invocation, in the ceiling's unit.
        build: puts operators into an empty graph.
    """

    roof: Roof
    work: int
    build: Callable[[Subgraph], None]


class Probe(NamedTuple):
    """One ceiling to measure.

    Attributes:
        candidates: of which the fastest counts; at least one.
        meant: whether an operator, by the name that the library reports, is of the kind that was meant. The library may
            run another one: where it has no half precision it converts, and computes with single.
    """

    candidates: list[Candidate]
    meant: Callable[[str], bool]
