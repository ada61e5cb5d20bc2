"""Captures of AI Engine hardware for tests: the real ones, and ones that are made of their figures.

``tests/data/aie`` holds an outline of each capture that the mlir-aie project and forks of it publish: every cycle
at which a call or a transfer begins or ends, and for all other events how many spans of how many cycles there are
in a call and between two. A trace that is made of an outline has the calls, cycles, ports and periods of the real
one. Within a call its events lie evenly, so its size is another. ``python tests/support/aie_captures.py DIRECTORY``
writes outlines.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from aie_traces import Span, Tile, json_text, words_text
from opscope.npu.readers.files import read_tiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opscope.core.table.tiles import SlotTrace, TileTrace

OUTLINES = Path(__file__).parents[1] / "data" / "aie"
NPU1_GEMM = "npu1_bf16_gemm_256x768x768_tile_32x64x64"
NPU2_GEMM = "npu2_bf16_bfp16emu_gemm_tile_16x32x256"
WORDS = ("npu1_core_small", "npu1_core_and_mem_small", "npu2_vector_scalar")
"""Those whose raw words are there, too."""
_EXACT = ("INSTR_EVENT_", "PORT_RUNNING_")


class Amount(NamedTuple):
    """Spans of an event in a stretch of time."""

    spans: int
    cycles: int  # of all together
    longest: int  # cycles of one


class Outline(msgspec.Struct, frozen=True):
    """A trace unit.

    Attributes:
        unit: core or mem.
        row: of the tile.
        column: of the tile.
        names: events of the slots.
        exact: by slot, begin and end of each span of calls and transfers; an end is null where the trace has none.
        stretches: cycles between two marks of calls, or before the first and after the last.
        amounts: by slot, number and amount of each stretch that has spans of the other events.
    """

    unit: str
    row: int
    column: int
    names: tuple[str, ...]
    exact: dict[int, tuple[tuple[int, int | None], ...]]
    stretches: tuple[tuple[int, int], ...]
    amounts: dict[int, tuple[tuple[int, Amount], ...]]

    def tile(self) -> Tile:
        """A unit with these figures."""
        spans = [Span(slot, *times) for slot, listed in self.exact.items() for times in listed]
        for number, (begin, end) in enumerate(self.stretches):
            own = {slot: dict(listed)[number] for slot, listed in self.amounts.items() if number in dict(listed)}
            spans += _laid(own, begin, end)
        return Tile(self.unit, self.row, self.column, self.names, tuple(sorted(spans, key=lambda span: span.start)))


def outline(tile: TileTrace) -> Outline:
    """The figures of a unit."""
    names = {slot.number: slot.recorded for slot in tile.slots}
    exact = {slot.number: slot for slot in tile.slots if slot.name.startswith(_EXACT)}
    marks = [slot.spans.start for slot in exact.values() if slot.name.startswith("INSTR_EVENT_")]
    last = max((int(slot.spans.end.max()) for slot in tile.slots if len(slot.spans.end)), default=1)
    edges = sorted({0, last, *itertools.chain.from_iterable(own.tolist() for own in marks)})
    stretches = tuple(itertools.pairwise(edges))
    return Outline(
        unit=tile.unit.value,
        row=tile.row,
        column=tile.column,
        names=tuple(names.get(number, "NONE") for number in range(8)),
        exact={number: tuple(_times(slot)) for number, slot in exact.items()},
        stretches=stretches,
        amounts={
            slot.number: tuple(_amounts(slot, stretches))
            for slot in tile.slots
            if slot.number not in exact and len(slot.spans.start)
        },
    )


def _times(slot: SlotTrace) -> Iterator[tuple[int, int | None]]:
    for start, end, missing in zip(*(part.tolist() for part in slot.spans[:3]), strict=True):
        yield start, None if missing else end


def _amounts(slot: SlotTrace, stretches: Iterable[tuple[int, int]]) -> Iterator[tuple[int, Amount]]:
    for number, (begin, end) in enumerate(stretches):
        lengths = np.minimum(slot.spans.end, end) - np.maximum(slot.spans.start, begin)
        if (lengths := lengths[lengths > 0]).size:
            yield number, Amount(len(lengths), int(lengths.sum()), int(lengths.max()))


def _laid(amounts: Mapping[int, Amount], begin: int, end: int) -> list[Span]:
    """Spans of these amounts, one after the other and evenly apart, up to the end."""
    order = sorted(
        ((place + 0.5) / own.spans, slot, length)
        for slot, own in amounts.items()
        for place, length in enumerate(_lengths(own))
    )
    free = end - begin - sum(length for _, _, length in order)
    spans, at = [], begin
    for place, (_, slot, length) in enumerate(order):
        start = at + free * (place + 1) // len(order) - free * place // len(order)
        spans.append(Span(slot, start, at := start + length))
    return spans


def _lengths(amount: Amount) -> list[int]:
    """The longest first; the others share the rest."""
    others, rest = amount.spans - 1, amount.cycles - amount.longest
    return [amount.longest, *(rest * (place + 1) // others - rest * place // others for place in range(others))]


def _unended(tile: Tile) -> Tile:
    """Raw words do not say when the last events end."""
    last = max(span.end or span.start for span in tile.spans)
    return tile._replace(spans=[span._replace(end=None) if span.end == last else span for span in tile.spans])


class Captures(NamedTuple):
    """A directory with captures."""

    folder: Path

    def json(self, name: str) -> Path:
        """The events of one as mlir-aie writes them."""
        return self.folder / f"{name}.perfetto.json"

    def words(self, name: str) -> Path:
        """The raw words of one."""
        return self.folder / f"{name}.words.txt"

    def core(self, name: str) -> TileTrace:
        """The first core of one."""
        return read_tiles(self.json(name))[0].cores[0]


def made(folder: Path) -> Captures:
    """Captures of all outlines."""
    for path in OUTLINES.glob("*.json"):
        tiles = [own.tile() for own in msgspec.json.decode(path.read_bytes(), type=list[Outline])]
        if path.stem in WORDS:
            (folder / f"{path.stem}.words.txt").write_bytes(words_text(tiles))
            tiles = [_unended(tile) for tile in tiles]
        (folder / f"{path.stem}.perfetto.json").write_bytes(b"".join(json_text(tiles)))
    return Captures(folder)


if __name__ == "__main__":
    for captured in Path(sys.argv[1]).glob("*.perfetto.json"):
        outlines = [msgspec.to_builtins(outline(tile)) for tile in read_tiles(captured)[0].tiles]
        lines = ",\n".join(json.dumps(own, separators=(",", ":")) for own in outlines)
        (OUTLINES / f"{captured.name.partition('.')[0]}.json").write_text(f"[{lines}]\n")
