"""A model's parts for its export: modules, example inputs, dynamic shapes and the choice of quantisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from opscope.runtimes.executorch import FORWARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Inputs: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Quantisation:
    """Choice of a model for its numbers of 8 and 4 bits; only quantised types use it, ``8da4w`` only ``skip``."""

    # inputs whose ranges set the scales of static quantisation, one tuple of positional inputs each; None: the
    # example inputs and a few made like them, which says nothing about accuracy
    calibration: Sequence[Inputs] | None = None
    per_channel: bool = True  # a scale for every output channel of a weight, else one for the whole weight
    skip: tuple[str, ...] = ()  # qualified names of submodules that stay in fp32


@dataclass(frozen=True)
class EagerMethod:
    """An entry point of a program."""

    module: Any  # in evaluation mode, fp32; modules of several methods may share parts
    inputs: Inputs  # positional example inputs
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # example inputs by name
    dynamic_shapes: Any = None  # as `torch.export.export` takes them; None: every size is fixed
    tokens: int | None = None  # tokens that a call produces or reads, for language models; None for others


@dataclass(frozen=True)
class EagerModel:
    """A PyTorch model as the exporter takes it, with one method or several."""

    methods: Mapping[str, EagerMethod]  # entry points by name, in the order in which a run calls them
    quantisation: Quantisation = field(default_factory=Quantisation)  # what the author of the model chose
    passes: Sequence[Any] = ()  # of `executorch.exir`, over the graph that torch exports, before it is lowered

    @classmethod
    def of(
        cls,
        module: Any,  # noqa: ANN401 - torch is not typed here
        inputs: Inputs,
        kwargs: Mapping[str, Any] | None = None,
        dynamic_shapes: Any = None,  # noqa: ANN401 - likewise
        quantisation: Quantisation | None = None,
    ) -> EagerModel:
        """Return a model with the single method ``forward``."""
        method = EagerMethod(module, inputs, kwargs or {}, dynamic_shapes)
        return cls({FORWARD: method}, quantisation or Quantisation())

    @property
    def module(self) -> Any:  # noqa: ANN401 - likewise
        """The module of the first method."""
        return next(iter(self.methods.values())).module

    @property
    def inputs(self) -> Inputs:
        """Positional example inputs of the first method."""
        return next(iter(self.methods.values())).inputs
