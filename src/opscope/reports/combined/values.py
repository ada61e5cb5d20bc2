"""Values of a report over several bundles: schema ``opscope.combined/2``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.compare.matching import match
from opscope.analysis.findings.message import Message, Quality
from opscope.analysis.kernels.kernel_sources import ThreadedVariant
from opscope.analysis.operators.headline import TimeShare
from opscope.analysis.operators.operators import CategoryTime
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.system.usage import ThreadCount
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.reports.content.content import CategoryShift, operator_rows
from opscope.reports.content.places import layer_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.reports.content.content import OperatorRow, ReportContent


class SharedOperator(msgspec.Struct, frozen=True):
    """Operator of a program on every platform that ran it; null where a platform has no such operator.

    Attributes:
        method: name of the method that runs it.
        instruction: number in the method's chain.
        position: within the instruction's call, on the first platform that has it.
        layer: layer that it belongs to; empty if unknown.
        category: category on the first platform that has it.
        names: names as recorded on each platform.
        times_ns: self time per inference on the scale of each platform's headline.
        shares: share of each platform's headline.
        speedups: baseline over accelerated time on each platform.
        spread: largest share minus smallest; an absent operator counts as 0.
    """

    method: str
    instruction: int | None
    position: int | None
    layer: str
    category: Category
    names: list[str | None]
    times_ns: list[float | None]
    shares: list[float | None]
    speedups: list[float | None]
    spread: float


class SharedProgram(msgspec.Struct, frozen=True):
    """Program that several bundles ran.

    Attributes:
        sha256: hash of the program.
        model: name in the first bundle.
        bundles: labels of the bundles that ran it and have a result; operators list their values in this order.
        operators: all operators without the framework, those that differ most between platforms first.
        unmatched: number of operators that some platform lacks.
    """

    sha256: str
    model: str
    bundles: list[str]
    operators: list[SharedOperator]
    unmatched: int


def shared_programs(bundles: Sequence[tuple[str, ReportContent]]) -> list[SharedProgram]:
    """Return the programs that at least two bundles ran, with their operators; ``told``: label and content each."""
    groups = grouped(
        (bundle for bundle in bundles if bundle[1].shown is not None), lambda bundle: bundle[1].manifest.model.sha256
    )
    return [_share_program(sha256, group) for sha256, group in groups.items() if sha256 is not None and len(group) > 1]


def _share_program(sha256: str, group: Sequence[tuple[str, ReportContent]]) -> SharedProgram:
    tables = [_rows_by_place(content) for _, content in group]
    lines = _align_operators([[row.operator for row in table.values()] for table in tables])
    operators = [_shared_operator(line, tables) for line in lines]
    operators.sort(key=lambda operator: -operator.spread)
    return SharedProgram(
        sha256=sha256,
        model=group[0][1].manifest.model.name,
        bundles=[label for label, _ in group],
        operators=operators,
        unmatched=sum(1 for operator in operators if None in operator.names),
    )


_OperatorPlace = tuple[str, int | None, int | None]


def _rows_by_place(content: ReportContent) -> dict[_OperatorPlace, OperatorRow]:
    """Return the operators that do work, in program order, with their change."""
    rows = {_place_of(row.operator): row for row in operator_rows(content)}
    listed = content.shown.operators if content.shown else []
    return {_place_of(operator): rows[_place_of(operator)] for operator in listed if operator.kind != FRAMEWORK.kind}


def _place_of(operator: Operator) -> _OperatorPlace:
    return operator.method, operator.instruction, operator.position


def _align_operators(tables: Sequence[list[Operator]]) -> list[list[Operator | None]]:
    """Align the operators of all platforms, in program order: each platform is matched with all before it."""
    lines: list[list[Operator | None]] = [[operator] for operator in tables[0]]
    for number, table in enumerate(tables[1:], 1):
        representatives = [_first_known(line) for line in lines]
        known = {id(operator): line for operator, line in zip(representatives, lines, strict=True)}
        lines = [
            [*(known[id(earlier)] if earlier is not None else [None] * number), operator]
            for (earlier, operator), _ in match(representatives, table)
        ]
    return lines


def _first_known(line: Sequence[Operator | None]) -> Operator:
    return next(operator for operator in line if operator is not None)


def _shared_operator(
    line: Sequence[Operator | None], tables: Sequence[dict[_OperatorPlace, OperatorRow]]
) -> SharedOperator:
    representative = _first_known(line)
    changes = [
        table[_place_of(operator)].change if operator is not None else None
        for operator, table in zip(line, tables, strict=True)
    ]
    shares = [operator.share if operator else None for operator in line]
    known = [share or 0.0 for share in shares]
    return SharedOperator(
        method=representative.method,
        instruction=representative.instruction,
        position=representative.position,
        layer=next((layer_text(operator) for operator in line if operator and layer_text(operator)), ""),
        category=representative.category,
        names=[operator.name if operator else None for operator in line],
        times_ns=[operator.time_ns if operator else None for operator in line],
        shares=shares,
        speedups=[change.speedup if change else None for change in changes],
        spread=max(known) - min(known),
    )


class Configuration(ThreadedVariant, frozen=True):
    """Bundle at one thread count, with its accelerated variant or the only one: a line of a table.

    Attributes:
        baseline: the variant without acceleration; null if unknown.
        off: feature groups that are off in the baseline; null if unknown.
        latency_ns: latency of the variant; null if it has no result.
        baseline_ns: latency of the baseline; null without a comparison.
        speedup: baseline / variant.
        ci95: 95 % interval of the speedup.
        verdict: whether the variant is faster.
        processes: processes of the variant that its latency rests on.
        arm: ``untraced`` or ``traced``; empty without a result.
        method: method that the figures are of; null for all calls.
    """

    baseline: str | None
    off: list[str] | None
    latency_ns: float | None
    baseline_ns: float | None
    speedup: float | None
    ci95: tuple[float, float] | None
    verdict: Verdict | None
    processes: int
    arm: str
    method: str | None = None


class OperatorGroup(TimeShare, frozen=True):
    """Operators of one name, kind and number type, or a single operator with its layer if known.

    ``speedup`` is null without a comparison.
    """

    name: str
    category: Category
    backend: str
    operators: int
    speedup: float | None
    layer: str = ""


class Bottleneck(CategoryTime, frozen=True):
    """Category that dominates one platform, without the framework's own time.

    Attributes:
        before: category that dominates the baseline; null without a comparison.
        before_share: share of that category.
        limit: speedup over the headline if the category took no time at all; null if nothing else takes any.
        groups: operators grouped by name, kind and type, the longest first, of all categories.
        operators: the longest ones, of all categories.
    """

    before: Category | None
    before_share: float | None
    limit: float | None
    groups: list[OperatorGroup]
    operators: list[OperatorGroup]


class Shares(msgspec.Struct, frozen=True):
    """Parts of the headline by where operators run, and of data movement wherever it runs, copies included."""

    delegated: float
    portable: float
    framework: float
    data_movement: float


class CombinedBundle(msgspec.Struct, frozen=True):
    """Bundle of a combined report; null where the bundle does not say.

    Attributes:
        label: its name in this report.
        path: its directory.
        headline: the answer in one sentence.
        model: name of the model.
        dtype: number type.
        sha256: hash of the program.
        created: when it was measured.
        platform: system and architecture.
        cpu: name of the CPU.
        target: kind of target.
        versions: versions of the software, by name.
        configurations: one for each thread count.
        shown: variant that categories, bottleneck and shares describe; null if nothing was measured.
        quality: how far its figures can be trusted.
        categories: before and after.
        bottleneck: null when no operator was recorded.
        shares: null when nothing was measured.
        findings: most severe first.
        unchecked: how many checks were not made and why, as one sentence; empty if all were made.
        missing: what could not be shown, one sentence each.
        limits: what limits its figures, one sentence each.
        device: name of the machine, where the configuration gave it one.
    """

    label: str
    path: str
    headline: str
    model: str
    dtype: str | None
    sha256: str | None
    created: str
    platform: str | None
    cpu: str | None
    target: str
    versions: dict[str, str]
    configurations: list[Configuration]
    shown: str | None
    quality: Quality | None
    categories: list[CategoryShift]
    bottleneck: Bottleneck | None
    shares: Shares | None
    findings: list[Message]
    unchecked: str
    missing: list[str]
    limits: list[str]
    device: str | None = None


class Version(msgspec.Struct, frozen=True):
    """Bundle in a series, compared with the first of it; no comparison for the first, and for the same traces.

    Attributes:
        label: name of the bundle.
        variant: name of its variant.
        created: when it was measured.
        latency_ns: latency of the variant; null without a result.
        speedup: first / this.
        ci95: 95 % interval of the speedup.
        verdict: whether this one is faster than the first.
        minimum_detectable: smallest relative change that such data would show.
        notes: what else differs, and what limits the comparison.
        method: method whose calls are compared with the first bundle's; null for all calls.
    """

    label: str
    variant: str
    created: str
    latency_ns: float | None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    verdict: Verdict | None = None
    minimum_detectable: float | None = None
    notes: list[str] = []
    method: str | None = None


class VersionSeries(ThreadCount, frozen=True):
    """Bundles of one model on one machine at one thread count, in order of time."""

    machine: str
    model: str
    versions: list[Version]


class CombinedReport(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.combined/2"):
    """Several bundles side by side.

    Attributes:
        bundles: bundles in the order in which they were given.
        programs: programs that several bundles ran, with their operators side by side.
        series: bundles that are versions of each other, in order of time.
        notes: what differs between the bundles and limits what their figures say together, one sentence each.
        title: title of the report; null for the usual one.
    """

    bundles: list[CombinedBundle]
    programs: list[SharedProgram]
    series: list[VersionSeries]
    notes: list[str]
    title: str | None = None
