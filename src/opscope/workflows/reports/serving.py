"""Opening a trace in Perfetto's page: one file is served once, from this machine to its own browser.

The page is loaded from its address with a link to the file in it; its scripts then fetch the file from the loopback
interface, so that the trace does not leave the machine. Its content policy allows one port, which its own tool
(``tools/open_trace_in_ui``) uses, too. Others are refused: another path, another site (CORS), and a request by another
name of this machine, with which a foreign site could ask in place of the page.
"""

from __future__ import annotations

import time
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from opscope.core.errors import RunError
from opscope.core.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PERFETTO = "https://ui.perfetto.dev"
PORT = 9001
"""The only one that the page's content policy allows."""
_LOOPBACK = "127.0.0.1"
_SECONDS = 120.0
_POLL = 0.2


class OneFile(HTTPServer):
    """A server of one file for the scripts of one site.

    Args:
        path: of the file.
        site: whose scripts may read it, such as ``https://ui.perfetto.dev``.
        port: to listen at on the loopback interface; 0: any that is free.
    """

    allow_reuse_address = True
    timeout = _POLL

    def __init__(self, path: Path, site: str, port: int = PORT) -> None:
        with storage_errors(path):
            self.content = path.read_bytes()
        parts = urlsplit(site)
        self.site = f"{parts.scheme}://{parts.netloc}"
        self.place = f"/{quote(path.name)}"
        self.served = False
        super().__init__((_LOOPBACK, port), _Handler)
        self.host = f"{_LOOPBACK}:{self.server_address[1]}"

    @property
    def link(self) -> str:
        """The address to open: the page, told where the file is."""
        return f"{self.site}/#!/?url=http://{self.host}{self.place}"

    def wait(self, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> bool:
        """Serve until the file was read once; False when nobody did in time."""
        end = clock() + seconds
        while not self.served and clock() < end:
            self.handle_request()
        return self.served


class _Handler(BaseHTTPRequestHandler):
    """Answers the page, and refuses everybody else."""

    server: OneFile
    timeout = 30.0  # of a connection that says nothing

    def do_GET(self) -> None:
        """The file, to the page alone."""
        file, found = self.server, self.path.partition("?")[0]
        if self.headers.get("Host") != file.host or self.headers.get("Origin") != file.site:
            self._answer(HTTPStatus.FORBIDDEN)
        elif found != file.place:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, file.content)
            file.served = True

    def do_OPTIONS(self) -> None:
        """A browser asks whether a public page may reach this machine."""
        self._answer(HTTPStatus.NO_CONTENT)

    def _answer(self, status: HTTPStatus, content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {
            "Access-Control-Allow-Origin": self.server.site,
            "Access-Control-Allow-Private-Network": "true",
            "Cache-Control": "no-store",
            "Content-Length": str(len(content)),
            "Content-Type": "application/json",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library names it
        """Nothing is told of requests."""


def open_in_perfetto(path: Path, told: Callable[[str], None], browse: Callable[[str], bool] = webbrowser.open) -> None:
    """Open a trace in Perfetto's page, and return when the page has read it.

    ``path``: of a file in a format that Perfetto reads; ``told``: is given the address where no browser could be
    started; ``browse``: starts a browser at an address, and says whether it could.

    Raises RunError: the port is in use, or nobody read the file in two minutes; StorageError: the file cannot be read.
    """
    try:
        server = OneFile(path, PERFETTO)
    except OSError as error:
        hint = f"end what listens there, such as trace_processor, or drop the file on {PERFETTO}"
        raise RunError(f"port {PORT} of this machine is in use: {error}", where=path, hint=hint) from error
    with server:
        if not browse(server.link):
            told(server.link)
        if not server.wait():
            hint = f"allow the page to reach this machine, or drop the file on {PERFETTO}"
            raise RunError(f"no browser read the trace in {_SECONDS:.0f} s", where=path, hint=hint)
