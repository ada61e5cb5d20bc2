"""Finds the two programs of a check: the candidate in the checkout, and its baseline where the action keeps it.

Sets the outputs candidate and baseline. Without a baseline yet, as in the first run, baseline is empty: nothing can be
judged, which is told and fails nothing.

Variables: CANDIDATE, empty for the only program of the checkout; BASELINE; EXPORT, a command that writes the program;
KEPT, the directory in which an artifact or a cache brought the last baseline; and those of every job.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from github_rest import annotate, set_output

_SUFFIXES = {".pte", ".tflite", ".onnx"}
_MOST_NAMED = 8
_KEPT = {"artifact", "cache"}


class SetupError(Exception):
    """What the workflow has to say or do, in one sentence."""


def main() -> int:
    """Set the outputs; 2 where the workflow has to be changed."""
    export = os.environ["EXPORT"].strip()
    try:
        if export:
            run(export, Path.cwd())
        candidate = os.environ["CANDIDATE"] or str(only_program(Path.cwd()))
        baseline = baseline_of(candidate, os.environ["BASELINE"], export)
    except SetupError as error:
        annotate("error", str(error))
        return 2
    set_output("candidate", candidate)
    set_output("baseline", baseline)
    if not baseline:
        annotate("notice", f"no baseline of {candidate} yet: nothing was judged; a run on the main branch leaves one")
    return 0


def only_program(place: Path) -> Path:
    """The one program below a directory, relative to it; hidden directories do not count.

    Raises:
        SetupError: there is none, or there are several.
    """
    found = [path.relative_to(place) for path in sorted(place.rglob("*")) if path.suffix in _SUFFIXES]
    found = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise SetupError(
            "no .pte, .tflite or .onnx in the checkout: name a command that writes one, as the input export"
        )
    named = ", ".join(map(str, found[:_MOST_NAMED]))
    raise SetupError(f"{len(found)} programs in the checkout, name one as the input candidate: {named}")


def baseline_of(candidate: str, baseline: str, export: str) -> str:
    """The baseline's path; empty where there is none yet; what is no keyword stays as it is.

    Raises:
        SetupError: the checkout does not have the commit before.
    """
    if baseline in _KEPT:
        kept = Path(os.environ["KEPT"], Path(candidate).name)
        return str(kept) if kept.is_file() else ""
    if baseline != "branch":
        return baseline
    place = Path(os.environ["RUNNER_TEMP"], "opscope-base")
    added = ["git", "worktree", "add", "--force", "--detach", str(place), "HEAD^1"]
    # The first parent is the base of a pull request, whose merge is checked out, and the last state of a branch.
    done = subprocess.run(added, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"cannot check out the base, let actions/checkout have fetch-depth: 2: {done.stderr.strip()}")
    if export:
        run(export, place)
    program = place / candidate
    return str(program) if program.is_file() else ""


def run(command: str, place: Path) -> None:
    """Run the command that writes the program.

    Raises:
        SetupError: it failed.
    """
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=place, check=False)  # noqa: S607 - of the runner
    if done.returncode:
        raise SetupError(f"the command of the input export ended with exit code {done.returncode} in {place}")


if __name__ == "__main__":
    raise SystemExit(main())
