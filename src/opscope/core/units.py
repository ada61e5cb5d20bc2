"""The one place where integers become text: time, size, count, share, ratio.

Inside opscope time is an integer number of nanoseconds (or cycles) and size an integer number of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TIME_STEPS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_COUNT_STEPS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
_SHOWN_NS = 500.0
"""The shortest time that does not show as 0.000 ms."""
_SIZE_STEPS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def time_text(nanoseconds: float) -> str:
    """Nanoseconds with three significant digits in the unit that fits: ``1.83 ms``, ``412 µs``, ``0 ns``."""
    for factor, unit in _TIME_STEPS:
        if abs(nanoseconds) >= factor * 0.9995:
            return f"{_three_digits(nanoseconds / factor)} {unit}"
    return f"{nanoseconds:.0f} ns"


def milliseconds(nanoseconds: float) -> str:
    """Nanoseconds as milliseconds with three decimals and no unit, for table columns headed ``ms``."""
    return f"{nanoseconds / 1e6:.3f}"


def milliseconds_in_table(nanoseconds: float) -> str:
    """Return milliseconds with three decimals; ``0`` for no time, ``<0.001`` for a shorter one."""
    text = milliseconds(nanoseconds)
    if text.strip("-0."):
        return text
    if not nanoseconds:
        return "0"
    return "<0.001" if nanoseconds > 0 else ">-0.001"


def size_text(count: int) -> str:
    """Bytes in binary units: ``27.2 KiB``, ``9.81 MiB``, ``85 B``."""
    for factor, unit in _SIZE_STEPS:
        if count >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return f"{count} B"


def count_text(count: int) -> str:
    """A number of things with three significant digits: ``1.81 G``, ``22.4 M``, ``640``."""
    for factor, unit in _COUNT_STEPS:
        if count >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return str(count)


def counted_text(count: int, noun: str, form: str = "") -> str:
    """A number, in a format such as ``,``, with its noun, whose plural ends in s: ``1 operator``, ``12 operators``."""
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"


def macs_text(count: int) -> str:
    """Multiply-accumulates: ``1.81 GMAC``, ``640 MAC``."""
    text = count_text(count)
    return f"{text}MAC" if text[-1].isalpha() else f"{text} MAC"


def rate_text(value: float) -> str:
    """A rate in the unit of its column, with three significant digits."""
    return _three_digits(value)


def share_text(share: float) -> str:
    """A fraction as a percentage with one decimal: ``0.397`` is ``39.7 %``."""
    return f"{share * 100:.1f} %"


def signed_share_text(change: float) -> str:
    """A change as a percentage with its sign: ``+3.1 %``, ``-0.4 %``."""
    return f"{change * 100:+.1f} %"


def interval_text(ends: tuple[float, float], form: Callable[[float], str]) -> str:
    """Both ends of an interval, each in that form: ``[1.15x, 1.26x]``."""
    return f"[{form(ends[0])}, {form(ends[1])}]"


def range_text(low: str, high: str) -> str:
    """Both ends of a range in words, once where they print alike."""
    return low if low == high else f"{low} to {high}"


def ratio_text(ratio: float) -> str:
    """A speedup with two decimals: ``1.83x``."""
    return f"{ratio:.2f}x"


def ratio_of_times(baseline_ns: float | None, candidate_ns: float | None) -> float | None:
    """Baseline over candidate; None where one of them is missing, or so short that it shows as 0.000 ms."""
    if baseline_ns is None or candidate_ns is None or min(baseline_ns, candidate_ns) < _SHOWN_NS:
        return None
    return baseline_ns / candidate_ns


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:  # noqa: PLR2004 - three digits stand before the point from here on
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"  # noqa: PLR2004 - likewise two digits
