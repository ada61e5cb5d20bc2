"""Recognise language models among .onnx files, as ONNX Runtime's generative tools and others export them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.readers.compressed import mapped_file
from opscope.runtimes.language import LanguageModel, is_cache, language_model
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.signatures import index_limits, signature_of

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG = "genai_config.json"
"""Name of the file beside a model that ONNX Runtime's generative library reads."""
_SHARING = frozenset({"GroupQueryAttention"})
"""Operators that read and write one buffer for all tokens, and are told how many tokens it holds."""


_WIDEST, _LONGEST = 1 << 16, 1 << 30


class _Decoder(msgspec.Struct):
    """The graph that makes tokens."""

    filename: Annotated[str, msgspec.Meta(min_length=1)] = "model.onnx"
    head_size: Annotated[int, msgspec.Meta(ge=1, le=_WIDEST)] | None = None


class _Model(msgspec.Struct):
    """The model in its files."""

    decoder: _Decoder = msgspec.field(default_factory=_Decoder)
    context_length: Annotated[int, msgspec.Meta(ge=1, le=_LONGEST)] | None = None
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=_LONGEST)] | None = None


class _Search(msgspec.Struct):
    """Settings of the choice of tokens."""

    past_present_share_buffer: bool = False
    max_length: Annotated[int, msgspec.Meta(ge=1, le=_LONGEST)] | None = None


class GenerativeConfig(msgspec.Struct):
    """The used part of ``genai_config.json``.

    Source: ``src/config.h`` of onnxruntime-genai 0.18.
    """

    model: _Model = msgspec.field(default_factory=_Model)
    search: _Search = msgspec.field(default_factory=_Search)


def onnx_language_model(program: Path) -> LanguageModel | None:
    """Return the language model that a program is; None for any other program."""
    model = read_onnx(program)
    config = _read_config(program)
    inputs = [(tensor.name, tensor) for tensor in signature_of(model, program).inputs]
    words = next(iter(index_limits(program).values()), None) if inputs else None
    sharing = any(node.op in _SHARING for node in model.graph.nodes)
    return language_model(
        inputs,
        vocabulary=(config.model.vocab_size if config else None) or words,
        context=_context_length(config),
        shared=bool(sharing and config and config.search.past_present_share_buffer),
        width=config.model.decoder.head_size if config else None,
    )


def program_in(directory: Path) -> Path | None:
    """Return the graph in a folder that ONNX Runtime's generative library reads; None for other folders."""
    config = _read_config(directory / CONFIG)
    return directory / Path(config.model.decoder.filename).name if config else None


def shared_outputs(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Match each output with the cache input that it updates, by name of the output; both are in the same order.

    Empty if their numbers differ.
    """
    before = [name for name in inputs if is_cache(name)]
    after = [name for name in outputs if name.startswith("present") or is_cache(name)]
    return dict(zip(after, before, strict=True)) if len(before) == len(after) else {}


def _context_length(config: GenerativeConfig | None) -> int | None:
    limits = (config.model.context_length, config.search.max_length) if config else ()
    return min((limit for limit in limits if limit), default=None)


def _read_config(program: Path) -> GenerativeConfig | None:
    """Read the configuration beside a program; None if there is none.

    Raises:
        TraceFormatError: it is damaged: measured without it, the model would be called in another way.
    """
    file = program.with_name(CONFIG)
    if not file.is_file():
        return None
    try:
        return from_json(bytes(mapped_file(file)), GenerativeConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = "export the model again; or move this file away, to call the graph without it"
        raise TraceFormatError(f"not a configuration of a generative model: {error}", where=file, hint=hint) from error
