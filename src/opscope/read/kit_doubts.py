"""Where the files of a kit's experiment contradict what the kit recorded about it. Its traces are not read for this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.table import TraceWarning
from opscope.units import share_text, time_text

if TYPE_CHECKING:
    from opscope.read.kit_run import KitExperiment

_NESTED = 1.05


def doubts(experiment: KitExperiment) -> list[TraceWarning]:
    """What the files of an experiment say against what the kit recorded about it."""
    return [
        *_without_files(experiment),
        *_not_finished(experiment),
        *_no_median(experiment),
        *_percentages(experiment),
        *_registrations(experiment),
    ]


def _without_files(experiment: KitExperiment) -> list[TraceWarning]:
    if any(msgspec.structs.astuple(experiment.files)):
        return []
    recorded = f" and recorded as {experiment.status[:40]!r}" if experiment.status else ""
    message = f"{experiment.key} is listed{recorded}, but none of its files is here"
    return [TraceWarning("kit_experiment_without_files", message, "its figures cannot be checked; run it again")]


def _not_finished(experiment: KitExperiment) -> list[TraceWarning]:
    if not experiment.files.latency_log or experiment.runner:
        return []
    message = f"the log of {experiment.key} lacks the runner's closing line: the runner did not finish"
    recorded = f"; the kit recorded it as {experiment.status[:40]!r}" if experiment.status else ""
    return [TraceWarning("kit_runner_not_finished", message + recorded, f"read {experiment.files.latency_log}")]


def _no_median(experiment: KitExperiment) -> list[TraceWarning]:
    files = [stated.file for stated in experiment.stated if stated.not_a_number]
    if not files:
        return []
    message = (
        f"{experiment.key} is recorded as {experiment.status or 'measured'!r} in {files[0]}, its median is no number"
    )
    return [TraceWarning("kit_ok_without_result", message, "there is no result: the run failed, or wrote no trace")]


def _percentages(experiment: KitExperiment) -> list[TraceWarning]:
    """The kit's shares against shares of Method::execute, with the operator that shows it best."""
    executed = sum(row.total_ns for row in experiment.stats if row.name == "Method::execute")
    total = sum(row.total_ns for row in experiment.stats)
    if not executed or total <= executed * _NESTED:
        return []
    inner = [
        row
        for row in experiment.stats
        if not row.name.startswith(("Method::", "Program::")) and "_CALL" not in row.name
    ]
    message = (
        f"pct_total of {experiment.files.stats} is a share of all its lines, {time_text(total)}, which count nested "
        f"time {total / executed:.1f} times; the latency is {time_text(executed)}"
    )
    if inner:
        top = max(inner, key=lambda row: row.total_ns)
        stated, true = share_text(top.share), share_text(top.total_ns / executed)
        message += f". {top.name[:80]} reads {stated} and is {true}"
    return [TraceWarning("kit_percentages", message, "use the shares of opscope, which add up to end-to-end latency")]


def _registrations(experiment: KitExperiment) -> list[TraceWarning]:
    if experiment.kernels is not None and not experiment.kernels.entries:
        message = f"{experiment.files.kernel_log} names no kernel: the runner was built without XNNPACK's log"
        return [
            TraceWarning("kit_log_without_kernels", message, "build it with EXECUTORCH_XNNPACK_LOG_LEVEL=4 or more")
        ]
    if not experiment.kernels and not experiment.kernel_rows:
        return []
    message = f"the kernels of {experiment.key} were registered: their count is lines of a log, not calls"
    return [TraceWarning("kit_kernels_registered", message, "a kernel that is listed may never have run")]
