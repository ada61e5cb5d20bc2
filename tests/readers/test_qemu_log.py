"""Logs of QEMU: blocks in parts, and the state that they ran in."""

from __future__ import annotations

import pytest

from opscope.core.errors import TraceFormatError
from opscope.readers.instruction_counts import read_qemu_log

MARKS = {0xD5032FFF: "read"}
STREAMING, PLAIN = "80081c09311", "80081009331"
LOG = f"""----------------
IN: main
0x00001000:  a9b27bfd  stp      x29, x30, [sp, #-0xe0]!
0x00001004:  97ffeeac  bl       #0x2000

Trace 0: 0x7fd1 [{PLAIN}/0000000000001000/00000001/00000200] main
----------------
IN:
0x00002000:  d5032fff  hint     #0x7f
0x00002004:  d65f03c0  ret

Trace 0: 0x7fd2 [{PLAIN}/0000000000002000/00000001/00000200]
Trace 0: 0x7fd1 [{PLAIN}/0000000000001000/00000001/00000200] main
Trace 0: 0x7fd1 [{PLAIN}/0000000000001000/00000001/00000200] main
Linking TBs 0x7fd1 index 0 -> 0x7fd2
""".encode()


def test_parts_end_at_marks() -> None:
    """The block with the mark is of none; what runs before the first one and after the last one is kept."""
    found = read_qemu_log(LOG.splitlines(keepends=True), MARKS)
    assert [sum(part.values()) for part in found.parts] == [1, 2]
    (block,) = found.parts[0]
    assert block.address == 0x1000
    assert block.words == (0xA9B27BFD, 0x97FFEEAC)
    assert found.triggers == ["read"]
    assert [one.address for one in found.marks] == [0x2000]


def test_a_state_tells_mode_and_lengths() -> None:
    """In the mode of the matrix unit vectors are as long as a row of its tiles."""
    again = LOG + LOG.splitlines()[5].replace(PLAIN.encode(), STREAMING.encode()) + b"\n"
    own = list(read_qemu_log(again.splitlines(keepends=True), MARKS).parts[-1])
    assert [(one.streaming, one.vector_bits, one.tile_bits) for one in own] == [(False, 512, 256), (True, 256, 256)]


@pytest.mark.parametrize("line", [b"Trace 0: 0x1 [1/3000/0/0]\n", b"Trace 0: 0x1 [nothing]\n"])
def test_a_block_that_was_never_printed_is_an_error(line: bytes) -> None:
    """What it executed cannot be known."""
    with pytest.raises(TraceFormatError, match="no instructions for the block"):
        read_qemu_log([*LOG.splitlines(keepends=True), line], MARKS)
