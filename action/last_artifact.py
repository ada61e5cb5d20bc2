"""Finds the run that left the newest artifact of a name on the branch of this job; sets the output run-id.

Pull requests from forks may upload artifacts of any name, from branches of any name. Only those of the repository's own
branch count, or somebody else's file would become the history.

Variables: GITHUB_TOKEN; NAME, of the artifact; and those of every job.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from pathlib import Path
from typing import Any

from github_rest import ApiError, annotate, pages, repository, set_output


def main() -> int:
    """Set the output, or leave it empty where there is no such artifact yet.

    A history that cannot be asked for is an error: going on without it would begin a new one in its place.
    """
    name = os.environ["NAME"]
    try:
        found = newest(name, history_branch())
    except ApiError as error:
        annotate("error", f"cannot list the artifacts: {error}; the job needs the permission actions: read")
        return 1
    if found is None:
        print(f"there is no artifact {name} yet")
    else:
        set_output("run-id", str(found["workflow_run"]["id"]))
        print(f"the artifact of {found['created_at']}, run {found['workflow_run']['id']}")
    return 0


def history_branch() -> str:
    """The branch whose history it is: the base of a pull request, else the branch of the run."""
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes())
    pull_request = event.get("pull_request")
    return str(pull_request["base"]["ref"] if pull_request else os.environ["GITHUB_REF_NAME"])


def newest(name: str, branch: str) -> dict[str, Any] | None:
    """The newest artifact of a name that a run of our own branch left; None where there is none.

    Raises:
        ApiError: GitHub refused.
    """
    path = f"{repository()}/actions/artifacts?name={urllib.parse.quote(name, safe='')}"
    found = [one for page in pages(path) for one in page["artifacts"] if not one["expired"] and _is_own(one, branch)]
    return max(found, key=lambda one: str(one["created_at"]), default=None)


def _is_own(artifact: dict[str, Any], branch: str) -> bool:
    run = artifact["workflow_run"] or {}
    return bool(run and run["head_branch"] == branch and run["head_repository_id"] == run["repository_id"])


if __name__ == "__main__":
    raise SystemExit(main())
