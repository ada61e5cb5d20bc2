"""Analysis of one trace or of one variant of a bundle, and what the roofline needs: ``opscope.analysis/3``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.compare.matching import process_copies, process_times
from opscope.analysis.findings.message import Grade, Message, Quality, concern, judge, unjudged
from opscope.analysis.latency.latency import Latency, TracingCost, latency, untraced_arm
from opscope.analysis.latency.methods import MethodTime, method_times, timed_by_method
from opscope.analysis.operators.delegates import (
    NODE_TYPES,
    Coverage,
    DelegateFigure,
    DelegateTime,
    LayoutTime,
    PortableTime,
    attributed_share,
    coverage,
    delegate_figures,
    delegate_times,
    delegated_kernels,
    is_node,
    layout_times,
    portable_times,
)
from opscope.analysis.operators.headline import (
    HeadlineScale,
    HeadlineSplit,
    headline_scale,
    not_timed_warning,
)
from opscope.analysis.operators.modules import ModuleTime, SourceTime, module_times, source_times
from opscope.analysis.operators.operators import (
    PORTABLE_BACKEND,
    UNKNOWN_METHOD,
    BackendTime,
    CategoryTime,
    Operator,
    OperatorFacts,
    backends,
    categories,
    known_operators,
)
from opscope.analysis.quality.quality import evidence_of, examine_measurement
from opscope.analysis.roofline import OperatorWork, Roofline, roofline
from opscope.analysis.rules.evidence import Evidence
from opscope.analysis.rules.rules import examine
from opscope.analysis.tokens.ledger import TokenLedger, token_ledgers
from opscope.core.errors import TraceFormatError
from opscope.core.parts import explained, part
from opscope.core.stats.hierarchy import typical
from opscope.core.table import Clock, TraceWarning
from opscope.core.table.calls import CALLS_FORMAT
from opscope.core.table.places import by_operator
from opscope.program.ceilings import Ceilings, KernelClass, KernelUse, operator_name
from opscope.program.operators.taxonomy import plug_in_kinds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.latency.latency import CallTimes
    from opscope.analysis.operators.attribution import Attributions
    from opscope.core.table import EventTable
    from opscope.core.table.places import OperatorKey
    from opscope.program.phases import Phase


LOST_ROWS = "rows_lost"
"""Code of the warning that rows of a trace are missing among those that were read."""
IMPOSSIBLE_TIMES, UNKNOWN_TICKS = "impossible_times", "unknown_ticks"
"""Codes of warnings that times are impossible, or that their unit is unknown."""
"""The warning that rows of a trace are missing among those that were read."""
NO_SPLIT = frozenset({"parallel_nodes", "nodes_do_not_add_up", LOST_ROWS})
"""Codes of warnings that the operators of a trace do not show where the time of its inferences goes."""
_TYPES = {
    "fp32": "f32",
    "float32": "f32",
    "fp16": "f16",
    "float16": "f16",
    "qint8": "qs8",
}
_KERNELS = {
    "convolution": KernelClass.IGEMM,
    "depthwise": KernelClass.DWCONV,
    "deconvolution": KernelClass.SUBCONV,
    "linear": KernelClass.GEMM,
    "matmul": KernelClass.BMM,
}


class TraceFile(msgspec.Struct, frozen=True):
    """File that was read: its path, hash, and number of inferences and of warm-up inferences."""

    path: str
    sha256: str
    inferences: int
    warmup: int


class TraceInfo(msgspec.Struct, frozen=True):
    """Trace files that were read.

    Attributes:
        path: the file, or the directory of several files; in derived files of a bundle from its directory on.
        format: name of the reader.
        sha256: SHA-256 of the file; null when there are several, see ``files``.
        clock: unit of the trace's times.
        inferences: inferences in all files, warm-up included.
        warmup: how many of them are warm-up.
        methods: methods of the program that were run.
        warnings: what limits the meaning of the figures.
        files: every file.
    """

    path: str
    format: str
    sha256: str | None
    clock: Clock
    inferences: int
    warmup: int
    methods: list[str]
    warnings: list[TraceWarning]
    files: list[TraceFile]


class ProgramInfo(msgspec.Struct, frozen=True):
    """Program that operators were attributed with.

    Attributes:
        path: path of the .pte; in derived files of a bundle from its directory on, like ``etrecord``.
        sha256: SHA-256 of the .pte.
        etrecord: path of the ETRecord; null without one, so that modules and source lines are not known.
        etrecord_sha256: SHA-256 of the ETRecord.
        verified: whether the bundle says that this very file was run; else that it fits the trace.
        etrecord_problem: why an ETRecord that is there was not used; null when it was, or when there is none.
    """

    path: str
    sha256: str
    etrecord: str | None
    etrecord_sha256: str | None
    verified: bool
    etrecord_problem: str | None = None


class Analysis(HeadlineSplit, msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="opscope.analysis/3"):
    """Split of the time of one variant. Times in ns per inference, on the scale of ``headline_ns``.

    Attributes:
        variant: name in its bundle; null for a trace.
        trace: what was read.
        latency: end-to-end: of the calls without event tracing where there are any; ``source`` says so.
        traced: latency of the traced calls if ``latency`` is of untraced ones; else null.
        tracing: what tracing costs; null where only one of the two was made.
        categories: a split of the headline.
        backends: a split of the headline by backend.
        operators: the finest split of the headline.
        findings: what stands out.
        ruled_out: what was checked and found in order.
        program: the program that operators were attributed with; null without.
        coverage: how the operators of delegates are known.
        delegates: calls of delegates.
        modules: the module tree; empty when modules are not known.
        sources: time by line of the model's code; empty when modules are not known.
        layout: moves and conversions for which the model did not ask; empty without the program.
        portable: operators that no delegate took, and why not.
        roofline: operators under the measured ceilings of the machine; null where none were measured.
        ceilings: the measured ceilings of the machine.
        quality: how far these latencies can be trusted, by what they show themselves.
        methods: the methods one by one, where several were called or calls stand for tokens; else empty.
        tokens: what a call costs by layer and part, for each phase of a language model; else empty.
        delegate_values: what delegates report in units or on clocks of their own.
    """

    variant: str | None
    trace: TraceInfo
    latency: Latency
    traced: Latency | None = None
    tracing: TracingCost | None = None
    categories: list[CategoryTime]
    backends: list[BackendTime]
    operators: list[Operator]
    findings: list[Message]
    ruled_out: list[Message]
    program: ProgramInfo | None = None
    coverage: list[Coverage] = []
    delegates: list[DelegateTime] = []
    modules: list[ModuleTime] = []
    sources: list[SourceTime] = []
    layout: list[LayoutTime] = []
    portable: list[PortableTime] = []
    roofline: Roofline | None = None
    ceilings: Ceilings | None = None
    quality: Quality | None = None
    methods: list[MethodTime] = []
    tokens: list[TokenLedger] = []
    delegate_values: list[DelegateFigure] = []

    @property
    def by_method(self) -> dict[str, tuple[Latency, Latency | None]]:
        """Latencies by method, each with that of its traced calls if it differs; ``""`` stands for all calls."""
        if len(self.methods) > 1:
            return {row.method: (row.latency, row.traced) for row in self.methods}
        return {"": (self.latency, self.traced)}

    def headline_of(self, method: str = "") -> float:
        """Return the latency that every report states, in ns: of all calls, or of one of several methods.

        It is the figure by which sides are compared, not the median of all calls together. Raises KeyError if the
        method was not called, or is the only one.
        """
        return typical(self.by_method[method][0].by_process()) if method else self.headline_ns

    @property
    def largest_method(self) -> str:
        """Method whose calls take the most time together; empty if a single method stands for all calls."""
        return max(self.methods, key=lambda row: row.share).method if len(self.methods) > 1 else ""

    def calls_share(self, method: str) -> float:
        """Return the part of all measured calls that belong to a method; 1 for the empty name of all calls."""
        calls = {row.method: row.calls for row in self.methods}
        return calls[method] / sum(calls.values()) if method else 1.0

    @property
    def has_split(self) -> bool:
        """Return whether the latency is split into operators.

        Calls of a runtime that writes no traces are not, nor those whose operators do not add up to them.
        """
        codes = {warning.code for warning in self.trace.warnings}
        return self.trace.format != CALLS_FORMAT and codes.isdisjoint(NO_SPLIT)


class ProgramKnowledge(NamedTuple):
    """Knowledge of a trace besides its events."""

    program: ProgramInfo  # the program that was run
    attributions: Attributions  # what it says about the trace
    ceilings: Ceilings | None = None  # ceilings of the machine in this variant; None where none were measured


class TraceSource(msgspec.Struct, frozen=True):
    """Origin of a table: path, format, and the hash of each file in order of process."""

    path: str
    format: str
    files: list[tuple[str, str]]


def analyse(  # noqa: PLR0913 - all but the first two are what a bundle knows beside the trace
    table: EventTable,
    source: TraceSource,
    variant: str | None = None,
    known: ProgramKnowledge | None = None,
    calls: CallTimes | None = None,
    phases: Mapping[str, Phase] | None = None,
    *,
    disturbed: str | None = None,
) -> Analysis:
    """Analyse the measured inferences of a table, of a trace alone or of a variant.

    ``disturbed`` says why its times are not those of a quiet machine, see ``Evidence``.
    """
    measured = measured_latency(table, source.path)
    scale = headline_of_calls(table, calls, alone=variant is None)
    rows = known_operators(table, known.attributions.operators if known else None, scale)
    timing = untraced_arm(calls) if calls else None
    methods: list[MethodTime] = part(
        "the split into methods", lambda: method_times(table, rows, calls, phases or {}), []
    )
    judged = timed_by_method(variant or source.path, measured, timing, methods)
    analysis = Analysis(
        **msgspec.structs.asdict(scale.split),
        variant=variant,
        trace=_trace_info(table, source, scale.split),
        latency=timing.latency if timing else measured,
        traced=measured if timing else None,
        tracing=timing.tracing if timing else None,
        categories=categories(rows, scale.split.copies),
        backends=backends(rows),
        operators=rows,
        findings=[],
        ruled_out=[],
        program=known.program if known else None,
        coverage=part("the coverage by layers", lambda: coverage(rows), []),
        delegates=part(
            "calls of delegates", lambda: delegate_times(rows, known.attributions.calls if known else ()), []
        ),
        modules=part("modules", lambda: module_times(rows, known.attributions.module_types if known else {}), []),
        sources=part("source lines", lambda: source_times(rows), []),
        layout=part("layout changes", lambda: layout_times(rows), []),
        portable=part(
            "portable operators", lambda: portable_times(rows, known.attributions.reasons if known else {}), []
        ),
        roofline=part("the roofline", lambda: _place_under_ceilings(rows, known), None),
        ceilings=known.ceilings if known else None,
        quality=explained(
            "the quality",
            lambda: judge([*_doubts_of_reader(table), *examine_measurement(evidence_of(judged, is_one_variant=True))]),
            unjudged,
        ),
        methods=methods,
        tokens=part("the ledger of a token", lambda: _build_ledgers(rows, methods, known), []),
        delegate_values=part("values of delegates", lambda: delegate_figures(table), []),
    )
    if any(warning.code == LOST_ROWS for warning in table.warnings):
        return analysis
    nothing: tuple[list[Message], list[Message]] = [], []
    findings, ruled_out = part("findings", lambda: examine(_build_evidence(analysis, known, scale, disturbed)), nothing)
    return msgspec.structs.replace(analysis, findings=findings, ruled_out=ruled_out)


def _doubts_of_reader(table: EventTable) -> list[Message]:
    """Return the concerns that rows of the trace are missing or that its times cannot be; empty where neither is so."""
    return [
        concern(warning.code, Grade.DO_NOT_TRUST, warning.message, warning.hint)
        for warning in table.warnings
        if warning.code in {LOST_ROWS, IMPOSSIBLE_TIMES}
    ]


def _place_under_ceilings(rows: Sequence[Operator], known: ProgramKnowledge | None) -> Roofline | None:
    """Return operators under the ceilings; None if nothing was measured or no operator's work is known."""
    if known is None or known.ceilings is None:
        return None
    worked = operator_work(rows, known.attributions.operators)
    return roofline(worked, known.ceilings) if worked else None


def _build_ledgers(
    rows: Sequence[Operator], methods: Sequence[MethodTime], known: ProgramKnowledge | None
) -> list[TokenLedger]:
    """Return the cost of each phase's calls; empty without the program, which alone shows their parts."""
    if known is None:
        return []
    facts = known.attributions.operators
    return token_ledgers(rows, methods, by_operator(operator_work(rows, facts)), facts, known.ceilings)


def headline_of_calls(table: EventTable, calls: CallTimes | None, *, alone: bool) -> HeadlineScale:
    """Return the scale of the headline of a trace alone, or of a variant with its timed calls."""
    timed = calls.settled() if calls else {}
    callers = calls.traced_callers() if calls else None
    return headline_scale(table, calls.durations(sorted(timed)) if calls and timed else None, callers, alone=alone)


def rule_evidence(
    table: EventTable,
    analysis: Analysis,
    known: ProgramKnowledge | None,
    calls: CallTimes | None = None,
    disturbed: str | None = None,
) -> Evidence:
    """Return the evidence that rules may look at."""
    return _build_evidence(analysis, known, headline_of_calls(table, calls, alone=analysis.variant is None), disturbed)


def _build_evidence(
    analysis: Analysis, known: ProgramKnowledge | None, scale: HeadlineScale, disturbed: str | None
) -> Evidence:
    facts = known.attributions.operators if known else {}
    return Evidence(
        latency=analysis.traced or analysis.latency,
        operators=analysis.operators,
        layout=analysis.layout,
        portable=analysis.portable,
        delegates=analysis.delegates,
        roofline=analysis.roofline,
        attributed=attributed_share(analysis.coverage) if known else 0.0,
        untraced=analysis.latency if analysis.traced else None,
        tracing=analysis.tracing,
        times=process_times(scale, analysis.operators),
        copies=process_copies(scale),
        headline=analysis,
        split=analysis.has_split and analysis.timed,
        sme={key: operator_facts.sme for key, operator_facts in facts.items() if operator_facts.sme is not None},
        attention={
            key: operator_facts.attention
            for key, operator_facts in facts.items()
            if operator_facts.attention is not None
        }
        if known
        else None,
        disturbed=disturbed,
        first_method_ns=analysis.methods[0].latency.median_ns if len(analysis.methods) > 1 else None,
        trace_format=analysis.trace.format,
    )


def measured_latency(table: EventTable, path: str) -> Latency:
    """Return the latency of the measured inferences; raises TraceFormatError if there are none."""
    measured = latency(table)
    if measured is None and table.holds_tiles:
        hint = "analyse the trace file with opscope aie TRACE"
        raise TraceFormatError("an AI Engine trace, which has no inferences", where=path, hint=hint)
    if measured is None and not len(table.inference_times().duration):
        content = "only the loading of methods" if any(time for time in table.loading()) else "events, and no inference"
        hint = "call the method while the tracer records, and write the trace after the call"
        raise TraceFormatError(f"the trace holds {content}", where=path, hint=hint)
    if measured is None:
        hint = "run more inferences than --warmup discards, or keep them all with --warmup 0"
        raise TraceFormatError("no complete inference remains to measure", where=path, hint=hint)
    return measured


def _trace_info(table: EventTable, source: TraceSource, split: HeadlineSplit) -> TraceInfo:
    refused = not_timed_warning(split)
    inferences = table.inference_times()
    files = [
        TraceFile(
            path,
            sha256,
            int((inferences.process == process).sum()),
            int(inferences.warmup[inferences.process == process].sum()),
        )
        for process, (path, sha256) in enumerate(source.files)
    ]
    codes = np.unique(inferences.method.codes).tolist()
    return TraceInfo(
        path=source.path,
        format=source.format,
        sha256=files[0].sha256 if len(files) == 1 else None,
        clock=table.clock,
        inferences=sum(file.inferences for file in files),
        warmup=sum(file.warmup for file in files),
        methods=[UNKNOWN_METHOD if code < 0 else inferences.method.texts[code] for code in codes],
        warnings=[*([refused] if refused else []), *table.warnings, *_plug_in_warnings()],
        files=files,
    )


def _plug_in_warnings() -> list[TraceWarning]:
    """Return warnings of kinds that other packages should add and do not."""
    hint = "its operators have the kind unknown: update or uninstall it"
    return [TraceWarning("plug_in", problem, hint) for problem in plug_in_kinds()[1]]


def operator_work(rows: Sequence[Operator], facts: Mapping[OperatorKey, OperatorFacts]) -> list[OperatorWork]:
    """Return the work of every operator whose cost is known; framework time has none."""
    known = by_operator(row for row in rows if row.bytes is not None)
    return [_operator_work(row, facts.get(key, OperatorFacts())) for key, row in known.items()]


def _operator_work(row: Operator, facts: OperatorFacts) -> OperatorWork:
    use = _kernel_for_ceiling(row)
    dtype = use.dtype if use else (NODE_TYPES if is_node(row) else _TYPES).get(row.dtype or "")
    moved = None if row.bytes is None or row.weight_bytes is None else row.bytes - row.weight_bytes
    return OperatorWork(
        method=row.method,
        instruction=row.instruction,
        position=row.position,
        name=row.name,
        dtype=dtype,
        kernel=use.kernel if use else None,
        function=_function_name(row),
        macs=row.macs,
        flops=row.flops,
        elements=None if facts.elements is None else round(facts.elements * row.calls),
        activation_bytes=moved,
        weight_bytes=row.weight_bytes,
        calls=row.calls,
        time_ns=row.shown_ns,
        uncertainty_ns=row.uncertainty_ns,
        portable=row.backend == PORTABLE_BACKEND,
        channels=row.shape[-1] if row.shape else None,
    )


def _kernel_for_ceiling(row: Operator) -> KernelUse | None:
    """Return the kernels that ran; for a portable operator, XNNPACK's kernels for equal work and type."""
    if row.backend != PORTABLE_BACKEND:
        return delegated_kernels(row)
    kernel, dtype = _KERNELS.get(row.kind), _TYPES.get(row.dtype or "")
    return KernelUse(dtype, kernel) if kernel and dtype else None


def _function_name(row: Operator) -> str | None:
    """Return XNNPACK's name of the operator, or the type of a node; None for a portable operator."""
    if is_node(row):
        # What a node computes that is called after the generator of its kernel tells more than its name.
        return row.computes[0] if len(row.computes) == 1 else row.name.partition(": ")[0]
    return None if row.backend == PORTABLE_BACKEND else operator_name(row.name)
