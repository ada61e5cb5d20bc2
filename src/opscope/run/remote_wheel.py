"""The runtime's libraries and headers for an architecture: those installed here, or those of the wheel for it."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from opscope.bundle.files import storage_errors
from opscope.errors import FeatureError, MissingDependencyError
from opscope.interpreter import module_command
from opscope.run import isa
from opscope.run.cache import cache_directory
from opscope.run.installed import library_directory
from opscope.run.process import last_line

_TESTED = "1.5.1"
# Oldest first: the wheels say which C library they need.
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_PARTS = ("executorch/lib/", "executorch/include/")
_DOWNLOAD_SECONDS = 600


def host_architecture() -> str | None:
    """This machine's, as in ``opscope.run.isa``, when it runs Linux; else None."""
    if sys.platform != "linux":
        return None
    try:
        return isa.architecture(platform.machine())
    except FeatureError:
        return None


def runtime_version() -> str:
    """Version of the runtime to send: the one installed here, else the one that opscope is tested with."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return _TESTED


def runtime_libraries(arch: str, cache: Path | None = None) -> Path:
    """Directory of the runtime's libraries for Linux on an architecture; the headers lie beside it.

    Those of the installed package where that fits, else those of the wheel of the same version, which pip downloads
    once from wherever it is set up to look.

    Args:
        arch: as in ``opscope.run.isa``.
        cache: where wheels are kept unpacked; the user's cache directory when it is not given.

    Raises:
        MissingDependencyError: there is no such wheel, or it cannot be downloaded.
        StorageError: it cannot be kept.
    """
    if arch == host_architecture():
        return library_directory()
    wanted = runtime_version()
    unpacked = (cache or cache_directory()) / "wheels" / f"executorch-{wanted}-{arch}"
    if not unpacked.exists():
        with storage_errors(unpacked):
            unpacked.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=unpacked.parent) as work:
                _unpack(_downloaded(wanted, arch, Path(work)), Path(work) / "parts")
                (Path(work) / "parts").replace(unpacked)
    return unpacked / "executorch" / "lib"


def _downloaded(wanted: str, arch: str, work: Path) -> Path:
    command = [*module_command("pip"), "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [word for name in _PLATFORMS for word in ("--platform", f"{name}_{arch}")]
    command += ["--dest", str(work), f"executorch=={wanted}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        problem = f"the runtime for {arch} cannot be downloaded: {last_line(done.stderr) or 'pip gave no wheel'}"
        raise MissingDependencyError(problem, hint=_NO_WHEEL)
    return wheels[0]


_NO_WHEEL = "download the wheel on another machine, and name its directory in PIP_FIND_LINKS"


def _unpack(wheel: Path, into: Path) -> None:
    """Take libraries and headers out of a wheel.

    Raises:
        MissingDependencyError: it is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into, [name for name in archive.namelist() if name.startswith(_PARTS)])
    except zipfile.BadZipFile:
        raise MissingDependencyError("the wheel is damaged", where=wheel, hint="download it again") from None
