"""What instructions of 64-bit Arm do, as Arm's manual has it; their words are those of an assembler."""

from __future__ import annotations

import pytest

pytest.importorskip("capstone")

from opscope.machine.instructions import Arm64Instructions, Instruction, VectorLengths, described

LENGTHS = VectorLengths(vector=512, tile=512)
NARROW = VectorLengths(vector=128, tile=256)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fmopa za0.s, p1/m, p1/m, z2.s, z16.s", Instruction("outer_product", 0, 0, 256, 256)),
        ("smopa za0.s, p1/m, p1/m, z2.b, z16.b", Instruction("outer_product", 0, 0, 1024, 1024)),
        ("bfmopa za0.s, p1/m, p1/m, z2.h, z16.h", Instruction("outer_product", 0, 0, 512, 512)),
        ("fmopa za0.d, p1/m, p1/m, z2.d, z16.d", Instruction("outer_product", 0, 0, 64, 64)),
        ("sumopa za1.d, p1/m, p1/m, z2.h, z16.h", Instruction("outer_product", 0, 0, 256, 256)),
        ("fmla za.s[w8, 0, vgx4], { z20.s - z23.s }, z15.s[3]", Instruction("multiply_add", 0, 0, 64, 64)),
        ("sdot za.s[w8, 0, vgx4], { z4.b - z7.b }, z9.b[2]", Instruction("dot_product", 0, 0, 256, 256)),
        ("smlall za.s[w8, 0:3, vgx2], { z4.b, z5.b }, z9.b", Instruction("multiply_add", 0, 0, 128, 128)),
        ("fmla v0.4s, v1.4s, v2.s[1]", Instruction("multiply_add", 0, 0, 4)),
        ("fmla v0.2s, v1.2s, v2.2s", Instruction("multiply_add", 0, 0, 2)),
        ("fmla z0.s, p0/m, z1.s, z2.s", Instruction("multiply_add", 0, 0, 16)),
        ("fmadd s0, s1, s2, s3", Instruction("multiply_add", 0, 0, 1)),
        ("smlal v0.4s, v1.4h, v2.4h", Instruction("multiply_add", 0, 0, 4)),
        ("smlal2 v0.8h, v1.16b, v2.16b", Instruction("multiply_add", 0, 0, 8)),
        ("sdot v0.4s, v1.16b, v2.4b[0]", Instruction("dot_product", 0, 0, 16)),
        ("smmla v0.4s, v1.16b, v2.16b", Instruction("dot_product", 0, 0, 32)),
        ("bfmmla v0.4s, v1.8h, v2.8h", Instruction("dot_product", 0, 0, 16)),
        ("sdot z0.s, z1.b, z2.b", Instruction("dot_product", 0, 0, 64)),
        ("madd x0, x1, x2, x3", Instruction("scalar")),
        ("fmul v0.4s, v1.4s, v2.4s", Instruction("vector")),
        ("zip1 z0.s, z1.s, z2.s", Instruction("vector")),
        ("ptrue pn8.b", Instruction("vector")),
        ("rdsvl x0, #1", Instruction("scalar")),
        ("smstart ", Instruction("scalar", streaming=1)),
        ("smstart za", Instruction("scalar")),
        ("smstop ", Instruction("scalar")),
        ("b.ne #0x40", Instruction("branch")),
        ("ret ", Instruction("branch")),
        ("blr x3", Instruction("branch")),
        ("bic x0, x1, x2", Instruction("scalar")),
        ("bit v0.16b, v1.16b, v2.16b", Instruction("vector")),
        ("ldr x0, [x1]", Instruction("load", 8)),
        ("ldr w0, [x1, #4]", Instruction("load", 4)),
        ("ldr q0, [x1]", Instruction("load", 16)),
        ("ldr z3, [x1, #1, mul vl]", Instruction("load", 64)),
        ("ldr p3, [x1]", Instruction("load", 8)),
        ("ldr za[w12, 0], [x0]", Instruction("load", 64)),
        ("ldrb w0, [x1]", Instruction("load", 1)),
        ("ldrsh x0, [x1]", Instruction("load", 2)),
        ("ldrsw x0, [x1]", Instruction("load", 4)),
        ("ldur x0, [x1, #-8]", Instruction("load", 8)),
        ("ldursb w0, [x1, #-8]", Instruction("load", 1)),
        ("ldar w0, [x1]", Instruction("load", 4)),
        ("ldp x29, x30, [sp], #0x20", Instruction("load", 16)),
        ("ldp q0, q1, [sp]", Instruction("load", 32)),
        ("ldpsw x0, x1, [sp]", Instruction("load", 8)),
        ("stp d8, d9, [sp, #-0x20]!", Instruction("store", 0, 16)),
        ("strh w0, [x1]", Instruction("store", 0, 2)),
        ("str wzr, [x1]", Instruction("store", 0, 4)),
        ("stlr x0, [x1]", Instruction("store", 0, 8)),
        ("stxr w0, x1, [x2]", Instruction("store", 0, 8)),
        ("ld1 { v0.16b, v1.16b }, [x1]", Instruction("load", 32)),
        ("ld1 { v0.8b }, [x1]", Instruction("load", 8)),
        ("ld1 { v0.s }[1], [x1]", Instruction("load", 4)),
        ("ld1r { v4.4s }, [x3]", Instruction("load", 4)),
        ("st2 { v0.4s, v1.4s }, [x3]", Instruction("store", 0, 32)),
        ("ld1b { z0.b }, p0/z, [x1]", Instruction("load", 64)),
        ("ld1b { z0.s }, p0/z, [x1]", Instruction("load", 16)),
        ("ld1sh { z0.d }, p0/z, [x1]", Instruction("load", 16)),
        ("ld1rw { z0.s }, p1/z, [x0, #0x40]", Instruction("load", 4)),
        ("ld1rqb { z9.b }, p0/z, [x22]", Instruction("load", 16)),
        ("ld1w { z12.s - z15.s }, pn9/z, [x28, #4, mul vl]", Instruction("load", 256)),
        ("ld1b { z0.b, z4.b, z8.b, z12.b }, pn8/z, [x27]", Instruction("load", 256)),
        ("st1b { z0.h }, p0, [x26]", Instruction("store", 0, 32)),
        ("st1w { za0v.s[w12, 0] }, p1, [x3]", Instruction("store", 0, 64)),
        ("ldaddal w0, w1, [x2]", Instruction("load", 4, 4)),
        ("casab w0, w1, [x2]", Instruction("load", 1, 1)),
        ("swpal x0, x1, [x2]", Instruction("load", 8, 8)),
        ("prfm pldl1keep, [x0]", Instruction("scalar")),
    ],
)
def test_an_instruction_is_told_by_its_text(text: str, expected: Instruction) -> None:
    """Class, bytes, products, those on tiles."""
    name, _, operands = text.partition(" ")
    assert described(name, operands, LENGTHS) == expected


def test_lengths_decide_on_vectors_and_tiles() -> None:
    """Each by its own."""
    assert described("fmla", "z0.s, p0/m, z1.s, z2.s", NARROW).products == 4
    assert described("fmopa", "za0.s, p1/m, p1/m, z2.s, z16.s", NARROW).products == 64
    assert described("str", "za[w12, 0], [x0]", NARROW).stored == 32


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0xA0902440, Instruction("outer_product", 0, 0, 1024, 1024)),
        (0xC15F8E80, Instruction("multiply_add", 0, 0, 64, 64)),
        (0xC15998A0, Instruction("dot_product", 0, 0, 256, 256)),
        (0xA041C78C, Instruction("load", 256)),
        (0xA1604357, Instruction("store", 0, 128)),
        (0xD503477F, Instruction("scalar", streaming=1)),
        (0xA9B27BFD, Instruction("store", 0, 16)),
        (0xFFFFFFFF, Instruction("unknown")),
    ],
)
def test_a_word_is_decoded(word: int, expected: Instruction) -> None:
    """Those of SME2, too."""
    decoder = Arm64Instructions()
    assert decoder.of(word, LENGTHS) == expected
    assert decoder.of(word, LENGTHS) is decoder.of(word, LENGTHS)
