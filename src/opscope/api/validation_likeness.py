"""The structure of a bundle beside that of a known-good one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from opscope.api.validation_files import derived_documents, document_kind
from opscope.bundle import questions
from opscope.bundle.bundle import MANIFEST
from opscope.bundle.likeness import Shape, file_roles, role_problems, shape, shape_problems

if TYPE_CHECKING:
    from opscope.api.validation_opened import Opened
    from opscope.bundle.manifest import Manifest
    from opscope.bundle.validation import BundleCheck

    Json: TypeAlias = Any
    """A decoded document of any shape."""

_UNREADABLE = "the manifest cannot be read"


def likeness_checks(opened: Opened, good: Opened) -> list[BundleCheck]:
    """The answers to files and fields, of a bundle and a known-good one."""
    asked = (questions.LIKE_FILES, questions.LIKE_FIELDS)
    if opened.manifest is None or good.manifest is None:
        reason = _UNREADABLE if opened.manifest is None else "the manifest of the good bundle cannot be read"
        return [question.skipped(reason) for question in asked]
    roles = file_roles(opened.manifest, opened.found.sizes), file_roles(good.manifest, good.found.sizes)
    own, wanted = _shapes(opened, opened.manifest), _shapes(good, good.manifest)
    problems = [p for kind in own if kind in wanted for p in shape_problems(kind, own[kind], wanted[kind])]
    return [
        questions.LIKE_FILES.answered(role_problems(*roles), f"{len(roles[0])} kinds of files, as in the good bundle"),
        questions.LIKE_FIELDS.answered(problems, f"fields and types of {', '.join(own)} as in the good bundle"),
    ]


def _shapes(opened: Opened, manifest: Manifest) -> dict[str, Shape]:
    """Fields of the documents of a bundle by kind; those that are no JSON are left to another check."""
    kinds: dict[str, list[Json]] = {MANIFEST: [opened.document.value]}
    for path, document in derived_documents(manifest, opened.found).items():
        if document.value is not None:
            kinds.setdefault(document_kind(path), []).append(document.value)
    return {kind: shape(documents) for kind, documents in kinds.items()}
