"""Where the ceilings of a report come from, in words: when they were measured, and what showed that they still hold."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from opscope.core.units import range_text
from opscope.program.peak_rates.peak_rates import Origin
from opscope.reports.content.text import plain

if TYPE_CHECKING:
    from opscope.program.peak_rates.peak_rates import Drift, DriftCheck, PeakRates


def ceilings_text(roofs: PeakRates) -> str:
    """One or more sentences for a report."""
    text = _reused(roofs, roofs.drift) if roofs.origin is Origin.CACHE else _measured(roofs)
    why = roofs.disturbance()
    disturbed = [f"They may be too low: {why}."] if why else []
    return " ".join([text, *disturbed, *(f"Note: {plain(note)}." for note in roofs.notes)])


def _measured(roofs: PeakRates) -> str:
    when = f", on {_moment(roofs.measured_at)}" if roofs.measured_at else ""
    text = f"Ceilings were measured after these runs{when}."
    failed = [check for check in roofs.drift.checks if not check.agrees] if roofs.drift else []
    if not roofs.drift or not failed:
        return text
    reasons = ", ".join(f"{plain(check.ceiling)} {_share(check)}" for check in failed)
    return f"{text} Those of {_moment(roofs.drift.kept_since)} no longer held: {reasons} of the kept rate."


def _reused(roofs: PeakRates, drift: Drift | None) -> str:
    text = f"Ceilings were measured for an earlier run on this machine, on {_moment(roofs.measured_at or '')}."
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
