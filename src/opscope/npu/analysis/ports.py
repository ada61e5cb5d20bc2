"""Stream ports of a core: which operand of a matrix product each carries, in transfers of how many cycles.

A trace has the cycles in which a port moved data. They add up to whole buffers, and a part of one where the trace ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.program.cost.gemm import Operand

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import SlotTrace, Spans, TileTrace
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.program.cost.gemm import Tiling

PORT = "PORT_RUNNING_"
"""How the events of ports that move data begin."""
_AHEAD = 4
"""Buffers that an input may be ahead of the calls, or behind those of a trace that began in the middle of a run."""
_MOST = 0.5


class Port(msgspec.Struct, frozen=True):
    """What a stream port moved.

    Attributes:
        slot: of its event.
        name: of its event.
        busy_cycles: in which it moved data, in the whole trace.
        busy_per_call: the same for one period of the multiplying calls, as measured between the first and the last
            start of such a call; null with fewer than two.
        operands: those whose buffers fit; several when the trace cannot tell them apart, none when none fits.
        buffer_bytes: of one transfer; null without an operand.
        transfer_cycles: of one transfer; null without an operand.
        transfers: whole ones in the trace; null without an operand.
        partial_cycles: of the transfer that the end of the trace cuts; null without an operand.
        cycles_per_call: that the port needs for one multiplying call: of the transfers where the operand is known, else
            ``busy_per_call``.
        reason: how the operand was found, or why there is none.
    """

    slot: int
    name: str
    busy_cycles: int
    busy_per_call: float | None
    operands: tuple[str, ...]
    buffer_bytes: int | None
    transfer_cycles: int | None
    transfers: int | None
    partial_cycles: int | None
    cycles_per_call: float | None
    reason: str

    @property
    def label(self) -> str:
        """The operand and its direction, or the name of the event where that is not known."""
        if not self.operands:
            return self.name
        direction = "output" if self.operands == (Operand.C.value,) else "input"
        if Operand.C.value in self.operands and len(self.operands) > 1:
            return f"{' or '.join(self.operands)} stream"
        return f"{' or '.join(self.operands)} {direction} stream"


class _Fit(NamedTuple):
    """A buffer whose transfers could be those of a port: its operand, size, and how far the count is from the calls."""

    operand: Operand
    bytes: int
    cycles: int
    distance: float


def ports(
    tile: TileTrace, work: MacCalls, tiling: Tiling | None, stream_bytes: int | None, dtype: str | None
) -> tuple[Port, ...]:
    """Find what each traced and used port of a core carries."""
    used = [slot for slot in tile.slots if slot.name.startswith(PORT) and len(slot.spans.start)]
    missing = _missing_values(work, tiling, stream_bytes, dtype)
    if missing or tiling is None or stream_bytes is None or dtype is None:
        return tuple(_port_row(slot, work, (), None, f"operand unknown: {missing}") for slot in used)
    fits = [_matching_buffers(slot.spans, work, tiling, stream_bytes, dtype) for slot in used]
    each = tiling.calls_per_output
    return tuple(_port_row(slot, work, own, each) for slot, own in zip(used, _resolve_operands(fits), strict=True))


def _missing_values(work: MacCalls, tiling: Tiling | None, stream_bytes: int | None, dtype: str | None) -> str:
    if not work.number:
        return "no call multiplies"
    absent = [
        name
        for name, value in (("tile sizes m, k, n", tiling), ("architecture", stream_bytes), ("type of operands", dtype))
        if value is None
    ]
    return f"{', '.join(absent)} not given" if absent else ""


def busy_cycles(spans: Spans, begin: int, end: int) -> int:
    """Cycles of spans within [begin, end)."""
    return int((np.clip(spans.end, begin, end) - np.clip(spans.start, begin, end)).sum())


def _matching_buffers(spans: Spans, work: MacCalls, tiling: Tiling, stream_bytes: int, dtype: str) -> list[_Fit]:
    """Buffers whose number of transfers goes with the number of calls; the nearest width of each operand."""
    sums, fits = np.cumsum(spans.end - spans.start), []
    for operand in Operand:
        sizes = tiling.buffer_bytes(operand, dtype)
        own = [
            fit
            for size in sizes
            if (fit := _matching_buffer(operand, size, -(-size // stream_bytes), sums, work, tiling))
        ]
        fits += sorted(own, key=lambda fit: (fit.distance, -_share_ending_at_pauses(sums, fit.cycles)))[:1]
    if spans.start[0] >= work.end[0]:
        return _likeliest_buffers(fits, sums)
    inputs = [fit for fit in fits if fit.operand is not Operand.C]
    weak = tiling.calls_per_output is None
    return _likeliest_buffers(inputs if weak or inputs else fits, sums)


def _matching_buffer(
    operand: Operand, size: int, cycles: int, sums: Ints, work: MacCalls, tiling: Tiling
) -> _Fit | None:
    """A buffer whose number of transfers goes with the calls; None: too far from what these need, or none at all.

    Without K it is not known how many buffers of C there should be; then the port must pause after most of them.
    """
    transfers, each = int(sums[-1]) // cycles, tiling.calls_per_output
    if operand is Operand.C and each is None:
        fits = 0 < transfers <= work.number and _share_ending_at_pauses(sums, cycles) > _MOST
        return _Fit(operand, size, cycles, float(_AHEAD)) if fits else None
    needed = work.number / (each or 1) if operand is Operand.C else work.number + work.begun
    distance = abs(transfers - needed)
    return _Fit(operand, size, cycles, distance) if transfers > 0 and distance <= _AHEAD else None


def _likeliest_buffers(fits: list[_Fit], sums: Ints) -> list[_Fit]:
    """Select the buffers whose transfers end where the port paused; all of them if that tells nothing."""
    if len(fits) < 2:  # noqa: PLR2004 - one cannot be told from another
        return fits
    shares = [_share_ending_at_pauses(sums, fit.cycles) for fit in fits]
    return [fit for fit, share in zip(fits, shares, strict=True) if share == max(shares)]


def _share_ending_at_pauses(sums: Ints, cycles: int) -> float:
    whole = int(sums[-1]) // cycles
    return float((sums % cycles == 0).sum()) / whole if whole else 0.0


def _resolve_operands(fits: Sequence[list[_Fit]]) -> list[tuple[_Fit, ...]]:
    """Take operands that only one port can carry from the others."""
    left = [list(own) for own in fits]
    for _ in Operand:
        sure = {own[0].operand for own in left if len(own) == 1}
        left = [own if len(own) == 1 else [fit for fit in own if fit.operand not in sure] or own for own in left]
    return [tuple(own) for own in left]


def _port_row(
    slot: SlotTrace, work: MacCalls, fits: tuple[_Fit, ...], each: int | None, reason: str | None = None
) -> Port:
    busy = int((slot.spans.end - slot.spans.start).sum())
    measured = None
    if work.number > 1:
        measured = busy_cycles(slot.spans, int(work.start[0]), int(work.start[-1])) / (work.number - 1)
    sizes = {fit.bytes for fit in fits}
    if len(sizes) != 1:
        why = reason or (_SEVERAL if sizes else _NONE)
        return Port(slot.number, slot.name, busy, measured, _operand_names(fits), None, None, None, None, measured, why)
    transfers, partial = divmod(busy, fits[0].cycles)
    needed = _per_call(fits, transfers, work, each)
    facts = (sizes.pop(), fits[0].cycles, transfers, partial, needed)
    return Port(
        slot.number, slot.name, busy, measured, _operand_names(fits), *facts, _ONE if len(fits) == 1 else _ALIKE
    )


def _per_call(fits: tuple[_Fit, ...], transfers: int, work: MacCalls, each: int | None) -> float:
    if any(fit.operand is not Operand.C for fit in fits):
        return float(fits[0].cycles)
    return fits[0].cycles / each if each else fits[0].cycles * transfers / work.number


_ONE = "its busy cycles match the number of buffers that the calls need"
_ALIKE = "these operands have equal buffer sizes, and the calls need equally many of each"
_SEVERAL = "several buffer sizes match its busy cycles"
_NONE = "no buffer of this tile matches its busy cycles: different size or type, or other data"


def _operand_names(fits: Iterable[_Fit]) -> tuple[str, ...]:
    return tuple(fit.operand.value for fit in fits)
