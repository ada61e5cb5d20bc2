"""The Markdown and HTML reports: templates filled with what ``ReportContent`` holds."""

from __future__ import annotations

from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opscope.analysis.findings.finding import message_of
from opscope.analysis.findings.message import part_warning, warning
from opscope.analysis.findings.quality import messages_of
from opscope.analysis.quality.quality_machine import ON_THE_DEVICE
from opscope.bundle.manifest import Role
from opscope.core import units
from opscope.core.parts import failures_heard, part
from opscope.program.operators.kinds import Category
from opscope.reports.content.content import (
    NOT_KNOWN,
    all_threads_text,
    category_rows,
    closing_rows,
    headline,
    limits,
    listed_operators,
    missing,
    no_split_sentence,
    off_text,
    one_process_a_side,
    resources,
    side_latencies,
    side_names,
    speedup_text,
    split_sentence,
    top_operators,
    trust_text,
    variant_latencies,
    verdict_text,
)
from opscope.reports.content.switch import switch_messages
from opscope.reports.document.messages import measure_again, quality_sentence
from opscope.reports.document.template import environment
from opscope.reports.html.sections import category_class, depth_class, fused_text, html_values, width_class
from opscope.reports.sections.accuracy import accuracy_section
from opscope.reports.sections.answers import section_answers
from opscope.reports.sections.markdown import markdown_values
from opscope.reports.sections.methods import MethodRow, method_rows, order_sentence, tokens_text
from opscope.reports.sections.operator_kernels import kernel_section
from opscope.reports.sections.program import (
    bound_text,
    boundary_text,
    is_delegated,
    layer_text,
    program_sections,
    source_text,
)
from opscope.reports.sections.reproduction import reproduction
from opscope.reports.sections.run import TimeSpent, sweep, time_spent
from opscope.reports.sections.shift import shift_section

if TYPE_CHECKING:
    from collections.abc import Callable

    import jinja2

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.manifest import Environment, Manifest
    from opscope.reports.content.content import ReportContent
    from opscope.reports.sections.accuracy import AccuracySection
    from opscope.reports.sections.shift import ShiftSection

_TOP = 8


class HeadlineFigure(NamedTuple):
    """A figure of the first screen."""

    label: str
    value: str
    note: str


def html(content: ReportContent) -> str:
    """The report as one HTML page that needs nothing else."""
    return _rendered("report.html.j2", content, html_values)


def markdown_report(content: ReportContent) -> str:
    """The report in Markdown."""
    return _rendered("report.md.j2", content, markdown_values)


def _rendered(template: str, content: ReportContent, own: Callable[[ReportContent], dict[str, Any]]) -> str:
    """A template filled; what a bug of ours leaves out of it is among what limits the figures."""
    with failures_heard() as failures:
        values = _values(content) | own(content)
    values["limits"] += [warning(part_warning(failure)) for failure in failures]
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return environment(
        {
            "ms": units.milliseconds_if_known,
            "ms_or_blank": units.milliseconds_or_blank,
            "share": units.share_text,
            "ratio": units.ratio_text,
            "speedup": speedup_text,
            "size": units.size_text,
            "count": units.count_text,
            "layer": layer_text,
            "border": boundary_text,
            "source": source_text,
            "bound": bound_text,
            "verdict": verdict_text,
            "tokens": tokens_text,
            "off": off_text,
            "place": _place,
            "known": _known,
            "machine": _machine,
            "width": width_class,
            "depth": depth_class,
            "fused": fused_text,
            "colour": category_class,
        }
    )


def _values(content: ReportContent) -> dict[str, Any]:
    manifest, shown, listed = content.manifest, content.shown, listed_operators(content)
    return {
        "headline": headline(content),
        "title": content.title,
        "manifest": manifest,
        "model": manifest.model,
        "environment": manifest.environment,
        "thread_text": all_threads_text(manifest.variants),
        "variants": variant_latencies(content),
        "resources": resources(content),
        "sweep": part("the sweep of thread counts", lambda: sweep(content), None),
        "spent": part("where the run's time went", lambda: time_spent(manifest), list[TimeSpent]()),
        "comparisons": content.comparisons,
        "methods": part("the table of methods", lambda: method_rows(content), list[MethodRow]()),
        "method_order": order_sentence(manifest.plan.calls),
        "findings": [message_of(found) for found in content.advice],
        "ruled_out": [message_of(item) for item in content.ruled_out],
        "missing": missing(content),
        "limits": [*switch_messages(content), *limits(content)],
        "quality": content.quality,
        "checks": messages_of(content.quality) if content.quality else [],
        "quality_sentence": quality_sentence(content.quality, reasons_told=one_process_a_side(content)),
        "measure_again": "" if one_process_a_side(content) else measure_again(content.quality),
        "change": part("what changed", lambda: _change(content), None),
        "accuracy": part("the section on accuracy", lambda: _accuracy(content), None),
        "kernel_section": part("the section on kernels", lambda: kernel_section(content), None),
        "on_the_device": ON_THE_DEVICE,
        "categories": category_rows(content),
        "category_sums": closing_rows(content, copies=False) if content.has_split else [],
        "headline_ns": shown.headline_ns if shown else 0.0,
        "operator_sums": closing_rows(content, copies=True) if content.has_split else [],
        "compared_latencies": [side_latencies(one.end_to_end) for one in content.comparisons],
        "operators": listed.rows,
        "short_operators": listed.short,
        **part("lines beside the headings", lambda: section_answers(content), {}),
        "top_operators": top_operators(content)[:_TOP],
        "backends": shown.backends if shown else [],
        "shown": shown,
        "program": part("the sections on the program", lambda: program_sections(shown), None) if shown else None,
        "has_split": content.has_split,
        "no_split": no_split_sentence(content),
        "split": split_sentence(shown) if shown else "",
        "load": _load(shown),
        "first": units.time_text(median(p.first_ns for p in shown.latency.processes)) if shown else "",
        "tiles": _tiles(content),
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.environment.versions.items()),
        "variables": [f"{name}={value}" for name, value in (manifest.environment.variables or {}).items()],
        "failed": len(manifest.failures()),
        "again": reproduction(manifest),
        "method_of": _method_of(shown),
    }


def _change(content: ReportContent) -> ShiftSection | None:
    if content.primary is None or not content.has_split:
        return None
    return shift_section(content.primary)


def _accuracy(content: ReportContent) -> AccuracySection | None:
    return accuracy_section(content.primary.accuracy) if content.primary else None


class _OfMethod(Protocol):
    @property
    def method(self) -> str: ...


def _method_of(shown: Analysis | None) -> Callable[[_OfMethod], str]:
    """What tells rows of one name in several methods apart: the method, before the name; nothing where there is one."""
    several = len({operator.method for operator in shown.operators}) > 1 if shown else False
    return lambda row: f"{row.method}: " if several else ""


def _machine(manifest: Manifest) -> str:
    """Its name where it has one, its CPU, how much of it could be used, its system, and what emulates it."""
    environment, name = manifest.environment, f"{manifest.device}: " if manifest.device else ""
    if environment.system is None:
        return f"{name}{NOT_KNOWN}"
    cpu = _device(environment) or environment.cpu or "unknown CPU"
    emulator = f", emulated by {environment.emulator}" if environment.emulator else ""
    system = f"{environment.system} {environment.kernel} on {environment.machine}"
    return f"{name}{cpu}, {_cpus(environment)}, {system}{emulator}"


def _cpus(environment: Environment) -> str:
    counts = (environment.usable_cpus, environment.logical_cpus)
    usable, logical = ("an unknown number" if count is None else count for count in counts)
    granted = "" if environment.cpu_quota is None else f" (control groups grant the time of {environment.cpu_quota:g})"
    return f"{usable} of {logical} CPUs{granted}"


def _device(environment: Environment) -> str | None:
    """What a phone is, by what it tells of itself."""
    phone = environment.phone
    if phone is None:
        return None
    names = " ".join(filter(None, (phone.manufacturer, phone.model)))
    android = f"Android {phone.android}" if phone.android else None
    power = f"power settings {phone.power}" if phone.power else None
    return ", ".join(filter(None, (names, phone.soc, android, power))) or None


def _known(value: object) -> str:
    """A value, or that it is not known."""
    return NOT_KNOWN if value is None or value == "" else str(value)


def _load(shown: Analysis | None) -> str:
    """Loading as traces tell it, else as it was timed where nothing was traced: not every runtime's trace has it."""
    arms = list(filter(None, (shown.traced, shown.latency))) if shown else []
    told = ([own.load_ns for own in arm.processes if own.load_ns is not None] for arm in arms)
    known = next(filter(None, told), [])
    return units.time_text(median(known)) if known else "an unknown time"


def _tiles(content: ReportContent) -> list[HeadlineFigure]:
    analysis, comparison = content.shown, content.primary
    if analysis is None:
        return []
    measured = analysis.latency
    note = f"p90 {units.time_text(measured.p90_ns)}"
    if comparison is None:
        tiles = [HeadlineFigure("latency", units.time_text(analysis.headline_ns), note)]
    else:
        result = comparison.end_to_end
        candidate, baseline = side_names(content)
        times = side_latencies(result)
        tiles = [HeadlineFigure(candidate, units.time_text(times[1]), note)]
        interval = f"{result.ci95[0]:.2f} to {result.ci95[1]:.2f}" if result.ci95 else trust_text(comparison)
        tiles.append(HeadlineFigure(baseline, units.time_text(times[0]), _off(content)))
        tiles.append(HeadlineFigure("speedup", speedup_text(result), interval))
    if not analysis.has_split:
        return tiles
    moving = sum(row.share for row in analysis.categories if row.category is Category.DATA_MOVEMENT)
    portable = sum(row.share for row in analysis.backends if row.backend == "portable")
    delegated = sum(r.share for r in analysis.backends if r.backend not in {"portable", "framework"})
    if is_delegated(analysis):
        tiles.append(HeadlineFigure("delegated", units.share_text(delegated), "of the latency"))
        tiles.append(HeadlineFigure("portable", units.share_text(portable), "of the latency"))
    tiles.append(HeadlineFigure("data movement", units.share_text(moving), _moving_note(analysis)))
    return tiles


def _moving_note(analysis: Analysis) -> str:
    return "of the latency, inputs and outputs with it" if analysis.copies else "of the latency"


def _off(content: ReportContent) -> str:
    baselines = content.manifest.with_role(Role.BASELINE)
    return off_text(baselines[0]) if baselines and baselines[0].ablated is not None else ""


def _place(operator: Operator) -> str:
    if operator.instruction is None:
        return ""
    return f"{operator.instruction}" if operator.position is None else f"{operator.instruction}.{operator.position}"
