"""``transformers:CONFIGCLASS``: any architecture of Hugging Face's transformers, small and with random weights.

The configuration class is made with small sizes where it has such parameters, the model with
``AutoModel.from_config``; nothing is downloaded. A wrapper takes positional tensors and gives a tuple of tensors.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, NotFoundError, UsageError, did_you_mean
from opscope.runtimes.executorch.export.foreign import built

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel, Inputs

_SEED = 0
_TOKENS, _WORDS, _WIDTH, _HEADS, _LAYERS, _HIDDEN, _PLACES = 32, 1000, 64, 4, 2, 128, 128
_IMAGE, _SAMPLES = 64, 16_000
_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "hidden_dim_size"), _WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads"), _HEADS),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), _LAYERS),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim"), _HIDDEN),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), _HIDDEN),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), _PLACES),
    "vocab_size": _WORDS,
    "image_size": _IMAGE,
    "head_dim": _WIDTH // _HEADS,
    "d_kv": _WIDTH // _HEADS,
}
"""Sizes that make a model small, by the names that architectures use."""
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")


def transformers_model(config_class: str) -> EagerModel:
    """A small random model of a configuration class, as ``BertConfig``.

    Raises:
        MissingDependencyError: transformers is not installed.
        NotFoundError: it has no such configuration.
        ExportError: the model cannot be built with such sizes, or the package that it needs is missing.
    """
    if find_spec("transformers") is None:
        hint = "install it with: pip install 'opscope[transformers]'"
        raise MissingDependencyError("transformers is not installed", where=f"transformers:{config_class}", hint=hint)
    import transformers

    if not config_class.endswith("Config") or not hasattr(transformers, config_class):
        known = [name for name in dir(transformers) if name.endswith("Config")]
        problem = f"transformers {transformers.__version__} has no configuration {config_class!r}"
        raise NotFoundError(problem, hint=did_you_mean(config_class, known))
    return built(lambda: _build(config_class), f"transformers:{config_class}")


def _build(config_class: str) -> tuple[Any, Inputs]:
    import torch
    import transformers

    torch.manual_seed(_SEED)
    config = small_config(getattr(transformers, config_class))
    model = transformers.AutoModel.from_config(config).eval().requires_grad_(requires_grad=False)
    names, inputs = _inputs(model, config)
    return _plain_module(model, names), inputs


def small_config(config_class: Any) -> Any:  # noqa: ANN401 - a class of a library without types here
    """A configuration with small sizes where the class has such parameters, the class's own sizes elsewhere."""
    known = inspect.signature(config_class.__init__).parameters
    sizes = {name: size for name, size in _SMALL.items() if name in known}
    ids = {name: 0 for name in _TOKEN_IDS if "vocab_size" in sizes and _too_large(known, name)}
    return config_class(**sizes, **ids)


def _too_large(known: Any, name: str) -> bool:  # noqa: ANN401 - parameters of a signature
    return name in known and isinstance(known[name].default, int) and known[name].default >= _WORDS


def _inputs(model: Any, config: Any) -> tuple[list[str], Inputs]:  # noqa: ANN401 - likewise
    """Names and example values of the inputs, by what the model says is its main one.

    Raises:
        UsageError: no example can be made of such an input.
    """
    import torch

    main = model.main_input_name
    words = torch.randint(0, getattr(config, "vocab_size", _WORDS), (1, _TOKENS))
    makers = {
        "input_ids": lambda: words,
        "pixel_values": lambda: torch.randn(1, config.num_channels, *_pair(config.image_size)),
        "input_values": lambda: torch.randn(1, _SAMPLES),
        "input_features": lambda: torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions),
    }
    if main not in makers:
        hint = "write a builder of your own (opscope init-model NAME) and wrap the model there"
        raise UsageError(f"no example is known for an input called {main!r}", hint=hint)
    names, inputs = [main], [makers[main]()]
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
        inputs.append(words[:, :_HEADS])
    return names, tuple(inputs)


def _pair(size: Any) -> tuple[int, int]:  # noqa: ANN401 - a number or a pair
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _plain_module(model: Any, names: list[str]) -> Any:  # noqa: ANN401 - likewise
    """The model with positional tensors in and a tuple of tensors out, without the cache that generation keeps."""
    import torch
    from torch.utils import _pytree

    accepted = inspect.signature(model.forward).parameters
    fixed = {"use_cache": False} if "use_cache" in accepted else {}

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = self.model(**dict(zip(names, inputs, strict=True)), **fixed, return_dict=True)
            leaves = _pytree.tree_leaves(dict(found))
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    return Plain()
