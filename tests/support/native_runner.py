"""The native runner, built once for all tests into the directory of their session, never into the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.core.errors import MissingDependencyError
from opscope.hosts.device import Device
from opscope.hosts.ssh import SshShell, parse_address
from opscope.runtimes.executorch.runners.native import NativeTarget, build_runner, build_runtime, native_here
from opscope.runtimes.native.building import RuntimeFolder, find_compiler
from session_files import session_directory
from sshd import Sshd


def native_cache() -> Path:
    """Where the tests' runner is kept, for all workers: opscope puts what it builds there in one step."""
    directory = session_directory() / "native"
    directory.mkdir(exist_ok=True)
    return directory


def native_target() -> NativeTarget:
    """The target with the built runner; without a compiler the test is skipped."""
    _need_compiler()
    return native_here(native_cache())


def native_over_ssh(server: Sshd, directory: Path | None = None) -> NativeTarget:
    """The target on a device of the tests."""
    place = parse_address(server.address)
    return NativeTarget.on(Device(SshShell(place), str(directory or server.home)), native_cache())


def runtime_of(arch: str) -> RuntimeFolder:
    """The folder that runs on any Linux of an architecture; without compiler or wheel the test is skipped."""
    try:
        return build_runtime(arch, native_cache())
    except MissingDependencyError as error:
        pytest.skip(f"needs cannot download the runtime for {arch}: {error}; {error.hint}")


def runner_path() -> Path:
    """The built runner itself; likewise."""
    _need_compiler()
    return build_runner(native_cache())[0]


def _need_compiler() -> None:
    try:
        find_compiler()
    except MissingDependencyError:
        pytest.skip("needs a C++ compiler")
