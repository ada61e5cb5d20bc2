"""Exact work of the program that a bundle measured, kept in its evidence arm: ``evidence/VARIANT/work.json``.

It is counted on the processor that the counter shows programs, which may have other features than the one that was
timed: it stands beside times, and is never one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.work.work import Work
from opscope.bundle.kernel_evidence import evidence_directory
from opscope.core.errors import BundleError
from opscope.core.files import storage_errors
from opscope.core.json import from_json, to_json
from opscope.core.system.memory import file_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.bundle.bundle import Bundle

WORK = "work.json"


def keep_work(bundle: Bundle, variant: str, work: Work) -> None:
    """Keep the work of a variant's program in a bundle that is held, replacing earlier counts.

    Raises BundleError if it is the work of another program.
    """
    _check_program(bundle, variant, work, evidence_directory(bundle, variant) / WORK)
    directory = evidence_directory(bundle, variant)
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    bundle.save_stated("work_sha256", variant, directory / WORK, to_json(work, indent=2))


def kept_work(bundle: Bundle, variant: str) -> Work | None:
    """Return the work of the program that a variant ran; None if nobody counted it.

    Raises BundleError if the record is damaged, is of another program, or is not the one that was counted.
    """
    manifest = bundle.manifest
    counted_variant = next(
        (
            variant_of_program.name
            for variant_of_program in manifest.beside(variant)
            if variant_of_program.name in manifest.work_sha256
        ),
        None,
    )
    if counted_variant is None:
        return None
    file = evidence_directory(bundle, counted_variant) / WORK
    content = file_bytes(file)
    bundle.check_hash(bundle.relative(file), hashlib.sha256(content).hexdigest(), manifest.work_sha256[counted_variant])
    try:
        work = from_json(content, Work)
    except msgspec.MsgspecError as error:
        raise BundleError(f"the record is damaged or from a newer opscope: {error}", where=file, hint=_AGAIN) from None
    _check_program(bundle, variant, work, file)
    return work


def _check_program(bundle: Bundle, variant: str, work: Work, file: Path) -> None:
    if work.sha256 != bundle.manifest.model_of(variant).sha256:
        raise BundleError("the counts belong to another program", where=file, hint=_AGAIN)


_AGAIN = "count it again: opscope count BUNDLE"
