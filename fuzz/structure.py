"""Inputs that are changed as what they mean, and only then written as bytes.

Damage to bytes rarely gives a file that is whole and odd. A structure is: its events, commands or packets are moved,
repeated and given extreme values, and offsets, lengths and checksums are right again afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


class Structure(NamedTuple):
    """How the inputs of a target are built. Values of it are immutable; of what type is its own affair.

    Attributes:
        starts: gives the values to start from.
        changed: gives a changed copy of a value; parts may be taken from a second one.
        written: gives the bytes of a value.
    """

    starts: Callable[[], list[Any]]
    changed: Callable[[Random, Any, Any], Any]
    written: Callable[[Any], bytes]


class FindingError(AssertionError):
    """A target did what it must not do; the message tells it from other findings."""
