"""GitHub's REST API on this machine: comments of issues and artifacts, with pages, and tokens that may not write."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BOT = {"login": "github-actions[bot]", "type": "Bot"}
REFUSED = {"message": "Resource not accessible by integration"}
_COMMENTS = re.compile(r"/repos/team/net/issues/(\d+)/comments")
_COMMENT = re.compile(r"/repos/team/net/issues/comments/(\d+)")


class GithubServer:
    """A server with one repository, ``team/net``.

    Attributes:
        comments: those of all issues, with ``issue`` beside what the API gives.
        artifacts: of the repository.
        user: who the token belongs to; None for the token of a job.
        may_write: whether the token may write comments.
        may_list: whether it may list artifacts.
        broken: every request ends with status 500.
        requests: method and path of every request.
    """

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.user: dict[str, str] | None = None
        self.may_write = self.may_list = True
        self.broken = False
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(self._body())

            def do_PATCH(self) -> None:
                self._answer(self._body())

            def _body(self) -> dict[str, str]:
                found: dict[str, str] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                return found

            def _answer(self, body: dict[str, str] | None) -> None:
                outer.requests.append(f"{self.command} {self.path}")
                known = self.headers["Authorization"] == "Bearer token"
                code, value = outer.answer(self.command, self.path, body) if known else (401, {"message": "Bad token"})
                content = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add_comment(self, issue: int, body: str, user: dict[str, str] | None) -> dict[str, Any]:
        """A comment as if somebody had written it."""
        number = len(self.comments) + 1
        url = f"{self.address}/team/net/pull/{issue}#issuecomment-{number}"
        self.comments.append({"id": number, "issue": issue, "body": body, "user": user, "html_url": url})
        return self.comments[-1]

    def answer(self, method: str, address: str, body: dict[str, str] | None) -> tuple[int, object]:
        """Status and content."""
        place = urlsplit(address)
        asked = {name: words[0] for name, words in parse_qs(place.query).items()}
        if self.broken:
            return 500, {"message": "Server Error"}
        if (method, place.path) == ("GET", "/user"):
            return (200, self.user) if self.user else (403, REFUSED)
        if (method, place.path) == ("GET", "/repos/team/net/actions/artifacts"):
            found = [one for one in self.artifacts if one["name"] == asked["name"]]
            page = {"total_count": len(found), "artifacts": _page(found, asked)}
            return (200, page) if self.may_list else (403, REFUSED)
        if match := _COMMENTS.fullmatch(place.path):
            return self._comments(method, int(match[1]), asked, body)
        if (match := _COMMENT.fullmatch(place.path)) and body is not None:
            return self._update(int(match[1]), body)
        return 404, {"message": "Not Found"}

    def _update(self, number: int, body: dict[str, str]) -> tuple[int, object]:
        if not self.may_write:
            return 403, REFUSED
        comment = next(one for one in self.comments if one["id"] == number)
        comment["body"] = body["body"]
        return 200, comment

    def _comments(
        self, method: str, issue: int, asked: dict[str, str], body: dict[str, str] | None
    ) -> tuple[int, object]:
        if method == "GET":
            return 200, _page([one for one in self.comments if one["issue"] == issue], asked)
        assert body is not None
        if not self.may_write:
            return 403, REFUSED
        if len(body["body"]) > 65_536:
            return 422, {"message": "Validation Failed"}
        return 201, self.add_comment(issue, body["body"], self.user or BOT)


def _page(entries: list[dict[str, Any]], asked: dict[str, str]) -> list[dict[str, Any]]:
    size, number = int(asked.get("per_page", "30")), int(asked.get("page", "1"))
    return entries[(number - 1) * size : number * size]
