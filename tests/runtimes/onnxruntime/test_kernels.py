"""Kernels that MLAS gives a CPU: the table, and the instructions that really run with features on and off."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from onnx_models import body, model, node
from opscope.core.system.elf import read_code
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.program.kernels.cpu import Cpu, KernelChoice
from opscope.runtimes.onnxruntime.preflight import mlas_kernels

FLOAT, MIXED, UNSIGNED, SIGNED = ("float", "float"), ("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")
AVX2 = {"avx", "avx2", "fma3"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("fields", "types", "product", "convolution"),
    [
        (set(), FLOAT, "SSE2", "SSE2"),
        ({"avx"}, FLOAT, "AVX", "AVX"),
        (AVX2, FLOAT, "FMA3", "FMA3"),
        (AVX2 | {"avx512f"}, FLOAT, "AVX-512", "AVX-512"),
        (AVX2, MIXED, "AVX2", "AVX2"),
        (AVX2 | {"avxvnni"}, MIXED, "AVX-VNNI", "AVX-VNNI"),
        (AVX512 | {"avxvnni"}, MIXED, "AVX-512", "AVX-512"),
        (AVX512 | {"avx512vnni"}, MIXED, "AVX-512 VNNI", "AVX-512 VNNI"),
        (AVX512 | {"avx512vnni", "amx_tile", "amx_int8"}, MIXED, "AMX", "AVX-512 VNNI"),
        (AVX512 | {"avx512vnni"}, UNSIGNED, "AVX-512", "AVX-512"),
        (AVX512 | {"avx512vnni"}, SIGNED, "SSE2", None),
        (AVX512, ("float16", "float16"), None, None),
    ],
)
def test_features_choose_a_kernel(
    fields: set[str], types: tuple[str, str], product: str | None, convolution: str | None
) -> None:
    """The strongest whose features are all there; a convolution has no kernel with tiles."""
    for name, is_convolution in ((product, False), (convolution, True)):
        kernels = mlas_kernels(types, Cpu("a CPU", "x86_64", frozenset(fields)), convolution=is_convolution)
        assert (kernels.kernel if kernels else None) == name


def test_a_type_with_a_weaker_kernel_has_advice() -> None:
    """Signed data gets SSE2 where unsigned data with signed weights gets VNNI."""
    cpu = Cpu("a CPU", "x86_64", frozenset(AVX512 | {"avx512vnni"}))
    signed, mixed = (mlas_kernels(types, cpu, convolution=False) for types in (SIGNED, MIXED))
    assert signed is not None
    assert (signed.kernel, signed.better) == ("SSE2", "AVX-512 VNNI")
    assert "uint8" in (signed.advice or "")
    assert mixed == KernelChoice("AVX-512 VNNI", "AVX-512 VNNI")


_SIZE, _CHANNELS, _IMAGE = 256, 32, [1, 32, 32, 32]
_DTYPES = {"float": "float32"}
_EXECUTES = {
    "SSE2": r"(MULPS|PMADDWD) xmm",
    "AVX": r"VMULPS ymm",
    "FMA3": r"VFMADD\w+PS ymm",
    "AVX2": r"VPMADD(UBSW|WD) ymm",
    "AVX-VNNI": r"VPDPBUSDS? ymm",
    "AVX-VNNI-INT8": r"VPDPB\w+ ymm",
    "AVX-512": r"(VFMADD\w+PS|VPMADD(UBSW|WD)) zmm",
    "AVX-512 VNNI": r"VPDPBUSDS? zmm",
    "AMX": r"TDPB\w+ tmm",
}
"""The instruction that multiplies, as sampled most often."""
_MULTIPLIES = re.compile(r"(V?MULPS|V?F?N?MADD\w+|V?PMADD\w+|VPDP\w+|TDP\w+|VFMADD\w+) ")
_RUN = """
import sys
from pathlib import Path
from opscope.bundle.manifest import Variant
from opscope.experiment.protocol import Job
from opscope.runtimes.onnxruntime.target import onnxruntime_here
from opscope.workflows.measure.variants import chosen_switch
program, work, *fields = sys.argv[1:]
target = onnxruntime_here()
switch = chosen_switch(target).mechanism if fields else None
asked = Job(program, Variant("asked", None, None, fields, 1, switch=switch), 400, 7, 300.0)
done = target.execute(asked, Path(work))
assert done.measurement is not None, done.failure
"""


@pytest.mark.nightly  # runs each kernel with each group of features off, under a sampling profiler
@pytest.mark.skipif(shutil.which("perf") is None, reason="needs perf: apt install linux-perf")
@pytest.mark.skipif(find_spec("onnxruntime") is None or find_spec("iced_x86") is None, reason="needs both packages")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs perf of Linux")
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("types", [FLOAT, MIXED, UNSIGNED, SIGNED])
def test_the_instructions_that_run_are_those_of_the_table(
    tmp_path: Path, types: tuple[str, str], convolution: bool
) -> None:
    """With all features of this CPU, and with each group off in turn."""
    arch, fields = fields_here()
    if arch != "x86_64" or (types == SIGNED and convolution):
        pytest.skip("instructions of x86-64 are decoded, and there is no such convolution")
    program = _written(tmp_path / "model.onnx", types, convolution=convolution)
    tried = 0
    for number, off in enumerate([[], *isa.ladder(arch, frozenset(fields))]):
        cleared = isa.cleared_fields(arch, off, frozenset(fields)) if off else []
        cpu = Cpu("this CPU", arch, frozenset(fields) - set(cleared))
        kernels = mlas_kernels(types, cpu, convolution=convolution)
        assert kernels is not None
        kernel = kernels.kernel
        work = tmp_path / str(number)
        work.mkdir()
        found = _sampled(program, work, cleared)
        multiplied = Counter({name: times for name, times in found.items() if _MULTIPLIES.match(name)})
        assert multiplied, f"without {off or 'nothing'}: {found.most_common(5)}"
        assert re.match(_EXECUTES[kernel], multiplied.most_common(1)[0][0]), (off, kernel, multiplied.most_common(4))
        tried += 1
    assert tried > 1


def _written(path: Path, types: tuple[str, str], *, convolution: bool) -> Path:
    """One product or convolution of constant weights."""
    data, weights = (_DTYPES.get(one, one) for one in types)
    shape = [_CHANNELS, _CHANNELS, 3, 3] if convolution else [_SIZE, _SIZE]
    sizes = _IMAGE if convolution else [_SIZE, _SIZE]
    given = {"w": np.random.default_rng(0).integers(1, 100, shape).astype(weights)}
    op, words, options = ("Conv", "x w", {}) if convolution else ("MatMul", "x w", {})
    if types != FLOAT:
        op, words = f"QLinear{op}", "x xs xz w ws wz ys yz"
        given |= {name: np.array(0.01, np.float32) for name in ("xs", "ws", "ys")}
        given |= {"xz": np.array(3, data), "wz": np.array(0, weights), "yz": np.array(3, data)}
    if convolution:
        options = {"pads": [1, 1, 1, 1]}
    graph = body([node(op, words, "y", **options)], {"x": (data, sizes)}, {"y": (data, sizes)}, given)
    path.write_bytes(model(graph))
    return path


def _sampled(program: Path, work: Path, cleared: list[str]) -> Counter[str]:
    """How often each instruction of ONNX Runtime's library was seen, by mnemonic and first operand's registers."""
    data = work / "perf.data"
    own = [sys.executable, "-c", _RUN, str(program), str(work), *cleared]
    subprocess.run(
        ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", str(data), "--", *own],
        check=True,
        capture_output=True,
    )
    shown = subprocess.run(
        ["perf", "script", "-i", str(data), "-F", "ip,dso", "--show-mmap-events"],
        check=True,
        capture_output=True,
        text=True,
    )
    maps, places, library = [], Counter[int](), None
    for line in shown.stdout.splitlines():
        mapped = _MAPPED.search(line)
        if mapped and "x" in mapped[4]:
            library = Path(mapped[5])
            maps.append((int(mapped[1], 16), int(mapped[2], 16), int(mapped[3], 16)))
        elif not mapped and "onnxruntime_pybind11_state" in line:
            places[int(line.split()[0], 16)] += 1
    return _decoded(library, places, maps)


_MAPPED = re.compile(
    r"PERF_RECORD_MMAP2? .*\[(0x\w+)\((0x\w+)\) @ (\w+) .*\]: (\S+) (\S*onnxruntime_pybind11_state\S*)"
)


def _decoded(library: Path, places: Counter[int], maps: list[tuple[int, int, int]]) -> Counter[str]:
    iced = import_module("iced_x86")
    names = {value: name for name, value in vars(iced.Mnemonic).items() if isinstance(value, int)}
    code = read_code(library.read_bytes(), library)
    sections = sorted(code.sections, key=lambda one: one.address)
    starts = [one.address for one in sections]
    loads = _segments(library.read_bytes())
    found = Counter[str]()
    for place, times in places.items():
        offset = next((place - at + start for at, size, start in maps if at <= place < at + size), None)
        address = next((v + offset - o for o, v, size in loads if offset is not None and o <= offset < o + size), None)
        if address is None or not bisect_right(starts, address):
            continue
        section = sections[bisect_right(starts, address) - 1]
        own = iced.Decoder(64, section.code[address - section.address :][:15], ip=address).decode()
        if not own.is_invalid:
            first = str(own).partition(" ")[2][:3]
            found[f"{names[own.mnemonic]} {first}"] += times
    return found


def _segments(data: bytes) -> list[tuple[int, int, int]]:
    """Place in the file, address and size of what is loaded of an ELF file of 64 bits."""
    (table,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    rows = [struct.unpack_from("<IIQQQQ", data, table + 56 * number) for number in range(count)]
    return [(offset, address, size) for kind, _, offset, address, _, size in rows if kind == 1]
