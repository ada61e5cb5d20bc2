"""Is a bundle complete and true: every check of its manifest, files, traces, figures and structure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from opscope.bundle import validation
from opscope.bundle.bundle import CEILINGS, MANIFEST, MODEL, SAMPLES, VARIANTS, Bundle, is_held
from opscope.bundle.consistency import (
    completeness_problems,
    model_problems,
    plan_problems,
    record_hashes,
    record_problems,
)
from opscope.bundle.documents import (
    DocumentStructure,
    JsonDocument,
    examined,
    file_roles,
    role_problems,
    shape,
    shape_problems,
    shown,
)
from opscope.bundle.inventory import TALK, Inventory, inventory, leftovers, path_problems, stated_paths
from opscope.bundle.kernel_evidence import EVIDENCE, RECORD
from opscope.bundle.manifest import Manifest, Status
from opscope.bundle.validation import CheckStatus, Problem
from opscope.core.errors import BundleError, NotFoundError, OpscopeError, UsageError
from opscope.core.files import sha256_of
from opscope.core.parts import explained, noted
from opscope.core.printable import shell_command
from opscope.core.units import counted_text
from opscope.core.version import __version__
from opscope.experiment.protocol import OUTPUTS
from opscope.measurements.bundle_work import WORK
from opscope.measurements.results import ValidationResult
from opscope.workflows.reports.reports import ANALYSIS, COMPARISON, COMPARISONS, file_name
from opscope.workflows.validate.derived import derived_files
from opscope.workflows.validate.repetitions import output_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opscope.bundle.consistency import RecordHash
    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Model
    from opscope.bundle.validation import BundleCheck, Question
    from opscope.core.parts import PartFailure
    from opscope.workflows.validate.derived import Inconsistencies
    from opscope.workflows.validate.repetitions import TraceFindings

    Found = TypeVar("Found")
    Json: TypeAlias = Any
    """A decoded document of any shape."""

_MISSING = "is missing"


def file_check(manifest: Manifest, found: Inventory) -> BundleCheck:
    """Stated files that are not there; those of a run that has not ended well may not be written yet."""
    stated = {path: at for at, path in stated_paths(manifest) if not at.endswith("directory")}
    derived = derived_files(manifest) if manifest.status is Status.COMPLETE else []
    wanted = list(dict.fromkeys([*stated, *output_files(manifest), *derived]))
    missing = [path for path in wanted if found.fault(path) == _MISSING]
    problems = [Problem(path, "", _why(path, stated)) for path in missing]
    return validation.FILES.answered(problems, f"all {len(wanted)} listed files exist")


def _why(path: str, stated: Mapping[str, str]) -> str:
    if path in stated:
        return f"{_MISSING}; {MANIFEST} names it at {stated[path]}"
    return f"{_MISSING}; every run that succeeds writes it"


def hash_check(
    manifest: Manifest, found: Inventory, traces: TraceFindings, records: Sequence[RecordHash]
) -> BundleCheck:
    """Traces, records of processes and ceilings that are not those whose hashes are stated."""
    changed = [
        Problem(MANIFEST, f"repetitions[{record_hash.number}]", record_hash.fault)
        for record_hash in records
        if record_hash.changed
    ]
    hashed = sum(repetition.trace_sha256 is not None for repetition in manifest.repetitions)
    if not traces.hashed and not traces.hashes and not records:
        return validation.HASHES.skipped("nothing was measured")
    others = sum(len(repetition.files_sha256) for repetition in manifest.repetitions)
    text = f", {counted_text(others, 'file')} next to them" if others else ""
    counts = f"{len(traces.hashed)} of {hashed} traces{text} and {counted_text(len(records), 'record')}"
    problems = [*traces.hashes, *changed, *_other_figures(manifest, found)]
    return validation.HASHES.answered(problems, f"{counts} match the recorded SHA-256")


def _other_figures(manifest: Manifest, found: Inventory) -> Iterator[Problem]:
    """Other files that figures rest on and that are other ones; that one is gone is told elsewhere, or no fault."""
    samples = manifest.samples.outputs_sha256 if manifest.samples else {}
    kept = {f"{VARIANTS}/{own}/{CEILINGS}": sha256 for own, sha256 in manifest.ceilings_sha256.items()}
    kept |= {f"{VARIANTS}/{own}/{SAMPLES}": sha256 for own, sha256 in samples.items()}
    kept |= {f"{EVIDENCE}/{own}/{RECORD}": sha256 for own, sha256 in manifest.evidence_sha256.items()}
    kept |= {f"{EVIDENCE}/{own}/{WORK}": sha256 for own, sha256 in manifest.work_sha256.items()}
    for repetition in manifest.repetitions:
        kept |= {f"{repetition.directory}/{name}": sha256 for name, sha256 in repetition.files_sha256.items()}
    for path, stated in kept.items():
        if not found.fault(path) and (true := sha256_of(found.root / path)) != stated:
            yield Problem(path, "", f"its SHA-256 is {true:.12}…, {MANIFEST} states {stated:.12}…")
    yield from _added_files(manifest, found)


def _added_files(manifest: Manifest, found: Inventory) -> Iterator[Problem]:
    """What lies beside a trace, and its process did not leave; older manifests do not say what it left."""
    for repetition in manifest.repetitions:
        if repetition.files_sha256:
            known = {*repetition.files_sha256, OUTPUTS, str(repetition.trace).rpartition("/")[2], *TALK}
            beside = [path for path in found.sizes if path.rpartition("/")[0] == repetition.directory]
            yield from (
                Problem(path, "", f"does not belong to its repetition: {MANIFEST} states no hash of it")
                for path in beside
                if path.rpartition("/")[2] not in known
            )


def program_check(manifest: Manifest, found: Inventory) -> BundleCheck:
    """Whether the program and its record can be read and are what the manifest says.

    Skipped when a file is not there or the manifest does not say enough: other checks tell that.
    """
    question, models = validation.PROGRAM, manifest.models
    paths = [path for model in models.values() for path in (model.program, model.etrecord) if path is not None]
    faults = [f"{path} {fault}, see files and paths" for path in paths if (fault := found.fault(path))]
    if faults or any(model.sha256 is None for model in models.values()):
        return question.skipped(faults[0] if faults else "the manifest has no hash")
    problems = list(_value_problems(manifest, found))
    for at, model in models.items():
        problems += [*_untrue_facts(at, model, found), *_record_problems(at, model, found)]
    programs = ", ".join(model.program for model in models.values())
    unhashed = [model.etrecord for model in models.values() if model.etrecord and model.etrecord_sha256 is None]
    aside = f"; the manifest has no hash for {', '.join(unhashed)}" if unhashed else ""
    return question.answered(problems, f"{programs}: hash, size, methods and delegates as stated{aside}")


def _untrue_facts(at: str, model: Model, found: Inventory) -> Iterator[Problem]:
    path = found.root / model.program
    true: dict[str, object] = {"sha256": sha256_of(path), "size": found.sizes[model.program]}
    try:
        true |= _read_facts(model, found)
    except OpscopeError as error:
        yield Problem(model.program, "", error.problem)
    for name, value in true.items():
        stated = getattr(model, name)
        if stated is not None and stated != value:
            texts = [", ".join(own) if isinstance(own, list) else shown(own) for own in (stated, value)]
            yield Problem(MANIFEST, f"{at}.{name}", f"is {texts[0]}, {model.program} has {texts[1]}")


def _read_facts(model: Model, found: Inventory) -> dict[str, object]:
    """What the program itself tells."""
    from opscope.runtimes.registry import runtime_of

    program = found.root / model.program
    read = runtime_of(program).described(model.source, None, [program], MODEL)
    return {name: getattr(read, name) for name in ("methods", "backends", "planned_bytes", "delegate_bytes")}


def _record_problems(at: str, model: Model, found: Inventory) -> Iterator[Problem]:
    from opscope.runtimes.registry import runtime_of

    if model.etrecord is None:
        return
    path = found.root / model.etrecord
    if model.etrecord_sha256 not in {None, true := sha256_of(path)}:
        text = f"is {shown(model.etrecord_sha256)}, {model.etrecord} has {shown(true)}"
        yield Problem(MANIFEST, f"{at}.etrecord_sha256", text)
    try:
        runtime_of(found.root / model.program).check_record(path)
    except OpscopeError as error:
        yield Problem(model.etrecord, "", error.problem)


def _value_problems(manifest: Manifest, found: Inventory) -> Iterator[Problem]:
    """Whether inputs and weights apart are those that were given; that they are missing is told elsewhere."""
    plan, models = manifest.plan, manifest.models.items()
    values = [("plan.values_sha256", plan.values, plan.values_sha256)]
    values += [
        (f"plan.inputs_of.{name}.values_sha256", variant_inputs.values, variant_inputs.values_sha256)
        for name, variant_inputs in plan.inputs_of.items()
    ]
    data = [(f"{at}.data_sha256", model.data, model.data_sha256) for at, model in models]
    for at, path, stated in (*values, *data):
        if path is not None and not found.fault(path) and stated != (true := sha256_of(found.root / path)):
            yield Problem(MANIFEST, at, f"is {shown(stated)}, {path} has {shown(true)}")


def derived_documents(manifest: Manifest, found: Inventory) -> dict[str, JsonDocument]:
    """The JSON documents of a bundle besides its manifest, by path, each with what breaks its schema."""
    from opscope.analysis.analysis import Analysis
    from opscope.analysis.compare.compare import Comparison
    from opscope.program.ceilings import Ceilings, NoCeilings

    ceilings = {f"{VARIANTS}/{variant.name}/{CEILINGS}" for variant in manifest.variants}
    documents = {}
    for path in found.sizes:
        kind = document_kind(path)
        if kind == ANALYSIS:
            documents[path] = examined(found.content(path), Analysis)
        elif kind == COMPARISON:
            documents[path] = examined(found.content(path), Comparison)
        elif path in ceilings:
            documents[path] = examined(found.content(path), Ceilings, NoCeilings)
    return documents


def document_kind(path: str) -> str:
    """What a document is, by its path: the name of the first of its kind."""
    home, _, name = path.rpartition("/")
    if home == COMPARISONS and name.endswith(".json"):
        return COMPARISON
    return name if home == "" or home.startswith(f"{VARIANTS}/") else ""


def document_check(documents: Mapping[str, JsonDocument]) -> BundleCheck:
    """Documents that break their schema."""
    if not documents:
        return validation.DOCUMENTS.skipped("no documents besides the manifest")
    problems = [Problem(path, *fault) for path, document in documents.items() for fault in document.faults]
    files = counted_text(len(documents), "JSON document")
    passed = f"{files}: all fields are known and have the right type"
    return validation.DOCUMENTS.answered(problems, passed + absent_text(documents.values()))


def ceilings_check(documents: Mapping[str, JsonDocument]) -> BundleCheck:
    """Ceilings of an earlier run that nothing showed to hold for this one."""
    from opscope.program.ceilings import Ceilings, Origin

    known = {path: document.typed for path, document in documents.items() if isinstance(document.typed, Ceilings)}
    if not known:
        return validation.CEILINGS.skipped("no ceilings were measured")
    reused = {path: ceilings for path, ceilings in known.items() if ceilings.origin is Origin.CACHE}
    problems = [
        Problem(path, "drift", "the ceilings come from an earlier run, and no probe confirmed them")
        for path, ceilings in reused.items()
        if ceilings.drift is None or not ceilings.drift.agrees
    ]
    passed = f"{len(known) - len(reused)} measured, {len(reused)} from an earlier run, confirmed by a probe"
    return validation.CEILINGS.answered(problems, passed)


def absent_text(documents: Iterable[JsonDocument]) -> str:
    """How many optional fields are not there, as the end of a sentence; empty when none is."""
    absent = {at for document in documents for at in document.absent}
    if not absent:
        return ""
    first = min(absent)
    return f"; {counted_text(len(absent), 'optional field')} missing, written by an earlier opscope: {first}"


def leftover_check(manifest: Manifest, found: Inventory) -> BundleCheck:
    """What no run that ended well leaves; one that is at work has files of its own."""
    if is_held(found.root):
        return validation.LEFTOVERS.skipped("a run is writing here")
    names = [variant.name for variant in manifest.variants]
    homes = {*names, *map(file_name, names)}  # of the repetitions of each, and of its analysis
    return validation.LEFTOVERS.answered(leftovers(manifest, found, homes), "no half-written or unnamed files")


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
    structures, wanted = _shapes(opened, opened.manifest), _shapes(good, good.manifest)
    problems = [
        p for kind in structures if kind in wanted for p in shape_problems(kind, structures[kind], wanted[kind])
    ]
    return [
        validation.LIKE_FILES.answered(
            role_problems(*roles), f"{counted_text(len(roles[0]), 'kind')} of files, as in the good bundle"
        ),
        validation.LIKE_FIELDS.answered(problems, f"fields and types of {', '.join(structures)} as in the good bundle"),
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

    def checked() -> BundleCheck:
        problems = [Problem(MANIFEST, *fault) for fault in opened.document.faults]
        if opened.manifest is not None:
            problems += model_problems(opened.manifest)
        passed = f"all fields are known and have the right type{absent_text([opened.document])}"
        return validation.MANIFEST.answered(problems, passed)

    return _answered(validation.MANIFEST, checked)


def _checks(opened: Opened, manifest: Manifest) -> list[BundleCheck]:
    from opscope.workflows.validate import repetitions
    from opscope.workflows.validate.derived import derived_checks

    found = opened.found
    lost: dict[str, str] = {}
    plan = _noted(lost, validation.PLAN, lambda: list(plan_problems(manifest)))
    records = _noted(lost, validation.RECORDS, lambda: list(record_problems(manifest)))
    unfinished = _noted(lost, validation.COMPLETE, lambda: list(completeness_problems(manifest)))
    findings = repetitions.trace_findings(manifest, found)
    documents = derived_documents(manifest, found)
    (program,) = _answered(validation.PROGRAM, lambda: program_check(manifest, found))
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
        *_answered(validation.FILES, lambda: file_check(manifest, found)),
        *_answered(validation.HASHES, lambda: hash_check(manifest, found, findings, list(hashes))),
        program,
        *_answered(validation.DOCUMENTS, lambda: document_check(documents)),
        *_answered(validation.CEILINGS, lambda: ceilings_check(documents)),
        *_answered(validation.LEFTOVERS, lambda: leftover_check(manifest, found)),
        *_all_answered(validation.OF_TRACES, lambda: repetitions.trace_checks(manifest, findings)),
        *_answered(validation.THREADS, lambda: repetitions.thread_check(manifest)),
        *_answered(validation.MASK, lambda: repetitions.mask_check(manifest)),
        *_answered(validation.OUTPUTS, lambda: repetitions.output_check(manifest, found)),
        *_all_answered(validation.FIGURES, lambda: derived_checks(figures, found, comparable, doubts)),
    ]
    return [_unless_lost(check, lost) for check in checks]


def _unless_lost(check: BundleCheck, lost: Mapping[str, str]) -> BundleCheck:
    if check.name not in lost:
        return check
    text = f"could not be checked: {lost[check.name]}"
    return msgspec.structs.replace(check, status=CheckStatus.SKIPPED, message=text)


def _noted(lost: dict[str, str], question: Question, find: Callable[[], list[Found]]) -> list[Found]:
    """What a question finds; where a bug of ours prevents it, that it was not asked is noted."""
    nothing: list[Found] = []
    return noted(lost, question.name, f"the check {question.name}", find, nothing)


def _answered(question: Question, answer: Callable[[], BundleCheck]) -> list[BundleCheck]:
    return _all_answered([question], lambda: [answer()])


def _all_answered(questions: Sequence[Question], answer: Callable[[], list[BundleCheck]]) -> list[BundleCheck]:
    """Answers to questions; where a bug of ours prevents one, they are not asked."""
    name = (
        f"the check {questions[0].name}"
        if len(questions) == 1
        else f"the checks {questions[0].name} to {questions[-1].name}"
    )
    return explained(name, answer, lambda failure: [_not_asked(question, [failure]) for question in questions])


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
    against = [word for old in manifest.programs.values() for word in ("--against", old.source)][:2]
    words = ["check" if against else "profile", manifest.model.source, *against, *manifest.words_of_target]
    return f"finish it with `opscope {shell_command(words)} --out {{bundle}} --resume`"


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
