"""Ticks: the times of traces whose clock does not count nanoseconds, and their conversion.

Runners without an operating system and runners of DSPs write what their counter says: cycles of the processor, or of a
timer. A file of them does not tell how long a tick is; the user does, as a frequency (``200MHz``) or a length (``us``).
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from opscope.core.errors import TraceFormatError, UsageError

if TYPE_CHECKING:
    from opscope.core.table.events import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.core.table.segment import Segment

OPTION = "--ticks"
_FORM = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)? ?(?P<unit>[a-zµ]{1,3})", re.IGNORECASE)
_LENGTHS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6}
_FREQUENCIES_HZ = {"hz": 1, "khz": 10**3, "mhz": 10**6, "ghz": 10**9}
_SHORTEST_NS, _LONGEST_NS = Fraction(1, 10), Fraction(10**7)
"""Ticks of 10 GHz, which no processor reaches, and of 100 Hz, as the slowest timers of operating systems have them."""
_LARGEST = 1 << 62
_EXAMPLE = "give the frequency of the runner's clock, such as 200MHz, or the length of a tick: ns, us or 52ns"


def read_tick_length(text: str) -> Fraction:
    """Return the length of a tick in ns, given as a frequency or as a length.

    Raises:
        UsageError: it is neither, or no clock has it.
    """
    form = _FORM.fullmatch(text.strip())
    unit = form["unit"].lower() if form else ""
    number = Fraction(form["number"] or 1) if form else Fraction(0)
    if unit in _FREQUENCIES_HZ and form and form["number"]:
        length = Fraction(10**9) / (number * _FREQUENCIES_HZ[unit]) if number else Fraction(0)
    elif unit in _LENGTHS_NS:
        length = number * _LENGTHS_NS[unit]
    else:
        raise UsageError(f"{text!r} is neither a frequency nor a time", where=OPTION, hint=_EXAMPLE)
    if not _SHORTEST_NS <= length <= _LONGEST_NS:
        raise UsageError(f"no clock has ticks of {text}: 100 Hz to 10 GHz are", where=OPTION, hint=_EXAMPLE)
    return length


def convert_ticks(table: EventTable, tick_ns: Fraction, where: str) -> EventTable:
    """Return a table of ticks with its times in ns, counted from its first event.

    Starts and ends are rounded to whole nanoseconds, so events that lie in each other still do. ``where`` names the
    file, for messages.

    Raises:
        TraceFormatError: a time is too large to be converted.
    """
    first = min((int(segment.start.min(initial=_LARGEST)) for trace in table.traces for segment in trace), default=0)
    traces = tuple(
        tuple(_convert_segment(segment, first, tick_ns, where) for segment in trace) for trace in table.traces
    )
    return replace(table, traces=traces)


def _convert_segment(segment: Segment, first: int, tick_ns: Fraction, where: str) -> Segment:
    start = _scale_times(segment.start - first, tick_ns, where)
    end = _scale_times(segment.start + segment.duration - first, tick_ns, where)
    resolution = np.maximum(_scale_times(segment.columns["resolution"], tick_ns, where), 1)
    # Starts that were not measured may lie outside of the parent, so that such durations are rounded by themselves.
    own_duration = segment.duration * tick_ns.numerator // tick_ns.denominator
    duration = np.where(segment.columns["synthetic_start"], own_duration, end - start)
    return replace(segment, start=start, duration=duration).with_columns(resolution=resolution)


def _scale_times(ticks: Ints, tick_ns: Fraction, where: str) -> Ints:
    if int(ticks.max(initial=0)) > _LARGEST // tick_ns.numerator:
        hint = f"leave out {OPTION}, or give a shorter tick"
        raise TraceFormatError("a time is too large for ticks of this length", where=where, hint=hint)
    scaled: Ints = (ticks * tick_ns.numerator + tick_ns.denominator // 2) // tick_ns.denominator
    return scaled
