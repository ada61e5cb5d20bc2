"""What opscope keeps on a device lies in a directory of its own; nothing else there is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sshd
from opscope.core.errors import DeviceError, OverwriteError
from opscope.hosts.device import MARK, OWN, Device, prepare, remove
from opscope.hosts.lock import DeviceLock, LockRequest
from opscope.hosts.shell import LocalShell
from opscope.hosts.ssh import VARIABLE, SshShell, parse_address


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A device that ssh reaches, with a lock of its own."""
    with sshd.running(tmp_path / "sshd") as server:
        monkeypatch.setenv(VARIABLE, server.options)
        monkeypatch.setenv("OPSCOPE_LOCK", str(tmp_path / "opscope.lock"))
        yield server


def _tree(directory: Path) -> dict[str, str | None]:

    return {
        path.relative_to(directory).as_posix(): path.read_text() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def test_what_a_user_keeps_where_a_target_points_stays(board: sshd.Sshd) -> None:
    """Directories with names like those of runs, too; one of opscope's name that is somebody else's is refused."""
    for name in ("work/thesis", "work-1/data", "runtimes/mine", f"taken/{OWN}/notes"):
        (board.home / name).parent.mkdir(parents=True)
        (board.home / name).write_text("mine")
    before = _tree(board.home)
    device = Device(SshShell(parse_address(board.address)), str(board.home))
    with device.reserved(LockRequest("fail")):
        assert device.guarded(["true"], f"{device.base}/{device._work}/0", 5.0)[0] == 0
    own = {OWN: None, f"{OWN}/{MARK}": (board.home / OWN / MARK).read_text()}
    assert _tree(board.home) == before | own
    taken = Device(SshShell(parse_address(board.address)), str(board.home / "taken"))
    with pytest.raises(OverwriteError, match="did not create it") as caught, taken.reserved(LockRequest("fail")):
        pass
    assert "?dir=PATH" in str(caught.value.hint)
    assert _tree(board.home) == before | own


@pytest.mark.parametrize("there", ["file", "link to a directory", "dangling link", "directory with a link as mark"])
def test_what_is_no_directory_of_opscopes_is_refused(there: str, tmp_path: Path) -> None:
    """Whatever it is; it stays."""
    place, other = tmp_path / OWN, tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("mine")
    if there == "file":
        place.write_text("mine")
    elif there == "directory with a link as mark":
        place.mkdir()
        (place / MARK).symlink_to(other / "notes")
    else:
        place.symlink_to(other if there == "link to a directory" else tmp_path / "nowhere")
    before = _tree(tmp_path)
    with pytest.raises(OverwriteError):
        prepare(LocalShell(), str(place))
    assert remove(LocalShell(), str(place), ["*", "notes"]).returncode == 1
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("name", ["..", "../mine", "work/../../mine", "/mine"])
def test_nothing_outside_is_removed(name: str, tmp_path: Path) -> None:
    """Names that lead out are refused; links in it are removed and not followed."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    prepare(LocalShell(), str(tmp_path / OWN))
    (tmp_path / OWN / "work").mkdir()
    (tmp_path / OWN / "work-1").symlink_to(tmp_path / "mine")
    assert remove(LocalShell(), str(tmp_path / OWN), [name]).returncode == 1
    assert remove(LocalShell(), str(tmp_path / OWN), ["work", "work-*"]).returncode == 0
    assert list(_tree(tmp_path)) == ["mine", "mine/notes", OWN, f"{OWN}/{MARK}"]


@pytest.mark.parametrize("planted", ["notes", "holder", ".hidden", "beside.1"])
def test_a_directory_that_is_no_lock_stays(planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPSCOPE_LOCK may name any directory; one with other files is not taken for a lock that was left behind."""
    place = tmp_path / "docs"
    place.mkdir()
    (place / planted).write_text("mine\n")
    monkeypatch.setenv("OPSCOPE_LOCK", str(place))
    lock = DeviceLock(LocalShell())
    with pytest.raises(DeviceError, match="is not an opscope lock"):
        lock.take()
    assert _tree(tmp_path) == {"docs": None, f"docs/{planted}": "mine\n"}


def test_nobody_can_plant_the_holders_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of a lock opens to others when the file stands in it, so that no link can take its place."""
    tools = tmp_path / "bin"
    tools.mkdir()
    chmod = tools / "chmod"
    chmod.write_text(f'#!/bin/sh\nstat -c %a "$2" >{tmp_path}/mode\nls "$2" >{tmp_path}/names\nexec /bin/chmod "$@"\n')
    chmod.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("OPSCOPE_LOCK", str(tmp_path / "lock"))
    lock = DeviceLock(LocalShell())
    lock.take()
    made = [(tmp_path / name).read_text().strip() for name in ("mode", "names")]
    assert made == ["700", "holder"]
    assert oct((tmp_path / "lock").stat().st_mode)[-4:] == "1777"
    lock.release()
    assert not (tmp_path / "lock").exists()
