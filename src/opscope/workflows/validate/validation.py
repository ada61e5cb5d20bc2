"""Is a bundle complete and true: every check of its manifest, files, traces, figures and structure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from opscope.bundle import validation
from opscope.bundle.bundle import CEILINGS, MANIFEST, VARIANTS, Bundle, is_held
from opscope.bundle.consistency import completeness_problems, model_problems, plan_problems, record_problems
from opscope.bundle.documents import (
    DocumentStructure,
    JsonDocument,
    examined,
    file_roles,
    role_problems,
    shape,
    shape_problems,
)
from opscope.bundle.inventory import Inventory, inventory, path_problems
from opscope.bundle.manifest import Manifest
from opscope.bundle.record_hashes import record_hashes
from opscope.bundle.validation import CheckStatus, Problem
from opscope.core.errors import BundleError, NotFoundError, UsageError
from opscope.core.parts import explained, noted
from opscope.core.printable import shell_command
from opscope.core.units import counted_text
from opscope.core.version import __version__
from opscope.measurements.results import ValidationResult
from opscope.workflows.validate.files import derived_documents, document_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.bundle.validation import BundleCheck, Question
    from opscope.core.parts import PartFailure
    from opscope.workflows.validate.derived import Inconsistencies
    from opscope.workflows.validate.traces import TraceFindings

    Found = TypeVar("Found")
    Json: TypeAlias = Any
    """A decoded document of any shape."""


class Opened(NamedTuple):
    """A bundle before anything in it is believed."""

    found: Inventory  # what is on disk
    document: JsonDocument  # the manifest as it stands there

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, None when it does not fit its schema."""
        typed = self.document.typed
        return typed if isinstance(typed, Manifest) else None


def _validated_kit_run(path: Path) -> ValidationResult:
    from opscope.kit.validation import kit_checks

    checks = kit_checks(path)
    valid = all(check.status is not CheckStatus.FAILED for check in checks)
    return ValidationResult(str(path), valid, None, __version__, None, checks)


def opened_bundle(path: Path) -> Opened:
    """Look at what is on disk."""
    if not path.exists():
        raise NotFoundError("nothing exists there", where=path, hint="give the directory that `opscope profile` wrote")
    if not (path / MANIFEST).exists():
        raise BundleError("not a bundle: it has no manifest.json", where=path, hint=_other_hint(path))
    found = inventory(path)
    fault = found.fault(MANIFEST)
    if fault:
        raise BundleError(f"its manifest.json {fault}", where=path, hint="give a complete bundle")
    return Opened(found, examined(found.content(MANIFEST), Manifest))


def _other_hint(path: Path) -> str:
    """What to give instead."""
    inner = sorted(own.parent.name for own in path.glob(f"*/{MANIFEST}"))[:3] if path.is_dir() else []
    return f"validate the bundles in it, one by one: {', '.join(inner)}" if inner else "give the directory of a bundle"


_UNREADABLE = "the manifest cannot be read"


def structure_checks(opened: Opened, good: Opened) -> list[BundleCheck]:
    """The answers to files and fields, of a bundle and a known-good one."""
    asked = (validation.LIKE_FILES, validation.LIKE_FIELDS)
    if opened.manifest is None or good.manifest is None:
        reason = _UNREADABLE if opened.manifest is None else "the manifest of the good bundle cannot be read"
        return [question.skipped(reason) for question in asked]
    roles = file_roles(opened.manifest, opened.found.sizes), file_roles(good.manifest, good.found.sizes)
    own, wanted = _shapes(opened, opened.manifest), _shapes(good, good.manifest)
    problems = [p for kind in own if kind in wanted for p in shape_problems(kind, own[kind], wanted[kind])]
    return [
        validation.LIKE_FILES.answered(
            role_problems(*roles), f"{counted_text(len(roles[0]), 'kind')} of files, as in the good bundle"
        ),
        validation.LIKE_FIELDS.answered(problems, f"fields and types of {', '.join(own)} as in the good bundle"),
    ]


def _shapes(opened: Opened, manifest: Manifest) -> dict[str, DocumentStructure]:
    """Fields of the documents of a bundle by kind; those that are no JSON are left to another check."""
    kinds: dict[str, list[Json]] = {MANIFEST: [opened.document.value]}
    for path, document in derived_documents(manifest, opened.found).items():
        if document.value is not None:
            kinds.setdefault(document_kind(path), []).append(document.value)
    return {kind: shape(documents) for kind, documents in kinds.items()}


_WAIT = "wait until the current run finishes writing"


def validate(path: str | Path, *, like: str | Path | None = None) -> ValidationResult:
    """Check whether a bundle is complete and true. Nothing in it is changed, and nothing outside of it is read.

    All checks are made, whatever fails. Figures are recomputed from the traces and laid beside the stated ones. Of a
    run of the Arm kit, which states no hashes and no plan, the questions are fewer; its program is read where it lies.

    Args:
        path: of the bundle, or of the run directory of the kit.
        like: a known-good bundle; the structure of both is compared then.

    Raises:
        NotFoundError: there is nothing at one of the paths.
        BundleError: it is not a bundle.
        UsageError: a run of the kit is to be compared with a good bundle.
    """
    from opscope.workflows.analyze.sides import is_kit

    if is_kit(Path(path)):
        if like is not None:
            raise UsageError("an Arm kit run has a different structure", where="--like", hint="omit --like")
        return _validated_kit_run(Path(path))
    opened = opened_bundle(Path(path))
    good = None if like is None else opened_bundle(Path(like))
    checks = _manifest_checks(opened)
    if opened.manifest is None:
        checks += [question.skipped(_UNREADABLE) for question in validation.BEHIND_MANIFEST]
    else:
        checks += _checks(opened, opened.manifest)
    if good is not None:
        checks += _all_answered([validation.LIKE_FILES, validation.LIKE_FIELDS], lambda: structure_checks(opened, good))
    written = _version(opened.document.value)
    return ValidationResult(
        path=str(path),
        valid=all(check.status is not CheckStatus.FAILED for check in checks),
        written_by=written,
        checked_by=__version__,
        like=None if like is None else str(like),
        checks=[_filled(check, str(path), written) for check in checks],
    )


def _version(value: Json) -> str | None:
    written = value.get("opscope") if isinstance(value, dict) else None
    return written if isinstance(written, str) else None


def _filled(check: BundleCheck, path: str, written: str | None) -> BundleCheck:
    """With the path and the versions in what to do."""
    if check.action is None:
        return check
    action = check.action.replace("{written}", written or "an unknown version").replace("{checked}", __version__)
    return msgspec.structs.replace(check, action=action.replace("{bundle}", shell_command([path])))


def _manifest_checks(opened: Opened) -> list[BundleCheck]:
    from opscope.workflows.validate.files import absent_text

    def checked() -> BundleCheck:
        problems = [Problem(MANIFEST, *fault) for fault in opened.document.faults]
        if opened.manifest is not None:
            problems += model_problems(opened.manifest)
        passed = f"all fields are known and have the right type{absent_text([opened.document])}"
        return validation.MANIFEST.answered(problems, passed)

    return _answered(validation.MANIFEST, checked)


def _checks(opened: Opened, manifest: Manifest) -> list[BundleCheck]:
    from opscope.workflows.validate import files, processes, traces
    from opscope.workflows.validate.derived import derived_checks

    found = opened.found
    lost: dict[str, str] = {}
    plan = _noted(lost, validation.PLAN, lambda: list(plan_problems(manifest)))
    records = _noted(lost, validation.RECORDS, lambda: list(record_problems(manifest)))
    unfinished = _noted(lost, validation.COMPLETE, lambda: list(completeness_problems(manifest)))
    findings = traces.trace_findings(manifest, found)
    documents = files.derived_documents(manifest, found)
    (program,) = _answered(validation.PROGRAM, lambda: files.program_check(manifest, found))
    sound = _doubts(manifest, plan, [name for name, _ in records], findings, unfinished=bool(unfinished))
    sound = sound._replace(variants={**_variants_outside(manifest, found), **sound.variants})
    doubts = sound._replace(all=sound.all or _program_doubt(program) or _ceilings_doubt(documents))
    values = {path: document.value for path, document in documents.items() if isinstance(document.value, dict)}
    comparable = {path: value for path, value in values.items() if not documents[path].foreign}
    records_text = f"{counted_text(len(manifest.repetitions), 'repetition')} as planned"
    paths_text = "all listed paths and all files are in the bundle"
    hashes = record_hashes(opened.document.value)
    figures = Bundle(found.root, manifest, hashes_checked=True)
    checks = [
        *_answered(validation.PLAN, lambda: _plan_check(manifest, plan)),
        *_answered(validation.RECORDS, lambda: validation.RECORDS.answered([p for _, p in records], records_text)),
        *_answered(validation.COMPLETE, lambda: _completeness_check(opened, manifest, unfinished)),
        *_answered(validation.PATHS, lambda: validation.PATHS.answered(path_problems(manifest, found), paths_text)),
        *_answered(validation.FILES, lambda: files.file_check(manifest, found)),
        *_answered(validation.HASHES, lambda: files.hash_check(manifest, found, findings, list(hashes))),
        program,
        *_answered(validation.DOCUMENTS, lambda: files.document_check(documents)),
        *_answered(validation.CEILINGS, lambda: files.ceilings_check(documents)),
        *_answered(validation.LEFTOVERS, lambda: files.leftover_check(manifest, found)),
        *_all_answered(validation.OF_TRACES, lambda: traces.trace_checks(manifest, findings)),
        *_answered(validation.THREADS, lambda: processes.thread_check(manifest)),
        *_answered(validation.MASK, lambda: processes.mask_check(manifest)),
        *_answered(validation.OUTPUTS, lambda: processes.output_check(manifest, found)),
        *_all_answered(validation.FIGURES, lambda: derived_checks(figures, found, comparable, doubts)),
    ]
    return [_unless_lost(check, lost) for check in checks]


def _unless_lost(check: BundleCheck, lost: Mapping[str, str]) -> BundleCheck:
    if check.name not in lost:
        return check
    told = f"could not be checked: {lost[check.name]}"
    return msgspec.structs.replace(check, status=CheckStatus.SKIPPED, message=told)


def _noted(lost: dict[str, str], question: Question, find: Callable[[], list[Found]]) -> list[Found]:
    """What a question finds; where a bug of ours prevents it, that it was not asked is noted."""
    nothing: list[Found] = []
    return noted(lost, question.name, f"the check {question.name}", find, nothing)


def _answered(question: Question, answer: Callable[[], BundleCheck]) -> list[BundleCheck]:
    return _all_answered([question], lambda: [answer()])


def _all_answered(asked: Sequence[Question], answer: Callable[[], list[BundleCheck]]) -> list[BundleCheck]:
    """Answers to questions; where a bug of ours prevents one, they are not asked."""
    name = f"the check {asked[0].name}" if len(asked) == 1 else f"the checks {asked[0].name} to {asked[-1].name}"
    return explained(name, answer, lambda failure: [_not_asked(question, [failure]) for question in asked])


def _not_asked(question: Question, failures: Sequence[PartFailure]) -> BundleCheck:
    return question.skipped(f"could not be checked: {'; '.join(failure.sentence for failure in failures)}")


def _plan_check(manifest: Manifest, problems: list[Problem]) -> BundleCheck:
    rounds, variants = manifest.plan.rounds, len(manifest.variants)
    return validation.PLAN.answered(
        problems, f"each of {rounds} rounds has each of {counted_text(variants, 'variant')} once"
    )


def _completeness_check(opened: Opened, manifest: Manifest, problems: list[Problem]) -> BundleCheck:
    planned = manifest.planned()
    done = len(set(planned).intersection(r.place for r in manifest.repetitions if r.ok))
    succeeded = f"{done} of {counted_text(len(planned), 'planned repetition')} succeeded"
    action = _WAIT if is_held(opened.found.root) else _finishing(opened.found, manifest)
    question = validation.COMPLETE._replace(action=action)
    return question.answered(problems, succeeded, f"{succeeded}; the run is {manifest.status.value}")


def _finishing(found: Inventory, manifest: Manifest) -> str:
    """The command that finishes a run."""
    config = next((path for path in found.sizes if path.partition(".")[0] == "config"), None)
    if config is not None:
        return f"finish it with `opscope run FILE --resume`, where FILE is the original of {config}"
    for old in manifest.programs.values():
        names = " --against ".join(shell_command([source]) for source in (manifest.model.source, old.source))
        return f"finish it with `opscope profile {names} --out {{bundle}} --resume`"
    return f"finish it with `opscope profile {shell_command([manifest.model.source])} --out {{bundle}} --resume`"


def _variants_outside(manifest: Manifest, found: Inventory) -> dict[str, str]:
    """Variants with a file that must not be opened, which computing their figures would do."""
    outside = {variant.name: f"{VARIANTS}/{variant.name}" for variant in manifest.variants}
    return {
        name: "a file cannot be read, see paths"
        for name, home in outside.items()
        if any(path == home or path.startswith(f"{home}/") or home.startswith(f"{path}/") for path in found.unusable)
    }


def _program_doubt(check: BundleCheck) -> str:
    """Why layers cannot be known; empty when they can."""
    passed = check.status is CheckStatus.PASSED
    return "" if passed else "the program or its record is unusable, see program, files and paths"


def _ceilings_doubt(documents: Mapping[str, JsonDocument]) -> str:
    """Why ceilings cannot be known; empty when they can."""
    damaged = [path for path, document in documents.items() if path.endswith(CEILINGS) and document.typed is None]
    return f"{damaged[0]} is damaged, see documents" if damaged else ""


def _doubts(
    manifest: Manifest, plan: list[Problem], records: list[str], findings: TraceFindings, *, unfinished: bool
) -> Inconsistencies:
    """Why figures cannot be recomputed, by what is damaged."""
    from opscope.workflows.validate.derived import Inconsistencies

    known = {variant.name for variant in manifest.variants}
    variants = dict.fromkeys(sorted(findings.unreadable & known), "its traces cannot be read, see traces and files")
    variants |= dict.fromkeys(sorted(known.intersection(records)), "its records contradict the plan, see records")
    whole = "the plan contradicts itself, see plan" if plan else ""
    return Inconsistencies(variants, all=whole, unfinished=unfinished)
