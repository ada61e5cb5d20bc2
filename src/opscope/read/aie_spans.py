"""From begins and ends in stream order to the spans of each slot; what does not fit together is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.table.tiles import Spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.table.nesting import Ints

    Mask = NDArray[np.bool_]


class SlotEvents(NamedTuple):
    """The events of one slot in stream order; arrays of one length.

    Attributes:
        time: in cycles.
        begin: whether the slot became active.
        order: place among all events of the trace.
    """

    time: Ints
    begin: Mask
    order: Ints


class Paired(NamedTuple):
    """Spans of a slot.

    Attributes:
        spans: in stream order.
        without_begin: ends that close nothing; they are in no span.
        begun_again: begins while the slot was active; the span before is left open and ends there.
        backwards: spans that would end before they start; they are left out.
    """

    spans: Spans
    without_begin: int
    begun_again: int
    backwards: int


def paired(events: SlotEvents, last: int) -> Paired:
    """Put begins and ends together.

    Args:
        events: of one slot.
        last: time at which a span without an end stops.
    """
    time, begin, order = events
    begins = np.flatnonzero(begin)
    following = np.minimum(begins + 1, max(len(time) - 1, 0))
    final = begins + 1 >= len(time)
    unfinished = final | begin[following]
    start = time[begins]
    end = np.where(final, np.maximum(start, last), time[following])
    kept = end >= start
    spans = Spans(start, end, unfinished, order[begins], np.where(unfinished, -1, order[following]))
    if not kept.all():
        spans = spans.only(kept)
    return Paired(
        spans=spans,
        without_begin=int((~begin).sum()) - int((~unfinished).sum()),
        begun_again=int((unfinished & ~final).sum()),
        backwards=int((~kept).sum()),
    )
