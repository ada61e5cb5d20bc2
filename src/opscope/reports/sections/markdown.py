"""What only the Markdown report shows: the answer in short, bottlenecks as lists, and what is known of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.analysis.compare.compare import NOT_FASTER, shown_not_faster
from opscope.analysis.operators.operators import dominant, sums
from opscope.analysis.rules.acceleration import CONTEXT, OPERATOR_SHARE, SME
from opscope.analysis.rules.switched import HEAVY
from opscope.core.stats.effect import Verdict
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text
from opscope.reports.content.content import (
    category_rows,
    no_difference_text,
    one_process_a_side,
    speedup_text,
    top_operators,
    verdict_text,
)
from opscope.reports.document.messages import measure_again
from opscope.reports.sections.kernel_view import kernel_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.compare.compare import Comparison
    from opscope.bundle.manifest import Manifest
    from opscope.program.operators.kinds import Category
    from opscope.reports.content.content import OperatorRow, ReportContent
    from opscope.reports.sections.kernel_view import KernelRow

_TOP = 8
_SORTS = 12
_NOTHING = milliseconds(0)
_OPERATORS = 200
_FILES = 8
_FEW = 0.005


def markdown_values(content: ReportContent) -> dict[str, Any]:
    """Values of the Markdown report's template beside those that all reports share."""
    rows = top_operators(content)
    return {
        "in_short": in_short(content),
        "files": _files(content),
        "config": content.config or _config(content.manifest),
        "accelerated": accelerated(content),
        "remaining": remaining(content),
        "heavy": [row for row in rows if row.operator.share > OPERATOR_SHARE] or rows[:_TOP],
        "above": sum(1 for row in rows if row.operator.share > OPERATOR_SHARE),
        "sorts": groups(content),
        "kernel_sentences": kernel_sentences(content),
        "most_operators": _OPERATORS,
    }


class FurtherGroups(msgspec.Struct, frozen=True):
    """The line below the longest groups of operators: all others, so that the table adds up to its operators."""

    operator: str  # how many groups, in words
    count: int  # of their operators
    time_ns: float | None  # together, per inference
    share: float  # of the headline
    algorithm: None = None
    types: None = None
    kind: str = ""
    backend: str = ""
    speedup: None = None


def groups(content: ReportContent) -> list[KernelRow | FurtherGroups]:
    """The longest groups of operators, and a line for all others, with those too short for the table's decimals.

    That line is left out where it would read as nothing, too.
    """
    rows = kernel_rows(content)
    listed = [row for row in rows[:_SORTS] if not _is_nothing(row.time_ns)]
    rest = rows[len(listed) :]
    together, share = sums(rest)
    if not rest or _is_nothing(together):
        return [*listed]
    name = f"{counted_text(len(rest), 'further group')}, together"
    return [*listed, FurtherGroups(name, sum(r.count for r in rest), together, share)]


def _is_nothing(time_ns: float | None) -> bool:
    return time_ns is not None and milliseconds(time_ns) == _NOTHING


def _config(manifest: Manifest) -> str | None:
    """The file that asked for a run of opscope; None for `opscope profile`."""
    config = manifest.request.config if manifest.request else None
    return config.file if config else None


def in_short(content: ReportContent) -> list[str]:
    """What changed, what is slow now, and what to do first."""
    lines = [*_changed(content), *_slow_now(content)] if content.has_split else []
    again = measure_again(content.quality)
    if one_process_a_side(content):
        return lines
    if again:
        lines.append(f"Do first: {again[0].lower()}{again[1:]}.")
    elif content.advice:
        first = content.advice[0]
        lines.append(f"Do first: {first.next_step} ({first.title}).")
    return lines


def _changed(content: ReportContent) -> list[str]:
    """What was on top before acceleration, and what is now."""
    found = content.primary.shift if content.primary else None
    if found is None or found.before is None or found.after is None:
        return []
    before, after = (f"{top.kind} ({top.backend})" for top in (found.before, found.after))
    shares = share_text(found.before.share), share_text(found.after.share)
    if before == after:
        return [f"What changed: {after} is still the largest, {shares[0]} before and {shares[1]} now."]
    return [f"What changed: the largest was {before}, {shares[0]}; now it is {after}, {shares[1]}."]


def _slow_now(content: ReportContent) -> list[str]:
    """The category whose operators take most, the framework's own time left out."""
    if content.shown is None or content.manifest.target.emulated:
        return []
    largest = dominant(content.shown.operators, content.shown.copies)
    if largest is None:
        return ["Slow now: not known, the trace holds no operator."]
    rest = 1 - largest.share
    limit = f"; without it an inference would be {ratio_text(1 / rest)} as fast at most" if rest > _FEW else ""
    return [f"Slow now: {largest.category.value}, {share_text(largest.share)} of the latency{limit}."]


class RemainingShare(NamedTuple):
    """A category as it is now, and the speedup over it if it took nothing; None if nothing else is."""

    category: Category
    time_ns: float | None
    share: float
    limit: float | None


def remaining(content: ReportContent) -> list[RemainingShare]:
    """Every category as it is now, longest first."""
    rows = sorted(category_rows(content), key=lambda row: -row.share)
    return [
        RemainingShare(row.category, row.time_ns, row.share, 1 / (1 - row.share) if row.share < 1 else None)
        for row in rows
    ]


def accelerated(content: ReportContent) -> list[str]:
    """What acceleration did to the categories, and to operators it should help, one sentence each."""
    comparison = content.primary
    if comparison is None:
        return []
    if not content.has_split:
        return [_speed_line(comparison)]
    told = [
        f"{row.category.value} {ratio_text(row.speedup)} ({milliseconds(row.baseline_ns or 0)} to "
        f"{milliseconds(row.time_ns or 0)} ms)"
        for row in sorted(category_rows(content), key=lambda row: -(row.speedup or 0))
        if row.speedup and (row.baseline_ns or 0) > _FEW * comparison.baseline.headline_ns
    ]
    lines = [f"By category: {', '.join(told)}."] if told else []
    if content.manifest.programs:
        return lines  # nothing was switched, so nothing is expected of it
    return [*lines, *_expected(content), *_unhelped(content)]


def _speed_line(comparison: Comparison) -> str:
    found = comparison.end_to_end
    told = no_difference_text(found) if found.verdict is Verdict.NO_DIFFERENCE else verdict_text(found.verdict)
    return f"End to end: {speedup_text(found)}, {found.reason or told}."


def _expected(content: ReportContent) -> list[str]:
    """What SME2 is expected to give, where SME is what was switched."""
    off = content.result(content.primary.baseline.label) if content.primary else None
    switched = off.variant.ablated if off else None
    if switched is None:
        return [f"Expected, if it was SME2 that was switched: {CONTEXT}."]
    return [f"Expected: {CONTEXT}."] if SME & set(switched) else []


def _unhelped(content: ReportContent) -> list[str]:
    """Convolutions and matrix products in a delegate that are shown not to be faster, those above the threshold."""
    rows = [
        row
        for row in top_operators(content)
        if row.operator.category in HEAVY
        and row.operator.backend != "portable"
        and row.operator.share > OPERATOR_SHARE
        and row.change is not None
        and shown_not_faster(row.change)
    ]
    if not rows:
        return []
    return [f"Delegated and above {share_text(OPERATOR_SHARE)}, and not faster: {', '.join(map(_named, rows[:_TOP]))}."]


def _named(row: OperatorRow) -> str:
    operator = row.operator
    return f"{operator.module or operator.name} ({milliseconds(operator.shown_ns)} ms)"


def kernel_sentences(content: ReportContent) -> list[str]:
    """What names, switching features and logs tell of the kernels, and what they do not, one sentence each."""
    heavy = [row for row in kernel_rows(content) if row.category in HEAVY and row.backend != "portable"]
    lines = [*_by_names(content, heavy), *_by_switching(content)]
    if not any(row.kernel for row in heavy):
        lines.append("Which microkernel ran is not known: neither the trace nor the delegate records it.")
    if content.kernel_logs:
        lines.append("The log lists kernels that were registered; it does not show which ran.")
    return lines


def _by_names(content: ReportContent, heavy: Sequence[KernelRow]) -> list[str]:
    if not heavy:
        return ["No convolution or matrix product ran in a delegate."]
    counted = [row for row in heavy if row.kernel]
    packed = [row for row in heavy if row.evidence and not row.kernel]
    plain = [row for row in heavy if not row.evidence]
    lines = []
    if counted:
        lines.append(
            f"{counted_text(sum(row.count for row in counted), 'operator')} with {_shares(counted)} of the latency "
            "called kernels that were counted in separate runs."
        )
    if packed:
        lines.append(
            f"{counted_text(sum(row.count for row in packed), 'operator')} with {_shares(packed)} of the latency have "
            "names with packed number types (PF16, PF32, PQS8): XNNPACK chose kernels of the SME family for them. "
            "SME and SME2 have the same names."
        )
    if plain:
        lines.append(
            f"Of {sum(row.count for row in plain)} convolutions and matrix products with {_shares(plain)} of the "
            f"latency the name does not show the kernel. {_what_plain_means(content)}"
        )
    return lines


def _shares(rows: Sequence[KernelRow]) -> str:
    return share_text(sum(row.share for row in rows))


def _what_plain_means(content: ReportContent) -> str:
    machine = content.manifest.environment.machine
    if machine in {"x86_64", "AMD64"}:
        return "On x86-64 names are the same for every instruction set."
    if machine in {"aarch64", "arm64"}:
        return (
            "On Arm, names without packed types suggest that SME was not used, except for types quantised at run time."
        )
    return "On Arm this suggests that SME was not used, except for types quantised at run time; on x86-64, nothing."


def _by_switching(content: ReportContent) -> list[str]:
    """How many of these operators are faster with the features on: the evidence that needs no name."""
    comparison = content.primary
    if comparison is None or content.manifest.programs:
        return []
    heavy = [c for c in comparison.operators if c.category in HEAVY and c.backend not in {"portable", "framework"}]
    if not heavy:
        return []
    faster = sum(1 for change in heavy if change.verdict is Verdict.FASTER)
    undecided = sum(1 for change in heavy if change.verdict is Verdict.UNDECIDABLE)
    excluded = sum(1 for change in heavy if shown_not_faster(change))
    open_ = len(heavy) - faster - undecided - excluded
    rest = [f"{excluded} are not (a speedup of {ratio_text(NOT_FASTER)} is excluded)"] if excluded else []
    rest += [f"of {open_} no difference is shown"] if open_ else []
    rest += [f"{undecided} undecidable"] if undecided else []
    told = f"{faster} of {len(heavy)} convolutions and matrix products of delegates are faster"
    return [f"Measured with and without the features, {'; '.join([told, *rest])}."]


def _files(content: ReportContent) -> str:
    """The traces that were analysed, in words."""
    paths = [r.trace for r in content.manifest.repetitions if r.ok and r.trace and r.inferences]
    listed = ", ".join(paths[:_FILES])
    return f"{listed} and {len(paths) - _FILES} more" if len(paths) > _FILES else listed
