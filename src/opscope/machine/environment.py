"""The machine: what it is, the state it is in, whether it is emulated. What cannot be read is null, never a guess.

An emulator is told from inside by what it cannot help showing. QEMU's user mode passes a program's system calls on to
the real kernel. It answers only for some files of /proc by itself, so that a program sees itself there and not QEMU: of
these ``/proc/self/stat`` holds no memory, and others that lead to the same process, such as those below
``/proc/thread-self``, are the kernel's. Seen with QEMU 5.2, 7.2, 10.0 and 11.1, for aarch64 and x86-64; source:
``linux-user/syscall.c`` of QEMU (``is_proc_myself``, ``open_self_stat``).

An emulated x86 CPU tells CPUID's leaf of hypervisors "TCGTCGTCGTCG", after QEMU's code generator, whatever its type,
in user mode as in a whole machine; with KVM that is "KVMKVMKVM". Seen with the same versions.

A whole emulated machine has a kernel of its own that tells nothing but the CPU's name. QEMU's type ``max`` for Arm
names itself in MIDR_EL1: implementer 0, which is "reserved for software", and part ``'Q'``; its type ``max`` for x86
is called "QEMU TCG CPU". Source: ``target/arm/tcg/cpu64.c`` and ``target/i386/tcg/tcg-cpu.c``. With KVM neither is so.
Rosetta calls the CPU that an x86-64 program sees "VirtualApple".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Conditions, Environment
from opscope.core.files import text_of
from opscope.core.system.elf import machine_of
from opscope.core.version import __version__
from opscope.machine.cpu_reading import hypervisor_signature
from opscope.machine.macos import PowerState, read_host_uuid, read_power, read_sysctl_number, read_sysctl_text
from opscope.machine.processor import cpu_quota, usable_cpus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.bundle.manifest import Target


_PACKAGES = ("executorch", "torch", "numpy", "polars")
_CPU = Path("/sys/devices/system/cpu")
_BIOS = Path("/sys/class/dmi/id")
_FIRMWARE = (_BIOS / "bios_vendor", _BIOS / "bios_version", Path("/proc/device-tree/chosen/bootloader/version"))
_KIB, _DIGITS = 1024, 16
# Which code is loaded, then how many threads it may start and where, then how memory is given out.
_VARIABLES = (
    *("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_BIND_NOW"),
    *("DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    *("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "KMP_AFFINITY"),
    *("KMP_BLOCKTIME", "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GLIBC_TUNABLES"),
    *("MALLOC_ARENA_MAX", "MALLOC_CONF", "MALLOC_PERTURB_", "MALLOC_CHECK_", "QEMU_CPU", "QEMU_LD_PREFIX"),
)
_ARM_CORE = ("implementer", "variant", "part", "revision")


def capture(features: list[str] | None) -> Environment:
    """Return the machine and its software."""
    cpuinfo = text_of(Path("/proc/cpuinfo"))
    is_mac = sys.platform == "darwin"
    name = read_sysctl_text("machdep.cpu.brand_string") if is_mac else cpu_name(cpuinfo)
    return Environment(
        system=platform.system(),
        machine=platform.machine(),
        kernel=platform.release(),
        cpu=name or platform.processor() or None,
        logical_cpus=os.cpu_count() or 1,
        usable_cpus=usable_cpus(),
        memory_bytes=read_sysctl_number("hw.memsize") if is_mac else memory_bytes(text_of(Path("/proc/meminfo"))),
        hypervisor=hypervisor(cpuinfo),
        governor=text_of(_CPU / "cpu0/cpufreq/scaling_governor") or None,
        features=features,
        versions=versions(),
        cpu_quota=cpu_quota(),
        variables=variables(),
        emulator=emulator_here(),
        revision=cpu_revision(cpuinfo),
        host=host_digest(host()),
        firmware=firmware(),
    )


def firmware() -> str | None:
    """Return the version of the firmware that starts this machine, such as its BIOS.

    See ``opscope.hosts.scripts.FACTS``.
    """
    text = " ".join(filter(None, (text_of(path) for path in _FIRMWARE))).replace("\0", "")
    return text or None


def host_digest(text: str) -> str | None:
    """Return a hash of what tells a machine, see :func:`host`; None without a number: its name could be guessed."""
    name, _, number = text.strip().partition("\n")
    return digest(text.strip().encode()) if name and number else None


def digest(content: bytes) -> str:
    """Return a short name for something that is not to be shown."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, as installed here."""
    installed = {"opscope": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def variables() -> dict[str, str]:
    """Return the variables of this process's environment that are set and bear on what runs or how fast."""
    return {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}


def conditions() -> Conditions:
    """Return the load, clock frequency and temperature now, and the processors that may be used."""
    megahertz = _highest_number(_CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    celsius = _highest_number(Path("/sys/class/thermal").glob("thermal_zone*/temp"))
    power = read_power() if sys.platform == "darwin" else PowerState(None, None)
    return Conditions(
        _load_average(), megahertz, celsius, usable_cpus(), speed_limit=power.speed_limit, low_power=power.is_low_power
    )


def _load_average() -> float | None:
    """Return the load average, if the system tells it."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _highest_number(files: Iterable[Path]) -> float | None:
    """Return the largest of numbers in files, each a thousandth of the unit."""
    numbers = (text for text in map(text_of, files) if re.fullmatch(r"-?\d+", text))
    return max((int(number) / 1000 for number in numbers), default=None)


def cpu_name(cpuinfo: str) -> str | None:
    """Return the processor's name in the text of Linux's ``/proc/cpuinfo``; None where it tells none."""
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def cpu_revision(cpuinfo: str | None = None) -> str | None:
    """Return the microcode, or on Arm each kind of core, which tells processors of one name apart.

    None where none does.
    """
    text = text_of(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo
    microcode = re.search(r"^microcode\s*:\s*(\S+)", text, re.MULTILINE)
    if microcode:
        return microcode[1]
    cores = [re.findall(rf"^CPU {name}\s*:\s*(\S+)", text, re.MULTILINE) for name in _ARM_CORE]
    return ", ".join(sorted({"/".join(core) for core in zip(*cores, strict=False)})) or None


def host() -> str:
    """Return the text that tells this machine from others: its name, and its number where it has one."""
    number = read_host_uuid() if sys.platform == "darwin" else text_of(Path("/etc/machine-id"))
    return f"{platform.node()}\n{number or ''}"


def memory_bytes(meminfo: str) -> int | None:
    """Return all memory, by the text of Linux's ``/proc/meminfo``; None where it tells nothing."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * _KIB if match else None


def hypervisor(cpuinfo: str) -> bool | None:
    """Return whether Linux's ``/proc/cpuinfo`` tells of a hypervisor; None where it lists no x86 features."""
    if not re.search(r"^flags\s*:", cpuinfo, re.MULTILINE):
        return None
    return bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE))


_PROC = Path("/proc")
_USER_MODE, _TCG = "QEMU's user mode", b"TCGTCGTCGTCG"
# State is the first word behind the name, the third field; the memory of the process is the 23rd (proc(5)).
_MEMORY_AT = 20
_QEMU = re.compile(r"(?:.*/)?(qemu-(?:aarch64(?:_be)?|arm|armeb|x86_64|i386|riscv64))(?:-static)?(?: \(deleted\))?")
_NAMES = {
    "QEMU": re.compile(r"^model name\s*:\s*QEMU TCG CPU\b", re.MULTILINE),
    "Rosetta": re.compile(r"^model name\s*:\s*VirtualApple\b", re.MULTILINE),
}
_MAX = re.compile(r"^CPU implementer\s*:\s*0x00$(?:\n.+)*?\nCPU part\s*:\s*0x051$", re.MULTILINE)


def emulator_here() -> str | None:
    """Return the emulator of the CPU that this process runs on; None where nothing tells of one."""
    if sys.platform == "darwin":
        return "Rosetta" if read_sysctl_number("sysctl.proc_translated") == 1 else None
    return (
        reported_emulator(text_of(_PROC / "self/stat"), _path_of_program(), text_of(_PROC / "cpuinfo"))
        or _qemu_by_signature()
        or _translating_program()
    )


def reported_emulator(stat: str, program: str, cpuinfo: str) -> str | None:
    """Return the emulator of the CPU that a process of Linux sees; None where nothing of this tells of one."""
    match = _QEMU.fullmatch(program.strip())
    if match:
        return f"{_USER_MODE} ({match[1]})"
    # Every process that can read its own line has some memory.
    fields = stat.rpartition(")")[2].split()
    if len(fields) > _MEMORY_AT and fields[_MEMORY_AT] == "0":
        return _USER_MODE
    if _MAX.search(cpuinfo):
        return "QEMU"
    return next((name for name, pattern in _NAMES.items() if pattern.search(cpuinfo)), None)


def marked(target: Target, environment: Environment) -> Target:
    """Return a target, as an emulated one when its machine tells of an emulator."""
    return msgspec.structs.replace(target, emulated=target.emulated or environment.emulator is not None)


def _qemu_by_signature() -> str | None:
    """Return QEMU, where CPUID answers with the signature of its code generator."""
    x86 = platform.machine().lower() in {"x86_64", "amd64"} and sys.platform == "linux"
    return "QEMU" if x86 and hypervisor_signature() == _TCG else None


def _translating_program() -> str | None:
    """Return the program that the kernel runs instead of this Python, when it is one for another processor."""
    try:
        runs, ours = machine_of(_PROC / "thread-self/exe"), machine_of(Path(sys.executable))
    except OSError:
        return None
    return Path(_path_of_program()).name or "another program" if runs and ours and runs != ours else None


def _path_of_program() -> str:
    """Return the path of the program that the kernel runs; empty where it does not tell."""
    try:
        return str((_PROC / "thread-self/exe").readlink())
    except OSError:
        return ""
