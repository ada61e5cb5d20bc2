"""A directory that stands for a phone: Android's shell and tools, its settings, its logs, what its kernel tells.

The shell is mksh and the tools are toybox, as on Android, so what is sent to a phone is run by what would run it.
``settings``, ``svc``, ``getprop``, ``dumpsys`` and ``logcat`` are scripts over files. Paths of a phone are those below
the directory. Nothing here has been compared with a real phone beyond the documents that the tests name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

NEEDS = ("adb", "mksh", "toybox")
# What Android has of toybox since version 8 (system/core/shell_and_utilities/README.md), as far as it is of use here.
_TOOLS = (
    "[ cat chmod cp date df du echo env false find flock grep head id kill ln ls mkdir mv nice nohup printf ps pwd "
    "readlink realpath rm rmdir sed setsid sha256sum sleep sort stat sync tail taskset test timeout touch tr "
    "true uname uniq uptime wc which xargs"
)
_MAPPED = re.compile(r"(?<![\w./-])/(?=(?:data|sys|etc)(?:/|\b)|proc/(?:cpuinfo|sys/kernel/random))")
_SCRIPTS = {
    "getprop": """
        if [ $# -eq 0 ]; then while IFS='=' read -r k v; do echo "[$k]: [$v]"; done < "$PHONE/build.prop"; exit 0; fi
        while IFS='=' read -r k v; do [ "$k" = "$1" ] && echo "$v"; done < "$PHONE/build.prop"; exit 0
    """,
    "settings": """
        f="$PHONE/settings/$2/$3"
        case "$1" in
        get) if [ -f "$f" ]; then cat "$f"; else echo null; fi;;
        put) [ -e "$PHONE/settings.denied" ] && { echo "java.lang.SecurityException: Permission denial" >&2; exit 255; }
             mkdir -p "$PHONE/settings/$2"; echo "$4" > "$f";;
        delete) if [ -f "$f" ]; then rm "$f"; echo "Deleted 1 rows"; else echo "Deleted 0 rows"; fi;;
        esac
    """,
    "svc": """
        [ "$1 $2 $3" = "power stayon true" ] || exit 1
        exec settings put global stay_on_while_plugged_in 15
    """,
    "dumpsys": """
        [ -f "$PHONE/dumpsys/$1" ] && exec cat "$PHONE/dumpsys/$1"
        echo "Can't find service: $1" >&2; exit 1
    """,
    "log": """
        tag=log; while getopts "p:t:" o; do [ "$o" = t ] && tag=$OPTARG; done; shift $((OPTIND - 1))
        echo "11-21 12:00:00.000 $PPID $PPID I $tag: $*" >> "$PHONE/logcat.txt"
    """,
    "logcat": """
        pid=; for w in "$@"; do case "$w" in --pid=*) pid=${w#--pid=};; esac; done
        [ -f "$PHONE/logcat.txt" ] || exit 0
        while read -r day time p rest; do
            if [ -z "$pid" ] || [ "$p" = "$pid" ]; then echo "$day $time $p $rest"; fi
        done < "$PHONE/logcat.txt"
    """,
}
_PROPERTIES = """\
ro.product.manufacturer=Example
ro.product.model=Phone 1
ro.product.cpu.abi=x86_64
sys.boot_completed=1
ro.soc.manufacturer=Example Silicon
ro.soc.model=ES9001
ro.build.fingerprint=example/phone1/phone1:15/AB1.250101.001/1:user/release-keys
ro.build.version.release=15
ro.build.version.sdk=35
"""
_BATTERY = """\
Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  status: 2
  level: 83
  scale: 100
  temperature: 312
"""
_THERMAL = """\
IsStatusOverride: false
Thermal Status: 1
Cached temperatures:
	Temperature{mValue=30.1, mType=3, mName=skin, mStatus=0}
Current temperatures from HAL:
	Temperature{mValue=41.5, mType=0, mName=CPU0, mStatus=0}
	Temperature{mValue=47.25, mType=0, mName=CPU7, mStatus=1}
	Temperature{mValue=33.0, mType=3, mName=skin, mStatus=0}
"""


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close what is left of a command's input and outputs."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError, ValueError):
                pipe.close()


class Phone:
    """A phone in a directory.

    Args:
        directory: new or empty.
    """

    banner = "ro.product.name=phone1;ro.product.model=Phone_1;ro.product.device=phone1;"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands: list[str] = []
        self.pushed: list[str] = []
        self.refusal: OSError | None = None
        self._running: list[subprocess.Popen[bytes]] = []
        self._make_tools(directory / "system" / "bin")
        for name in ("data/local/tmp", "settings", "dumpsys", "proc/sys/kernel/random"):
            (directory / name).mkdir(parents=True)
        (directory / "build.prop").write_text(_PROPERTIES)
        (directory / "dumpsys" / "battery").write_text(_BATTERY)
        (directory / "dumpsys" / "thermalservice").write_text(_THERMAL)
        for name in ("online", "present"):
            self.real(f"/sys/devices/system/cpu/{name}").parent.mkdir(parents=True, exist_ok=True)
            self.real(f"/sys/devices/system/cpu/{name}").write_text("0-1\n")
        (directory / "proc" / "cpuinfo").write_text("processor\t: 0\nprocessor\t: 1\n")
        self._write_boot()
        for cpu, highest, now in ((0, 2_000_000, 1_800_000), (1, 3_300_000, 3_000_000)):
            self.set_frequency(cpu, highest, now)

    def real(self, path: str) -> Path:
        """Where a path of the phone lies."""
        return self.directory / path.lstrip("/")

    @property
    def tmp(self) -> Path:
        """Where adb may write."""
        return self.real("/data/local/tmp")

    def set_frequency(self, cpu: int, highest: int, now: int) -> None:
        """What the kernel tells of a CPU, in kHz."""
        place = self.directory / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        place.mkdir(parents=True, exist_ok=True)
        for name, value in (
            ("scaling_cur_freq", now),
            ("scaling_max_freq", highest),
            ("cpuinfo_max_freq", highest),
            ("scaling_governor", "schedutil"),
        ):
            (place / name).write_text(f"{value}\n")

    def setting(self, name: str) -> str | None:
        """A global setting; None when it is not set."""
        path = self.directory / "settings" / "global" / name
        return path.read_text().strip() if path.exists() else None

    def put(self, name: str, value: str) -> None:
        """Set a global setting, as its owner would."""
        path = self.directory / "settings" / "global" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{value}\n")

    def write(self, path: str, content: bytes, mode: int) -> None:
        """A file that is pushed."""
        if self.refusal is not None:
            raise self.refusal
        self.pushed.append(path)
        target = self.real(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)

    def start(self, command: str, *, merged: bool) -> subprocess.Popen[bytes]:
        """Run a command line as Android's shell would.

        Args:
            command: with paths of the phone.
            merged: whether its outputs come in one.
        """
        self.commands.append(command)
        process = subprocess.Popen(
            [shutil.which("mksh") or "mksh", "-c", _MAPPED.sub(f"{self.directory}/", command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            cwd=self.directory,
            env={"PATH": str(self.directory / "system" / "bin"), "PHONE": str(self.directory)},
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def hidden(self, output: bytes) -> bytes:
        """Output as the phone would print it, with its own paths."""
        return output.replace(str(self.directory).encode(), b"")

    def end_all(self) -> None:
        """End everything that runs, with what it started."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            close_pipes(process)
        self._running.clear()

    def restart(self) -> None:
        """What a reboot does: everything ends, files and settings stay, the boot has another number."""
        self.end_all()
        self._write_boot()

    def _write_boot(self) -> None:
        (self.directory / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")

    @staticmethod
    def _make_tools(place: Path) -> None:
        place.mkdir(parents=True)
        for name in _TOOLS.split():
            (place / name).symlink_to(shutil.which("toybox") or "toybox")
        for name, script in _SCRIPTS.items():
            path = place / name
            path.write_text(f"#!{shutil.which('mksh')}\n{script}")
            path.chmod(0o755)
        (place / "sh").symlink_to(shutil.which("mksh") or "mksh")
