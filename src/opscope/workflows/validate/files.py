"""Checks of a bundle's files: what is stated is there, has its hash, and is what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.bundle import validation
from opscope.bundle.bundle import CEILINGS, MANIFEST, MODEL, SAMPLES, VARIANTS, is_held
from opscope.bundle.documents import JsonDocument, examined, shown
from opscope.bundle.inventory import TALK, leftovers, stated_paths
from opscope.bundle.kernel_evidence import EVIDENCE, RECORD
from opscope.bundle.manifest import Status
from opscope.bundle.validation import Problem
from opscope.core.errors import OpscopeError
from opscope.core.files import sha256_of
from opscope.core.units import counted_text
from opscope.experiment.protocol import OUTPUTS
from opscope.measurements.bundle_work import WORK
from opscope.workflows.reports.reports import ANALYSIS, COMPARISON, COMPARISONS, file_name
from opscope.workflows.validate.derived import derived_files
from opscope.workflows.validate.processes import output_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest, Model
    from opscope.bundle.record_hashes import RecordHash
    from opscope.bundle.validation import BundleCheck
    from opscope.workflows.validate.traces import TraceFindings


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
        Problem(MANIFEST, f"repetitions[{own.number}]", f"was changed: {own.difference}")
        for own in records
        if own.changed
    ]
    hashed = sum(repetition.trace_sha256 is not None for repetition in manifest.repetitions)
    stated = [own for own in records if own.stated is not None]
    if not traces.hashed and not traces.hashes and not stated:
        return validation.HASHES.skipped("no trace or record has a recorded hash")
    others = sum(len(repetition.files_sha256) for repetition in manifest.repetitions)
    told = f", {counted_text(others, 'file')} next to them" if others else ""
    counts = (
        f"{len(traces.hashed)} of {hashed} traces{told} and {len(stated)} of {counted_text(len(records), 'record')}"
    )
    aside = "" if len(stated) == len(records) else "; an earlier opscope recorded no hash for the others"
    return validation.HASHES.answered(
        [*traces.hashes, *changed, *_other_figures(manifest, found)], f"{counts} match the recorded SHA-256{aside}"
    )


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
        (f"plan.inputs_of.{name}.values_sha256", own.values, own.values_sha256) for name, own in plan.inputs_of.items()
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
