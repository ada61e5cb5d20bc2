"""Recurrent layers of operators that XNNPACK delegates: all steps are then part of one delegate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opscope.patterns.modules import replace_modules

_GATES = {"GRU": ((0, 1), (2,)), "LSTM": ((0, 1, 3, 2),), "RNN_TANH": ((0,),), "RNN_RELU": ((0,),)}
"""Gates whose products are made together, in groups, in the order in which their numbers lie."""


class _Direction(nn.Module):
    """One layer in one direction: products with all inputs at once, and with the state in every step.

    Every operator of a step costs about as much as a whole gate computes, so gates share operators where they can.
    """

    def __init__(self, mode: str, weights: list[Tensor], *, backwards: bool) -> None:
        super().__init__()
        input_weights, state, *biases = weights
        self.mode, self.backwards, self.width = mode, backwards, state.shape[1]
        self.given = self._gate_linears(input_weights, biases[0] if biases else None)
        self.state = self._gate_linears(state, biases[1] if biases else None)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of all steps, and the state behind the last one; step, batch, number."""
        steps, batch, size = x.shape
        rows = x.reshape(steps * batch, size)
        products = [linear(rows) for linear in self.given]
        outputs = []
        for number in reversed(range(steps)) if self.backwards else range(steps):
            step_products = [product.narrow(0, number * batch, batch) for product in products]
            hidden, cell = self._run_step(step_products, [linear(hidden) for linear in self.state], hidden, cell)
            outputs.append(hidden)
        together = torch.cat(outputs[::-1] if self.backwards else outputs)
        return together.view(steps, batch, self.width), hidden, cell

    def _run_step(
        self, of_input: list[Tensor], of_state: list[Tensor], hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the state behind one step."""
        total = of_input[0] + of_state[0]
        if self.mode == "GRU":
            both = torch.sigmoid(total)
            new = torch.tanh(of_input[1] + self._slice_gate(both, 0) * of_state[1])
            return new + self._slice_gate(both, 1) * (hidden - new), cell
        if self.mode == "LSTM":
            gates = torch.sigmoid(total.narrow(1, 0, 3 * self.width))
            new = torch.tanh(self._slice_gate(total, 3))
            cell = self._slice_gate(gates, 1) * cell + self._slice_gate(gates, 0) * new
            return self._slice_gate(gates, 2) * torch.tanh(cell), cell
        return torch.tanh(total) if self.mode == "RNN_TANH" else torch.relu(total), cell

    def _slice_gate(self, numbers: Tensor, at: int) -> Tensor:
        """Return the numbers of one gate."""
        return numbers.narrow(1, at * self.width, self.width)

    def _gate_linears(self, weight: Tensor, bias: Tensor | None) -> nn.ModuleList:
        """Return a linear layer for each group of gates."""
        gates, biases = weight.split(self.width), bias.split(self.width) if bias is not None else ()
        return nn.ModuleList(
            _copied_linear(
                torch.cat([gates[at] for at in group]), torch.cat([biases[at] for at in group]) if biases else None
            )
            for group in _GATES[self.mode]
        )


class Recurrent(nn.Module):
    """Replacement of ``torch.nn.GRU``, ``LSTM`` or ``RNN`` in evaluation mode, without ``proj_size``.

    PyTorch's own layers are unrolled by the exporter, too, but into operators such as ``split`` and ``squeeze``,
    which
    end a delegate in every step.

    Args:
        layer: what to compute.
    """

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        if layer.proj_size:
            raise ValueError("a layer with proj_size has no delegated counterpart")
        self.batch_first, self.is_lstm, self.width = layer.batch_first, layer.mode == "LSTM", layer.hidden_size
        self.sides = 2 if layer.bidirectional else 1
        self.parts = nn.ModuleList(
            _Direction(layer.mode, weights, backwards=layer.bidirectional and number % 2 == 1)
            for number, weights in enumerate(layer.all_weights)
        )
        self.train(layer.training)

    def forward(
        self, x: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        """Return outputs and last state, as the layer that it replaces does."""
        batched = x.dim() == 3  # noqa: PLR2004 - batch, step, number
        x = (x.transpose(0, 1) if self.batch_first else x) if batched else x.unsqueeze(1)
        first = self._first_states(x, hx)
        states: list[tuple[Tensor, Tensor]] = []
        for layer in range(0, len(self.parts), self.sides):
            made = [self.parts[at](x, *first[at]) for at in range(layer, layer + self.sides)]
            x = torch.cat([direction[0] for direction in made], -1) if self.sides > 1 else made[0][0]
            states += [direction[1:] for direction in made]
        hidden, cell = (torch.cat([direction[at].unsqueeze(0) for direction in states]) for at in (0, 1))
        if not batched:
            x, hidden, cell = x.squeeze(1), hidden.squeeze(1), cell.squeeze(1)
        elif self.batch_first:
            x = x.transpose(0, 1)
        return x, (hidden, cell) if self.is_lstm else hidden

    def _first_states(self, x: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None) -> list[tuple[Tensor, Tensor]]:
        """Return the states to begin with, of each layer and direction; batch, number."""
        if hx is None:
            zeros = x.new_zeros(x.shape[1], self.width)
            return [(zeros, zeros)] * len(self.parts)
        pair = hx if isinstance(hx, tuple) else (hx, hx)
        hidden, cell = (
            [side.narrow(0, at, 1).reshape(-1, self.width) for at in range(len(self.parts))] for side in pair
        )
        return list(zip(hidden, cell, strict=True))


def replace_recurrent(model: nn.Module) -> int:
    """Put delegated recurrence in the place of every ``torch.nn.GRU``, ``LSTM`` and ``RNN`` of a model.

    Load weights before. A model that is such a layer itself stays: wrap it, or make a :class:`Recurrent` of it.

    Returns:
        How many were replaced.
    """
    replaced = 0

    def made(layer: nn.RNNBase) -> nn.Module:
        nonlocal replaced
        if layer.proj_size:
            return layer
        replaced += 1
        return Recurrent(layer)

    replace_modules(model, nn.RNNBase, made)
    return replaced


def _copied_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with copies of weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach())
    return made
