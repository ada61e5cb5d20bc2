"""opscope: where the time of an on-device model goes, whether the accelerator is used, and what to do next.

The functions here are those of ``opscope.api``; they are imported on first use, so ``import opscope`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope.core.version import __version__

if TYPE_CHECKING:
    from opscope.api import (
        AddReport,
        AnalysisResult,
        BundleLabels,
        CombinedResult,
        ComparisonResult,
        EventsResult,
        FleetResult,
        GateResult,
        HistoryResult,
        KernelFilter,
        KernelsResult,
        PreflightResult,
        Profiled,
        QueryResult,
        RemoveReport,
        Settings,
        StoreCheckResult,
        StoreEntries,
        Swept,
        Tiles,
        TilesComparisonResult,
        TilesGateResult,
        TilesRequest,
        ValidationResult,
        Where,
        add_to_store,
        analyze,
        analyze_tiles,
        check,
        check_history,
        check_tiles,
        combined,
        compare,
        compare_tiles,
        kernels,
        preflight,
        profile,
        query_store,
        read,
        remove_from_store,
        report,
        store_entries,
        stored_fleet,
        stored_history,
        sweep_tiles,
        validate,
        verify_store,
    )

__all__ = [
    "AddReport",
    "AnalysisResult",
    "BundleLabels",
    "CombinedResult",
    "ComparisonResult",
    "EventsResult",
    "FleetResult",
    "GateResult",
    "HistoryResult",
    "KernelFilter",
    "KernelsResult",
    "PreflightResult",
    "Profiled",
    "QueryResult",
    "RemoveReport",
    "Settings",
    "StoreCheckResult",
    "StoreEntries",
    "Swept",
    "Tiles",
    "TilesComparisonResult",
    "TilesGateResult",
    "TilesRequest",
    "ValidationResult",
    "Where",
    "__version__",
    "add_to_store",
    "analyze",
    "analyze_tiles",
    "check",
    "check_history",
    "check_tiles",
    "combined",
    "compare",
    "compare_tiles",
    "kernels",
    "preflight",
    "profile",
    "query_store",
    "read",
    "remove_from_store",
    "report",
    "store_entries",
    "stored_fleet",
    "stored_history",
    "sweep_tiles",
    "validate",
    "verify_store",
]


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute may be anything
        if name not in __all__:
            raise AttributeError(f"module 'opscope' has no attribute {name!r}")
        from opscope import api  # noqa: PLC0415 - the point of this function

        return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
