"""The directories that an assistant may see: every path of its calls is inside of one of them, links followed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from opscope.core.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_ENTRIES = 20_000
_SHOWN = 4_096
"""Longest path that is looked at, in characters."""


class Roots:
    """Directories with all that is below them.

    ``directories``: the first is where paths without a root begin, then the others.

    Raises NotFoundError: one is no directory.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        for one in directories:
            if not one.is_dir():
                raise NotFoundError("no such directory", where=one, hint="give --root an existing directory")
        self.directories = tuple(dict.fromkeys(Path(os.path.realpath(one)) for one in directories))

    def path(self, text: str) -> Path:
        """The place that a path means, whether it exists or not.

        Raises UsageError: it is outside of the directories, or no path.
        """
        if not text or "\0" in text or len(text) > _SHOWN:
            raise UsageError("not a path", where="path", hint=self._hint())
        try:
            paths = [one for one in self._meant(text) if self._holds(one)]
            there = next((one for one in paths if one.exists()), None)
        except (OSError, ValueError, RuntimeError):  # a name that is too long, or links in a circle
            raise UsageError("not a path", where=text[:100], hint=self._hint()) from None
        if not paths:
            raise UsageError("outside of the directories of this server", where=text, hint=self._hint())
        return there or paths[0]

    def side(self, text: str) -> str:
        """The trace, directory or bundle that a path means, with its variant where one is named.

        Raises UsageError: it is outside of the directories, or a link in it leads there.
        """
        name, mark, variant = text.partition("#")
        place = self.path(name)
        self.check_links(place)
        return f"{place}{mark}{variant}"

    def check_links(self, directory: Path) -> None:
        """Refuse a directory in which a link leads out.

        Raises UsageError: there is one, or too much to look at.
        """
        if not directory.is_dir():
            return
        for number, entry in enumerate(_below(directory)):
            if number >= _MOST_ENTRIES:
                problem = f"more than {_MOST_ENTRIES:,} files below this directory"
                raise UsageError(problem, where=directory, hint="name a trace or a bundle in it")
            if entry.is_symlink() and not self._holds(Path(os.path.realpath(entry))):
                problem = "a link leads out of the directories of this server"
                raise UsageError(problem, where=entry, hint="copy the file in its place")

    def _meant(self, text: str) -> list[Path]:
        return [Path(os.path.realpath(root / Path(text).expanduser())) for root in self.directories]

    def _holds(self, resolved: Path) -> bool:
        return any(resolved.is_relative_to(root) for root in self.directories)

    def _hint(self) -> str:
        return f"give a path below {' or '.join(map(str, self.directories))}"


def _below(directory: Path) -> Iterator[Path]:
    for home, directories, files in os.walk(directory):
        yield from (Path(home) / name for name in (*directories, *files))
