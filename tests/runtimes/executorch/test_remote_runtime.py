"""The folder that is sent to a device: made once, the same for the same content, and what is missing is said."""

from __future__ import annotations

import os
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from native_runner import runtime_of
from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.runtimes.executorch.runners.native import (
    build_runtime,
    runtime_libraries,
    runtime_version,
)
from opscope.runtimes.native.building import host_architecture
from opscope.runtimes.native.wheel_runner import Wheel, unpacked_wheel
from texts import NO_COMPILER_FOR, NOT_DOWNLOADED

runtime = pytest.mark.runtime
HERE = host_architecture()
OTHER = "x86_64" if HERE == "aarch64" else "aarch64"


@runtime
@pytest.mark.skipif(HERE is None, reason="the runtime of this machine is sent from Linux only")
def test_the_folder_runs_by_its_own_loader(tmp_path: Path) -> None:
    """Moved elsewhere, without this system's environment; its name is that of its content, so that it is sent once."""
    found = runtime_of(HERE or "")
    place = tmp_path / "elsewhere"
    place.mkdir()
    for file in found.files():
        (place / file.name).write_bytes(file.read_bytes())
        (place / file.name).chmod(0o755)
    done = subprocess.run([*found.command(str(place)), "--help"], capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0
    assert "--num_executions" in done.stderr
    assert sum(file.stat().st_size for file in found.files()) < 25_000_000
    assert runtime_of(HERE or "") == found
    assert len(found.digest) == 16


def test_an_architecture_without_a_loader_is_refused(tmp_path: Path) -> None:
    """Before anything is downloaded."""
    with pytest.raises(FeatureError, match="no prebuilt runtime for Linux on riscv64"):
        build_runtime("riscv64", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_cross_compiler_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the variable that names another one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(f"OPSCOPE_CXX_{OTHER.upper()}", raising=False)
    with pytest.raises(MissingDependencyError, match=f"{NO_COMPILER_FOR} {OTHER}, {OTHER}-linux-gnu-g") as caught:
        build_runtime(OTHER, tmp_path)
    assert f"OPSCOPE_CXX_{OTHER.upper()}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, f"{NOT_DOWNLOADED} for {OTHER}: .*executorch"), (b"no archive", rf"damaged|{NOT_DOWNLOADED}")],
    ids=["no wheel", "no archive"],
)
def test_a_wheel_that_cannot_be_had_is_said_with_pips_words(
    content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network, from a directory without wheels or with a file that is none; nothing is left behind."""
    if content:
        (tmp_path / f"executorch-{runtime_version()}-py3-none-manylinux2014_{OTHER}.whl").write_bytes(content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(MissingDependencyError, match=words) as caught:
        runtime_libraries(OTHER, tmp_path / "cache")
    assert content or "PIP_FIND_LINKS" in str(caught.value.hint)
    assert not list((tmp_path / "cache" / "wheels").iterdir())


def _offer_wheel(
    directory: Path, package: str, release: str, arch: str, member: zipfile.ZipInfo, patch: pytest.MonkeyPatch
) -> None:
    """Let pip find a wheel, whole by its measure, in a directory alone."""
    name = package.replace("-", "_")
    about, tag = f"{name}-{release}.dist-info", f"py3-none-manylinux2014_{arch}"
    with zipfile.ZipFile(directory / f"{name}-{release}-{tag}.whl", "w") as archive:
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {release}\n")
        archive.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
        archive.writestr(f"{about}/RECORD", "")
        archive.writestr(member, "x")
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(directory))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("executorch/lib/../../../up.so", stat.S_IFREG),
        ("/executorch/lib/absolute.so", stat.S_IFREG),
        ("executorch/lib/link.so", stat.S_IFLNK),
    ],
)
def test_a_wheel_that_points_out_of_itself_is_refused(
    name: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is unpacked."""
    release = "0.0.1"  # of which no hash is known
    member = zipfile.ZipInfo(name)
    member.external_attr = (mode | 0o644) << 16
    _offer_wheel(tmp_path, "executorch", release, OTHER, member, monkeypatch)
    wheel = Wheel("executorch", release, ("manylinux2014",), ("executorch/lib/",))
    with pytest.raises(MissingDependencyError, match="points outside it"):
        unpacked_wheel(wheel, OTHER, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "wheels").iterdir())
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(
    ("package", "release", "arch"),
    [("executorch", "1.5.1", "aarch64"), ("ai-edge-litert", "2.3.0", "aarch64"), ("ai-edge-litert", "2.3.0", "x86_64")],
)
def test_a_wheel_that_is_not_the_published_one_is_refused(
    package: str, release: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a directory that somebody else can write to: nothing of it is unpacked."""
    _offer_wheel(tmp_path, package, release, arch, zipfile.ZipInfo("lib/other.so"), monkeypatch)
    with pytest.raises(MissingDependencyError, match=f"not the published {package} {release}: its SHA-256 is ") as told:
        unpacked_wheel(Wheel(package, release, ("manylinux2014",), ("lib/",)), arch, tmp_path / "cache")
    assert "PIP_FIND_LINKS" in str(told.value.hint)
    assert not list(tmp_path.rglob("*.so"))
