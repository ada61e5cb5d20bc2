"""Where a library executes ``cpuid``: by following its functions, never by its bytes alone."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from asking_library import asking_library, compiled
from opscope.core.errors import FeatureError, TraceFormatError
from opscope.core.system.elf import read_code
from opscope.machine.switch.sites import CPUID, cpuid_sites
from planted_libraries import planted_library


def test_only_places_where_an_instruction_begins_are_sites(tmp_path: Path) -> None:
    """The bytes of ``cpuid`` inside an immediate and inside a distance are none."""
    library = asking_library(tmp_path)
    found = cpuid_sites(library)
    assert len(found.addresses) == 2
    assert found.inside_others >= 2
    assert library.read_bytes().count(CPUID) >= 4


def test_a_stripped_library_has_the_same_sites(tmp_path: Path) -> None:
    """The table for unwinding tells where its functions begin."""
    whole = cpuid_sites(asking_library(tmp_path)).addresses
    (tmp_path / "stripped").mkdir()
    from asking_library import LIBRARY

    stripped = compiled(LIBRARY, tmp_path / "stripped/libasks.so", "-shared", "-fPIC", "-s")
    assert len(cpuid_sites(stripped).addresses) == len(whole)


def test_a_library_that_cannot_be_decoded_is_refused(tmp_path: Path) -> None:
    """Data between functions may look like code: nothing is patched by a guess."""
    data = '__asm__(".text; .globl table; .type table,@function; table: .byte 0x06,0x0f,0xa2; .size table, 3");'
    library = asking_library(tmp_path, extra=data)
    with pytest.raises(FeatureError, match="unknown whether the library executes cpuid at 0x"):
        cpuid_sites(library)


def test_a_prefix_before_the_instruction_is_refused(tmp_path: Path) -> None:
    """It would be one byte longer than what takes its place."""
    library = asking_library(tmp_path, extra='void odd(void) { __asm__ volatile(".byte 0x66, 0x0f, 0xa2"); }')
    with pytest.raises(FeatureError, match="unknown whether the library executes cpuid"):
        cpuid_sites(library)


def test_files_that_are_no_library_for_x86_are_refused(tmp_path: Path) -> None:
    """A script, and nothing at all."""
    for content in (b"#!/bin/sh\n", b""):
        file = tmp_path / "other.so"
        file.write_bytes(content)
        with pytest.raises(FeatureError, match="not a library for x86-64"):
            cpuid_sites(file)


def test_damaged_libraries_end_in_an_error_or_in_places_of_the_instruction(tmp_path: Path) -> None:
    """Cut off at many lengths, and with bytes changed."""
    whole, chance = asking_library(tmp_path).read_bytes(), random.Random(7)
    damaged = [whole[:length] for length in range(0, len(whole), 97)]
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(4096 if chance.random() < 0.5 else len(whole))] = chance.randrange(256)
        damaged.append(bytes(changed))
    file = tmp_path / "damaged.so"
    for content in damaged:
        file.write_bytes(content)
        with contextlib.suppress(FeatureError, TraceFormatError):
            assert len(cpuid_sites(file).addresses) <= content.count(CPUID)


@pytest.mark.parametrize("seed", range(8))
def test_no_planted_bytes_are_a_site(tmp_path: Path, seed: int) -> None:
    """Tables between functions, of C and of assembler, stripped or not; all that functions execute is found."""
    library = planted_library(tmp_path, seed)
    found = cpuid_sites(library.path)
    assert library.planted
    assert set(found.addresses) == library.real
    assert found.outside >= len(library.planted | library.unnamed)
    code = read_code(library.path.read_bytes(), library.path)
    assert code is not None
    assert set(code.functions) == library.functions  # as binutils read it


def test_a_table_in_a_function_that_is_jumped_over_is_no_site(tmp_path: Path) -> None:
    """It may be code that is reached in another way, or data: the library is refused, and nothing is patched."""
    planted = 'unsigned over(unsigned a) { __asm__ volatile("jmp 1f; .byte 0x0f,0xa2; 1:"); return a; }'
    library = asking_library(tmp_path, extra=planted)
    with pytest.raises(FeatureError, match=r"unknown whether .* no jump of its function leads there"):
        cpuid_sites(library)


def test_a_table_behind_a_call_that_does_not_return_is_no_site(tmp_path: Path) -> None:
    """Nothing tells that the call is the last instruction of its function, so the library is refused."""
    planted = (
        '__asm__(".text; .globl ends; .type ends,@function; ends: test %edi,%edi; jne 1f; lea 2f(%rip),%rax; ret;'
        '1: call abort@plt; 2: .byte {head}0x0f,0xa2,0x0f,0xa2; .size ends, .-ends");'
    )
    for head in ("", "0x01,0x02,"):
        library = asking_library(tmp_path, extra=planted.format(head=head))
        with pytest.raises(FeatureError, match="a call stands before it that may not return"):
            cpuid_sites(library)


def test_an_instruction_behind_data_in_a_function_is_found(tmp_path: Path) -> None:
    """Decoding one behind the other would take the data for the beginning of a longer instruction."""
    code = (
        "void behind(unsigned *o) { __asm__ volatile("
        '"jmp 1f; .byte 0x48,0xb8; 1: cpuid" : "=a"(o[0]), "=b"(o[1]), "=c"(o[2]), "=d"(o[3]) : "a"(7), "c"(0)); }'
    )
    assert len(cpuid_sites(asking_library(tmp_path, extra=code)).addresses) == 3
