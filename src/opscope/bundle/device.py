"""How the machine of a bundle is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opscope.bundle.manifest import Manifest


def device_text(manifest: Manifest) -> str:
    """Name of a bundle's machine: the one that it was given, else its CPU, system, architecture, and its address."""
    if manifest.device:
        return manifest.device
    environment = manifest.environment
    place = " ".join(filter(None, (environment.system, environment.machine)))
    name = ", ".join(filter(None, (environment.cpu or "unknown CPU", place)))
    return f"{name} ({manifest.target.address})" if manifest.target.address else name
