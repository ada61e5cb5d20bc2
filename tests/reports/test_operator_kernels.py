"""Convolutions and products by kernel: the variants side by side, and never more than the evidence tells."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.console import Console

from block_texts import cells
from large_content import large_content
from opscope.analysis.kernels.kernels import KernelView
from opscope.analysis.kernels.ladder import Answer, EvidenceLevel, LevelAnswer, OperatorLadder, VariantLadder
from opscope.program.kernels.symbols import IsaClass, isa_text
from opscope.reports.content.content import ReportContent, ladders_beside
from opscope.reports.content.kernel_use import kernel_use, kernels_text
from opscope.reports.report import html_report, markdown_report, summary
from opscope.reports.sections.operator_kernels import by_operator_table, kernel_section
from texts import ALL_FEATURES_ON

MOPA = "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"
DOTPROD = "kai_run_matmul_clamp_f32_qai8dxp1x8_qsi4c32p4x8_1x4x32_neon_dotprod"
OFF = "sme off"
YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """A model of 20 operators in two blocks, on and off."""
    return large_content(tmp_path_factory.mktemp("kernels"), operators=20, inferences=12)


def counted(answer: Answer, calls: dict[str, int], runs: int = 2) -> LevelAnswer:
    """A rung that a counter tells."""
    isa = IsaClass.SME2 if answer is YES else IsaClass.DOTPROD if calls else None
    return LevelAnswer(EvidenceLevel.EXECUTED, answer, "told", "calls counted, kernels.counts", isa, calls, runs)


def operator(number: int, *steps: LevelAnswer, name: str = "Convolution (NHWC, PF32) IGEMM #1") -> OperatorLadder:
    """The ladder of an operator; rungs that are not given are not known."""
    given = {step.rung: step for step in steps}
    rungs = [given.get(rung, LevelAnswer(rung, UNKNOWN, "nobody looked")) for rung in EvidenceLevel]
    return OperatorLadder("forward", number, 0, name, f"block.{number}", "fp32", 0.1, rungs)


def answer(rung: EvidenceLevel, told: Answer) -> LevelAnswer:
    """A rung."""
    return LevelAnswer(rung, told, "told", "source")


def variant(name: str, *operators: OperatorLadder) -> VariantLadder:
    """The ladders of a variant."""
    return VariantLadder(name, "SME and SME2", list(operators), threads=1)


def shown(content: ReportContent, *ladders: VariantLadder) -> ReportContent:
    """A report of these kernels."""
    return msgspec.structs.replace(content, kernels=KernelView([], [], [], list(ladders)))


def test_the_highest_answer_of_the_ladder_is_the_evidence() -> None:
    """Counted before selected before eligible; what is only possible is not called accelerated."""
    selected, eligible = answer(EvidenceLevel.SELECTED, YES), answer(EvidenceLevel.ELIGIBLE, YES)
    uses = [
        kernel_use(operator(0, eligible, selected, counted(YES, {MOPA: 640}))),
        kernel_use(operator(0, eligible, selected)),
        kernel_use(operator(0, eligible)),
        kernel_use(operator(0)),
    ]
    assert [use.kernel for use in uses] == [
        "SME2",
        "SME or SME2",
        "possibly SME or SME2",
        "not known",
    ]
    assert [use.evidence for use in uses] == [
        "executed, calls counted",
        "selected, by the types in its name",
        "eligible, by its types and shape",
        "nobody looked",
    ]
    assert [use.accelerated for use in uses] == [YES, YES, UNKNOWN, UNKNOWN]
    assert uses[0].calls == ((MOPA, 320.0),)


def test_kernels_of_neon_are_named_where_they_are_known() -> None:
    """KleidiAI's by their names; XNNPACK's own have none, and then nothing but what they are not is known."""
    assert kernel_use(operator(0, counted(NO, {DOTPROD: 4}))).kernel == "NEON dotprod"
    assert kernel_use(operator(0, counted(NO, {}))).kernel == "NEON or scalar"
    assert kernel_use(operator(0, answer(EvidenceLevel.SELECTED, NO))).kernel == "NEON or scalar"
    assert [isa_text(isa) for isa in (IsaClass.NEON, IsaClass.I8MM, IsaClass.AVX512)] == [
        "NEON",
        "NEON i8mm",
        "AVX-512",
    ]


def test_a_variant_is_summed_up_by_what_each_operator_shows() -> None:
    """Counted and selected are told apart; what nothing tells is said."""
    both = variant(
        "on",
        operator(0, counted(YES, {MOPA: 640})),
        operator(1, answer(EvidenceLevel.SELECTED, YES)),
        operator(2),
    )
    assert kernels_text(both, ALL_FEATURES_ON) == (
        f"on ({ALL_FEATURES_ON}): 1 of 3 convolutions and products ran SME2 kernels, 320 calls per inference; SME or "
        "SME2 kernels selected for 1 of 3 convolutions and products; 1 unknown"
    )
    assert kernels_text(variant("off", operator(0, counted(NO, {}))), OFF) == (
        "off (sme off): 0 of 1 convolution or product ran SME kernels"
    )
    assert kernels_text(variant("off", operator(0)), OFF) == (
        "off (sme off): unknown which kernels ran its 1 convolution or product"
    )


def test_variants_stand_side_by_side(content: ReportContent) -> None:
    """Operators of one kind in one row, with the kernels, calls and evidence of both."""
    on = variant("accelerated", *(operator(n, counted(YES, {MOPA: 640})) for n in (0, 2)))
    off = variant("baseline", *(operator(n, counted(NO, {}), name="Convolution (NHWC, F32) IGEMM #1") for n in (0, 2)))
    report = shown(content, on, off)
    section = kernel_section(report)
    assert section
    [row] = section.operators
    assert (row.operator, row.layers, row.number) == ("Convolution IGEMM", "block.0, block.2", 2)
    [told] = cells(by_operator_table(section))
    assert [told[2:4], told[5:7]] == [["SME2", "640"], ["NEON or scalar", "SME: 0"]]
    assert ("executed", [(2, 0, 0), (0, 2, 0)]) in section.levels
    for text in (markdown_report(report), html_report(report)):
        assert "Convolutions and products by kernel" in text
        assert MOPA in text.replace("\\", "")
        assert "2 of 2 convolutions and products ran SME2 kernels" in text
        assert "0 of 2 ran SME kernels" in text


def test_where_nothing_is_known_there_is_no_table_of_it(content: ReportContent) -> None:
    """A machine whose library tells nothing: the operators by name and time stay."""
    section = kernel_section(shown(content, variant("accelerated", operator(0))))
    assert section
    assert (section.operators, section.levels) == ([], [])
    assert "Convolutions and products by kernel" not in markdown_report(content)


def test_a_report_shows_kernels_that_its_names_tell(content: ReportContent) -> None:
    """No counts: the library's choice by the types in the names, and that no call was counted."""
    environment = msgspec.structs.replace(content.manifest.environment, machine="aarch64")
    on = variant("accelerated", operator(0, answer(EvidenceLevel.SELECTED, YES)))
    report = shown(content, on)
    report = msgspec.structs.replace(
        report, manifest=msgspec.structs.replace(content.manifest, environment=environment)
    )
    section = kernel_section(report)
    assert section
    assert section.operators[0].cells[0]
    assert section.operators[0].cells[0].evidence == "selected, by the types in its name"
    assert any("opscope kernels BUNDLE --count" in line for line in section.sentences)


def test_hostile_names_stay_text(content: ReportContent) -> None:
    """In both reports."""
    hostile = operator(0, counted(YES, {"kai_<script>|`*\x1b[31m\u202e": 2}), name="<b>|x (NHWC, F32) #1")
    report = shown(content, variant("accelerated", hostile))
    for text in (markdown_report(report), html_report(report)):
        assert "kai_<script>" not in text
        assert "<b>|x" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def emulated(content: ReportContent) -> ReportContent:
    """The report as an emulated CPU leaves it, with kernels on and off."""
    on = variant("accelerated", *(operator(n, counted(YES, {MOPA: 640})) for n in (0, 2)))
    off = variant("baseline", *(operator(n, counted(NO, {})) for n in (0, 2)))
    target = msgspec.structs.replace(content.manifest.target, kind="qemu-aarch64", emulated=True)
    manifest = msgspec.structs.replace(content.manifest, target=target)
    ladders = [msgspec.structs.replace(ladder, emulated=True) for ladder in (on, off)]
    return msgspec.structs.replace(shown(content, *ladders), manifest=manifest, comparisons=[], findings=[])


TIME = re.compile(r"\d\s?(?:ms|us|ns|s)\b|latency|faster|slower|\bms\b")


def test_the_first_screen_of_an_emulated_cpu_is_about_kernels(content: ReportContent) -> None:
    """Which ran on and off, how often, and what was not accelerated; no time of an emulator."""
    report = emulated(content)
    page = html_report(report).split("<section", 2)[1].split("</section>")[0]
    text = markdown_report(report).split("## Latency Comparison")[0]
    told = io.StringIO()
    Console(file=told, width=80).print(summary(report))
    terminal = " ".join(told.getvalue().split())
    for screen in (page, text, terminal):
        assert "2 of 2 convolutions and products ran SME2 kernels, 640 calls per inference" in screen
        assert "0 of 2 ran SME kernels" in screen
        assert "Not delegated, run by" in screen
        assert "timings do not represent any device" in screen
        assert TIME.findall(screen) == []
    assert "Convolutions and products by kernel" in page
    assert "What was not accelerated" in page
    assert MOPA in page


def test_an_emulated_cpu_whose_kernels_are_not_known_shows_what_it_has(content: ReportContent) -> None:
    """As before: the figures, and that they say nothing."""
    report = msgspec.structs.replace(emulated(content), kernels=None)
    assert "Operator Category Breakdown" in html_report(report)
    assert "\n\n**Ran on an emulated CPU" in markdown_report(report)[:200]


def test_of_very_many_variants_the_baseline_stands_beside(content: ReportContent) -> None:
    """A ladder of feature groups has more columns than a page holds; other numbers of threads are never beside."""
    used = operator(0, counted(YES, {MOPA: 2}))
    names = ["accelerated", "without_sme2", "without_sme", "without_i8mm", "baseline"]
    more = msgspec.structs.replace(variant("accelerated_t2", used), threads=2)
    many = [variant(name, used) for name in names]
    assert [ladder.variant for ladder in ladders_beside(shown(content, *many, more))] == ["accelerated", "baseline"]
    few = [variant(name, used) for name in names[1:]]
    assert [ladder.variant for ladder in ladders_beside(shown(content, many[0], *few[1:], more))] == [
        "accelerated",
        "without_sme",
        "without_i8mm",
        "baseline",
    ]
