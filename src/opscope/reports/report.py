"""Report of a bundle: one document, written for a terminal, in Markdown and as a page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from opscope.analysis.findings.message import Grade
from opscope.analysis.quality.quality_machine import ON_THE_DEVICE
from opscope.core.parts import failures_heard, part
from opscope.reports.content.content import Headline, all_threads_text, closing_rows, headline, one_process_a_side
from opscope.reports.content.ranking import outputs_sentences, ranked_variants, ranking_answer
from opscope.reports.document.blocks import (
    Bullets,
    Document,
    Fold,
    Messages,
    Section,
    Sentence,
    TableBlock,
    Tone,
    replace_blocks,
)
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.messages import GradedSubjects, quality_sentence, sentence
from opscope.reports.document.terminal import terminal_document
from opscope.reports.sections.accuracy import accuracy_sentences, outputs_section
from opscope.reports.sections.first import first_screen, heading
from opscope.reports.sections.latency import latency_section, memory_section, methods_section, threads_section
from opscope.reports.sections.metadata import (
    graded_subjects,
    metadata_section,
    reproduction_section,
    switch_messages,
    trust_section,
)
from opscope.reports.sections.operator_kernels import kernel_section, kernels_first, kernels_section
from opscope.reports.sections.operators import bottlenecks_section, inference_section, operators_section
from opscope.reports.sections.program import backends_section, layers_section, roofline_section
from opscope.reports.sections.shift import acceleration_section
from opscope.reports.sections.tokens import ledger_section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.findings.message import Quality
    from opscope.reports.content.content import ReportContent
    from opscope.reports.document.blocks import Block
    from opscope.reports.sections.operator_kernels import KernelSection


_MARKDOWN_ROWS = 10
"""Rows of a long table in Markdown, and findings in full; the page and the JSON have all."""


def report_document(content: ReportContent) -> Document:
    """Return everything that a report says; parts that a bug of opscope prevents are listed among the limits."""
    with failures_heard() as failures:
        kernels = part("the section on kernels", lambda: kernel_section(content), None)
        shows_kernels = _shows_kernels(content, kernels)
        document = first_document(content, kernels)
        sections = list(_write_sections(content, kernels, first=shows_kernels))
    position = next((number for number, section in enumerate(sections) if section.anchor == "memory"), len(sections))
    sections.insert(position, trust_section(content, failures))
    return document._replace(sections=sections)


def first_document(content: ReportContent, kernels: KernelSection | None = None) -> Document:
    """Return the first screen of a report: the answer, how sure it is, and what it rests on, without sections.

    Of an emulated run the kernels stand first if they are given, since its times say nothing.
    """
    answer = _choose_headline(content)
    shows_kernels = _shows_kernels(content, kernels)
    trust = _trust_lines(content, answer.trust, emulated=shows_kernels)
    return Document(
        title=content.title or content.manifest.model.name,
        answer=answer.text,
        blocks=kernels_first(kernels, ON_THE_DEVICE) if shows_kernels and kernels else first_screen(content),
        sections=[],
        heading=_heading_text(content),
        grade=answer.grade,
        trust=[Sentence(line, tone, wide=tone is Tone.DIM) for line, tone in trust if line],
    )


def _shows_kernels(content: ReportContent, kernels: KernelSection | None) -> bool:
    return content.manifest.target.emulated and kernels is not None and bool(kernels.operators)


def _choose_headline(content: ReportContent) -> Headline:
    """Return which runtime is the fastest if runtimes were ranked, else how fast the shown variant is."""
    answer = headline(content)
    if not ranked_variants(content):
        return answer
    text, trust = ranking_answer(content)
    return answer._replace(text=text, trust=trust)


def _heading_text(content: ReportContent) -> str:
    """Return what ran and where: model, device, CPU, target, threads."""
    manifest = content.manifest
    cpu = manifest.environment.cpu or manifest.environment.machine
    counts = all_threads_text(manifest.variants)
    machine = ", ".join(filter(None, (manifest.device, cpu, manifest.target.kind, counts)))
    joined = " on " if manifest.device or cpu else ", "
    return f"{f'{content.title} · ' if content.title else ''}{heading(content)}{joined}{machine}"


def _trust_lines(content: ReportContent, trust: str, *, emulated: bool) -> Iterator[tuple[str, Tone]]:
    """Yield how sure the answer is: interval and design, outputs, grade, and how features were switched off."""
    yield trust, Tone.PLAIN
    accuracy = content.primary.accuracy if content.primary else None
    lines = accuracy_sentences(accuracy) if accuracy else []
    for line in outputs_sentences(content) if content.fastest else lines:
        yield f"{line}.", Tone.PLAIN
    for networks in dict.fromkeys(
        comparison.networks for comparison in content.comparisons if comparison.networks and content.fastest
    ):
        yield networks, Tone.BAD
    if not emulated:
        yield quality_line(content.quality, graded_subjects(content), reasons_told=one_process_a_side(content))
    for message in switch_messages(content):
        yield f"{sentence(message)}.", Tone.DIM


def quality_line(quality: Quality | None, subjects: GradedSubjects, *, reasons_told: bool = False) -> tuple[str, Tone]:
    """Return the grades with the worst reason; in red if the measurement cannot be trusted."""
    text = quality_sentence(quality, subjects, reasons_told=reasons_told)
    bad = quality is not None and quality.grade is Grade.DO_NOT_TRUST
    return f"{text}." if text else "", Tone.BAD if bad else Tone.PLAIN


def _write_sections(content: ReportContent, kernels: KernelSection | None, *, first: bool) -> Iterator[Section]:
    analysis = content.shown
    yield from _make_section("the section on latency", lambda: latency_section(content))
    yield from _make_section("the section on accuracy", lambda: outputs_section(content))
    yield from _make_section("the table of methods", lambda: methods_section(content))
    yield from _make_section("the ledger of a token", lambda: ledger_section(content.shown) if content.shown else None)
    yield from _make_section("the section on the change", lambda: acceleration_section(content))
    if analysis is not None and content.has_split:
        yield from _split_sections(content, analysis)
        yield from _make_section("the section on kernels", lambda: kernels_section(content, kernels, first=first))
    yield from _make_section("the sweep of thread counts", lambda: threads_section(content))
    yield from _make_section("the section on memory", lambda: memory_section(content))
    yield from _make_section("how to run it again", lambda: reproduction_section(content.manifest))
    yield from _make_section("what ran", lambda: metadata_section(content))


def _split_sections(content: ReportContent, analysis: Analysis) -> Iterator[Section]:
    closing = closing_rows(content, copies=True)
    yield from _make_section("the bottlenecks", lambda: bottlenecks_section(content))
    yield from _make_section("one inference", lambda: inference_section(analysis))
    yield from _make_section("the sections on delegates", lambda: backends_section(analysis, closing))
    if analysis.program is not None:
        yield from _make_section("the section on layers", lambda: layers_section(analysis))
        yield from _make_section("the roofline", lambda: roofline_section(analysis))
    yield from _make_section("the table of operators", lambda: operators_section(content, analysis))


def _make_section(name: str, make: Callable[[], Section | None]) -> Iterator[Section]:
    section = part(name, make, None)
    if section is not None:
        yield section


def html_report(content: ReportContent) -> str:
    """Return the report as one self-contained HTML page."""
    return html_document(report_document(content))


def markdown_report(content: ReportContent) -> str:
    """Return the report in Markdown: every part with its tables, of long ones the first ten rows."""
    document = report_document(content)
    sections = [replace(section, blocks=replace_blocks(section.blocks, _cut_long)) for section in document.sections]
    return markdown_document(document._replace(blocks=replace_blocks(document.blocks, _cut_long), sections=sections))


def _cut_long(block: Block) -> Block:
    """Return a block with no more rows or findings than a reader of Markdown scrolls through."""
    if isinstance(block, TableBlock) and block.has_heads:
        return block.folded(Fold(_MARKDOWN_ROWS, _MARKDOWN_ROWS, "see the HTML report or analysis.json"))
    if isinstance(block, Bullets):
        more = len(block.items) - _MARKDOWN_ROWS
        rest = [f"{more} more: see the HTML report or analysis.json"] if more > 0 else []
        return replace(block, items=[*block.items[:_MARKDOWN_ROWS], *rest])
    return replace(block, first=_MARKDOWN_ROWS) if isinstance(block, Messages) else block


def summary(content: ReportContent) -> RenderableType:
    """Return the report for a terminal."""
    return terminal_document(report_document(content))
