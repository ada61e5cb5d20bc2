"""Where opscope is started does not decide whether it works: files beside it, a missing home, odd paths and locales."""

from __future__ import annotations

import ast
import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from opscope.bundle.manifest import Environment, Role, Variant
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.system.c_library import other_c_library
from opscope.core.system.interpreter import module_command
from opscope.machine.processor import cpu_quota, usable_cpus
from opscope.runtimes.executorch.runners.native import build_runner
from opscope.workflows.measure.variants import check_threads

BIN = Path(sys.executable).parent / "opscope"
SOURCES = Path(__file__).parents[2] / "src"
TAKEN = (
    "types json typing enum struct linecache runpy subprocess numpy polars msgspec torch executorch opscope "
    "sitecustomize errors config"
).split()
"""Modules of the standard library, of others and of ours, whose names a user's own file may bear."""
PYTHONS_OWN = ("types", "typing", "enum", "struct", "linecache", "runpy", "opscope")
"""Those that ``python -m opscope`` imports before anything of ours runs."""
JOBS = """
from opscope.workflows.measure.parallel.workers import Where, run_calls

def main():
    print(list(run_calls(Where(jobs=2), abs, [-1, -2, -3])))

if __name__ == "__main__":
    main()
"""
NET = """
import torch
from shared_parts import WIDTH

def build():
    return torch.nn.Linear(WIDTH, 2), (torch.ones(1, WIDTH),)
"""
CACHE = """
from opscope.core.errors import OpscopeError
from opscope.core.system.cache import find_cache
try:
    print(*find_cache(), sep=chr(10))
except OpscopeError as error:
    print(type(error).__name__, error, sep=chr(10))
"""
QUOTA = """
import subprocess
from opscope.machine.processor import cpu_quota, usable_cpus
from opscope.hosts.facts import conditions_of, environment_of, parts
from opscope.hosts.scripts import CONDITIONS, FACTS
facts, state = (parts(subprocess.run(["sh", "-c", s], capture_output=True).stdout) for s in (FACTS, CONDITIONS))
there = environment_of(facts, None, {})
print(cpu_quota(), usable_cpus())
print(there.cpu_quota, there.usable_cpus, conditions_of(state).usable_cpus)
"""
GONE = ("HOME", "XDG_CACHE_HOME", "OPSCOPE_CACHE")
SHORT = ("--rounds", "1", "--runs", "2", "--warmup", "1", "--traced-only", "--no-ceilings")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this module's tests, in which the runner is built once."""
    return tmp_path_factory.mktemp("Käse") / "Zwischen lager"


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A directory with a file for each of these names; whoever executes one ends."""
    place = tmp_path / "taken"
    place.mkdir()
    for name in TAKEN:
        (place / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current directory was executed')\n")
    return place


def opscope(*words: object, cwd: Path, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """The command as a user types it.

    Args:
        words: its arguments.
        cwd: current directory.
        variables: of the environment beside those of the tests; None for one that is not set.
    """
    return run([str(BIN), *map(str, words)], cwd, **variables)


def run(command: list[str], cwd: Path, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Any command, likewise."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


@pytest.mark.runtime
def test_files_of_the_current_directory_are_not_executed(taken: Path, toy_program: Path) -> None:
    """Neither by the processes that run the model nor by the one that measures ceilings."""
    done = opscope("profile", toy_program, "--target", "local", "--out", "out", *SHORT[:-1], cwd=taken)
    assert done.returncode == 0, done.stderr
    assert list(taken.glob("out/variants/*/ceilings.json"))


@pytest.mark.nightly  # exports a model
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("file", "model"), [("my_net.py", "my_net:build"), ("json.py", "taken/json.py")], ids=["by module", "by file"]
)
def test_a_model_is_found_with_what_stands_beside_it(taken: Path, tmp_path: Path, file: str, model: str) -> None:
    """Let a model stand in the current directory, behind what is installed, or bear the name of a module."""
    (taken / "shared_parts.py").write_text("WIDTH = 4\n")
    (taken / file).write_text(NET)
    done = opscope("export", model, "--out", tmp_path / "out", cwd=taken if ":" in model else tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("out/*.pte"))


def test_other_processes_of_ours_do_not_look_there_either(taken: Path, tmp_path: Path) -> None:
    """Start those of ``--jobs``, then ``python -m opscope``, before which Python itself imports some names."""
    (tmp_path / "jobs.py").write_text(JOBS)
    done = run([sys.executable, str(tmp_path / "jobs.py")], taken)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2, 3]\n", "")
    for name in PYTHONS_OWN:
        (taken / f"{name}.py").unlink(missing_ok=True)
    done = run([sys.executable, "-m", "opscope", "models"], taken)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}], ids=["usual", "safe path"])
def test_a_process_of_ours_keeps_the_path_of_the_user(tmp_path: Path, variables: dict[str, str]) -> None:
    """PYTHONPATH counts, with an empty entry for the current directory when the user wants it; nothing is added."""
    (tmp_path / "shown.py").write_text("import sys; print(sys.path, sys.argv)\n")
    path = f"{tmp_path / 'extra'}:"
    told = run([*module_command("shown"), "a"], tmp_path, PYTHONPATH=path, **variables)
    asked = [sys.executable, "-I", "-c", "import sys; print(sys.path)"]
    usual = ast.literal_eval(run(asked, tmp_path).stdout)
    paths, arguments = told.stdout.replace("] [", "]\n[").splitlines()
    assert ast.literal_eval(paths) == [str(tmp_path / "extra"), str(tmp_path), *usual]
    assert ast.literal_eval(arguments) == [str(tmp_path / "shown.py"), "a"]


# ---- where things are kept


def test_the_cache_is_the_first_place_that_can_be_used(tmp_path: Path) -> None:
    """Look in the named one, XDG's, the home's; a relative XDG_CACHE_HOME is ignored, as its specification says.

    Who names a place that cannot be used is not given another.
    """
    named, xdg, home = tmp_path / "named", tmp_path / "xdg", tmp_path / "home"
    home.mkdir()
    every = {"OPSCOPE_CACHE": str(named), "XDG_CACHE_HOME": str(xdg), "HOME": str(home)}
    assert cache(tmp_path, **every) == [str(named), "None"]
    assert cache(tmp_path, **{**every, "OPSCOPE_CACHE": None}) == [str(xdg / "opscope"), "None"]
    for left_out in (None, "relative", "", "/proc/nothing"):
        found, reason = cache(tmp_path, **{**every, "OPSCOPE_CACHE": None, "XDG_CACHE_HOME": left_out})
        assert (home in Path(found).parents, reason) == (True, "None")
    (tmp_path / "file").touch()
    found, reason = cache(tmp_path, OPSCOPE_CACHE=str(tmp_path / "file" / "cache"))
    assert (found, "OPSCOPE_CACHE" in reason) == ("StorageError", True)


@pytest.mark.parametrize("home", ["missing", "closed", "a file", "unset"])
def test_without_a_usable_home_there_is_a_place_of_our_own(tmp_path: Path, home: str) -> None:
    """The same the next time, reachable by nobody else; and the reason is there to be said."""
    (tmp_path / "a file").touch()
    (tmp_path / "closed").mkdir(mode=0o500)
    variables = {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": None, "OPSCOPE_CACHE": None}
    variables["HOME"] = "" if home == "unset" else str(tmp_path / home)
    found, reason = cache(tmp_path, **variables)
    assert cache(tmp_path, **variables) == [found, reason]
    assert reason == ("there is no home directory" if home == "unset" else f"{tmp_path / home} is not writable")
    assert Path(found).parent == tmp_path
    assert stat.S_IMODE(Path(found).stat().st_mode) == 0o700


@pytest.mark.parametrize("taken_by", ["a link", "a file", "a directory for all", "another user"])
def test_a_temporary_place_that_is_not_ours_alone_is_not_used(tmp_path: Path, taken_by: str) -> None:
    """Whoever made it could choose what is executed from it; then there is a new one, for this process only."""
    place = tmp_path / f"opscope-{os.geteuid()}"
    if taken_by == "a file":
        place.touch(0o600)
    elif taken_by == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(mode=0o700)
        place.chmod(0o777 if taken_by == "a directory for all" else 0o700)
    if taken_by == "another user":
        if os.geteuid() != 0:
            pytest.skip("only root gives directories away")
        os.chown(place, 65534, 65534)
    found, _ = cache(tmp_path, TMPDIR=str(tmp_path), XDG_CACHE_HOME=None, OPSCOPE_CACHE=None, HOME="")
    assert Path(found).parent == tmp_path
    assert found != str(place)
    assert not Path(found).exists()  # it went with the process


def test_a_user_that_the_system_does_not_know_is_no_problem() -> None:
    """No HOME and no entry in the table of users, as in many containers: ``Path.home`` raises there."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    place = Path(tempfile.mkdtemp(prefix="opscope-test-"))  # those of pytest are closed to other users
    place.chmod(0o777)
    script = f"import os, opscope.core.system.cache\nos.setuid(54321)\n{CACHE}"
    done = run([sys.executable, "-c", script], Path("/"), **dict.fromkeys(GONE), TMPDIR=str(place))
    shutil.rmtree(place)
    assert done.stdout.splitlines() == [str(place / "opscope-54321"), "there is no home directory"]


def cache(cwd: Path, **variables: str | None) -> list[str]:
    """Directory and reason of the cache in a process with these variables, without root's leave to write anywhere."""
    command = [sys.executable, "-c", CACHE]
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    return run([*drop, *command], cwd, **variables).stdout.splitlines()


# ---- how many threads fit


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/docker/gone", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        (
            "3:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "200000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("1:cpuset:/\n0::/", {"cpuset/cpu.max": "50000 100000"}, None),
        (None, {"cpu.max": "50000 100000"}, None),
        ("0::/", {"cpu.max": ""}, None),
        ("0::/", {"cpu.max": "-1 100000"}, None),
        ("0::/", {"cpu.max": "0 100000\n100000 0\nx 1"}, None),
        ("0::/a/b", {"cpu.max": "max 100000\n", "a/cpu.max": "400000 100000", "a/b/cpu.max": "50000 100000\n "}, 0.5),
    ],
)
def test_quotas_are_found_where_linux_keeps_them(
    tmp_path: Path, group: str | None, files: dict[str, str], quota: float | None
) -> None:
    """Read versions 1 and 2, in a container that does not see its own group; the smallest of all groups counts.

    What is not a pair of times is not a limit.
    """
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    if group is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    assert cpu_quota(tmp_path) == quota
    assert usable_cpus(tmp_path) == max(1, min(len(os.sched_getaffinity(0)), math.floor(quota or 1 << 20)))


@pytest.mark.parametrize(
    ("threads", "there", "affinity", "told"),
    [
        (
            2,
            {"usable_cpus": 1, "logical_cpus": 4},
            [],
            "2 threads on 1 usable CPU (of 4; this process cannot use the others",
        ),
        (
            2,
            {"usable_cpus": 1, "cpu_quota": 1.5},
            [],
            "2 threads on 1 usable CPU (cgroups limit it to 1.5)",
        ),
        (3, {"usable_cpus": 4}, [0, 1], "3 threads on 2 usable CPUs (affinity 0, 1)"),
        (5, {"usable_cpus": 4, "logical_cpus": 4}, [], "5 threads on 4 usable CPUs:"),
    ],
)
def test_more_threads_than_cpus_are_refused(
    threads: int, there: dict[str, float], affinity: list[int], told: str
) -> None:
    """With the limit and where it comes from; one thread always fits, and what is not known limits nothing."""
    machine = Environment(**{**dict.fromkeys(Environment.__struct_fields__[:10]), "versions": {}, **there})
    variant = Variant("accelerated", Role.ACCELERATED, [], [], threads, affinity)
    with pytest.raises(UsageError) as raised:
        check_threads([variant], machine, oversubscribe=False)
    assert told in str(raised.value)
    assert "--oversubscribe" in str(raised.value.hint)
    check_threads([variant], machine, oversubscribe=True)
    check_threads([msgspec.structs.replace(variant, threads=1)], machine, oversubscribe=False)
    unknown = msgspec.structs.replace(machine, usable_cpus=None)
    check_threads([msgspec.structs.replace(variant, affinity=[])], unknown, oversubscribe=False)


@pytest.mark.runtime
def test_a_process_on_one_cpu_measures_one_thread(toy_program: Path, tmp_path: Path, built: Path) -> None:
    """Two are refused before anything runs, unless they are wanted all the same; in a file, too."""
    words = ["profile", str(toy_program), *SHORT, "--threads", "2", "--out", "out", "--quiet"]
    one = ["taskset", "-c", str(min(os.sched_getaffinity(0))), str(BIN)]
    cache_at = {"OPSCOPE_CACHE": str(built)}
    refused = run([*one, *words], tmp_path, **cache_at)
    assert (refused.returncode, "2 threads on 1 usable CPU" in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "e.toml").write_text(
        f'model = "{toy_program}"\nthreads = 2\nrounds = 1\nruns = 2\nuntraced = false\nceilings = false\n'
    )
    assert run([*one, "run", "e.toml"], tmp_path).returncode == 2
    allowed = run([*one, "run", "e.toml", "--oversubscribe", "--quiet"], tmp_path)
    assert allowed.returncode == 0, allowed.stderr
    [manifest] = tmp_path.glob("opscope-out/e/*/manifest.json")
    assert msgspec.json.decode(manifest.read_bytes())["environment"]["usable_cpus"] == 1


def test_a_real_quota_is_seen(tmp_path: Path) -> None:
    """See half a processor by this machine's own functions, and by the script that asks a device."""
    base = Path("/sys/fs/cgroup")
    group = (base / "cpu" if (base / "cpu").is_dir() else base) / f"opscope-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    version_1 = (group / "cpu.cfs_quota_us").exists()
    script = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n{QUOTA}"
    try:
        (group / ("cpu.cfs_quota_us" if version_1 else "cpu.max")).write_text("50000" if version_1 else "50000 100000")
        done = run([sys.executable, "-c", script], tmp_path)
    except OSError as error:
        pytest.skip(f"no quota can be set: {error}")
    finally:
        group.rmdir()
    assert done.stdout.splitlines() == ["0.5 1", "0.5 1 1"], done.stderr


# ---- names, locales, directories that cannot be written to

ELF = b"\x7fELF\x02\x01"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": None}


@pytest.mark.runtime
@pytest.mark.parametrize("locale", [{}, ASCII], ids=["usual locale", "ASCII only"])
def test_names_may_hold_any_letter(
    toy_program: Path, tmp_path: Path, built: Path, locale: dict[str, str | None]
) -> None:
    """Take any in names of the model, the bundle, the current directory and the cache, for both runners.

    Variables of the environment that bear on the run are recorded and in the report, and nothing else of it.
    """
    here = tmp_path / "Käse & Brot, frisch"
    here.mkdir()
    shutil.copy(toy_program, here / "Modell ä.pte")
    bearing = {"LD_LIBRARY_PATH": str(here), "OMP_NUM_THREADS": "3"}
    variables = {"OPSCOPE_CACHE": str(built), "TMPDIR": str(here), "SECRET_TOKEN": "hush", "LD_PRELOAD": None}
    variables |= locale | bearing
    target = "local" if locale else "auto"
    done = opscope("profile", "Modell ä.pte", "--target", target, *SHORT, "--out", "aus gabe ö", cwd=here, **variables)
    assert done.returncode == 0, done.stderr
    text = (here / "aus gabe ö" / "manifest.json").read_text("utf-8")
    manifest = msgspec.json.decode(text)
    assert manifest["model"]["source"] == "Modell ä.pte"
    assert manifest["target"]["kind"] in ("local", "native")
    assert (manifest["target"]["kind"] == "local") or list(built.glob("native/*/runner"))
    told = manifest["environment"]["variables"]
    assert told.items() >= bearing.items()
    assert told.keys() <= {*bearing, "PYTHONPATH"}
    assert "hush" not in text
    for name in ("report.md", "report.html"):
        assert "OMP_NUM_THREADS=3" in (here / "aus gabe ö" / name).read_text("utf-8").replace("\\", "")  # Markdown's
    for command in (["analyze", "aus gabe ö"], ["report", "aus gabe ö"], ["validate", "aus gabe ö"]):
        done = opscope(*command, cwd=here, **locale)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    """With an encoding that lacks the letter; the command ends as it would elsewhere."""
    done = opscope("analyze", "µ.etdump", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 3
    assert "no such file" in done.stderr


@pytest.mark.runtime
def test_a_name_that_is_no_text_is_refused(toy_program: Path, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 fit into no JSON; the message says what to do."""
    try:
        shutil.copy(toy_program, os.fsencode(tmp_path) + b"/b\xe4d.pte")
    except OSError:
        pytest.skip("this file system knows only names in UTF-8")
    words = [str(BIN), "profile", b"b\xe4d.pte", "--target", "local", *SHORT, "--out", "out"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "not valid UTF-8" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_system_without_room_for_temporary_files_is_told(tmp_path: Path) -> None:
    """All places that Python tries are read-only, as in a container without a volume."""
    mounts = "mount --bind /tmp /tmp; mount -o remount,ro,bind /tmp; mount -t tmpfs -o ro none /var/tmp"
    done = private(f"{mounts}; cd /var/tmp", (str(BIN), "doctor"), tmp_path, TMPDIR=None)
    assert (done.returncode, "TMPDIR" in done.stderr) == (9, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.runtime
def test_nothing_is_written_beside_the_sources(toy_program: Path, tmp_path: Path, built: Path) -> None:
    """Work in a checkout on a file system that refuses to be written to, also as the current directory."""
    place = tmp_path / "checkout"
    shutil.copytree(SOURCES, place, ignore=shutil.ignore_patterns("__pycache__"))
    mount = ["mount", "--bind", "-o", "ro", str(place), str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no read-only file system can be mounted here")
    variables = {"PYTHONPATH": str(place), "OPSCOPE_CACHE": str(built)}
    words = ("profile", toy_program, *SHORT)
    try:
        done = opscope(*words, "--out", tmp_path / "out", cwd=place, **variables)
        refused = opscope(*words, "--target", "local", cwd=place, **variables)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.returncode == 0, done.stderr
    assert refused.returncode == 9
    for said in ("opscope-out", "the file system is read-only", "choose a place on another file system"):
        assert said in refused.stderr


# ---- systems that lack something


@pytest.mark.runtime
def test_a_system_that_tells_nothing_of_itself_is_measured_all_the_same(
    toy_program: Path, tmp_path: Path, built: Path
) -> None:
    """Without /sys nothing crashes, and what cannot be read is null."""
    words = (str(BIN), "profile", str(toy_program), *SHORT, "--out", "out")
    done = hidden(["/sys"], words, tmp_path, OPSCOPE_CACHE=str(built))
    assert done.returncode == 0, done.stderr
    manifest = msgspec.json.decode((tmp_path / "out" / "manifest.json").read_bytes())
    assert manifest["environment"]["governor"] is None
    assert manifest["environment"]["cpu_quota"] is None
    state = manifest["repetitions"][0]["before"]
    assert (state["frequency_mhz"], state["temperature_celsius"]) == (None, None)


@pytest.mark.runtime
def test_without_processes_to_look_at_nothing_ends_in_a_traceback(tmp_path: Path) -> None:
    """Without /proc the runtime itself cannot read the CPU; that is said, and the machine's own part works."""
    for words in (("doctor", "--features"), ("doctor",)):
        done = hidden(["/sys", "/proc"], (str(BIN), *words), tmp_path)
        assert done.returncode in (0, 6, 12), done.stderr
        assert "Traceback" not in done.stderr
    done = hidden(["/sys", "/proc"], (sys.executable, "-c", STATE), tmp_path)
    assert done.stdout == "None None None None None\n", done.stderr


STATE = """
from opscope.machine.environment import capture, conditions
here, now = capture([]), conditions()
print(here.memory_bytes, here.hypervisor, here.governor, here.cpu_quota, now.temperature_celsius)
"""


def hidden(
    places: list[str], words: tuple[str, ...], cwd: Path, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """A command that finds these directories empty."""
    return private("; ".join(f"mount -t tmpfs none {place}" for place in places), words, cwd, **variables)


def private(
    script: str, words: tuple[str, ...], cwd: Path, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """A command in a view of the file system that it has to itself, and that a script changes before."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private view of the file system can be had here")
    return run(["unshare", "-m", "sh", "-ec", f'{script}; exec "$@"', "sh", *words], cwd, **variables)


@pytest.mark.runtime
def test_a_container_without_privileges_is_enough(toy_program: Path, tmp_path: Path) -> None:
    """No capability at all, CAP_SYS_NICE included, and a home directory that is closed: the whole command works."""
    (tmp_path / "home").mkdir(mode=0)
    variables = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": None, "TMPDIR": str(tmp_path)}
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    words = [*drop, str(BIN), "profile", str(toy_program), "--target", "local", *SHORT, "--out", "out"]
    done = run(words, tmp_path, **variables, OPSCOPE_CACHE=None)
    assert done.returncode == 0, done.stderr
    note = f"note:  {tmp_path / 'home'} is not writable: the cache is {tmp_path}/opscope-{os.geteuid()}"
    assert done.stderr.count(note) == 1
    done = run([*drop, str(BIN), "doctor"], tmp_path, **variables, OPSCOPE_CACHE=None)
    assert "a temporary one" in done.stdout


@pytest.mark.runtime
def test_a_cache_where_nothing_may_be_executed_is_said(tmp_path: Path) -> None:
    """As /tmp and home directories are mounted on hardened systems; the way out is named."""
    place = tmp_path / "cache"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", str(place)], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(MissingDependencyError, match="does not allow execution") as raised:
            build_runner(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert "OPSCOPE_CACHE" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), None),
        (("-static",), "is statically linked"),
        (("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1",), "is built for musl"),
        (("-Wl,--dynamic-linker=/system/bin/linker64",), "is built for Android's C library"),
    ],
)
def test_a_python_of_another_c_library_is_told(tmp_path: Path, flags: tuple[str, ...], told: str | None) -> None:
    """By the loader that the program asks for, read from a real one; the native runner is then refused."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs a C compiler on Linux")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
    python = tmp_path / "python"
    subprocess.run(["cc", *flags, "-o", python, tmp_path / "a.c"], check=True)
    found = other_c_library(python)
    assert (found or "").startswith(told or "")
    assert (found is None) is (told is None)
    if told:
        with pytest.raises(MissingDependencyError, match="wheels need glibc") as raised:
            build_runner(tmp_path / "cache", python)
        assert "Debian" in str(raised.value.hint)


@pytest.mark.parametrize(
    "damage", [b"", b"#!/bin/sh\n", ELF, ELF + b"\xff" * 58], ids=["empty", "script", "cut off", "damaged"]
)
def test_what_is_no_program_tells_no_c_library(tmp_path: Path, damage: bytes) -> None:
    """A script, an empty file, one that is cut off or damaged: then nothing is known, and nothing refused."""
    (tmp_path / "python").write_bytes(damage)
    assert other_c_library(tmp_path / "python") is None
    assert other_c_library(tmp_path / "missing") is None
