"""Libraries out of the wheel of another architecture, which pip downloads once from wherever it is set up to look."""

from __future__ import annotations

import stat
import subprocess
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.files import leads_out
from opscope.core.system.cache import cache_directory, made_in_place
from opscope.core.system.interpreter import module_command
from opscope.core.system.stages import enter
from opscope.hosts.process import last_line

if TYPE_CHECKING:
    from pathlib import Path

_DOWNLOAD_SECONDS = 600
_NO_WHEEL = "download the wheel on another machine, and name its directory in PIP_FIND_LINKS"


class Wheel(NamedTuple):
    """A wheel for Linux.

    Attributes:
        package: its name in the index.
        version: exact.
        platforms: tags without the architecture, oldest first: they say which C library it needs.
        parts: beginnings of the names of the members that are wanted.
    """

    package: str
    version: str
    platforms: tuple[str, ...]
    parts: tuple[str, ...]


def unpacked_wheel(wheel: Wheel, arch: str, cache: Path | None = None) -> Path:
    """Directory with the wanted members of a wheel for an architecture.

    Args:
        wheel: which.
        arch: as in ``opscope.machine.isa``.
        cache: where wheels are kept unpacked; the user's cache directory when it is not given.

    Raises:
        MissingDependencyError: there is no such wheel, it cannot be downloaded, or it is damaged.
        StorageError: it cannot be kept.
    """
    unpacked = (cache or cache_directory()) / "wheels" / f"{wheel.package}-{wheel.version}-{arch}"
    if not unpacked.exists():
        enter(f"downloading the runtime for {arch}")
        with made_in_place(unpacked) as parts:
            _unpack(_downloaded(wheel, arch, parts.parent), parts, wheel.parts)
    return unpacked


def _downloaded(wheel: Wheel, arch: str, work: Path) -> Path:
    command = [*module_command("pip"), "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [word for name in wheel.platforms for word in ("--platform", f"{name}_{arch}")]
    command += ["--dest", str(work), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    found = list(work.glob("*.whl"))
    if done.returncode or not found:
        problem = f"the runtime for {arch} cannot be downloaded: {last_line(done.stderr) or 'pip gave no wheel'}"
        raise MissingDependencyError(problem, hint=_NO_WHEEL)
    return found[0]


def _unpack(wheel: Path, into: Path, parts: tuple[str, ...]) -> None:
    """Take members out of a wheel.

    Raises:
        MissingDependencyError: it is damaged, or a member of it points out of it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if leads_out(member.orig_filename) or stat.S_ISLNK(member.external_attr >> 16):
                    problem = f"its member {member.orig_filename!r} points out of it"
                    raise MissingDependencyError(problem, where=wheel, hint=_NO_WHEEL)
            archive.extractall(into, [name for name in archive.namelist() if name.startswith(parts)])
    except zipfile.BadZipFile:
        raise MissingDependencyError("the wheel is damaged", where=wheel, hint="download it again") from None
