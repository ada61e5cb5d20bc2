"""What other packages add by entry points. A plug-in that fails is told of by its name, and ends nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import EntryPoint

_OURS = "opscope."
_INFORMATION = (".dist-info", ".egg-info")
_LONGEST = 200


class PlugIn(NamedTuple):
    """An entry point of another package."""

    package: str  # name of its distribution
    name: str  # of the entry point
    value: str  # module and attribute
    loaded: Any = None  # None where it cannot be loaded
    problem: str = ""  # why not; empty where it can

    @property
    def key(self) -> str:
        """Its name in results, which no name of ours can be: that of the package, a colon, and its own."""
        return f"{self.package}:{self.name}"

    @property
    def title(self) -> str:
        """Its name in sentences."""
        return f"the plug-in {self.key} ({self.value})"

    def failed(self, how: str, error: BaseException) -> str:
        """That it failed, as a sentence without a full stop."""
        text = " ".join(str(error).split())[:_LONGEST]
        return f"{self.title} {how}: {type(error).__name__}{f': {text}' if text else ''}"


def plug_ins(group: str) -> tuple[PlugIn, ...]:
    """The entry points of other packages in a group, by package and name.

    ``group``: such as ``opscope.rules``.
    """
    paths = tuple(sys.path)
    return _installed(group, paths) if group in _groups(paths) else ()


@lru_cache(maxsize=16)
def _installed(group: str, _paths: tuple[str, ...]) -> tuple[PlugIn, ...]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 50 ms, and most environments have no plug-in

    others = [point for point in entry_points(group=group) if not point.value.startswith(_OURS)]
    return tuple(sorted((_loaded(point) for point in others), key=lambda one: one.key))


def _loaded(point: EntryPoint) -> PlugIn:
    dist = getattr(point, "dist", None)
    package = dist.name if dist is not None else point.value.partition(":")[0].partition(".")[0]
    plug_in = PlugIn(package, point.name, point.value)
    try:
        return plug_in._replace(loaded=point.load())
    except Exception as error:  # noqa: BLE001 - loading runs code of any package
        return plug_in._replace(problem=plug_in.failed("cannot be loaded", error))


@lru_cache(maxsize=4)
def _groups(paths: tuple[str, ...]) -> frozenset[str]:
    """The groups of ours that installed packages name, by the files that installers leave."""
    return frozenset(group for path in paths for file in _files(path or ".") for group in _named(file))


def _files(directory: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        yield from (f"{one.path}/entry_points.txt" for one in entries if one.name.endswith(_INFORMATION))


def _named(file: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - analyses load no paths
        yield from (line.strip()[1:-1].strip() for line in lines if line.startswith(f"[{_OURS}"))
