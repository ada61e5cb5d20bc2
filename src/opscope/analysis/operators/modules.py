"""Time by module and by source line of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.operators.operators import sums
from opscope.analysis.operators.unrolled import unrolled
from opscope.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.operators.operators import Operator


class ModuleTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module of the model, with everything below it.

    Attributes:
        method: the program's method.
        path: its name in the model; empty for the model itself.
        type: qualified name of its class; null for a container that is never called.
        depth: number of modules above it.
        self_ns: time per inference of its operators; null where only shares are known.
        total_ns: with those of the modules below it.
        share: ``total_ns`` of the headline.
        self_share: ``self_ns`` of it.
        operators: number of its own operators.
        macs: of it and everything below; null when one of its operators' is not known.
        steps: how many steps of it the exporter unrolled; left out where nothing repeats.
    """

    method: str
    path: str
    type: str | None
    depth: int
    self_ns: float | None
    total_ns: float | None
    share: float
    operators: int
    macs: int | None
    self_share: float
    steps: int | None = None


class SourceTime(msgspec.Struct, frozen=True):
    """A line of the model's code and the time per inference of the operators that it caused, as of a category."""

    source: str
    code: str | None
    time_ns: float | None
    share: float
    operators: int
    aten: list[str]


def module_times(rows: Sequence[Operator], types: Mapping[tuple[str, str], str]) -> list[ModuleTime]:
    """The module tree of each method, parents before children, children in the order of the exported model.

    Operators without a known module are in none; empty when no module is known.
    """
    known = [row for row in rows if row.module is not None]
    below: dict[tuple[str, str], list[Operator]] = {}
    for row in known:
        for path in _prefixes(row.module or ""):
            below.setdefault((row.method, path), []).append(row)
    steps = {(one.method, one.module): one.steps for one in unrolled(rows)}
    found = [_module(method, path, types, below) for method, path in _tree(below, types)]
    return [msgspec.structs.replace(one, steps=steps.get((one.method, one.path))) for one in found]


def source_times(rows: Sequence[Operator]) -> list[SourceTime]:
    """Time by line of the model's code, longest first; empty when no line is known."""
    lines = grouped((row for row in rows if row.source is not None), lambda row: row.source or "")
    found = [_source(source, own) for source, own in lines.items()]
    return sorted(found, key=lambda line: -line.share)


def _prefixes(path: str) -> Iterator[str]:
    """The path of a module and of every module above it, from the model itself down."""
    yield ""
    parts = path.split(".") if path else []
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _tree(below: Iterable[tuple[str, str]], recorded: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keys of modules, each behind its parent; siblings in the recorded order, others in that of their operators."""
    order = {key: number for number, key in enumerate(dict.fromkeys([*recorded, *below]))}
    rank = {key: order[key] for key in below}

    def place(key: tuple[str, str]) -> list[int]:
        method, path = key
        return [rank[method, prefix] for prefix in _prefixes(path)]

    return sorted(rank, key=place)


def _module(
    method: str,
    path: str,
    types: Mapping[tuple[str, str], str],
    below: dict[tuple[str, str], list[Operator]],
) -> ModuleTime:
    rows = below[method, path]
    own = [row for row in rows if row.module == path]
    total_ns, share = sums(rows)
    self_ns, self_share = sums(own)
    macs = [row.macs for row in rows]
    return ModuleTime(
        method=method,
        path=path,
        type=types.get((method, path)),
        depth=path.count(".") + 1 if path else 0,
        self_ns=self_ns,
        total_ns=total_ns,
        share=share,
        operators=len(own),
        macs=None if None in macs else sum(count or 0 for count in macs),
        self_share=self_share,
    )


def _source(source: str, rows: Sequence[Operator]) -> SourceTime:
    names = dict.fromkeys(row.aten for row in rows if row.aten)
    code = next((row.code for row in rows if row.code), None)
    time_ns, share = sums(rows)
    return SourceTime(source, code, time_ns, share, len(rows), list(names))
