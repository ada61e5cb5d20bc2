"""Work of a method in parts: by category, by what SME can run, layout changes, boundaries, portable operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.grouping import grouped
from opscope.program.operators.kinds import Category
from opscope.program.partition.verdicts import Eligibility, Form, PortableReason, SmeSupport
from opscope.program.structure.plan import InstructionKind, PlannedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.preflight.operators import PlannedOperator
    from opscope.program.model import ModelMethod


_PORTABLE = Eligibility(
    SmeSupport.NOT_ELIGIBLE, Form.PORTABLE, "", "portable kernels use no matrix unit", source=None, tried=True
)


class GroupWork(msgspec.Struct, frozen=True):
    """Work of a group of operators in one inference.

    Attributes:
        operators: operators that run.
        macs: multiply-accumulates of those whose work is known.
        bytes: least bytes that they move.
        unknown: operators whose work is not known, which the other figures leave out.
    """

    operators: int
    macs: int
    bytes: int
    unknown: int


class CategoryWork(msgspec.Struct, frozen=True):
    """Work of one category, delegated and portable."""

    category: Category
    delegated: GroupWork
    portable: GroupWork


class MatrixGroup(Eligibility, msgspec.Struct, frozen=True, kw_only=True):
    """Operators that multiply and accumulate and share a rule.

    Attributes:
        operators: operators that run.
        macs: multiply-accumulates of those whose work is known.
        share: share of all multiply-accumulates.
        kernel: instructions that multiply in the kernel that the CPU gets; null where no rule tells.
        kernel_without: kernel with the features off that `opscope profile` switches off; null if no rule tells.
        better_kernel: the stronger kernel that other number types of this width would get; null if there is none.
        better_advice: how to get the stronger kernel; null if there is none.
        lines: lines of the model's code that caused them, as ``file:line``; empty without an export record.
        single_row_macs: multiply-accumulates of products with one row.
    """

    operators: int
    macs: int
    share: float
    kernel: str | None = None
    kernel_without: str | None = None
    better_kernel: str | None = None
    better_advice: str | None = None
    lines: list[str] = []
    single_row_macs: int = 0


class MatrixWork(msgspec.Struct, frozen=True):
    """Multiply-accumulates by whether SME and SME2 can run them; portable operators cannot use SME.

    Attributes:
        macs: multiply-accumulates of all operators whose work is known.
        eligible: multiply-accumulates that SME or SME2 can run.
        share: ``eligible`` as a share of ``macs``; null when there are no multiply-accumulates.
        highest_share: share if SME could also run everything unknown; null when there are no multiply-accumulates.
        unknown: operators that multiply and accumulate and whose work is not known.
        groups: most work first.
    """

    macs: int
    eligible: int
    share: float | None
    highest_share: float | None
    unknown: int
    groups: list[MatrixGroup]


class LayoutWork(msgspec.Struct, frozen=True):
    """Moves of data that no line of the model asks for, and conversions of number types.

    Attributes:
        transposes: transposes that the partitioner added.
        at_border: transposes at the border of a delegate.
        conversions: operators that convert number types, also those that the model asks for.
        bytes: least bytes that all of these move.
        share: share of the bytes of all operators; null when nothing is known of them.
    """

    transposes: int
    at_border: int
    conversions: int
    bytes: int
    share: float | None


class DelegateBoundaries(msgspec.Struct, frozen=True):
    """Data that passes between delegates and the rest of a method.

    Attributes:
        calls: calls of delegates, of every backend.
        tensors: tensors that are given to them or got from them, over all calls.
        bytes: bytes of these tensors.
        inner_tensors: tensors that are neither an input nor an output of the method.
        inner_bytes: bytes of the inner tensors.
    """

    calls: int
    tensors: int
    bytes: int
    inner_tensors: int
    inner_bytes: int


class PortableGroup(msgspec.Struct, frozen=True):
    """Portable operators of one name that stayed for one reason.

    Attributes:
        operator: its name in the program.
        category: what it is.
        work: work of all of them.
        share: share of the bytes of all operators; null when nothing is known of them.
        reason: why, with the evidence of the first of them.
        lines: lines of the model's code that caused them, as ``file:line``; empty without an export record.
    """

    operator: str
    category: Category
    work: GroupWork
    share: float | None
    reason: PortableReason
    lines: list[str] = []


def by_category(operators: Sequence[PlannedOperator]) -> list[CategoryWork]:
    """Return the work by category, delegated and portable, without categories that have no operators."""
    rows = []
    for category in Category:
        planned_operators = [
            operator for operator in operators if operator.category is category and not operator.only_sizes
        ]
        if planned_operators:
            sides = (
                [operator for operator in planned_operators if operator.delegated is side] for side in (True, False)
            )
            rows.append(CategoryWork(category, *map(work_of, sides)))
    return rows


def work_of(operators: Iterable[PlannedOperator]) -> GroupWork:
    """Return the work of some operators together."""
    listed = list(operators)
    return GroupWork(
        operators=sum(operator.calls for operator in listed),
        macs=sum(operator.macs or 0 for operator in listed),
        bytes=sum(operator.bytes or 0 for operator in listed),
        unknown=sum(operator.calls for operator in listed if operator.cost is None),
    )


def matrix_work(operators: Sequence[PlannedOperator]) -> MatrixWork:
    """Return multiply-accumulates by verdict, form and number types."""
    planned_operators = [operator for operator in operators if operator.eligibility or operator.macs]
    total = sum(operator.macs or 0 for operator in planned_operators)
    groups = [_matrix_group(group, total) for group in grouped(planned_operators, _matrix_key).values()]
    groups.sort(key=lambda group: -group.macs)
    eligible, open_ = (
        sum(group.macs for group in groups if group.verdict is verdict)
        for verdict in (SmeSupport.ELIGIBLE, SmeSupport.UNKNOWN)
    )
    return MatrixWork(
        macs=total,
        eligible=eligible,
        share=eligible / total if total else None,
        highest_share=(eligible + open_) / total if total else None,
        unknown=work_of(planned_operators).unknown,
        groups=groups,
    )


def _matrix_key(operator: PlannedOperator) -> tuple[str, ...]:
    eligibility, kernel = operator.eligibility, operator.kernels.kernel if operator.kernels else ""
    return (
        (eligibility.verdict.value, eligibility.form.value, eligibility.types, eligibility.reason, kernel)
        if eligibility
        else (kernel,)
    )


def _matrix_group(operators: Sequence[PlannedOperator], total: int) -> MatrixGroup:
    work, kernels = work_of(operators), operators[0].kernels
    return MatrixGroup(
        **msgspec.structs.asdict(operators[0].eligibility or _PORTABLE),
        operators=work.operators,
        macs=work.macs,
        share=work.macs / total if total else 0.0,
        kernel=kernels.kernel if kernels else None,
        kernel_without=kernels.without if kernels else None,
        better_kernel=kernels.better if kernels else None,
        better_advice=kernels.advice if kernels else None,
        lines=_source_lines(operators),
        single_row_macs=sum(operator.macs or 0 for operator in operators if operator.rows == 1),
    )


def layout(operators: Sequence[PlannedOperator]) -> LayoutWork:
    """Return layout changes and conversions, including those in portable kernels."""
    added = [operator for operator in operators if operator.added]
    converting = [operator for operator in operators if operator.converts and not operator.added]
    moved = work_of([*added, *converting]).bytes
    total_bytes = work_of(operators).bytes
    return LayoutWork(
        transposes=sum(operator.calls for operator in added),
        at_border=sum(operator.calls for operator in added if operator.at_border),
        conversions=sum(operator.calls for operator in converting),
        bytes=moved,
        share=moved / total_bytes if total_bytes else None,
    )


def delegate_boundaries(method: ModelMethod) -> DelegateBoundaries:
    """Return the tensors that calls of delegates take and leave."""
    plan = method.plan
    tensors = {number: value for number, value in enumerate(plan.values) if isinstance(value, PlannedTensor)}
    outer = {*plan.inputs, *plan.outputs}
    calls = [step for step in (plan.chains[0].steps if plan.chains else ()) if step.kind is InstructionKind.DELEGATE]
    passed = [number for step in calls for number in step.arguments if number in tensors]
    inner = [number for number in passed if number not in outer]
    sizes = [sum(tensors[number].size_bytes or 0 for number in side) for side in (passed, inner)]
    return DelegateBoundaries(len(calls), len(passed), sizes[0], len(inner), sizes[1])


def portable_groups(operators: Sequence[PlannedOperator]) -> list[PortableGroup]:
    """Return portable operators by name and reason, most work first, without those that only compute sizes."""
    total_bytes = work_of(operators).bytes
    planned_operators = [operator for operator in operators if not operator.delegated and not operator.only_sizes]
    groups = [_portable_group(group, total_bytes) for group in grouped(planned_operators, _portable_key).values()]
    return sorted(groups, key=lambda group: (-group.work.macs, -group.work.bytes, group.operator))


def _portable_key(operator: PlannedOperator) -> tuple[str, ...]:
    reason = operator.reason
    return (operator.name, reason.cause.value, reason.text) if reason else ()


def _portable_group(operators: Sequence[PlannedOperator], total_bytes: int) -> PortableGroup:
    first, work = operators[0], work_of(operators)
    assert first.reason is not None  # noqa: S101 - only portable operators are grouped here
    share = work.bytes / total_bytes if total_bytes else None
    return PortableGroup(first.name, first.category, work, share, first.reason, _source_lines(operators))


def _source_lines(operators: Sequence[PlannedOperator]) -> list[str]:
    return list(dict.fromkeys(operator.line for operator in operators if operator.line))
