"""Readers with one fault each, to see that the fuzzer finds it."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from fuzz.targets import Target

SEED = b"a valid input"


def _target(name: str, fault: object) -> Target:
    """A reader that does what it should not with any input of another length."""
    return Target(name, __name__, lambda data: fault() if len(data) != len(SEED) else data, lambda: [SEED])


def _raise() -> None:
    raise KeyError("version")


def _hang() -> None:
    while True:
        pass


def _grow() -> bytes:
    return bytes(2 << 30)


def _crash() -> None:
    ctypes.string_at(0)


raises = _target("raises", _raise)
hangs = _target("hangs", _hang)
grows = _target("grows", _grow)
crashes = _target("crashes", _crash)
sound = _target("sound", lambda: None)
