"""The report on a fleet in HTML and Markdown: heat map of speedups, slowest devices, dominating operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from opscope.core import units
from opscope.reports.content.template import environment
from opscope.reports.html.sections import policy, style_sheet, width_class

if TYPE_CHECKING:
    import jinja2

    from opscope.fleet.analysis.fleet import Fleet, FleetRun

_DOMINANT = 15
_STEPS = 5
"""Shades on either side of no difference; the strongest is a factor of four."""
_STRONGEST = 2.0
_SHOWN = {"faster": "", "slower": "", "no_difference": "no difference shown", "undecidable": "undecidable"}


def fleet_html(fleet: Fleet) -> str:
    """The report as one HTML page that needs nothing else."""
    style = style_sheet("combined.css", "fleet.css")
    return _environment().get_template("fleet.html.j2").render(_values(fleet), style=style, policy=policy(style))


def fleet_markdown(fleet: Fleet) -> str:
    """The report in Markdown."""
    return _environment().get_template("fleet.md.j2").render(_values(fleet))


def heat_class(run: FleetRun | None) -> str:
    """Class of a cell by its speedup; one that is not shown to be a change has the shade of none."""
    if run is None or run.speedup is None or run.speedup <= 0 or run.verdict not in {"faster", "slower"}:
        return ""
    step = round(_STEPS * math.log2(run.speedup) / _STRONGEST)
    bounded = max(-_STEPS, min(_STEPS, step))
    return f"gain{bounded}" if bounded > 0 else f"loss{-bounded}" if bounded < 0 else ""


def _values(fleet: Fleet) -> dict[str, Any]:
    return {
        "fleet": fleet,
        "maps": [(variant, _map(fleet, variant)) for variant in fleet.variants],
        "dominant": fleet.dominant[:_DOMINANT],
        "facts": fleet_facts(fleet),
    }


def _map(fleet: Fleet, variant: str) -> list[tuple[str, list[FleetRun | None]]]:
    """The devices that ran a variant, each with its run of every model."""
    runs = {(run.device, run.model): run for run in fleet.runs if run.variant == variant}
    devices = {device for device, _ in runs}
    return [
        (device, [runs.get((device, model)) for model in fleet.models]) for device in fleet.devices if device in devices
    ]


def fleet_facts(fleet: Fleet) -> list[str]:
    """What a stranger should know first, one sentence each."""
    sides = f"{units.counted_text(len(fleet.devices), 'device')} and {units.counted_text(len(fleet.models), 'model')}"
    found = [f"{sides}; {units.counted_text(len(fleet.runs), 'configuration')}, each by its newest run"]
    known = [(run.speedup, run) for run in fleet.runs if run.speedup is not None and run.verdict != "undecidable"]
    if known:
        low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
        found.append(f"largest speedup {units.ratio_text(high[0])}: {_place(high[1])}")
        found.append(f"smallest speedup {units.ratio_text(low[0])}: {_place(low[1])}")
        slower = sum(1 for _, run in known if run.verdict == "slower")
        if slower:
            found.append(f"slower than its baseline in {slower} of {units.counted_text(len(known), 'configuration')}")
    if fleet.rankings:
        widest = max(fleet.rankings, key=lambda one: one.ratio)
        device, latency = widest.devices[0]
        found.append(
            f"widest span {units.ratio_text(widest.ratio)}: {widest.model}, {widest.variant}, "
            f"{units.time_text(latency)} on {device}"
        )
    if fleet.dominant:
        first = fleet.dominant[0]
        found.append(f"{first.operator} ({first.backend}) takes most over the fleet: {units.share_text(first.share)}")
    return found


def _place(run: FleetRun) -> str:
    return f"{run.model} on {run.device}, {run.variant}"


def _environment() -> jinja2.Environment:
    return environment(
        {
            "time": lambda value: units.time_text(value) if value is not None else "not measured",
            "ratio": units.ratio_text,
            "share": units.share_text,
            "interval": lambda ends: (
                f"{units.ratio_text(ends[0])} to {units.ratio_text(ends[1])}" if ends else "no interval"
            ),
            "verdict": lambda word: _SHOWN.get(word, ""),
            "heat": heat_class,
            "width": width_class,
        }
    )
