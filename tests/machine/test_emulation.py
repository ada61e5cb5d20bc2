"""An emulated CPU is told from inside, and a real one is never taken for one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import Environment, Target
from opscope.experiment.checks import State, virtual_check
from opscope.experiment.planned import Settings
from opscope.hosts.facts import environment_of, parts
from opscope.machine.environment import emulator_here, marked, reported_emulator
from opscope.workflows.measure.profiling import profile
from programs import write_tiny_program
from qemu import x86_emulator

# What these versions of QEMU answered to a program that read its /proc/self/stat.
USER_MODE = {
    "5.2": "10769 (python3.13) " + "0 " * 24 + "365080610784 " + "0 " * 16 + "\n\n",
    "7.2": "11338 (python3.13) 0 11336 " + "0 " * 17 + "193601 " + "0 " * 5 + "365080610784 " + "0 " * 16 + "\n\n",
    "10.0": "11449 (python3.13) R 11447 " + "0 " * 15 + "1 0 194080 " + "0 " * 5 + "140232785651664 " + "0 " * 16,
    "11.1": "11496 (python3.13) R 11494 11494 " + "0 " * 14 + "1 0 194391 " + "0 " * 5 + "139809806870480 " + "0 " * 16,
}
# What the kernel answered, here in a virtual machine, to a process with spaces and brackets in its name.
REAL = (
    "11585 (a) b (c)) R 10754 10754 5487 0 -1 4194304 2938 6533 0 0 4 3 4 1 20 0 1 0 194658 17108992 3415 "
    "18446744073709551615 94400755777536 94400755777877 140734359265200 0 0 0 0 16781312 2 0 0 0 17 0 0 0 0 0 0\n"
)
ARM_CORE = """processor\t: 0
BogoMIPS\t: {bogomips}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: {variant}
CPU part\t: {part}
CPU revision\t: 1

"""
# A recording of qemu-system-aarch64 -cpu max: github.com/hrw/arm-socs-table, issue 7.
MACHINE_MAX = ARM_CORE.format(bogomips="125.00", implementer="0x00", variant="0x0", part="0x051")
# Neoverse N1 of a cloud machine with KVM; a phone with two kinds of cores; part 0x051 of a maker that is not QEMU.
REAL_ARM = {
    "Neoverse N1": ARM_CORE.format(bogomips="243.75", implementer="0x41", variant="0x3", part="0xd0c"),
    "Snapdragon": ARM_CORE.format(bogomips="38.40", implementer="0x41", variant="0x2", part="0xd05") * 4
    + ARM_CORE.format(bogomips="38.40", implementer="0x41", variant="0x1", part="0xd41"),
    "Apple, virtual": ARM_CORE.format(bogomips="48.00", implementer="0x61", variant="0x0", part="0x000"),
    "a hidden maker": ARM_CORE.format(bogomips="48.00", implementer="0x00", variant="0x0", part="0x000"),
    "another maker's 0x051": ARM_CORE.format(bogomips="48.00", implementer="0x51", variant="0x0", part="0x051"),
    "0x00 and 0x051 of two cores": ARM_CORE.format(bogomips="1.00", implementer="0x00", variant="0x0", part="0x000")
    + ARM_CORE.format(bogomips="1.00", implementer="0x41", variant="0x0", part="0x051"),
}
REAL_X86 = "vendor_id\t: AuthenticAMD\nmodel name\t: {}\nflags\t\t: fpu vme hypervisor\n"


@pytest.mark.parametrize("version", USER_MODE)
def test_user_mode_shows_a_process_without_memory(version: str) -> None:
    """Every version that was tried answers so for /proc/self/stat, whatever QEMU's own file is called."""
    assert reported_emulator(USER_MODE[version], "/opt/bin/arm-runner", "") == "QEMU's user mode"


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/usr/bin/qemu-aarch64-static", "qemu-aarch64"),
        ("/home/a b/qemu-x86_64", "qemu-x86_64"),
        ("/usr/libexec/qemu-binfmt/qemu-aarch64 (deleted)", "qemu-aarch64"),
        ("qemu-aarch64_be-static\n", "qemu-aarch64_be"),
    ],
)
def test_the_program_that_the_kernel_runs_names_the_emulator(program: str, name: str) -> None:
    """By the link that QEMU does not answer for."""
    assert reported_emulator(REAL, program, "") == f"QEMU's user mode ({name})"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (MACHINE_MAX, "QEMU"),
        (REAL_X86.format("QEMU TCG CPU version 2.5+"), "QEMU"),
        (REAL_X86.format("VirtualApple @ 2.50GHz"), "Rosetta"),
    ],
)
def test_an_emulated_machine_is_told_by_its_cpu(cpuinfo: str, name: str) -> None:
    """The name that an emulator gives to a CPU which does not exist."""
    assert reported_emulator(REAL, "/usr/bin/python3.13", cpuinfo) == name


@pytest.mark.parametrize(
    "cpuinfo",
    [
        *REAL_ARM.values(),
        "",
        REAL_X86.format("AMD EPYC"),
        REAL_X86.format("Intel(R) Xeon(R) Processor @ 2.70GHz"),
        REAL_X86.format("QEMU Virtual CPU version 2.5+"),  # with KVM, too: the name of a type, not of its maker
    ],
)
def test_a_real_processor_is_not_taken_for_an_emulated_one(cpuinfo: str) -> None:
    """Nor is one with KVM, in a container, or with a /proc that tells nothing."""
    stats = [REAL, "", "no line of this kind", "1 (sh) R 1"]
    programs = ["/usr/bin/python3.13", "", "/usr/bin/qemu-img", "/opt/qemu-arm/bin/python3", "/usr/bin/qemu-system-arm"]
    assert {reported_emulator(stat, program, cpuinfo) for stat in stats for program in programs} == {None}


def test_this_machine_is_a_real_one() -> None:
    """Asked of the process that runs the tests."""
    assert emulator_here() is None


@pytest.mark.parametrize(
    ("name", "answer"), [("qemu-x86_64", "QEMU's user mode (qemu-x86_64)"), ("runner", "QEMU's user mode")]
)
def test_a_process_under_qemu_tells_so(name: str, answer: str, tmp_path: Path) -> None:
    """The same processor emulated on itself, by QEMU under its own name and under another one."""
    emulator = x86_emulator()
    shutil.copy(emulator, tmp_path / name)
    script = "from opscope.machine.environment import emulator_here; print(emulator_here())"
    command = [str(tmp_path / name), "-cpu", "max", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer


@pytest.mark.parametrize("model", ["max", "qemu64", "EPYC"])
def test_an_emulated_x86_cpu_names_the_code_generator(model: str) -> None:
    """Whatever CPU it stands for: so in a whole machine, too, whose kernel tells nothing of QEMU."""
    script = "from opscope.machine.cpu_reading import hypervisor_signature; print(hypervisor_signature())"
    command = [x86_emulator(), "-cpu", model, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "b'TCGTCGTCGTCG'"


def test_a_device_tells_what_emulates_it() -> None:
    """A container for another processor that is reached over ssh: its shell runs under the emulator, too."""
    told = b"@@system\nLinux\n@@stat\n12 (cat) R 1 0 0\n@@runs\n/usr/bin/qemu-aarch64-static\n@@end\n"
    assert environment_of(parts(told), None, {}).emulator == "QEMU's user mode (qemu-aarch64)"


def test_a_target_is_marked_by_its_machine() -> None:
    """A target that is known to be emulated stays so."""
    real = FakeTarget().environment()
    emulated = msgspec.structs.replace(real, emulator="QEMU")
    assert marked(Target("native", ""), real).emulated is False
    assert marked(Target("native", ""), emulated) == Target("native", "", emulated=True)
    assert marked(Target("qemu-aarch64", "", emulated=True), real).emulated is True


class EmulatedTarget(FakeTarget):
    """A target whose machine tells of an emulator."""

    def environment(self) -> Environment:
        """With what emulates it."""
        return msgspec.structs.replace(super().environment(), emulator="QEMU's user mode (qemu-x86_64)")


def test_a_run_on_an_emulated_cpu_gives_no_verdict(tmp_path: Path) -> None:
    """The bundle is marked, no ceilings are measured, and the report compares no times."""
    target = EmulatedTarget()
    out = tmp_path / "out"
    program = str(write_tiny_program(tmp_path))
    found = profile(program, settings=Settings(rounds=6, runs=2), out=out, target=target, clock=FakeClock())
    manifest = Bundle.open(out).manifest
    assert (manifest.target.emulated, manifest.environment.emulator) == (True, "QEMU's user mode (qemu-x86_64)")
    assert target.ceilings_asked == []
    assert found.content.comparisons == []
    for text in ((out / name).read_text(encoding="utf-8") for name in ("report.md", "report.html")):
        assert "Ran on an emulated CPU" in text
        assert "emulated by QEMU" in text
    assert not (out / "comparison.json").exists()


def test_doctor_says_that_the_cpu_is_emulated() -> None:
    """A note with what it costs: outputs and kernels still count."""
    found = virtual_check(EmulatedTarget().environment())
    assert (found.name, found.state) == ("machine", State.NOTE)
    assert found.found.startswith("the CPU is emulated by QEMU's user mode (qemu-x86_64)")
