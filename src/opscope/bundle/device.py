"""How a machine is called where no name was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opscope.bundle.manifest import Manifest


def device_text(manifest: Manifest) -> str:
    """Name of a bundle's machine: CPU, system, architecture, and the address where the target has one."""
    environment = manifest.environment
    place = " ".join(filter(None, (environment.system, environment.machine)))
    name = ", ".join(filter(None, (environment.cpu or "unknown CPU", place)))
    return f"{name} ({manifest.target.address})" if manifest.target.address else name
