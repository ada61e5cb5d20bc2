"""A reader of another package, installed by pip, that uses the import paths which CHANGELOG names for plug-ins."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
READER = dedent('''
    """Lines of milliseconds, one an inference."""

    from opscope.core.errors import TraceFormatError
    from opscope.core.table import Clock, EventTable, Scope
    from opscope.readers.registry import Reader


    class LinesReader(Reader):
        name = "lines"

        def sniff(self, head):
            return head.startswith(b"LINES")

        def read(self, data, path):
            try:
                durations = [int(float(line) * 1e6) for line in bytes(data[5:]).split()]
            except ValueError as error:
                raise TraceFormatError("not a number", where=path) from error
            count = len(durations)
            columns = {
                "run": [0] * count,
                "scope": [Scope.EXECUTE.value] * count,
                "name": ["Method::execute"] * count,
                "start": [sum(durations[:i]) for i in range(count)],
                "duration": durations,
                "parent": [-1] * count,
            }
            return EventTable.build(columns, Clock.NS)
''')


def wheel(directory: Path) -> Path:
    """The package as pip takes it."""
    path = directory / "opscope_lines-1.0-py3-none-any.whl"
    information = "opscope_lines-1.0.dist-info"
    files = {
        "opscope_lines.py": READER,
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: opscope-lines\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/entry_points.txt": "[opscope.readers]\nlines = opscope_lines:LinesReader\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{information}/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def test_an_installed_plug_in_reads_its_format(tmp_path: Path) -> None:
    """From the command line, in a process that knows nothing else of it."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", site, wheel(tmp_path)], check=True)
    trace = tmp_path / "trace.lines"
    trace.write_bytes(b"LINES\n1.5\n2.5\n")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "opscope", "analyze", trace, "--warmup", "0", "--json", "-"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["trace"]["format"], found["latency"]["samples_ns"]) == ("lines", [1_500_000, 2_500_000])


def test_the_import_paths_of_plug_ins_are_named() -> None:
    """Those that CHANGELOG names exist, and this plug-in needs no other."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(opscope\.(?:core|readers)[\w.]*)\.(\w+)`", changelog))
    used = {(m, n) for m, ns in re.findall(r"from (opscope[\w.]*) import ([\w, ]+)", READER) for n in ns.split(", ")}
    assert used <= named
    for module, name in named:
        assert hasattr(importlib.import_module(module), name)
