"""Content of a report, in the order a reader asks: one value that every renderer takes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.analysis import NO_SPLIT, Analysis
from opscope.analysis.compare.compare import Comparison
from opscope.analysis.compare.outputs import OutputAgreement
from opscope.analysis.findings.message import Grade, Message, Quality, advice_of, limits_of, note, warning
from opscope.analysis.kernels.kernels import KernelView
from opscope.analysis.operators.modules import find_recurrences
from opscope.analysis.operators.operators import CategoryTime, longest_first, program_order, sums
from opscope.analysis.preflight.contents import KernelSummary
from opscope.analysis.work.work import Work
from opscope.bundle.manifest import Manifest, Role, TracingMode, Variant
from opscope.core.grouping import grouped
from opscope.core.stats.effect import Verdict
from opscope.core.stats.hierarchy import FEWEST_ROUNDS
from opscope.core.table import TraceWarning
from opscope.core.table.places import by_operator, operator_key
from opscope.core.units import counted_text, ratio_of_times, ratio_text, share_text, time_text
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import FRAMEWORK
from opscope.program.phases import PhaseKind
from opscope.reports.content.kernel_use import kernels_text
from opscope.reports.document.blocks import Closing, verdict_text
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.compare.compare import EndToEnd, MethodChange, OperatorChange
    from opscope.analysis.kernels.ladder import VariantLadder
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.headline import HeadlineSplit
    from opscope.analysis.operators.modules import Recurrence
    from opscope.analysis.operators.operators import Operator
    from opscope.program.phases import Phase
    from opscope.reports.document.blocks import Value

FOREGROUND = (Role.ACCELERATED, Role.CANDIDATE)
"""Roles of the variant whose operators a report lists; the first role that occurs wins."""
NOT_KNOWN = "not known"
_WIDE = 0.5
_ALIKE = 0.02
"""Largest difference at which two ratios are printed as one."""
NOT_BETWEEN = "between-process spread unknown"
"""Reason why one process per side decides nothing."""
_MOST_BESIDE = 3
_LATENCY = "total"
SHORTEST_NS = 1_000
"""Operators shorter than this share one line of a table: in milliseconds they would read as zero."""


class VariantResult(msgspec.Struct, frozen=True):
    """A variant and its analysis; null if no repetition succeeded or a bug in opscope prevents the analysis."""

    variant: Variant
    analysis: Analysis | None


class Agreement(msgspec.Struct, frozen=True):
    """Comparison of the outputs of two variants whose times are not compared.

    Attributes:
        baseline: name of the first variant.
        candidate: name of the second variant.
        outputs: how far their outputs agree.
    """

    baseline: str
    candidate: str
    outputs: OutputAgreement


def foreground(variants: Sequence[VariantResult], fastest: Sequence[str] = ()) -> Analysis | None:
    """Return the analysis that a report is about; None if no variant has one.

    The fastest variant comes first where runtimes were ranked, then an accelerated variant, a candidate, and any other.
    """
    analysed = [result for result in variants if result.analysis is not None]
    fastest_results = [result for name in fastest[:1] for result in analysed if result.variant.name == name]
    preferred = [result for role in FOREGROUND for result in analysed if result.variant.role is role]
    chosen = (fastest_results or preferred or analysed)[:1]
    return chosen[0].analysis if chosen else None


class ReportContent(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.profile/2"):
    """Everything that a report of one bundle shows.

    Attributes:
        manifest: what ran, on what.
        variants: results in the order of the plan.
        comparisons: the primary one first.
        findings: findings of the accelerated variant and of the primary comparison, most severe first.
        ruled_out: what was checked and found in order.
        quality: how far the measurement can be trusted; null when nothing was measured.
        config: path of the file that asked for the run; null where none is known.
        kernel_logs: microkernels that XNNPACK's logs name, where runs left such logs.
        title: title of the report, in place of the usual one; null for the usual one.
        agreements: agreements of the outputs of variants that ran on an emulated CPU, whose times are not compared.
        kernels: what is known of the kernels that ran; null where nobody looked.
        controls: variants with the mechanism that switches features, and all of these on, against those without it.
        failed: what is not known because of a bug in opscope.
        not_compared: why pairs that were to be compared are not, one sentence each.
        work: what the operators of the shown variant's program execute, exactly; null where nobody counted it.
        fastest: names of variants by latency, where three or more ran in several runtimes; else empty.
    """

    manifest: Manifest
    variants: list[VariantResult]
    comparisons: list[Comparison]
    findings: list[Message]
    ruled_out: list[Message]
    quality: Quality | None = None
    config: str | None = None
    kernel_logs: list[KernelSummary] = []
    title: str | None = None
    agreements: list[Agreement] = []
    kernels: KernelView | None = None
    controls: list[Comparison] = []
    failed: list[TraceWarning] = []
    not_compared: list[str] = []
    work: Work | None = None
    fastest: list[str] = []

    @property
    def primary(self) -> Comparison | None:
        """Comparison of accelerated against baseline at the first thread count; null if a side has no result."""
        return self.comparisons[0] if self.comparisons else None

    @property
    def shown(self) -> Analysis | None:
        """Analysis whose operators are listed: of the accelerated variant, else a candidate, else the first."""
        return foreground(self.variants, self.fastest)

    @property
    def advice(self) -> list[Message]:
        """Findings that the user can act on, without the limits of the measurement."""
        return advice_of(self.findings)

    @property
    def bugs(self) -> list[str]:
        """Sentences on what is unknown because of bugs in opscope, including repetitions that failed so."""
        unread = [
            repetition.failure.message
            for repetition in self.manifest.failures()
            if repetition.failure and repetition.is_unread
        ]
        return [*(gap.message for gap in self.failed), *unread]

    @property
    def has_split(self) -> bool:
        """Return whether the latency of the shown variant is split into operators."""
        return self.shown is not None and self.shown.has_split

    @property
    def has_gaps(self) -> bool:
        """Return whether bugs in opscope leave variants, or repetitions of them, unknown."""
        unread = any(repetition.is_unread for repetition in self.manifest.failures())
        return unread or any(self.has_lost(result.variant.name) for result in self.variants)

    def has_lost(self, name: str) -> bool:
        """Return whether a variant was measured but has no result because of a bug in opscope."""
        measured = any(
            repetition.variant == name and (repetition.ok or repetition.is_unread)
            for repetition in self.manifest.repetitions
        )
        result = self.result(name)
        return measured and result is not None and result.analysis is None

    def result(self, name: str) -> VariantResult | None:
        """Return the result of the variant with this name; None if the plan has no such variant."""
        return next((result for result in self.variants if result.variant.name == name), None)


class Headline(NamedTuple):
    """Answer of a report in one sentence, and how far to trust it."""

    text: str  # the answer
    trust: str  # interval and design, or what limits it
    grade: str = ""  # of the measurement where it must not be acted on, shown before the answer; else empty


def off_text(variant: Variant, title: str = "") -> str:
    """Return what is switched off in a variant, in words, and the runtime it asked for, by its title if given."""
    if variant.ablated is None:
        return NOT_KNOWN
    if variant.role is Role.CONTROL:
        return "all CPU features on, no switch"
    text = f"{', '.join(variant.ablated)} off" if variant.ablated else "all CPU features on"
    text = f"{text}, without XNNPACK" if variant.delegate == "none" else text
    return f"{text}, in {title or variant.runtime}" if variant.runtime else text


def all_threads_text(variants: Sequence[Variant]) -> str:
    """Return the thread counts of variants in words, such as ``1 and 2 threads``; empty if one is unknown."""
    counts = list(dict.fromkeys(variant.threads for variant in variants))
    if None in counts or not counts:
        return ""
    *leading, last = map(str, counts)
    return f"{', '.join(leading)} and {last} threads" if leading else threads_text(counts[0])


def threads_text(count: int | None) -> str:
    """Return a thread count in words; 0 is the runtime's own choice."""
    if count == 0:
        return "the runtime's default threads"
    return f"threads {NOT_KNOWN}" if count is None else counted_text(count, "thread")


def latency_ns(content: ReportContent, name: str, method: str = "") -> float | None:
    """Return the latency of a variant, or of one of its methods, as the answer states it; None without a result."""
    for comparison in content.comparisons:
        times = dict(
            zip(
                (comparison.baseline.label, comparison.candidate.label),
                side_latencies(comparison.verdict_of(method)),
                strict=True,
            )
        )
        if name in times and (not method or method in comparison.verdicts):
            return times[name]
    result = content.result(name)
    if result is None or result.analysis is None:
        return None
    return result.analysis.headline_of(method)


def side_names(content: ReportContent) -> tuple[str, str]:
    """Return what the report calls candidate and baseline of the primary comparison, in this order."""
    comparison = content.primary
    candidate = content.result(comparison.candidate.label) if comparison else None
    if comparison is None or candidate is None or candidate.variant.role is Role.ACCELERATED:
        return "with acceleration", "without acceleration"
    return f"as {plain(comparison.candidate.label, 60)}", f"as {plain(comparison.baseline.label, 60)}"


def headline(content: ReportContent) -> Headline:
    """Return the answer: how fast, how much faster with acceleration, and how sure."""
    bad = content.quality is not None and content.quality.grade is Grade.DO_NOT_TRUST
    graded = bad and not content.manifest.target.emulated
    return _compose_headline(content)._replace(
        grade=("A first look" if _is_first_look(content) else "Do not trust") * graded
    )


def _is_first_look(content: ReportContent) -> bool:
    """Return whether the user asked for a single round with a time limit."""
    plan = content.manifest.plan
    return plan.rounds == 1 and plan.timeout_seconds is not None


def _compose_headline(content: ReportContent) -> Headline:
    comparison = content.primary
    if comparison is None:
        analysis = content.shown
        if analysis is None:
            return _headline_without_results(content)
        if content.manifest.target.emulated:
            return _emulated_headline(content)
        text = _first_phases_text(analysis) or headline_text(analysis)
        return Headline(text, _no_comparison_reason(content))
    if comparison.methods:
        return Headline(_methods_text(content, comparison), "; ".join(_method_interval_texts(comparison)))
    if len(rows := comparisons_by_threads(content)) > 1:
        speeds = [_speed_text(content, row.end_to_end, side_latencies(row.end_to_end)) for row in rows.values()]
        texts = [f"{threads_text(count)}: {speed}" for count, speed in zip(rows, speeds, strict=True)]
        return Headline("; ".join(texts), f"{threads_text(next(iter(rows)))}: {trust_text(comparison.end_to_end)}")
    speed = _speed_text(content, comparison.end_to_end, side_latencies(comparison.end_to_end))
    return Headline(
        speed,
        _within_process_spread_text(content) if one_process_a_side(content) else trust_text(comparison.end_to_end),
    )


def _first_phases_text(analysis: Analysis) -> str:
    """Return the times of a language model's first prompt and first token; empty for other programs."""
    firsts = {timing.phase.kind: timing for timing in reversed(analysis.tokens)}
    firsts_in_order = [timing for timing in analysis.tokens if timing in firsts.values()]
    return "; ".join(f"{phase_text(timing.phase)}: {time_text(timing.time_ns)}" for timing in firsts_in_order)


def _methods_text(content: ReportContent, comparison: Comparison) -> str:
    """Return the time of each compared method with its verdict, in words."""
    phases = {method.method: method.phase for method in content.shown.methods if method.phase} if content.shown else {}
    texts = [
        f"{phase_text(phases[row.method], phases.values()) if row.method in phases else plain(row.method, 60)}: "
        f"{_speed_text(content, row.end_to_end, side_latencies(row.end_to_end))}"
        for row in _select_headline_methods(comparison, phases)
    ]
    return "; ".join(texts)


def _method_interval_texts(comparison: Comparison) -> list[str]:
    """Return the interval of each method; the design follows once if all methods share it."""
    texts = {change.method: trust_text(change.end_to_end).partition("; ") for change in comparison.methods}
    if len({design for _, _, design in texts.values()}) == 1:
        design = next(iter(texts.values()))[2]
        return [", ".join(f"{plain(method, 60)}: {first}" for method, (first, _, _) in texts.items()), design]
    return [f"{plain(method, 60)}: {''.join(text)}" for method, text in texts.items()]


def _select_headline_methods(comparison: Comparison, phases: Mapping[str, Phase]) -> list[MethodChange]:
    """Select the methods that the answer names: of a language model the first prompt and token, else all."""
    if any(change.method not in phases for change in comparison.methods):
        return list(comparison.methods)
    firsts = {phases[change.method].kind: change for change in reversed(comparison.methods)}
    return [change for change in comparison.methods if change in firsts.values()]


def phase_text(phase: Phase, phases: Iterable[Phase] = ()) -> str:
    """Return what a call does, in words; the size of its cache is named if the other phases have different sizes."""
    sizes = {call.cache for call in phases} | {phase.cache}
    cache = f" with a cache of {phase.cache:,}" if phase.cache and len(sizes) > 1 else ""
    if phase.kind is PhaseKind.PREFILL:
        read = counted_text(phase.tokens, "token") if phase.tokens else "a prompt"
        return f"prefill of {read}{cache}"
    return f"decode at position {phase.position:,}{cache}" if phase.position is not None else f"decode{cache}"


def _headline_without_results(content: ReportContent) -> Headline:
    bugs = content.bugs
    if bugs:
        return Headline("The results are unknown because of a bug in opscope", plain(bugs[0], 600))
    return Headline("Nothing was measured: every repetition failed", "see the failures below")


def comparisons_by_threads(content: ReportContent) -> dict[int, Comparison]:
    """Return acceleration against its baseline by thread count, in plan order; empty without acceleration."""
    comparisons: dict[int, Comparison] = {}
    for comparison in content.comparisons:
        candidate = content.result(comparison.candidate.label)
        if candidate and candidate.variant.role is Role.ACCELERATED and candidate.variant.threads is not None:
            comparisons.setdefault(candidate.variant.threads, comparison)
    return comparisons


def one_process_a_side(content: ReportContent) -> bool:
    """Return whether each side of the primary comparison ran in one process, as in a first look."""
    end_to_end = content.primary.end_to_end if content.primary else None
    return end_to_end is not None and end_to_end.baseline_processes == end_to_end.candidate_processes == 1


def _within_process_spread_text(content: ReportContent) -> str:
    """Return how far the inferences of each process spread, for one process per side."""
    comparison = content.primary
    labels = (comparison.candidate.label, comparison.baseline.label) if comparison else ()
    texts = [
        f"{plain(label, 60)} {_spread_text(result.analysis.latency)}"
        for label in labels
        if (result := content.result(label)) and result.analysis
    ]
    return f"one process per side; within it {', '.join(texts)}"


def _spread_text(latency: Latency) -> str:
    if latency.n == 1:
        return "a single inference"
    return f"{time_text(latency.min_ns)} to {time_text(latency.max_ns)} in {counted_text(latency.n, 'inference')}"


def _emulated_headline(content: ReportContent) -> Headline:
    """Return which kernels ran on an emulated CPU, whose times mean nothing."""
    text, agreement = "Ran on an emulated CPU: timings do not represent any device", _output_agreement_text(content)
    kernels = kernel_answers(content, ladders_beside(content))
    return Headline("; ".join(kernels), f"{text}; {agreement}") if kernels else Headline(text, agreement)


def ladders_beside(content: ReportContent) -> list[VariantLadder]:
    """Return the evidence ladders of the shown variant and of variants with its thread count, in plan order.

    If the bundle has two programs, only the shown variant's ladder: their operators differ. If more than three variants
    qualify, only the baseline's ladder follows.
    """
    ladders = content.kernels.ladders if content.kernels else []
    variant = content.shown.variant if content.shown else None
    first = next((ladder for ladder in ladders if ladder.variant == variant), None)
    if first is None:
        return ladders[:1]
    beside = [ladder for ladder in ladders if ladder is not first and ladder.threads == first.threads]
    if len(beside) > _MOST_BESIDE:
        against = content.primary.baseline.label if content.primary else None
        results = {result.variant.name: result.variant.role for result in content.variants}
        beside = [
            ladder for ladder in beside if ladder.variant == against or results.get(ladder.variant) is Role.BASELINE
        ][:1]
    return [first, *([] if content.manifest.programs else beside)]


def kernel_answers(content: ReportContent, ladders: Sequence[VariantLadder]) -> list[str]:
    """Return, for each variant, how many convolutions and products ran SME kernels and how that is known."""
    offs = [switched_off(content, ladder) for ladder in ladders]
    numbered = enumerate(zip(ladders, offs, strict=True))
    return [kernels_text(ladder, off, short=number > 0) for number, (ladder, off) in numbered]


def switched_off(content: ReportContent, ladder: VariantLadder) -> str:
    """Return what is off in the variant of a ladder, in words; empty if unknown."""
    result = content.result(ladder.variant)
    return off_text(result.variant) if result and result.variant.ablated is not None else ""


def _speed_text(content: ReportContent, result: EndToEnd, times: tuple[float, float]) -> str:
    candidate, baseline = side_names(content)
    short = baseline.removesuffix(" acceleration")
    why = NOT_BETWEEN if one_process_a_side(content) else f"add rounds (--rounds {FEWEST_ROUNDS})"
    change = change_text(result, "slower with it" if short != baseline else "slower", why)
    return f"{time_text(times[1])} {candidate}, {time_text(times[0])} {short}: {change}"


def side_latencies(end: EndToEnd) -> tuple[float, float]:
    """Return the latencies of baseline and candidate in ns, whose ratio is the speedup."""
    return end.baseline_ns, end.candidate_ns


_MOST_METHODS = 4


def headline_text(analysis: Analysis) -> str:
    """Return the latency in words: of one inference, or of several methods, the longest first."""
    if not is_of_calls(analysis):
        unit = "inference on average" if analysis.statistic == "mean" else "inference"
        return f"{time_text(analysis.headline_ns)} per {unit}"
    known = {method: analysis.headline_of(method) for method in analysis.by_method if method}
    listed = sorted(known, key=lambda method: -known[method])
    texts = [f"{plain(method, 60)}: {time_text(known[method])}" for method in listed[:_MOST_METHODS]]
    more = len(listed) - len(texts)
    return "; ".join([*texts, f"and {counted_text(more, 'further method')}"] if more else texts)


def is_of_calls(analysis: Analysis) -> bool:
    """Return whether the latency covers calls of several methods."""
    return len(analysis.methods) > 1


def _output_agreement_text(content: ReportContent) -> str:
    """Return whether the outputs of the variants agree, in words."""
    different = [agreement for agreement in content.agreements if not agreement.outputs.agree]
    if different:
        agreement = different[0]
        names = f"{plain(agreement.candidate, 60)} and {plain(agreement.baseline, 60)}"
        return f"the outputs of {names} differ: {plain(agreement.outputs.problem or '', 200)}"
    if not content.agreements:
        return "outputs of the variants were not compared"
    agreements = [agreement for agreement in content.agreements if agreement.baseline == content.agreements[0].baseline]
    worst = max(agreement.outputs.max_rel_error or 0.0 for agreement in agreements)
    names = ", ".join(dict.fromkeys(plain(agreement.candidate, 60) for agreement in agreements))
    against = plain(agreements[0].baseline, 60)
    error = f"agree with those of {against}, with a relative error of at most {worst:.2g}"
    return f"the outputs of {names} {error if worst else f'equal those of {against}'}"


def _no_comparison_reason(content: ReportContent) -> str:
    """Return why the shown variant is compared with no other."""
    if content.manifest.left_out.switch:
        return f"acceleration on and off was not compared: {plain(content.manifest.left_out.switch, 600)}"
    if content.not_compared:
        return plain(content.not_compared[0], 600)
    analysed = [result for result in content.variants if result.analysis is not None]
    if len(analysed) > 1:
        return f"of {plain(analysed[0].variant.name, 60)}; unknown which of {len(analysed)} variants is the baseline"
    if without_result := [result.variant.name for result in content.variants if result.analysis is None]:
        return f"no result of {plain(without_result[0], 60)} to compare with"
    return "there is no second variant"


def change_text(result: EndToEnd, slower: str, undecided: str) -> str:
    """Return a speedup with its verdict in a few words.

    ``slower`` is the word for a slower candidate, ``undecided`` the reason if the verdict is inconclusive.
    """
    text = speedup_text(result)
    if result.verdict is Verdict.FASTER:
        return f"{text} faster"
    if result.verdict is Verdict.SLOWER:
        return f"{slower}, {text}"
    if result.verdict is Verdict.NO_DIFFERENCE:
        return no_difference_text(result)
    return f"no ratio: {result.reason}" if result.reason else f"{text}, inconclusive: {undecided}"


def speedup_text(result: EndToEnd) -> str:
    """Return the speedup in words, or that it is withheld."""
    return verdict_text(Verdict.WITHHELD) if result.speedup is None else ratio_text(result.speedup)


def no_difference_text(result: EndToEnd) -> str:
    """Return that no difference was detected, and beyond which change the interval excludes one if it is narrow."""
    words = verdict_text(Verdict.NO_DIFFERENCE)
    if result.excluded_beyond is None or result.excluded_beyond > _WIDE:
        return words
    return f"{words}; a change beyond {share_text(result.excluded_beyond)} is ruled out"


def trust_text(result: EndToEnd) -> str:
    """Return the interval and the design; without a difference, also the smallest change that would be detected."""
    processes = f"{result.baseline_processes} + {result.candidate_processes} processes, {result.design}, {result.arm}"
    if result.ci95 is None or result.minimum_detectable is None:
        return f"{'withheld' if result.reason else 'no interval'}: {processes}"
    low, high = result.ci95
    is_difference = result.verdict in {Verdict.FASTER, Verdict.SLOWER}
    smallest = "" if is_difference else f"; minimum detectable change: {share_text(result.minimum_detectable)}"
    return f"95 % interval {ratio_text(low)} to {ratio_text(high)}; {processes}{smallest}"


class CategoryShift(CategoryTime, frozen=True):
    """Time of a category before and after acceleration, in ns and as shares of each side's headline.

    The baseline's are null without a comparison, times where only shares are known, ``speedup`` where a time is too
    short to be shown.
    """

    baseline_ns: float | None = None
    baseline_share: float | None = None
    speedup: float | None = None
    verdict: Verdict | None = None


def category_rows(content: ReportContent) -> list[CategoryShift]:
    """Return the split of the end-to-end latency by category, with the baseline's beside it."""
    comparison, analysis = content.primary, content.shown
    rows = analysis.categories if analysis else []
    result = content.result(comparison.baseline.label) if comparison else None
    if comparison is None or result is None or result.analysis is None:
        return [CategoryShift(**msgspec.structs.asdict(row)) for row in rows]
    before = {row.category: row for row in result.analysis.categories}
    verdicts = {change.category: change.verdict for change in comparison.categories}
    return [
        CategoryShift(
            **msgspec.structs.asdict(row),
            baseline_ns=category_time.time_ns,
            baseline_share=category_time.share,
            speedup=None if comparison.end_to_end.reason else ratio_of_times(category_time.time_ns, row.time_ns),
            verdict=verdicts.get(row.category) if category_time.time_ns or row.time_ns else None,
        )
        for row in rows
        for category_time in (before[row.category],)
    ]


def largest_before(comparison: Comparison | None) -> tuple[Category, float] | None:
    """Return the category that takes longest on the baseline, without the framework, and its share.

    None without a split.
    """
    if comparison is None or not comparison.kinds:
        return None
    times = dict.fromkeys(Category, 0.0)
    for change in comparison.kinds:
        if change.kind != FRAMEWORK.kind:
            times[change.category] += change.baseline_ns or 0.0
    times[Category.DATA_MOVEMENT] += comparison.baseline.copies_ns
    category = max(times, key=lambda category: times[category])
    return category, times[category] / comparison.baseline.headline_ns


def closing_rows(content: ReportContent, *, copies: bool) -> list[Closing]:
    """Return the lines that lead from the operators of the shown variant to its headline; empty without one."""
    result = content.result(content.primary.baseline.label) if content.primary else None
    if content.shown is None:
        return []
    return closing_rows_of(content.shown, copies=copies, baseline=result.analysis if result else None)


def closing_rows_of(split: HeadlineSplit, *, copies: bool, baseline: HeadlineSplit | None = None) -> list[Closing]:
    """Return the lines that lead from the operators of one analysis to its headline, beside a baseline if given."""
    sides = [{row.name: row for row in side.outside} if side else {} for side in (baseline, split)]
    closings = []
    for name, row in {**sides[0], **sides[1]}.items():
        if copies or row.category is None:
            before, after = (side.get(name) for side in sides)
            values: dict[str, Value] = {"ms": after.time_ns, "share": after.share} if after else {"ms": 0.0, "share": 0}
            if baseline:
                values["baseline ms"] = before.time_ns if before else 0.0
                values["share before"] = before.share if before else 0.0
            closings.append(Closing(name, values))
    total: dict[str, Value] = {"ms": split.headline_ns, "share": 1.0}
    if baseline:
        total |= {"baseline ms": baseline.headline_ns, "share before": 1.0}
    return [*closings, Closing(_LATENCY, total, is_total=True)]


class OperatorRow(NamedTuple):
    """Line of the operator table: an operator, and how it changed."""

    operator: Operator
    cumulative: float
    change: OperatorChange | None
    instructions: int | None = None  # instructions that it executes, exactly; None where they were not counted
    members: int = 1  # operators of the program that it stands for
    steps: int = 0  # steps of a recurrence that was unrolled, whose operators it sums up


def operator_rows(content: ReportContent) -> list[OperatorRow]:
    """Return all operators of the shown variant, longest first, with the running share and the change."""
    analysis, comparison = content.shown, content.primary
    if analysis is None:
        return []
    # What the baseline alone ran may have had the place that another operator has on the candidate.
    operator_changes = comparison.operators if comparison else []
    judged = [change for change in operator_changes if change.candidate_ns is not None and change.is_judged]
    changes = {_operator_key_in_program(change): change for change in judged}
    work = by_operator(content.work.operators) if content.work else {}
    rows, running = [], 0.0
    for operator in longest_first(analysis.operators):
        running += operator.share
        counted = work.get(key) if (key := operator_key(operator)) else None
        instructions = counted.instructions if counted and counted.name == operator.name else None
        rows.append(OperatorRow(operator, running, changes.get(_operator_key_in_program(operator)), instructions))
    return rows


def merge_recurrences(rows: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Replace the steps of each unrolled recurrence by one row, longest first; times and shares still add up."""
    recurrences = find_recurrences(sorted((row.operator for row in rows), key=program_order))
    merged = {id(operator) for recurrence in recurrences for operator in recurrence.operators}
    remaining = [row for row in rows if id(row.operator) not in merged]
    counts = {id(row.operator): row.instructions for row in rows}
    summed = [
        _sum_up_recurrence(recurrence, sum_complete_counts([counts[id(operator)] for operator in recurrence.operators]))
        for recurrence in recurrences
    ]
    return sorted([*remaining, *summed], key=lambda row: (-row.operator.share, -row.operator.traced_ns))


def sum_complete_counts(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the operators' instructions; None if any operator was not counted."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def instruction_count_sentence(work: Work | None) -> str:
    """Return a sentence on what the counts of instructions are, which are no times; empty if nobody counted."""
    return f"Instructions are exact counts, not time: {work.counter}, {work.processor}." if work else ""


def _sum_up_recurrence(recurrence: Recurrence, instructions: int | None) -> OperatorRow:
    """Return a recurrence as one operator, with the category and the backends that take most of its time."""
    longest = longest_first(recurrence.operators)
    backends = dict.fromkeys(operator.backend for operator in longest)
    first = max(
        grouped(longest, lambda operator: operator.category).values(), key=lambda operators: sums(operators).share
    )[0]
    total = msgspec.structs.replace(
        first,
        module=recurrence.module or "the model",
        backend=", ".join(backends),
        **msgspec.structs.asdict(sums(recurrence.operators)),
        traced_ns=sum(operator.traced_ns for operator in recurrence.operators),
        p10_ns=None,
        p90_ns=None,
        change=None,
        candidates=(),
    )
    return OperatorRow(total, 0.0, None, instructions, len(recurrence.operators), recurrence.steps)


def listed_operators(content: ReportContent) -> tuple[list[OperatorRow], list[Closing]]:
    """Return all operators, longest first, and a line that sums those below a microsecond if there are several."""
    rows = operator_rows(content)
    long = [row for row in rows if row.operator.shown_ns >= SHORTEST_NS]
    short = rows[len(long) :]
    if len(short) < 2:  # noqa: PLR2004 - one alone needs no line for several
        return rows, []
    before = [row.change.baseline_ns for row in short if row.change and row.change.baseline_ns is not None]
    name = f"{counted_text(len(short), 'operator')} below {SHORTEST_NS // 1_000} µs, together"
    together = sums(row.operator for row in short)
    values: dict[str, Value] = {"ms": together.time_ns, "share": together.share}
    return long, [Closing(name, values | {"baseline ms": sum(before)} if content.primary else values)]


NO_COUNTERPART, SHARES_ONLY = "no counterpart", "shares only"
"""Words in place of a baseline time: the baseline lacks the operator, or its trace gives only shares."""


def missing_time_text(comparison: Comparison) -> str:
    """Return why a comparison has no baseline time for an operator of the candidate."""
    return NO_COUNTERPART if comparison.baseline.timed and comparison.candidate.timed else SHARES_ONLY


def top_operators(content: ReportContent) -> list[OperatorRow]:
    """Return the rows of operators that do work, longest first, without the framework's own time."""
    return [row for row in operator_rows(content) if row.operator.kind != "framework"]


def _operator_key_in_program(operator: Operator | OperatorChange) -> tuple[str, int | None, int | None, str | None]:
    name = operator.name if operator.position is None else None
    return operator.method, operator.instruction, operator.position, name


def no_split_sentence(content: ReportContent) -> str:
    """Return why the latency is not split into operators; empty if it is."""
    lost = "a bug in opscope prevented a result" if content.shown is None and content.bugs else None
    reason = content.manifest.left_out.trace or _split_refusal(content) or lost
    return f"No split into operators and categories: {plain(reason, 600)}." if reason else ""


def _split_refusal(content: ReportContent) -> str | None:
    """Return why the trace is not split; None if it is, or if there is no trace."""
    warnings = list(content.shown.trace.warnings) if content.shown else []
    return next((warning.message for warning in warnings if warning.code in NO_SPLIT), None)


def split_sentence(analysis: Analysis) -> str:
    """Return that operators and framework add up to the latency, in figures, and how trace times were scaled."""
    total = sums(analysis.operators)
    operators_text = share_text(total.share) if total.time_ns is None else time_text(total.time_ns)
    parts = [f"{counted_text(len(analysis.operators), 'operator')} and framework steps ({operators_text})"]
    parts += [
        f"{row.name} ({share_text(row.share) if row.time_ns is None else time_text(row.time_ns)})"
        for row in analysis.outside
    ]
    target = f"{time_text(analysis.headline_ns)}, the latency" if analysis.timed else "the traced call"
    target += ", averaged over the calls of all methods" if len(analysis.methods) > 1 else ""
    scaled = f"; {analysis.traced_text}" if analysis.traced_text else ""
    return f"{', '.join(parts)} add up to {target}; times: {analysis.estimate}{scaled}"


def missing_sentences(content: ReportContent) -> list[str]:
    """Return what the report cannot show, one sentence each."""
    manifest = content.manifest
    lines = []
    not_run = len(manifest.pending()) - len(manifest.failures())
    if not_run:
        lines.append(
            f"{counted_text(not_run, 'planned repetition')} did not run: the experiment was interrupted; "
            "--resume finishes it"
        )
    for repetition in manifest.failures():
        failure = repetition.failure
        reason = failure.message if failure else ""
        lines.append(f"round {repetition.round} of {repetition.variant} failed: {reason}")
    for name in (result.variant.name for result in content.variants if result.analysis is None):
        lost = content.has_lost(name)
        lines.append(f"{name} has no result{': it was measured, but opscope has a bug' if lost else ''}")
    return lines


def _timing_limit(content: ReportContent) -> str:
    if content.manifest.left_out.trace:
        return f"{no_split_sentence(content).removesuffix('.')}; latencies are the caller's"
    analysis = content.shown
    if analysis is None or analysis.traced is None:
        return "latencies were measured with event tracing on, which typically costs 1 to 4 %, more for tiny operators"
    return "end-to-end latencies come from runs without event tracing, the split into operators from traced runs"


class Resources(NamedTuple):
    """Memory and preparation time of a variant: medians over its processes; null where nothing was measured."""

    variant: Variant
    peak_rss_bytes: float | None
    start_ns: float | None
    load_ns: float | None
    first_ns: float | None


def resources(content: ReportContent) -> list[Resources]:
    """Return peak memory and preparation times of every variant."""
    return [_variant_resources(content.manifest, result) for result in content.variants]


def _variant_resources(manifest: Manifest, result: VariantResult) -> Resources:
    name = result.variant.name
    runs = manifest.completed(name, TracingMode.TIMED) or manifest.completed(name)
    measured = [repetition.measurement for repetition in runs if repetition.measurement]
    columns = (
        [measurement.peak_rss_bytes for measurement in measured],
        [measurement.start_ns for measurement in measured],
        [measurement.load_ns for measurement in measured],
        [measurement.wall_ns[0] for measurement in measured if measurement.wall_ns],
    )
    known = [[value for value in column if value is not None] for column in columns]
    return Resources(result.variant, *(float(median(column)) if column else None for column in known))


def _classification_limit(content: ReportContent) -> str:
    if content.shown and content.shown.program:
        return "operators are classified by the program if attributed exactly, else by name"
    return "operators are classified by name: a 1x1 convolution that runs as a matrix product counts as GEMM"


def limits(content: ReportContent) -> list[Message]:
    """Return the limits of the report's figures: of the method, of the run, and warnings of traces."""
    lines = [_timing_limit(content), *([_classification_limit(content)] if content.has_split else [])]
    left_out = content.manifest.left_out
    lines += [plain(left_out.runner, 600)] if left_out.runner else []
    analyses = [content.shown, *(result.analysis for result in content.variants)]
    stated_codes = {} if content.has_split else {"no_trace"}  # stated above
    trace_warnings = [
        *content.failed,
        *(trace_warning for analysis in analyses if analysis for trace_warning in analysis.trace.warnings),
    ]
    warnings = dict.fromkeys(
        trace_warning for trace_warning in trace_warnings if trace_warning.code not in stated_codes
    )
    stated_texts = {trace_warning.message for trace_warning in content.failed}
    lines += [plain(why, 600) for why in content.not_compared if why not in stated_texts]
    return [*map(note, lines), *limits_of(content.findings), *map(warning, warnings)]
