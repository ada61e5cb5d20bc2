"""A check of pull requests for a repository on GitHub: the workflow, and the action that it uses, copied beside it.

The repository then depends on no other one, and nothing in the workflow is left to be filled in. The action installs
the opscope that wrote it: from a wheel beside it where no index and no repository has that.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from opscope.core.errors import MissingDependencyError, UsageError, did_you_mean
from opscope.core.files import storage_errors
from opscope.core.version import __version__

ACTION, WORKFLOW = ".github/opscope", ".github/workflows/speed.yml"
BASELINES = ("branch", "artifact", "cache", "store")
"""Where the check finds what it compares with."""
_SOURCE = "source.txt"


class WrittenWorkflow(NamedTuple):
    """What was written into a repository."""

    workflow: Path
    action: Path  # its directory


def write_github(baseline: str = "branch", root: str | Path = ".") -> WrittenWorkflow:
    """Write the workflow and the action that it uses.

    Args:
        baseline: one of ``BASELINES``.
        root: of the repository.

    Raises:
        UsageError: there is no such baseline, the root is no repository, or it has such files.
        MissingDependencyError: the wheel of a checkout could not be built.
        StorageError: the files cannot be written.
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
    with storage_errors(action):
        action.mkdir(parents=True)
        try:
            _copy_action(action)
            workflow.parent.mkdir(exist_ok=True)
            shutil.copyfile(_shipped() / "examples" / "github-actions" / f"speed-{baseline}.yml", workflow)
        except BaseException:
            shutil.rmtree(action)
            raise
    return WrittenWorkflow(workflow, action)


def _shipped() -> Path:
    """Where the action is: in the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "github"
    return installed if installed.is_dir() else package.parents[1]


def _copy_action(action: Path) -> None:
    shutil.copyfile(_shipped() / "action.yml", action / "action.yml")
    (action / "action").mkdir()
    for script in sorted((_shipped() / "action").glob("*.py")):
        shutil.copyfile(script, action / "action" / script.name)
    (action / _SOURCE).write_text(f"{_source(action)}\n", encoding="utf-8")


def _source(action: Path) -> str:
    """What pip is to install, with ``{extras}`` for the extras; a wheel is put beside the action."""
    try:
        origin = json.loads(distribution("opscope").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"opscope{{extras}} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"
    if not url.startswith("file:"):
        return f"opscope{{extras}}=={__version__}"
    place = Path(unquote(urlsplit(url).path))
    if place.suffix == ".whl" and place.is_file():
        shutil.copyfile(place, action / place.name)
    else:
        _build(place, action)
    (wheel,) = action.glob("*.whl")
    return f"{wheel.name}{{extras}}"


def _build(checkout: Path, action: Path) -> None:
    """Build the wheel of a checkout."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(action), str(checkout)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no output"])[-1]
        hint = "opscope came from a checkout: `make dist` there writes a wheel; install that, and try again"
        raise MissingDependencyError(f"the wheel of opscope could not be built: {told}", where=checkout, hint=hint)
