"""Records what the pages show: ``python docs/record.py`` runs the commands here and writes ``docs/recorded``.

It takes two minutes, on a machine that does nothing else; then run ``python docs/build.py``, read the pages again, and
change what they say about the figures.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "demo/mobilenet_v3_small_xnnpack_fp32.pte"
COMMANDS = {
    "doctor": "opscope doctor",
    "features": "opscope doctor --features",
    "preflight": f"opscope preflight {PROGRAM}",
    "profile": f"opscope profile {PROGRAM} --out mb",
    "compare": "opscope compare mb#baseline mb#accelerated",
}
"""By the name of the recording, in the order in which they run."""
_PLACE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var)/\S*")


def main() -> int:
    """Run the commands in a directory of their own, and keep what they print."""
    recorded = ROOT / "docs" / "recorded"
    recorded.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        shutil.copytree(ROOT / "demo", place / "demo")
        for name, command in COMMANDS.items():
            (recorded / f"{name}.txt").write_text(f"$ {command}\n{_run(command, place)}", encoding="utf-8")
        shutil.copyfile(place / "mb" / "report.html", ROOT / "docs" / "recorded" / "report.html")
    return 0


def _run(command: str, place: Path) -> str:
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "110"}
    print(command, file=sys.stderr)
    words = shlex.split(command, comments=False)
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=True)
    text = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    told = _PLACE.search(text)
    if told:
        raise SystemExit(f"`{command}` prints a path of this machine, which no page may show: {told[0]}")
    return text


if __name__ == "__main__":
    sys.exit(main())
