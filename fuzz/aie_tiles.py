"""Traces of AI Engine tiles for fuzzing: seeds, and readings that are compared with plain ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from aie_traces import Tile

WHERE = Path("fuzzed")


def tiles() -> list[Tile]:
    """A core with a gap as wide as Event_Sync, and a memory tile whose slots overlap."""
    from aie_traces import Span, Tile

    names = ["INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR", "LOCK_STALL", *["NONE"] * 4]
    calls = [Span(slot, 90 * n + at, 90 * n + at + 1) for n in range(1, 9) for slot, at in ((0, 1), (2, 7), (1, 60))]
    core = Tile("core", 2, 4, names, (*calls, Span(3, 300_000, 300_017)), timer=1 << 40)
    ports = Tile("memtile", 1, 4, ["PORT_RUNNING_0"] * 8, (Span(0, 1, 40), Span(7, 30, 50), Span(0, 1100, 1101)))
    return [core, ports]


def json_traces() -> list[bytes]:
    """They in JSON: a list, and objects in two layouts."""
    from aie_traces import records

    listed = list(records(tiles()))
    whole = {"displayTimeUnit": "ns", "traceEvents": listed}
    texts = json.dumps(listed), json.dumps(whole, indent=1), json.dumps(whole, sort_keys=True)
    return [text.encode() for text in texts]


def read_json(data: bytes) -> object:
    """Spans as arrays, of small windows so that borders are met, compared with those that json.loads leads to."""
    from aie_traces import plain_spans, spans_read
    from opscope.npu.readers import json as aie_json
    from opscope.npu.readers import json_text as aie_json_text

    with mock.patch.object(aie_json_text, "_WINDOW", 400):
        found = aie_json.read_json(data, WHERE)
    with suppress(ValueError):  # truncated, or damaged behind the list
        whole = json.loads(data)
        named = {tile.pid for tile in found.tiles}
        plain = plain_spans(whole if isinstance(whole, list) else whole["traceEvents"])
        assert spans_read(found.tiles) == {key: spans for key, spans in plain.items() if key[0] in named}
    return found.table()


def words_traces() -> list[bytes]:
    """They as raw words, in text and binary."""
    from aie_traces import words_of, words_text

    words = [*words_of(tiles()), 0, 0, 0]
    return [words_text(tiles()), b"".join(word.to_bytes(4, "little") for word in words)]


def read_words(data: bytes) -> object:
    """Spans as arrays, those of units that lost nothing compared with a decoding command by command."""
    from aie_traces import flat, plain_events
    from opscope.core.table.tiles import TraceMode
    from opscope.npu.readers import words as aie_packets
    from opscope.npu.readers import words as aie_words

    found = aie_words.read_words(data, WHERE)
    units = aie_packets.framed(aie_words.parse_words(data, WHERE)[0]).units
    for tile, unit in zip(found.tiles, units, strict=True):
        if tile.mode is TraceMode.EVENT_TIME and not unit.lost_before.any():
            ours = [(time, begin, slot) for _, time, begin, slot in flat(tile.slots)]
            assert ours == plain_events(unit.words.astype(">u4").tobytes())
    return found.table()
