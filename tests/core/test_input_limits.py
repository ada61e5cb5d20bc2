"""What is read: regular files only, of as much memory as it may take, however small the file is that stands for it."""

from __future__ import annotations

import gzip
import io
import os
import resource
import socket
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from aie_traces import Span, Tile, json_text
from opscope.core.errors import MemoryLimitError, TraceFormatError, UsageError
from opscope.core.system import memory
from opscope.core.system.memory import (
    LEAST,
    LEAST_DEFAULT,
    VARIABLE,
    available,
    file_bytes,
    limited,
    memory_limit,
    parse_size,
    reserve,
)
from opscope.npu.readers.files import read_tiles
from opscope.readers.compressed import mapped_file
from opscope.readers.outputs import read_arrays
from opscope.readers.registry import read_trace
from texts import BEYOND_MEMORY, NO_REGULAR_FILE, UNUSABLE_SIZE
from traces import etdump
from waiting import HANG

TRACE = """
    Method::execute 100000
      OPERATOR_CALL @0 20000
        native_call_add.out 19000
"""
READERS = {
    "trace": read_trace,
    "tiles": read_tiles,
    "arrays": read_arrays,
    "mapped": mapped_file,
    "bytes": file_bytes,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest limit that there is."""
    monkeypatch.setenv(VARIABLE, str(LEAST))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_pipe_is_refused_without_waiting_for_who_writes(read, tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to never ends; process substitutions are pipes too."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceFormatError, match=f"pipe: a pipe, {NO_REGULAR_FILE}") as caught:
        read(tmp_path / "pipe")
    assert "write its content to a file first" in str(caught.value.hint)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_device_without_end_is_refused(read) -> None:
    """/dev/zero gives bytes as long as somebody asks."""
    with pytest.raises(TraceFormatError, match=f"a device, {NO_REGULAR_FILE}"):
        read(Path("/dev/zero"))


def test_a_socket_is_refused(tmp_path: Path) -> None:
    """It says what it is."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(TraceFormatError, match=f"a socket, {NO_REGULAR_FILE}"):
            file_bytes(tmp_path / "socket")


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    """As with every other program."""
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert file_bytes(tmp_path / "link") == b"content"


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 << 30), ("512M", 512 << 20), ("1.5 g", 3 << 29), ("1073741824", 1 << 30), ("2TB", 2 << 40)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    """Units are powers of 1,024."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["-1", "0", "1", "nan", "inf", "1e30", "", "much", "8 GiB more", "9" * 30])
def test_what_is_no_usable_size_is_refused(text: str) -> None:
    """The message names the option, the hint says what a size is."""
    with pytest.raises(UsageError, match=rf"--max-memory: .* {UNUSABLE_SIZE}") as caught:
        parse_size(text, "--max-memory")
    assert "8GiB" in str(caught.value.hint)


def test_a_wrong_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set once, and read by every command."""
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(UsageError, match=VARIABLE):
        memory_limit()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   1000 kB\n"}, 1_024_000),
        (
            {
                "proc/meminfo": "MemAvailable: 1000000 kB\n",
                "proc/self/cgroup": "0::/user/app\n",
                "sys/fs/cgroup/user/app/memory.max": "max\n",
                "sys/fs/cgroup/user/app/memory.current": "100\n",
                "sys/fs/cgroup/user/memory.max": "5000\n",
                "sys/fs/cgroup/user/memory.current": "3000\n",
                "sys/fs/cgroup/user/memory.stat": "anon 7\ninactive_file 500\n",
            },
            2500,
        ),
        (
            {
                "proc/self/cgroup": "0::/as/the/host/names/it\n",
                "sys/fs/cgroup/memory.max": "5000\n",
                "sys/fs/cgroup/memory.current": "6000\n",
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/x\n3:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000\n",
            },
            8000,
        ),
        ({}, None),
    ],
    ids=["machine", "group above", "container", "version 1", "unknown"],
)
def test_available_memory_is_that_of_the_machine_and_its_control_groups(
    files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    """The smallest of them; files in memory can be dropped."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available(tmp_path) == expected


@pytest.mark.parametrize(("room", "limit"), [(None, LEAST_DEFAULT), (1 << 30, LEAST_DEFAULT), (10 << 30, 5 << 30)])
def test_half_of_the_available_memory_may_be_taken_and_at_least_2_gib(
    room: int | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(memory, "available", lambda: room)
    assert memory_limit() == limit


@pytest.mark.usefixtures("small")
def test_what_takes_more_than_the_limit_names_file_and_option() -> None:
    """The system refuses the memory; the limit ends with the reading."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with (
        pytest.raises(MemoryLimitError, match=rf"a\.json: .* {BEYOND_MEMORY}") as caught,
        limited("a.json"),
    ):
        bytearray(8 * LEAST)
    assert "--max-memory" in str(caught.value.hint)
    assert VARIABLE in str(caught.value.hint)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.usefixtures("small")
def test_memory_is_asked_for_before_code_that_would_end_the_process() -> None:
    """In the amount that is left."""
    with pytest.raises(MemoryLimitError), limited("a.csv"):
        reserve(2 * LEAST)


@pytest.mark.usefixtures("small")
def test_threads_that_read_at_once_share_one_limit() -> None:
    """It is taken back when the last one ends."""
    before, inside = resource.getrlimit(resource.RLIMIT_DATA), threading.Barrier(3)

    def read() -> None:
        with limited("file"):
            inside.wait(HANG)
            inside.wait(HANG)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(HANG)
    assert memory_limit() == LEAST
    inside.wait(HANG)
    for thread in threads:
        thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("read", [read_trace, read_tiles], ids=["trace", "tiles"])
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_compressed_trace_that_grows_beyond_the_limit_is_refused(read, pack, tmp_path: Path) -> None:
    """It is refused while it is inflated, not when it is whole."""
    text = b"".join(b'{"ph":"B","ts":%d,"pid":0,"tid":0,"name":"a"},' % time for time in range(LEAST // 40))
    (tmp_path / "trace.json").write_bytes(pack(b"[" + text, 1))
    with pytest.raises(MemoryLimitError, match=rf"trace\.json: reading it needs {BEYOND_MEMORY}"):
        read(tmp_path / "trace.json")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_compressed_trace_within_the_limit_is_read(pack, tmp_path: Path) -> None:
    """As before."""
    tile = Tile("core", 2, 0, ["INSTR_EVENT_0", *(f"SLOT {n}" for n in range(1, 8))], [Span(0, 10, 20)])
    (tmp_path / "tiles").write_bytes(pack(b"".join(json_text([tile]))))
    (tmp_path / "trace").write_bytes(pack(etdump(TRACE, repeat=3)))
    assert len(read_tiles(tmp_path / "tiles")[0].tiles) == 1
    assert read_trace(tmp_path / "trace").table.inferences().height == 3


@pytest.mark.usefixtures("small")
def test_a_large_trace_is_mapped_and_not_held(tmp_path: Path) -> None:
    """A file larger than the limit is read where its events take less; what is behind them is never loaded."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump(TRACE, repeat=3))
    os.truncate(path, 4 * LEAST)
    assert read_trace(path).table.inferences().height == 3


@pytest.mark.usefixtures("small")
def test_arrays_that_would_inflate_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    """Zeros compress a thousandfold."""
    held = io.BytesIO()
    np.save(held, np.zeros(LEAST // 4))
    with zipfile.ZipFile(tmp_path / "inputs.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", held.getvalue())
    with pytest.raises(MemoryLimitError, match=r"inputs\.npz"):
        read_arrays(tmp_path / "inputs.npz")


@pytest.mark.usefixtures("small")
def test_a_table_of_events_that_takes_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    """Cells of one byte each become views of sixteen."""
    (tmp_path / "events.csv").write_bytes(b"process,run," + b"\n" + b",,,,,,,,,,,,\n" * 300_000)
    with pytest.raises(MemoryLimitError, match=r"events\.csv"):
        read_trace(tmp_path / "events.csv")
