"""Work counted under QEMU: 64-bit Arm with SME2, to the outer product."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from arm import arm_library, arm_target
from exports import program, served
from installed import needs_onnxruntime
from native_runner import native_cache
from opscope.analysis.work.work import CountedOperator, Work
from opscope.api import Settings, count, count_kernels, kernels, profile
from opscope.core.errors import MissingDependencyError, UsageError
from opscope.core.system.elf import ElfCode, read_code
from opscope.readers.instruction_counts import ExecutedBlock, ExecutedParts
from opscope.runtimes.counting.emulated import EmulatorCounter

ROOT = Path(__file__).resolve().parents[2]
QEMU = ROOT / ".venv" / "devices" / "usr" / "bin" / "qemu-aarch64"
DATA = ROOT / "tests" / "data"
pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(not QEMU.exists(), reason="needs .ci/devices"),
    pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no compiler for 64-bit Arm"),
    pytest.mark.skipif(find_spec("capstone") is None, reason="capstone is not installed"),
]


@pytest.fixture(autouse=True)
def qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator that is right."""
    monkeypatch.setenv("OPSCOPE_QEMU", str(QEMU))


def counted(model: Path, **options: int) -> Work:
    """Its work on 64-bit Arm."""
    return count(model, target="qemu-aarch64", **options)


def of_layer(work: Work, layer: str) -> CountedOperator:
    """The product of a layer."""
    (found,) = (one for one in work.operators if one.layer == layer and one.macs)
    return found


@pytest.mark.everyday("counting of 64-bit Arm")
def test_outer_products_are_those_of_a_calculation_by_hand() -> None:
    """Of int8: tiles of 16 x 16 sums, each of 4 products; 3 channels of 9 taps take the room of 4 each."""
    work = counted(program("toy_cnn-int8"))
    stem, body = of_layer(work, "stem.0"), of_layer(work, "body")
    pixels, channels = 64 * 64, 32
    assert stem.macs == pixels * channels * 9 * 3
    assert stem.outer_products == pixels * channels // 256 * 9
    assert body.outer_products == (body.macs or 0) // 1024
    assert stem.tile_capacity == stem.outer_products * 1024
    assert [(one.name, one.needed, one.executed) for one in stem.padded] == [("input channels", 3, 4)]
    assert body.padded == []
    assert work.operators
    assert all(sum(one.classes.values()) == one.instructions for one in work.operators)
    assert not any("unknown" in one.classes for one in work.operators)
    assert sum(one.outer_products for one in work.operators) == 23_040
    assert stem.streaming_starts > 0
    assert "SME of 512 bits" in work.processor


@pytest.mark.nightly  # four runs under the emulator
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_longer_vector_needs_fewer_outer_products(dtype: str) -> None:
    """A quarter for twice the length, where tiles are full; the model's own multiplications are the same."""
    found = [counted(program(f"toy_cnn-{dtype}"), sme_bits=bits) for bits in (128, 256, 512)]
    products = [sum(one.outer_products for one in work.operators) for work in found]
    assert products[0] == 4 * products[1] == 16 * products[2] > 0
    assert len({sum(one.macs or 0 for one in work.operators) for work in found}) == 1


def test_counts_are_equal_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another directory, with more of an environment: operator by operator; another runtime counts, too."""
    model = DATA / "tflite" / "cnn.tflite"
    first = counted(model)
    elsewhere = tmp_path / ("long" * 30)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("A_LONG_VARIABLE", "x" * 3000)
    assert counted(model).operators == first.operators
    assert sum(one.outer_products for one in first.operators) > 0
    for one in first.operators:
        assert one.mac_capacity >= (one.macs or 0) - one.padding_macs


@pytest.mark.nightly  # runs under the emulator three times
def test_the_log_has_the_calls_that_a_library_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways: how often the log enters a kernel, and the calls that a library counts which stands before it.

    Weights are packed once, when a model is loaded; the other kernels are called in both inferences of a count.
    """
    model, (target, _) = program("toy_cnn-fp32"), arm_target()
    settings = Settings(rounds=1, runs=1, warmup=0, ablate=("none",), untraced=False)
    profile(str(model), settings=settings, out=tmp_path / "out", target=target)
    count_kernels(tmp_path / "out", target=target, cache=native_cache())
    calls = {line.name: line.cells[0].amount for line in kernels([tmp_path / "out"]).kernels}
    assert len(calls) == 4

    blocks: Counter[ExecutedBlock] = Counter()
    rows = EmulatorCounter._count_parts

    def keeping(self: EmulatorCounter, executed: ExecutedParts, clock: Path) -> list[Counter[str]]:
        for part in executed.parts:
            blocks.update(part)
        return rows(self, executed, clock)

    monkeypatch.setattr(EmulatorCounter, "_count_parts", keeping)
    counted(model, sme_bits=256)  # what QEMU has where nothing is asked for
    library = arm_library()
    listed = subprocess.run(["aarch64-linux-gnu-nm", "-D", str(library)], capture_output=True, text=True, check=True)
    symbols = (line.split() for line in listed.stdout.splitlines() if line.split()[-1] in calls)
    places = {name: int(address, 16) for address, _, name in symbols}
    code = read_code(library.read_bytes(), library)
    base = next(block.address - place for block in blocks for place in places.values() if begins(code, place, block))
    entered = {name: sum(n for block, n in blocks.items() if block.address == base + at) for name, at in places.items()}
    assert entered == {name: own if "_rhs_pack_" in name else 2 * own for name, own in calls.items()}


def begins(code: ElfCode, place: int, block: ExecutedBlock) -> bool:
    """Whether a block is what stands at a place of a library."""
    for section in code.sections:
        at = place - section.address
        if 0 <= at < len(section.code):
            return section.code[at : at + 4 * len(block.words)] == b"".join(
                w.to_bytes(4, "little") for w in block.words
            )
    return False


@pytest.mark.nightly  # runs under the emulator
def test_sme_is_off() -> None:
    """Then no tile is used, and more is executed."""
    (off,) = count(program("toy_cnn-int8"), target="qemu-aarch64", ablate=["sme"]).others
    assert not any(one.outer_products or one.tile_capacity or one.streaming_starts for one in off.operators)
    assert of_layer(off, "body").classes["dot_product"] > 0


@pytest.mark.nightly  # exports and runs under the emulator
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_as_many_channels_as_a_tile_has_room_for_cost_the_same(tmp_path: Path) -> None:
    """What the report says of padding, followed: 20 output channels take the room of 32."""
    works = {}
    for channels in (20, 32):
        (tmp_path / f"net_{channels}.py").write_text(NET.replace("CHANNELS", str(channels)))
        works[channels] = counted(served(tmp_path / str(channels), str(tmp_path / f"net_{channels}.py")).program)
    own = {channels: next(one for one in work.operators if one.macs) for channels, work in works.items()}
    (padded,) = (one for one in own[20].padded if one.name == "output channels")
    assert (padded.needed, padded.executed) == (20, 32)
    assert own[20].outer_products == own[32].outer_products > 0


NET = """
import torch
from torch import nn

def build():
    return nn.Conv2d(16, CHANNELS, 3, padding=1), (torch.randn(1, 16, 32, 32),)
"""


@pytest.mark.nightly  # one minute under the emulator
@needs_onnxruntime
def test_kernels_of_onnx_runtime_run_on_tiles() -> None:
    """KleidiAI's, in MLAS: convolutions of 3 x 3, but not the depthwise one, nor that of one element."""
    work = counted(DATA / "onnx" / "cnn.onnx")
    assert {one.layer for one in work.operators if one.outer_products} == {"stem", "conv"}
    assert of_layer(work, "dw").tile_capacity == 0
    assert [(one.needed, one.executed) for one in of_layer(work, "stem").padded] == [(16, 32)]


def test_what_cannot_be_counted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that no processor has, another target, no emulator."""
    model = program("toy_cnn-int8")
    with pytest.raises(UsageError, match="vectors cannot have 300 bits"):
        counted(model, sme_bits=300)
    with pytest.raises(UsageError, match="cannot count instructions on ssh:host"):
        count(model, target="ssh:host")
    monkeypatch.setenv("OPSCOPE_QEMU", os.fspath(ROOT / "nowhere"))
    with pytest.raises(MissingDependencyError, match="is not installed"):
        counted(model)
