"""Recognise language models among .pte: ``forward`` of tokens and a position, as ``export_llm`` writes it.

Source: ``extension/llm/runner`` of ExecuTorch 1.5.1, which calls such programs and asks their constant methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.cost.cache import cache_use
from opscope.program.cost.call import OperatorCall
from opscope.program.structure.plan import Dynamism, InstructionKind, PlannedTensor
from opscope.runtimes.executorch import FORWARD
from opscope.runtimes.executorch.pte import read_executable
from opscope.runtimes.language import LanguageModel

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.program.structure.plan import Executable, MethodPlan

_TOKENS, _POSITION = "tokens", "input_pos"
_RANKS = (2, 1)
"""Number of dimensions of both inputs: (batch, tokens), and the position alone."""


def pte_language_model(program: Path) -> LanguageModel | None:
    """Return the language model that a program with one method is; None for any other program."""
    executable = read_executable(program)
    plans = executable.running
    if [plan.name for plan in plans] != [FORWARD] or _read_constant(executable, "use_kv_cache") is not True:
        return None
    inputs = [plans[0].values[number] for number in plans[0].inputs]
    tensors = [value for value in inputs if isinstance(value, PlannedTensor) and value.dtype.name == "int64"]
    if len(inputs) != len(tensors) or tuple(len(tensor.sizes) for tensor in tensors) != _RANKS:
        return None
    tokens, position = tensors
    allocated = cache_places(plans[0]) or _read_positive_number(executable, "get_max_context_len")
    if allocated is None or position.sizes != (1,) or tokens.sizes[0] != 1:
        return None
    most = tokens.sizes[1]
    return LanguageModel(
        [(_TOKENS, tokens), (_POSITION, position)],
        _TOKENS,
        _read_positive_number(executable, "get_vocab_size"),
        context=_read_positive_number(executable, "get_max_context_len"),
        shared=True,
        allocated=allocated,
        counts=range(most, most + 1) if tokens.dynamism is Dynamism.STATIC else range(1, most + 1),
    )


def cache_places(plan: MethodPlan) -> int | None:
    """Return the number of tokens that a method's cache can hold; None if no operator states it."""
    steps = (step for chain in plan.chains for step in chain.steps if step.kind is InstructionKind.KERNEL)
    return next((use.places for step in steps if (use := cache_use(OperatorCall(plan, step)))), None)


def _read_constant(executable: Executable, name: str) -> object:
    """Return the constant that a method without inputs and instructions returns; None if there is no such method."""
    plan = next((plan for plan in executable.plans if plan.name == name and len(plan.outputs) == 1), None)
    return None if plan is None else plan.values[plan.outputs[0]]


def _read_positive_number(executable: Executable, name: str) -> int | None:
    value = _read_constant(executable, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
