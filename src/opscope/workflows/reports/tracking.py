"""Logging a bundle in MLflow.

MLflow has no file to import, so its own client writes. It is no dependency of opscope: who logs runs there has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import MissingDependencyError, RunError
from opscope.reports.document.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow import MlflowClient

    from opscope.reports.formats.mlflow import TrackedRun


def track(
    path: str | Path, uri: str | None = None, *, experiment: str | None = None, commit: str | None = None
) -> list[str]:
    """Log a bundle in MLflow, each variant as a run, with the bundle's report and analysis as its artifacts.

    Args:
        path: of the bundle.
        uri: of the tracking store: a server, or a database such as ``sqlite:///mlflow.db``; None: as
            MLFLOW_TRACKING_URI says, else MLflow's default.
        experiment: name of the experiment, which is made where there is none; None: as MLFLOW_EXPERIMENT_NAME says,
            else the model's name.
        commit: of what was measured; None: not said.

    Returns:
        The identifiers of the runs.

    Raises:
        MissingDependencyError: MLflow is not installed.
        NotFoundError: there is no bundle.
        RunError: MLflow refused, or its store cannot be reached.
    """
    from opscope.reports.formats.mlflow import tracked_runs
    from opscope.workflows.reports.reports import ANALYSIS, HTML, content

    found = content(path)
    runs = tracked_runs(found, commit)
    files = [file for file in (Path(path) / HTML, Path(path) / ANALYSIS) if file.is_file()]
    named = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or found.manifest.model.name
    return _logged_all(runs, uri, named, files)


def _logged_all(runs: Sequence[TrackedRun], uri: str | None, experiment: str, files: Sequence[Path]) -> list[str]:
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        problem = f"mlflow is not installed here: {error}"
        raise MissingDependencyError(problem, where="--to mlflow", hint="pip install mlflow") from None
    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(experiment)
        place = known.experiment_id if known else client.create_experiment(experiment)
        return [_logged(client, place, run, files) for run in runs]
    except MlflowException as error:
        raise RunError(f"MLflow refused: {plain(str(error), 300)}", where=uri or "MLFLOW_TRACKING_URI") from error


def _logged(client: MlflowClient, experiment: str, run: TrackedRun, files: Sequence[Path]) -> str:
    from mlflow.entities import Metric, Param

    made = client.create_run(experiment, run_name=run.name, tags=run.tags)
    identifier: str = made.info.run_id
    now = made.info.start_time
    metrics = [Metric(name, value, now, 0) for name, value in run.metrics.items()]
    client.log_batch(identifier, metrics=metrics, params=[Param(*one) for one in run.params.items()])
    for file in files:
        client.log_artifact(identifier, str(file))
    client.set_terminated(identifier)
    return identifier
