"""The mask of hardware capabilities in a real process for 64-bit Arm, under QEMU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from opscope.bundle.manifest import Mechanism
from opscope.core.errors import FeatureError, MissingDependencyError
from opscope.hosts.emulator import find_emulator
from opscope.machine.cpu_reading import hwcap_bits
from opscope.machine.switch.switch import PreparedSwitch, masks, prepared_for, proof
from qemu import use_emulator
from texts import NOBODY_ASKS

LIBRARY = """
#include <sys/auxv.h>
unsigned long asks(int second) { unsigned long v = getauxval(second ? AT_HWCAP2 : AT_HWCAP); return v + second * 0; }
unsigned long page(void) { unsigned long v = getauxval(AT_PAGESZ); return v + 0; }
"""
PROGRAM = """
#include <stdio.h>
#include <sys/auxv.h>
unsigned long asks(int), page(void);
int main(void) {
  unsigned long a = asks(0), b = asks(1), c = getauxval(AT_HWCAP);
  printf("%lx %lx %lx %lu\\n", a, b, c, page());
  return 0;
}
"""
COMPILER, ROOT = "aarch64-linux-gnu-gcc", Path("/usr/aarch64-linux-gnu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the program and the library that it is linked to."""
    if shutil.which(COMPILER) is None or not ROOT.exists():
        pytest.skip(f"needs {COMPILER} with its C library: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    made = tmp_path_factory.mktemp("hwcap")
    for name, text in (("asks", LIBRARY), ("program", PROGRAM)):
        (made / f"{name}.c").write_text(text, encoding="utf-8")
    library = [COMPILER, "-O1", "-shared", "-fPIC", "asks.c", "-o", "libasks.so"]
    program = [COMPILER, "-O1", "program.c", "-o", "program", "-L.", "-lasks", "-Wl,-rpath,$ORIGIN"]
    for command in (library, program):
        subprocess.run(command, check=True, cwd=made)
    return made


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What starts a program for 64-bit Arm."""
    use_emulator(monkeypatch)
    return [*find_emulator().command, "-cpu", "max", "-L", str(ROOT)]


def prepare(place: Path, directory: Path, clear: list[str]) -> PreparedSwitch:
    """The switch for the library of the tests."""
    try:
        return prepared_for(Mechanism.HWCAP, [place / "libasks.so"], clear, directory)
    except MissingDependencyError as error:
        pytest.skip(f"needs a compiler: {error}")


def run(emulator: list[str], place: Path, switch: PreparedSwitch | None) -> list[int]:
    """AT_HWCAP and AT_HWCAP2 as the library sees them, AT_HWCAP as the program does, and the size of a page."""
    variables = switch.variables if switch else {}
    done = subprocess.run(
        [*emulator, str(place / "program")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, program, page = done.stdout.split()
    return [int(first, 16), int(second, 16), int(program, 16), int(page)]


def test_the_library_is_told_fewer_capabilities(emulator: list[str], place: Path, tmp_path: Path) -> None:
    """And the program, which was not asked for, is told all."""
    switch = prepare(place, tmp_path, ["sme", "sme2", "dot"])
    before, after = run(emulator, place, None), run(emulator, place, switch)
    dot, sme = hwcap_bits("dot")[0], hwcap_bits("sme")[1] | hwcap_bits("sme2")[1]
    assert before[0] & dot
    assert before[1] & sme == sme
    assert after == [before[0] & ~dot, before[1] & ~sme, before[2], before[3]]
    found = proof(switch.record)
    assert (found.mechanism, found.sites, found.executions, found.masked) == (Mechanism.HWCAP, 1, 2, 2)


def test_without_a_mask_it_is_told_what_the_system_says(emulator: list[str], place: Path, tmp_path: Path) -> None:
    """Its questions are counted all the same."""
    switch = prepare(place, tmp_path, [])
    assert run(emulator, place, switch) == run(emulator, place, None)
    assert (proof(switch.record).executions, proof(switch.record).masked) == (2, 0)


def test_a_process_without_the_mask_is_a_refusal(emulator: list[str], place: Path, tmp_path: Path) -> None:
    """There is no report then."""
    switch = prepare(place, tmp_path, ["sme"])
    run(emulator, place, None)
    with pytest.raises(FeatureError, match="the loader ignored LD_PRELOAD"):
        proof(switch.record)


def test_a_library_that_asks_otherwise_is_refused(place: Path, tmp_path: Path) -> None:
    """The program's own library calls ``getauxval``; one that does not cannot be switched."""
    (tmp_path / "quiet.c").write_text("int quiet(void) { return 1; }", encoding="utf-8")
    command = [COMPILER, "-shared", "-fPIC", "quiet.c", "-o", "libquiet.so"]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert (place / "libasks.so").exists()
    with pytest.raises(FeatureError, match=rf"{NOBODY_ASKS} .*: libquiet\.so"):
        prepared_for(Mechanism.HWCAP, [tmp_path / "libquiet.so"], ["sme"], tmp_path)


def test_a_field_of_several_bits_is_off_when_all_are() -> None:
    """Half precision has one bit for scalars and one for vectors, bfloat16 one in SVE, too."""
    assert [mask.bits for mask in masks(Mechanism.HWCAP, ["fp16arith"])] == [1 << 9 | 1 << 10]
    assert [(mask.register, mask.bits) for mask in masks(Mechanism.HWCAP, ["bf16"])] == [(1, 1 << 14 | 1 << 12)]
    assert [mask.register for mask in masks(Mechanism.HWCAP, ["dot", "i8mm"])] == [0, 1]
