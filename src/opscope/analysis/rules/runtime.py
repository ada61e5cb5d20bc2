"""Rules on the runtime and on how the variant was built and traced: overhead, first inference, loading, fusion."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Severity, finding, limit, no_saving, not_checked, passed
from opscope.analysis.findings.rule import declare_rule
from opscope.analysis.operators.delegates import is_delegated, is_node
from opscope.analysis.rules.advice import find_advice
from opscope.analysis.rules.evidence import LEAST_SHARE, count, longest, places, time_of
from opscope.core.units import counted_text, milliseconds, ratio_text, share_text, time_text
from opscope.program.operators.taxonomy import COMPILED_REGION, DEVICE_WAIT, FRAMEWORK

if TYPE_CHECKING:
    from opscope.analysis.findings.message import Message
    from opscope.analysis.latency.latency import Latency
    from opscope.analysis.operators.operators import Operator
    from opscope.analysis.rules.evidence import Evidence

# Where these come from: docs/design/rules.md.
FRAMEWORK_SHARE = 0.10
SHORT_NS = 1e6
CALL_NS = 100_000.0
UNRESOLVED_SHARE = 0.02
SLOW_FIRST = 3.0
LOAD_INFERENCES = 20.0
LOAD_SECONDS = 0.1
TRACER_SHARE = 0.05
_PRODUCTS = frozenset({"convolution", "depthwise", "deconvolution", "linear", "arithmetic"})
"""Kinds that XNNPACK can end with a clamp at no cost."""
_NODE_STEP = "use fewer, larger nodes or a higher optimisation level: each node adds session overhead"
_ONCE = "it is paid once per process, not per inference"


@declare_rule(Severity.MEDIUM, FRAMEWORK_SHARE=FRAMEWORK_SHARE, SHORT_NS=SHORT_NS, CALL_NS=CALL_NS)
def framework_time(evidence: Evidence) -> Message:
    """Time not attributed to any operator, above 10 % of the latency; truncated durations do not count."""
    rule = "framework_time"
    framework = [operator for operator in evidence.operators if operator.kind == FRAMEWORK.kind]
    lost = sum(operator.uncertainty_ns for operator in evidence.operators) / 2
    time = max(0.0, time_of(framework) - lost)
    share = evidence.part(time)
    calls = sum(operator.calls for operator in framework if operator.name in {"DELEGATE_CALL", "OPERATOR_CALL"})
    cut = f", {milliseconds(lost)} ms lost to truncated durations not counted" if lost else ""
    where = f"in {counted_text(round(calls), 'call')} to delegates and kernels" if calls else "outside the operators"
    figures = f"{milliseconds(time)} ms {'outside the nodes' if evidence.of_nodes() else where}{cut}"
    if share <= FRAMEWORK_SHARE:
        return passed(rule, f"time outside any operator: {share_text(share)} ({figures})")
    title = f"{share_text(share)} of the latency is outside any operator"
    step = _NODE_STEP if evidence.of_nodes() else _framework_step(evidence.total, calls)
    saving = no_saving("part of it is tracing overhead")
    return finding(rule, Severity.MEDIUM, (title, figures, step), saving)


def _framework_step(total_ns: float, calls: float) -> str:
    """Return what to do about time that no operator claims."""
    if total_ns < SHORT_NS:
        return "this is typical for inferences under a millisecond; profile a longer one"
    if not calls:
        return "sample it with perf: it includes input and output copies, the runtime itself and the profiler"
    if calls * CALL_NS < FRAMEWORK_SHARE * total_ns:
        return "sample it with perf: so few calls cannot cost that much; the delegate does unrecorded work"
    return "merge delegates to make fewer calls"


@declare_rule(Severity.INFO, UNRESOLVED_SHARE=UNRESOLVED_SHARE)
def unresolved_operators(evidence: Evidence) -> Message:
    """Durations that the delegate truncates, if they add up."""
    rule = "unresolved_operators"
    unresolved = sum(operator.uncertainty_ns for operator in evidence.operators)
    share = evidence.part(unresolved)
    if share <= UNRESOLVED_SHARE:
        return passed(rule, f"truncated durations could add at most {share_text(share)} to operators")
    title = f"Truncated times leave up to {share_text(share)} of the latency unattributed"
    who = "the profiler" if evidence.of_nodes() else "the delegate"
    text = f"{who} truncates times to whole microseconds: up to {time_text(unresolved)} per inference"
    step = "judge operators of a few microseconds as a group; end-to-end latency is not affected"
    return limit(rule, Severity.INFO, (title, text, step))


_LITERT_NODE, _XNNPACK = "TfLite", "XNNPACK"
_UNNAMED, _NO_NAMES = "a delegate", ("delegate", "unknown")
_ACCELERATOR_NAME = re.compile(r"\w[\w .-]{0,40}")


def _accelerator_name(backend: str) -> str:
    """Return the name of a delegate or of an execution provider for a sentence; names from files may be anything."""
    name = backend.removesuffix("ExecutionProvider")
    return name if _ACCELERATOR_NAME.fullmatch(name) and name not in _NO_NAMES else _UNNAMED


@declare_rule(Severity.HIGH, Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def compiled_regions(evidence: Evidence) -> Message:
    """Parts of the model that an accelerator runs as a whole, with operators that no trace shows, above 5 %."""
    rule = "compiled_regions"
    regions = evidence.where(lambda operator: operator.kind == COMPILED_REGION.kind)
    if not regions:
        return passed(rule, "every operator that a delegate or a provider ran is visible")
    share, names = evidence.share(regions), {operator.backend for operator in regions}
    backends = ", ".join(sorted({_accelerator_name(name) for name in names}))
    figures = f"{milliseconds(time_of(regions))} ms in {counted_text(len(regions), 'compiled region')} of {backends}"
    if share <= LEAST_SHARE:
        return passed(rule, f"compiled regions take {share_text(share)} ({figures})")
    outside = evidence.where(lambda operator: operator.backend not in names)
    rest = max(0.0, evidence.total - time_of(operator for operator in evidence.operators if operator.backend in names))
    listed = longest(outside) or "no operator"
    remainder = f"{milliseconds(rest)} of {milliseconds(evidence.total)} ms"
    title = f"{backends} takes {share_text(share)} of the latency in compiled regions; {remainder} lie outside"
    text = f"{figures}, whose operators no trace shows; outside of {backends}, with the runtime's own time: {listed}"
    severity = Severity.MEDIUM
    if any(operator.name.startswith(_LITERT_NODE) and operator.backend == _XNNPACK for operator in regions):
        step = "profile the model with opscope, or with a newer benchmark_model: both list the operators inside"
    elif backends == _UNNAMED or backends.lower().startswith("xnn"):
        severity = Severity.HIGH  # a build option shows what is inside
        step = "to see inside, build the runner and its backends with EXECUTORCH_ENABLE_EVENT_TRACER=ON"
    elif outside and evidence.part(rest) > LEAST_SHARE:
        step = f"bring {listed} into the regions, or make it faster"
    else:
        step = f"use the profiler of {backends} to look inside: little is left outside"
    saving = no_saving("what a region spends on which operator is not known")
    return finding(rule, severity, (title, text, step), saving, places(regions))


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def device_wait(evidence: Evidence) -> Message:
    """Waiting for an accelerator that works while the CPU goes on, above 5 % of the latency."""
    rule = "device_wait"
    waits = evidence.where(lambda operator: operator.kind == DEVICE_WAIT.kind)
    share, time = evidence.share(waits), time_of(waits)
    if share <= LEAST_SHARE:
        return passed(rule, f"waiting for a device takes {share_text(share)}")
    title = f"Waiting for the device takes {share_text(share)} of the latency"
    text = (
        f"{milliseconds(time)} ms in {longest(waits)}: the CPU waits there for all that the device was given before, "
        "so the times of other nodes of the device are those of starting them"
    )
    step = "make the work of the device shorter: its own profiler shows which kernels take the time"
    return finding(rule, Severity.MEDIUM, (title, text, step), no_saving("waiting is not work"), places(waits))


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def unfused_operators(evidence: Evidence) -> Message:
    """Batch normalisations, and clamps after a product, that run separately, above 5 % of the latency."""
    rule = "unfused_operators"
    norms = evidence.where(_is_batch_normalisation)
    clamps = _separate_clamps(evidence)
    members = [*norms, *clamps]
    share = evidence.share(members)
    figures = f"{counted_text(len(norms), 'batch normalisation')}, {counted_text(len(clamps), 'clamp')} after a product"
    if share <= LEAST_SHARE:
        return passed(rule, f"{figures} run separately: {share_text(share)} of the latency")
    title = f"Operators that could be fused run separately: {share_text(share)} of the latency"
    text = f"{figures}, {milliseconds(time_of(members))} ms; longest: {longest(members)}"
    steps = [
        find_advice(evidence.trace_format).batch_norms if norms else "",
        "let only the activation read the preceding result, so both can be fused" if clamps else "",
    ]
    saving = evidence.limit(members)
    return finding(rule, Severity.MEDIUM, (title, text, "; ".join(filter(None, steps))), saving, places(members))


def _is_batch_normalisation(operator: Operator) -> bool:
    """Return whether an operator is a batch normalisation by its type; a node's name may hold its tensor's."""
    if is_node(operator):
        return operator.name.startswith("BatchNormalization: ")
    name = operator.aten or operator.name
    return "batch_norm" in name and "no_stats" not in name  # without statistics it is an instance norm, which stays


def _separate_clamps(evidence: Evidence) -> list[Operator]:
    """Return clamps directly after an operator of the same delegate that could have ended with them."""
    rows = evidence.operators
    operators = [
        operator
        for before, operator in pairwise(rows)
        if operator.name.startswith("Clamp")
        and (operator.activation or before.kind in _PRODUCTS)
        and (before.method, before.instruction) == (operator.method, operator.instruction)
    ]
    return [operator for operator in operators if is_delegated(operator)]


@declare_rule(Severity.INFO, LEAST_SHARE=LEAST_SHARE)
def costly_activations(evidence: Evidence) -> Message:
    """Activations that cannot be fused into a product, such as GELU and HardSwish, above 5 % of the latency."""
    rule = "costly_activations"
    members = evidence.where(lambda o: o.kind == "activation" and not o.name.startswith("Clamp") and is_delegated(o))
    share = evidence.share(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"activations that run separately take {share_text(share)} ({count(members)})")
    title = f"Activations that cannot be fused take {share_text(share)} of the latency"
    text = f"{count(members)}, {milliseconds(time_of(members))} ms; longest: {longest(members)}"
    step = "try ReLU or ReLU6, which fuse at no cost; the model must be retrained"
    return finding(rule, Severity.INFO, (title, text, step), evidence.limit(members), places(members))


@declare_rule(Severity.MEDIUM, LEAST_SHARE=LEAST_SHARE)
def single_row_products(evidence: Evidence) -> Message:
    """Products of one row that XNNPACK's packed kernels for SME and SME2 ran, above 5 % of the latency."""
    rule = "single_row_products"
    members = [operator for operator in packed_products(evidence) if operator.shape and _count_rows(operator) == 1]
    share = evidence.share(members)
    if share <= LEAST_SHARE:
        return passed(rule, f"products of one row with packed kernels take {share_text(share)} ({count(members)})")
    title = f"Products of one row take {share_text(share)} of the latency with packed SME kernels"
    text = (
        f"{count(members)}, {milliseconds(time_of(members))} ms; longest: {longest(members)}. XNNPACK packs whatever "
        "the number of rows; on a phone with SME2 that took 1.4 to 3 times as long as NEON (google/XNNPACK#10719)"
    )
    step = "measure without it: opscope profile --ablate sme; if that is faster, compute more rows in a call"
    saving = no_saving("how long these products take without SME was not measured")
    return finding(rule, Severity.MEDIUM, (title, text, step), saving, places(members))


_PACKED = re.compile(r"\b(?:PF32|PF16|PQS8)\b")
"""Number types in the names of XNNPACK's operators that only SME and SME2 have kernels for."""


def packed_products(evidence: Evidence) -> list[Operator]:
    """Return the products that ran in XNNPACK's packed kernels for SME and SME2, by their names."""
    return evidence.where(lambda operator: operator.kind in _ROWS and _PACKED.search(operator.name) is not None)


_ROWS = ("linear", "matmul")


def _count_rows(operator: Operator) -> int:
    return math.prod(operator.shape[:-1]) if operator.shape else 0


@declare_rule(Severity.INFO, SLOW_FIRST=SLOW_FIRST)
def slow_first_inference(evidence: Evidence) -> Message:
    """A first inference that takes more than three times the steady-state latency."""
    rule = "slow_first_inference"
    latency = _product_latency(evidence)
    first = median(process.first_ns for process in latency.processes)
    steady = evidence.first_method_ns or latency.median_ns
    ratio = first / steady if steady else 1.0
    figures = f"{time_text(first)} against {time_text(steady)} in steady state"
    if ratio <= SLOW_FIRST:
        return passed(rule, f"the first inference takes {figures}")
    title = f"The first inference takes {ratio_text(ratio)} the steady-state latency"
    step = "run one inference before the user's first, or load the method early"
    return finding(rule, Severity.INFO, (title, figures, step), no_saving(_ONCE))


@declare_rule(Severity.INFO, LOAD_SECONDS=LOAD_SECONDS, LOAD_INFERENCES=LOAD_INFERENCES)
def slow_loading(evidence: Evidence) -> Message:
    """Loading that takes 0.1 s or more, and as long as 20 inferences."""
    rule = "slow_loading"
    latency = _product_latency(evidence)
    loads = [process.load_ns for process in latency.processes if process.load_ns is not None]
    if not loads:
        return not_checked(rule, "the load time is unknown")
    load = median(loads)
    inferences = load / latency.median_ns if latency.median_ns else 0.0
    figures = f"{time_text(load)}, as long as {inferences:.1f} inferences"
    if load < LOAD_SECONDS * 1e9 or inferences < LOAD_INFERENCES:
        return passed(rule, f"loading takes {figures}")
    title = f"Loading takes as long as {inferences:.0f} inferences"
    step = find_advice(evidence.trace_format).early_loading
    return finding(rule, Severity.INFO, (title, figures, step), no_saving(_ONCE))


def _product_latency(evidence: Evidence) -> Latency:
    """Return the latency without tracing if it was measured, else the traced one."""
    return evidence.untraced or evidence.latency


@declare_rule(Severity.INFO, TRACER_SHARE=TRACER_SHARE)
def tracer_cost(evidence: Evidence) -> Message:
    """Tracing that slows a call by at least 5 %, so the split comes from slower inferences."""
    rule = "tracer_cost"
    cost = evidence.tracing
    if cost is None:
        return not_checked(rule, "tracing overhead was not measured")
    interval = f", 95 % interval {ratio_text(cost.ci95[0])} to {ratio_text(cost.ci95[1])}" if cost.ci95 else ""
    figures = f"tracing slows a call by {ratio_text(cost.ratio)}{interval}"
    if cost.ratio - 1 <= TRACER_SHARE or (cost.ci95 is not None and cost.ci95[0] <= 1):
        return passed(rule, figures)
    title = f"Tracing slows inferences by {share_text(cost.ratio - 1)}"
    text = f"{figures}; operator times come from traced inferences, scaled to the latency"
    step = "trust the ranking of operators; part of each one's time is tracing overhead, mostly for short operators"
    return limit(rule, Severity.INFO, (title, text, step))


@declare_rule(Severity.MEDIUM)
def uneven_split(evidence: Evidence) -> Message:
    """Traced inferences over 10 % slower than untraced ones, beyond tracing overhead."""
    rule = "uneven_split"
    if evidence.tracing is None or evidence.headline is None:
        return not_checked(rule, "latency without tracing was not measured")
    factor, usual = evidence.headline.factor, evidence.tracing.ratio
    figures = (
        f"traced inferences take {ratio_text(factor)} the untraced latency, where tracing costs {ratio_text(usual)}"
    )
    if not evidence.is_uneven():
        return passed(rule, figures)
    title = f"Traced inferences ran {ratio_text(factor)} slower than untraced ones"
    step = "use shares, not milliseconds; measure again on a quiet machine"
    return limit(rule, Severity.MEDIUM, (title, figures, step))
