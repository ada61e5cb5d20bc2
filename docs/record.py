"""Records what the pages show: ``python docs/record.py`` runs the commands here and writes ``docs/recorded``.

It has pictures drawn from the reports, too, which needs Chromium. It takes five minutes, on a machine that does nothing
else; ``python docs/record.py tour`` or ``shift`` records one of the two runs. Then run ``python docs/build.py``, read
the pages again, and change what they say about the figures.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
from pathlib import Path

from pictures import draw

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "demo/mobilenet_v3_small_xnnpack_fp32.pte"
_PUBLISHED, _DELEGATED = (f"{name}/{name}_xnnpack_int8.pte" for name in ("style_transfer", "style_transfer_delegated"))
RUNS = {
    "tour": {
        "doctor": "opscope doctor",
        "features": "opscope doctor --features",
        "preflight": f"opscope preflight {PROGRAM}",
        "profile": f"opscope profile {PROGRAM} --out mb",
        "compare": "opscope compare mb#baseline mb#accelerated",
    },
    "shift": {
        "shift-export": "opscope export style_transfer --dtype int8 --out style_transfer",
        "shift-preflight": f"opscope preflight {_PUBLISHED}",
        "shift-profile": f"opscope profile {_PUBLISHED} --out shift",
        "shift-delegated": "opscope export style_transfer_delegated --dtype int8 --out style_transfer_delegated",
        "shift-check": f"opscope check {_DELEGATED} --against {_PUBLISHED} --out saved",
    },
}
"""Commands by the name of the recording, in the order in which they run, in a directory for each run."""
PICTURES = {"tour": ("mb", ("answer",)), "shift": ("shift", ("shift",))}
"""The bundle of each run whose report has pictures, and which."""
_PLACE = re.compile(r"(?<![\w.<])/(?:home|root|tmp|work|Users|var)/\S*")


def main() -> int:
    """Run the commands in directories of their own, and keep what they print."""
    recorded = ROOT / "docs" / "recorded"
    recorded.mkdir(exist_ok=True)
    for run in sys.argv[1:] or RUNS:
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            shutil.copytree(ROOT / "demo", place / "demo")
            for name, command in RUNS[run].items():
                (recorded / f"{name}.txt").write_text(f"$ {command}\n{_run(command, place)}", encoding="utf-8")
            bundle, pictures = PICTURES[run]
            draw(place / bundle / "report.html", pictures)
    return 0


def _run(command: str, place: Path) -> str:
    """What a command prints on a terminal of 100 columns."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "NO_COLOR": "1"}
    environment.pop("PYTHONPATH", None)
    print(command, file=sys.stderr)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    with subprocess.Popen(
        shlex.split(command, comments=False), cwd=place, env=environment, stdout=its, stderr=subprocess.PIPE
    ) as process:
        os.close(its)
        printed = b"".join(iter(lambda: _read(ours), b""))
        problems = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"`{command}` ended with {process.returncode}:\n{problems.decode(errors='replace')}")
    lines = printed.decode().replace("\r\n", "\n").splitlines()
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    _check(command, text)
    return text


def _check(what: str, text: str) -> None:
    """Refuse a path of this machine, which no page may show."""
    told = _PLACE.search(text)
    if told:
        raise SystemExit(f"{what} shows a path of this machine, which no page may: {told[0]}")


def _read(terminal: int) -> bytes:
    """The next bytes; none once the command has closed the terminal, which Linux tells by an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
