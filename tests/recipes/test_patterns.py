"""opscope.patterns: what PyTorch computes, of operators that XNNPACK delegates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opscope import patterns


def test_importing_the_patterns_loads_no_torch() -> None:
    """Until a name is used."""
    script = "import sys, opscope.patterns\nassert 'torch' not in sys.modules\ndir(opscope.patterns)"
    subprocess.run([sys.executable, "-c", f"{script}\nassert 'torch' not in sys.modules"], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="no attribute 'BatchNorm'"):
        _ = patterns.BatchNorm


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")
class TestValues:
    """Each pattern beside the module or function of PyTorch that it stands for."""

    def test_layer_norm(self) -> None:
        """Trained scale and shift are kept, and so are the keys of the state."""
        import torch

        torch.manual_seed(0)
        norm = torch.nn.LayerNorm(48, eps=1e-3)
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
        mine = patterns.LayerNorm.from_module(norm)
        x = torch.randn(3, 5, 48) * 4 + 7
        torch.testing.assert_close(mine(x), norm(x), atol=2e-5, rtol=1e-5)
        assert mine.state_dict().keys() == norm.state_dict().keys()

    def test_layer_norm_without_scale_and_shift(self) -> None:
        """Ones and zeros stand for them."""
        import torch

        norm = torch.nn.LayerNorm(16, elementwise_affine=False)
        x = torch.randn(4, 16)
        torch.testing.assert_close(patterns.LayerNorm.from_module(norm)(x), norm(x), atol=1e-5, rtol=1e-5)

    def test_layer_norms_over_one_dimension_are_replaced(self) -> None:
        """One over two dimensions stays, and cannot be made from."""
        import torch

        model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Sequential(torch.nn.LayerNorm((4, 8))))
        assert patterns.replace_layer_norms(model) == 1
        assert isinstance(model[0], patterns.LayerNorm)
        with pytest.raises(ValueError, match="over 2 dimensions"):
            patterns.LayerNorm.from_module(model[1][0])

    @pytest.mark.parametrize("name", ["Softplus", "Mish", "ELU"])
    def test_activations(self, name: str) -> None:
        """From far below zero to far above, without an overflow."""
        import torch

        x = torch.linspace(-200, 200, 4001)
        ours, theirs = getattr(patterns, name)()(x), getattr(torch.nn, name)()(x)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)

    def test_activations_are_replaced(self) -> None:
        """A softplus with options stays; the alpha of an ELU is kept."""
        import torch
        from torch import nn

        model = nn.Sequential(nn.Softplus(), nn.Softplus(beta=2), nn.Mish(), nn.ELU(0.5), nn.ReLU())
        x = torch.randn(9, 9)
        before = model(x)
        assert patterns.replace_activations(model) == 3
        assert [type(one).__module__.partition(".")[0] for one in model] == [
            "opscope",
            "torch",
            *["opscope"] * 2,
            "torch",
        ]
        torch.testing.assert_close(model(x), before, atol=1e-6, rtol=1e-6)

    def test_padding_and_norms_are_replaced(self) -> None:
        """Uneven padding too; a norm with statistics stays."""
        import torch
        from torch import nn

        layers = [nn.ReflectionPad2d((4, 0, 2, 3)), nn.InstanceNorm2d(3, affine=True), nn.InstanceNorm2d(3)]
        model = nn.Sequential(*layers, nn.InstanceNorm2d(3, track_running_stats=True)).eval()
        nn.init.normal_(model[1].weight)
        image = torch.randn(2, 3, 9, 11)
        before, names = model(image), list(model.state_dict())
        assert (patterns.replace_reflection_pads(model), patterns.replace_instance_norms(model)) == (1, 2)
        assert isinstance(model[3], nn.InstanceNorm2d)
        assert list(model.state_dict()) == names
        torch.testing.assert_close(model(image), before, atol=1e-5, rtol=1e-5)

    def test_attention(self) -> None:
        """With a mask that leaves every row something."""
        import torch

        query, key, value = (torch.randn(2, 4, 6, 8) for _ in range(3))
        keep = torch.ones(6, 6, dtype=torch.bool).tril()
        theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=keep)
        ours = patterns.masked_attention(query, key, value, patterns.additive_mask(keep))
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(
            patterns.masked_attention(query, key, value),
            torch.nn.functional.scaled_dot_product_attention(query, key, value),
        )

    @pytest.mark.parametrize(
        "options", [{}, {"batch_first": True}, {"batch_first": True, "bias": False}, {"kdim": 24, "vdim": 40}]
    )
    def test_attention_modules(self, options: dict) -> None:
        """With masks of booleans and of numbers, for padding and for order, and the weights that are returned."""
        import torch

        theirs = torch.nn.MultiheadAttention(32, 4, **options).eval()
        ours = patterns.MultiheadAttention(theirs)
        sizes = (7, 32), (9, options.get("kdim", 32)), (9, options.get("vdim", 32))
        given = [torch.randn(2, *size) for size in sizes]
        if not options.get("batch_first"):
            given = [one.transpose(0, 1) for one in given]
        order = torch.ones(7, 9, dtype=torch.bool).triu(1)
        padding = torch.zeros(2, 9, dtype=torch.bool)
        padding[0, -2:] = True
        numbers = torch.zeros(7, 9).masked_fill(order, float("-inf"))
        for masks in ({}, {"attn_mask": order, "key_padding_mask": padding}, {"attn_mask": numbers}):
            for needed in (True, False):
                torch.testing.assert_close(
                    ours(*given, need_weights=needed, **masks), theirs(*given, need_weights=needed, **masks)
                )

    def test_attention_without_a_batch(self) -> None:
        """Two dimensions in, two out; the hint on causality needs its mask, as in PyTorch."""
        import torch

        theirs = torch.nn.MultiheadAttention(16, 2).eval()
        ours, x = patterns.MultiheadAttention(theirs), torch.randn(5, 16)
        torch.testing.assert_close(ours(x, x, x), theirs(x, x, x))
        with pytest.raises(ValueError, match="needs attn_mask"):
            ours(x, x, x, is_causal=True)

    def test_attentions_of_an_encoder_and_a_decoder_are_replaced(self) -> None:
        """One with a learnt bias of keys stays, and cannot be made from."""
        import torch
        from torch import nn

        model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval()
        source, target = torch.randn(2, 6, 16), torch.randn(2, 4, 16)
        padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
        given = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        before = model(source, target, **given)
        assert patterns.replace_attentions(model) == 6
        torch.testing.assert_close(model(source, target, **given), before, atol=1e-5, rtol=1e-5)
        other = nn.Sequential(nn.MultiheadAttention(16, 2, add_bias_kv=True))
        assert patterns.replace_attentions(other) == 0
        with pytest.raises(ValueError, match="add_bias_kv"):
            patterns.MultiheadAttention(other[0])

    @pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
    @pytest.mark.parametrize(
        "options", [{}, {"batch_first": True, "bias": False}, {"num_layers": 2, "bidirectional": True}]
    )
    def test_recurrent_layers(self, kind: str, options: dict) -> None:
        """From zeros and from a state, with a batch and without."""
        import torch
        from torch.utils import _pytree

        theirs = getattr(torch.nn, kind)(8, 16, **options).eval()
        model = torch.nn.ModuleList([theirs])
        assert patterns.replace_recurrent(model) == 1
        ours, x = model[0], torch.randn(3, 5, 8)
        _, state = theirs(x)
        for given in ((x,), (x, state), (x[0],)):
            for mine, wanted in zip(*(_pytree.tree_leaves(layer(*given)) for layer in (ours, theirs)), strict=True):
                torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-5)

    def test_a_recurrent_layer_with_a_projection_stays(self) -> None:
        """And cannot be made from."""
        import torch

        model = torch.nn.Sequential(torch.nn.LSTM(8, 16, proj_size=4))
        assert patterns.replace_recurrent(model) == 0
        with pytest.raises(ValueError, match="proj_size"):
            patterns.Recurrent(model[0])

    def test_spatial_mean(self) -> None:
        """Batch and channels are left."""
        import torch

        image = torch.randn(2, 3, 5, 7)
        torch.testing.assert_close(patterns.spatial_mean(image), image.mean((2, 3)))

    @pytest.mark.parametrize("name", ["Softplus", "Mish", "ELU"])
    def test_an_activation_is_delegated_as_a_whole(self, name: str, tmp_path: Path) -> None:
        """In one call, with nothing portable."""
        import torch

        from opscope.runtimes.executorch.export.checked import export_live
        from recipe_pages import counts_of

        model = torch.nn.Sequential(torch.nn.Linear(8, 8), getattr(patterns, name)(), torch.nn.Linear(8, 8))
        counts = counts_of(export_live(model, torch.randn(2, 8), "fp32", tmp_path))
        assert (counts.calls, counts.portable) == (1, 0)
