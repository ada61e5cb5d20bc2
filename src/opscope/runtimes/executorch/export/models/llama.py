"""ExecuTorch's own Llama: prefill, and decode at chosen positions of a cache that the program keeps.

The network, its cache and its attention are what ``executorch.extension.llm.export.export_llm`` exports: source and
transformations come from the installed package, with the operators ``llama::update_cache`` and ``llama::custom_sdpa``.
There the position is an input, and such a program is called for its phases as it is. Here every position is a method of
its own, so that a program without that input is measured in the same way.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from opscope.core.errors import UsageError
from opscope.core.units import counted_text
from opscope.runtimes.executorch.export.eager import EagerMethod, EagerModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SEED = 0
PROMPT, POSITIONS, CONTEXT = 128, (10, 1000), 1024
"""Number of tokens of the prompt, positions to decode at, and number of places of the cache."""
SHAPE = {"dim": 128, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 512, "hidden_dim": 384}
"""Shape as in ``params.json`` of a checkpoint: heads of 32 numbers, two heads of queries to one of keys and values."""


class AtPosition(nn.Module):
    """The network with its own cache, reading tokens from one position on."""

    def __init__(self, network: nn.Module, position: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("position", torch.tensor([position]))

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the word that follows, shape (1, words), of tokens (1, count)."""
        scores: Tensor = self.network(words, {"input_pos": self.position})
        return scores


def build() -> EagerModel:
    """Return a small Llama with seeded random weights."""
    return random_llama(SHAPE)


def random_llama(
    shape: Mapping[str, object],
    *,
    context: int = CONTEXT,
    prompt: int = PROMPT,
    positions: Sequence[int] = POSITIONS,
) -> EagerModel:
    """Return a Llama of some shape with seeded random weights."""
    from executorch.extension.llm.export.config.llm_config import LlmConfig

    config = LlmConfig()
    config.model.use_kv_cache = config.model.use_sdpa_with_kv_cache = True
    config.export.max_seq_length = config.export.max_context_length = context
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
        config.base.params = str(Path(directory) / "params.json")
        Path(config.base.params).write_text(json.dumps(dict(shape)))
        # Without a checkpoint ExecuTorch leaves norms and rotary tables as they happen to lie in memory.
        weights = _random_weights(_load_network(config))
        config.base.checkpoint = str(Path(directory) / "checkpoint.pth")
        torch.save(weights, config.base.checkpoint)
        network = _load_network(config)
        for parameter in network.parameters():
            parameter.data = parameter.data.clone()  # the file that it is mapped from goes away
    return _at_positions(network, context, prompt, positions)


def configured_llama(config: Any, *, prompt: int = PROMPT, positions: Sequence[int] = POSITIONS) -> EagerModel:  # noqa: ANN401 - executorch is not typed here
    """Return the model of a configuration of ``export_llm``, with its checkpoint.

    A quantisation in it is kept, but the record's number type does not state it; prefer to ask the export for
    ``8da4w``.
    """
    if not config.model.use_kv_cache:
        problem = "the configuration has no cache, so there are no positions to decode at"
        raise UsageError(problem, where="model.use_kv_cache", hint="set it, and also use_sdpa_with_kv_cache")
    return _at_positions(_load_network(config), config.export.max_context_length, prompt, positions)


def _random_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return small random weights for products and embeddings, and ones for norms."""
    torch.manual_seed(_SEED)
    return {
        name: torch.ones(weight.shape) if weight.dim() == 1 else 0.02 * torch.randn(weight.shape)
        for name, weight in network.named_parameters()
    }


def _load_network(config: Any) -> nn.Module:  # noqa: ANN401 - likewise
    from executorch.examples.models.llama.export_llama_lib import get_llama_model

    network: nn.Module = get_llama_model(config)[0]
    return network.requires_grad_(requires_grad=False)


def _at_positions(network: nn.Module, context: int, prompt: int, positions: Sequence[int]) -> EagerModel:
    """Return methods that share the network's weights; each has its own cache, as methods of a program do."""
    from executorch.extension.llm.export.export_passes import RemoveRedundantTransposes

    if not 1 <= prompt <= context or not all(0 <= position < context for position in positions):
        problem = (
            f"a prompt of {counted_text(prompt, 'token')} and positions {', '.join(map(str, positions))} are too many"
        )
        raise UsageError(problem, where="positions", hint=f"the cache has {context:,} places, from 0")
    torch.manual_seed(_SEED)
    words = torch.randint(0, 2, (1, prompt))
    methods = {"prefill": EagerMethod(_place_at_position(network, 0), (words,), tokens=prompt)}
    for position in positions:
        methods[f"decode_at_{position}"] = EagerMethod(_place_at_position(network, position), (words[:, :1],), tokens=1)
    # Without it every token would lay out the whole cache twice, which `export_llm` spares.
    return EagerModel(methods, passes=(RemoveRedundantTransposes(),))


def _place_at_position(network: nn.Module, position: int) -> AtPosition:
    weights = {id(parameter): parameter for parameter in network.parameters()}
    method = AtPosition(copy.deepcopy(network, weights), position)
    method.eval()
    return method
