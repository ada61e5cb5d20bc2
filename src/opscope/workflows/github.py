"""A check of pull requests for a repository on GitHub: the workflow, and the action that it uses, copied beside it.

The repository then depends on no other one, and nothing in the workflow is left to be filled in. The action installs
the opscope that wrote it: from a wheel beside it where no index and no repository has that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from opscope.core.errors import MissingDependencyError, UsageError, did_you_mean
from opscope.core.version import __version__
from opscope.core.writing import write_new

ACTION, WORKFLOW = ".github/opscope", ".github/workflows/speed.yml"
BASELINES = ("branch", "artifact", "cache", "store")
"""Where the check finds what it compares with."""
_SOURCE = "source.txt"


def write_github(baseline: str = "branch", root: str | Path = ".") -> tuple[Path, Path]:
    """Write the workflow and the directory of the action that it uses; returns both.

    ``baseline``: one of ``BASELINES``; ``root``: of the repository.

    Raises UsageError: there is no such baseline, the root is no repository, or it has such files;
    MissingDependencyError: the wheel of a checkout could not be built; StorageError: the files cannot be written.
    """
    if baseline not in BASELINES:
        raise UsageError(f"unknown baseline {baseline!r}", where="--github", hint=did_you_mean(baseline, BASELINES))
    place = Path(root)
    workflow, action = place / WORKFLOW, place / ACTION
    if not (place / ".git").exists():
        raise UsageError("not the top of a git repository", where=place, hint="change to it first")
    for path in (workflow, action):
        if path.exists():
            raise UsageError("it exists", where=path, hint="remove it first; it is in the repository's history")
    example = _action_root() / "examples" / "github-actions" / f"speed-{baseline}.yml"
    files = {action / name: content for name, content in _read_action().items()} | {workflow: example.read_bytes()}
    for path, content in files.items():  # the workflow last: without its action it would fail
        write_new(path, content)
    return workflow, action


def _action_root() -> Path:
    """Return the directory of the action: in the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "github"
    return installed if installed.is_dir() else package.parents[1]


def _read_action() -> dict[str, bytes]:
    """Return the files of the action, by their names in its directory."""
    path = _action_root()
    files = {f"action/{script.name}": script.read_bytes() for script in sorted((path / "action").glob("*.py"))}
    source, wheel = _find_installable()
    return files | wheel | {_SOURCE: f"{source}\n".encode(), "action.yml": (path / "action.yml").read_bytes()}


def _find_installable() -> tuple[str, dict[str, bytes]]:
    """Return what pip is to install, ``{extras}`` for the extras, and the wheel if there is no other way."""
    try:
        origin = json.loads(distribution("opscope").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"opscope{{extras}} @ {vcs['vcs']}+{url}@{vcs['commit_id']}", {}
    if not url.startswith("file:"):
        return f"opscope{{extras}}=={__version__}", {}
    local_path = Path(unquote(urlsplit(url).path))
    with tempfile.TemporaryDirectory() as work:
        wheel = (
            local_path if local_path.suffix == ".whl" and local_path.is_file() else _build_wheel(local_path, Path(work))
        )
        return f"{wheel.name}{{extras}}", {wheel.name: wheel.read_bytes()}


def _build_wheel(checkout: Path, work: Path) -> Path:
    """Build the wheel of a checkout."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(work), str(checkout)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode:
        text = (process.stderr.strip().splitlines() or ["no output"])[-1]
        hint = "`make dist` in this checkout writes a wheel: install it, and try again"
        raise MissingDependencyError(f"the wheel could not be built: {text}", where=checkout, hint=hint)
    (wheel,) = work.glob("*.whl")
    return wheel
