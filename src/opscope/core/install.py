"""How extras are added to this installation: from where it came, since no index may have opscope."""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit


@cache
def install_command(*extras: str) -> str:
    """The command that adds extras to the opscope that runs: from its checkout, wheel or repository, else an index.

    pip records where an installation came from (PEP 610) unless that was an index.
    """
    named = f"[{','.join(extras)}]"
    try:
        recorded = json.loads(distribution("opscope").read_text("direct_url.json") or "{}")
        url = recorded.get("url", "")
        if url.startswith("file:"):
            place = unquote(urlsplit(url).path)
            editable = recorded.get("dir_info", {}).get("editable", False)
            return f"pip install {'-e ' if editable else ''}{shlex.quote(place + named)}"
        if vcs := recorded.get("vcs_info"):
            source = f"opscope{named} @ {vcs['vcs']}+{url}"
            return f"pip install {shlex.quote(source)}"
    except (PackageNotFoundError, ValueError, AttributeError, KeyError, TypeError):
        pass
    return f"pip install 'opscope{named}'"
