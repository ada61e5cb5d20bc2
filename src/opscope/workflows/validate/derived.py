"""Checks of derived files: all are rewritten, as `opscope report` does, and compared with those of the bundle.

They are equal byte by byte if the same opscope wrote them on such a machine. Else JSON is compared by its figures,
since the order of additions differs between machines, and another opscope may estimate and judge otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import Comparison
from opscope.bundle import validation as questions
from opscope.bundle.bundle import VARIANTS
from opscope.bundle.documents import difference_text, find_differences, read_document
from opscope.bundle.inventory import MISSING
from opscope.bundle.validation import CheckStatus, Problem
from opscope.core.errors import OpscopeError
from opscope.core.json import to_json
from opscope.core.parts import failures_heard
from opscope.core.units import counted_text
from opscope.core.version import __version__
from opscope.measurements.analyses import comparison_of, comparison_within
from opscope.measurements.sides import bundle_side
from opscope.reports.document.template import NOT_DRAWN, drawn_by, writer_of
from opscope.workflows.reports.combined import COMBINED
from opscope.workflows.reports.reports import (
    ANALYSIS,
    COMPARISON,
    COMPARISONS,
    HTML,
    MARKDOWN,
    analysis_file,
    content_of,
    report_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.bundle.bundle import Bundle
    from opscope.bundle.inventory import Inventory
    from opscope.bundle.validation import BundleCheck, Question

_ESTIMATES = re.compile(
    r"(end_to_end|methods|quality|notes|findings|ruled_out|tracing|shift\.(limit|remaining))\b"
    r"|.*\.(speedup|limit|verdict)$"
    r"|(trace|baseline|candidate)\.path$|program\.(path|etrecord)$"
)
"""Places of a document that another opscope may estimate, judge or name otherwise."""
_PLUG_IN = re.compile(r'"(?:rule|kind)": ?"([^":]+):')
"""Rules and kinds of other packages have the name of the package before a colon."""
_PICTURE = re.compile(rf'<svg [^>]*class="marks".*?</svg>|{NOT_DRAWN}[^\n]*</p>', re.DOTALL)
_SECTION = re.compile(r'<section [^>]*id="([\w-]{1,40})"')
_TITLE_LINES = {HTML: ("<title>", "<h1>"), MARKDOWN: ("# ",)}
"""Beginnings of the lines that hold the title of a report, which the user may choose."""


_KINDS: dict[str, type[Analysis | Comparison]] = {ANALYSIS: Analysis, COMPARISON: Comparison}


class ComparedFile(NamedTuple):
    """What a derived file of a bundle is beside the rewritten one."""

    path: str
    problems: list[Problem]
    note: str = ""  # why it, or a part of it, was not compared
    is_compared: bool = True
    is_identical: bool = False


def document_kind(path: str) -> str:
    """Return the name of the first document of a path's kind, of analyses or comparisons; "" for other files."""
    home, _, name = path.rpartition("/")
    if path == COMPARISON or (home == COMPARISONS and name.endswith(".json")):
        return COMPARISON
    return ANALYSIS if name == ANALYSIS and (not home or home.startswith(f"{VARIANTS}/")) else ""


def derived_checks(bundle: Bundle, inventory: Inventory) -> list[BundleCheck]:
    """Return the checks of analyses, comparisons and reports, each skipped with the reason if none can be written."""
    stated = {path: inventory.content(path) for path in inventory.sizes if document_kind(path) or path in _TITLE_LINES}
    with failures_heard() as failures:
        try:
            content = content_of(bundle)
            rewritten = report_files(content)
        except OpscopeError as error:
            return _skip_all(bundle.without_place(str(error)))
        if content.shown and (path := analysis_file(content.shown.variant or "")) in stated:
            rewritten.setdefault(path, rewritten[ANALYSIS])  # earlier versions wrote it there, too
        if reason := _describe_plug_ins(stated, rewritten):
            return _skip_all(reason)
        writers = {writer_of(stated[path].decode(errors="replace")) for path in _TITLE_LINES if path in stated}
        is_same_writer = bundle.manifest.opscope == __version__ or writers == {__version__}
        writer = "" if is_same_writer else bundle.manifest.opscope
        files = [_compare_file(path, stated.get(path), content, writer) for path, content in rewritten.items()]
        files += [_compare_extra(path, stated[path], bundle, writer) for path in stated if path not in rewritten]
    combined = [f"{COMBINED}.{ending}" for ending in ("html", "md", "json")]
    notes = [f"{path} not recomputed: it covers other bundles too" for path in combined if path in inventory.sizes]
    checks = [
        _answer_question(questions.ANALYSES, [file for file in files if document_kind(file.path) == ANALYSIS]),
        _answer_question(questions.COMPARISONS, [file for file in files if document_kind(file.path) == COMPARISON]),
        _answer_question(questions.REPORTS, [file for file in files if not document_kind(file.path)], notes),
    ]
    bugs = f"could not be checked: {'; '.join(failure.sentence for failure in failures)}"
    # A difference may be what a bug of opscope left out.
    return [
        msgspec.structs.replace(check, status=CheckStatus.SKIPPED, message=bugs, action=None, problems=[], total=0)
        if failures and check.status is CheckStatus.FAILED
        else check
        for check in checks
    ]


def _skip_all(reason: str) -> list[BundleCheck]:
    return [question.skipped(reason) for question in questions.DERIVED]


def _describe_plug_ins(stated: Mapping[str, bytes], rewritten: Mapping[str, bytes]) -> str:
    """Return which plug-ins wrote the files of the bundle and are not used here, or the reverse; "" if none."""
    stated_names, names_here = (
        {name for path, text in files.items() if document_kind(path) for name in _PLUG_IN.findall(text.decode())}
        for files in (stated, rewritten)
    )
    texts = (
        [f"written with plug-ins that are not used here: {', '.join(sorted(stated_names - names_here))}"]
        if stated_names - names_here
        else []
    )
    texts += (
        [f"written without plug-ins that are used here: {', '.join(sorted(names_here - stated_names))}"]
        if names_here - stated_names
        else []
    )
    return "; ".join(texts)


def _compare_file(path: str, stated: bytes | None, rewritten: bytes, writer: str) -> ComparedFile:
    """Compare a file with the rewritten one.

    Args:
        path: of both, within the bundle.
        stated: content in the bundle; None if the file is missing.
        rewritten: content that the traces and the plan give.
        writer: version of the opscope that wrote the documents; "" if it is this one.
    """
    if stated is None:
        return ComparedFile(path, [Problem(path, "", f"{MISSING}; every run that succeeds writes it")])
    if stated == rewritten:
        return ComparedFile(path, [], is_identical=True)
    if path in _TITLE_LINES:
        return _compare_page(path, stated.decode(errors="replace"), rewritten.decode())
    document = read_document(stated, _KINDS[document_kind(path)])
    faults = list(document.faults)
    if document.typed is not None:
        faults += find_differences(document.value, msgspec.json.decode(rewritten))
    certain = [fault for fault in faults if not (writer and _ESTIMATES.match(fault[0]))]
    note = f"estimates in {path} not recomputed, computed by opscope {writer}" if len(certain) < len(faults) else ""
    return ComparedFile(path, [Problem(path, *fault) for fault in certain], note)


def _compare_extra(path: str, stated: bytes, bundle: Bundle, writer: str) -> ComparedFile:
    """Compare a document that not every run writes: a comparison of two variants that a configuration asked for."""
    document = read_document(stated, _KINDS[document_kind(path)])
    if document.typed is None:
        return ComparedFile(path, [Problem(path, *fault) for fault in document.faults])
    reason = "the traces give no such file"
    if isinstance(document.typed, Comparison):
        sides = (document.typed.baseline, document.typed.candidate)
        reason = "its other side is another bundle"
        if len({side.path.removesuffix(side.label) for side in sides}) == 1:
            try:
                baseline, candidate = (bundle_side(bundle, side.label, None) for side in sides)
                rewritten = to_json(comparison_within(bundle, comparison_of(baseline, candidate)))
                return _compare_file(path, stated, rewritten, writer)
            except OpscopeError as error:
                reason = bundle.without_place(str(error))
    return ComparedFile(path, [], f"{path} not checked: {reason}", is_compared=False)


def _compare_page(path: str, stated: str, rewritten: str) -> ComparedFile:
    """Compare a report line by line: without pictures if another library drew them, not at all if another opscope."""
    problems = list(_find_unlike_lines(path, stated, rewritten))
    if not problems:
        return ComparedFile(path, [])
    writer = writer_of(stated)
    if writer != __version__:
        version = f"opscope {writer}" if writer else "an earlier opscope version"
        return ComparedFile(path, [], f"{path} not recomputed, written by {version}", is_compared=False)
    drawer, drawer_here = drawn_by(stated), drawn_by(rewritten)
    if NOT_DRAWN not in stated + rewritten and drawer == drawer_here:
        return ComparedFile(path, problems)
    pages = [_PICTURE.sub("", page) for page in (stated, rewritten.replace(drawer_here or "", drawer or "", 1))]
    reason = f"drawn by {drawer or 'an unnamed version'}"
    if NOT_DRAWN in stated + rewritten:
        reason = "they cannot be drawn here" if NOT_DRAWN in rewritten else "they were not drawn when it was written"
    note = f"pictures of {path} not recomputed: {reason}"
    return ComparedFile(path, list(_find_unlike_lines(path, *pages)), note)


def _find_unlike_lines(path: str, stated: str, rewritten: str) -> Iterator[Problem]:
    """Yield every line that differs; if lines are missing or added, the first one and the numbers of lines."""
    lines, true_lines = stated.splitlines(), rewritten.splitlines()
    section, has_all_lines = "", len(lines) == len(true_lines)
    for number, (line, true_line) in enumerate(zip(lines, true_lines, strict=False), 1):
        if begin := _SECTION.search(true_line):
            section = f"section {begin[1]}, "
        if line != true_line and not _differs_in_title(path, line, true_line):
            yield Problem(path, f"{section}line {number}", difference_text(line, true_line))
            if not has_all_lines:
                break
    if not has_all_lines:
        message = f"has {counted_text(len(lines), 'line')}, the traces give {len(true_lines)}"
        yield Problem(path, "", message)


def _differs_in_title(path: str, line: str, true_line: str) -> bool:
    for begin in _TITLE_LINES[path]:
        if line.startswith(begin) and true_line.startswith(begin):
            return begin != "<h1>" or line.endswith(f" · {true_line[len(begin) :]}")
    return False


def _answer_question(question: Question, files: Sequence[ComparedFile], notes: Sequence[str] = ()) -> BundleCheck:
    compared = [file for file in files if file.is_compared]
    asides = [*(file.note for file in files if file.note), *notes]
    if not compared:
        return question.skipped("; ".join(asides) or "the traces give none")
    identical = sum(file.is_identical for file in compared)
    how = "byte by byte"
    if identical < len(compared):
        way = "line by line" if question is questions.REPORTS else "in figures"
        how = f"{identical} byte by byte, {len(compared) - identical} {way}"
    verb = "matches" if len(compared) == 1 else "match"
    passed = f"{counted_text(len(compared), 'file')} {verb} the traces: {how}"
    problems = [problem for file in files for problem in file.problems]
    return question.answered(problems, "; ".join([passed, *asides]))
