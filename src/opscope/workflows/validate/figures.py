"""Checks of a bundle's stated figures: each document beside what its traces give."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from opscope.analysis.operators.headline import HeadlineSplit
from opscope.analysis.validation import differences, sum_problems
from opscope.bundle import questions
from opscope.bundle.bundle import MANIFEST, VARIANTS
from opscope.bundle.validation import Problem
from opscope.core.errors import OpscopeError
from opscope.core.units import counted_text
from opscope.core.version import __version__
from opscope.measurements.analyses import comparison_of
from opscope.measurements.sides import bundle_side
from opscope.workflows.validate.recomputed import (
    ANALYSIS,
    COMPARISON,
    COMPARISONS,
    derived_files,
    document_of,
    placeless,
    without_place,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opscope.analysis.validation import Difference
    from opscope.bundle.bundle import Bundle
    from opscope.bundle.manifest import Manifest
    from opscope.bundle.validation import BundleCheck, Question
    from opscope.workflows.validate.recomputed import Computed, Inconsistencies

    Json: TypeAlias = Any
    """A decoded document of any shape."""

_PARTS = {
    "traced": questions.LATENCY,
    **dict.fromkeys(HeadlineSplit.__struct_fields__, questions.SPLIT),
    "categories": questions.SPLIT,
    "backends": questions.SPLIT,
    "operators": questions.SPLIT,
    "delegates": questions.SPLIT,
    "modules": questions.SPLIT,
    "sources": questions.SPLIT,
    "layout": questions.SPLIT,
    "portable": questions.SPLIT,
    "variant": questions.ORIGIN,
    "trace": questions.ORIGIN,
    "program": questions.ORIGIN,
}
"""Which check a part of an analysis belongs to; what is not named is a conclusion."""
_ESTIMATED = re.compile(
    r"(end_to_end|methods|quality|notes|findings|ruled_out|tracing|shift\.(limit|remaining))\b"
    r"|.*\.(speedup|limit|verdict)$"
)
"""Parts of a document that depend on how an opscope estimates and on what its rules know."""
_OTHERS = "it is of other repetitions than there are now, see complete"


class DerivedDocument(NamedTuple):
    """A derived document of the bundle, and what it should be."""

    file: str  # its path
    document: Json  # as it stands there, without the place of the bundle
    computed: Json | None  # from the traces; None when that is not possible
    reason: str = ""  # why not; empty when it is
    earlier: str = ""  # the opscope that estimated, where it is another one than this; empty when it is this one

    def differences(self) -> list[Difference]:
        """What differs, but for what another opscope estimated."""
        return [one for one in self._all() if not (self.earlier and _ESTIMATED.match(one.at))]

    def aside(self) -> str:
        """What was not compared; empty when all was."""
        if self.computed is None:
            return f"{self.file} not checked: {self.reason}"
        alike = len(self.differences()) == len(self._all())
        return "" if alike else f"estimates in {self.file} not recomputed, made by opscope {self.earlier}"

    def _all(self) -> list[Difference]:
        return list(differences(self.document, _of_the_same_rules(self.document, self.computed)))


def stated_analyses(
    manifest: Manifest, documents: Mapping[str, Json], found: Computed, doubts: Inconsistencies
) -> Iterator[DerivedDocument]:
    """Every analysis of the bundle beside what the traces give."""
    for file, variant in derived_files(manifest).items():
        if not isinstance(variant, str) or not file.endswith(ANALYSIS) or not isinstance(documents.get(file), dict):
            continue
        document = documents[file]
        name = variant or found.shown or _text(document, "variant")
        computed = found.analyses.get(name)
        reason = doubts.variants.get(name, f"nothing can be computed of {name}")
        if doubts.unfinished and computed is not None and _made_of(document) != _made_of(computed):
            computed, reason = None, _OTHERS
        placed = without_place(document, _root(_text(document.get("trace"), "path"), name))
        yield DerivedDocument(file, placed, computed, reason, _earlier(manifest))


def _earlier(manifest: Manifest) -> str:
    return manifest.opscope if manifest.opscope != __version__ else ""


def _made_of(document: Json) -> tuple[list[str], int]:
    """The traces that an analysis is of, and the number of untraced processes."""
    files = _at(document, "trace", "files")
    processes = _at(document, "latency", "processes") if _is_timed(document) else None
    paths = [_text(row, "path") for row in files] if isinstance(files, list) else []
    return paths, len(processes) if isinstance(processes, list) else 0


def _at(document: Json, *path: str) -> Json:
    """What stands at a place of a document; None when there is no such place."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _root(path: str, variant: str) -> str:
    """Where the bundle was when a path of one of its variants was written."""
    end = f"/{VARIANTS}/{variant}"
    return path.removesuffix(end) if path.endswith(end) else ""


def _text(document: Json, name: str) -> str:
    value = document.get(name) if isinstance(document, dict) else None
    return value if isinstance(value, str) else ""


def analysis_checks(stated: list[DerivedDocument], doubts: Inconsistencies) -> list[BundleCheck]:
    """The answers to latency, untraced latency, sums, split, origin and conclusions."""
    every = questions.FIGURES[:6]
    if not stated:
        return [question.skipped("there is no analysis that can be read") for question in every]
    answers = {check.name: check for check in (*_compared_checks(stated, doubts), _sum_check(stated))}
    return [answers[question.name] for question in every]


def _sum_check(stated: list[DerivedDocument]) -> BundleCheck:
    """Sums need nothing but the document itself."""
    problems = [Problem(one.file, *found) for one in stated for found in sum_problems(one.document)]
    files = counted_text(len(stated), "file")
    return questions.SUMS.answered(problems, f"times add up to the latency and shares to 1 in {files}")


def _compared_checks(stated: list[DerivedDocument], doubts: Inconsistencies) -> Iterator[BundleCheck]:
    known = [one for one in stated if one.computed is not None]
    wrong = _by_check(known, doubts)
    missing = "".join(f"; {one.file} not checked: {one.reason}" for one in stated if one.computed is None)
    earlier = "".join(f"; {told}" for told in map(DerivedDocument.aside, known) if told)
    for question, passed in _passed(known).items():
        doubt = _doubt(question.name, doubts)
        if not known or doubt:
            yield question.skipped(doubt or stated[0].reason)
        elif question is questions.UNTRACED and not _timed(known):
            yield question.skipped("nothing was timed without tracing")
        else:
            aside = missing + (earlier if question is questions.CONCLUSIONS else "")
            yield question.answered(wrong.get(question.name, []), passed + aside)


def _doubt(name: str, doubts: Inconsistencies) -> str:
    if name == questions.CONCLUSIONS.name:
        return doubts.program or doubts.ceilings
    return doubts.program if name == questions.SPLIT.name else ""


def _is_timed(document: Json) -> bool:
    """Whether the latency is of calls without event tracing."""
    return bool(_at(document, "latency", "source") == "untraced")


def _timed(known: Iterable[DerivedDocument]) -> bool:
    return any(_is_timed(one.computed) or _is_timed(one.document) for one in known)


def _passed(known: list[DerivedDocument]) -> dict[Question, str]:
    """What is said when nothing differs."""
    files = counted_text(len(known), "file")
    timed = sum(_samples(one.computed, "latency") for one in known if _is_timed(one.computed))
    traced = sum(_samples(one.computed, "traced" if _is_timed(one.computed) else "latency") for one in known)
    return {
        questions.LATENCY: f"{traced:,} samples and their statistics in {files} are those of the traces",
        questions.UNTRACED: f"{timed:,} samples and their statistics in {files} are those of {MANIFEST}",
        questions.SPLIT: f"operators, categories and backends in {files} are those of the traces",
        questions.ORIGIN: f"files, hashes and counts in {files} are those of {MANIFEST}",
        questions.CONCLUSIONS: f"findings and what they rest on in {files} follow from the traces",
    }


def _samples(document: Json, *path: str) -> int:
    """Number of samples of a latency that was computed; 0 where there is none."""
    return int(_at(document, *path, "n") or 0)


def _by_check(known: Iterable[DerivedDocument], doubts: Inconsistencies) -> dict[str, list[Problem]]:
    """Differences by the check they belong to; what the program tells is left out when it is not known."""
    wrong: dict[str, list[Problem]] = {}
    for one in known:
        for found in one.differences():
            if not (doubts.program and found.at.startswith("program")):
                wrong.setdefault(_check_of(one.document, found), []).append(Problem(one.file, *found))
    return wrong


def _of_the_same_rules(stated: Json, computed: Json) -> Json:
    """What was computed, without what rules ruled out that the writer of a document did not have.

    A rule of which neither a finding nor a word stands in the document is taken for one that came later; what it finds
    stays, so that a finding that was taken out of a document is missed.
    """
    if not isinstance(stated, dict) or not isinstance(computed, dict):
        return computed
    rows = [*(stated.get("findings") or []), *(stated.get("ruled_out") or [])]
    names = {row.get("rule") for row in rows if isinstance(row, dict)}
    kept = [row for row in computed.get("ruled_out") or [] if row.get("rule") in names]
    return {**computed, "ruled_out": kept} if "ruled_out" in computed else computed


def _check_of(document: Json, found: Difference) -> str:
    if found.at.startswith("trace.warnings"):
        return questions.CONCLUSIONS.name
    if found.at.startswith("latency"):
        return (questions.UNTRACED if _is_timed(document) else questions.LATENCY).name
    return _PARTS.get(re.split(r"[.\[]", found.at, maxsplit=1)[0], questions.CONCLUSIONS).name


def comparison_check(
    bundle: Bundle, documents: Mapping[str, Json], found: Computed, doubts: Inconsistencies
) -> BundleCheck:
    """Comparisons that are not those of the traces."""
    question, reason = questions.COMPARISON, doubts.program or found.problem
    files = [file for file in documents if file == COMPARISON or file.startswith(f"{COMPARISONS}/")]
    readable = [file for file in files if isinstance(documents[file], dict)]
    if reason or not readable:
        return question.skipped(reason or "there is no comparison that can be read")
    expected = derived_files(bundle.manifest)
    stated = [_stated_comparison(bundle, file, documents[file], expected.get(file), found) for file in readable]
    if any(one.reason == _OTHERS for one in stated_analyses(bundle.manifest, documents, found, doubts)):
        stated = [one._replace(computed=None, reason=_OTHERS) for one in stated]
    stated = [one._replace(earlier=_earlier(bundle.manifest)) for one in stated]
    known = [one for one in stated if one.computed is not None]
    aside = [told for told in map(DerivedDocument.aside, stated) if told]
    if not known:
        return question.skipped("; ".join(aside))
    # The quality of a run that was given more rounds is that of before until they are run.
    differing = [(one.file, own) for one in known for own in one.differences()]
    problems = [
        Problem(file, *own) for file, own in differing if not (doubts.unfinished and own.at.startswith("quality"))
    ]
    passed = f"{counted_text(len(known), 'comparison')}: verdict, speedup, interval and split are those of the traces"
    return question.answered(problems, "; ".join([passed, *aside]))


def _stated_comparison(
    bundle: Bundle, file: str, document: Json, expected: tuple[str, str] | str | None, found: Computed
) -> DerivedDocument:
    sides = [document.get(side) for side in ("baseline", "candidate")]
    labels = (_text(sides[0], "label"), _text(sides[1], "label"))
    roots = [_root(_text(side, "path"), label) for side, label in zip(sides, labels, strict=True)]
    placed = without_place(document, max(roots))
    if isinstance(expected, tuple):
        return DerivedDocument(file, placed, found.comparisons.get(expected), "a variant of it cannot be computed")
    if roots[0] != roots[1]:
        return DerivedDocument(file, placed, None, "its other side is another bundle")
    return _asked_for(bundle, DerivedDocument(file, placed, None), labels, found)


def _asked_for(bundle: Bundle, stated: DerivedDocument, labels: tuple[str, str], found: Computed) -> DerivedDocument:
    """A comparison of two variants that a config asked for."""
    if not found.analyses.keys() >= set(labels):
        return stated._replace(reason="a variant of it cannot be computed, or is not one of this bundle")
    try:
        baseline, candidate = (bundle_side(bundle, label, None) for label in labels)
        return stated._replace(computed=document_of(comparison_of(baseline, candidate), bundle))
    except OpscopeError as error:
        return stated._replace(reason=placeless(str(error), str(bundle.path)))
