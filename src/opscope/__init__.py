"""opscope: where the time of an on-device model goes, whether the accelerator is used, and what to do next.

The names here are those of ``opscope.api``; they are imported on first use, so ``import opscope`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opscope import api
from opscope.core.version import __version__

if TYPE_CHECKING:
    from opscope.api import *  # noqa: F403 - a checker finds them so, and nobody writes them down twice

__all__ = ["__version__"]
__all__ += api.__all__


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute may be anything
        if name not in __all__:
            raise AttributeError(f"module 'opscope' has no attribute {name!r}")
        return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
