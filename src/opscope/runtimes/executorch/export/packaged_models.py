"""Build models of other packages: any architecture of Hugging Face's transformers, and ExecuTorch's own examples.

``transformers:CONFIGCLASS`` is small and has random weights. The configuration class is made with small sizes
where it has such parameters, and so are the configurations inside of it; widths and heads that differ from
stage to stage stay as they are. A backbone that timm would give becomes a small ResNet. The model comes from
``AutoModel``, or is the class beside the configuration; nothing is downloaded. A wrapper takes positional
tensors and gives a tuple of tensors.

``executorch:NAME`` is of the registry that ExecuTorch's package carries (``executorch.examples.models``). Which
of them build was tested with executorch 1.5.1 and torch 2.13 on a machine without network; the others download
weights or need a package that is named here.
"""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError, NotFoundError, UsageError, did_you_mean
from opscope.core.install import install_command
from opscope.runtimes.executorch.export.foreign import built

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel, Inputs


_SEED = 0
_TOKENS, _WORDS, _WIDTH, _HEADS, _LAYERS, _HIDDEN, _PLACES = 32, 1000, 64, 4, 2, 128, 128
_IMAGE, _CHANNELS, _SAMPLES, _MELS = 64, 3, 16_000, 80
_DEPTH = 2  # of every stage
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
    "window_size": 2,
    "head_dim": _WIDTH // _HEADS,
    "d_kv": _WIDTH // _HEADS,
}
"""Sizes that make a model small, by the parameter names that architectures use."""
_BACKBONE = {"depths": (1, 1, 1, 1), "hidden_sizes": (32, 64, 96, 128), "embedding_size": 32}
"""Settings of a small ResNet, used where a model would take ResNet-50 from timm."""
_BINS = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")


def transformers_model(config_class: str) -> EagerModel:
    """Return a small random model of a configuration class, such as ``BertConfig``."""
    if find_spec("transformers") is None:
        hint = f"install it with: {install_command('transformers')}"
        raise MissingDependencyError("transformers is not installed", where=f"transformers:{config_class}", hint=hint)
    import transformers

    if not config_class.endswith("Config") or not hasattr(transformers, config_class):
        known = [name for name in dir(transformers) if name.endswith("Config")]
        problem = f"transformers {transformers.__version__} has no configuration {config_class!r}"
        raise NotFoundError(problem, hint=did_you_mean(config_class, known))
    return built(lambda: _build_model(config_class), f"transformers:{config_class}")


def _build_model(config_class: str) -> tuple[Any, Inputs]:
    import torch
    import transformers

    torch.manual_seed(_SEED)
    config = small_config(getattr(transformers, config_class))
    model = _model_of_config(config).eval().requires_grad_(requires_grad=False)
    names, inputs = _example_inputs(model, config)
    module = _plain_module(model, names)
    _fit_norms(module, inputs)
    return module, inputs


def _fit_norms(module: Any, inputs: Inputs) -> None:  # noqa: ANN401 - a model of a library without types here
    """Scale batch norms so that none makes the example inputs smaller than 1 on average, as trained ones would not.

    With the variance 1 that they begin with, and with random scales, as MobileViT gives them, every layer's output
    is smaller than its input and ends at 1e-40, where kernels round to zero and PyTorch does not. All channels of a
    norm get one factor: separate factors would amplify rounding.
    """
    import torch

    def fit(norm: Any, _: Inputs, output: Any) -> Any:  # noqa: ANN401 - likewise
        size = output.square().mean().sqrt()
        if not norm.affine or not 0 < size < 1:
            return output
        norm.weight /= size
        norm.bias /= size
        return output / size

    norms = [part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001 - the class of all
    hooks = [norm.register_forward_hook(fit) for norm in norms]
    if hooks:
        with torch.no_grad():
            module.eval()(*inputs)
    for hook in hooks:
        hook.remove()


def _model_of_config(config: Any) -> Any:  # noqa: ANN401 - a model of a library without types here
    """Return the model that AutoModel makes of a configuration, else the model class beside the configuration."""
    import transformers

    beside = type(config).__name__.removesuffix("Config") + "Model"
    if type(config) not in transformers.AutoModel._model_mapping and hasattr(transformers, beside):  # noqa: SLF001 - it has no other
        return getattr(transformers, beside)(config)
    return transformers.AutoModel.from_config(config)


def small_config(config_class: Any) -> Any:  # noqa: ANN401 - a class of a library without types here
    """Return a configuration with small sizes where the class has such parameters, else with the class's own sizes."""
    known = inspect.signature(config_class.__init__).parameters
    sizes: dict[str, Any] = {
        name: size for name, size in _SMALL.items() if name in known and not _is_per_stage(known[name].default)
    }
    if "image_size" in known and _is_per_stage(known["image_size"].default):
        sizes["image_size"] = (_IMAGE,) * len(known["image_size"].default)
    if "depths" in known and _is_per_stage(known["depths"].default):
        sizes["depths"] = tuple(min(depth, _DEPTH) for depth in known["depths"].default)
    ids = {name: 0 for name in _TOKEN_IDS if "vocab_size" in sizes and _too_large(known, name)}
    return config_class(**sizes, **ids, **_inner_configs(config_class))


def _is_per_stage(default: Any) -> bool:  # noqa: ANN401 - a default of a parameter
    """Return whether a parameter has a value for every stage, or for both sides of an image."""
    return isinstance(default, list | tuple)


def _inner_configs(config_class: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Return small configurations of the parts that a class names; a backbone is kept unless timm would provide it."""
    import transformers

    part_configs = getattr(config_class, "sub_configs", {})
    configs = {name: small_config(kind) for name, kind in part_configs.items() if kind is not transformers.AutoConfig}
    backbone: Any = getattr(config_class(), "backbone_config", None) if "backbone_config" in part_configs else None
    if getattr(backbone, "model_type", None) == "timm_backbone":
        stages = [f"stage{at}" for at in backbone.out_indices]
        configs["backbone_config"] = transformers.ResNetConfig(**_BACKBONE, out_features=stages)
    return configs


def _too_large(known: Any, name: str) -> bool:  # noqa: ANN401 - parameters of a signature
    return name in known and isinstance(known[name].default, int) and known[name].default >= _WORDS


def _example_inputs(model: Any, config: Any) -> tuple[list[str], Inputs]:  # noqa: ANN401 - likewise
    """Return names and example values of the inputs, chosen by the model's main input."""
    import torch

    main = model.main_input_name
    seen, read = (getattr(config, f"{part}_config", config) for part in ("vision", "text"))
    words = torch.randint(0, getattr(read, "vocab_size", _WORDS), (1, _TOKENS))
    channels = getattr(seen, "num_channels", _CHANNELS)
    makers = {
        "input_ids": lambda: words,
        "pixel_values": lambda: torch.randn(1, channels, *_to_pair(getattr(seen, "image_size", _IMAGE))),
        "input_values": lambda: torch.randn(_sound_shape(config)),
        "input_features": lambda: torch.randn(_spectrogram_shape(config)),
        "past_values": lambda: torch.randn(1, config.context_length, config.num_input_channels),
    }
    if main not in makers:
        hint = "write your own builder (opscope init --model NAME) and wrap the model there"
        raise UsageError(f"no example available for an input called {main!r}", hint=hint)
    names, inputs = [main], [makers[main]()]
    if seen is not config and read is not config and main == "input_ids":
        names.append("pixel_values")
        inputs.append(makers["pixel_values"]())
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in _forward_parameters(model):
        names.append("decoder_input_ids")
        inputs.append(words[:, :_HEADS])
    return names, tuple(inputs)


def _sound_shape(config: Any) -> tuple[int, ...]:  # noqa: ANN401 - a configuration
    """Return the shape of a second of sound, or of its spectrogram if the model takes that under the same name."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return 1, config.max_length, config.num_mel_bins
    return 1, _SAMPLES


def _spectrogram_shape(config: Any) -> tuple[int, ...]:  # noqa: ANN401 - a configuration
    """Return the shape of a spectrogram: bins first, as in Whisper, or last."""
    if hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):
        return 1, config.num_mel_bins, 2 * config.max_source_positions
    bins = next((getattr(config, name) for name in _BINS if hasattr(config, name)), _MELS)
    return 1, _PLACES, bins


def _forward_parameters(model: Any) -> Any:  # noqa: ANN401 - a model
    return inspect.signature(model.forward).parameters


def _to_pair(size: Any) -> tuple[int, int]:  # noqa: ANN401 - a number or a pair
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _plain_module(model: Any, names: list[str]) -> Any:  # noqa: ANN401 - likewise
    """Wrap a model with positional tensors in and a tuple of tensors out, without the cache that generation keeps."""
    import torch
    from torch.utils import _pytree

    accepted = _forward_parameters(model)
    fixed = {"use_cache": False} if "use_cache" in accepted else {}

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            output = self.model(**dict(zip(names, inputs, strict=True)), **fixed, return_dict=True)
            leaves = _pytree.tree_leaves(dict(output))
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    return Plain()


BUILT_HERE = (
    "add", "add_mul", "conv1d", "deep_autoencoder", "ds_cnn", "linear", "llama", "llama2", "lstm", "mobilenet_v1_025",
    "mul", "qwen3", "resnet8", "sdpa", "smolvlm", "softmax",
)  # fmt: skip
"""Models that build with the executorch extra alone; the llama-like ones have 207 million random weights."""

NEEDS: dict[str, tuple[str, ...]] = {
    "torchvision": ("dl3", "mv2", "mv2_untrained", "mv3", "vit", "ic3", "resnet18", "resnet50"),
    "torchaudio": ("emformer_transcribe", "emformer_predict", "emformer_join", "w2l"),
    "timm": ("ic4", "deit_tiny"),
    "torchsr": ("edsr",),
    "torchtune": ("qwen2_5_1_5b", "phi_4_mini", "smollm2"),
    "ultralytics": ("yolo26",),
    "a download": ("mobilebert", "efficient_sam", "whisper"),
}
"""Models that need more. A package tied to another torch release cannot be used with torch 2.13."""


def executorch_model(name: str) -> EagerModel:
    """Build a model of ExecuTorch's registry."""
    try:
        registry = import_module("executorch.examples.models").MODEL_NAME_TO_MODEL
    except (ModuleNotFoundError, AttributeError) as error:
        problem = "the installed executorch has no registry of example models"
        raise MissingDependencyError(problem, hint=install_command("executorch")) from error
    if name not in registry:
        hint = f"{did_you_mean(name, registry)}; see executorch.examples.models"
        raise NotFoundError(f"ExecuTorch's registry has no model {name!r}", hint=hint)
    module, class_name = registry[name]
    # Weights are never downloaded behind the user's back; a model that wants them says what is missing.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def builder() -> object:
        return getattr(import_module(f"executorch.examples.models.{module}"), class_name)()

    return built(builder, f"executorch:{name}")
