"""What the command line and a notebook call. The only place where the rooms meet.

Imports of heavier rooms stand inside the functions: reading a trace loads neither the reports nor the runner.
"""

from opscope.api.analyses import analyze, compare
from opscope.api.machine import Check, FeatureReport, doctor, features
from opscope.api.profiling import Profiled, Settings, profile
from opscope.api.reports import REPORT_FORMATS, content, report, to_json
from opscope.api.sides import read

__all__ = [
    "REPORT_FORMATS",
    "Check",
    "FeatureReport",
    "Profiled",
    "Settings",
    "analyze",
    "compare",
    "content",
    "doctor",
    "features",
    "profile",
    "read",
    "report",
    "to_json",
]
