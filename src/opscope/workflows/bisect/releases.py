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
    """Pythons of this machine that opscope's processes can run with: this one first, then the newest of each version.

    Looked for by name, and where pyenv and uv keep theirs.
    """
    pythons = {HERE.numbers: HERE}
    for file in _candidates():
        try:
            python = python_at(str(file))
        except UsageError:
            continue
        pythons.setdefault(python.numbers, python)
    first, *others = pythons.values()
    return [first, *sorted(others, key=lambda one: one.numbers, reverse=True)]


def _candidates() -> Iterator[Path]:
    homes = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    homes.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python"))
    for home in homes:
        yield from sorted(home.glob("*/bin/python3"), reverse=True)
    for minor in range(sys.version_info.minor + 4, 9, -1):
        if named := shutil.which(f"python3.{minor}"):
            yield Path(named)


def releases(package: str, pythons: Sequence[Python]) -> list[Release]:
    """Every release of a package that one of these Pythons can install, oldest first; pre-releases left out.

    Raises:
        MissingDependencyError: pip is missing, or reaches no index.
    """
    told = {python: _pip("index", "versions", package, "--python-version", python.text, _WHEELS) for python in pythons}
    listed = {python: _versions(done.stdout) for python, done in told.items()}
    every = sorted({one for own in listed.values() for one in own}, key=Version)
    if not every:
        reason = next(filter(None, (last_line(done.stderr) for done in told.values())), "it lists none")
        problem = f"pip finds no release of {package}: {reason}"
        raise MissingDependencyError(problem, hint="see what `pip index versions` and `pip config list` say")
    # One Python for all, where there is one: what differs should be the release alone.
    order = sorted(pythons, key=lambda one: -len(listed[one]))
    return [Release(one, tuple(python for python in order if one in listed[python])) for one in every]


def _versions(listed: str) -> list[str]:
    """Releases of what pip lists, without pre-releases and what is no version."""
    match = _LISTED.search(listed)
    return [one for one in match[1].split(", ") if _is_release(one)] if match else []


def _is_release(text: str) -> bool:
    try:
        return not Version(text).is_prerelease
    except InvalidVersion:
        return False


def between(package: str, every: Sequence[Release], good: str, bad: str) -> list[Release]:
    """Releases from one to another, both included, in the order from good to bad, which may be that of time or not.

    Raises:
        UsageError: one is not a release, or they are the same.
    """
    first, last = (_place(package, every, text, where) for text, where in ((good, "--good"), (bad, "--bad")))
    if first == last:
        raise UsageError("the good and the bad release are the same", where="--bad", hint="name two releases")
    found = every[min(first, last) : max(first, last) + 1]
    return list(found if first < last else reversed(found))


def chosen(package: str, every: Sequence[Release], names: Iterable[str]) -> list[Release]:
    """Releases by name, in this order."""
    return [every[_place(package, every, name, "--versions")] for name in names]


def _place(package: str, every: Sequence[Release], text: str, where: str) -> int:
    try:
        wanted = Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a version", where=where, hint="for example 1.20.1") from None
    names = [one.version for one in every]
    found = next((number for number, name in enumerate(names) if Version(name) == wanted), None)
    if found is None:
        problem = f"no Python here can install {package} {text}"
        hint = f"releases from {names[0]} to {names[-1]} can be; more Pythons, of pyenv or uv, may give more"
        raise NotFoundError(problem, where=where, hint=hint)
    return found


def environment_of(package: str, release: Release, importable: str, limit: int) -> ReleaseEnvironment:
    """An environment with a release of a package, made once for each wheel and kept.

    Args:
        package: in the index.
        release: of it.
        importable: module that runs programs; empty for a package that is not imported.
        limit: bytes that all environments may take; those not used for longest make room, and none of the last day.

    Raises:
        MissingDependencyError: the wheel cannot be had, or does not work with the Pythons that it is for.
    """
    problem = None
    for python in release.pythons:
        home = _known(package, release.version, python)
        try:
            home = home or _made(package, release.version, python, importable)
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


def _home(package: str, version: str, python: Python, sha256: str) -> Path:
    numbers = "".join(map(str, python.numbers))
    return cache_directory() / _FOLDER / f"{package}-{version}-cp{numbers}-{sha256[:12]}"


def _known(package: str, version: str, python: Python) -> Path | None:
    """An environment that was made before."""
    pattern = _home(package, version, python, "*")
    return next((one for one in pattern.parent.glob(pattern.name) if one.is_dir() and is_whole(one)), None)


def _made(package: str, version: str, python: Python, importable: str) -> Path:
    enter(f"installing {package} {version}")
    folder = cache_directory() / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    with scratch_directory(folder / f".download-{os.getpid()}") as work:
        exact = f"{package}=={version}"
        options = ["--no-deps", _WHEELS, "--python-version", python.text, "--dest", str(work)]
        done = _pip("download", *options, exact)
        wheel = next(work.glob("*.whl"), None)
        if done.returncode or wheel is None:
            reason = last_line(done.stderr) or "pip gave no wheel"
            raise MissingDependencyError(f"cannot download {exact} for Python {python.text}: {reason}")
        sha256 = sha256_of(wheel)
        home = _home(package, version, python, sha256)
        with made_in_place(home) as parts:
            _build(parts, wheel, python, importable)
            write_atomically(parts / _WHEEL, f"{wheel.name} {sha256}\n".encode())
    return home


def _build(home: Path, wheel: Path, python: Python, importable: str) -> None:
    """Make an environment: the wheel and what opscope's processes need, and the wheel's own needs if it wants them."""
    _run([python.executable, "-I", "-m", "venv", "--without-pip", str(home)], f"cannot make {home.name}")
    numpy = _NUMPY_1 if python.numbers <= _LAST_NUMPY_1 else "numpy"
    inside = ("--python", str(python_in(home)), "install", _WHEELS)
    problem = f"cannot install {wheel.name}"
    _run(_pip_command(*inside, numpy, *_CHILD), problem)
    _run(_pip_command(*inside, "--no-deps", str(wheel)), problem)
    if importable and _unimportable(home, importable):
        _run(_pip_command(*inside, numpy, str(wheel)), problem)
        if reason := _unimportable(home, importable):
            raise MissingDependencyError(f"{wheel.name} does not work with Python {python.text}: {reason}")


def _unimportable(home: Path, module: str) -> str | None:
    """Why a module cannot be imported; None where it can."""
    words = [str(python_in(home)), "-I", "-B", "-c", f"import {module}"]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    return (last_line(done.stderr) or f"exit code {done.returncode}") if done.returncode else None


def _pip_command(*words: str) -> list[str]:
    return [*module_command("pip"), "--disable-pip-version-check", *words]


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        _pip_command(*words), capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    if done.returncode and "No module named pip" in done.stderr:
        raise MissingDependencyError("this Python has no pip", hint=_NO_PIP)
    return done


def _run(command: Sequence[str], problem: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    if done.returncode:
        raise MissingDependencyError(f"{problem}: {last_line(done.stderr) or f'exit code {done.returncode}'}")
