"""XNNPACK's log: a line, and the kernel that it says was registered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.errors import NotFoundError
from opscope.program.kernels.symbols import parse_kernel
from opscope.readers.kernels import parse_kernel_log, read_kernel_log

SME2 = "xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2"
NEW = f"Note (XNNPACK): Using gemm microkernel '{SME2}'. (init_pf32_gemm_config, src/configs/gemm-config.c:97)"
OLD = f"Note (XNNPACK): Using gemm microkernel '{SME2}'."


def _kernel_names(text: str) -> list[str]:
    return [entry.kernel.whole for entry in parse_kernel_log(text.encode()).entries]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (SME2, ("pf32", "gemm", "minmax", "32x32", ("neonsme2",))),
        ("xnn_f32_vadd_ukernel__neon_u8", ("f32", "vadd", None, None, ("neon", "u8"))),
        (
            "xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast",
            ("f32", "gemm", "minmax", "7x16", ("avx512f", "broadcast")),
        ),
        (
            "xnn_qd8_f32_qc8w_gemm_minmax_ukernel_1x16c4__neondot",
            ("qd8_f32_qc8w", "gemm", "minmax", "1x16c4", ("neondot",)),
        ),
        ("xnn_x32_transposec_ukernel__4x4_sse", ("x32", "transposec", None, "4x4", ("sse",))),
        ("xnn_f32_dwconv_minmax_ukernel_9p8c__neon", ("f32", "dwconv", "minmax", "9p8c", ("neon",))),
        ("xnn_xx_copy_ukernel__scalar_memcpy", ("xx", "copy", None, None, ("scalar", "memcpy"))),
    ],
)
def test_a_name_has_parts(name, parts):
    """Number types, operator, variant, tile, and the chain of instruction sets."""
    kernel = parse_kernel(name)
    assert kernel.parsed
    assert (kernel.dtype, kernel.operator, kernel.variant, kernel.tile, kernel.isa_chain) == parts


@pytest.mark.parametrize(
    "name",
    [
        "",
        "xnn",
        "kai_run_matmul_sme2",
        "xnn_f32_ukernel__neon",
        "xnn_gemm_ukernel_4x8__neon",
        "xnn_f32_gemm_4x8__neon",
        "xnn_f32_gemm_ukernel_4x8__",
        "xnn_f32_gemm_ukernel_4x8",
        "XNN_F32_GEMM_UKERNEL_4X8__NEON",
        "=1+1",
        "x" * 10_000,
    ],
)
def test_other_names_are_kept_whole(name):
    """Nothing is guessed from a name that does not follow the grammar."""
    kernel = parse_kernel(name)
    assert (kernel.whole, kernel.parsed, kernel.operator, kernel.isa_chain) == (name, False, None, ())


def test_the_instruction_set_is_told_from_the_chain():
    """SME2 needs SME; other kernels need neither."""
    found = {name: (parse_kernel(name).sme, parse_kernel(name).sme2) for name in (SME2, SME2.replace("sme2", "sme"))}
    assert list(found.values()) == [(True, True), (True, False)]
    assert not parse_kernel("xnn_f32_vadd_ukernel__neon_u8").sme


WRITTEN = ("gemm", SME2, 2, "init_pf32_gemm_config", "src/configs/gemm-config.c:97")
OTHERS = f"Note (XNNPACK): XNNPACK is ready\nI/OTHER ( 1): {OLD}\nsaid: {OLD}\nUsing threads\nend\n"


@pytest.mark.parametrize(
    ("text", "entries", "incomplete"),
    [
        (f"loading\n{NEW}\n", [WRITTEN], ()),
        (f"loading\n{NEW}\r\n", [WRITTEN], ()),
        (OLD, [("gemm", SME2, 1, None, None)], ()),
        (OLD.removesuffix("."), [("gemm", SME2, 1, None, None)], ()),
        (f"loading\n{NEW}\n{NEW[:60]}", [WRITTEN], (3,)),
        (OTHERS, [], ()),
    ],
    ids=["newer", "of Windows", "older", "without full stop", "cut off", "no registration"],
)
def test_a_line_tells_a_kernel(text, entries, incomplete):
    """The newer one where it was written, too; half a kernel's name is counted and not read."""
    log = parse_kernel_log(text.encode())
    found = [(one.category, one.kernel.whole, one.line, one.function, one.source) for one in log.entries]
    assert (found, log.incomplete) == (entries, incomplete)


@pytest.mark.parametrize(
    "prefix",
    [
        "I/XNNPACK ( 1234): ",
        "I/XNNPACK(12345): ",
        "I/XNNPACK: ",
        "01-02 10:15:00.123 I/XNNPACK( 1234): ",
        "01-02 10:15:00.123  1234  1235 I XNNPACK : ",
        "2026-01-02 10:15:00.123  1234  1235 I XNNPACK : ",
        "I( 1234) ",
    ],
)
def test_logcat_lines_are_read(prefix):
    """Brief, tag, time, threadtime and process; the tag may take the place of the library's own words."""
    bare = NEW.removeprefix("Note (XNNPACK): ")
    tail = "  (XNNPACK)" if prefix.startswith("I(") else ""
    assert _kernel_names(f"{prefix}{NEW}\n{prefix}{bare}{tail}\r\n") == [SME2, SME2]


def test_a_log_says_that_it_is_no_evidence_of_execution():
    """Two lines for one kernel are two registrations; the value says what it records."""
    log = parse_kernel_log(f"{NEW}\n{OLD}\n".encode())
    assert log.evidence == "registration"
    assert (len(log.entries), log.names()) == (2, (SME2,))


def test_a_log_is_read_from_its_file(tmp_path):
    """A missing one is named."""
    path = tmp_path / "trace.log"
    with pytest.raises(NotFoundError, match="no such file"):
        read_kernel_log(path)
    path.write_text(NEW)
    assert read_kernel_log(path).names() == (SME2,)


def test_every_truncation_is_read():
    """What is whole is kept, what is not is counted."""
    data = f"{NEW}\n{OLD}\n".encode()
    for size in range(len(data)):
        log = parse_kernel_log(data[:size])
        assert len(log.entries) <= 2
        assert all(entry.kernel.whole in SME2 for entry in log.entries)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_log(noise):
    """Whatever stands around it, the line is found."""
    data = noise.replace(b"\n", b" ") + b"\n" + NEW.encode() + b"\n" + noise
    assert SME2 in parse_kernel_log(data).names()
