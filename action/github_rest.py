"""GitHub's REST API as far as the action needs it, and the files by which a step speaks to its job.

Standard library only: the scripts of the action run before and beside whatever is installed.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 100
"""Entries of a page, the most that GitHub gives."""
_MOST_PAGES = 50
_SECONDS = 30


class ApiError(Exception):
    """A request that was refused or got no answer.

    Attributes:
        status: of HTTP; 0 where there was no answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})" if status else message)
        self.status = status


def request(method: str, path: str, body: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - JSON of theirs
    """The answer to a request, as JSON; address and token are those of the job.

    Raises:
        ApiError: it was refused, or there is no answer.
    """
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    url = os.environ["GITHUB_API_URL"] + path
    if not url.startswith(("https://", "http://")):
        raise ApiError(0, f"GITHUB_API_URL is not an address: {url!r}")
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:  # noqa: S310 - likewise
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ApiError(error.code, _told(error)) from error
    except (OSError, ValueError) as error:
        raise ApiError(0, str(error)) from error


def pages(path: str) -> Iterator[Any]:
    """The pages of a list until one is not full, at most 50.

    Raises:
        ApiError: as of :func:`request`.
    """
    mark = "&" if "?" in path else "?"
    for number in range(1, _MOST_PAGES + 1):
        page = request("GET", f"{path}{mark}per_page={PAGE}&page={number}")
        yield page
        entries = page if isinstance(page, list) else next(v for v in page.values() if isinstance(v, list))
        if len(entries) < PAGE:
            return


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return error.reason or "refused"


def repository() -> str:
    """Path of the job's repository in the API."""
    return f"/repos/{os.environ['GITHUB_REPOSITORY']}"


def set_output(name: str, value: str) -> None:
    """Set an output of the step; the value becomes one line."""
    _append("GITHUB_OUTPUT", f"{name}={' '.join(value.split())}\n")


def add_to_summary(text: str) -> None:
    """Add Markdown to the summary of the job."""
    _append("GITHUB_STEP_SUMMARY", text)


def annotate(level: str, text: str) -> None:
    """Show a sentence beside the job: ``notice``, ``warning`` or ``error``."""
    line = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::{level} title=opscope::{line}")


def _append(variable: str, text: str) -> None:
    with Path(os.environ[variable]).open("a", encoding="utf-8") as file:
        file.write(text)
