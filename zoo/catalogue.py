"""The models of the zoo: where each comes from, what kind it is, and which number types are tried."""

from __future__ import annotations

from typing import NamedTuple

FP32 = ("fp32",)


class Entry(NamedTuple):
    """A model.

    Attributes:
        name: unique.
        kind: what it is for.
        source: as ``opscope export`` takes it, from the root of the repository.
        dtypes: number types to try.
    """

    name: str
    kind: str
    source: str
    dtypes: tuple[str, ...] = FP32


_TRANSFORMERS = {
    "text encoder": "Bert DistilBert Roberta DebertaV2 ModernBert MobileBert FNet",
    "language model": "GPT2 Llama Qwen2 Qwen3 Gemma3Text Mistral Phi GPTNeoX OPT Mamba",
    "vision": "ViT DeiT Dinov2 Beit Swin ConvNextV2 ResNet RegNet MobileNetV2 MobileViT MobileViTV2 Segformer PvtV2"
    " PoolFormer FocalNet Hiera",
    "detection and segmentation": "Detr ConditionalDetr Yolos Sam2Vision SamVision",
    "multimodal": "CLIP CLIPVision CLIPText Siglip SiglipVision SiglipText",
    "encoder-decoder": "T5 Bart Whisper Marian Speech2Text",
    "audio and time": "Wav2Vec2 Hubert AST PatchTST",
}
_MORE = {
    "Bert": ("fp32", "fp16", "int8", "dynamic-int8"),
    "ViT": ("fp32", "fp16", "int8", "dynamic-int8"),
    "Llama": ("fp32", "dynamic-int8"),
    "MobileNetV2": ("fp32", "fp16", "int8"),
    "ConvNextV2": ("fp32", "int8"),
    "Whisper": ("fp32", "dynamic-int8"),
}


_HAND_WRITTEN = {
    "convolutions": "transposed grouped dilated depthwise temporal vocoder volume transposed_groups",
    "resizes": "nearest bilinear bilinear_scaled bilinear_corners bicubic pooled super_resolution space_to_depth",
    "sequences": "lstm gru gru_cells scanned refined branched chosen",
    "signatures": "recommender bags two_towers named scaled remembering counting window dynamic_batch dynamic_image",
    "networks": "u_net residual inception dense_net efficient_net mlp_mixer conv_next keyword_spotting autoencoder"
    " point_net attending",
    "edgetam": "edgetam edgetam_1024",
}


def catalogue() -> list[Entry]:
    """Every model, hand-written ones first."""
    return [*_hand_written(), *_transformers()]


def _hand_written() -> list[Entry]:
    return [
        Entry(name, kind, f"zoo.models.{kind}:{name}", _MORE.get(name, FP32))
        for kind, names in _HAND_WRITTEN.items()
        for name in names.split()
    ]


def _transformers() -> list[Entry]:
    return [
        Entry(name, kind, f"transformers:{name}Config", _MORE.get(name, FP32))
        for kind, names in _TRANSFORMERS.items()
        for name in names.split()
    ]
