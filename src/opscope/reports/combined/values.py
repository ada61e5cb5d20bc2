"""The values of a report over several bundles, operators of one program side by side: schema ``opscope.combined/2``."""

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
    """One operator of a program on every platform that ran it; null where a platform has no such operator.

    Attributes:
        method: of the program.
        instruction: of its chain.
        position: within the instruction's call, on the first platform that has it.
        layer: that it belongs to; empty where that is not known.
        category: as the first platform that has it has it.
        names: as recorded on each platform.
        times_ns: self time per inference on the scale of each platform's headline.
        shares: of that headline.
        speedups: what acceleration does to it there.
        spread: largest share minus smallest, one that is absent counting as nothing.
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
    """A program that several bundles ran.

    Attributes:
        sha256: of it.
        model: its name in the first of them.
        bundles: labels of those that ran it and have a result; the lists of operators are in this order.
        operators: all of them, those that differ most between the platforms first; the framework's time is left out.
        unmatched: how many of them some platform does not have.
    """

    sha256: str
    model: str
    bundles: list[str]
    operators: list[SharedOperator]
    unmatched: int


def shared_programs(told: Sequence[tuple[str, ReportContent]]) -> list[SharedProgram]:
    """Programs that at least two bundles ran, each with its operators; by label and content of each bundle."""
    groups = grouped((one for one in told if one[1].shown is not None), lambda one: one[1].manifest.model.sha256)
    return [_program(sha256, group) for sha256, group in groups.items() if sha256 is not None and len(group) > 1]


def _program(sha256: str, group: Sequence[tuple[str, ReportContent]]) -> SharedProgram:
    tables = [_rows(content) for _, content in group]
    lines = _lines([[row.operator for row in table.values()] for table in tables])
    operators = [_operator(line, tables) for line in lines]
    operators.sort(key=lambda one: -one.spread)
    return SharedProgram(
        sha256=sha256,
        model=group[0][1].manifest.model.name,
        bundles=[label for label, _ in group],
        operators=operators,
        unmatched=sum(1 for one in operators if None in one.names),
    )


_Place = tuple[str, int | None, int | None]


def _rows(content: ReportContent) -> dict[_Place, OperatorRow]:
    """Operators that do work, in the order of the program, with their change."""
    rows = {_place(row.operator): row for row in operator_rows(content)}
    listed = content.shown.operators if content.shown else []
    return {_place(operator): rows[_place(operator)] for operator in listed if operator.kind != FRAMEWORK.kind}


def _place(operator: Operator) -> _Place:
    return operator.method, operator.instruction, operator.position


def _lines(tables: Sequence[list[Operator]]) -> list[list[Operator | None]]:
    """Operators side by side, in the order of the program: each platform is matched with those before it together."""
    lines: list[list[Operator | None]] = [[operator] for operator in tables[0]]
    for number, table in enumerate(tables[1:], 1):
        shown = [_first(line) for line in lines]
        known = {id(operator): line for operator, line in zip(shown, lines, strict=True)}
        lines = [
            [*(known[id(own)] if own is not None else [None] * number), theirs]
            for (own, theirs), _ in match(shown, table)
        ]
    return lines


def _first(line: Sequence[Operator | None]) -> Operator:
    return next(operator for operator in line if operator is not None)


def _operator(line: Sequence[Operator | None], tables: Sequence[dict[_Place, OperatorRow]]) -> SharedOperator:
    shown = _first(line)
    changes = [
        table[_place(operator)].change if operator is not None else None
        for operator, table in zip(line, tables, strict=True)
    ]
    shares = [operator.share if operator else None for operator in line]
    known = [share or 0.0 for share in shares]
    return SharedOperator(
        method=shown.method,
        instruction=shown.instruction,
        position=shown.position,
        layer=next((layer_text(operator) for operator in line if operator and layer_text(operator)), ""),
        category=shown.category,
        names=[operator.name if operator else None for operator in line],
        times_ns=[operator.time_ns if operator else None for operator in line],
        shares=shares,
        speedups=[change.speedup if change else None for change in changes],
        spread=max(known) - min(known),
    )


class Configuration(ThreadedVariant, frozen=True):
    """A bundle at one thread count, by its accelerated variant or the one that there is: one line of a table.

    Attributes:
        baseline: the variant without acceleration; null where nothing says which one it is.
        off: feature groups that are off in the baseline; null where that is not known.
        latency_ns: of the variant; null when it has no result.
        baseline_ns: of the baseline; null without a comparison.
        speedup: baseline / variant.
        ci95: 95 % interval of it.
        verdict: whether the variant is faster.
        processes: of the variant, that its latency rests on.
        arm: ``untraced`` or ``traced``; empty without a result.
        method: one of several that were called, whose figures these are; null for all calls.
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
    """Operators of one name, kind and number type together, or one alone, with its layer where that is known.

    ``speedup`` is null without a comparison.
    """

    name: str
    category: Category
    backend: str
    operators: int
    speedup: float | None
    layer: str = ""


class Bottleneck(CategoryTime, frozen=True):
    """What takes most on one platform, the framework's own time left out.

    Attributes:
        before: category that takes most on the baseline; null without a comparison.
        before_share: of that one.
        limit: speedup over the headline if the category took no time at all; null if nothing else takes any.
        groups: operators that are alike, the longest first, of all categories.
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
    """One bundle of a combined report. Null is what it does not tell.

    Attributes:
        label: what it is called here.
        path: where it is.
        headline: the answer in one sentence.
        model: name of the model.
        dtype: number type.
        sha256: of the program.
        created: when it was measured.
        platform: system and architecture.
        cpu: name of the CPU.
        target: kind of target.
        versions: of the software.
        configurations: one for each thread count.
        shown: the variant that categories, bottleneck and shares are of; null when nothing was measured.
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
    """A bundle in a series, against the first of it; the comparison is null for the first, and for the same traces.

    Attributes:
        label: of the bundle.
        variant: of it.
        created: when it was measured.
        latency_ns: of the variant; null without a result.
        speedup: first / this.
        ci95: 95 % interval of it.
        verdict: whether this one is faster than the first.
        minimum_detectable: smallest relative change that such data would show.
        notes: what else differs, and what limits the comparison.
        method: one of several that it calls, which is compared with the same one of the first; null for all calls.
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
        bundles: in the order in which they were given.
        programs: programs that several bundles ran, with their operators side by side.
        series: bundles that are versions of each other, in order of time.
        notes: what differs between the bundles and limits what their figures say together, one sentence each.
        title: of the report, in place of the usual one; null for the usual one.
    """

    bundles: list[CombinedBundle]
    programs: list[SharedProgram]
    series: list[VersionSeries]
    notes: list[str]
    title: str | None = None
