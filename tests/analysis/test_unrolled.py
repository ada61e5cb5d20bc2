"""Recurrences that were unrolled: which operators are their steps."""

from __future__ import annotations

from opscope.analysis.operators.modules import MIN_STEPS, find_recurrences, module_times
from opscope.analysis.operators.operators import Operator, sums
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import classify
from opscope.reports.content.content import OperatorRow, merge_recurrences

PRODUCT, SUM, SPLIT = "Fully Connected (NC, F32) GEMM", "Add (ND)", "native_call_split_with_sizes_copy.out"


def ran(*events: tuple[str, str | None, tuple[int, ...]]) -> list[Operator]:
    """Operators by name, module and shape, one after the other; each takes its number in ns."""
    found = []
    for number, (name, module, shape) in enumerate(events):
        kind = classify(name)
        found.append(
            Operator(
                method="forward",
                instruction=number,
                position=0,
                name=f"{name} #{number}",
                category=kind.category,
                kind=kind.kind,
                backend="portable" if name == SPLIT else "XNNPACK",
                calls=1,
                time_ns=float(number),
                share=number / 1000,
                traced_ns=float(number),
                module=module,
                attribution=Attribution.EXACT,
                macs=None,
                bytes=None,
                uncertainty_ns=0.0,
                shape=shape,
            )
        )
    return found


def steps(count: int, module: str | None = "rnn") -> list[tuple[str, str | None, tuple[int, ...]]]:
    """A product with the state, its parts, and a sum; the last step has no parts."""
    step = [(PRODUCT, module, (1, 12)), (SPLIT, module, (1, 4)), (SUM, module, (1, 4))]
    return (step * count)[:-2]


INPUTS, HEAD = (PRODUCT, "rnn", (100, 12)), (PRODUCT, "head", (1, 3))


def test_steps_of_a_module_are_one_recurrence() -> None:
    """The product of all inputs at once is no step, and neither is the head."""
    (found,) = find_recurrences(ran(INPUTS, *steps(20), HEAD))
    assert (found.module, found.steps, len(found.operators)) == ("rnn", 20, 58)
    assert found.operators[0].instruction == 1


def test_layers_and_directions_of_a_module_are_told_together() -> None:
    """Their operators have the same names and shapes."""
    (found,) = find_recurrences(ran(INPUTS, *steps(20), INPUTS, *steps(20), HEAD))
    assert (found.steps, len(found.operators)) == (40, 116)


def test_a_step_may_call_modules_and_have_several_products() -> None:
    """Such as the input's and the state's product of a cell; the module is the one that holds them."""
    step = [(PRODUCT, "net.cell.given", (1, 12)), (PRODUCT, "net.cell.state", (1, 12)), (SUM, "net.cell", (1, 4))]
    twice = [(PRODUCT, "cell", (1, 12)), (PRODUCT, "cell", (1, 12)), (SUM, "cell", (1, 12))]
    assert [(one.module, one.steps) for one in find_recurrences(ran(*step * 10))] == [("net.cell", 10)]
    assert [(one.module, one.steps) for one in find_recurrences(ran(*twice * 10))] == [("cell", 10)]


def test_a_step_that_stands_by_itself_is_counted() -> None:
    """XNNPACK moves what the first one needs to the front."""
    (found,) = find_recurrences(ran(steps(1)[0], INPUTS, (SUM, "other", (1, 4)), *steps(19)))
    assert (found.steps, found.operators[0].instruction) == (20, 0)


def test_layers_of_equal_shape_are_no_recurrence() -> None:
    """They are different modules; where modules are not known, nothing is claimed."""
    layers = [(PRODUCT, f"layers.{number}", (1, 12)) for number in range(20)]
    assert find_recurrences(ran(*layers)) == []
    assert find_recurrences(ran(*steps(20, None))) == []
    assert find_recurrences(ran(*steps(MIN_STEPS - 2))) == []


def test_a_recurrence_is_one_row_of_a_table_and_the_sum_is_as_before() -> None:
    """And the module says how many steps it has."""
    operators = ran(INPUTS, *steps(20), HEAD)
    rows = merge_recurrences([OperatorRow(operator, 0.0, None) for operator in operators])
    assert [(row.operator.module, row.steps, row.members) for row in rows] == [
        ("rnn", 20, 58),
        ("head", 0, 1),
        ("rnn", 0, 1),
    ]
    assert sums(row.operator for row in rows) == sums(operators)
    assert rows[0].operator.backend.split(", ") in (["XNNPACK", "portable"], ["portable", "XNNPACK"])
    assert {row.path: row.steps for row in module_times(operators, {})} == {"": None, "rnn": 20, "head": None}
