"""Validation of a bundle: its manifest, files and traces are checked, and its derived files are rewritten."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.bundle import validation as questions
from opscope.bundle.bundle import CEILINGS, EXCHANGED_FILES, MANIFEST, MODEL, SAMPLES, VARIANTS, Bundle, is_held
from opscope.bundle.consistency import (
    Content,
    StatedFile,
    absent_facts,
    completeness_problems,
    plan_problems,
    record_hashes,
    stated_files,
)
from opscope.bundle.documents import (
    JsonDocument,
    field_types,
    file_roles,
    read_document,
    role_problems,
    structure_problems,
)
from opscope.bundle.inventory import MISSING, leftovers, path_problems, read_inventory
from opscope.bundle.kernel_evidence import EVIDENCE, RECORD
from opscope.bundle.manifest import Manifest
from opscope.bundle.validation import CheckStatus, Problem
from opscope.core.errors import BundleError, NotFoundError, OpscopeError, UsageError
from opscope.core.files import sha256_of
from opscope.core.parts import explained
from opscope.core.printable import shell_command
from opscope.core.units import counted_text
from opscope.core.version import __version__
from opscope.experiment.protocol import OUTPUTS
from opscope.measurements.bundle_work import WORK
from opscope.measurements.results import ValidationResult
from opscope.readers.compressed import content_sha256
from opscope.readers.outputs import read_outputs, values_sha256
from opscope.runtimes.registry import runtime_of
from opscope.workflows.reports.reports import file_name
from opscope.workflows.validate.derived import derived_checks, document_kind
from opscope.workflows.validate.traces import trace_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.validation import BundleCheck, Question

_UNREADABLE = "the manifest cannot be read"


class OpenBundle(NamedTuple):
    """A bundle before anything in it is believed."""

    inventory: Inventory
    document: JsonDocument  # the manifest as it stands on disk
    manifest: Manifest | None  # None if it does not fit its schema


def validate(path: str | Path, *, like: str | Path | None = None) -> ValidationResult:
    """Check whether a bundle is complete and true. Nothing in it is changed, and nothing outside of it is read.

    All checks are made, whatever fails. Derived files are rewritten from the traces and the plan, and compared with
    those of the bundle. A run of the Arm kit states no hashes and no plan, so fewer checks are made of it; its program
    is read where it lies.

    Args:
        path: of the bundle, or of the run directory of the kit.
        like: a known-good bundle, or a known-good run of the kit; the structure of both is compared.

    Raises:
        NotFoundError: there is nothing at one of the paths.
        BundleError: it is not a bundle.
        UsageError: a run of the kit is to be compared with a bundle, or a bundle with a run.
    """
    from opscope.kit.validation import kit_checks, kit_structure_checks
    from opscope.workflows.analyze.sides import is_kit

    if is_kit(Path(path)):
        if like is not None and not Path(like).exists():
            hint = "give the directory of a run, such as examples/known-good-run/runs/mac of a checkout"
            raise NotFoundError("nothing exists there", where=like, hint=hint)
        if like is not None and not is_kit(Path(like)):
            hint = "name a run of the kit, such as examples/known-good-run/runs/mac of a checkout"
            raise UsageError("a bundle has another structure than a run of the Arm kit", where="--like", hint=hint)
        structure = [] if like is None else kit_structure_checks(Path(path), Path(like))
        return _make_result(path, None, like, [*kit_checks(Path(path)), *structure])
    bundle = open_bundle(Path(path))
    good = None if like is None else open_bundle(Path(like))
    checks = _make_checks(bundle)
    if good is not None:
        like_questions = [questions.LIKE_FILES, questions.LIKE_FIELDS]
        checks += _make_related_checks(like_questions, partial(_structure_checks, bundle, good))
    document = bundle.document.value
    written_by = document.get("opscope") if isinstance(document, dict) else None
    return _make_result(path, written_by if isinstance(written_by, str) else None, like, checks)


def open_bundle(path: Path) -> OpenBundle:
    """List the files of a bundle and decode its manifest, whatever is wrong with them.

    Raises:
        NotFoundError: nothing is there.
        BundleError: there is no manifest that can be opened.
    """
    if not path.exists():
        raise NotFoundError("nothing exists there", where=path, hint="give the directory that `opscope profile` wrote")
    if not (path / MANIFEST).exists():
        inner = sorted(file.parent.name for file in path.glob(f"*/{MANIFEST}"))[:3] if path.is_dir() else []
        hint = f"validate the bundles in it, one by one: {', '.join(inner)}" if inner else "give a bundle's directory"
        raise BundleError("not a bundle: it has no manifest.json", where=path, hint=hint)
    inventory = read_inventory(path)
    if fault := inventory.fault(MANIFEST):
        raise BundleError(f"its manifest.json {fault}", where=path, hint="give a complete bundle")
    document = read_document(inventory.content(MANIFEST), Manifest)
    return OpenBundle(inventory, document, document.typed)


def _make_result(
    path: str | Path, written_by: str | None, like: str | Path | None, checks: Sequence[BundleCheck]
) -> ValidationResult:
    """Return the result, with the path and the versions in what to do about each failed check."""
    words = {"{written}": written_by or "an unknown version", "{checked}": __version__}
    words["{bundle}"] = shell_command([str(path)])
    filled = []
    for check in checks:
        action = check.action
        for placeholder, word in words.items():
            action = action and action.replace(placeholder, word)
        filled.append(msgspec.structs.replace(check, action=action))
    valid = all(check.status is not CheckStatus.FAILED for check in checks)
    return ValidationResult(str(path), valid, written_by, __version__, None if like is None else str(like), filled)


def _make_checks(bundle: OpenBundle) -> list[BundleCheck]:
    """Make all checks of a bundle, those of derived files last: they need what the others check."""
    checks = [_make_check(questions.MANIFEST, partial(_check_manifest, bundle))]
    manifest, inventory = bundle.manifest, bundle.inventory
    if manifest is None:
        return [*checks, *(question.skipped(_UNREADABLE) for question in questions.BEHIND_MANIFEST)]
    as_planned = f"{counted_text(len(manifest.repetitions), 'repetition')} as planned"
    in_bundle = "all listed paths and all files are in the bundle"
    checks += [
        _make_check(questions.PLAN, lambda: questions.PLAN.answered(plan_problems(manifest), as_planned)),
        _make_check(questions.COMPLETE, partial(_check_completeness, manifest, inventory)),
        _make_check(questions.PATHS, lambda: questions.PATHS.answered(path_problems(manifest, inventory), in_bundle)),
        _make_check(questions.FILES, partial(_check_files, manifest, inventory)),
        _make_check(questions.HASHES, partial(_check_hashes, bundle, manifest)),
        _make_check(questions.PROGRAM, partial(_check_programs, manifest, inventory)),
        _make_check(questions.TRACES, partial(trace_check, manifest, inventory)),
    ]
    failed = [check.name for check in checks if check.status is CheckStatus.FAILED]
    leftover_check = _make_check(questions.LEFTOVERS, partial(_check_leftovers, manifest, inventory))
    if failed:
        reason = f"not checked, see {', '.join(failed)}"
        return [*checks, leftover_check, *(question.skipped(reason) for question in questions.DERIVED)]
    derived = partial(derived_checks, Bundle(inventory.root, manifest), inventory)
    return [*checks, leftover_check, *_make_related_checks(questions.DERIVED, derived)]


def _make_check(question: Question, find: Callable[[], BundleCheck]) -> BundleCheck:
    (check,) = _make_related_checks([question], lambda: [find()])
    return check


def _make_related_checks(related: Sequence[Question], find: Callable[[], list[BundleCheck]]) -> list[BundleCheck]:
    """Make checks that are made together. They are skipped with the reason if a bug of opscope prevents them."""
    names = " to ".join(dict.fromkeys((related[0].name, related[-1].name)))
    return explained(
        f"the check{'s' * (len(related) > 1)} {names}",
        find,
        lambda failure: [question.skipped(f"could not be checked: {failure.sentence}") for question in related],
    )


def _check_manifest(bundle: OpenBundle) -> BundleCheck:
    problems = [Problem(MANIFEST, *fault) for fault in bundle.document.faults]
    if bundle.manifest is not None:
        problems += absent_facts(bundle.manifest)
    passed, absent = "all fields are known and have the right type", bundle.document.absent
    if absent:
        count = counted_text(len(absent), "optional field")
        passed += f"; {count} missing, written by an earlier opscope: {min(absent)}"
    return questions.MANIFEST.answered(problems, passed)


def _check_completeness(manifest: Manifest, inventory: Inventory) -> BundleCheck:
    planned = counted_text(len(manifest.planned()), "planned repetition")
    succeeded = f"{len(manifest.planned()) - len(manifest.pending())} of {planned} succeeded"
    action = "wait until the current run finishes writing"
    if not is_held(inventory.root):
        action = _resume_command(manifest, inventory)
    problems = completeness_problems(manifest)
    failed = f"{succeeded}; the run is {manifest.status.value}"
    return questions.COMPLETE._replace(action=action).answered(problems, succeeded, failed)


def _resume_command(manifest: Manifest, inventory: Inventory) -> str:
    config = next((path for path in inventory.sizes if path.partition(".")[0] == "config"), None)
    if config is not None:
        return f"finish it with `opscope run FILE --resume`, where FILE is the original of {config}"
    against = [word for old in manifest.programs.values() for word in ("--against", old.source)][:2]
    words = ["check" if against else "profile", manifest.model.source, *against, *manifest.words_of_target]
    return f"finish it with `opscope {shell_command(words)} --out {{bundle}} --resume`"


def _check_files(manifest: Manifest, inventory: Inventory) -> BundleCheck:
    """Find files that are gone: those that the manifest names, and the outputs that a variant's first process saves."""
    reasons = {file.path: f"{MANIFEST} names it at {file.json_path}" for file in stated_files(manifest)}
    first_outputs: dict[tuple[str, str], str] = {}
    for repetition in [] if manifest.environment.runs_build else manifest.repetitions:  # foreign runners may save none
        if repetition.ok and repetition.output_sha256 is not None:
            path = f"{repetition.directory}/{OUTPUTS}"
            first_outputs.setdefault((repetition.variant, repetition.output_sha256), path)
    reasons |= dict.fromkeys(first_outputs.values(), "every run that succeeds writes it")
    missing = [path for path in reasons if inventory.fault(path) == MISSING]
    problems = [Problem(path, "", f"{MISSING}; {reasons[path]}") for path in missing]
    return questions.FILES.answered(problems, f"all {len(reasons)} listed files exist")


def _check_hashes(bundle: OpenBundle, manifest: Manifest) -> BundleCheck:
    """Find files that figures rest on, and records of repetitions, that are not those whose hashes are stated."""
    inventory = bundle.inventory
    records = list(record_hashes(bundle.document.value))
    problems = [
        Problem(MANIFEST, f"repetitions[{record.number}]", record.fault) for record in records if record.changed
    ]
    files = [*stated_files(manifest), *_find_hashed_files(manifest)]
    readable = [file for file in files if not inventory.fault(file.path)]
    faults = {
        file.path: _find_hash_fault(file, inventory.root / file.path) for file in readable if file.sha256 is not None
    }
    problems += [Problem(path, "", fault) for path, fault in faults.items() if fault]
    problems += _find_added_files(manifest, inventory)
    unhashed = [file.path for file in readable if file.sha256 is None]
    counts = f"{counted_text(len(readable) - len(unhashed), 'file')} and {counted_text(len(records), 'record')}"
    aside = f"; the manifest has no hash for {', '.join(unhashed)}" if unhashed else ""
    return questions.HASHES.answered(problems, f"{counts} match the recorded SHA-256{aside}")


def _find_hashed_files(manifest: Manifest) -> Iterator[StatedFile]:
    """Yield files that have a hash and may be absent: outputs, ceilings, counted kernels and counted work."""
    for repetition in manifest.repetitions:
        if repetition.output_sha256 is not None:
            yield StatedFile("", f"{repetition.directory}/{OUTPUTS}", repetition.output_sha256, Content.VALUES)
    samples = manifest.samples.outputs_sha256 if manifest.samples else {}
    for pattern, hashes in {
        f"{VARIANTS}/{{}}/{CEILINGS}": manifest.ceilings_sha256,
        f"{VARIANTS}/{{}}/{SAMPLES}": samples,
        f"{EVIDENCE}/{{}}/{RECORD}": manifest.evidence_sha256,
        f"{EVIDENCE}/{{}}/{WORK}": manifest.work_sha256,
    }.items():
        yield from (StatedFile("", pattern.format(variant), sha256) for variant, sha256 in hashes.items())


def _find_hash_fault(file: StatedFile, path: Path) -> str | None:
    try:
        if file.content is Content.VALUES:
            sha256 = values_sha256(read_outputs(path) or [])
        else:
            sha256 = content_sha256(path) if file.content is Content.INFLATED else sha256_of(path)
    except OpscopeError as error:
        return f"its content cannot be read, so it is not the recorded one: {error.problem}"
    if sha256 == file.sha256:
        return None
    return f"its SHA-256 is {sha256:.12}…, {MANIFEST} states {file.sha256:.12}…"


def _find_added_files(manifest: Manifest, inventory: Inventory) -> Iterator[Problem]:
    """Yield files beside a trace that its process did not leave. Older manifests do not say what it left."""
    known = {file.path for file in stated_files(manifest)}
    homes = {repetition.directory for repetition in manifest.repetitions if repetition.files_sha256}
    for path in inventory.sizes:
        directory, _, name = path.rpartition("/")
        if directory in homes and path not in known and name not in {OUTPUTS, *EXCHANGED_FILES}:
            yield Problem(path, "", f"does not belong to its repetition: {MANIFEST} states no hash of it")


def _check_programs(manifest: Manifest, inventory: Inventory) -> BundleCheck:
    """Check whether programs can be read, and are what the manifest says of them."""
    problems = []
    for at, model in manifest.models.items():
        program = inventory.root / model.program
        if fault := inventory.fault(model.program):
            return questions.PROGRAM.skipped(f"{model.program} {fault}, see files and paths")
        try:
            read = runtime_of(program).described(model.source, None, [program], MODEL)
        except OpscopeError as error:
            problems.append(Problem(model.program, "", error.problem))
            continue
        for name in ("size", "methods", "backends", "planned_bytes", "delegate_bytes"):
            stated, true = getattr(model, name), getattr(read, name)
            if stated is not None and stated != true:
                problems.append(Problem(MANIFEST, f"{at}.{name}", f"is {stated}, {model.program} has {true}"))
    programs = ", ".join(model.program for model in manifest.models.values())
    return questions.PROGRAM.answered(problems, f"{programs}: size, methods and delegates as stated")


def _check_leftovers(manifest: Manifest, inventory: Inventory) -> BundleCheck:
    if is_held(inventory.root):
        return questions.LEFTOVERS.skipped("a run is writing here")
    names = [variant.name for variant in manifest.variants]
    homes = {*names, *map(file_name, names)}  # of the repetitions of each variant, and of its analysis
    return questions.LEFTOVERS.answered(leftovers(manifest, inventory, homes), "no half-written or unnamed files")


def _structure_checks(bundle: OpenBundle, good: OpenBundle) -> list[BundleCheck]:
    """Compare kinds of files, fields and types with those of a known-good bundle."""
    if bundle.manifest is None or good.manifest is None:
        reason = _UNREADABLE if bundle.manifest is None else "the manifest of the good bundle cannot be read"
        return [question.skipped(reason) for question in (questions.LIKE_FILES, questions.LIKE_FIELDS)]
    roles = file_roles(bundle.manifest, bundle.inventory.sizes)
    problems = role_problems(roles, file_roles(good.manifest, good.inventory.sizes))
    passed = f"{counted_text(len(roles), 'kind')} of files, as in the good bundle"
    documents, good_documents = _read_documents(bundle), _read_documents(good)
    kinds = [kind for kind in documents if kind in good_documents]
    field_problems = [
        problem
        for kind in kinds
        for problem in structure_problems(kind, field_types(documents[kind]), field_types(good_documents[kind]))
    ]
    return [
        questions.LIKE_FILES.answered(problems, passed),
        questions.LIKE_FIELDS.answered(field_problems, f"fields and types of {', '.join(kinds)} as in the good bundle"),
    ]


def _read_documents(bundle: OpenBundle) -> dict[str, list[Any]]:
    """Return the JSON documents of a bundle by kind, decoded without a type. Files that are no JSON are left out."""
    documents = {MANIFEST: [bundle.document.value]}
    for path in bundle.inventory.sizes:
        kind = CEILINGS if path.startswith(f"{VARIANTS}/") and path.endswith(f"/{CEILINGS}") else document_kind(path)
        value = read_document(bundle.inventory.content(path), Manifest).value if kind else None
        if value is not None:
            documents.setdefault(kind, []).append(value)
    return documents
