"""Object storage on this machine: moto's S3, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request

_SCRIPT = """
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
print(server.server_port, flush=True)
server.serve_forever()
"""


class S3Server:
    """An S3 endpoint with one bucket, which answers one request after the other, so that puts are as atomic as S3's.

    Attributes:
        environment: how a process reaches it.
        address: URL of its bucket.
    """

    def __init__(self) -> None:
        words = [sys.executable, "-c", _SCRIPT]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        self.address = "s3://bucket"
        self._make_bucket()

    def _make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.endpoint}/bucket", method="PUT")  # noqa: S310 - our own server
        with urllib.request.urlopen(request):  # noqa: S310 - likewise
            pass

    def stop(self) -> None:
        """End it, with all it holds."""
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def environment(server: S3Server) -> dict[str, str]:
    """The environment of a command that uses it."""
    return {**os.environ, **server.environment}
