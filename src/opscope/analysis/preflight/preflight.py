"""Preflight of a program: what it shows before it runs; schema ``opscope.preflight/3``.

Will it be accelerated, what share of its work, what holds it back, and what to do. All counts are of one inference in
which every instruction runs once, at the upper bounds of shapes that can differ.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.findings.message import Message, Severity, finding, order_findings, split_ruled_out
from opscope.analysis.findings.rule import PORTABLE as PORTABLE_RECIPES
from opscope.analysis.findings.rule import declare_rule, recipe_of, rule_of
from opscope.analysis.preflight.contents import Count, HashedFile, count_names, tensors_of
from opscope.analysis.preflight.forecast import Forecast, forecast_parts
from opscope.analysis.preflight.operators import PlannedOperator, planned_operators
from opscope.analysis.preflight.parts import (
    CategoryWork,
    DelegateBoundaries,
    LayoutWork,
    MatrixWork,
    PortableGroup,
    by_category,
    delegate_boundaries,
    layout,
    matrix_work,
    portable_groups,
)
from opscope.core.parts import part
from opscope.core.units import counted_text, macs_text, share_text, size_text
from opscope.program.cost.shapes import is_dynamic
from opscope.program.partition.partition_reasons import RULES_OF
from opscope.program.partition.purposes import backend_purpose, program_purpose
from opscope.program.partition.sme_rules import TABLE
from opscope.program.partition.verdicts import Cause, Form, SmeSupport, advice
from opscope.program.structure.exported import Tensor
from opscope.program.structure.plan import InstructionKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opscope.analysis.preflight.parts import MatrixGroup
    from opscope.program.kernels.cpu import Cpu
    from opscope.program.model import ModelMethod, ProgramModel
    from opscope.program.structure.plan import PlannedStep


XNNPACK = "XnnpackBackend"


class Partition(msgspec.Struct, frozen=True):
    """Operators that go to XNNPACK and that stay.

    Attributes:
        delegates: delegates of XNNPACK.
        calls: instructions that call them.
        delegated_operators: operators that XNNPACK will run, over all calls; of a runtime without delegates
            all that run.
        portable_operators: instructions that call a portable kernel on tensors.
        size_operators: instructions that only compute sizes.
        unread: delegates of XNNPACK whose graph the program does not hold: their work is not known.
        other_backends: delegates of other backends, which are not looked into.
    """

    delegates: int
    calls: int
    delegated_operators: int
    portable_operators: int
    size_operators: int
    unread: int
    other_backends: list[Count]


class MethodPreflight(msgspec.Struct, frozen=True):
    """Preflight of one method of a program.

    Attributes:
        name: name of the method.
        inputs: tensors that the caller sets.
        outputs: tensors that the caller gets.
        dynamic: shapes can differ between calls; the figures are for the largest.
        branches: it has branches or loops; unless ``loop_runs`` is known, the figures count every instruction once.
        partition: what is delegated.
        work: work by category.
        matrix: multiply-accumulates by whether SME and SME2 can run them.
        layout: layout changes and conversions.
        borders: what passes between delegates and the rest.
        portable: operators outside of delegates, with the reason; most bytes first.
        forecast: what will take the time; null when the work is not known.
        findings: what holds it back, and what to do.
        purpose: what the program is for, where that is not running on a CPU with XNNPACK; null where nothing tells.
        loop_runs: how often the graph of a loop ran in the inference that told the shapes, of several loops the most:
            the figures count each of these runs; null where no inference was run, or it has no loop.
    """

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    dynamic: bool
    branches: bool
    partition: Partition
    work: list[CategoryWork]
    matrix: MatrixWork
    layout: LayoutWork
    borders: DelegateBoundaries
    portable: list[PortableGroup]
    forecast: Forecast | None
    findings: list[Message]
    purpose: str | None = None
    loop_runs: int | None = None


class PreflightCpu(msgspec.Struct, frozen=True):
    """Processor that a program was examined for.

    Attributes:
        name: public name of it, or ``this CPU``.
        arch: ``x86_64`` or ``aarch64``.
        features: groups of features that it has, as ``--ablate`` names them, strongest first.
        ablated: the group that `opscope profile` switches off for such a program; null when none helps it.
    """

    name: str
    arch: str
    features: list[str]
    ablated: str | None


class Preflight(HashedFile, frozen=True, tag_field="schema", tag="opscope.preflight/3"):
    """Result of a preflight.

    Attributes:
        cpu: processor that kernels are chosen for; null where its features cannot be read.
        acceleration_rules: the release that the tables of kernels are of.
        partition_rules: the release that the rules of the partitioner are of; empty where nothing is delegated.
        methods: methods in the order of the program; those without instructions are left out.
        ran: what was run to learn of it; empty: nothing.
    """

    cpu: PreflightCpu | None
    acceleration_rules: str
    partition_rules: str
    methods: list[MethodPreflight]
    ran: str = ""


def describe_cpu(cpu: Cpu | None) -> PreflightCpu | None:
    """Return what the result says of a processor."""
    return PreflightCpu(cpu.name, cpu.arch, list(cpu.groups), cpu.ablated) if cpu else None


def preflight(model: ProgramModel, path: str, sha256: str, cpu: Cpu | None) -> Preflight:
    """Return what a processor will accelerate of a model's program, and what holds it back."""
    rules = RULES_OF if model.outside is None else model.outside.rules
    plans = model.executable.running or model.executable.plans
    names = [plan.name for plan in model.executable.plans]
    methods = [_preflight_method(model.methods[plan.name], cpu, names) for plan in plans]
    return Preflight(path, sha256, describe_cpu(cpu), TABLE, rules, methods)


def _preflight_method(method: ModelMethod, cpu: Cpu | None, names: Sequence[str]) -> MethodPreflight:
    """Return what a method comes to; ``names`` are those of all methods of its program."""
    plan = method.plan
    operators = planned_operators(method, cpu)
    steps = plan.chains[0].steps if plan.chains else ()
    return method_preflight(
        plan.name,
        tensors_of(plan, plan.inputs),
        tensors_of(plan, plan.outputs),
        operators,
        cpu,
        dynamic=is_dynamic(plan),
        branches=any(step.kind is InstructionKind.JUMP for step in steps),
        partition=_describe_partition(method, operators, steps),
        borders=delegate_boundaries(method),
        purpose=program_purpose(names, (operator.name for operator in operators if not operator.delegated)),
    )


def method_preflight(  # noqa: PLR0913 - facts of a method, most by name
    name: str,
    inputs: list[Tensor],
    outputs: list[Tensor],
    operators: Sequence[PlannedOperator],
    cpu: Cpu | None,
    *,
    branches: bool,
    dynamic: bool = False,
    purpose: str | None = None,
    loop_runs: int | None = None,
    partition: Partition,
    borders: DelegateBoundaries,
) -> MethodPreflight:
    """Return what the operators of a method come to on a processor.

    The other arguments are those of :class:`MethodPreflight`.
    """
    method = MethodPreflight(
        name=name,
        inputs=inputs,
        outputs=outputs,
        dynamic=dynamic,
        branches=branches,
        partition=partition,
        work=by_category(operators),
        matrix=matrix_work(operators),
        layout=layout(operators),
        borders=borders,
        portable=portable_groups(operators),
        forecast=forecast_parts(operators, partition.calls, cpu) if cpu and not partition.unread else None,
        findings=[],
        purpose=purpose,
        loop_runs=loop_runs,
    )
    return msgspec.structs.replace(method, findings=examine_plan(method, cpu))


def _describe_partition(
    method: ModelMethod, operators: Sequence[PlannedOperator], steps: Sequence[PlannedStep]
) -> Partition:
    plan = method.plan
    xnnpack_delegates = [number for number, delegate in enumerate(plan.delegates) if delegate.id == XNNPACK]
    portable = [operator for operator in operators if not operator.delegated]
    sizes = sum(operator.only_sizes for operator in portable)
    return Partition(
        delegates=len(xnnpack_delegates),
        calls=sum(plan.called(step) == XNNPACK for step in steps if step.kind is InstructionKind.DELEGATE),
        delegated_operators=sum(operator.calls for operator in operators if operator.delegated),
        portable_operators=len(portable) - sizes,
        size_operators=sizes,
        unread=sum(number not in method.graphs for number in xnnpack_delegates),
        other_backends=count_names(delegate.id for delegate in plan.delegates if delegate.id != XNNPACK),
    )


MATRIX_SHARE = 0.05
"""Share of multiply-accumulates from which a group that SME cannot run is named."""
PORTABLE_BYTES = 0.02
"""Share of bytes from which a portable operator is named."""
LAYOUT_BYTES = 0.05
"""Share of bytes from which layout changes are named."""
MANY_CALLS = 8
"""Calls of delegates from which a method counts as cut up."""
_NAMED = 3
"""Portable operators that are named for it."""


def _source_lines(groups: Iterable[PortableGroup]) -> list[str]:
    return list(dict.fromkeys(line for group in groups for line in group.lines))


def next_step(group: PortableGroup) -> str:
    """Return what to do about portable operators of one name and reason."""
    return advice(group.operator, group.reason.cause, group.reason.evidence)


def examine_plan(method: MethodPreflight, cpu: Cpu | None) -> list[Message]:
    """Return findings on one method, those that matter most first; those about SME only for a processor with SME."""
    rules = [rule for rule in RULES if cpu is None or cpu.has_sme or rule not in SME_RULES]
    messages = [message for rule in rules for message in _rule_messages(rule, method)]
    return order_findings(split_ruled_out(messages)[0])


def _rule_messages(rule: Callable[[MethodPreflight], list[Message]], method: MethodPreflight) -> list[Message]:
    return part(f"the rule {rule_of(rule).name}", lambda: rule(method), [])


@declare_rule(Severity.HIGH)
def nothing_delegated(method: MethodPreflight) -> list[Message]:
    """No operator goes to XNNPACK, of a program that is for no other backend and purpose."""
    partition = method.partition
    if partition.calls or partition.other_backends or method.purpose or not partition.portable_operators:
        return []
    evidence = f"{counted_text(partition.portable_operators, 'portable operator')}, no call of XNNPACK"
    step = advice("", Cause.NOT_LOWERED, None)
    first = method.portable[0] if method.portable else None
    if first is not None and first.reason.cause is not Cause.NOT_LOWERED:
        evidence, step = f"{evidence}; {first.operator}: {first.reason.text}", next_step(first)
    words = "nothing is accelerated", evidence, step
    return [finding("nothing_delegated", Severity.HIGH, words).about(lines=_source_lines(method.portable))]


@declare_rule(Severity.HIGH)
def unread(method: MethodPreflight) -> list[Message]:
    """Delegates whose graph is not in the program, so their work is unknown."""
    partition = method.partition
    if not partition.unread:
        return []
    evidence = f"{partition.unread} of {counted_text(partition.delegates, 'delegate')}: no payload in the file"
    words = "the work of some delegates is unknown", evidence, "use the program that the exporter wrote"
    return [finding("unread", Severity.HIGH, words)]


@declare_rule(Severity.MEDIUM)
def other_backend(method: MethodPreflight) -> list[Message]:
    """Delegates of backends other than XNNPACK, which opscope does not inspect."""
    messages = []
    for backend in method.partition.other_backends:
        title = f"made for {backend_purpose(backend.name)}; opscope does not look into what {backend.name} runs"
        evidence = f"{counted_text(backend.count, 'delegate')}; all figures are of the rest"
        words = title, evidence, "run it there, and analyze its ETDump"
        messages.append(finding("other_backend", Severity.MEDIUM, words))
    return messages


@declare_rule(Severity.INFO)
def other_purpose(method: MethodPreflight) -> list[Message]:
    """A program for microcontrollers, DSPs or training, which XNNPACK would not run."""
    if method.purpose is None:
        return []
    evidence = f"{counted_text(method.partition.portable_operators, 'operator')} outside of delegates, as they must be"
    words = f"made for {method.purpose}", evidence, "run it there, and analyze its ETDump"
    return [finding("other_purpose", Severity.INFO, words)]


@declare_rule(Severity.HIGH)
def not_loadable(method: MethodPreflight) -> list[Message]:
    """Operators that make the library reject a model on CPUs with SME."""
    for group in method.matrix.groups:
        if group.form is Form.PRODUCT and group.types == "QD8, F16, QB4W":
            title = "on CPUs with SME, the library refuses to load such a model"
            sort = "half-precision data, 4-bit weights with a scale per block"
            evidence = f"{counted_text(group.operators, 'matrix product')}: {sort}"
            return [finding("not_loadable", Severity.HIGH, (title, evidence, group.advice or ""))]
    return []


@declare_rule(Severity.HIGH, Severity.MEDIUM, MATRIX_SHARE=MATRIX_SHARE)
def not_eligible(method: MethodPreflight) -> list[Message]:
    """Matrix work that SME cannot run."""
    return [
        _not_eligible(group)
        for group in method.matrix.groups
        if group.verdict is not SmeSupport.ELIGIBLE and group.share >= MATRIX_SHARE and group.form is not Form.PORTABLE
    ]


def _not_eligible(group: MatrixGroup) -> Message:
    sort = f"{group.form.value} ({group.types})" if group.types else group.form.value
    known = "cannot run" if group.verdict is SmeSupport.NOT_ELIGIBLE else "may not run"
    title = f"{share_text(group.share)} of the multiply-accumulates {known} with SME: {sort}"
    evidence = f"{counted_text(group.operators, 'operator')}, {macs_text(group.macs)}: {group.reason}"
    severity = Severity.HIGH if group.advice and group.share >= 2 * MATRIX_SHARE else Severity.MEDIUM
    step = group.advice or "no simple fix: check its cost in a profile"
    return finding("not_eligible", severity, (title, evidence, step)).about(lines=group.lines)


@declare_rule(Severity.MEDIUM, MATRIX_SHARE=MATRIX_SHARE)
def weaker_kernel(method: MethodPreflight) -> list[Message]:
    """Matrix work whose number types get a weaker kernel than this processor has for others of the same width."""
    messages = []
    for group in method.matrix.groups:
        if group.better_kernel is None or group.share < MATRIX_SHARE:
            continue
        title = f"{share_text(group.share)} of the multiply-accumulates get {group.kernel}, not {group.better_kernel}"
        evidence = f"{counted_text(group.operators, group.form.value)} ({group.types}), {macs_text(group.macs)}"
        messages.append(finding("weaker_kernel", Severity.MEDIUM, (title, evidence, group.better_advice or "")))
    return messages


@declare_rule(Severity.MEDIUM, MATRIX_SHARE=MATRIX_SHARE)
def single_row(method: MethodPreflight) -> list[Message]:
    """Products of one row, which XNNPACK's packed kernels for SME2 may run slower than NEON does."""
    groups = [group for group in method.matrix.groups if group.verdict is SmeSupport.ELIGIBLE and group.single_row_macs]
    macs = sum(group.single_row_macs for group in groups)
    share = macs / method.matrix.macs if method.matrix.macs else 0.0
    if share < MATRIX_SHARE:
        return []
    title = f"{share_text(share)} of the multiply-accumulates are products of one row: SME2 may slow these down"
    types = "; ".join(group.types for group in groups)
    evidence = (
        f"{macs_text(macs)} ({types}): XNNPACK packs the data whatever the number of rows; on a phone with SME2 that "
        "took 1.4 to 3 times as long as NEON (google/XNNPACK#10719)"
    )
    step = "measure both on the device: opscope profile --ablate sme; more rows in a call do not have the problem"
    return [finding("single_row", Severity.MEDIUM, (title, evidence, step))]


@declare_rule(
    Severity.HIGH,
    Severity.MEDIUM,
    recipes=PORTABLE_RECIPES,
    MATRIX_SHARE=MATRIX_SHARE,
    PORTABLE_BYTES=PORTABLE_BYTES,
)
def portable(method: MethodPreflight) -> list[Message]:
    """Portable operators with much compute or data movement."""
    messages = []
    for group in method.portable if method.partition.calls and not method.purpose else []:
        share = group.work.macs / method.matrix.macs if method.matrix.macs else 0.0
        if share < MATRIX_SHARE and (group.share or 0.0) < PORTABLE_BYTES:
            continue
        part = f"{share_text(share)} of the multiply-accumulates" if share >= MATRIX_SHARE else ""
        part = part or f"{share_text(group.share or 0.0)} of the bytes"
        title = f"{group.work.operators} x {group.operator} left portable: {part}"
        evidence = f" ({group.reason.evidence})" if group.reason.evidence else ""
        severity = Severity.HIGH if share >= MATRIX_SHARE else Severity.MEDIUM
        message = finding("portable", severity, (title, f"{group.reason.text}{evidence}", next_step(group)))
        messages.append(message.about(recipe=recipe_of(group.operator, group.reason.cause), lines=group.lines))
    return messages


@declare_rule(Severity.MEDIUM, recipes=PORTABLE_RECIPES, MANY_CALLS=MANY_CALLS)
def cut_up(method: MethodPreflight) -> list[Message]:
    """Many delegate calls, and the portable operators between them."""
    calls, passing = method.borders.calls, method.borders
    if calls < MANY_CALLS:
        return []
    counts = Counter[str]()
    for group in method.portable:
        counts[group.operator] += group.work.operators
    frequent = counts.most_common(_NAMED)
    names = ", ".join(f"{count} x {operator}" for operator, count in frequent)
    passed = f"{counted_text(passing.inner_tensors, 'tensor')}, {size_text(passing.inner_bytes)}, between them"
    evidence = f"{passed}; portable operators: {names}" if names else passed
    first = next((group for group in method.portable if group.operator == frequent[0][0]), None) if frequent else None
    step = f"{first.operator}: {next_step(first)}" if first else "see what splits them in the exporter"
    message = finding(
        "cut_up",
        Severity.MEDIUM,
        (f"the model is split into {counted_text(calls, 'delegate call')}", evidence, step),
    )
    recipe = recipe_of(first.operator, first.reason.cause) if first else None
    return [message.about(recipe=recipe, lines=_source_lines(method.portable))]


@declare_rule(Severity.MEDIUM, LAYOUT_BYTES=LAYOUT_BYTES)
def layout_changes(method: MethodPreflight) -> list[Message]:
    """Layout changes and conversions that move much data."""
    moved = method.layout
    if (moved.share or 0.0) < LAYOUT_BYTES:
        return []
    title = f"layout changes and conversions move {share_text(moved.share or 0.0)} of the bytes"
    transposes, conversions = (
        counted_text(count, noun)
        for count, noun in ((moved.transposes, "transpose"), (moved.conversions, "conversion"))
    )
    where = f", {moved.at_border} at delegate boundaries," if method.borders.calls else ""
    evidence = f"{transposes}{where} and {conversions}: {size_text(moved.bytes)}"
    step = "keep image operators in one delegate, and quantise neighbouring operators the same way"
    if not method.borders.calls:
        step = "profile with and without the runtime's layout optimisation, and compare"
    return [finding("layout_changes", Severity.MEDIUM, (title, evidence, step))]


@declare_rule(Severity.INFO)
def dynamic(method: MethodPreflight) -> list[Message]:
    """Dynamic shapes: figures are for the largest."""
    step = "export or convert with the shapes you will use to see their figures"
    words = "the program has dynamic shapes", "figures are for the upper bounds", step
    return [finding("dynamic", Severity.INFO, words)] if method.dynamic else []


@declare_rule(Severity.INFO)
def branches(method: MethodPreflight) -> list[Message]:
    """Branches and loops: figures count every instruction once, those of a loop that ran once for each iteration."""
    step = "profile to see how often each one runs"
    title, evidence = "the program has branches or loops", "every instruction counts once"
    if method.loop_runs is not None:
        title = f"the longest loop ran {counted_text(method.loop_runs, 'iteration')} for these inputs; each is counted"
        evidence = "how many there are may follow from the inputs"
    words = title, evidence, step
    return [finding("branches", Severity.INFO, words)] if method.branches else []


@declare_rule(Severity.INFO)
def unknown_work(method: MethodPreflight) -> list[Message]:
    """Operators of unknown work, which the figures exclude."""
    unknown = sum(side.unknown for row in method.work for side in (row.delegated, row.portable))
    evidence = f"not included in the figures: {counted_text(unknown, 'operator')}"
    words = "the work of some operators is unknown", evidence, "profile to see what they cost"
    return [finding("unknown_work", Severity.INFO, words)] if unknown else []


RULES: tuple[Callable[[MethodPreflight], list[Message]], ...] = (
    nothing_delegated,
    unread,
    other_backend,
    other_purpose,
    not_loadable,
    not_eligible,
    weaker_kernel,
    single_row,
    portable,
    cut_up,
    layout_changes,
    dynamic,
    branches,
    unknown_work,
)
SME_RULES: tuple[Callable[[MethodPreflight], list[Message]], ...] = (not_loadable, not_eligible, single_row)
"""Rules that are about SME alone."""
