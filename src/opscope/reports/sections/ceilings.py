"""Where the ceilings of a report come from, in words: when they were measured, and what showed that they still hold."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from opscope.core.units import range_text
from opscope.program.ceilings.ceilings import Origin
from opscope.reports.content.text import plain

if TYPE_CHECKING:
    from opscope.program.ceilings.ceilings import Ceilings, Drift, DriftCheck


def ceilings_text(ceilings: Ceilings) -> str:
    """One or more sentences for a report."""
    text = _reused(ceilings, ceilings.drift) if ceilings.origin is Origin.CACHE else _measured(ceilings)
    why = ceilings.disturbance()
    disturbed = [f"They may be too low: {why}."] if why else []
    return " ".join([text, *disturbed, *(f"Note: {plain(note)}." for note in ceilings.notes)])


def _measured(ceilings: Ceilings) -> str:
    when = f", on {_moment(ceilings.measured_at)}" if ceilings.measured_at else ""
    text = f"Ceilings were measured after these runs{when}."
    failed = [check for check in ceilings.drift.checks if not check.agrees] if ceilings.drift else []
    if not ceilings.drift or not failed:
        return text
    reasons = ", ".join(f"{plain(check.ceiling)} {_share(check)}" for check in failed)
    return f"{text} Those of {_moment(ceilings.drift.kept_since)} no longer held: {reasons} of the kept rate."


def _reused(ceilings: Ceilings, drift: Drift | None) -> str:
    text = f"Ceilings were measured for an earlier run on this machine, on {_moment(ceilings.measured_at or '')}."
    if drift is None:
        return text
    ratios = sorted(check.ratio for check in drift.checks if check.ratio is not None)
    tolerances = sorted(check.tolerance for check in drift.checks)
    figures = f"{len(ratios)} of them reached {_range(ratios)} of their kept rates (tolerance {_range(tolerances)})"
    return f"{text} A probe of {drift.seconds:.1f} s after these runs agrees: {figures}."


def _range(values: list[float]) -> str:
    return f"{range_text(f'{values[0] * 100:.0f}', f'{values[-1] * 100:.0f}')} %"


def _share(check: DriftCheck) -> str:
    return "no rate" if check.ratio is None else f"{check.ratio * 100:.0f} %"


def _moment(text: str) -> str:
    """A moment of ISO 8601 in UTC, to the minute; as it stands where it is none."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return plain(text)
