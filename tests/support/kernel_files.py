"""Files of the counter of kernels, written here."""

from __future__ import annotations

import struct

from opscope.readers.kernels import MAGIC

GEMM = "xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast"
ADD = "xnn_f32_vadd_minmax_ukernel__avx512f_u32"
MOPA = "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"

NONE = 0xFFFFFFFF


def encode(
    names: list[str], rows: list[tuple[int, int, int, list[int]]], *, flags: int = 0, spare: int = 2, calls: int = 3
) -> bytes:
    """A file of counts; a row is delegate, operator, runs and one number for each kernel."""
    text = b"".join(name.encode() + b"\0" for name in names) + b"\0"
    count = len(rows) + spare
    out = struct.pack("<8s4I2Q", MAGIC, len(names), count, len(rows), flags, len(text), calls)
    out += text.ljust((len(text) + 7) // 8 * 8, b"\0")
    out += b"".join(struct.pack("<IIQ", *row[:3]) for row in rows) + bytes(16 * spare)
    return out + b"".join(struct.pack(f"<{len(names)}Q", *row[3]) for row in rows) + bytes(8 * len(names) * spare)


ROWS = [
    (NONE, NONE, 0, [4, 0]),
    (0, NONE, 0, [0, 0]),
    (0, 0, 5, [0, 0]),
    (0, 1, 5, [0, 320]),
    (0, 2, 0, [0, 0]),
    (1, 0, 5, [0, 1]),
]
FILE = encode(["kai_run_a", "kai_run_b"], ROWS)
