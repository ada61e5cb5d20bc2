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
        """Return its name in results, package and name with a colon between; no name of opscope's has one."""
        return f"{self.package}:{self.name}"

    @property
    def title(self) -> str:
        """Return its name in sentences."""
        return f"the plug-in {self.key} ({self.value})"

    def failed(self, how: str, error: BaseException) -> str:
        """Return that it failed, as a sentence without a full stop."""
        text = " ".join(str(error).split())[:_LONGEST]
        return f"{self.title} {how}: {type(error).__name__}{f': {text}' if text else ''}"


def plug_ins(group: str) -> tuple[PlugIn, ...]:
    """Return the entry points of other packages in a group such as ``opscope.rules``, by package and name."""
    paths = tuple(sys.path)
    return _load_group(group, paths) if group in _installed_groups(paths) else ()


@lru_cache(maxsize=16)
def _load_group(group: str, _paths: tuple[str, ...]) -> tuple[PlugIn, ...]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 50 ms, and most environments have no plug-in

    points = [point for point in entry_points(group=group) if not point.value.startswith(_OURS)]
    return tuple(sorted((_load_entry_point(point) for point in points), key=lambda plug_in: plug_in.key))


def _load_entry_point(point: EntryPoint) -> PlugIn:
    dist = getattr(point, "dist", None)
    package = dist.name if dist is not None else point.value.partition(":")[0].partition(".")[0]
    plug_in = PlugIn(package, point.name, point.value)
    try:
        return plug_in._replace(loaded=point.load())
    except Exception as error:  # noqa: BLE001 - loading runs code of any package
        return plug_in._replace(problem=plug_in.failed("cannot be loaded", error))


@lru_cache(maxsize=4)
def _installed_groups(paths: tuple[str, ...]) -> frozenset[str]:
    """Return opscope's groups that installed packages name, read from the files that installers leave."""
    return frozenset(
        group for path in paths for file in _entry_point_files(path or ".") for group in _read_groups(file)
    )


def _entry_point_files(directory: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        yield from (f"{entry.path}/entry_points.txt" for entry in entries if entry.name.endswith(_INFORMATION))


def _read_groups(file: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - analyses load no paths
        yield from (line.strip()[1:-1].strip() for line in lines if line.startswith(f"[{_OURS}"))
