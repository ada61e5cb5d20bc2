"""Logging a bundle in MLflow.

MLflow has no file to import, so its own client writes. It is no dependency of opscope: who logs runs there has it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.manifest import device_text
from opscope.core.errors import MissingDependencyError, RunError
from opscope.reports.document.text import plain
from opscope.reports.formats.collected import UNITS, collected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlflow import MlflowClient

    from opscope.reports.content.content import ReportContent, VariantResult
    from opscope.reports.formats.collected import CollectedVariant, Figure

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.]+")
_LONGEST = 500
"""Of a parameter's value, which MLflow limits."""


class TrackedRun(NamedTuple):
    """A run as MLflow keeps it."""

    name: str
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]


def tracked_runs(content: ReportContent, commit: str | None = None) -> list[TrackedRun]:
    """What MLflow is to keep of a report, one run for each variant that has a result."""
    found = collected(content)
    results = [result for result in content.variants if result.analysis]
    return [_tracked(content, variant, result, commit) for variant, result in zip(found.variants, results, strict=True)]


def _tracked(
    content: ReportContent, collected_variant: CollectedVariant, result: VariantResult, commit: str | None
) -> TrackedRun:
    manifest, variant, analysis = content.manifest, result.variant, result.analysis
    model = manifest.model_of(variant.name)
    params: dict[str, object] = {
        "model": model.name,
        "dtype": model.dtype,
        "variant": variant.name,
        "role": variant.role.value if variant.role else None,
        "threads": variant.threads,
        "target": manifest.target.kind,
        "device": device_text(manifest),
        **{f"version.{name}": version for name, version in manifest.environment.versions.items()},
    }
    tags = {
        "opscope.grade": analysis.quality.grade.value if analysis and analysis.quality else None,
        "opscope.version": manifest.opscope,
        "opscope.created": manifest.created,
        "opscope.program_sha256": model.sha256,
        "mlflow.source.git.commit": commit,
    }
    categories = analysis.categories if analysis else []
    metrics = {f"share.{_word(one.category.value)}": one.share for one in categories}
    metrics |= {name: value for figure in collected_variant.figures for name, value in _metrics(figure)}
    return TrackedRun(collected_variant.title, _texts(params), metrics | _speedup(content, variant.name), _texts(tags))


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {_word(name): plain(str(value), _LONGEST) for name, value in values.items() if value not in {None, ""}}


def _word(name: str) -> str:
    """A name as MLflow allows it: letters, digits and a few signs."""
    return _FORBIDDEN.sub("_", name)


def _metrics(figure: Figure) -> Iterator[tuple[str, float]]:
    """A figure and its interval; the unit ends the name, since MLflow knows none."""
    name, (unit, divisor) = _word(figure.measure.name), UNITS[figure.measure.unit]
    yield f"{name}_{unit}", figure.value / divisor
    for end, value in zip(("low", "high"), figure.bounds or (), strict=False):
        yield f"{name}_{end}_{unit}", value / divisor


def _speedup(content: ReportContent, variant: str) -> dict[str, float]:
    """How much faster it is than its baseline; nothing where that is withheld or is a comparison of others."""
    comparison = next((one for one in content.comparisons if one.candidate.label == variant), None)
    figures: dict[str, float] = {}
    for method, end in (comparison.verdicts if comparison else {}).items():
        name = f"speedup.{_word(method)}" if method else "speedup"
        if end.speedup is not None:
            figures[name] = end.speedup
            figures |= zip((f"{name}_low", f"{name}_high"), end.ci95 or (), strict=False)
    return figures


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
    from opscope.workflows.reports.reports import ANALYSIS, HTML, content
    from opscope.workflows.reports.tracking import tracked_runs

    report_content = content(path)
    runs = tracked_runs(report_content, commit)
    files = [file for file in (Path(path) / HTML, Path(path) / ANALYSIS) if file.is_file()]
    named = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or report_content.manifest.model.name
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
