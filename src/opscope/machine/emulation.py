"""Whether a CPU is an emulated one, told from inside by what an emulator cannot help showing.

QEMU's user mode passes a program's system calls on to the real kernel. It answers only for some files of /proc by
itself, so that a program sees itself there and not QEMU: of these ``/proc/self/stat`` holds no memory, and others
that lead to the same process, such as those below ``/proc/thread-self``, are the kernel's. Seen with QEMU 5.2, 7.2,
10.0 and 11.1, for aarch64 and x86-64; source: ``linux-user/syscall.c`` of QEMU (``is_proc_myself``,
``open_self_stat``).

An emulated x86 CPU tells CPUID's leaf of hypervisors "TCGTCGTCGTCG", after QEMU's code generator, whatever its type,
in user mode as in a whole machine; with KVM that is "KVMKVMKVM". Seen with the same versions.

A whole emulated machine has a kernel of its own that tells nothing but the CPU's name. QEMU's type ``max`` for Arm
names itself in MIDR_EL1: implementer 0, which is "reserved for software", and part ``'Q'``; its type ``max`` for x86
is called "QEMU TCG CPU". Source: ``target/arm/tcg/cpu64.c`` and ``target/i386/tcg/tcg-cpu.c``. With KVM neither is so.
Rosetta calls the CPU that an x86-64 program sees "VirtualApple".
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opscope.core.files import text_of
from opscope.core.system.elf import machine_of
from opscope.machine.cpu_reading import hypervisor_signature

if TYPE_CHECKING:
    from opscope.bundle.manifest import Environment, Target

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
    """What emulates the CPU that this process runs on; None where nothing tells of an emulator."""
    return (
        reported_emulator(text_of(_PROC / "self/stat"), _program(), text_of(_PROC / "cpuinfo"))
        or _generated()
        or _translator()
    )


def reported_emulator(stat: str, program: str, cpuinfo: str) -> str | None:
    """What emulates the CPU that a process of Linux sees; None where nothing of this tells of an emulator."""
    named = _QEMU.fullmatch(program.strip())
    if named:
        return f"{_USER_MODE} ({named[1]})"
    # Every process that can read its own line has some memory.
    fields = stat.rpartition(")")[2].split()
    if len(fields) > _MEMORY_AT and fields[_MEMORY_AT] == "0":
        return _USER_MODE
    if _MAX.search(cpuinfo):
        return "QEMU"
    return next((name for name, pattern in _NAMES.items() if pattern.search(cpuinfo)), None)


def marked(target: Target, environment: Environment) -> Target:
    """A target, as an emulated one when its machine tells of an emulator."""
    return msgspec.structs.replace(target, emulated=target.emulated or environment.emulator is not None)


def _generated() -> str | None:
    """QEMU, where CPUID answers with the signature of its code generator."""
    x86 = platform.machine().lower() in {"x86_64", "amd64"} and sys.platform == "linux"
    return "QEMU" if x86 and hypervisor_signature() == _TCG else None


def _translator() -> str | None:
    """The program that the kernel runs instead of this Python, when it is one for another processor."""
    try:
        runs, ours = machine_of(_PROC / "thread-self/exe"), machine_of(Path(sys.executable))
    except OSError:
        return None
    return Path(_program()).name or "another program" if runs and ours and runs != ours else None


def _program() -> str:
    try:
        return str((_PROC / "thread-self/exe").readlink())
    except OSError:
        return ""
