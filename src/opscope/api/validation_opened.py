"""A bundle before anything in it is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.bundle.bundle import MANIFEST
from opscope.bundle.documents import Document, examined
from opscope.bundle.inventory import Inventory, inventory
from opscope.bundle.manifest import Manifest
from opscope.errors import BundleError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path


class Opened(NamedTuple):
    """A bundle before anything in it is believed.

    Attributes:
        found: what is on disk.
        document: the manifest as it stands there.
    """

    found: Inventory
    document: Document

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, None when it does not fit its schema."""
        typed = self.document.typed
        return typed if isinstance(typed, Manifest) else None


def opened_bundle(path: Path) -> Opened:
    """Look at what is on disk.

    Raises:
        NotFoundError: there is nothing.
        BundleError: it is no bundle.
    """
    if not path.exists():
        raise NotFoundError(
            "there is nothing there", where=path, hint="give the directory that `opscope profile` wrote"
        )
    if not (path / MANIFEST).exists():
        raise BundleError("not a bundle: there is no manifest.json in it", where=path, hint=_other_hint(path))
    found = inventory(path)
    fault = found.fault(MANIFEST)
    if fault:
        raise BundleError(f"its manifest.json {fault}", where=path, hint="give a bundle that is whole")
    return Opened(found, examined(found.content(MANIFEST), Manifest))


def _other_hint(path: Path) -> str:
    """What to give instead."""
    from opscope.api.sides import is_kit

    if is_kit(path):
        return "it is a run of the Arm kit, which states no hashes and no plan: `opscope analyze` reads it"
    inner = sorted(own.parent.name for own in path.glob(f"*/{MANIFEST}"))[:3] if path.is_dir() else []
    return f"validate the bundles in it, one by one: {', '.join(inner)}" if inner else "give the directory of a bundle"
