"""The check of a bundle's reports: each is rewritten from the traces, and laid beside the one that is there.

Reports are the same, byte by byte, for the same content, wherever the bundle stands. So every line counts: text, table
cells, the shapes of pictures, what only the pointer shows, style and script. Left to the user is the title.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.validation import unlike
from opscope.bundle import questions
from opscope.bundle.validation import Problem
from opscope.core.version import __version__
from opscope.reports.document.template import NOT_DRAWN, drawn_by, writer_of
from opscope.workflows.reports.combined import COMBINED
from opscope.workflows.reports.reports import HTML, MARKDOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.validation import BundleCheck

_COMBINED = tuple(f"{COMBINED}.{ending}" for ending in ("html", "md", "json"))
_PICTURE = re.compile(rf'<svg [^>]*class="marks".*?</svg>|{NOT_DRAWN}[^\n]*</p>', re.DOTALL)
_SECTION = re.compile(r'<section [^>]*id="([\w-]{1,40})"')
_NAMES_TITLE = {HTML: ("<title>", "<h1>"), MARKDOWN: ("# ",)}
"""Beginnings of the lines that hold the title of a report, which the user may give."""


class _Report(NamedTuple):
    """A report beside the one that the traces give."""

    file: str  # its name
    stated: str  # what it says
    true: str  # what it should say


def page_texts(found: Inventory) -> dict[str, str]:
    """What the reports of a bundle say, by file; those that are not there or must not be opened are left out."""
    return {name: found.content(name).decode(errors="replace") for name in (MARKDOWN, HTML) if not found.fault(name)}


def page_check(texts: Mapping[str, str], found: Inventory, rewritten: Mapping[str, bytes], doubt: str) -> BundleCheck:
    """Reports that are cut off, or do not say what the traces give."""
    question = questions.REPORTS
    if not texts.get(HTML, "</html>").rstrip().endswith("</html>"):
        return question.answered([Problem(HTML, "", "is cut off")], "")
    if not texts or doubt:
        return question.skipped(doubt or "there is no report that can be read")
    from opscope.reports.pictures.pictures import undrawable

    undrawn = undrawable()
    names = [name for name in texts if not (name == HTML and undrawn)]
    compared = [_compared(_Report(name, texts[name], rewritten[name].decode())) for name in names]
    notes = [note for _, _, note in compared if note]
    if HTML in texts and undrawn:
        notes.append(f"{HTML} not recomputed: {undrawn}")
    notes += [f"{name} not recomputed: other bundles are part of it" for name in _COMBINED if not found.fault(name)]
    problems = [problem for _, own, _ in compared for problem in own]
    same = [file for file, _, note in compared if not note.startswith(file)]
    if not same and not problems:
        return question.skipped("; ".join(notes))
    said = f"{' and '.join(same)} {'say' if len(same) > 1 else 'says'} what the traces give"
    return question.answered(problems, "; ".join([said, *notes]))


def _compared(report: _Report) -> tuple[str, list[Problem], str]:
    """The file, where it differs, and why it was not recomputed, in whole or in part; empty when it was.

    What another opscope wrote may differ without a fault; what is the same all the same was not touched.
    """
    problems = list(_unlike_lines(report))
    if not problems:
        return report.file, [], ""
    writer = writer_of(report.stated)
    if writer != __version__:
        named = f"opscope {writer}" if writer else "an earlier opscope, which it does not name"
        return report.file, [], f"{report.file} not recomputed, written by {named}"
    drawer = drawn_by(report.stated)
    if NOT_DRAWN in report.stated:
        note = f"pictures of {report.file} were not drawn when it was written"
    elif drawer != drawn_by(report.true):
        note = f"pictures of {report.file} not recomputed, drawn by {drawer or 'what it does not name'}"
        report = report._replace(true=report.true.replace(drawn_by(report.true) or "", drawer or "", 1))
    else:
        return report.file, problems, ""
    bare = report._replace(stated=_without_pictures(report.stated), true=_without_pictures(report.true))
    return report.file, list(_unlike_lines(bare)), note


def _without_pictures(page: str) -> str:
    """A page without the pictures that a library drew, with as many lines; one that could not be drawn is none."""
    return _PICTURE.sub(lambda found: "\n" * found[0].count("\n"), page)


def _unlike_lines(report: _Report) -> Iterator[Problem]:
    """Every line that differs; where lines are missing or added, the first."""
    stated, true = report.stated.splitlines(), report.true.splitlines()
    section, same_length = "", len(stated) == len(true)
    for number, (one, other) in enumerate(zip(stated, true, strict=False), 1):
        begins = _SECTION.search(other)
        section = f"section {begins[1]}, " if begins else section
        if one != other and not _other_title(report.file, one, other):
            yield Problem(report.file, f"{section}line {number}", unlike(one, other))
            if not same_length:
                return
    if not same_length:
        yield Problem(report.file, "", f"has {len(stated)} lines, the traces give {len(true)}")


def _other_title(file: str, stated: str, true: str) -> bool:
    """Whether two lines differ only in the title that the user gave."""
    for begin in _NAMES_TITLE[file]:
        if stated.startswith(begin) and true.startswith(begin):
            return begin != "<h1>" or stated.endswith(f" · {true[len(begin) :]}")
    return False
