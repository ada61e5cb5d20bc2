"""Evidence arm of a bundle: runs that show which kernels ran. They lie apart, and nothing of them is ever a time.

``evidence/VARIANT/`` holds ``evidence.json`` (schema ``opscope.kernel-evidence/1``), and beside it the counts and the
trace of the run, its outputs and its log.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from opscope.bundle.manifest import Failure, Target
from opscope.core.errors import BundleError, TraceFormatError
from opscope.core.files import sha256_of, storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.system.memory import file_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.bundle.bundle import Bundle

EVIDENCE = "evidence"
RECORD = "evidence.json"


class KernelLibrary(msgspec.Struct, frozen=True):
    """Library whose kernels were counted.

    Attributes:
        file: its name.
        sha256: its hash.
        kernels: names of kernels that it exports; those without an exported name are in none.
    """

    file: str
    sha256: str
    kernels: list[str]


class EvidenceRun(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.kernel-evidence/1"):
    """Process whose kernels were counted.

    Attributes:
        variant: name of its variant.
        started: UTC, ISO 8601.
        target: where it ran.
        inferences: calls of the method.
        library: whose kernels were counted.
        counts: name of the file of counts; null when the run failed.
        counts_sha256: its hash.
        trace: name of the trace of the same process; null when the run failed.
        trace_sha256: its hash.
        output_sha256: hash of all output values.
        failure: why it failed; null when it did not.
    """

    variant: str
    started: str
    target: Target
    inferences: int
    library: KernelLibrary
    counts: str | None = None
    counts_sha256: str | None = None
    trace: str | None = None
    trace_sha256: str | None = None
    output_sha256: str | None = None
    failure: Failure | None = None


def evidence_directory(bundle: Bundle, variant: str) -> Path:
    """Return the directory of the evidence of a variant."""
    return bundle.path / EVIDENCE / variant


def save_evidence(bundle: Bundle, run: EvidenceRun) -> None:
    """Write the record of a run whose files are there, and its hash into the manifest, which is held."""
    content = to_json(run, indent=2)
    bundle.save_stated("evidence_sha256", run.variant, evidence_directory(bundle, run.variant) / RECORD, content)


def evidence_runs(bundle: Bundle) -> dict[str, EvidenceRun]:
    """Return the evidence of every variant that has any; its files are checked against the record."""
    every = ((variant.name, evidence_of(bundle, variant.name)) for variant in bundle.manifest.variants)
    return {name: run for name, run in every if run is not None}


def evidence_of(bundle: Bundle, variant: str) -> EvidenceRun | None:
    """Return the evidence of one variant, its files checked against the record; None if it has none."""
    file, stated = evidence_directory(bundle, variant) / RECORD, bundle.manifest.evidence_sha256.get(variant)
    if not file.exists():
        return None
    content = file_bytes(file)
    run = _check_record(_decode_record(content, file), variant, file.parent)
    bundle.check_hash(bundle.relative(file), hashlib.sha256(content).hexdigest(), stated)
    return run


def _decode_record(content: bytes, file: Path) -> EvidenceRun:
    try:
        return from_json(content, EvidenceRun)
    except msgspec.MsgspecError as error:
        hint = "count the kernels again with this opscope: opscope kernels BUNDLE --count"
        raise BundleError(f"the record is damaged or from a newer opscope: {error}", where=file, hint=hint) from None


def _check_record(run: EvidenceRun, variant: str, directory: Path) -> EvidenceRun:
    stated = ((run.counts, run.counts_sha256), (run.trace, run.trace_sha256))
    for name, sha256 in stated:
        if name is None:
            continue
        if "/" in name or name.startswith(".") or run.variant != variant:
            raise TraceFormatError(f"the record names {name!r}, which is not part of it", where=directory / RECORD)
        with storage_errors(directory / name):
            if sha256_of(directory / name) != sha256:
                raise BundleError("the file differs from the recorded one", where=directory / name, hint=_AGAIN)
    return run


_AGAIN = "count the kernels again: opscope kernels BUNDLE --count"
