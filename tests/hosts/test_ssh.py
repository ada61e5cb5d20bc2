"""A device over ssh: what arrives there, what comes back, and what happens when it is lost.

The server is a real one, on the loopback interface; the faults are real: sessions that are killed, a server that is
stopped and started again, directories that are full or read-only, a second host.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sshd
from fakes import round_ceilings
from job_variants import run_as
from native_runner import native_over_ssh, native_target, runtime_of
from opscope.bundle.manifest import FailureKind
from opscope.core.errors import DeviceError, FeatureError, MissingDependencyError, UsageError
from opscope.experiment.protocol import Job
from opscope.hosts.device import MARK, OWN, Device
from opscope.hosts.host import PRINTED, GuardedCommand, ProcessSettings
from opscope.hosts.ssh import VARIABLE, SshAddress, SshShell, parse_address
from opscope.machine import isa
from opscope.program.ceilings import drift_sample
from opscope.runtimes.executorch.runners.python import python_on
from opscope.runtimes.native.building import host_architecture
from opscope.workflows.measure.running import read_experiments
from processes import has_ended
from texts import NO_ANSWER
from waiting import eventually

runtime = pytest.mark.runtime


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    """A device that no test breaks."""
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def board(shared: sshd.Sshd, monkeypatch: pytest.MonkeyPatch) -> sshd.Sshd:
    """It, for the ssh of this test."""
    monkeypatch.setenv(VARIABLE, shared.options)
    return shared


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """A device that a test may break."""
    with sshd.running(tmp_path) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        yield server


def _shell(server: sshd.Sshd) -> SshShell:
    return SshShell(parse_address(server.address))


def _device(server: sshd.Sshd) -> Device:
    return Device(_shell(server), str(server.home))


@pytest.fixture(params=[("size=4m", "", ". MiB free"), ("ro", "/o", "Read-only|Permission")], ids=["full", "read-only"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory that takes no runtime, and what the device says of it; needs to mount a file system."""
    options, below, words = request.param
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)]
    done = subprocess.run(mount, check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"needs to mount a file system: {done.stderr.decode().strip()}")
    yield tmp_path / below.strip("/"), words
    subprocess.run(["umount", str(tmp_path)], check=True)


# ---- words, files and codes


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_codes_are_those_of_the_command(board: sshd.Sshd, code: int) -> None:
    """255 is what ssh says of a lost connection, too: the two are told apart."""
    assert _shell(board).run(["sh", "-c", f"exit {code}"], 20).returncode == code


def test_words_arrive_as_they_are(board: sshd.Sshd) -> None:
    """No shell on the way changes a word, joins two, or loses an empty one."""
    words = [
        "a b",
        "",
        "  ",
        "*",
        "~",
        "$HOME",
        "`id`",
        "$(id)",
        "'",
        '"',
        "'\"'",
        "\\",
        "\\n",
        "\\\\",
        "%s",
        "!",
        "#x",
        "-n",
        "--",
        "a;b",
        "a&b",
        "a|b",
        "<",
        ">",
        "é",
        "\t",
        "two\nlines",
    ]
    done = _shell(board).run(["printf", "%s\\0", *words], 20)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_what_a_login_shell_says_first_is_not_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of the day, for example: neither output nor the lock's answer."""
    greeting = """ForceCommand echo Welcome; echo taken; eval "$SSH_ORIGINAL_COMMAND" """
    with sshd.running(tmp_path / "s", lines=(greeting,)) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        assert _shell(server).run(["echo", "hello"], 20).stdout == b"hello\n"
        with _device(server).reserved():
            assert (tmp_path / "s" / "lock").exists()


@pytest.mark.parametrize("lines", [(), ("Subsystem none /bin/false # no sftp",)], ids=["sftp", "no-sftp"])
def test_files_go_there_and_come_back(lines: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte, and the right to be executed; small boards have no sftp, and scp's older protocol needs none."""
    content = bytes(range(256)) * 300
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "tool").write_text("#!/bin/sh\necho works\n")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "back").mkdir()
    with sshd.running(tmp_path / "s", lines=lines) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        way = _shell(server)
        way.push([tmp_path / "a.bin", tmp_path / "tool"], str(server.home))
        assert way.run([f"{server.home}/tool"], 20).stdout == b"works\n"
        way.pull(str(server.home), ["a.bin"], tmp_path / "back")
    assert (tmp_path / "back" / "a.bin").read_bytes() == content


def test_commands_share_one_connection_that_ends_with_us(fragile: sshd.Sshd) -> None:
    """Ten commands, one login; closing the shell ends it."""
    way = _shell(fragile)
    for _ in range(10):
        way.run(["true"], 20)
    log = (fragile.home.parent / "sshd.log").read_text()
    assert log.count("Accepted publickey") == 1
    way.close()
    assert eventually(lambda: not fragile.sessions())


# ---- what hangs


def _commands() -> list[str]:
    """The command lines of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def test_a_port_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ssh is told how long to wait for the other side's first words; nothing of it is left."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv(VARIABLE, "-F none -o ConnectTimeout=1")
        with pytest.raises(DeviceError, match="timed out during banner exchange"):
            SshShell(parse_address(f"127.0.0.1:{port}")).run(["true"], 20)
    assert not [command for command in _commands() if f"Port={port}" in command]


@pytest.mark.nightly
def test_an_ssh_that_does_not_end_is_ended_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy command that hangs too, whatever ssh itself waits for."""
    proxy = "sleep 98765"
    monkeypatch.setenv(VARIABLE, f"-F none -o ConnectTimeout=0 -o 'ProxyCommand={proxy}'")
    monkeypatch.setattr("opscope.hosts.ssh._CONNECT_SECONDS", 1.0)
    with pytest.raises(DeviceError, match="no connection within 1 s"):
        SshShell(parse_address("board")).run(["true"], 20)
    # What was killed is gone a moment later, once the system has taken it away.
    assert eventually(lambda: not any(proxy in command for command in _commands()))


@pytest.mark.nightly
def test_a_device_whose_commands_hang_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets us in and then says nothing; the shared connection ends with us all the same."""
    with sshd.running(tmp_path, lines=("ForceCommand sleep 30",)) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        way = _shell(server)
        with pytest.raises(DeviceError, match=f"{NO_ANSWER} 2 s"):
            way.run(["true"], 2)
        way.close()
        assert not [command for command in _commands() if f"{tmp_path}/ssh_config" in command]


# ---- guarded commands


LINGERING = "sleep 600 & echo $! >child; echo $$ >own; sleep 600"


def _lingering_ended(directory: Path) -> bool:
    pids = [int((directory / name).read_text()) for name in ("own", "child")]
    return all(eventually(lambda pid=pid: has_ended(pid)) for pid in pids)


def test_a_process_gives_way_as_it_is_asked(board: sshd.Sshd, tmp_path: Path) -> None:
    """By nice(1) of the device."""
    for nice in (7, 0):
        with _device(board).started(GuardedCommand(["nice"], tmp_path, 60, process=ProcessSettings(nice))) as ended:
            assert ended.code == 0
        assert (tmp_path / PRINTED).read_text() == f"{os.nice(0) + nice}\n"


def test_a_cut_connection_ends_the_process_with_all_it_started(fragile: sshd.Sshd) -> None:
    """Nobody would collect its result, and it would disturb the next measurement."""
    work = fragile.home / "w"
    cutter = threading.Thread(target=lambda: eventually((work / "own").exists) and fragile.cut())
    cutter.start()
    with pytest.raises(DeviceError, match=r"connection was lost|closed|reset") as caught:
        _device(fragile).guarded(["sh", "-c", LINGERING], str(work), 60)
    cutter.join()
    assert "ssh board true" in str(caught.value.hint)
    assert _lingering_ended(work)


def test_names_of_files_that_lead_elsewhere_are_not_fetched(board: sshd.Sshd, tmp_path: Path) -> None:
    """A device is not trusted: only plain names are copied."""
    used = _device(board)
    (board.home / "plain").write_text("x")
    used.pull(str(board.home), ["../sshd.log", "a b", "-r", "*", "plain"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


# ---- one host at a time


def test_the_lock_goes_with_the_connection_of_its_holder(fragile: sshd.Sshd) -> None:
    """A host that was switched off blocks nobody."""
    with _device(fragile).reserved():
        fragile.cut()
        assert eventually(lambda: not (fragile.home.parent / "lock").exists())
        with _device(fragile).reserved():
            pass


def test_a_lock_of_before_the_device_started_is_taken_over(board: sshd.Sshd) -> None:
    """The process it names may exist again; the boot it names is over. A power cut may leave it empty, too."""
    lock = board.home.parent / "lock"
    for left in (f"{os.getpid()}\nanother-boot\nby someone\n", ""):
        lock.mkdir()
        (lock / "holder").write_text(left)
        with _device(board).reserved():
            assert f"process {os.getpid()}, since" in (lock / "holder").read_text()
    assert not lock.exists()


# ---- models


def _job(program: Path, clear: list[str] | None = None) -> Job:
    return Job(str(program), run_as(clear or []), 3, 0, timeout_seconds=60.0)


@pytest.mark.nightly
@runtime
def test_a_device_describes_itself(board: sshd.Sshd) -> None:
    """Architecture, cores, memory, system and runtime; and the state it is in."""
    found = native_over_ssh(board).environment()
    assert (found.system, found.machine) == (os.uname().sysname, os.uname().machine)
    assert found.logical_cpus == os.cpu_count()
    assert found.memory_bytes
    assert found.features
    assert {"opscope", "executorch", "compiler", "os"} <= found.versions.keys()
    assert native_over_ssh(board).conditions().load_average is not None


@runtime
def test_the_same_is_computed_there_as_here(board: sshd.Sshd, toy_program: Path, tmp_path: Path) -> None:
    """Inputs, outputs and trace cross the line whole; the device keeps the runtime and the program, and no more."""
    used = native_over_ssh(board)
    here = native_target().execute(_job(toy_program), tmp_path)
    kept = []
    for name in ("there", "again"):
        (tmp_path / name).mkdir()
        with used.reserved():
            there = used.execute(_job(toy_program), tmp_path / name)
        assert there.failure is None
        assert there.measurement.output_sha256 == here.measurement.output_sha256
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["log.txt", "outputs.npz", "trace.etdump"]
        assert not (board.home / OWN / "work").exists()
        kept.append({path: path.stat().st_ctime_ns for path in (board.home / OWN / "runtimes").rglob("*")})
    assert kept[0] == kept[1], "what the device has is not sent again"
    assert sum(path.stat().st_size for path in kept[0]) < 25_000_000


@runtime
def test_a_repetition_that_the_connection_cut_is_a_failure_and_the_next_one_runs(
    fragile: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """The device answers again at once, so nothing else is lost."""
    used = native_over_ssh(fragile)
    cutter = threading.Thread(target=lambda: fragile.waits_for_run() and fragile.cut())
    with used.reserved():
        assert used.execute(_job(toy_program), tmp_path).failure is None
        cutter.start()
        lost = used.execute(Job(str(toy_program), run_as([]), 400_000, 0, 60.0, traced=False), tmp_path)
        cutter.join()
        assert lost.failure.kind is FailureKind.DEVICE
        assert used.execute(_job(toy_program), tmp_path).failure is None


# ---- the Python of the device


@runtime
def test_the_python_of_a_device_computes_the_same_and_measures_ceilings_again(
    board: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """With opscope sent along; features are switched off there, too, and the identity is that of the device."""
    used = python_on(_device(board), sys.executable)
    probed, versions = used.probe(), used.environment().versions
    assert {"python", "executorch", "os"} <= versions.keys()
    fields = frozenset(probed.fields)
    clear = isa.cleared_fields(probed.arch, [isa.default_ablation(probed.arch, fields).name], fields)
    with used.reserved():
        outcome = used.execute(_job(toy_program, clear), tmp_path)
        identity = used.identity()
        again = used.ceilings_again(drift_sample(round_ceilings()))
    assert outcome.failure is None
    assert outcome.measurement.mask.cleared == clear
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "outputs.npz", "trace.etdump"]
    (tmp_path / "here").mkdir()
    here = native_target().execute(_job(toy_program, clear), tmp_path / "here")
    assert here.measurement.output_sha256 == outcome.measurement.output_sha256
    assert identity == used.identity()
    assert (again.cleared, again.threads) == ([], 1)
    assert {ceiling.working_set for ceiling in again.memory} == {1 << 15, 1 << 20}


@runtime
def test_files_where_a_session_begins_are_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One there may have the name of a module; and the PYTHONPATH of the device counts."""
    home, extra, session = tmp_path / "home", tmp_path / "extra", tmp_path / "session"
    for directory in (home, extra):
        directory.mkdir()
    for name in ("types", "json", "numpy", "opscope"):
        (home / f"{name}.py").write_text("raise SystemExit('executed')\n")
    (extra / "sitecustomize.py").write_text(f"open({str(tmp_path / 'seen')!r}, 'a').close()\n")
    session.write_text(f'#!/bin/sh\ncd {home} && PYTHONPATH={extra} exec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    session.chmod(0o755)
    lines = (f"ForceCommand {session}", "Subsystem none /bin/false # no sftp")
    with sshd.running(tmp_path / "s", lines=lines) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        found = python_on(_device(server), sys.executable).environment()
    assert found.versions["executorch"]
    assert (tmp_path / "seen").exists()


def test_a_python_that_lacks_something_is_told_what(board: sshd.Sshd, tmp_path: Path) -> None:
    """One without any packages: what is missing, and what to type there."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="cannot run models") as caught:
        python_on(_device(board), str(bare)).probe()
    assert "pip install executorch" in str(caught.value.hint)


# ---- devices that cannot be used


def test_a_device_that_does_not_let_us_in(fragile: sshd.Sshd) -> None:
    """A key that it does not know, with how to be let in; then nobody listens."""
    (fragile.home.parent / "authorized_keys").write_text("")
    with pytest.raises(DeviceError, match=r"refused the login: .*Permission denied") as caught:
        _shell(fragile).run(["true"], 20)
    assert "ssh-copy-id board" in str(caught.value.hint)
    fragile.stop()
    with pytest.raises(DeviceError, match=r"is unreachable: .*refused"):
        _shell(fragile).run(["true"], 20)


def told_machine(directory: Path, machine: str) -> dict[str, str]:
    """Variables of a device whose ``uname`` says that it is another machine."""
    directory.mkdir()
    (directory / "uname").write_text(f'#!/bin/sh\n[ "$1" = -m ] && echo {machine} || exec /bin/uname "$@"\n')
    (directory / "uname").chmod(0o755)
    return {"PATH": f"{directory}:{os.environ['PATH']}"}


def test_an_architecture_without_a_runtime_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 32-bit board: nothing is sent."""
    with sshd.running(tmp_path / "s", told_machine(tmp_path / "bin", "armv7l")) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        with pytest.raises(FeatureError, match="type armv7l"):
            native_over_ssh(server).probe()
        assert list(server.home.rglob("*")) in ([], [server.home / OWN, server.home / OWN / MARK])


@pytest.mark.nightly
@runtime
def test_a_device_that_cannot_run_what_was_sent_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says it is of another architecture than it is: the loader cannot be executed there."""
    other = "x86_64" if host_architecture() == "aarch64" else "aarch64"
    runtime_of(other)
    with sshd.running(tmp_path / "s", told_machine(tmp_path / "bin", other)) as server:
        monkeypatch.setenv(VARIABLE, server.options)
        with pytest.raises(DeviceError, match=f"cannot run programs for {other}.*") as caught:
            native_over_ssh(server).probe()
        assert "architecture" in str(caught.value.hint)


@runtime
def test_a_device_that_cannot_keep_the_runtime_says_why(board: sshd.Sshd, unwritable: tuple[Path, str]) -> None:
    """The place, the room or the words of its system, what to do; no half of it is left."""
    place, words = unwritable
    with pytest.raises(DeviceError, match=f"cannot keep files in {place}/{OWN} on the device.*({words})") as caught:
        native_over_ssh(board, place).probe()
    assert "?dir=PATH" in str(caught.value.hint)
    assert not list(place.glob(f"{OWN}/runtimes/*"))


@runtime
def test_a_device_that_fills_up_in_the_middle_fails_the_repetition(
    board: sshd.Sshd, toy_program: Path, tmp_path: Path
) -> None:
    """There is no room for the trace: the repetition is the device's failure, not one of this machine's disk."""
    used = native_over_ssh(board)
    used.probe()
    limited = board.home / "limited"
    limited.write_text('#!/bin/sh\nulimit -f 8\nexec "$@"\n')
    limited.chmod(0o755)
    real = used._runner_starter._runner_command
    used._runner_starter._runner_command = lambda: [str(limited), *real()]
    failure = used.execute(Job(str(toy_program), run_as([]), 300, 0, 60.0), tmp_path).failure
    assert failure.kind is FailureKind.DEVICE
    assert "cannot be written" in failure.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-oProxyCommand=x", "not a valid ssh host"),
        ("two words", "not a valid ssh host"),
        ("board;id", "not a valid ssh host"),
        ("board:99999", "99999 is not a port"),
        ("board?directory=/x", "unknown option 'directory'"),
        ("board?dir=/a b", "cannot be a directory"),
        ("board?dir=-x", "cannot be a directory"),
        ("board?python", "are not options"),
    ],
)
def test_an_address_that_is_none_is_refused(text: str, message: str) -> None:
    """Nothing in it reaches ssh as an option or a shell as a command."""
    with pytest.raises(UsageError, match=message):
        parse_address(text)


def test_an_address_has_user_port_and_options() -> None:
    """As ssh takes them."""
    found = parse_address("me@board.local:2222?python=v/bin/python&dir=/data/o")
    assert found[1:] == ("me@board.local", 2222, "/data/o", "v/bin/python", None)
    assert parse_address("board?runner=a%20b/runner").runner == "a b/runner"
    assert parse_address("board") == SshAddress("board", "board")


def test_devices_of_a_file_become_experiments_with_names_of_their_own(tmp_path: Path) -> None:
    """The host is part of the name, as far as it can be part of a path; the address stays as it was given."""
    file = tmp_path / "devices.toml"
    targets = ["ssh:board", "ssh:me@10.0.0.7:2222?dir=/data/o", "qemu-aarch64"]
    file.write_text(f'model = "toy_cnn"\ntargets = {json.dumps(targets)}\n')
    found = read_experiments(file).experiments
    assert [one.name for one in found] == ["toy_cnn-ssh-board", "toy_cnn-ssh-me-10.0.0.7-2222", "toy_cnn-qemu-aarch64"]
    assert [one.target for one in found] == targets


@pytest.mark.parametrize(
    ("targets", "message"),
    [(["ssh"], "needs a device"), (["ssh:board", "ssh:board"], "two experiments would be called toy_cnn-ssh-board")],
)
def test_devices_that_cannot_be_told_apart_are_refused(targets: list[str], message: str, tmp_path: Path) -> None:
    """Without a host, and twice the same."""
    file = tmp_path / "devices.toml"
    file.write_text(f'model = "toy_cnn"\ntargets = {json.dumps(targets)}\n')
    with pytest.raises(UsageError, match=message):
        read_experiments(file)
