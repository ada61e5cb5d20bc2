"""What a run directory of the Arm kit tells of kernels: the logs and the lists that its experiments left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.kernels.kernel_sources import log_source, registered_source
from opscope.analysis.kernels.kernels import KernelFilter, KernelView, kernel_columns, kernel_lines, kernel_pairs
from opscope.analysis.kernels.ladder import LadderInputs, variant_ladder
from opscope.kit.readers.directory import read_kit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.analysis.kernels.kernel_sources import KernelSource
    from opscope.kit.readers.run import KitExperiment, KitRun


def kit_sources(directory: Path, label: str | None) -> list[KernelSource]:
    """What the experiments of a run of the kit tell, those with a log or a list of kernels."""
    run = read_kit(directory)
    wanted = run.experiments if label is None else (run.experiment(label),)
    return [source for each in wanted if (source := _of_experiment(each, directory)) is not None]


def _of_experiment(experiment: KitExperiment, directory: Path) -> KernelSource | None:
    files = experiment.files
    if experiment.kernels is not None and files.kernel_log:
        found = log_source(experiment.kernels, experiment.name, str(directory / files.kernel_log))
    elif experiment.kernel_rows and files.kernels:
        lines = [(row.kernel.whole, row.category, row.registrations) for row in experiment.kernel_rows]
        found = registered_source(lines, experiment.name, str(directory / files.kernels))
    else:
        return None
    role = experiment.role.value if experiment.role else None
    return msgspec.structs.replace(found, role=role, threads=experiment.threads)


def kit_kernels(run: KitRun, analyses: Mapping[str, Analysis], comparisons: Sequence[Comparison]) -> KernelView:
    """What a report of a run shows of kernels: what was registered, and what the names of operators tell.

    On which CPU it ran no file tells, so nothing speaks against SME.
    """
    sources = [source for each in run.experiments if (source := _of_experiment(each, Path())) is not None]
    against, every = {one.candidate.label: one for one in comparisons}, KernelFilter()
    ladders = [
        variant_ladder(
            LadderInputs(each.key, each.threads, analyses[each.key].operators, {}, comparison=against.get(each.key))
        )
        for each in run.experiments
        if each.key in analyses
    ]
    return KernelView(
        columns=kernel_columns(sources),
        kernels=kernel_lines(sources, every),
        pairs=kernel_pairs(sources, every),
        ladders=ladders,
    )
