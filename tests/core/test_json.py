"""JSON of typed values: what threads may do at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "opscope"
CHILDREN = {
    "runtimes/executorch/export/child.py",
    "runtimes/child.py",
}
"""Processes of one thread."""
AT_ONCE = """
import sys, threading
sys.setswitchinterval(1e-6)
from opscope.analysis.analysis import Analysis
from opscope.bundle.manifest import Manifest
from opscope.core.json import from_json
import msgspec
begin = threading.Barrier(4)
def read():
    begin.wait()
    for kind in (Manifest, Analysis):
        try:
            from_json(b"{}", kind)
        except msgspec.ValidationError:
            pass
threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_may_read_a_type_for_the_first_time_at_once() -> None:
    """By msgspec alone, one process in five ends by a segmentation fault."""
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", AT_ONCE], check=False).returncode == 0


def test_all_typed_json_is_read_so() -> None:
    """Workers of Dask read bundles in threads; only processes of one thread may do without."""
    typed = re.compile(r"json\.decode\([^\n]*type=")
    found = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if typed.search(path.read_text("utf-8"))
    }
    assert found <= CHILDREN
