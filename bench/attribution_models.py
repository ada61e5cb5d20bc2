"""The models on which attribution is judged: ``python -m bench.attribution_models DIRECTORY NAME...`` exports some.

They are small, with random weights, and between them they make XNNPACK do most of what it can do to a graph. A name is
a network and a number type or how it is quantised, as in ``u_net-int8``.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn
from torch.nn import functional
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from zoo.models import networks, resizes

from opscope.runtimes.executorch.export.registry import builder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from torch.fx import GraphModule

    Inputs: TypeAlias = tuple[Tensor, ...]

_WIDTH, _TOKENS, _WORDS, _HEADS = 64, 24, 100, 4
_IMAGE = 48


def _image() -> Tensor:
    return torch.randn(1, 3, _IMAGE, _IMAGE)


def _conv(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    padding = kernel // 2
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outside)
    )


def _attention(*, masked: bool = True, fused: bool = False) -> nn.Module:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))
            self.outward = nn.Linear(_WIDTH, _WIDTH)
            self.register_buffer("mask", torch.full((_TOKENS, _TOKENS), -1e4).triu(1))

        def heads(self, x: Tensor) -> Tensor:
            return x.view(1, -1, _HEADS, _WIDTH // _HEADS).transpose(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
            if fused:
                mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)
            else:
                scores = query @ key.transpose(-1, -2) * (_WIDTH // _HEADS) ** -0.5
                mixed = torch.softmax(scores + self.mask if masked else scores, dim=-1) @ value
            return self.outward(mixed.transpose(1, 2).reshape(1, -1, _WIDTH))

    return Attention()


def _residual(inner: nn.Module) -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.inner = nn.LayerNorm(_WIDTH), inner

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(self.before(x))

    return Residual()


def transformer(*, masked: bool = True) -> tuple[nn.Module, Inputs]:
    """Embedding, attention of several heads, layer norms, GELU."""

    def feed() -> nn.Module:
        return nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))

    blocks = [_residual(part) for _ in range(2) for part in (_attention(masked=masked), feed())]
    module = nn.Sequential(nn.Embedding(_WORDS, _WIDTH), *blocks, nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WORDS))
    return module, (torch.randint(0, _WORDS, (1, _TOKENS)),)


def gated() -> tuple[nn.Module, Inputs]:
    """A block as language models have it: root mean square norm, rotation, shared keys, gated feed-forward."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(_WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = Norm(), Norm(), Norm()
            self.query, self.outward = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2))
            self.pair = nn.Linear(_WIDTH, _WIDTH, bias=False)
            self.gate, self.up = (nn.Linear(_WIDTH, 2 * _WIDTH, bias=False) for _ in range(2))
            self.down = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)
            angle = torch.arange(_TOKENS)[:, None] / 10 ** torch.linspace(0, 4, _WIDTH // _HEADS // 2)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())
            self.register_buffer("mask", torch.full((_TOKENS, _TOKENS), -1e4).triu(1))

        def rotate(self, x: Tensor) -> Tensor:
            left, right = x.chunk(2, dim=-1)
            return torch.cat((left * self.cos - right * self.sin, right * self.cos + left * self.sin), dim=-1)

        def forward(self, x: Tensor) -> Tensor:
            size = _WIDTH // _HEADS
            y = self.first(x)
            query = self.rotate(self.query(y).view(1, _TOKENS, _HEADS, size).transpose(1, 2))
            key, value = self.pair(y).view(1, _TOKENS, 2, _HEADS // 2, size).permute(2, 0, 3, 1, 4).unbind(0)
            key, value = (part.repeat_interleave(2, dim=1) for part in (self.rotate(key), value))
            weight = torch.softmax(query @ key.transpose(-1, -2) * size**-0.5 + self.mask, dim=-1)
            x = x + self.outward((weight @ value).transpose(1, 2).reshape(1, _TOKENS, _WIDTH))
            y = self.second(x)
            return self.third(x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)))

    return Gated(), (torch.randn(1, _TOKENS, _WIDTH),)


def attention() -> tuple[nn.Module, Inputs]:
    """Attention alone, with and without a mask, by hand and by torch's own operator."""
    parts = [_attention(masked=False), _attention(), _attention(fused=True)]
    return nn.Sequential(*(_residual(part) for part in parts)), (torch.randn(1, _TOKENS, _WIDTH),)


def linear() -> tuple[nn.Module, Inputs]:
    """Layers of matrix products, one input shared by two of them."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Linear(_WIDTH, 2 * _WIDTH) for _ in range(2))
            self.last = nn.Linear(2 * _WIDTH, _WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x)) + self.second(x)).float()

    return Layers(), (torch.randn(1, _TOKENS, _WIDTH),)


def convolutions() -> tuple[nn.Module, Inputs]:
    """Convolutions of every kind that XNNPACK tells apart, with pads and activations."""
    return nn.Sequential(
        _conv(3, 16, 3, 2),
        nn.ReLU6(),
        nn.ZeroPad2d(1),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.Hardtanh(-1, 2),
        _conv(16, 32, 1),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=4),
        nn.ELU(),
        _conv(32, 32, 7, groups=32),
        nn.Conv2d(32, 64, 1),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, (1, 3), padding=(0, 1)),
        nn.LeakyReLU(0.1),
        nn.AvgPool2d(2),
        nn.ConstantPad2d((1, 0, 2, 1), 0.5),
        nn.Conv2d(64, 32, 1, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ), (_image(),)


def _sum_of(parts: Callable[[Tensor], Iterator[Tensor]], layers: nn.Module | None = None) -> nn.Module:
    """A convolution, functions of what it gives, and their sum."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layers = _conv(3, 8, 3, 2), layers or nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers(self.stem(x))
            total = x
            for part in parts(x):
                total = total + part
            return torch.softmax(total, dim=-1)

    return Sum()


def smooth() -> tuple[nn.Module, Inputs]:
    """Activations."""

    def parts(x: Tensor) -> Iterator[Tensor]:
        yield from (functional.hardswish(x), functional.gelu(x), functional.gelu(x, approximate="tanh"))
        yield from (functional.elu(x), functional.silu(x), functional.leaky_relu(x, 0.2), torch.tanh(x))
        yield from (functional.softplus(x), functional.hardsigmoid(x), torch.sin(x) + torch.cos(x), x.exp())

    return _sum_of(parts, nn.PReLU(8)), (_image(),)


def bounded() -> tuple[nn.Module, Inputs]:
    """Arithmetic with numbers, bounds and squares, in chains."""

    def parts(x: Tensor) -> Iterator[Tensor]:
        yield from (torch.relu(x + 1), torch.clamp(x * 2, -1, 1), torch.relu(torch.relu(x) - 0.5), (-x).abs())
        yield from (torch.maximum(x, torch.tensor(0.1)), torch.minimum(x, -x), x * x, (x * x + 1).sqrt())
        yield from (torch.rsqrt(x * x + 1), x.ceil() - x.floor(), (x.abs() + 1).log(), x / (x.abs() + 1))

    return _sum_of(parts), (_image(),)


def means() -> tuple[nn.Module, Inputs]:
    """Means over images, of squares too, with a bound behind them."""

    def parts(x: Tensor) -> Iterator[Tensor]:
        square = functional.max_pool2d(x, 3, 1, 1).square()
        yield from (square.mean((-1, -2), keepdim=True), torch.relu(x.mean((-1, -2), keepdim=True)))
        yield functional.adaptive_avg_pool2d(functional.max_pool2d(x, 3, 1, 1) * 2, 1)

    return _sum_of(parts), (_image(),)


def weights() -> tuple[nn.Module, Inputs]:
    """Parameters that are transposed, reshaped and put together before they are used."""

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.other = (nn.Parameter(torch.randn(_WIDTH, _WIDTH)) for _ in range(2))
            self.scale = nn.Parameter(torch.randn(_WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            x = (x @ self.weight.t()) * self.scale.view(1, 1, -1).exp() + self.scale
            y = functional.linear(x, torch.cat((self.weight, self.other)))
            return (y.reshape(_TOKENS, 2 * _WIDTH).view(1, _TOKENS, 2, _WIDTH) * 2).flatten(2) @ y.transpose(1, 2)

    return Weights(), (torch.randn(1, _TOKENS, _WIDTH),)


def requantised() -> tuple[nn.Module, Inputs]:
    """Products whose right side was quantised: XNNPACK reads its 8-bit numbers."""
    quantised = torch.ops.quantized_decomposed

    class Requantised(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            stored = quantised.quantize_per_tensor(y, 0.02, 0, -128, 127, torch.int8)
            read = quantised.dequantize_per_tensor(stored, 0.02, 0, -128, 127, torch.int8)
            return torch.relu(x * 2) @ read

    return Requantised(), (torch.randn(1, _TOKENS, _WIDTH), torch.randn(1, _WIDTH, _TOKENS))


SHARED = {
    **{name: getattr(networks, name) for name in ("residual", "u_net", "dense_net", "conv_next", "efficient_net")},
    **{name: getattr(resizes, name) for name in ("bilinear", "super_resolution")},
    **{name: builder(name) for name in ("toy_cnn", "mobilenet_v3_small", "vit_tiny")},
}
"""Networks of the zoo, and models of opscope's own list."""


def _build_shared(name: str) -> tuple[nn.Module, Inputs]:
    model = SHARED[name]()
    return model.module, model.inputs


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "transformer": transformer,
    "unmasked": lambda: transformer(masked=False),
    "gated": gated,
    "attention": attention,
    "linear": linear,
    "convolutions": convolutions,
    "smooth": smooth,
    "bounded": bounded,
    "means": means,
    "weights": weights,
    "requantised": requantised,
    **{name: partial(_build_shared, name) for name in SHARED},
}


def export_model(name: str, program: Path) -> None:
    """Export a model to a file."""
    torch.manual_seed(0)
    network, _, kind = name.partition("-")
    module, inputs = NETWORKS[network]()
    module = module.eval()
    if kind in {"fp16", "bf16"} or "-fp16" in kind:
        dtype = torch.bfloat16 if kind == "bf16" else torch.half
        module, inputs = module.to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    shapes = ({1: torch.export.Dim("tokens", min=2, max=_TOKENS)},) if kind == "shapes" else None
    if kind.startswith(("group4", "channel4")):
        _four_bits(module, by_group=kind.startswith("group4"))
    exported = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
    if kind.startswith(("int8", "dynamic8")):
        quantised = _eight_bits(exported.module(), inputs, dynamic=kind.startswith("dynamic8"))
        exported = torch.export.export(quantised, inputs)
    lowered = to_edge_transform_and_lower(exported, partitioner=_partitioners(kind))
    lowered.to_executorch().save(str(program))


def _partitioners(kind: str) -> list[XnnpackPartitioner]:
    if kind == "bf16":
        return [XnnpackPartitioner(enable_bf16=True)]
    dynamic = kind.startswith(("dynamic8", "group4", "channel4")) and not kind.endswith("whole")
    return [XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()] if dynamic else [XnnpackPartitioner()]


def _eight_bits(graph: GraphModule, inputs: Inputs, *, dynamic: bool) -> GraphModule:
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    prepared = prepare_pt2e(graph, XNNPACKQuantizer().set_global(config))
    generator = torch.Generator().manual_seed(1)
    prepared(*inputs)
    for _ in range(2):
        prepared(*(torch.randn(x.shape, generator=generator) if x.is_floating_point() else x for x in inputs))
    return convert_pt2e(prepared)


def _four_bits(module: nn.Module, *, by_group: bool) -> None:
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32) if by_group else PerAxis(0)
    )
    quantize_(module, config)


def main(arguments: list[str]) -> None:
    """Export models; what cannot be exported is named, with what torch said, and left out."""
    directory, names = Path(arguments[0]), arguments[1:]
    for name in names:
        try:
            export_model(name, directory / f"{name}.pte")
        except Exception as error:  # noqa: BLE001, PERF203 - one model that torch refuses must not cost the others
            print(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
