"""Time by module and by source line of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.operators.operators import OnHeadline, headline_sums
from opscope.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.analysis.operators.operators import Operator


class ModuleTime(msgspec.Struct, frozen=True):
    """A module of the model, with everything below it.

    Attributes:
        method: the program's method.
        path: its name in the model; empty for the model itself.
        type: qualified name of its class; null for a container that is never called.
        depth: number of modules above it.
        self_ns: mean time per inference of its operators.
        total_ns: with those of the modules below it.
        share: ``total_ns`` of end-to-end latency.
        operators: number of its own operators.
        macs: of it and everything below; null when one of its operators' is not known.
        self_headline_ns: ``self_ns`` on the scale of the headline; null where that is not known.
        headline_ns: ``total_ns`` on the scale of the headline; null where that is not known.
        share_of_headline: it as a share of the headline; likewise.
    """

    method: str
    path: str
    type: str | None
    depth: int
    self_ns: float
    total_ns: float
    share: float
    operators: int
    macs: int | None
    self_headline_ns: float | None = None
    headline_ns: float | None = None
    share_of_headline: float | None = None

    @property
    def shown_ns(self) -> float:
        """``total_ns`` on the scale of the headline where that is known."""
        return self.total_ns if self.headline_ns is None else self.headline_ns

    @property
    def shown_self_ns(self) -> float:
        """``self_ns`` on the scale of the headline where that is known."""
        return self.self_ns if self.self_headline_ns is None else self.self_headline_ns

    @property
    def shown_share(self) -> float:
        """Share of the headline; of the mean of traced inferences where the headline is not known."""
        return self.share if self.share_of_headline is None else self.share_of_headline


class SourceTime(msgspec.Struct, OnHeadline, frozen=True):
    """A line of the model's code and the mean time per inference of the operators that it caused.

    ``headline_ns`` and ``share_of_headline`` are on the scale of the headline, null where that is not known.
    """

    source: str
    code: str | None
    time_ns: float
    share: float
    operators: int
    aten: list[str]
    headline_ns: float | None = None
    share_of_headline: float | None = None


def module_times(rows: Sequence[Operator], types: Mapping[tuple[str, str], str]) -> list[ModuleTime]:
    """The module tree of each method, parents before children, children in the order of the exported model.

    Operators without a known module are in none; empty when no module is known.
    """
    known = [row for row in rows if row.module is not None]
    below: dict[tuple[str, str], list[Operator]] = {}
    for row in known:
        for path in _prefixes(row.module or ""):
            below.setdefault((row.method, path), []).append(row)
    total = sum(row.time_ns for row in rows)
    return [_module(method, path, types, below, total) for method, path in _tree(below, types)]


def source_times(rows: Sequence[Operator]) -> list[SourceTime]:
    """Time by line of the model's code, longest first; empty when no line is known."""
    lines = grouped((row for row in rows if row.source is not None), lambda row: row.source or "")
    total = sum(row.time_ns for row in rows)
    found = [_source(source, own, total) for source, own in lines.items()]
    return sorted(found, key=lambda line: -line.shown_ns)


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
    total: float,
) -> ModuleTime:
    rows = below[method, path]
    own = [row for row in rows if row.module == path]
    time_ns = sum(row.time_ns for row in rows)
    macs = [row.macs for row in rows]
    headline_ns, share_of_headline = headline_sums(rows)
    return ModuleTime(
        method=method,
        path=path,
        type=types.get((method, path)),
        depth=path.count(".") + 1 if path else 0,
        self_ns=sum((row.time_ns for row in own), 0.0),
        total_ns=time_ns,
        share=time_ns / total if total else 0.0,
        operators=len(own),
        macs=None if None in macs else sum(count or 0 for count in macs),
        self_headline_ns=None if headline_ns is None else headline_sums(own)[0],
        headline_ns=headline_ns,
        share_of_headline=share_of_headline,
    )


def _source(source: str, rows: Sequence[Operator], total: float) -> SourceTime:
    time_ns = sum(row.time_ns for row in rows)
    names = dict.fromkeys(row.aten for row in rows if row.aten)
    code = next((row.code for row in rows if row.code), None)
    share = time_ns / total if total else 0.0
    return SourceTime(source, code, time_ns, share, len(rows), list(names), *headline_sums(rows))
