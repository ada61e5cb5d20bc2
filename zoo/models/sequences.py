"""Recurrent networks unrolled and as loops, and control flow that stays in the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop

from zoo.models.seeded import seeded

if TYPE_CHECKING:
    from opscope.runtimes.executorch.export.eager import EagerModel

_STEPS, _WIDTH = 8, 64


class Tagger(nn.Module):
    """Words in, a recurrent network over them, a class for each."""

    def __init__(self, recurrent: nn.Module, outside: int) -> None:
        super().__init__()
        self.words, self.recurrent, self.classes = nn.Embedding(50, _WIDTH), recurrent, nn.Linear(outside, 5)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the classes, for every word."""
        return self.classes(self.recurrent(self.words(words))[0])


class Stepped(nn.Module):
    """A cell that a loop in Python calls; exporting unrolls it."""

    def __init__(self, cell: nn.GRUCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, sequence: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Every state, and the last one."""
        states = []
        for step in range(_STEPS):
            state = self.cell(sequence[:, step], state)
            states.append(state)
        return torch.stack(states, dim=1), state


class Scanned(nn.Module):
    """A recurrence that stays a loop: ``scan``."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.again = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, sequence: Tensor) -> Tensor:
        """Every state."""

        def step(state: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
            after = torch.tanh(given + self.again(state))
            return after, after.clone()

        _, states = scan(step, torch.zeros(1, _WIDTH), self.inside(sequence))
        return states


class Refined(nn.Module):
    """A value that is refined until a counter ends it: ``while_loop``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, times: Tensor, value: Tensor) -> Tensor:
        """The value after so many steps."""

        def more(left: Tensor, _: Tensor) -> Tensor:
            return left > 0

        def refine(left: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
            return left - 1, torch.tanh(self.layer(now))

        return while_loop(more, refine, (times, value))[1]


class Chosen(nn.Module):
    """One of two branches of plain arithmetic: ``cond``."""

    def forward(self, value: Tensor) -> Tensor:
        """What the chosen branch makes of it."""
        return torch.cond(value.sum() > 0, lambda x: x.relu() * 2, lambda x: x.tanh() + 1, (value,))


class Branched(nn.Module):
    """One of two branches with layers in them: ``cond``."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        """What the chosen branch makes of it."""
        return torch.cond(value.sum() > 0, lambda x: self.small(x).relu(), lambda x: self.large(x).tanh(), (value,))


def lstm() -> EagerModel:
    """An LSTM in both directions over eight words."""
    return seeded(
        lambda: Tagger(nn.LSTM(_WIDTH, _WIDTH, bidirectional=True, batch_first=True), 2 * _WIDTH),
        torch.arange(_STEPS)[None],
    )


def gru() -> EagerModel:
    """Two layers of a GRU over eight words."""
    return seeded(
        lambda: Tagger(nn.GRU(_WIDTH, _WIDTH, num_layers=2, batch_first=True), _WIDTH), torch.arange(_STEPS)[None]
    )


def gru_cells() -> EagerModel:
    """A cell in a loop of Python, with its state as input and output."""
    return seeded(lambda: Stepped(nn.GRUCell(_WIDTH, _WIDTH)), (1, _STEPS, _WIDTH), (1, _WIDTH))


def scanned() -> EagerModel:
    """A recurrence as a loop of the program."""
    return seeded(Scanned, (_STEPS, 1, _WIDTH))


def refined() -> EagerModel:
    """A loop of the program whose count is an input."""
    return seeded(Refined, torch.tensor(3), (1, _WIDTH))


def branched() -> EagerModel:
    """A branch of the program."""
    return seeded(Branched, (1, _WIDTH))


def chosen() -> EagerModel:
    """A branch of the program without layers."""
    return seeded(Chosen, (8, _WIDTH))
