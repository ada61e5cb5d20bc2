"""Traces that a bundle keeps compressed: what was measured can be had back to the byte, and its hash is that of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zstandard

from opscope.core.errors import TraceFormatError
from opscope.readers import compressed
from opscope.readers.compressed import content_sha256, inflated, keep_compressed
from opscope.readers.registry import read_trace

TRACE = Path(__file__).parents[1] / "data" / "toy_cnn.etdump"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace as a process leaves it."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(TRACE.read_bytes())
    return path


def test_a_trace_is_kept_compressed(trace: Path) -> None:
    """Under a name that says so, with the same content, events and hash; each time the same bytes."""
    before, sha256 = trace.read_bytes(), content_sha256(trace)
    kept = keep_compressed(trace)
    assert [path.name for path in trace.parent.iterdir()] == [kept.name] == ["trace.etdump.zst"]
    first = kept.read_bytes()
    assert len(first) < len(before) / 3
    assert inflated(first, kept) == before
    assert content_sha256(kept) == sha256 == hashlib.sha256(before).hexdigest()
    found, whole = read_trace(kept), read_trace(TRACE)
    assert found.table.frame.equals(whole.table.frame)
    assert (found.content_sha256, whole.content_sha256, whole.sha256) == (sha256, sha256, sha256)
    assert found.sha256 == hashlib.sha256(first).hexdigest()
    trace.write_bytes(before)
    assert keep_compressed(trace).read_bytes() == first


def test_a_large_trace_stays_as_it_is(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading maps it, so that it may be larger than memory."""
    monkeypatch.setattr(compressed, "_ALWAYS_ALLOWED", trace.stat().st_size)
    assert keep_compressed(trace) == trace
    assert content_sha256(trace) == content_sha256(TRACE)


def test_a_link_stays_as_it_is(trace: Path) -> None:
    """What it leads to is not taken into the bundle."""
    link = trace.with_name("link.etdump")
    link.symlink_to(trace)
    assert keep_compressed(link) == link
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zstandard.ZstdCompressor(write_checksum=True).compress(TRACE.read_bytes())[:-9], "truncated"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 40, "the zstd data is damaged"),
        (zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28)), "grows more than 400 times"),
    ],
    ids=["cut", "damaged", "bomb"],
)
def test_a_damaged_one_has_no_hash(content: bytes, words: str, trace: Path) -> None:
    """It says what is wrong, and takes no more memory than may be."""
    trace.write_bytes(content)
    for read in (content_sha256, read_trace):
        with pytest.raises(TraceFormatError, match=words):
            read(trace)
