"""Writes the result of a check to the pull request: one comment, which later runs update.

The comment is found again by a first line that is not shown. Only a comment of our own author counts, since anybody can
write that line. Whatever goes wrong here is told, and does not fail the job: the verdict is in its summary.

Variables: GITHUB_TOKEN; BODY, a file with Markdown; NAME, of the comment; and those of every job.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from github_rest import ApiError, add_to_summary, annotate, pages, repository, request, set_output

_LONGEST = 65_000
"""GitHub takes 65,536 characters."""
_REFUSED = {401, 403, 404}
_MAY_NOT_WRITE = "the token cannot write comments, as in pull requests from forks; the result is in the job's summary"


def main() -> None:
    """Write the comment, or say why not."""
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_bytes())
    pull_request = event.get("pull_request")
    if pull_request is None:
        print("no pull request, no comment")
        return
    text = comment_text(marker(os.environ["NAME"]), Path(os.environ["BODY"]).read_text(encoding="utf-8"), pull_request)
    try:
        set_output("url", publish(f"{repository()}/issues", pull_request["number"], text))
    except ApiError as error:
        refused = error.status in _REFUSED
        reason = _MAY_NOT_WRITE if refused else f"GitHub rejected the comment: {error}"
        annotate("notice" if refused else "warning", reason)
        add_to_summary(f"\n_No comment on the pull request: {reason.partition(';')[0]}._\n")


def marker(name: str) -> str:
    """The line that a comment of this name begins with, and that is not shown."""
    return f"<!-- opscope check: {re.sub(r'[^A-Za-z0-9._]+', '-', name)} -->"


def comment_text(first: str, body: str, pull_request: dict[str, Any]) -> str:
    """The whole comment: marker, result, and which commit and run it is of."""
    commit = str(pull_request["head"]["sha"])[:7]
    run = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}".format_map(os.environ)
    end = f"\n<sub>Commit {commit}, [this run]({run}). The next run updates this comment.</sub>\n"
    room = _LONGEST - len(first) - len(end)
    if len(body) > room:
        cut = "\n\nThe rest is in the summary of the run.\n"
        body = body[: room - len(cut)].rpartition("\n")[0] + cut
    return f"{first}\n{body}{end}"


def publish(issues: str, number: int, text: str) -> str:
    """Update our comment, or make it; its address.

    Raises:
        ApiError: GitHub refused.
    """
    first = text.partition("\n")[0]
    login = own_login()
    for page in pages(f"{issues}/{number}/comments"):
        for comment in page:
            if comment["body"].startswith(first) and is_ours(comment["user"], login):
                return str(request("PATCH", f"{issues}/comments/{comment['id']}", {"body": text})["html_url"])
    return str(request("POST", f"{issues}/{number}/comments", {"body": text})["html_url"])


def own_login() -> str | None:
    """Who the token belongs to; None for the token of a job, which may not ask."""
    try:
        return str(request("GET", "/user")["login"])
    except ApiError:
        return None


def is_ours(user: dict[str, Any] | None, login: str | None) -> bool:
    """Whether we may have written a comment: a token of a person writes as that person, that of a job as a bot."""
    if user is None:  # the account is gone
        return False
    return bool(user["type"] == "Bot" if login is None else user["login"] == login)


if __name__ == "__main__":
    main()
