"""The device's side of adb over TCP, as small as the real client allows: connect, shell, sync.

The messages are those of adb's ``protocol.txt``, ``shell_protocol.h`` and ``SYNC.TXT``: a header of six little-endian
words, then the payload. Each stream has at most one unacknowledged WRTE. When a connection ends, a command gets SIGHUP
and its input and outputs are closed, as Android's ``shell_service.cpp`` does it. What a command does and where files
lie is the phone's, see ``adb_phone``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import struct
import threading
from typing import IO, TYPE_CHECKING

from adb_phone import close_pipes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from adb_phone import Phone

_HEADER = struct.Struct("<6I")
_VERSION, _PAYLOAD = 0x01000001, 256 << 10
_CHUNK = 32 << 10
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)
_TOKEN = 1


def _word(name: str) -> int:
    return int.from_bytes(name.encode(), "little")


class UnpluggedError(Exception):
    """The cable is out."""


class Endpoint:
    """A device that ``adb connect 127.0.0.1:PORT`` reaches.

    Args:
        phone: whose files and commands it serves.
        features: of the device; without ``shell_v2`` a shell tells no exit code and mixes its outputs.
        state: ``device``, ``unauthorized`` for one whose owner has not allowed this computer, or ``silent`` for one
            whose adb daemon hangs.
    """

    def __init__(self, phone: Phone, features: str = "shell_v2,cmd", state: str = "device") -> None:
        self.phone, self.features, self.state = phone, features, state
        self.unplug_at: Callable[[str], bool] = lambda _: False
        self._links: list[_Link] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.plug()

    @property
    def address(self) -> str:
        """What the user names it by."""
        return f"127.0.0.1:{self.port}"

    def plug(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def unplug(self) -> None:
        """Break every connection and refuse new ones; what runs on the phone runs on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in self._links:
            link.close()
        self._links.clear()

    def reboot(self) -> None:
        """End all that runs, break every connection, and come back as a phone that was restarted.

        In this order: what runs on the phone must not have the time to notice that the connection is gone.
        """
        self.phone.end_all()
        self.unplug()
        self.phone.restart()
        self.plug()

    def close(self) -> None:
        """End it, with all that runs on the phone."""
        self.unplug()
        self.phone.end_all()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link = _Link(self, connection)
                self._links.append(link)
                threading.Thread(target=link.serve, daemon=True).start()


class _Link:
    """One connection of an adb server."""

    def __init__(self, endpoint: Endpoint, connection: socket.socket) -> None:
        self.endpoint, self._socket = endpoint, connection
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._next = 1

    def serve(self) -> None:
        """Take messages until the connection ends."""
        with contextlib.suppress(OSError, UnpluggedError):
            while True:
                command, first, second, size, _, _ = _HEADER.unpack(self._exactly(_HEADER.size))
                self._take(command, first, second, self._exactly(size))
        self.close()

    def close(self) -> None:
        """Break it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for stream in list(self._streams.values()):
            stream.end()

    def send(self, command: str, first: int, second: int, payload: bytes = b"") -> None:
        """One message."""
        word = _word(command)
        header = _HEADER.pack(word, first, second, len(payload), sum(payload) & 0xFFFFFFFF, word ^ 0xFFFFFFFF)
        with self._lock:
            try:
                self._socket.sendall(header + payload)
            except OSError as error:
                raise UnpluggedError from error

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(count)
            if not part:
                raise UnpluggedError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _take(self, command: int, first: int, second: int, payload: bytes) -> None:
        if command in {_word("CNXN"), _word("AUTH")}:
            self._greet()
        elif command == _word("OPEN"):
            self._open(first, payload.rstrip(b"\0").decode())
        elif second in self._streams:
            stream = self._streams[second]
            if command == _word("WRTE"):
                stream.incoming.put(payload)
                self.send("OKAY", second, first)
            elif command == _word("OKAY"):
                stream.acknowledged.release()
            elif command == _word("CLSE"):
                stream.end()

    def _greet(self) -> None:
        if self.endpoint.state == "silent":
            return
        if self.endpoint.state == "unauthorized":
            self.send("AUTH", _TOKEN, 0, os.urandom(20))
            return
        banner = f"device::{self.endpoint.phone.banner}features={self.endpoint.features}"
        self.send("CNXN", _VERSION, _PAYLOAD, banner.encode())

    def _open(self, theirs: int, service: str) -> None:
        number, self._next = self._next, self._next + 1
        stream = _Stream(self, number, theirs)
        self._streams[number] = stream
        self.send("OKAY", number, theirs)
        threading.Thread(target=stream.serve, args=(service,), daemon=True).start()


class _Stream:
    """One service that the client opened."""

    def __init__(self, link: _Link, number: int, theirs: int) -> None:
        self._link, self._number, self._theirs = link, number, theirs
        self.incoming: queue.Queue[bytes] = queue.Queue()
        self.acknowledged = threading.Semaphore(1)
        self._buffer = b""
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, service: str) -> None:
        """Do what was asked, then close."""
        name, _, rest = service.partition(":")
        with contextlib.suppress(UnpluggedError, OSError):
            if name == "sync":
                _Sync(self, self._link.endpoint.phone).serve()
            elif name.split(",")[0] in {"shell", "exec"}:
                self._run(rest, framed="v2" in name.split(","))
            self._link.send("CLSE", self._number, self._theirs)

    def end(self) -> None:
        """Let whoever waits find that it is over; a command is told by SIGHUP, and its pipes are closed."""
        self._ended = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)
            close_pipes(self._process)
        self.incoming.put(b"")
        self.acknowledged.release()

    def write(self, payload: bytes) -> None:
        """Send, when the last message was acknowledged."""
        for start in range(0, len(payload), _CHUNK):
            self.acknowledged.acquire()
            if self._ended:
                raise UnpluggedError
            self._link.send("WRTE", self._number, self._theirs, payload[start : start + _CHUNK])

    def read(self, count: int) -> bytes:
        """Exactly so many bytes from the client."""
        while len(self._buffer) < count:
            part = self.incoming.get()
            if not part:
                raise UnpluggedError
            self._buffer += part
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _run(self, command: str, *, framed: bool) -> None:
        endpoint = self._link.endpoint
        process = self._process = endpoint.phone.start(command, merged=not framed)
        sides = [(_STDOUT, process.stdout), (_STDERR, process.stderr)]
        pumps = [threading.Thread(target=self._pump, args=(k, pipe, framed), daemon=True) for k, pipe in sides if pipe]
        threading.Thread(target=self._feed, args=(process, framed), daemon=True).start()
        for pump in pumps:
            pump.start()
        if endpoint.unplug_at(command):
            endpoint.unplug()
            raise UnpluggedError
        code = process.wait()
        for pump in pumps:
            pump.join()
        if framed:
            self.write(struct.pack("<BIB", _EXIT, 1, code if code >= 0 else 128 - code))

    def _feed(self, process: subprocess.Popen[bytes], framed: bool) -> None:
        with contextlib.suppress(UnpluggedError, OSError, ValueError):
            while True:
                if not framed:
                    kind, part = _STDIN, self.incoming.get()
                else:
                    kind, size = struct.unpack("<BI", self.read(5))
                    part = self.read(size)
                if kind == _CLOSE_STDIN or not (framed or part):
                    process.stdin.close()
                elif kind == _STDIN:
                    os.write(process.stdin.fileno(), part)

    def _pump(self, kind: int, pipe: IO[bytes], framed: bool) -> None:
        with contextlib.suppress(UnpluggedError, OSError, ValueError):
            while part := os.read(pipe.fileno(), 4096):
                shown = self._link.endpoint.phone.hidden(part)
                self.write(struct.pack("<BI", kind, len(shown)) + shown if framed else shown)


class _Sync:
    """The file service."""

    def __init__(self, stream: _Stream, phone: Phone) -> None:
        self._stream, self._phone = stream, phone

    def serve(self) -> None:
        """Take requests until the client quits."""
        while True:
            name, size = struct.unpack("<4sI", self._stream.read(8))
            if name == b"QUIT":
                return
            path = self._stream.read(size).decode()
            {b"STAT": self._stat, b"LIST": self._list, b"SEND": self._send, b"RECV": self._receive}[name](path)

    def _stat(self, path: str) -> None:
        try:
            found = self._phone.real(path).stat()
            told = (found.st_mode, min(found.st_size, 0xFFFFFFFF), int(found.st_mtime))
        except OSError:
            told = (0, 0, 0)
        self._stream.write(struct.pack("<4s3I", b"STAT", *told))

    def _list(self, path: str) -> None:
        directory = self._phone.real(path)
        for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
            found, name = entry.lstat(), entry.name.encode()
            head = struct.pack("<4s4I", b"DENT", found.st_mode, found.st_size, int(found.st_mtime), len(name))
            self._stream.write(head + name)
        self._stream.write(struct.pack("<4s4I", b"DONE", 0, 0, 0, 0))

    def _send(self, request: str) -> None:
        path, _, mode = request.rpartition(",")
        parts = []
        while True:
            name, size = struct.unpack("<4sI", self._stream.read(8))
            if name == b"DONE":
                break
            parts.append(self._stream.read(size))
        try:
            self._phone.write(path, b"".join(parts), int(mode) & 0o777)
        except OSError as error:
            self._fail(error)
        else:
            self._stream.write(struct.pack("<4sI", b"OKAY", 0))

    def _receive(self, path: str) -> None:
        try:
            content = self._phone.real(path).read_bytes()
        except OSError as error:
            self._fail(error)
            return
        for start in range(0, len(content), _CHUNK):
            part = content[start : start + _CHUNK]
            self._stream.write(struct.pack("<4sI", b"DATA", len(part)) + part)
        self._stream.write(struct.pack("<4sI", b"DONE", 0))

    def _fail(self, error: OSError) -> None:
        words = (error.strerror or str(error)).encode()
        self._stream.write(struct.pack("<4sI", b"FAIL", len(words)) + words)
