"""All that the page of a bundle says, as Markdown, which tests read more easily; ``report.md`` has a part of it."""

from __future__ import annotations

from pathlib import Path

from opscope.reports.content.content import ReportContent
from opscope.reports.document.markdown import markdown_document
from opscope.reports.report import report_document
from opscope.workflows.reports.reports import content


def whole_report(shown: ReportContent | Path) -> str:
    """Of a content, or of the bundle or run directory of a kit at a path."""
    return markdown_document(report_document(content(shown) if isinstance(shown, Path) else shown))
