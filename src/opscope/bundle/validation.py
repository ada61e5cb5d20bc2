"""What a validation of a bundle found: schema ``opscope.validation/1``."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PROBLEMS = 20
"""Problems that a check lists; it counts them all."""


class CheckStatus(str, enum.Enum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There was nothing to check, or what it rests on is damaged; the message says which."""


class Area(str, enum.Enum):
    """What a check is about."""

    MANIFEST = "manifest"
    FILES = "files"
    TRACES = "traces"
    FIGURES = "figures"
    STRUCTURE = "structure"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        file: path within the bundle.
        at: place in it, as a JSON path without the dollar sign: ``latency.samples_ns[17]``; empty for the whole file.
        message: what is wrong, with the figures.
    """

    file: str
    at: str
    message: str


class BundleCheck(msgspec.Struct, frozen=True):
    """One question to a bundle, and its answer.

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
    """Whether a bundle is complete and true.

    Attributes:
        path: of the bundle.
        valid: no check failed.
        written_by: version of the opscope that wrote the manifest; null when that cannot be read.
        checked_by: version of the opscope that checked.
        like: the bundle that its structure was compared with; null without one.
        checks: in the order of manifest, files, traces, figures, structure.
    """

    path: str
    valid: bool
    written_by: str | None
    checked_by: str
    like: str | None
    checks: list[BundleCheck]

    def failed(self) -> list[BundleCheck]:
        """The checks that failed."""
        return self.with_status(CheckStatus.FAILED)

    def with_status(self, status: CheckStatus) -> list[BundleCheck]:
        """The checks of a status, in their order."""
        return [check for check in self.checks if check.status is status]

    def check(self, name: str) -> BundleCheck | None:
        """The check of that name."""
        return next((check for check in self.checks if check.name == name), None)


class Question(NamedTuple):
    """A check before its answer."""

    name: str  # of the check
    area: Area  # what it is about
    action: str  # what to do when it fails

    def answered(self, problems: Iterable[Problem], passed: str, failed: str = "") -> BundleCheck:
        """Failed with these problems, or passed when there are none."""
        found = list(dict.fromkeys(problems))
        if not found:
            return BundleCheck(self.name, self.area, CheckStatus.PASSED, passed)
        files = len({problem.file for problem in found})
        count = f"{len(found)} problem{'s' * (len(found) > 1)} in {files} file{'s' * (files > 1)}"
        return BundleCheck(
            self.name,
            self.area,
            CheckStatus.FAILED,
            failed or count,
            self.action,
            found[:MOST_PROBLEMS],
            len(found),
        )

    def skipped(self, reason: str) -> BundleCheck:
        """Not asked."""
        return BundleCheck(self.name, self.area, CheckStatus.SKIPPED, reason)
