"""What a model needs to be measured here: its runtime, its operators, its inputs, and whether one inference runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.core.install import install_command
from opscope.core.units import size_text
from opscope.experiment.checks import Check, State, problem_check
from opscope.experiment.planned import Experiment
from opscope.experiment.target_names import parse_target
from opscope.runtimes.registry import EXPORTER, runtime_of
from opscope.workflows.measure.experiment_bundle import tried_once
from opscope.workflows.measure.model_files import program_source
from opscope.workflows.measure.program_inputs import inputs_in_words
from opscope.workflows.measure.targets import target_running

if TYPE_CHECKING:
    from opscope.runtimes.runtime import Runtime

_SECONDS = 120.0


def runtime_for(model: str) -> Runtime:
    """The runtime that a model needs; the one that exports, for what is no program.

    Raises:
        OpscopeError: there is no such model, or its runtime does not take it.
    """
    source = program_source(model)
    return EXPORTER if source is None else runtime_of(source)


def model_checks(model: str, target: str) -> list[Check]:
    """What stands in the way of measuring a model, and what has to be said about its inputs.

    Args:
        model: a program, or a model to export.
        target: where it is to run, as of ``--target``.

    Raises:
        OpscopeError: there is no such model, its runtime does not take it, or not on this target.
    """
    source = program_source(model)
    if source is None:
        return [Check("model", State.OK, f"{model} is exported by {EXPORTER.title} first")]
    runtime = runtime_of(source)
    about = f"{source.name}, {size_text(source.stat().st_size)}, needs {runtime.title} ({runtime.name})"
    found = Check("model", State.OK, about)
    if not runtime.is_installed() and parse_target(target).kind.here:
        missing = f"{runtime.title} is not installed"
        return [found, Check("one inference", State.PROBLEM, missing, install_command(runtime.name))]
    here = target_running(str(source), target)
    asked = Experiment(name="doctor", model=model, target=target, guess_inputs=True, timeout=_SECONDS)
    with tempfile.TemporaryDirectory(prefix="opscope-") as directory:
        try:
            plan, failure = tried_once(asked, here, source, Path(directory))
        except UsageError as error:
            return [found, problem_check("one inference", error)]
    told = inputs_in_words(source, plan)
    hint = f"add --guess-inputs, or give your own: {told.line}"
    inputs = Check("inputs", State.NOTE if told.line else State.OK, told.declared, hint if told.line else "")
    if failure is None:
        return [found, inputs, Check("one inference", State.OK, "runs, all CPU features on, 1 thread")]
    hint = "give inputs that the model accepts with --input" if told.line else ""
    return [found, inputs, Check("one inference", State.PROBLEM, failure.message, hint)]
