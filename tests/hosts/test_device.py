"""A device behind a shell: what it keeps, and what is said when it cannot keep it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from opscope.core.errors import DeviceError
from opscope.hosts.device import Device
from opscope.hosts.shell import LocalShell


class _Board(LocalShell):
    """This machine, to which files are copied as to another one."""

    def push(self, files: Sequence[Path], directory: str) -> None:
        for file in files:
            shutil.copy(file, directory)

    def pull(self, directory: str, names: Sequence[str], into: Path) -> None:
        self.push([Path(directory, name) for name in names], str(into))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A program that a device is to keep, under the name it has there."""
    (tmp_path / "built").write_text("program")
    return {"runner": tmp_path / "built"}


def test_files_are_kept_by_their_content(files: dict[str, Path], tmp_path: Path) -> None:
    """Under their names; other content has a place of its own, and the same is not sent again."""
    device = Device(_Board(), str(tmp_path))
    kept = device.provide("runners", files)
    assert Path(kept["runner"]).read_text() == "program"
    Path(kept["runner"]).write_text("as it was sent")
    assert Device(_Board(), str(tmp_path)).provide("runners", files) == kept
    assert Path(kept["runner"]).read_text() == "as it was sent"
    files["runner"].write_text("another")
    assert Path(device.provide("runners", files)["runner"]).read_text() == "another"


def test_files_may_lie_below_the_directory(files: dict[str, Path], tmp_path: Path) -> None:
    """As the weights of a model do that names them so."""
    for name in ("weights/first.bin", "weights/more/first.bin"):
        files[name] = tmp_path / name.replace("/", "-")
        files[name].write_text(name)
    kept = Device(_Board(), str(tmp_path)).provide("programs", files)
    home = Path(kept["runner"]).parent
    for name, file in files.items():
        assert kept[name] == str(home / name)
        assert Path(kept[name]).read_text() == file.read_text()


def test_files_that_cannot_be_kept_are_said_with_the_room(files: dict[str, Path], tmp_path: Path) -> None:
    """It may be why; here something else stands in the way, and the device's words say so."""
    device = Device(_Board(), str(tmp_path))
    Path(device.base, "runners").touch()
    with pytest.raises(DeviceError, match=rf"keep files in {device.base} on the device, \d+ MiB free: .*runners"):
        device.provide("runners", files)
