"""The record of counted kernels: its files are those of its own directory, with the hashes that it states."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.kernel_evidence import (
    EvidenceRun,
    KernelLibrary,
    evidence_directory,
    evidence_of,
    evidence_runs,
    save_evidence,
)
from opscope.bundle.manifest import Target
from opscope.core.errors import BundleError, TraceFormatError
from programs import write_tiny_program

COUNTS = b"counts"
RUN = EvidenceRun(
    variant="accelerated",
    started="2026-01-02T10:15:00+00:00",
    target=Target("fake", ""),
    inferences=1,
    library=KernelLibrary("libxnnpack.so", "0" * 64, []),
    counts="kernels.counts",
    counts_sha256=hashlib.sha256(COUNTS).hexdigest(),
)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A bundle with a file of counts, and no record of it yet."""
    settings = Settings(rounds=1, runs=2, warmup=1, ceilings=False, untraced=False)
    program = write_tiny_program(tmp_path)
    profile(program, settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    found = Bundle.open(tmp_path / "out")
    evidence_directory(found, "accelerated").mkdir(parents=True)
    (evidence_directory(found, "accelerated") / "kernels.counts").write_bytes(COUNTS)
    return found


def test_a_record_is_read_as_it_was_written(bundle: Bundle) -> None:
    """Variants without one have none."""
    assert evidence_of(bundle, "accelerated") is None
    with bundle.locked():
        save_evidence(bundle, RUN)
    assert evidence_runs(bundle) == {"accelerated": RUN}


@pytest.mark.parametrize(
    "change", [{"counts": "../kernels.counts"}, {"counts": ".hidden"}, {"variant": "baseline"}, {"trace": "a/b"}]
)
def test_files_of_others_are_refused(bundle: Bundle, change: dict[str, str]) -> None:
    """A path that leads elsewhere, and a record of another variant."""
    with bundle.locked():
        save_evidence(bundle, RUN)
    record = next(evidence_directory(bundle, "accelerated").glob("*.json"))
    record.write_bytes(msgspec.json.encode(msgspec.structs.replace(RUN, **change)))
    with pytest.raises(TraceFormatError):
        evidence_of(bundle, "accelerated")


def test_counts_that_changed_are_refused(bundle: Bundle) -> None:
    """By the hash in the record."""
    with bundle.locked():
        save_evidence(bundle, RUN)
    (evidence_directory(bundle, "accelerated") / "kernels.counts").write_bytes(b"others")
    with pytest.raises(BundleError):
        evidence_of(bundle, "accelerated")
