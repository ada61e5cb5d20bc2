"""Why models of the zoo fail, whose limit that is, and the least that shows it."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple

PYTORCH, EXECUTORCH, PARTITIONER = "PyTorch", "ExecuTorch", "the partitioner"


class Limit(NamedTuple):
    """A reason for which models fail.

    Attributes:
        title: of its section on the page.
        models: of the catalogue that fail for it.
        says: what stands in the problem of their records.
        whose: limit it is.
        reason: in plain words, with what helps.
        example: the least code that shows it; empty where the model itself is that.
        raises: what stands in the error that the example ends with.
    """

    title: str
    models: tuple[str, ...]
    says: str
    whose: str
    reason: str
    example: str = ""
    raises: str = ""


LIMITS = (
    Limit(
        "Batch norm behind a transposed convolution with groups",
        ("transposed_groups",),
        "FuseBatchNormPass",
        PYTORCH,
        "PyTorch cannot fold a batch norm into a transposed convolution with groups: the shape of the weights is taken "
        "for that of one group. ExecuTorch's pass for XNNPACK calls it before anything is partitioned. A norm that is "
        "folded in before the export, or put elsewhere, helps.",
        dedent("""\
            from torch import nn
            from torch.nn.utils.fusion import fuse_conv_bn_eval

            conv, norm = nn.ConvTranspose2d(8, 12, 2, groups=2).eval(), nn.BatchNorm2d(12).eval()
            fuse_conv_bn_eval(conv, norm, transpose=True)
        """),
        "must match the size of tensor",
    ),
    Limit(
        "Convolutions over volumes",
        ("volume",),
        "error: 0x12",
        EXECUTORCH,
        "ExecuTorch's portable convolution takes signals and images, no volumes, and XNNPACK has none either: the "
        "program is written, and its first run fails.",
        dedent("""\
            import torch
            from executorch.exir import to_edge
            from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

            inputs = (torch.randn(1, 1, 4, 4, 4),)
            program = to_edge(torch.export.export(torch.nn.Conv3d(1, 1, 3), inputs)).to_executorch()
            _load_for_executorch_from_buffer(program.buffer).forward(inputs)
        """),
        "0x12",
    ),
    Limit(
        "Embedding bags",
        ("recommender",),
        "error: 0x14",
        EXECUTORCH,
        "The runtime has no kernel for embedding bags. Sums and means of embeddings, as in the model `bags`, compute "
        "the same.",
        dedent("""\
            import torch
            from executorch.exir import to_edge
            from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

            inputs = (torch.arange(4).reshape(2, 2),)
            edge = to_edge(torch.export.export(torch.nn.EmbeddingBag(9, 4), inputs))
            _load_for_executorch_from_buffer(edge.to_executorch().buffer).forward(inputs)
        """),
        "0x14",
    ),
    Limit(
        "GELU by its tanh approximation",
        ("Siglip", "SiglipText", "SiglipVision"),
        "does not agree",
        PARTITIONER,
        "XNNPACK's partitioner takes `gelu` whatever its `approximate` says, and computes the exact one: 1e-4 of the "
        "largest output lie between them. Nothing is lost if the model may have the exact one: give it that before "
        "the export, or `--tolerance 1e-3`.",
        dedent("""\
            import torch
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower
            from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

            gelu, inputs = torch.nn.GELU(approximate="tanh"), (torch.linspace(-4, 4, 100)[None],)
            exported = torch.export.export(gelu, inputs)
            program = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
            computed = _load_for_executorch_from_buffer(program.buffer).forward(inputs)[0]
            torch.testing.assert_close(computed, torch.nn.GELU()(*inputs))
            torch.testing.assert_close(computed, gelu(*inputs), atol=5e-5, rtol=0)
        """),
        "Tensor-likes are not close",
    ),
    Limit(
        "Fourier transforms",
        ("FNet",),
        "_fft_c2c",
        EXECUTORCH,
        "Fourier transforms are not in Core ATen, the operators that ExecuTorch lowers. A product with the transform's "
        "matrix computes the same.",
        dedent("""\
            import torch
            from executorch.exir import to_edge


            class Transform(torch.nn.Module):
                def forward(self, signal):
                    return torch.fft.fft(signal).real


            to_edge(torch.export.export(Transform(), (torch.randn(8),)))
        """),
        "is not in Core ATen",
    ),
    Limit(
        "while_loop",
        ("refined",),
        "while_loop",
        EXECUTORCH,
        "ExecuTorch emits `cond`, `map` and `scan`, but no `while_loop`. A loop of a fixed number of steps exports: "
        "see `scanned`.",
        dedent("""\
            import torch
            from executorch.exir import to_edge
            from torch._higher_order_ops import while_loop


            class Loop(torch.nn.Module):
                def forward(self, left, value):
                    return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x.cos()), (left, value))[1]


            to_edge(torch.export.export(Loop(), (torch.tensor(3), torch.randn(4)))).to_executorch()
        """),
        "while_loop",
    ),
    Limit(
        "Layers in the branches of cond",
        ("branched",),
        "was not decomposed or delegated",
        EXECUTORCH,
        "`to_edge_transform_and_lower` keeps linear layers whole for the partitioner, which does not look into the "
        "branches of a `cond`, and what is left in them has no kernel. Branches without layers export: see `chosen`.",
        dedent("""\
            import torch
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower


            class Branches(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(4, 4)

                def forward(self, value):
                    return torch.cond(value.sum() > 0, lambda x: self.layer(x), lambda x: x + 1, (value,))


            exported = torch.export.export(Branches(), (torch.randn(1, 4),))
            to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
        """),
        "was not decomposed or delegated",
    ),
    Limit(
        "State that is an output, too",
        ("remembering",),
        "already in the inputs",
        PARTITIONER,
        "A changed buffer that is an output as well is in two places of the delegate's outputs, and XNNPACK's "
        "preprocessing refuses that. State that is not an output exports: see `counting` and `window`.",
        dedent("""\
            import torch
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import to_edge_transform_and_lower


            class Counter(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.register_buffer("seen", torch.zeros(1))

                def forward(self, value):
                    self.seen.add_(1)
                    return value * 2, self.seen.clone()


            exported = torch.export.export(Counter(), (torch.randn(1),))
            to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        """),
        "already in the inputs",
    ),
)


def limit_of(name: str, problem: str) -> Limit | None:
    """Why a model fails; None where nobody has looked yet."""
    return next((limit for limit in LIMITS if name in limit.models and limit.says in problem), None)
