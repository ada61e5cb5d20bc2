"""What :func:`opscope.workflows.analyze.inspection.inspect` can answer."""

from __future__ import annotations

from typing import TypeAlias

from opscope.analysis.analysis import Analysis
from opscope.analysis.preflight.contents import KernelSummary, ProgramSummary, RecordSummary

Inspected: TypeAlias = Analysis | ProgramSummary | RecordSummary | KernelSummary
