"""Whether the reports of a bundle say what its traces give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analyze.validation import unlike
from opscope.api.validation_recomputed import HTML, MARKDOWN
from opscope.bundle import questions
from opscope.bundle.validation import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opscope.api.validation_recomputed import Computed, Doubts
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.validation import BundleCheck
    from opscope.report.content import ReportContent


def report_check(bundle: Bundle, texts: Mapping[str, str], found: Computed, doubts: Doubts) -> BundleCheck:
    """Reports that are cut off, or do not say what the traces give.

    Args:
        bundle: whose reports.
        texts: of its reports, by file.
        found: what the traces give.
        doubts: what is damaged.
    """
    question = questions.REPORTS
    problems = []
    if not texts.get(HTML, "</html>").rstrip().endswith("</html>"):
        problems.append(Problem(HTML, "", "is cut off"))
    early = "the run is not finished, see complete" if doubts.unfinished else ""
    doubt = early or doubts.program or doubts.roofs or found.problem or "; ".join(sorted(set(doubts.variants.values())))
    if problems:
        return question.answered(problems, "")
    if not texts or found.content is None or doubt:
        return question.skipped(doubt or "there is no report that can be read")
    untrue = _untrue_reports(texts, found.content, str(bundle.path))
    told = {MARKDOWN: f"{MARKDOWN} says what the traces give", HTML: f"the headline of {HTML} too"}
    return question.answered(untrue, ", ".join(told[file] for file in texts))


def _untrue_reports(texts: Mapping[str, str], content: ReportContent, root: str) -> Iterator[Problem]:
    """Markdown is compared line by line; of the page, whose pictures take long to draw, the headline."""
    from html import escape

    from opscope.report.content import headline
    from opscope.report.page import markdown_report

    title = headline(content).text
    if HTML in texts and escape(title, quote=False) not in texts[HTML]:
        yield Problem(HTML, "", f"does not say what the traces give: {title}")
    if MARKDOWN in texts:
        yield from _unlike_lines(texts[MARKDOWN].splitlines(), markdown_report(content).splitlines(), root)


def _unlike_lines(stated: list[str], true: list[str], root: str) -> Iterator[Problem]:
    """The first line that differs; one that tells where the bundle is, is not compared."""
    for number, (one, other) in enumerate(zip(stated, true, strict=False), 1):
        if one != other and root not in other.replace("\\", ""):
            yield Problem(MARKDOWN, f"line {number}", unlike(one, other))
            return
    if len(stated) != len(true):
        yield Problem(MARKDOWN, "", f"has {len(stated)} lines, the traces give {len(true)}")
