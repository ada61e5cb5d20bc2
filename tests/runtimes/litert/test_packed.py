"""LiteRT-LM's files: the model that makes tokens is found behind the header, and runs.

The header is that of a file of litert-lm-builder 0.18.1 with a tokenizer, a model for prefill and decode, and an
embedder; the models behind it are those of the tests, where the header says that they are.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest

from opscope.api import Settings, preflight, profile
from opscope.core.errors import MismatchError, OpscopeError, TraceFormatError
from opscope.runtimes.litert.packed import packed_model
from opscope.runtimes.litert.tflite import read_tflite
from opscope.runtimes.registry import runtime_of

DATA = Path(__file__).parents[2] / "data" / "language"
HEADER = (DATA / "litert-lm.header").read_bytes()
MODEL, EMBEDDER = DATA / "litert-int4.tflite", DATA / "litert-int8.tflite"
AT, EMBEDDER_AT = 294_912, 524_288
TOKENIZER = b"\4" + struct.pack("<Q", 279_339)  # the type of its section, and where it ends


def packed(path: Path, header: bytes = HEADER) -> Path:
    """A file with both models at their places."""
    content = bytearray(EMBEDDER_AT)
    content[: len(header)] = header
    content[AT : AT + MODEL.stat().st_size] = MODEL.read_bytes()
    path.write_bytes(bytes(content) + EMBEDDER.read_bytes())
    return path


def test_the_model_that_makes_tokens_is_found(tmp_path: Path) -> None:
    """Byte for byte, whatever the file is called; its embedder is told."""
    path = packed(tmp_path / "small.litertlm")
    found = packed_model(memoryview(path.read_bytes()), path)
    assert found is not None
    assert found.program == MODEL.read_bytes()
    assert found.others == ("tf_lite_embedder",)
    assert read_tflite(path) == read_tflite(MODEL)
    runtime = runtime_of(packed(tmp_path / "any"))
    assert runtime.name == "litert"
    alone, inputs = runtime.unpacked(path, tmp_path)
    assert (alone.name, alone.read_bytes(), inputs) == ("small.tflite", MODEL.read_bytes(), {})
    assert runtime.unpacked(MODEL, tmp_path) == (MODEL, {})
    assert packed_model(memoryview(MODEL.read_bytes()), MODEL) is None
    assert (runtime.left_out(MODEL), runtime.left_out(path)) == (
        None,
        "of small.litertlm only the first model that makes tokens ran, without tf_lite_embedder",
    )
    assert [one.name for one in preflight(path).methods] == [one.name for one in preflight(MODEL).methods]


@pytest.mark.parametrize(
    ("old", "new", "error", "problem"),
    [
        (struct.pack("<Q", len(HEADER)), struct.pack("<Q", 1 << 40), TraceFormatError, "the header is cut off"),
        (b"tf_lite_prefill_decode", b"tf_lite_audio_encoder0", MismatchError, "no model that reads prompts"),
        (struct.pack("<Q", AT), struct.pack("<Q", 1 << 40), TraceFormatError, "its model should be at bytes"),
        (TOKENIZER, b"\7" + TOKENIZER[1:], MismatchError, "its weights are apart"),
    ],
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, old: bytes, new: bytes, error: type[OpscopeError], problem: str
) -> None:
    """A damaged header, a file for something else, weights in a section of their own."""
    assert HEADER.count(old) == 1
    with pytest.raises(error, match=problem):
        read_tflite(packed(tmp_path / "small.litertlm", HEADER.replace(old, new)))


def test_damage_is_never_more_than_an_error(tmp_path: Path) -> None:
    """Any byte of the header may be any other."""
    random = np.random.default_rng(0)
    for place in range(len(HEADER)):
        header = bytearray(HEADER)
        header[place] = int(random.integers(256))
        content = memoryview(bytes(header) + bytes(AT))
        try:
            packed_model(content, tmp_path / "damaged.litertlm")
        except OpscopeError:
            continue


@pytest.mark.runtime
def test_a_packed_model_is_measured_by_its_phases(tmp_path: Path) -> None:
    """As its .tflite is; the report says what was left out."""
    pytest.importorskip("ai_edge_litert")
    settings = Settings(rounds=1, runs=1, warmup=0, ceilings=False)
    done = profile(packed(tmp_path / "small.litertlm"), settings=settings, out=tmp_path / "out")
    manifest = done.content.manifest
    assert (manifest.model.source, manifest.model.program) == (str(tmp_path / "small.litertlm"), "model/small.tflite")
    assert (tmp_path / "out" / manifest.model.program).read_bytes() == MODEL.read_bytes()
    calls = runtime_of(MODEL).calls(MODEL, [])
    assert (manifest.plan.calls, manifest.failures()) == (calls, [])
    assert "without tf_lite_embedder" in (manifest.left_out.models or "")
    assert any("without tf_lite_embedder" in note for note in done.notes)
    assert r"without tf\_lite\_embedder" in (tmp_path / "out" / "report.md").read_text("utf-8")
    again = msgspec.structs.replace(settings, rounds=2)
    assert profile(packed(tmp_path / "small.litertlm"), settings=again, out=tmp_path / "out", resume=True)
