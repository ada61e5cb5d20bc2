"""Where results go: files, what is not a file, and standard output, by all its names."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ended import Command
from waiting import HANG

TRACE = Path(__file__).parents[1] / "data" / "toy_cnn.etdump"
OPSCOPE = [sys.executable, "-m", "opscope"]
PROCESS_SUBSTITUTION = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A line of a shell, with ``opscope`` for the command under test."""
    script = f'opscope() {{ {sys.executable} -m opscope "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", script], cwd=cwd, capture_output=True, text=True, check=False)


@PROCESS_SUBSTITUTION
@pytest.mark.parametrize(
    "line",
    [
        "opscope analyze {trace} --json /dev/stdout",
        "opscope compare {trace} {trace} --json /dev/fd/1",
        "opscope check {trace} --against {trace} --force --inconclusive pass --json /proc/self/fd/1",
        "opscope analyze {trace} --quiet --json >(cat)",
    ],
)
def test_standard_output_by_any_name_holds_json_alone(line: str, tmp_path: Path) -> None:
    """As with ``-``: no summary is mixed into it."""
    done = shell(f"set -o pipefail; {line.format(trace=TRACE)} | cat", tmp_path)
    assert json.loads(done.stdout)["schema"].startswith("opscope."), done.stderr
    assert list(tmp_path.iterdir()) == []


@PROCESS_SUBSTITUTION
def test_convert_writes_into_a_process_substitution(tmp_path: Path) -> None:
    """Take what is there for a pipe, not for an output that would be replaced."""
    done = shell(f"opscope convert {TRACE} --to csv --out >(cat > copy.csv); wait $!", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "copy.csv").read_text().startswith("process,run,")


def test_an_output_without_a_name_is_a_mistake(command: Command) -> None:
    """Refuse one that comes from a variable which is not set, unlike no option."""
    done = command("analyze", TRACE, "--json", "")
    assert (done.returncode, "the output file name is empty" in done.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown"])
def test_a_fifo_gets_the_result_and_stays_a_fifo(command: Command, option: str, tmp_path: Path) -> None:
    """Write every output of the gate through the one writer."""
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert command("check", TRACE, "--against", TRACE, "--force", "-q", option, fifo).returncode == 14
    reader.join(timeout=HANG)
    assert read[0].startswith({"--json": b"{", "--junit": b"<?xml", "--markdown": b"#"}[option])
    assert fifo.is_fifo()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may replace a device")
def test_a_device_is_never_replaced(command: Command, tmp_path: Path) -> None:
    """A node like /dev/null, which root could replace by a file."""
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.write_bytes(b"")
    except PermissionError:
        pytest.skip("no device can be made or opened here")
    assert command("analyze", TRACE, "-q", "--json", node).returncode == 0
    assert stat.S_ISCHR(node.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["--json", "-"], []])
def test_a_full_disk_behind_standard_output_is_told(arguments: list[str]) -> None:
    """Not a bug of opscope: a message, a hint and the code of a full disk."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*OPSCOPE, "analyze", TRACE, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 9
    assert done.stderr.startswith("error: standard output: cannot be written: no space left on the file system\nhint:")
