"""Runs commands of opscope on documents of a stranger, and ends at once when one goes beyond what the user named.

``python watched.py COMMANDS.json NAMED...``: lists of words, then the directories and files that the user named. A list
that begins with ``mcp-profile`` is a call of the assistants' tool, with its arguments as JSON. Prints the exit code of
each command, then how many events of each kind the audit hook saw.

Allowed are: opening what lies below a named path, the cache, the temporary directory, the installation and the system's
own places; and starting an installed program. Sockets are never allowed.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

VIOLATION = 99
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/bin", "/run")
_STARTS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}
_SOCKETS = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}


class Watch:
    """An audit hook that counts events, and ends this process when one is not allowed.

    Args:
        named: what the user named, and what lies below.
        places: of the installation and the system.
    """

    def __init__(self, named: tuple[str, ...], places: tuple[str, ...]) -> None:
        self.counts: Counter[str] = Counter()
        self._named, self._places, self._command = named, places, "nothing yet"

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Judge an event."""
        if event == "opscope.command":
            self._command = str(arguments[0])
        elif event == "open" and isinstance(arguments[0], str | bytes):
            self._judge(event, arguments[0], self._is_allowed(arguments[0]))
        elif event in _STARTS:
            program = arguments[0] if event != "subprocess.Popen" else _first_word(arguments)
            self._judge(event, program, self._is_program(program))
        elif event in _SOCKETS:
            self._judge(event, arguments, False)  # noqa: FBT003 - never allowed
        elif event == "ctypes.dlopen" and isinstance(arguments[0], str) and "/" in arguments[0]:
            self._judge(event, arguments[0], self._is_program(arguments[0]))

    def _judge(self, event: str, what: object, is_allowed: bool) -> None:
        self.counts[event] += 1
        if not is_allowed:
            os.write(2, f"{event} {what!r} while in {self._command}\n".encode(errors="backslashreplace"))
            os._exit(VIOLATION)

    def _is_allowed(self, path: str | bytes) -> bool:
        try:
            place = os.path.realpath(os.fsdecode(path))
        except ValueError:  # a null byte: nothing is opened
            return True
        return place.startswith((*self._named, *self._places))

    def _is_program(self, program: object) -> bool:
        """Whether a program is an installed one: nothing that lies in a stranger's directory."""
        text = os.fsdecode(program) if isinstance(program, str | bytes) else str(program)
        return "/" not in text or os.path.realpath(text).startswith(self._places)


def _first_word(arguments: tuple[object, ...]) -> object:
    """Return the program of ``subprocess.Popen``: its executable, else the first of its words."""
    words = arguments[1]
    return words[0] if isinstance(words, list | tuple) and words else arguments[0]


def call_profile(text: str) -> None:
    """Call the assistants' tool ``profile`` as the server does, in the current directory."""
    import msgspec

    from opscope.assistants.roots import Roots
    from opscope.assistants.tools import Desk, ProfileProgram, profile
    from opscope.core.system.stop import StopRequest

    desk = Desk(Roots([Path()]), True, StopRequest(), lambda _line: None)  # noqa: FBT003 - as with --allow-run
    profile(msgspec.json.decode(text.encode(), type=ProfileProgram), desk)


def main() -> None:
    """Run every command in the current directory."""
    commands = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    named = tuple(os.path.realpath(path) for path in sys.argv[2:])
    import opscope

    places = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(Path(opscope.__file__).parents[1])}
    places |= {os.environ["OPSCOPE_CACHE"], tempfile.gettempdir(), *_SYSTEM}
    from opscope.cli.main import app
    from opscope.core.errors import OpscopeError

    watch = Watch(named, tuple(os.path.realpath(place) for place in places))
    sys.addaudithook(watch)
    for words in commands:
        sys.audit("opscope.command", " ".join(words))
        code: object = 0
        try:
            if words[0] == "mcp-profile":
                call_profile(words[1])
            else:
                app(words)
        except SystemExit as ended:
            code = ended.code or 0
        except OpscopeError as error:
            code = error.exit_code
        except Exception as error:  # noqa: BLE001 - a bug is told by its code, and the others go on
            # As the command itself does, what the system refused is no bug.
            code = 9 if isinstance(error, OSError) else 70
            os.write(2, f"{error!r} while in {words}\n".encode(errors="backslashreplace"))
        sys.stdout.write(f"\n@@{code} {json.dumps(words)}\n")
    sys.stdout.write(f"\n@@events {json.dumps(watch.counts)}\n")


if __name__ == "__main__":
    main()
