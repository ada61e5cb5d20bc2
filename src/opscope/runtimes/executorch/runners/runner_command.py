"""The command line of an ``executor_runner``, wherever it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError
from opscope.experiment.protocol import TRACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.experiment.target import Job

ONE_EACH = "give one runner per variant: features are chosen when a runner is built"
"""What to do where features can neither be read nor switched off."""
_OURS = ("model_path", "num_executions", "cpu_threads", "etdump_path", "method_name", "output_file")


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that would measure something else than was asked.

    Raises:
        UsageError: one is a flag that opscope sets itself.
    """
    taken = {argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")}
    for name in sorted(taken.intersection(_OURS)):
        raise UsageError("opscope sets this flag of the runner itself", where=f"--{name}", hint="leave it out")


def runner_words(job: Job, program: str, method: str | None, output: str | None) -> list[str]:
    """Arguments of a runner that works in a directory of its own.

    Args:
        job: what it is asked.
        program: the .pte where the runner is.
        method: to run where the job names none; None for the first of the program.
        output: base name of the files for its outputs; None when they are not read.
    """
    words = ["--model_path", program, "--num_executions", str(job.inferences), "--cpu_threads", str(job.threads)]
    words += ["--etdump_path", TRACE] if job.traced else []
    chosen = job.calls[0] if job.calls else method
    words += ["--method_name", chosen] if chosen else []
    return words + (["--output_file", output] if output else [])
