"""README.md as a package index shows it: links and pictures lead to this version's files at the project's address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(?P<picture>!?)(?P<text>\[[^\]]*\])\((?![a-z]+:|#|/)(?P<target>[^)\s]+)\)")


class Readme(MetadataHookInterface):
    """Fills in the long description; `Source` of `[project.urls]` is the address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field `readme`."""
        text = Path(self.root, "README.md").read_text("utf-8")
        address, release = metadata["urls"]["Source"].rstrip("/"), f"v{metadata['version']}"

        def absolute(match: re.Match[str]) -> str:
            view = "raw" if match["picture"] else "blob"
            return f"{match['picture']}{match['text']}({address}/{view}/{release}/{match['target']})"

        readme = _RELATIVE.sub(absolute, text)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
