"""What a validation found, on a terminal and in Markdown: what failed first, with the place and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding

from opscope.bundle.validation import CheckStatus
from opscope.core.outputs import marked_markdown
from opscope.core.units import counted_text
from opscope.reports.document.console import Text, TextTable
from opscope.reports.document.text import markdown, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from opscope.bundle.validation import BundleCheck, Problem, Validation

_SHOWN = 5
"""Problems of a check that are shown; the JSON has more."""
_NAME, _INDENT, _LONG = 11, 9, 400
_ORDER = (CheckStatus.FAILED, CheckStatus.SKIPPED, CheckStatus.PASSED)
_STYLES = {CheckStatus.FAILED: "bold red", CheckStatus.SKIPPED: "dim", CheckStatus.PASSED: ""}


def validation_summary(validation: Validation) -> RenderableType:
    """What a person reads after `opscope validate`: one line a check, those that failed first, with their problems."""
    parts: list[RenderableType] = [
        Text(f"{plain(validation.path, _LONG)}{_versions(validation)}", style="dim"),
        Text(answer(validation), style="bold"),
        Text(),
    ]
    checks = in_order(validation)
    for check, following in zip(checks, [*checks[1:], None], strict=True):
        parts.append(_line(check))
        parts += [_indented(line) for line in _problem_lines(check)]
        # Checks in a row with the same cure tell it once.
        if check.action and (following is None or following.action != check.action):
            parts.append(_indented(f"-> {plain(check.action, _LONG)}"))
    return Group(*parts)


def _line(check: BundleCheck) -> RenderableType:
    row = TextTable.grid(padding=(0, 1, 0, 0))
    row.add_column(width=8)
    row.add_column(width=_NAME)
    row.add_column()
    row.add_row(*(Text(cell, _STYLES[check.status]) for cell in (check.status.value, check.name, _message(check))))
    return row


def _message(check: BundleCheck) -> str:
    return plain(check.message, _LONG)


def _indented(line: str) -> RenderableType:
    return Padding(Text(line), (0, 0, 0, _INDENT))


def answer(validation: Validation) -> str:
    """Whether the bundle is complete and true, in one sentence."""
    counts = {status: len(validation.with_status(status)) for status in CheckStatus}
    aside = f", {counts[CheckStatus.SKIPPED]} skipped" if counts[CheckStatus.SKIPPED] else ""
    if validation.valid:
        return f"valid: {counted_text(counts[CheckStatus.PASSED], 'check')} passed{aside}"
    failed = ", ".join(check.name for check in validation.failed())
    return f"not valid: {counts[CheckStatus.FAILED]} of {len(validation.checks)} checks failed{aside}: {failed}"


def in_order(validation: Validation) -> list[BundleCheck]:
    """All checks, those that failed first, then those that were skipped."""
    return [check for status in _ORDER for check in validation.with_status(status)]


def _versions(validation: Validation) -> str:
    written = plain(validation.written_by or "an unknown version", 40)
    return f" (written by opscope {written}, checked by {validation.checked_by})"


def _problem_lines(check: BundleCheck) -> list[str]:
    lines = [place_and_message(problem) for problem in check.problems[:_SHOWN]]
    more = check.total - len(lines)
    return [*lines, f"and {more:,} more"] if more > 0 else lines


def place_and_message(problem: Problem) -> str:
    """One problem on one line, its names without control characters."""
    place = f"{plain(problem.file)}{' at ' + plain(problem.at) if problem.at else ''}"
    return f"{place}: {plain(problem.message, _LONG)}"


def validation_markdown(validation: Validation) -> str:
    """The same as Markdown, for a pull request or the summary of a job."""
    head = [
        f"## Bundle {markdown(validation.path, _LONG)}",
        "",
        f"**{markdown(answer(validation), _LONG)}**{markdown(_versions(validation))}",
        "",
    ]
    rows = ["| | check | found |", "| --- | --- | --- |"]
    rows += [f"| {c.status.value} | {c.name} | {markdown(_message(c), _LONG)} |" for c in in_order(validation)]
    details = [line for check in validation.failed() for line in _details(check)]
    return marked_markdown("\n".join([*head, *rows, *details, ""]))


def _details(check: BundleCheck) -> Sequence[str]:
    lines = [f"- {markdown(line, 2 * _LONG)}" for line in _problem_lines(check)]
    return ["", f"### {check.name}", "", *lines, "", f"Next: {markdown(check.action or '', _LONG)}"]
