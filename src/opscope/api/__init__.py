"""What the command line and a notebook call: public names, nothing else.

Names are imported on first use: analysing a trace loads neither the reports nor the runner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opscope.analysis.kernels.kernels import KernelFilter
    from opscope.core.json import to_json
    from opscope.experiment.checks import Check
    from opscope.experiment.planned import Settings
    from opscope.fleet.bundles import BundleLabels
    from opscope.fleet.fleet import check_fleet, fleet_report, stored_fleet
    from opscope.fleet.history import check_history, check_new_changes, stored_history
    from opscope.fleet.results import (
        AddReport,
        FleetGateResult,
        FleetResult,
        HistoryResult,
        QueryResult,
        RemoveReport,
        StoreEntries,
    )
    from opscope.fleet.stores import (
        add_to_store,
        entries_stream,
        query_store,
        query_stream,
        remove_from_store,
        store_entries,
    )
    from opscope.measurements.results import (
        AnalysisResult,
        BisectionResult,
        ComparisonResult,
        EventsResult,
        GateResult,
        KernelsResult,
        PreflightResult,
        Profiled,
        TuningResult,
        ValidationResult,
        WorkResult,
    )
    from opscope.npu.workflows.aie import Tiles, TilesRequest, analyze_tiles, write_tiles
    from opscope.npu.workflows.sides import TilesComparisonResult, TilesGateResult, check_tiles, compare_tiles
    from opscope.reports.inspected import Inspected
    from opscope.workflows.agent_skills import Skill, install_skills, read_guide, skills
    from opscope.workflows.analyze.analyses import analyze, compare, inspect
    from opscope.workflows.analyze.gate import check, check_kinds
    from opscope.workflows.analyze.preflight import preflight
    from opscope.workflows.analyze.sides import read
    from opscope.workflows.bisect.running import bisect
    from opscope.workflows.exporting import ExportDone, export, write_model
    from opscope.workflows.kernel_view import count_kernels, kernel_filter, kernels
    from opscope.workflows.measure.counting import count, keep_counts
    from opscope.workflows.measure.machine import FeatureReport, Readiness, doctor, features
    from opscope.workflows.measure.parallel.workers import Where
    from opscope.workflows.measure.profiling import ProgramCheck, check_programs, default_directory, profile
    from opscope.workflows.measure.run_report import RunReport
    from opscope.workflows.measure.running import run
    from opscope.workflows.reports.combined import CombinedResult, combined, combined_report
    from opscope.workflows.reports.conversion import CONVERT_FORMATS, convert, converted
    from opscope.workflows.reports.reports import REPORT_FORMATS, content, report
    from opscope.workflows.tune.tuning import replay_tuning, tune
    from opscope.workflows.validate.validation import validate

__all__ = [
    "CONVERT_FORMATS",
    "REPORT_FORMATS",
    "AddReport",
    "AnalysisResult",
    "BisectionResult",
    "BundleLabels",
    "Check",
    "CombinedResult",
    "ComparisonResult",
    "EventsResult",
    "ExportDone",
    "FeatureReport",
    "FleetGateResult",
    "FleetResult",
    "GateResult",
    "HistoryResult",
    "Inspected",
    "KernelFilter",
    "KernelsResult",
    "PreflightResult",
    "Profiled",
    "ProgramCheck",
    "QueryResult",
    "Readiness",
    "RemoveReport",
    "RunReport",
    "Settings",
    "Skill",
    "StoreEntries",
    "Tiles",
    "TilesComparisonResult",
    "TilesGateResult",
    "TilesRequest",
    "TuningResult",
    "ValidationResult",
    "Where",
    "WorkResult",
    "add_to_store",
    "analyze",
    "analyze_tiles",
    "bisect",
    "check",
    "check_fleet",
    "check_history",
    "check_kinds",
    "check_new_changes",
    "check_programs",
    "check_tiles",
    "combined",
    "combined_report",
    "compare",
    "compare_tiles",
    "content",
    "convert",
    "converted",
    "count",
    "count_kernels",
    "default_directory",
    "doctor",
    "entries_stream",
    "export",
    "features",
    "fleet_report",
    "inspect",
    "install_skills",
    "keep_counts",
    "kernel_filter",
    "kernels",
    "preflight",
    "profile",
    "query_store",
    "query_stream",
    "read",
    "read_guide",
    "remove_from_store",
    "replay_tuning",
    "report",
    "run",
    "skills",
    "store_entries",
    "stored_fleet",
    "stored_history",
    "to_json",
    "tune",
    "validate",
    "write_model",
    "write_tiles",
]

_MODULES = {
    "opscope.analysis.kernels.kernels": ("KernelFilter",),
    "opscope.core.json": ("to_json",),
    "opscope.experiment.checks": ("Check",),
    "opscope.fleet.fleet": (
        "check_fleet",
        "fleet_report",
        "stored_fleet",
    ),
    "opscope.fleet.history": (
        "check_history",
        "check_new_changes",
        "stored_history",
    ),
    "opscope.fleet.results": (
        "AddReport",
        "FleetGateResult",
        "FleetResult",
        "HistoryResult",
        "QueryResult",
        "RemoveReport",
        "StoreEntries",
    ),
    "opscope.fleet.bundles": ("BundleLabels",),
    "opscope.fleet.stores": (
        "add_to_store",
        "entries_stream",
        "query_store",
        "query_stream",
        "remove_from_store",
        "store_entries",
    ),
    "opscope.measurements.results": (
        "AnalysisResult",
        "BisectionResult",
        "ComparisonResult",
        "EventsResult",
        "GateResult",
        "KernelsResult",
        "PreflightResult",
        "WorkResult",
        "Profiled",
        "TuningResult",
        "ValidationResult",
    ),
    "opscope.npu.workflows.aie": (
        "Tiles",
        "TilesRequest",
        "analyze_tiles",
        "write_tiles",
    ),
    "opscope.npu.workflows.sides": (
        "TilesComparisonResult",
        "TilesGateResult",
        "check_tiles",
        "compare_tiles",
    ),
    "opscope.reports.inspected": ("Inspected",),
    "opscope.workflows.agent_skills": (
        "Skill",
        "install_skills",
        "read_guide",
        "skills",
    ),
    "opscope.workflows.analyze.analyses": (
        "analyze",
        "compare",
        "inspect",
    ),
    "opscope.workflows.analyze.gate": (
        "check",
        "check_kinds",
    ),
    "opscope.workflows.analyze.preflight": ("preflight",),
    "opscope.workflows.analyze.sides": ("read",),
    "opscope.workflows.bisect.running": ("bisect",),
    "opscope.workflows.tune.tuning": ("replay_tuning", "tune"),
    "opscope.workflows.exporting": (
        "ExportDone",
        "export",
        "write_model",
    ),
    "opscope.workflows.measure.counting": ("count", "keep_counts"),
    "opscope.workflows.kernel_view": (
        "count_kernels",
        "kernel_filter",
        "kernels",
    ),
    "opscope.workflows.measure.machine": (
        "FeatureReport",
        "Readiness",
        "doctor",
        "features",
    ),
    "opscope.workflows.measure.parallel.workers": ("Where",),
    "opscope.workflows.measure.profiling": (
        "ProgramCheck",
        "Settings",
        "check_programs",
        "default_directory",
        "profile",
    ),
    "opscope.workflows.measure.run_report": ("RunReport",),
    "opscope.workflows.measure.running": ("run",),
    "opscope.workflows.reports.combined": (
        "CombinedResult",
        "combined",
        "combined_report",
    ),
    "opscope.workflows.reports.conversion": (
        "CONVERT_FORMATS",
        "convert",
        "converted",
    ),
    "opscope.workflows.reports.reports": (
        "REPORT_FORMATS",
        "content",
        "report",
    ),
    "opscope.workflows.validate.validation": ("validate",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute may be anything
        if name not in _HOME:
            raise AttributeError(f"module 'opscope.api' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value  # a module of the same name, bound by its import, gives way to what was asked for
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
