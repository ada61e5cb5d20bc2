"""Is a bundle complete and true: every check of its manifest, files, traces, figures and structure."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from opscope.api.validation_opened import opened_bundle
from opscope.bundle import questions
from opscope.bundle.bundle import MANIFEST, ROOFS, VARIANTS, Bundle
from opscope.bundle.consistency import (
    completeness_problems,
    model_problems,
    plan_problems,
    record_problems,
)
from opscope.bundle.inventory import path_problems
from opscope.bundle.lock import is_held
from opscope.bundle.validation import CheckStatus, Problem, Validation
from opscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.api.validation_opened import Opened
    from opscope.api.validation_recomputed import Doubts
    from opscope.api.validation_traces import TraceFindings
    from opscope.bundle.documents import Document
    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest
    from opscope.bundle.validation import BundleCheck

    Json: TypeAlias = Any
    """A decoded document of any shape."""

_UNREADABLE = "the manifest cannot be read"
_WAIT = "wait until the run that is writing here ends"


def validate(path: str | Path, *, like: str | Path | None = None) -> Validation:
    """Check whether a bundle is complete and true. Nothing in it is changed, and nothing outside of it is read.

    All checks are made, whatever fails. Figures are computed anew from the traces and laid beside the stated ones.

    Args:
        path: of the bundle.
        like: a known-good bundle; the structure of both is compared then.

    Raises:
        NotFoundError: there is nothing at one of the paths.
        BundleError: it is no bundle.
    """
    opened = opened_bundle(Path(path))
    good = None if like is None else opened_bundle(Path(like))
    checks = _manifest_checks(opened)
    if opened.manifest is None:
        checks += [question.skipped(_UNREADABLE) for question in questions.BEHIND_MANIFEST]
    else:
        checks += _checks(opened, opened.manifest)
    if good is not None:
        from opscope.api.validation_likeness import likeness_checks

        checks += likeness_checks(opened, good)
    written = _version(opened.document.value)
    return Validation(
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
    return msgspec.structs.replace(check, action=action.replace("{bundle}", path))


def _manifest_checks(opened: Opened) -> list[BundleCheck]:
    from opscope.api.validation_files import absent_text

    problems = [Problem(MANIFEST, *fault) for fault in opened.document.faults]
    if opened.manifest is not None:
        problems += model_problems(opened.manifest)
    passed = f"every field is known and of the right type{absent_text([opened.document])}"
    return [questions.MANIFEST.answered(problems, passed)]


def _checks(opened: Opened, manifest: Manifest) -> list[BundleCheck]:
    from opscope.api import validation_files as files
    from opscope.api import validation_processes as processes
    from opscope.api import validation_traces as traces

    found = opened.found
    plan, records = list(plan_problems(manifest)), list(record_problems(manifest))
    findings = traces.trace_findings(manifest, found)
    documents = files.derived_documents(manifest, found)
    program = files.program_check(manifest, found)
    unfinished = list(completeness_problems(manifest))
    sound = _doubts(manifest, plan, [name for name, _ in records], findings, unfinished=bool(unfinished))
    sound = sound._replace(variants={**_variants_outside(manifest, found), **sound.variants})
    doubts = sound._replace(program=_program_doubt(program), roofs=_roofs_doubt(documents))
    return [
        _plan_check(manifest, plan),
        questions.RECORDS.answered([p for _, p in records], f"{len(manifest.repetitions)} repetitions as planned"),
        _completeness_check(opened, manifest, unfinished),
        questions.PATHS.answered(path_problems(manifest, found), "all stated paths and all files lie in the bundle"),
        files.file_check(manifest, found),
        files.hash_check(manifest, findings),
        program,
        files.document_check(documents),
        files.ceilings_check(documents),
        files.leftover_check(manifest, found),
        *traces.trace_checks(manifest, findings),
        processes.thread_check(manifest),
        processes.mask_check(manifest),
        processes.output_check(manifest, found),
        *_figure_checks(Bundle(found.root, manifest), documents, found, doubts),
    ]


def _plan_check(manifest: Manifest, problems: list[Problem]) -> BundleCheck:
    rounds, variants = manifest.plan.rounds, len(manifest.variants)
    return questions.PLAN.answered(problems, f"each of {rounds} rounds holds each of {variants} variants once")


def _completeness_check(opened: Opened, manifest: Manifest, problems: list[Problem]) -> BundleCheck:
    planned = manifest.planned()
    done = len(set(planned).intersection(r.place for r in manifest.repetitions if r.ok))
    succeeded = f"{done} of {len(planned)} planned repetitions succeeded"
    action = _WAIT if is_held(opened.found.root) else _finishing(opened.found, manifest)
    question = questions.COMPLETE._replace(action=action)
    return question.answered(problems, succeeded, f"{succeeded}, the run is {manifest.status.value}")


def _finishing(found: Inventory, manifest: Manifest) -> str:
    """The command that finishes a run."""
    config = next((path for path in found.sizes if path.partition(".")[0] == "config"), None)
    if config is not None:
        return f"finish it with `opscope run FILE --resume`, where FILE is the one that {config} is a copy of"
    return f"finish it with `opscope profile {shlex.quote(manifest.model.source)} --out {{bundle}} --resume`"


def _variants_outside(manifest: Manifest, found: Inventory) -> dict[str, str]:
    """Variants with a file that must not be opened, which computing their figures would do."""
    outside = {variant.name: f"{VARIANTS}/{variant.name}" for variant in manifest.variants}
    return {
        name: "one of its files cannot be read, see paths"
        for name, home in outside.items()
        if any(path == home or path.startswith(f"{home}/") or home.startswith(f"{path}/") for path in found.unusable)
    }


def _program_doubt(check: BundleCheck) -> str:
    """Why layers cannot be known; empty when they can."""
    passed = check.status is CheckStatus.PASSED
    return "" if passed else "the program or its record cannot be used, see program, files and paths"


def _roofs_doubt(documents: Mapping[str, Document]) -> str:
    """Why ceilings cannot be known; empty when they can."""
    damaged = [path for path, document in documents.items() if path.endswith(ROOFS) and document.typed is None]
    return f"{damaged[0]} is damaged, see documents" if damaged else ""


def _doubts(
    manifest: Manifest, plan: list[Problem], records: list[str], findings: TraceFindings, *, unfinished: bool
) -> Doubts:
    """Why figures cannot be computed anew, by what is damaged."""
    from opscope.api.validation_recomputed import Doubts

    known = {variant.name for variant in manifest.variants}
    variants = dict.fromkeys(sorted(findings.unreadable & known), "its traces cannot be read, see traces and files")
    variants |= dict.fromkeys(sorted(known.intersection(records)), "its records contradict the plan, see records")
    whole = "the plan contradicts itself, see plan" if plan else ""
    return Doubts(variants, all=whole, unfinished=unfinished)


def _figure_checks(
    bundle: Bundle, documents: Mapping[str, Document], found: Inventory, doubts: Doubts
) -> list[BundleCheck]:
    from opscope.api import validation_figures as figures
    from opscope.api.validation_recomputed import HTML, MARKDOWN, computed
    from opscope.api.validation_reports import report_check

    if doubts.all:
        return [question.skipped(doubts.all) for question in questions.FIGURES]
    values = {path: document.value for path, document in documents.items() if not document.foreign}
    now = computed(bundle, doubts)
    stated = list(figures.stated_analyses(bundle.manifest, values, now, doubts))
    texts = {name: found.content(name).decode(errors="replace") for name in (MARKDOWN, HTML) if not found.fault(name)}
    return [
        *figures.analysis_checks(stated, doubts),
        figures.comparison_check(bundle, values, now, doubts),
        report_check(bundle, texts, now, doubts),
    ]
