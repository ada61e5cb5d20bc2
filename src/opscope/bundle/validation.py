"""Validation of a bundle, its questions and results: schema ``opscope.validation/1``.

In an action of a check ``{bundle}`` stands for the path, ``{written}`` for the version that wrote the manifest and
``{checked}`` for the one that checks.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_PROBLEMS = 20
"""Problems that a check lists; it counts them all."""


class CheckStatus(str, enum.Enum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There was nothing to check, or what it rests on is damaged; the message says which."""


class Area(str, enum.Enum):
    """Subject of a check."""

    MANIFEST = "manifest"
    FILES = "files"
    TRACES = "traces"
    FIGURES = "figures"
    STRUCTURE = "structure"


class Problem(msgspec.Struct, frozen=True):
    """Problem that a check found.

    Attributes:
        file: path within the bundle.
        at: place in it, as a JSON path without the dollar sign: ``latency.samples_ns[17]``; empty for the whole file.
        message: what is wrong, with the figures.
    """

    file: str
    at: str
    message: str


class BundleCheck(msgspec.Struct, frozen=True):
    """Check of a bundle, and its outcome.

    Attributes:
        name: stable identifier of the check, lower case with underscores.
        area: what it is about.
        status: whether the bundle passed.
        message: what was compared with what, how many are wrong, or why it was skipped.
        action: what to do; null when it passed.
        problems: the first of them.
        total: number of all problems.
    """

    name: str
    area: Area
    status: CheckStatus
    message: str
    action: str | None = None
    problems: list[Problem] = []
    total: int = 0


class Validation(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.validation/1"):
    """Result of whether a bundle is complete and consistent.

    Attributes:
        path: path of the bundle.
        valid: no check failed.
        written_by: version of the opscope that wrote the manifest; null when that cannot be read.
        checked_by: version of the opscope that checked.
        like: the bundle that its structure was compared with; null without one.
        checks: checks in the order of manifest, files, traces, figures, structure.
    """

    path: str
    valid: bool
    written_by: str | None
    checked_by: str
    like: str | None
    checks: list[BundleCheck]

    def failed(self) -> list[BundleCheck]:
        """Return the checks that failed."""
        return self.with_status(CheckStatus.FAILED)

    def with_status(self, status: CheckStatus) -> list[BundleCheck]:
        """Return the checks of a status, in their order."""
        return [check for check in self.checks if check.status is status]

    def check(self, name: str) -> BundleCheck | None:
        """Return the check of this name; None if there is none."""
        return next((check for check in self.checks if check.name == name), None)


class Question(NamedTuple):
    """Check before its outcome is known."""

    name: str  # name of the check
    area: Area  # what it is about
    action: str  # what to do when it fails

    def answered(self, problems: Iterable[Problem], passed: str, failed: str = "") -> BundleCheck:
        """Return a failed check with these problems, or a passed one if there are none."""
        unique = list(dict.fromkeys(problems))
        if not unique:
            return BundleCheck(self.name, self.area, CheckStatus.PASSED, passed)
        files = len({problem.file for problem in unique})
        count = f"{counted_text(len(unique), 'problem')} in {counted_text(files, 'file')}"
        return BundleCheck(
            self.name, self.area, CheckStatus.FAILED, failed or count, self.action, unique[:MAX_PROBLEMS], len(unique)
        )

    def skipped(self, reason: str) -> BundleCheck:
        """Return a check that was not made."""
        return BundleCheck(self.name, self.area, CheckStatus.SKIPPED, reason)


_REWRITE = (
    "recompute the files from the traces with `opscope report {bundle}`; if they were not edited, another version "
    "computed them (opscope {written} wrote the bundle, this is {checked})"
)
_RESTORE = "restore the file from a copy of the bundle, or measure again with `opscope profile` into a new directory"
_NOT_TRUSTED = "do not use the bundle until you know what changed it; measure again into a new directory"

MANIFEST = Question(
    "manifest",
    Area.MANIFEST,
    "restore manifest.json from a copy of the bundle; if an opscope newer than {checked} wrote it, upgrade opscope",
)
PLAN = Question("plan", Area.MANIFEST, _NOT_TRUSTED)
COMPLETE = Question("complete", Area.MANIFEST, "finish the run: repeat its command with --resume")
PATHS = Question("paths", Area.MANIFEST, "do not open the reports of this bundle; replace links with the linked files")

FILES = Question("files", Area.FILES, _RESTORE)
HASHES = Question("hashes", Area.FILES, _RESTORE)
PROGRAM = Question("program", Area.FILES, _RESTORE)
LEFTOVERS = Question("leftovers", Area.FILES, "delete them once no run is using the bundle")

TRACES = Question("traces", Area.TRACES, _RESTORE)

ANALYSES = Question("analyses", Area.FIGURES, _REWRITE)
COMPARISONS = Question(
    "comparisons",
    Area.FIGURES,
    f"{_REWRITE}; for comparisons from a configuration, use `opscope run CONFIG --analysis-only`",
)
REPORTS = Question("reports", Area.FIGURES, _REWRITE)

LIKE_FILES = Question("like_files", Area.STRUCTURE, "find out why the two bundles were made differently")
LIKE_FIELDS = Question(
    "like_fields",
    Area.STRUCTURE,
    "write the derived files of both with one opscope: `opscope report` (opscope {written} wrote the bundle, this "
    "is {checked})",
)

DERIVED = (ANALYSES, COMPARISONS, REPORTS)
"""Checks of what is derived from the traces and the plan."""
BEHIND_MANIFEST = (PLAN, COMPLETE, PATHS, FILES, HASHES, PROGRAM, TRACES, LEFTOVERS, *DERIVED)
"""Checks that need a manifest that can be read, in the order of the answers."""
