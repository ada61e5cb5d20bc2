"""One report over several bundles or runs of the Arm kit: platforms, or versions of one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.api.bundle_differences import bundle_differences
from opscope.api.encode import to_json
from opscope.api.reports import REPORT_FORMATS, check_formats, content
from opscope.api.version_series import version_series
from opscope.bundle.files import write_atomically
from opscope.errors import MismatchError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.report.combined_values import CombinedReport

COMBINED = "combined"
"""Names of the files without their endings; they never stand in the way of a bundle's own reports."""


def combined(paths: Sequence[str | Path]) -> CombinedReport:
    """Several bundles, or runs of the Arm kit, side by side, computed from their traces.

    Args:
        paths: two or more directories.

    Raises:
        UsageError: there are fewer than two, or one is given twice.
        NotFoundError: a directory is no bundle.
        MismatchError: one ran on an emulated CPU.
        TraceFormatError: a manifest or a trace is damaged.
    """
    from opscope.analyze.quality_machine import EMULATED, ON_THE_DEVICE
    from opscope.report.combined import Part, combine

    places = _checked([Path(path) for path in paths])
    parts = [Part(label, str(path), content(path)) for label, path in zip(labels(places), places, strict=True)]
    for part in parts:
        if part.content.manifest.target.emulated:
            raise MismatchError(EMULATED, where=part.path, hint=ON_THE_DEVICE)
    return combine(parts, version_series(parts), bundle_differences(parts))


def combined_report(
    paths: Sequence[str | Path],
    out: str | Path,
    formats: Sequence[str] = REPORT_FORMATS,
    *,
    title: str | None = None,
) -> list[Path]:
    """Write the combined report of several bundles; see :func:`combined`.

    Args:
        paths: two or more directories.
        out: directory to write to.
        formats: any of ``html``, ``md`` and ``json``.
        title: of the report; None: the models' names.

    Returns:
        The files that were written.

    Raises:
        UsageError: a format is unknown, there are fewer than two bundles, or one is given twice.
    """
    from opscope.report.combined_page import combined_html, combined_markdown

    check_formats(formats)
    report = msgspec.structs.replace(combined(paths), title=title or None)
    files: dict[str, bytes] = {}
    if "json" in formats:
        files[f"{COMBINED}.json"] = to_json(report)
    if "md" in formats:
        files[f"{COMBINED}.md"] = combined_markdown(report).encode()
    if "html" in formats:
        files[f"{COMBINED}.html"] = combined_html(report).encode()
    for name, text in files.items():
        write_atomically(Path(out) / name, text)
    return [Path(out) / name for name in files]


def _checked(places: list[Path]) -> list[Path]:
    if len(places) < 2:  # noqa: PLR2004 - one is no combination
        raise UsageError("a combined report needs two bundles or more", hint="give several directories")
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            problem = "not a directory" if place.exists() else "no such directory"
            raise NotFoundError(problem, where=place, hint="give bundles, or run directories of the Arm kit")
        if place.resolve() in seen:
            raise UsageError("given twice", where=place, hint="give every bundle once")
        seen.add(place.resolve())
    return places


def labels(places: Sequence[Path]) -> list[str]:
    """A name for each directory: the last part of its path, with as many parts before it as make all names differ."""
    parts = [place.resolve().parts for place in places]
    depths = [1] * len(places)
    for _ in range(max(map(len, parts))):
        names = ["/".join(own[-depth:]) for own, depth in zip(parts, depths, strict=True)]
        alike = [names.count(name) > 1 for name in names]
        if not any(alike):
            break
        depths = [min(d + again, len(own)) for d, again, own in zip(depths, alike, parts, strict=True)]
    return names
