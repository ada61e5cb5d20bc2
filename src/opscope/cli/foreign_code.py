"""Which commands run code that is not opscope's, each said once: ``--help`` and the page of the concepts show it."""

from __future__ import annotations

_MODEL = "a model named MODULE:CALLABLE or FILE.py:CALLABLE, or by a file of your directory of models"
_RIGHTS = "in their own processes, with your rights and without a sandbox"

RUNS: dict[str, str] = {
    "profile": f"{_MODEL}; the program itself, and an executor_runner that --target names: {_RIGHTS}; a repetition "
    "ends after --timeout",
    "export": f"{_MODEL}, and the program that comes of it: {_RIGHTS} and without a limit of time",
    "run": f"what `opscope profile` runs, for every experiment of the file, and the runners that it names: {_RIGHTS}",
    "check": f"of two programs or models what `opscope profile` runs: {_RIGHTS}. Of bundles and traces: nothing",
    "kernels": f"with --count the program of the bundle, as `opscope profile` does: {_RIGHTS}. Without: nothing",
}
"""Commands that run code of the user's, and what of it."""
ASKS: dict[str, str] = {
    "preflight": "the installed runtime is started and asked for the CPU's features, not shown the program",
    "doctor": "the installed runtime and tools are started and asked what they are",
}
"""Commands that start installed programs, and nothing of the user's."""
_NEVER = "Runs no code of yours: files are read and never executed."


def code_notice(command: str) -> str:
    """What a command runs that is not opscope's, as one or two sentences for its help."""
    if command in RUNS:
        return f"Runs your code: {RUNS[command]}."
    return f"Runs no code of yours: {ASKS[command]}." if command in ASKS else _NEVER
