"""Result of a validation: what failed first, with its place and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.bundle.validation import CheckStatus
from opscope.core.units import counted_text
from opscope.reports.document.blocks import (
    Bullets,
    Document,
    Format,
    Section,
    Sentence,
    TableCell,
    Tone,
    column,
    table,
)
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from opscope.bundle.validation import BundleCheck, Problem, Validation
    from opscope.reports.document.blocks import TableBlock

_SHOWN = 5
"""Problems shown per check; the JSON has all."""
_LONG = 400
_ORDER = (CheckStatus.FAILED, CheckStatus.SKIPPED, CheckStatus.PASSED)
_TONES = {CheckStatus.FAILED: Tone.BAD, CheckStatus.SKIPPED: Tone.DIM, CheckStatus.PASSED: Tone.PLAIN}


def validation_document(validation: Validation) -> Document:
    """Return what failed first, with its problems and what to do; then every check."""
    failed = [Section(check.name, [Bullets(_problem_lines(check))]) for check in validation.failed()]
    steps = [Sentence(f"Next: {action}") for action in actions(validation)]
    return Document(
        title=f"Bundle {validation.path}",
        heading=f"Bundle {validation.path}{_versions_text(validation)}",
        answer=answer(validation),
        blocks=[*failed, *steps, checks_table(validation)],
        sections=[],
    )


def answer(validation: Validation) -> str:
    """Return whether the bundle is complete and consistent, in one sentence."""
    counts = {status: len(validation.with_status(status)) for status in CheckStatus}
    aside = f", {counts[CheckStatus.SKIPPED]} skipped" if counts[CheckStatus.SKIPPED] else ""
    if validation.valid:
        return f"valid: {counted_text(counts[CheckStatus.PASSED], 'check')} passed{aside}"
    failed = ", ".join(check.name for check in validation.failed())
    return f"not valid: {counts[CheckStatus.FAILED]} of {len(validation.checks)} checks failed{aside}: {failed}"


def actions(validation: Validation) -> list[str]:
    """Return what to do about the checks that failed."""
    return list(dict.fromkeys(check.action for check in validation.failed() if check.action))


def checks_table(validation: Validation) -> TableBlock:
    """Return all checks, failed ones first, then skipped ones."""
    return table(
        [check for status in _ORDER for check in validation.with_status(status)],
        column("status", Format.TEXT, lambda check: TableCell(check.status.value, tone=_TONES[check.status])),
        column("check", Format.TEXT, lambda check: check.name),
        column("what was found", Format.TEXT, lambda check: check.message),
    )


def _versions_text(validation: Validation) -> str:
    written = f"written by opscope {plain(validation.written_by, 40)}, " if validation.written_by else ""
    return f" ({written}checked by {validation.checked_by})"


def _problem_lines(check: BundleCheck) -> list[str]:
    lines = [place_and_message(problem) for problem in check.problems[:_SHOWN]]
    more = check.total - len(lines)
    return [*lines, f"and {more:,} more"] if more > 0 else lines


def place_and_message(problem: Problem) -> str:
    """Return a problem on one line, its names without control characters."""
    location = f"{plain(problem.file)}{' at ' + plain(problem.at) if problem.at else ''}"
    return f"{location}: {plain(problem.message, _LONG)}"
