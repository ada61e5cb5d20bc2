"""Recognise language models among programs by their inputs, and list the phases that they are called for.

Recognised by the names that exporters give: tokens (``input_ids``, ``tokens``), their positions
(``position_ids``, ``input_pos``), a mask over them and those before (``attention_mask``), and the keys and
values of earlier tokens (``past_key_values.0.key``, ``kv_cache_k_0``).
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.errors import UsageError, did_you_mean
from opscope.core.units import range_text
from opscope.program.phases import Phase, PhaseKind, phase_name, phase_of
from opscope.program.structure.plan import Dynamism, PlannedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.program.structure.plan import NamedValue, Value

_TOKENS = re.compile(r"(?:^|[_.])(?:input_ids|input_tokens|tokens?|token_ids)$")
_POSITIONS = re.compile(r"(?:^|[_.])(?:position_ids|input_pos(?:itions?)?|cache_position)$")
_MASK = re.compile(r"(?:^|[_.])(?:attention_mask|mask)$")
_CACHE = re.compile(r"past|kv_cache|(?:^|[_.])cache")
_CACHE_RANK, _TOKENS_RANK = 4, 2
_MOST_CALLS = 10_000
_PLACES = 2
"""Dimension of a cache that counts tokens: (batch, heads, places, width)."""
PROMPT = 128
LOOP = 16
"""Number of tokens that a round of calls makes at each position, for each prompt that it reads."""
_USUAL_CONTEXT = 1024
_LARGEST_CONTEXT = 4096
"""Largest default number of tokens in a cache: larger caches take much memory."""


class LanguageModel(NamedTuple):
    """A program with one graph that reads a prompt and makes tokens."""

    inputs: Sequence[NamedValue]  # as it declares them
    tokens: str  # name of the input
    vocabulary: int | None  # words that it knows
    context: int | None  # tokens that it was made for; None where no file says so
    # whether keys and values stay in buffers that hold all places, which a call reads and writes; else a call is given
    # those of the tokens before it, and leaves all
    shared: bool
    width: int | None = None  # of a head, where the program leaves it open
    allocated: int | None = None  # places of a cache that the program itself allocates
    counts: range = range(1, sys.maxsize)  # how many tokens a call can take

    @property
    def places(self) -> int:
        """Default number of tokens that a cache holds."""
        return self.allocated or min(self.context or _USUAL_CONTEXT, _LARGEST_CONTEXT)

    def usual(self) -> list[str]:
        """Return the default calls of a process: a prompt, then tokens at an early, a middle and a late position."""
        cache = self.places if self.shared else None
        longest = min(PROMPT, self.places // 2)
        prompts = [Phase(PhaseKind.PREFILL, longest, 0, cache)] if longest in self.counts else []
        at = [min(10, self.places - 1), self.places // 2, self.places - 1]
        tokens = [Phase(PhaseKind.DECODE, 1, position, cache) for position in dict.fromkeys(at)]
        loop = [phase for phase in tokens if 1 in self.counts for _ in range(LOOP)]
        return [phase_name(phase) for phase in (*prompts, *loop)]

    def asked(self, texts: Sequence[str]) -> list[str]:
        """Return the calls that ``NAME`` or ``NAME:COUNT`` asks for, by the full names of their phases."""
        calls = []
        for text in texts:
            name, colon, count = text.partition(":")
            full_name = phase_name(self.phase(name))
            calls += asked_calls([f"{full_name}{colon}{count}"], [full_name])
        return calls

    def phase(self, name: str) -> Phase:
        """Return the phase that a call is named by, with the size of its cache if it has one.

        Raises:
            UsageError: the name is of no phase, or the cache is too small for it.
        """
        phase = phase_of(name)
        if phase is None or phase.position is None or phase.tokens is None or _makes_several(phase):
            hint = "name phases: prefill_128 reads 128 tokens, decode_at_500 makes the token at position 500"
            raise UsageError(f"a language model has no phase {name!r}", where="--methods", hint=hint)
        needed = phase.position + phase.tokens
        if self.shared and phase.cache is None:
            phase = msgspec.structs.replace(phase, cache=self.allocated or max(self.places, needed))
        if self.allocated and phase.cache != self.allocated:
            problem = f"the program allocates {self.allocated:,} places for its cache, not {phase.cache:,}"
            raise UsageError(problem, where="--methods", hint="leave out the size of the cache")
        if phase.tokens not in self.counts:
            hint = f"it takes {range_text(f'{self.counts[0]:,}', f'{self.counts[-1]:,}')} in one call"
            raise UsageError(f"the program does not take the tokens of {name}", where="--methods", hint=hint)
        if not self.shared and phase.cache is not None:
            hint = "leave out the size of the cache: it is that of the tokens before the call"
            raise UsageError("the model allocates no cache", where="--methods", hint=hint)
        if phase.cache is not None and needed > phase.cache:
            larger = phase_name(msgspec.structs.replace(phase, cache=needed))
            hint = f"it has {phase.cache:,}, from 0" if self.allocated else f"for example {larger}"
            raise UsageError(f"the cache of {name} has too few places", where="--methods", hint=hint)
        return phase

    def named(self, name: str) -> list[NamedValue]:
        """Return the inputs of a phase, with their sizes."""
        phase = self.phase(name)
        return [(input_name, self._with_phase_sizes(input_name, value, phase)) for input_name, value in self.inputs]

    def without_cache(self) -> list[tuple[str, PlannedTensor]]:
        """Return the inputs of a prompt that nothing precedes, with an empty cache."""
        phase = Phase(PhaseKind.PREFILL, min(PROMPT, self.places // 2), 0)
        return [(input_name, self._with_phase_sizes(input_name, value, phase)) for input_name, value in self.inputs]

    def words(self, name: str) -> list[str | None]:
        """Return the content of each input of a phase, in the syntax of ``--input``; None for random numbers."""
        phase = self.phase(name)
        return [phase_fill(input_name, value, phase, self.vocabulary) for input_name, value in self.inputs]

    def _with_phase_sizes(self, name: str, value: object, phase: Phase) -> PlannedTensor:
        assert isinstance(value, PlannedTensor)  # noqa: S101 - as :func:`language_model` found it
        before, tokens = phase.position or 0, phase.tokens or 1
        if _CACHE.search(name):
            sizes = [*value.sizes]
            sizes[0], sizes[_PLACES] = 1, before if phase.cache is None else phase.cache
            if any(value.symbols[-1:]) and self.width:
                sizes[-1] = self.width
        elif _is_one_position(name, value):
            sizes = [1]
        else:
            sizes = [*[1] * (len(value.sizes) - 1), before + tokens if _MASK.search(name) else tokens]
        return msgspec.structs.replace(value, sizes=tuple(sizes), symbols=(), dynamism=Dynamism.STATIC)


def language_model(
    inputs: Sequence[NamedValue],
    *,
    vocabulary: int | None,
    context: int | None,
    shared: bool,
    width: int | None = None,
) -> LanguageModel | None:
    """Return the language model that a program with these inputs is; None for any other program."""
    tensors = [(name, value) for name, value in inputs if isinstance(value, PlannedTensor)]
    tokens = [name for name, value in tensors if _TOKENS.search(name) and len(value.sizes) == _TOKENS_RANK]
    caches = [name for name, value in tensors if _CACHE.search(name) and len(value.sizes) == _CACHE_RANK]
    unrecognised = [
        name
        for name, _ in tensors
        if name not in {*tokens, *caches} and not (_MASK.search(name) or _POSITIONS.search(name))
    ]
    if len(tokens) != 1 or not caches or unrecognised or len(tensors) != len(inputs):
        return None
    return LanguageModel(inputs, tokens[0], vocabulary, context, shared, width)


def phase_fill(name: str, value: Value, phase: Phase, vocabulary: int | None = None) -> str | None:
    """Return the content of an input of a phase, in the syntax of ``--input``; None for random numbers."""
    if _TOKENS.search(name):
        return f"random(0,{vocabulary})" if vocabulary else None
    if _MASK.search(name):
        floating = isinstance(value, PlannedTensor) and "float" in value.dtype.name
        return "zeros" if floating else "ones"
    if _POSITIONS.search(name):
        is_single = phase.tokens == 1 or _is_one_position(name, value)
        return str(phase.position) if is_single else f"range({phase.position})" if phase.position else "range"
    return None


def _is_one_position(name: str, value: Value) -> bool:
    """Return whether an input is only the position of the first token, whatever the number of tokens."""
    is_scalar = isinstance(value, PlannedTensor) and value.sizes == (1,) and value.dynamism is Dynamism.STATIC
    return is_scalar and bool(_POSITIONS.search(name))


def declared_phases(methods: Mapping[str, Sequence[NamedValue]]) -> dict[str, Phase]:
    """Return the phase that each method of fixed sizes computes, by its inputs.

    Empty unless all are of a language model.

    A method of one token is taken to make it after the longest prompt that another method reads.
    """
    models = {
        name: language_model(inputs, vocabulary=None, context=None, shared=True) for name, inputs in methods.items()
    }
    if not models or any(model is None for model in models.values()):
        return {}
    sizes = {name: _token_and_cache_sizes(inputs) for name, inputs in methods.items()}
    longest = max(tokens for tokens, _ in sizes.values())
    return {
        name: Phase(PhaseKind.PREFILL, tokens, 0, cache_size)
        if tokens > 1
        else Phase(PhaseKind.DECODE, 1, min(longest, cache_size - 1), cache_size)
        for name, (tokens, cache_size) in sizes.items()
    }


def _token_and_cache_sizes(inputs: Sequence[NamedValue]) -> tuple[int, int]:
    """Return the number of tokens of a call, and the number of tokens that its cache holds."""
    tensors = [(name, value.sizes) for name, value in inputs if isinstance(value, PlannedTensor)]
    tokens = next(sizes[-1] for name, sizes in tensors if _TOKENS.search(name))
    cache_sizes = next(sizes for name, sizes in tensors if _CACHE.search(name))
    return tokens, max(cache_sizes[1:3])


def looped(phases: Mapping[str, Phase]) -> list[str]:
    """Return the calls of a round: each prompt once, and each token method :data:`LOOP` times."""
    return [name for name, phase in phases.items() for _ in range(LOOP if phase.kind is PhaseKind.DECODE else 1)]


def is_cache(name: str) -> bool:
    """Return whether the name of an input says that it holds keys or values of earlier tokens."""
    return bool(_CACHE.search(name))


def _makes_several(phase: Phase) -> bool:
    """Return whether a phase stands for several tokens made one after another, which takes several calls."""
    return phase.kind is PhaseKind.DECODE and (phase.tokens or 1) > 1


def asked_calls(texts: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the calls that users ask for as ``NAME`` or ``NAME:COUNT``; ``names`` are the methods of the program.

    Raises UsageError if a method does not exist or a count is no number.
    """
    return [name for text in texts for name in _repeat_call(text, names)]


def _repeat_call(text: str, names: Sequence[str]) -> list[str]:
    name, colon, count = text.partition(":")
    if name not in names:
        raise UsageError(f"the program has no method {name!r}", where="--methods", hint=did_you_mean(name, names))
    if colon and not (count.isdecimal() and 1 <= int(count) <= _MOST_CALLS):
        hint = f"a number from 1 to {_MOST_CALLS:,}; for example --methods prefill,decode:16"
        raise UsageError(f"{count!r} is not a number of calls", where="--methods", hint=hint)
    return [name] * (int(count) if colon else 1)
