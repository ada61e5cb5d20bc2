"""Language models among .onnx: what ONNX Runtime's generative tools and others export, with ``genai_config.json``."""

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
"""Beside a model: what ONNX Runtime's generative library calls it with."""
_SHARING = frozenset({"GroupQueryAttention"})
"""They read and write a buffer with all places, told how many are used."""


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
    """How tokens are chosen."""

    past_present_share_buffer: bool = False
    max_length: Annotated[int, msgspec.Meta(ge=1, le=_LONGEST)] | None = None


class GenerativeConfig(msgspec.Struct):
    """What matters here of ``genai_config.json``.

    Source: ``src/config.h`` of onnxruntime-genai 0.18.
    """

    model: _Model = msgspec.field(default_factory=_Model)
    search: _Search = msgspec.field(default_factory=_Search)


def onnx_language_model(program: Path) -> LanguageModel | None:
    """The language model that a program is; None for any other."""
    model = read_onnx(program)
    config = _config(program)
    inputs = [(one.name, one) for one in signature_of(model, program).inputs]
    words = next(iter(index_limits(program).values()), None) if inputs else None
    sharing = any(node.op in _SHARING for node in model.graph.nodes)
    return language_model(
        inputs,
        vocabulary=(config.model.vocab_size if config else None) or words,
        context=_context(config),
        shared=bool(sharing and config and config.search.past_present_share_buffer),
        width=config.model.decoder.head_size if config else None,
    )


def program_in(directory: Path) -> Path | None:
    """The graph of a folder that ONNX Runtime's generative library reads; None where it is none."""
    config = _config(directory / CONFIG)
    return directory / Path(config.model.decoder.filename).name if config else None


def shared_outputs(inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """The cache of an input that each output leaves, by the name of the output: both are in one order."""
    before = [name for name in inputs if is_cache(name)]
    after = [name for name in outputs if name.startswith("present") or is_cache(name)]
    return dict(zip(after, before, strict=True)) if len(before) == len(after) else {}


def _context(config: GenerativeConfig | None) -> int | None:
    limits = (config.model.context_length, config.search.max_length) if config else ()
    return min((one for one in limits if one), default=None)


def _config(program: Path) -> GenerativeConfig | None:
    """What stands beside a program; None where there is nothing.

    Raises:
        TraceFormatError: what stands there is damaged: measured without it, the model would be called in another way.
    """
    file = program.with_name(CONFIG)
    if not file.is_file():
        return None
    try:
        return from_json(bytes(mapped_file(file)), GenerativeConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = "export the model again; or move this file away, to call the graph without it"
        raise TraceFormatError(f"not a configuration of a generative model: {error}", where=file, hint=hint) from error
