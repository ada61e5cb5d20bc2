"""Whether a program was built for the processor of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import UsageError
from opscope.core.system.elf import AARCH64, ARM, X86, X86_64, machine_of

if TYPE_CHECKING:
    from pathlib import Path


class Processor(NamedTuple):
    """A kind of processor, and the machines that its programs may be for.

    Attributes:
        name: as compilers call it.
        abi: as the Android NDK calls it.
        machines: numbers of an ELF file.
    """

    name: str
    abi: str
    machines: frozenset[int]


_PROCESSORS = {
    "aarch64": Processor("aarch64", "arm64-v8a", frozenset({AARCH64, ARM})),
    "armv8l": Processor("armv7l", "armeabi-v7a", frozenset({ARM})),
    "armv7l": Processor("armv7l", "armeabi-v7a", frozenset({ARM})),
    "x86_64": Processor("x86_64", "x86_64", frozenset({X86_64, X86})),
}
_BUILT = {AARCH64: "aarch64", ARM: "32-bit Arm", X86_64: "x86-64", X86: "32-bit x86"}


def check_processor(program: Path, machine: str, how_to_build: str) -> None:
    """Refuse a program that was built for another processor than a device's; one that does not tell may run.

    Args:
        program: the file, here.
        machine: what ``uname -m`` says on the device.
        how_to_build: what to do; in it ``{name}`` and ``{abi}`` stand for those of the processor.

    Raises:
        UsageError: saying for which it was built.
    """
    built, known = machine_of(program), _PROCESSORS.get(machine)
    if built is None or known is None or built in known.machines:
        return
    problem = f"the runner was built for {_BUILT.get(built, f'machine {built}')}, the device is {machine}"
    raise UsageError(problem, where=program, hint=how_to_build.format(name=known.name, abi=known.abi))
