"""What it costs that the steps of a recurrence leave their delegate."""

from __future__ import annotations

import msgspec
import pytest

from opscope.analysis.analysis import TraceSource, analyse
from opscope.analysis.findings.message import MessageKind
from opscope.analysis.operators.operators import Operator
from opscope.analysis.rules.attention import attention_masking
from opscope.analysis.rules.evidence import Evidence
from opscope.analysis.rules.movement import fragmentation
from opscope.analysis.rules.operators import unrolled_recurrence
from opscope.core.table.places import OperatorKey
from opscope.program.operators.kinds import AttentionPart
from traces import table

SOURCE = TraceSource("trace", "etdump", [("trace", "0" * 64)])
STEPS = 20


def evidence(kernel_us: int, border_us: int, module_type: str = "torch.nn.modules.rnn.GRU") -> Evidence:
    """Of a recurrence whose steps have a product of 20 us in a delegate, and a split in a kernel behind it."""
    lines, total = [], 0
    for step in range(STEPS):
        call, kernel = 20 + border_us, kernel_us + 1
        total += call + kernel
        lines += [
            f"  DELEGATE_CALL @{2 * step} {call * 1000}",
            "    Fully Connected (NC, F32) GEMM #1 20000",
            f"  OPERATOR_CALL @{2 * step + 1} {kernel * 1000}",
            f"    native_call_split_with_sizes_copy.out {kernel_us * 1000}",
        ]
    analysis = analyse(table("\n".join([f"Method::execute {total * 1000}", *lines]), repeat=2), SOURCE)
    known = [_known(operator, module_type) for operator in analysis.operators]
    return Evidence(analysis.latency, known, delegates=analysis.delegates)


def _known(operator: Operator, module_type: str) -> Operator:
    """With its module, as a program tells."""
    if operator.position is None:
        return operator
    return msgspec.structs.replace(operator, module="rnn", module_type=module_type)


def test_kernels_and_borders_of_the_steps_are_what_is_saved() -> None:
    """All of them but one border, less half a unit each that durations lose, with the time of the kernels' calls.

    Less what the operators cost that the recipe adds: a step has 14 in place of one.
    """
    found = unrolled_recurrence(evidence(kernel_us=3, border_us=2))
    assert found.kind is MessageKind.FINDING
    assert found.title.startswith("Steps of rnn (20 steps) leave their delegate, which takes 20.9 % of the latency")
    assert found.saving_ns == pytest.approx(
        (STEPS * 3 + STEPS * 1 + (STEPS - 1) * 1.5) * 1000 - STEPS * 13 * 260, rel=1e-3
    )
    assert found.saving_basis == "if all steps ran in one call, with the operators of the recipe"
    assert found.recipe == "recurrent-layers"
    assert "opscope.patterns.replace_recurrent(model)" in found.next_step
    assert len(found.operators) == STEPS


def test_a_loop_of_the_users_own_is_to_be_written_otherwise() -> None:
    """Nothing replaces it."""
    found = unrolled_recurrence(evidence(3, 2, "nets.Cell"))
    assert "replace_recurrent" not in found.next_step
    assert "slices instead of split" in found.next_step
    assert (found.saving_basis or "").startswith("at most, ")


def test_little_time_is_no_finding() -> None:
    """Neither is a program in which nothing repeats."""
    found = unrolled_recurrence(evidence(kernel_us=0, border_us=0))
    assert found.kind is MessageKind.PASSED
    assert "rnn (20 steps)" in found.title
    nothing = evidence(3, 2)._replace(operators=[])
    assert unrolled_recurrence(nothing).title == "no recurrence was unrolled"


def test_calls_of_a_recurrence_are_not_told_twice() -> None:
    """The rule on many calls leaves them to this one."""
    found = fragmentation(evidence(kernel_us=3, border_us=2))
    assert found.kind is MessageKind.PASSED
    assert found.title.endswith("mostly of an unrolled recurrence (a separate finding)")


def test_products_of_an_attention_are_saved_but_for_what_a_delegate_takes() -> None:
    """At the rate of the products that the delegate ran in the same inference."""
    own = evidence(kernel_us=30, border_us=0)
    counted = [
        msgspec.structs.replace(one, macs=1000, kind="linear") if one.position is not None else one
        for one in own.operators
    ]
    kernels = [o for o in counted if o.backend == "portable"]
    keys = [OperatorKey(o.method, o.instruction or 0, o.position or 0) for o in kernels]
    parts = dict.fromkeys(keys[:4], AttentionPart.PROJECTING) | {keys[4]: AttentionPart.MASKING}
    found = attention_masking(own._replace(operators=counted, attention=parts))
    assert found.title.startswith("Undelegated projections, masks, scales and copies inside attention")
    assert found.saving_ns == pytest.approx(5 * 31_000 - 4 * 20_000)
    assert "as fast as its others in this run" in (found.saving_basis or "")
    assert "weights are sliced in every call: 0.120 ms" in found.evidence
