"""Runs commands of opscope one after the other, and ends at once when one runs what is not installed.

``python audited.py COMMANDS.json INPUTS``: lists of words, and a directory. It prints the exit code of each.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

MARK = "opscope-trap"
_PROCESSES = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty", "os.startfile"}
_VIOLATION = 99
_PARSED = "<unknown>"
"""Name that ``ast.parse`` gives to code."""
_CHILD = "opscope.runtimes.executorch.runners.child"


class Watch:
    """What ends this process when an audit event tells of foreign code.

    Args:
        inputs: directory of which nothing may be loaded.
        allowed: directories of what is installed.
    """

    def __init__(self, inputs: str, allowed: tuple[str, ...]) -> None:
        self._inputs, self._allowed, self._command = inputs, allowed, "nothing yet"

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Hear an event."""
        if event == "opscope.command":
            self._command = str(arguments[0])
        elif event in self._CHECKS and self._CHECKS[event](self, arguments):
            os.write(2, f"{event} {arguments!r} while in {self._command}\n".encode(errors="backslashreplace"))
            os._exit(_VIOLATION)

    def _starts(self, arguments: tuple[object, ...]) -> bool:
        """Whether a process is foreign: `opscope preflight` alone asks the installed runtime what it has."""
        words = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list) else []
        asks = words[:1] == [sys.executable] and str(words[1]).endswith("core/system/interpreter.py")
        return not (asks and self._command.startswith("preflight ") and words[3:5] == [_CHILD, "probe"])

    def _executes(self, arguments: tuple[object, ...]) -> bool:
        name = getattr(arguments[0], "co_filename", None)
        return name == _PARSED or self._is_foreign(name)

    def _compiles(self, arguments: tuple[object, ...]) -> bool:
        parsed = arguments[1] == _PARSED  # for its docstring, by ast.parse: what comes of it cannot be executed unseen
        return self._is_foreign(arguments[1]) or (MARK in str(arguments[0]) and not parsed)

    def _opens(self, arguments: tuple[object, ...]) -> bool:
        """Whether a library is loaded by a path of the inputs; a name alone is looked for in the system's places."""
        return "/" in str(arguments[0]) and _place(arguments[0]).startswith(self._inputs)

    def _imports(self, arguments: tuple[object, ...]) -> bool:
        return bool(arguments[1]) and self._is_foreign(arguments[1])

    def _is_foreign(self, name: object) -> bool:
        place = _place(name)
        return bool(place) and not place.startswith(self._allowed)

    _CHECKS: ClassVar[dict[str, Callable[[Watch, tuple[object, ...]], bool]]] = {
        **dict.fromkeys(_PROCESSES, _starts),
        "pickle.find_class": lambda *_: True,
        "exec": _executes,
        "compile": _compiles,
        "ctypes.dlopen": _opens,
        "import": _imports,
    }


def _place(name: object) -> str:
    """Where a file stands; nothing for what has no place, such as code that a library makes as text."""
    text = os.fsdecode(name) if isinstance(name, str | bytes) else ""
    return "" if text.startswith("<") or not text else os.path.abspath(text)  # noqa: PTH100 - resolves no links


def main() -> None:
    """Run every command in the inputs' directory."""
    commands = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    inputs = str(Path(sys.argv[2]).resolve())
    sys.path.pop(0)  # of this file; a command that is installed has none of the kind
    os.chdir(inputs)
    import opscope

    roots = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(Path(opscope.__file__).parent)}
    roots |= {os.path.realpath(root) for root in roots}
    sys.addaudithook(Watch(inputs, tuple(roots)))
    from opscope.cli.main import app
    from opscope.core.errors import OpscopeError

    for words in commands:
        sys.audit("opscope.command", " ".join(words))
        code: object = 0
        try:
            app(words)
        except SystemExit as ended:
            code = ended.code or 0
        except OpscopeError as error:
            code = error.exit_code
        sys.stdout.write(f"\n@@{code} {json.dumps(words)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
