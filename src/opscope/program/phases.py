"""Phases of a language model: reading a prompt, and making one token after another.

A call that stands for a phase is named by it: ``prefill_128`` reads 128 tokens, ``decode_at_10`` makes the
token at position 10, ``decode_at_10_of_4096`` does so with 4,096 places allocated for keys and values,
``prefill_128_at_10`` reads 128 tokens after 10 others, ``decode_64_at_10`` makes 64, one after the other, as
tools time them. Text after a blank distinguishes settings: ``decode_64_at_0 n_threads=4``.
"""

from __future__ import annotations

import enum
import re

import msgspec

_NAME = re.compile(
    r"(?:prefill|decode)(?:_(?P<tokens>[1-9]\d{0,6}))?(?:_at_(?P<position>0|[1-9]\d{0,6}))?"
    r"(?:_of_(?P<cache>[1-9]\d{0,6}))?(?: .+)?\Z",
    re.DOTALL,
)
_PREFILL = "prefill"
_BEFORE_LABEL = " · "


def population_name(method: str | None, label: str) -> str:
    """Return the name of the calls of one kind of a method; without a method the trace does not name it."""
    return f"{method or 'calls'}{_BEFORE_LABEL}{label}"


def without_population(name: str) -> tuple[str, str]:
    """Return the method of calls of one kind, and the label of the kind, which is empty for calls of any kind."""
    method, _, label = name.partition(_BEFORE_LABEL)
    return method, label


class PhaseKind(str, enum.Enum):
    """Kind of a language model's work in a call."""

    PREFILL = "prefill"
    """Tokens of the prompt are read, all at once."""
    DECODE = "decode"
    """One token is made from those before it."""


class Phase(msgspec.Struct, frozen=True):
    """Work of a language model in a call.

    Attributes:
        kind: the phase.
        tokens: that a call reads or makes; null where it is not known.
        position: of the first of them, which is the number of tokens before it; null likewise.
        cache: places that are allocated for keys and values of tokens; null likewise.
    """

    kind: PhaseKind
    tokens: int | None = None
    position: int | None = None
    cache: int | None = None


def phase_of(name: str, tokens: int | None = None) -> Phase | None:
    """Return the phase that a call's name states; None if it is no phase.

    ``tokens`` is the number of tokens of a call, where it is known. A name without a number is not enough, since
    image models also have methods called ``decode``. A call with known tokens and any other name makes one token or
    reads several.
    """
    form = _NAME.match(name)
    numbers = form.group("tokens", "position", "cache") if form else (None, None, None)
    named_tokens, position, cache = (int(text) if text else None for text in numbers)
    reads = name.startswith(_PREFILL) if form else (tokens or 1) > 1
    if tokens is None and position is None and not (reads and named_tokens):
        return None
    if reads:
        return Phase(PhaseKind.PREFILL, tokens or named_tokens, (position or 0) if form else None, cache)
    return Phase(PhaseKind.DECODE, tokens or named_tokens or 1, position, cache)


def phase_name(phase: Phase) -> str:
    """Return the name of a call that stands for a phase of reading or making tokens."""
    cache = f"_of_{phase.cache}" if phase.cache else ""
    if phase.kind is PhaseKind.PREFILL:
        behind = f"_at_{phase.position}" if phase.position else ""
        return f"{_PREFILL}_{phase.tokens}{behind}{cache}"
    made = f"_{phase.tokens}" if (phase.tokens or 1) > 1 else ""
    return f"decode{made}_at_{phase.position}{cache}"
