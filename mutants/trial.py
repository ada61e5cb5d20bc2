"""A copy of the repository in which a mutant is tried: the checkout is never changed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SOURCES = "src/opscope"
_MOST_SECONDS = 1200
"""Until a process that waits for something counts as one that hangs."""
_PASSED = {0, 5}
"""Exit codes of pytest: all passed, or there was none to run."""
# Read by every process of a trial before anything else: the installed torch is not there, and CPU time has a limit.
_SITE = """
import os, resource, site, sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        installed = found and (found.origin or "").startswith(tuple(site.getsitepackages()))
        return None if name == "torch" and installed else found

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
limit = int(os.environ["MUTANTS_CPU_SECONDS"])
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
"""


class Copy:
    """The files of the checkout that are not ignored, beneath a directory of their own.

    Args:
        place: an empty directory.
    """

    def __init__(self, place: Path) -> None:
        self._place, self.root = place, place / "opscope"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        for name in ("site", "cache", "scratch"):
            (place / name).mkdir()
        (place / "site/sitecustomize.py").write_text(_SITE, "utf-8")

    @contextmanager
    def changed(self, module: str, source: str) -> Iterator[None]:
        """Have another text in the place of a module."""
        file = self.root / module
        kept, times = file.read_bytes(), file.stat()
        shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)
        file.write_text(source, "utf-8")
        try:
            yield
        finally:
            file.write_bytes(kept)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)

    def failure(self, module: str, cpu_seconds: int) -> str | None:
        """The first test of a module's room that fails, those that name the module first; None where all pass."""
        for files in nearest_first(self.root, module):
            found = self._failure_of(files, cpu_seconds) if files else None
            if found:
                return found
        return None

    def _failure_of(self, files: list[Path], cpu_seconds: int) -> str | None:
        options = ["-q", "-x", "-m", "not runtime and not nightly", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfE"]
        command = [sys.executable, "-m", "pytest", *options, "--tb=line", f"--basetemp={self._place}/scratch/pytest"]
        environment = os.environ | {
            "PYTHONPATH": f"{self._place}/site:{self.root}/src",
            "MUTANTS_CPU_SECONDS": str(cpu_seconds),
            "XDG_CACHE_HOME": f"{self._place}/cache",
            "TMPDIR": f"{self._place}/scratch",
        }
        code, told = _ended([*command, *map(str, files)], self.root, environment)
        if code in _PASSED:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", told, re.MULTILINE)
        return failed[1] if failed else f"pytest ended with {code}: {told[-200:]!r}"


def _ended(command: list[str], place: Path, environment: dict[str, str]) -> tuple[int, str]:
    """The exit code and the output of a process, which takes all that it started with it."""
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            told, _ = process.communicate()
        return process.returncode, told


def nearest_first(root: Path, module: str) -> tuple[list[Path], list[Path]]:
    """The files of tests of a module's room: those whose text names the module, and the others."""
    parts = Path(module).with_suffix("").parts[1:]
    name = rf"\b{re.escape('.'.join(parts))}\b|\b{re.escape('.'.join(parts[:-1]))} import .*\b{re.escape(parts[-1])}\b"
    files = sorted((root / "tests" / parts[1]).rglob("test_*.py"))
    near = [file for file in files if re.search(name, file.read_text("utf-8"))]
    return near, [file for file in files if file not in near]


@contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    """So many copies, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="opscope-mutants-", ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o755)  # tests read it as other users
        made = []
        for number in range(count):
            (Path(place) / str(number)).mkdir()
            made.append(Copy(Path(place) / str(number)))
        yield made
