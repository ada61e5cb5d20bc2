"""Models whose cost is known otherwise, exported: ``python tests/support/costed_models.py DIRECTORY``.

One process exports all of them, because importing torch costs more than everything else. It leaves NAME.pte for each,
and ``counted.json`` with the multiply-accumulates that torch's own counter finds in the eager models.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

LENGTHS = (12, 20)
SIDES = (32,)
_LONGEST, _LARGEST = 32, 16
_WORDS, _WIDTH, _HEADS = 50, 32, 2


class Made(NamedTuple):
    """A model with its inputs."""

    module: Any
    inputs: tuple[Any, ...]


def resnet18() -> Any:
    """ResNet-18 for 1000 classes; He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1."""
    from torch import Tensor, nn

    def convolved(source: int, target: int, kernel: int, stride: int) -> Any:
        conv = nn.Conv2d(source, target, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(target))

    class Block(nn.Module):
        def __init__(self, source: int, target: int, stride: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(convolved(source, target, 3, stride), nn.ReLU(), convolved(target, target, 3, 1))
            self.around = convolved(source, target, 1, stride) if source != target else nn.Identity()
            self.last = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(x) + self.around(x))

    stem = (convolved(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    widths = (64, 64, 128, 256, 512)
    pairs = [(source, target, 1 + (source != target)) for source, target in pairwise(widths)]
    blocks = [
        block for source, target, stride in pairs for block in (Block(source, target, stride), Block(target, target, 1))
    ]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


def language_model() -> Any:
    """A transformer of one layer on tokens, whose number can differ."""
    import torch
    from torch import Tensor, nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
            self.inward, self.outward = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
            self.feed = nn.Sequential(nn.Linear(_WIDTH, 64), nn.GELU(), nn.Linear(64, _WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            count, length, width = x.shape
            parts = self.inward(self.before(x)).chunk(3, -1)
            query, key, value = (part.view(count, length, _HEADS, width // _HEADS).transpose(1, 2) for part in parts)
            seen = nn.functional.scaled_dot_product_attention(query, key, value)
            x = x + self.outward(seen.transpose(1, 2).reshape(count, length, width))
            return x + self.feed(self.after(x))

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.place = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(64, _WIDTH)
            self.layer, self.head = Layer(), nn.Linear(_WIDTH, _WORDS)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.word(tokens) + self.place(torch.arange(tokens.shape[1]))
            return self.head(self.layer(x))[:, -1]

    return LanguageModel().eval()


def images() -> Any:
    """Convolutions of every sort on images, whose size can differ."""
    import torch
    from torch import Tensor, nn

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
            self.each = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish(), nn.MaxPool2d(2))
            self.grouped, self.up = nn.Conv2d(8, 12, 3, padding=1, groups=4), nn.ConvTranspose2d(12, 8, 2, 2)
            self.joined, self.head = nn.Conv2d(16, 10, 1), nn.Linear(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            stem = self.stem(x)
            joined = self.joined(torch.cat([self.up(self.grouped(self.each(stem))), stem], 1))
            return self.head(nn.functional.adaptive_avg_pool2d(joined, 1).flatten(1))

    return Images().eval()


def crossed() -> Any:
    """Two inputs that a delegate uses in the opposite order, and an operator that stays with the runtime."""
    import torch
    from torch import Tensor, nn

    class Crossed(nn.Module):
        def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            joined = torch.cat([torch.sigmoid(second), torch.tanh(first)], 1)
            return joined.cumsum(1), second + 1

    return Crossed().eval()


def four_bits(directory: Path) -> None:
    """A layer whose weights are 4 bits wide with a scale for every 32 of them, and data quantised at run time."""
    import torch
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from torch import nn
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.utils import unwrap_tensor_subclass

    layer = nn.Sequential(nn.Linear(64, 48))
    quantize_(layer, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)))
    unwrap_tensor_subclass(layer)
    partitioner = XnnpackPartitioner(config_precisions=ConfigPrecisionType.DYNAMIC_QUANT, per_op_mode=True)
    lower(directory / "four_bits.pte", layer.eval(), (torch.randn(5, 64),), [partitioner])


def lower(path: Path, module: Any, inputs: tuple[Any, ...], partitioner: list[Any], shapes: Any = None) -> None:
    """Export as opscope does, without a record; no partitioner delegates nothing."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(module, inputs, dynamic_shapes=shapes)
    to_edge_transform_and_lower(exported, partitioner=partitioner).to_executorch().save(str(path))


def counted(made: Made) -> int:
    """Multiply-accumulates of convolutions and matrix products, by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        made.module(*made.inputs)
    return int(counter.get_total_flops()) // 2


def fixed(directory: Path) -> None:
    """Models of one size: ResNet-18 delegated and not, and a layer of ViT-Tiny."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    from opscope.runtimes.executorch.export.models import vit

    picture = (torch.randn(1, 3, 224, 224),)
    residual, layer = Made(resnet18(), picture), Made(vit.VitLayer().eval(), (torch.randn(1, 197, 192),))
    models = {
        "resnet18": residual,
        "vit_layer": layer,
        "images": Made(images(), (torch.randn(1, 3, SIDES[0], SIDES[0]),)),
    }
    (directory / "counted.json").write_text(json.dumps({name: counted(model) for name, model in models.items()}))
    lower(directory / "resnet18.pte", *residual, [XnnpackPartitioner()])
    lower(directory / "resnet18_portable.pte", *residual, [])
    lower(directory / "vit_layer.pte", *layer, [XnnpackPartitioner()])


def of_any_size(directory: Path) -> None:
    """Models whose inputs differ in size, and twins of them for one size each; delegated and not."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from torch.export import Dim

    tokens = {n: (torch.randint(0, _WORDS, (1, n)),) for n in LENGTHS}
    pictures = {n: (torch.randn(1, 3, n, n),) for n in SIDES}
    length, side = Dim("length", min=2, max=_LONGEST), 4 * Dim("side", min=1, max=_LARGEST)
    for name, model, inputs, shapes in (
        ("words", language_model(), tokens, ({1: length},)),
        ("images", images(), pictures, ({2: side, 3: side},)),
    ):
        for suffix, partitioner in (("", [XnnpackPartitioner()]), ("_portable", [])):
            lower(directory / f"{name}{suffix}.pte", model, next(iter(inputs.values())), partitioner, shapes)
            for n, given in list(inputs.items())[: 2 if partitioner else 1]:
                lower(directory / f"{name}{suffix}_{n}.pte", model, given, partitioner)
    two = (torch.randn(2, 3), torch.randn(2, 5))
    sizes = ({1: Dim("first", min=2, max=9)}, {1: Dim("second", min=2, max=9)})
    lower(directory / "crossed.pte", crossed(), two, [XnnpackPartitioner()], sizes)


if __name__ == "__main__":
    for step in (fixed, of_any_size, four_bits):
        step(Path(sys.argv[1]))
