"""Checks of a bundle's derived files: all are rewritten as `opscope report` does, and laid beside those there.

JSON that is not the same byte by byte is compared by its figures: the order of additions differs between machines, and
another opscope may estimate otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from opscope.bundle import validation
from opscope.bundle.bundle import Bundle
from opscope.bundle.documents import differences, unlike
from opscope.bundle.validation import CheckStatus, Problem
from opscope.core.errors import OpscopeError
from opscope.core.json import to_json
from opscope.core.parts import explained, failures_heard
from opscope.core.units import counted_text
from opscope.core.version import __version__
from opscope.measurements.analyses import comparison_of, comparison_within
from opscope.measurements.sides import bundle_side, compared_pairs
from opscope.reports.document.template import NOT_DRAWN, drawn_by, writer_of
from opscope.workflows.reports.combined import COMBINED
from opscope.workflows.reports.reports import (
    ANALYSIS,
    COMPARISON,
    COMPARISONS,
    HTML,
    MARKDOWN,
    REPORT_FORMATS,
    analysis_file,
    comparison_files,
    content_of,
    foreground_variant,
    report_files,
)
from opscope.workflows.validate.repetitions import traced_variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opscope.bundle.inventory import Inventory
    from opscope.bundle.manifest import Manifest
    from opscope.bundle.validation import BundleCheck, Question

    Json: TypeAlias = Any
    """A decoded document of any shape."""


_OTHERWISE = re.compile(
    r"(end_to_end|methods|quality|notes|findings|ruled_out|tracing|shift\.(limit|remaining))\b"
    r"|.*\.(speedup|limit|verdict)$"
    r"|(trace|baseline|candidate)\.path$|program\.(path|etrecord)$"
)
"""Parts of a document that another opscope may estimate, judge or name otherwise."""


class Inconsistencies(NamedTuple):
    """What is known to be damaged, so that files that rest on it cannot be rewritten."""

    variants: Mapping[str, str]  # reason by name; their traces or records cannot be used
    all: str = ""  # nothing can be rewritten; empty when it can
    unfinished: bool = False  # the run is not at its end, so files may be of fewer repetitions than there are now

    @property
    def of_some(self) -> str:
        """Why what rests on all variants cannot be compared; empty when it can."""
        early = "the run is not finished, see complete" if self.unfinished else ""
        return early or "; ".join(sorted(set(self.variants.values())))


class _Rewriting(NamedTuple):
    """A bundle, and what its traces give now."""

    bundle: Bundle
    found: Inventory
    documents: Mapping[str, Json]  # the JSON that is there and can be compared, by file
    doubts: Inconsistencies
    files: Mapping[str, bytes]  # every derived file as it should be
    shown: str | None  # the variant that the reports are about; None when none has a result


class _Stated(NamedTuple):
    """A document that is there, and what it should be."""

    file: str
    document: Json
    rewritten: bytes | None  # None when that is not known
    reason: str = ""  # why not; empty when it is


def derived_files(manifest: Manifest) -> list[str]:
    """Files that every finished run derives."""
    traced = traced_variants(manifest)
    if not traced:
        return []
    others = [analysis_file(name) for name in traced if name != foreground_variant(manifest)]
    compared = [] if manifest.target.emulated else compared_pairs(manifest)
    pairs = [pair for pair in compared if set(pair) <= set(traced) and manifest.has_common_round(*pair)]
    return [ANALYSIS, MARKDOWN, HTML, *others, *comparison_files(pairs)]


def derived_checks(
    bundle: Bundle, inventory: Inventory, documents: Mapping[str, Json], doubts: Inconsistencies
) -> list[BundleCheck]:
    """The answers to analyses, comparisons and reports."""
    texts = page_texts(inventory)
    if doubts.all:
        return _skipped(doubts.all, texts, inventory)
    with failures_heard() as failures:
        try:
            kept = [one for one in bundle.manifest.repetitions if one.variant not in doubts.variants]
            manifest = msgspec.structs.replace(bundle.manifest, repetitions=kept)
            content = content_of(Bundle(bundle.path, manifest, hashes_checked=bundle.hashes_checked))
            files = report_files(content, ["json"] if doubts.of_some else REPORT_FORMATS)
        except OpscopeError as error:
            return _skipped(bundle.without_place(str(error)), texts, inventory)
        if other := _other_plug_ins(documents, files):
            return _skipped(other, texts, inventory)
        shown = content.shown.variant if content.shown else None
        now = _Rewriting(bundle, inventory, documents, doubts, files, shown)
        another = _another(bundle.manifest, texts)
        checks = [
            _answer(now, validation.ANALYSES, _analyses(now), another),
            _answer(now, validation.COMPARISONS, _comparisons(now), another),
            page_check(texts, inventory, files, doubts.of_some),
        ]
    return [
        question.skipped(f"could not be checked: {'; '.join(failure.sentence for failure in failures)}")
        if failures and check.status is CheckStatus.FAILED  # the difference may be what a bug of ours left out
        else check
        for question, check in zip(validation.FIGURES, checks, strict=True)
    ]


_OF_PLUG_IN = re.compile(r'"(?:rule|kind)": ?"([^":]+):')
"""Rules and kinds of other packages have the name of the package before a colon."""


def _other_plug_ins(documents: Mapping[str, Json], files: Mapping[str, bytes]) -> str:
    """Why files cannot be rewritten here as they were there: other plug-ins are installed; empty where none are."""
    there = {
        name for text in map(msgspec.json.encode, documents.values()) for name in _OF_PLUG_IN.findall(text.decode())
    }
    here = {
        name for file, text in files.items() if file.endswith(".json") for name in _OF_PLUG_IN.findall(text.decode())
    }
    lacking, new = sorted(there - here), sorted(here - there)
    texts = [f"written with plug-ins that are not used here: {', '.join(lacking)}"] if lacking else []
    texts += [f"written without plug-ins that are used here: {', '.join(new)}"] if new else []
    return "; ".join(texts)


def _skipped(reason: str, texts: Mapping[str, str], inventory: Inventory) -> list[BundleCheck]:
    """The same where nothing can be rewritten; that a page is cut off shows without."""
    return [
        validation.ANALYSES.skipped(reason),
        validation.COMPARISONS.skipped(reason),
        page_check(texts, inventory, {}, reason),
    ]


def _another(manifest: Manifest, texts: Mapping[str, str]) -> str:
    """The opscope that derived the files, where it is another one than this; empty when it is this one."""
    writers = {writer_of(text) for text in texts.values()}
    return "" if __version__ == manifest.opscope or writers == {__version__} else manifest.opscope


def _analyses(now: _Rewriting) -> Iterator[_Stated]:
    names = {analysis_file(variant.name): variant.name for variant in now.bundle.manifest.variants}
    for file, document in now.documents.items():
        if file == ANALYSIS:
            # Without what is damaged the reports would be about another variant.
            name = _text(document, "variant") if now.doubts.variants else now.shown or ""
        elif file in names:
            name = names[file]
        else:
            continue
        rewritten = now.files.get(ANALYSIS if name == now.shown else analysis_file(name))
        if name in now.doubts.variants:
            yield _Stated(file, document, None, now.doubts.variants[name])
        elif rewritten is None:
            yield _Stated(file, document, None, f"nothing can be derived of {name or 'any variant'}")
        elif now.doubts.unfinished and _made_of(document) != _made_of(msgspec.json.decode(rewritten)):
            yield _Stated(file, document, None, "it is based on other repetitions, see complete")
        else:
            yield _Stated(file, document, rewritten)


def _made_of(document: Json) -> tuple[list[str], int]:
    """The traces that an analysis is of, and the number of untraced processes."""
    files = _at(document, "trace", "files")
    processes = _at(document, "latency", "processes") if _at(document, "latency", "source") == "untraced" else None
    paths = [_text(row, "path") for row in files] if isinstance(files, list) else []
    return paths, len(processes) if isinstance(processes, list) else 0


def _comparisons(now: _Rewriting) -> Iterator[_Stated]:
    for file, document in now.documents.items():
        if file != COMPARISON and not file.startswith(f"{COMPARISONS}/"):
            continue
        if now.doubts.of_some:
            yield _Stated(file, document, None, now.doubts.of_some)
        elif file in now.files:
            yield _Stated(file, document, now.files[file])
        else:
            yield _asked_for(now.bundle, _Stated(file, document, None))


def _asked_for(bundle: Bundle, stated: _Stated) -> _Stated:
    """A comparison of two variants that a config asked for."""
    sides = [stated.document.get(name) for name in ("baseline", "candidate")]
    labels = [_text(side, "label") for side in sides]
    if len({_text(side, "path").removesuffix(label) for side, label in zip(sides, labels, strict=True)}) > 1:
        return stated._replace(reason="its other side is another bundle")
    if not all(map(bundle.manifest.variant, labels)):
        return stated._replace(reason="it has a variant that this bundle lacks")

    def compared() -> _Stated:
        baseline, candidate = (bundle_side(bundle, label, None) for label in labels)
        return stated._replace(rewritten=to_json(comparison_within(bundle, comparison_of(baseline, candidate))))

    try:
        named = f"the comparison of {labels[1]} with {labels[0]}"
        return explained(named, compared, lambda failure: stated._replace(reason=failure.because))
    except OpscopeError as error:
        return stated._replace(reason=bundle.without_place(str(error)))


def _answer(now: _Rewriting, question: Question, stated: Iterable[_Stated], another: str) -> BundleCheck:
    """Every document beside what it should be; first by its bytes, then by its figures."""
    problems: list[Problem] = []
    aside: list[str] = []
    same = by_figures = 0
    for one in stated:
        if one.rewritten is None:
            aside.append(f"{one.file} not checked: {one.reason}")
        elif now.found.content(one.file) == one.rewritten:
            same += 1
        else:
            by_figures += 1
            found = list(differences(one.document, msgspec.json.decode(one.rewritten)))
            kept = [(at, message) for at, message in found if not (another and _OTHERWISE.match(at))]
            problems += [Problem(one.file, *own) for own in kept]
            if len(kept) < len(found):
                aside.append(f"estimates in {one.file} not recomputed, computed by opscope {another}")
    if not same and not by_figures:
        return question.skipped("; ".join(aside) or "none can be read")
    said = f"{counted_text(same + by_figures, 'file')} {'matches' if same + by_figures == 1 else 'match'} the traces"
    passed = f"{said}: {same} byte by byte, {by_figures} in figures" if by_figures else f"{said}, byte by byte"
    return question.answered(problems, "; ".join([passed, *aside]))


def _at(document: Json, *path: str) -> Json:
    """What stands at a place of a document; None when there is no such place."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _text(document: Json, name: str) -> str:
    value = _at(document, name)
    return value if isinstance(value, str) else ""


_COMBINED = tuple(f"{COMBINED}.{ending}" for ending in ("html", "md", "json"))
_PICTURE = re.compile(rf'<svg [^>]*class="marks".*?</svg>|{NOT_DRAWN}[^\n]*</p>', re.DOTALL)
_SECTION = re.compile(r'<section [^>]*id="([\w-]{1,40})"')
_NAMES_TITLE = {HTML: ("<title>", "<h1>"), MARKDOWN: ("# ",)}
"""Beginnings of the lines that hold the title of a report, which the user may give."""


def page_texts(inventory: Inventory) -> dict[str, str]:
    """What the reports of a bundle say, by file; those that are not there or must not be opened are left out."""
    return {
        name: inventory.content(name).decode(errors="replace") for name in (MARKDOWN, HTML) if not inventory.fault(name)
    }


def page_check(
    texts: Mapping[str, str], inventory: Inventory, rewritten: Mapping[str, bytes], doubt: str
) -> BundleCheck:
    """Reports that are cut off, or do not match the traces."""
    question = validation.REPORTS
    if not texts.get(HTML, "</html>").rstrip().endswith("</html>"):
        return question.answered([Problem(HTML, "", "is truncated")], "")
    if not texts or doubt:
        return question.skipped(doubt or "no report can be read")
    from opscope.reports.pictures.pictures import undrawable

    undrawn = undrawable()
    names = [name for name in texts if not (name == HTML and undrawn)]
    compared = [_compared(name, texts[name], rewritten[name].decode()) for name in names]
    notes = [note for _, _, note in compared if note]
    if HTML in texts and undrawn:
        notes.append(f"{HTML} not recomputed: {undrawn}")
    notes += [f"{name} not recomputed: it covers other bundles too" for name in _COMBINED if not inventory.fault(name)]
    problems = [problem for _, own, _ in compared for problem in own]
    same = [file for file, _, note in compared if not note.startswith(file)]
    if not same and not problems:
        return question.skipped("; ".join(notes))
    said = f"{' and '.join(same)} {'match' if len(same) > 1 else 'matches'} the traces"
    return question.answered(problems, "; ".join([said, *notes]))


def _compared(file: str, stated: str, true: str) -> tuple[str, list[Problem], str]:
    """The file of a report, where it says something else than it should, and why it was not recomputed.

    The reason is of all of it or of a part, and empty when it was.

    What another opscope wrote may differ without a fault; what is the same all the same was not touched.
    """
    problems = list(_unlike_lines(file, stated, true))
    if not problems:
        return file, [], ""
    writer = writer_of(stated)
    if writer != __version__:
        named = f"opscope {writer}" if writer else "an earlier opscope version"
        return file, [], f"{file} not recomputed, written by {named}"
    drawer = drawn_by(stated)
    if NOT_DRAWN in stated:
        note = f"pictures of {file} were not drawn when it was written"
    elif drawer != drawn_by(true):
        note = f"pictures of {file} not recomputed, drawn by {drawer or 'an unnamed version'}"
        true = true.replace(drawn_by(true) or "", drawer or "", 1)
    else:
        return file, problems, ""
    return file, list(_unlike_lines(file, _without_pictures(stated), _without_pictures(true))), note


def _without_pictures(page: str) -> str:
    """A page without the pictures that a library drew, with as many lines; one that could not be drawn is none."""
    return _PICTURE.sub(lambda match: "\n" * match[0].count("\n"), page)


def _unlike_lines(file: str, stated: str, true: str) -> Iterator[Problem]:
    """Every line that differs; where lines are missing or added, the first."""
    lines, others = stated.splitlines(), true.splitlines()
    section, same_length = "", len(lines) == len(others)
    for number, (one, other) in enumerate(zip(lines, others, strict=False), 1):
        begins = _SECTION.search(other)
        section = f"section {begins[1]}, " if begins else section
        if one != other and not _other_title(file, one, other):
            yield Problem(file, f"{section}line {number}", unlike(one, other))
            if not same_length:
                return
    if not same_length:
        yield Problem(file, "", f"has {counted_text(len(lines), 'line')}, the traces give {len(others)}")


def _other_title(file: str, stated: str, true: str) -> bool:
    """Whether two lines differ only in the title that the user gave."""
    for begin in _NAMES_TITLE[file]:
        if stated.startswith(begin) and true.startswith(begin):
            return begin != "<h1>" or stated.endswith(f" · {true[len(begin) :]}")
    return False
