"""The one writer: regular files are replaced in one step, everything else is written to, refusals are told apart."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opscope.core.errors import StorageError
from opscope.core.files import refusal
from opscope.core.writing import write_atomically, write_new
from waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="makes device nodes, mounts or becomes another user")
WRITE = "import sys; from pathlib import Path; from opscope.core.writing import write_atomically as w; "
NOBODY = 65534


# ---- regular files


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    """Also one that the user's mask would not give to a new file."""
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    path.chmod(0o604)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_new_file_has_the_mode_that_the_mask_leaves(tmp_path: Path) -> None:
    """As files of other programs; directories are made."""
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new" / "result.json", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "result.json").stat().st_mode) == 0o640


@needs_root
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    """Root writes into a user's file, and it stays that user's."""
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    os.chown(path, NOBODY, NOBODY)
    write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)


@pytest.mark.parametrize("kind", ["link", "circle", "FIFO"])
def test_a_link_in_a_directory_of_others_is_replaced(tmp_path: Path, kind: str) -> None:
    """A bundle from elsewhere may hold links to the user's own files, and pipes that nobody reads."""
    victim, path = tmp_path / "victim", tmp_path / "report.html"
    victim.write_bytes(b"mine")
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if kind == "link" else path)
    write_atomically(path, b"new", follow=False)
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nothing yet"])
def test_a_link_stays_a_link(tmp_path: Path, there: bool) -> None:
    """What it leads to is written, in its own directory; nothing else is left there."""
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.json", tmp_path / "link.json"
    if there:
        real.write_bytes(b"old")
    link.symlink_to("elsewhere/real.json")
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert [path.name for path in real.parent.iterdir()] == ["real.json"]


def test_a_write_that_fails_half_way_leaves_the_old_content(tmp_path: Path) -> None:
    """Content is made while it is written; what makes it may fail."""
    path = tmp_path / "result.json"
    path.write_bytes(b"old")

    def parts() -> Iterator[bytes]:
        yield b"new"
        raise StorageError("the trace is gone")

    with pytest.raises(StorageError, match="the trace is gone"):
        write_atomically(path, parts())
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_the_temporary_file_cannot_be_foreseen(tmp_path: Path) -> None:
    """A link of another user under its name in a shared directory would lead the write elsewhere."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / f".result.json.{os.getpid()}.tmp").symlink_to(victim)
    write_atomically(tmp_path / "result.json", b"new")
    assert victim.read_bytes() == b"mine"


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    """That of the temporary file is no longer than what it stands for."""
    path = tmp_path / ("x" * 255)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_new_file_replaces_nothing(tmp_path: Path) -> None:
    """What is there stays, whatever it is."""
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("nowhere")
    assert not write_new(tmp_path / "file", b"new")
    assert not write_new(tmp_path / "link", b"new")
    assert write_new(tmp_path / "new" / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert (tmp_path / "new" / "file").read_bytes() == b"new"


# ---- what is written to directly


def read_in_the_background(path: Path) -> tuple[threading.Thread, list[bytes]]:
    """A thread that reads a FIFO to its end, and what it read."""
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    thread.start()
    return thread, read


@pytest.mark.parametrize("write", [write_atomically, write_new])
def test_a_fifo_is_written_to(tmp_path: Path, write: object) -> None:
    """It stays a FIFO, and its reader gets everything."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    thread, read = read_in_the_background(fifo)
    write(fifo, b"new" * 100_000)
    thread.join(timeout=HANG)
    assert read == [b"new" * 100_000]
    assert fifo.is_fifo()


@needs_root
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """A node as /dev/null is: root may replace it, and would take it from every process of the machine."""
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except PermissionError:
        pytest.skip("no device can be made or opened here")
    write_atomically(node, b"new")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["null"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_an_open_descriptor_goes_on_where_it_stands(tmp_path: Path, name: str, kind: str) -> None:
    """What was printed before stays before, and what is printed after comes after; also where it leads to a file."""
    if not Path(name).parent.is_dir():
        pytest.skip(f"no {name} on this system")
    script = f"{WRITE}print('before'); w(Path({name!r}), b'new\\n'); print('after')"
    file = tmp_path / "file"
    with file.open("wb") as opened:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE if kind == "pipe" else opened, check=True
        )
    assert (done.stdout if kind == "pipe" else file.read_bytes()) == b"before\nnew\nafter\n"


def test_a_process_substitution_is_written_to() -> None:
    """A pipe behind a descriptor of this process."""
    reader, writer = os.pipe()
    write_atomically(Path(f"/dev/fd/{writer}"), b"new")
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        assert stream.read() == b"new"


# ---- refusals


def refused(path: Path) -> StorageError:
    """What the writer says of a path that cannot be written."""
    with pytest.raises(StorageError) as caught:
        write_atomically(path, b"new")
    return caught.value


def test_a_file_as_directory_is_named(tmp_path: Path) -> None:
    """The part of the path that is the file, near or far."""
    (tmp_path / "file").write_bytes(b"old")
    for below in ("file/result.json", "file/deeper/result.json"):
        error = refused(tmp_path / below)
        assert error.problem == f"cannot be written: {tmp_path}/file is not a directory"
        assert error.hint == "choose a place in a directory"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """Nothing of it is touched."""
    error = refused(tmp_path)
    assert error.problem == "cannot be written: it is a directory"
    assert error.hint == "name a file, for example one in this directory"


def test_names_and_links_that_lead_nowhere(tmp_path: Path) -> None:
    """Too long a name, and links in a circle."""
    (tmp_path / "circle").symlink_to("circle")
    assert refused(tmp_path / ("x" * 256)).problem == "cannot be written: the name is too long"
    assert refused(tmp_path / "circle").problem == "cannot be written: its links form a cycle"


def test_a_reader_that_ended_is_told() -> None:
    """A pipe without a reader: not a full disk."""
    reader, writer = os.pipe()
    os.close(reader)
    assert refused(Path(f"/dev/fd/{writer}")).problem == "cannot be written: the program reading it has exited"
    os.close(writer)


def as_nobody(path: Path) -> str:
    """What a process of another user is told that writes a path."""
    script = f"""
from pathlib import Path
from opscope.core.errors import StorageError, with_hint
from opscope.core.writing import write_atomically
try:
    write_atomically(Path({str(path)!r}), b'new')
except StorageError as error:
    print(with_hint(error))
"""
    command = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@needs_root
def test_what_denies_is_named() -> None:
    """A file of somebody else, a directory of somebody else, and a read-only file in a directory of one's own."""
    place = Path("/tmp") / f"opscope-test-{os.getpid()}"  # noqa: S108 - pytest's own directories are closed to others
    place.mkdir(mode=0o755)
    try:
        (place / "own").mkdir()
        os.chown(place / "own", NOBODY, NOBODY)
        (place / "own" / "file").write_bytes(b"old")
        (place / "own" / "file").chmod(0o444)
        said = "{}: cannot be written: permission denied (choose a place that you can write to; {} denies it)"
        new, file = place / "new", place / "own" / "file"
        assert as_nobody(new) == said.format(new, place)
        assert as_nobody(file) == said.format(file, file)
        assert (place / "own" / "file").read_bytes() == b"old"
        assert [path.name for path in (place / "own").iterdir()] == ["file"]
    finally:
        subprocess.run(["rm", "-r", str(place)], check=True)


@needs_root
@pytest.mark.parametrize(
    ("options", "size", "said"),
    [
        ("size=64k", 1 << 20, "no space left on the file system | free some space or choose another place; "),
        ("ro", 1, "the file system is read-only | choose a place on another file system, or mount it for writing"),
    ],
)
def test_full_and_read_only_file_systems_are_told_apart(tmp_path: Path, options: str, size: int, said: str) -> None:
    """Real ones, in a mount namespace of the test's own; the old content of a file on a full one stays."""
    script = f"""
set -e
mount -t tmpfs -o size=64k none {tmp_path}
printf old > {tmp_path}/file
mount -o remount,{options} {tmp_path}
exec {sys.executable} -c "
from pathlib import Path
from opscope.core.errors import OpscopeError
from opscope.core.writing import write_atomically
for name in ('file', 'new'):
    try:
        write_atomically(Path('{tmp_path}') / name, bytes({size}))
    except OpscopeError as error:
        print(f'{{error.problem}} | {{error.hint}}')
print(sorted(p.name for p in Path('{tmp_path}').iterdir()), (Path('{tmp_path}') / 'file').read_text())
"
"""
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    first, second, left = done.stdout.splitlines()
    assert first == second
    assert first.startswith(f"cannot be written: {said}")
    assert left == "['file'] old"


def test_every_kind_of_refusal_has_words_of_its_own(tmp_path: Path) -> None:
    """No two of them read alike; one that is not listed is told in the system's words."""
    import errno

    kinds = "EISDIR EEXIST EROFS EACCES ENOSPC EDQUOT EFBIG ENAMETOOLONG ELOOP EPIPE".split()
    told = [refusal(OSError(getattr(errno, kind), "as the system says"), tmp_path / "file")[0] for kind in kinds]
    assert len(set(told)) == len(kinds)
    assert "as the system says" not in told
    assert refusal(OSError(errno.EIO, "Input/output error"), tmp_path)[0] == "Input/output error"
