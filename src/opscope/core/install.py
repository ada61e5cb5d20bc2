"""How extras are added to this installation: from where it came, since no index may have opscope."""

from __future__ import annotations

import json
import shlex
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


@cache
def install_command(*extras: str) -> str:
    """The command that adds extras to the opscope that runs, by what made its environment: pip, uv or pipx.

    A run that uv or pipx made an environment for is given again, with the extras: nothing can be added to that one.
    """
    words, environment = _place(f"[{','.join(extras)}]"), Path(sys.prefix)
    asked = shlex.join(words)
    again = f"{shlex.quote(words[-1])} {shlex.join([_NAME, *sys.argv[1:]])}"
    if environment.parent.name.startswith(_OF_UVX):
        return f"uvx --from {again}"
    if (environment / "pipx_metadata.json").exists():
        # Environments of `pipx install` have the name of their package, those of `pipx run` have a hash.
        return f"pipx install --force {asked}" if environment.name == _NAME else f"pipx run --spec {again}"
    if (environment / "uv-receipt.toml").exists():
        return f"uv tool install {asked}"
    return f"{_pip(environment)} install {asked}"


_NAME = "opscope"
_OF_UVX = "archive-v"


def _pip(environment: Path) -> str:
    """Environments of uv have no pip; the one on PATH would be another's."""
    settings = environment / "pyvenv.cfg"
    made_by_uv = settings.is_file() and "\nuv = " in settings.read_text("utf-8")
    return "uv pip" if made_by_uv and not list(environment.glob("lib/python*/site-packages/pip")) else "pip"


def _place(extras: str) -> list[str]:
    """What is to be installed: the checkout, wheel or repository with the extras, else the name for an index.

    pip and uv record where an installation came from (PEP 610) unless that was an index.
    """
    try:
        recorded = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
        url = recorded.get("url", "")
        if url.startswith("file:"):
            place = unquote(urlsplit(url).path) + extras
            return ["-e", place] if recorded.get("dir_info", {}).get("editable", False) else [place]
        if vcs := recorded.get("vcs_info"):
            return [f"{_NAME}{extras} @ {vcs['vcs']}+{url}"]
    except (PackageNotFoundError, ValueError, AttributeError, KeyError, TypeError):
        pass
    return [f"{_NAME}{extras}"]
