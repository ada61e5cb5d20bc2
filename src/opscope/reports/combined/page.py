"""The combined report of several bundles in Markdown and HTML: templates filled with a ``CombinedReport``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.analysis.findings.finding import message_of
from opscope.analysis.findings.message import note
from opscope.core import units
from opscope.reports.combined.combined import where_text
from opscope.reports.content.content import NOT_KNOWN, threads_text, verdict_text
from opscope.reports.content.template import environment
from opscope.reports.html.sections import policy, style_sheet, width_class

if TYPE_CHECKING:
    import jinja2

    from opscope.reports.combined.operators import SharedOperator, SharedProgram
    from opscope.reports.combined.values import CombinedReport, Configuration

_OPERATORS = 12
_UNFOLDED = 8
"""Bundles up to which the parts on each of them are not folded."""
_SMALLEST = 0.005
_FEW = 0.001
"""Share below which the ratio of a category's two times says nothing."""


def combined_html(report: CombinedReport) -> str:
    """The report as one HTML page that needs nothing else."""
    style = style_sheet("combined.css")
    template = _environment().get_template("combined.html.j2")
    return template.render(_values(report), style=style, policy=policy(style))


def combined_markdown(report: CombinedReport) -> str:
    """The report in Markdown."""
    return _environment().get_template("combined.md.j2").render(_values(report))


def _values(report: CombinedReport) -> dict[str, Any]:
    models = list(dict.fromkeys(" ".join(filter(None, (b.model, b.dtype))) for b in report.bundles))
    return {
        "report": report,
        "models": models,
        "rows": [(bundle, row) for bundle in report.bundles for row in bundle.configurations],
        "folded": len(report.bundles) > _UNFOLDED,
        "shared": [(program, _differing(program)) for program in report.programs],
    }


def _differing(program: SharedProgram) -> list[SharedOperator]:
    """The operators whose shares differ most between the platforms; those of equal shares are left to the JSON."""
    return [one for one in program.operators[:_OPERATORS] if one.spread >= _SMALLEST]


def _environment() -> jinja2.Environment:
    return environment(
        {
            "message": message_of,
            "note": note,
            "ms": lambda value: units.milliseconds(value) if value is not None else "",
            "share": lambda value: units.share_text(value) if value is not None else "",
            "ratio": lambda value: units.ratio_text(value) if value is not None else "",
            "interval": _interval,
            "verdict": lambda value: verdict_text(value) if value is not None else "",
            "off": _off,
            "threads": threads_text,
            "where": where_text,
            "faster": lambda row: (
                units.ratio_text(row.shown_speedup)
                if row.shown_speedup and (row.share_of_headline or 0.0) >= _FEW
                else ""
            ),
            "known": lambda value: value if value not in {None, ""} else NOT_KNOWN,
            "width": width_class,
        }
    )


def _interval(value: tuple[float, float] | None) -> str:
    return "no interval" if value is None else f"{units.ratio_text(value[0])} to {units.ratio_text(value[1])}"


def _off(row: Configuration) -> str:
    """What the baseline of a configuration lacks, in words."""
    if row.baseline is None:
        return "no baseline"
    return NOT_KNOWN if row.off is None else f"{', '.join(row.off) or 'nothing'} off"
