"""Tiny models of every kind, exported and run for real through the runtime's Python bindings.

Heavy imports stay inside the functions, so that a test can read the list without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS = 3
TRIPS = 4
_SIZE = 8
_TOKENS = 6
_WIDTH = 16
_WORDS = 20


@dataclass(frozen=True)
class Model:
    """How a model is made, and how often its program's methods run.

    Attributes:
        methods: gives each method's module and the inputs of its calls; every call is made in every round.
        delegated: whether XNNPACK takes the parts that it can.
        int8: whether it is quantised first.
    """

    methods: Callable[[], dict[str, tuple[Any, list[tuple[Any, ...]]]]]
    delegated: bool = True
    int8: bool = False


def _network(*layers: Any) -> Any:
    from torch import nn

    return nn.Sequential(*layers).eval()


def _image() -> Any:
    import torch

    return torch.randn(1, 3, _SIZE, _SIZE)


def convolutions() -> Any:
    """Two convolutions and a classifier, all of it for the delegate."""
    from torch import nn

    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return _network(stem, nn.Conv2d(8, 8, 3, stride=2, groups=8), nn.Hardswish(), nn.Flatten(), nn.Linear(72, 5))


def conv_fp32() -> Any:
    """In single precision."""
    return {"forward": (convolutions(), [(_image(),)])}


def conv_fp16() -> Any:
    """In half precision: on a CPU without its instructions, conversions appear."""
    return {"forward": (convolutions().half(), [(_image().half(),)])}


def portable() -> Any:
    """Nothing is delegated: every operator is a kernel of the runtime's own."""
    from torch import nn

    return {"forward": (_network(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Softmax(dim=1)), [(_image(),)])}


def mixed() -> Any:
    """A layer norm, which stays with the runtime, between two parts that are delegated."""
    from torch import nn

    return {"forward": (_network(nn.Conv2d(3, 4, 3), nn.LayerNorm(6), nn.ReLU(), nn.Conv2d(4, 4, 3)), [(_image(),)])}


def _transformer(blocks: int = 2) -> Any:
    import torch
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
            self.inward, self.outward = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
            self.feed = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = self.inward(self.before(x)).chunk(3, dim=-1)
            weight = torch.softmax(query @ key.transpose(-1, -2) / _WIDTH**0.5, dim=-1)
            x = x + self.outward(weight @ value)
            return x + self.feed(self.after(x))

    return _network(nn.Embedding(_WORDS, _WIDTH), *(Block() for _ in range(blocks)), nn.Linear(_WIDTH, _WORDS))


def transformer() -> Any:
    """Embedding, attention, layer norms: the same names many times over."""
    import torch

    return {"forward": (_transformer(), [(torch.randint(0, _WORDS, (1, _TOKENS)),)])}


def mapped() -> Any:
    """A map: its body's instructions repeat ``TRIPS`` times within an inference."""
    import torch
    from torch import Tensor, nn
    from torch._higher_order_ops.map import map as map_over

    class Mapped(nn.Module):
        def forward(self, rows: Tensor, offset: Tensor) -> Tensor:
            return torch.relu(map_over(lambda row, shift: torch.sin(row) + shift, rows, offset))

    return {"forward": (Mapped().eval(), [(torch.randn(TRIPS, 5), torch.randn(5))])}


def scanned() -> Any:
    """A scan: as a map, and each trip takes what the one before left."""
    import torch
    from torch import Tensor, nn
    from torch._higher_order_ops.scan import scan

    class Scanned(nn.Module):
        def forward(self, state: Tensor, rows: Tensor) -> Any:
            def step(before: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
                after = before + row
                return after, torch.sin(after)

            return scan(step, state, rows)

    return {"forward": (Scanned().eval(), [(torch.randn(5), torch.randn(TRIPS, 5))])}


def branches() -> Any:
    """A condition: the two calls of a round take different ways through the program."""
    import torch
    from torch import Tensor, nn

    class Branches(nn.Module):
        def forward(self, first: Tensor, x: Tensor) -> Any:
            return torch.cond(first, lambda x: torch.sin(x) + 1.0, torch.cos, (x,))

    x = torch.randn(5)
    return {"forward": (Branches().eval(), [(torch.tensor(data=True), x), (torch.tensor(data=False), x)])}


def prefill_decode() -> Any:
    """Two methods with different instructions: the first looks at many tokens and keeps only the last."""
    import torch
    from torch import Tensor, nn

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log_softmax(x[:, -1], dim=-1)

    body = _transformer(blocks=1)
    prompt, token = torch.randint(0, _WORDS, (1, _TOKENS)), torch.randint(0, _WORDS, (1, 1))
    return {"prefill": (_network(body, Last()), [(prompt,)]), "decode": (body, [(token,), (token,)])}


def twin_methods() -> Any:
    """Two methods with the same instructions on inputs of different sizes."""
    import torch

    body = _transformer(blocks=1)
    prompt, token = torch.randint(0, _WORDS, (1, _TOKENS)), torch.randint(0, _WORDS, (1, 1))
    return {"prefill": (body, [(prompt,)]), "decode": (body, [(token,), (token,)])}


MODELS = {
    "conv_fp32": Model(conv_fp32),
    "conv_fp16": Model(conv_fp16),
    "conv_int8": Model(conv_fp32, int8=True),
    "portable": Model(portable, delegated=False),
    "mixed": Model(mixed),
    "transformer": Model(transformer),
    "map": Model(mapped),
    "scan": Model(scanned, delegated=False),
    "branches": Model(branches, delegated=False),
    "prefill_decode": Model(prefill_decode),
    "twin_methods": Model(twin_methods),
}


def trace(name: str, directory: Path) -> None:
    """Export a model and write the trace of ``ROUNDS`` rounds of its calls: NAME.etdump beside NAME.pte."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from opscope.runtimes.executorch.export.eager import EagerMethod, Quantisation
    from opscope.runtimes.executorch.export.lower import quantised

    torch.manual_seed(0)
    model = MODELS[name]
    methods = model.methods()
    exported = {method: torch.export.export(module, calls[0]) for method, (module, calls) in methods.items()}
    if model.int8:
        inputs = methods["forward"][1][0]
        method = EagerMethod(methods["forward"][0], inputs)
        graph = quantised(exported["forward"].module(), method, Quantisation(), dynamic=False)
        exported = {"forward": torch.export.export(graph, inputs)}
    partitioner = {method: [XnnpackPartitioner()] if model.delegated else [] for method in methods}
    program = directory / f"{name}.pte"
    to_edge_transform_and_lower(exported, partitioner=partitioner).to_executorch().save(str(program))
    run(program, [(method, call) for method, (_, calls) in methods.items() for call in calls])


def run(program: Path, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Make the calls, round after round, and write what the runtime traced."""
    from executorch.extension.pybindings import _C as runtime  # noqa: N811 - a module, not a constant

    module = runtime._load_for_executorch(str(program), enable_etdump=True)
    for _ in range(ROUNDS):
        for method, inputs in calls:
            module.run_method(method, inputs)
    module.write_etdump_result_to_file(str(program.with_suffix(".etdump")))
