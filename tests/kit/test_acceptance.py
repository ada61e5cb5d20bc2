"""What the Arm kit's documents promise, as far as a program can check it: docs/design/published-documents.md.

The SqueezeSAM figures are the published ones, in traces that were made for them (squeezesam.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import kit_files
import squeezesam
from opscope.analysis.findings.message import Grade
from opscope.analysis.rules import movement as rules_movement
from opscope.analysis.rules import rules
from opscope.analysis.rules.evidence import LEAST_SHARE
from opscope.api import analyze, combined, content
from opscope.core.stats.effect import Verdict
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify
from opscope.readers import registry
from opscope.reports.combined.combined import combined_markdown
from opscope.reports.content.content import ReportContent
from opscope.reports.report import html_report, markdown_report
from texts import NO_MICROKERNEL
from traces import etdump

ROOT = Path(__file__).parents[2]
CHECKLIST = (ROOT / "docs" / "design" / "published-documents.md").read_text(encoding="utf-8")
SECTION_SOURCES = ROOT / "src" / "opscope" / "reports" / "sections"
SECTIONS = (
    "## Operator Category Breakdown",
    "## Top operators",
    "## Recommendations",
    "## Latency Comparison",
    "## Acceleration Analysis",
    "## Bottlenecks",
    "## Portable vs Delegated",
    "## Kernel Insights",
    "## Measurement Quality",
    "## How to Reproduce",
    "## Metadata",
)


@pytest.fixture(scope="module")
def fp16(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """The report of the fp16 run."""
    return content(squeezesam.write_fp16(tmp_path_factory.mktemp("squeezesam") / "fp16"))


@pytest.fixture(scope="module")
def text(fp16: ReportContent) -> str:
    """Its Markdown, without the backslashes that keep names from being markup."""
    return markdown_report(fp16).replace("\\", "")


def test_the_sections_are_there_in_order(text):
    """What to do and where the time goes first, what ran last; the Arm kit begins with the metadata."""
    places = [text.find(f"\n{section}\n") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("word", ["Latency Comparison", "Operator Category Breakdown", "Config File"])
def test_the_kits_own_check_of_a_report_passes(word, text):
    """It looks for these words with grep."""
    assert word in text


def test_sections_that_the_checklist_names_exist():
    """Headings of the Markdown report, letter by letter."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SECTION_SOURCES.glob("*.py"))
    named = set(re.findall(r"`(###? [^`]+)`", CHECKLIST))
    assert len(named) > 15
    assert [section for section in named if f'"{section.lstrip("# ")}"' not in sources] == []


def test_rules_that_the_checklist_names_exist():
    """By name."""
    known = {rule.__name__ for rule in (*rules.RULES, *rules.COMPARISON_RULES, *rules.EXPERIMENT_RULES)}
    named = {name for line in re.findall(r"rules? (`[^|]*)\|", CHECKLIST) for name in re.findall(r"`([a-z_]+)`", line)}
    assert named
    assert named <= known


def test_notes_that_the_checklist_names_exist():
    """Codes of warnings about a kit run are those of the readers."""
    source = "".join(path.read_text() for path in (ROOT / "src" / "opscope" / "kit").rglob("*.py"))
    named = set(re.findall(r"`(kit_[a-z_]+)`", CHECKLIST))
    assert len(named) > 2
    assert [code for code in named if f'"{code}"' not in source] == []


def test_thresholds_are_the_kits():
    """Portable 5 %, data movement 10 %, an operator 5 %."""
    thresholds = (LEAST_SHARE, rules_movement.DATA_MOVEMENT_SHARE, LEAST_SHARE)
    assert thresholds == (0.05, 0.10, 0.05)


def rule_of(trace: Path, name: str) -> bool:
    """Whether the rule of that name finds something in a trace."""
    return name in {finding.rule for finding in analyze(trace, warmup=0).findings}


@pytest.mark.parametrize(
    ("share", "portable", "moving"), [(4, False, False), (6, True, False), (9, True, False), (11, True, True)]
)
def test_rules_fire_above_their_thresholds(share, portable, moving, tmp_path):
    """Not at less: a portable operator, and a transpose in a delegate, of so many percent of the latency."""
    part = share * 10_000
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(
        etdump(f"""
            Method::execute 1000000
              DELEGATE_CALL @0 {999_000 - part}
                Convolution (NHWC, F32) IGEMM #1 {998_000 - 2 * part}
                Transpose (ND, X32) #1 {part}
              OPERATOR_CALL @1 {part}
                native_call_softmax.out {part}
        """)
    )
    assert rule_of(trace, "portable_operators") is portable
    assert rule_of(trace, "data_movement") is moving


NESTED = """
    Program::load_method 500000000
      Method::init 400000000
    Method::execute 100000000
      DELEGATE_CALL @0 95000000
        Convolution (NHWC, F32) IGEMM #1 60000000
        Transpose (ND, X32) #1 30000000
"""


def test_nested_events_are_never_added_up(tmp_path):
    """The latency is Method::execute; all other figures are self times and sum to it, loading outside of them."""
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(etdump(NESTED, repeat=3))
    found = analyze(trace, warmup=0)
    assert found.latency.samples_ns == [100_000_000] * 3
    for rows in (found.operators, found.categories, found.backends):
        assert sum(row.time_ns for row in rows) == pytest.approx(100_000_000)
    times = {row.category: row.time_ns for row in found.categories}
    others = sum(time for category, time in times.items() if category is not Category.OTHER)
    assert times[Category.OTHER] == pytest.approx(found.latency.mean_ns - others)


def test_a_timeline_gives_the_same_latency(tmp_path):
    """The CSV of all runs, whose rows are nested too."""
    path = tmp_path / "toy_exec_all_runs_timeline.csv"
    path.write_text(kit_files.timeline(NESTED))
    assert analyze(path, warmup=0).latency.samples_ns == [100_000_000] * 3


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Convert (NC, F32, QD8) #1", Category.DATA_MOVEMENT),  # "conv"
        ("aten::upsample_bilinear2d", Category.OTHER),  # "linear"
        ("aten::addmm", Category.GEMM),  # "add"
        ("Batch Matrix Multiply (NC, F32) GEMM #1", Category.GEMM),  # "mul"
        ("aten::_native_batch_norm_legit", Category.OTHER),  # the kit: Data Movement
        ("aten::constant_pad_nd", Category.DATA_MOVEMENT),
        ("aten::softmax", Category.OTHER),
        ("Deconvolution (NHWC, F32) #1", Category.CONVOLUTION),
    ],
)
def test_names_are_never_searched_for_parts(name, category):
    """The traps of a categoriser that looks for parts of names."""
    assert classify(name).category is category


def test_an_empty_trace_is_an_error(tmp_path):
    """With the reason, not a report of zeros."""
    (tmp_path / "empty.etdump").write_bytes(b"")
    with pytest.raises(registry.TraceFormatError, match="empty"):
        analyze(tmp_path / "empty.etdump")


def test_fp16_reads_as_published(fp16, text):
    """3.90 times, convolution 881 to 98 ms, GEMM 31.6 to 7.6 ms, data movement about 40 %."""
    assert fp16.primary.end_to_end.speedup == pytest.approx(3.90, abs=0.005)
    rows = {row.category: row for row in fp16.primary.categories}
    pairs = {c: (rows[c].baseline_ns / 1e6, rows[c].candidate_ns / 1e6) for c in (Category.CONVOLUTION, Category.GEMM)}
    assert pairs[Category.CONVOLUTION] == pytest.approx((881, 98.1))
    assert pairs[Category.GEMM] == pytest.approx((31.6, 7.6))
    moving = next(row for row in fp16.shown.categories if row.category is Category.DATA_MOVEMENT)
    assert moving.share == pytest.approx(0.399, abs=0.001)
    assert "3.90x" in text.split("## Metadata")[0]


def test_fp16_names_the_new_bottleneck_first(fp16, text):
    """Before convolution, now data movement; the rule for it is the first finding."""
    shift = fp16.primary.shift
    assert shift.before.category is Category.CONVOLUTION
    assert shift.after.category is Category.DATA_MOVEMENT
    assert fp16.findings[0].rule == "data_movement"
    assert "Bottleneck: Data Movement, 39.9 % of the latency" in text.split("## Metadata")[0]


def test_one_run_a_side_decides_nothing(fp16, text):
    """One process a side: 3.90x, the spread within, what is not known, no word on more rounds, none of distrust."""
    assert fp16.primary.end_to_end.verdict is Verdict.UNDECIDABLE
    page = html_report(fp16).split("<h2>Operator Category Breakdown")[0]
    for first in (text.split("## Recommendations")[0], page):
        assert "3.90x, inconclusive: between-process spread unknown" in first
        assert "one process per side; within it android_sme2_on_t1 " in first
        assert "do not trust" not in first.lower()
        assert "--rounds" not in first
    assert fp16.quality.grade is Grade.USABLE
    assert "Measure again" not in text
    assert "Measure again" not in html_report(fp16)


def test_it_says_that_it_is_a_reconstruction(fp16, text):
    """In the model's name, wherever it is shown."""
    assert "reconstructed_from_published_figures" in text.splitlines()[0]
    assert "reconstructed_from_published_figures" in html_report(fp16)


def test_kernels_of_a_log_are_shown_and_not_called_run(fp16):
    """Those with SME2 in their names, and what the names in the trace say."""
    section = markdown_report(fp16).replace("\\", "").split("## Kernel Insights")[1].split("\n## ")[0]
    assert "| xnn_pf16_igemm_minmax_ukernel_4x8__neonsme2 | SME2 |" in section
    assert "| xnn_f16_vlrelu_ukernel__neonfp16arith_u16 | NEON fp16 |" in section
    assert "it does not show which ran" in section
    assert "XNNPACK chose SME-family kernels" in section


def test_both_number_types_stand_side_by_side(tmp_path):
    """1.83 and 3.90 times in one table; of int8 no split was published, and none is invented."""
    directories = [squeezesam.write_int8(tmp_path / "int8"), squeezesam.write_fp16(tmp_path / "fp16")]
    report = combined(directories)
    assert [f"{bundle.configurations[0].speedup:.2f}" for bundle in report.bundles] == ["1.83", "3.90"]
    int8, half = (bundle.bottleneck for bundle in report.bundles)
    assert int8 is None
    assert (half.category, half.before) == (Category.DATA_MOVEMENT, Category.CONVOLUTION)
    assert half.groups[0].operators == 18
    assert "| fp16 | Convolution, 75.8 % | Data Movement | 39.9 % |" in combined_markdown(report)


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        ("x86_64", "On x86-64 names are the same for every instruction set."),
        ("arm64", "On Arm, names without packed types suggest that SME was not used"),
        (None, "on x86-64, nothing"),
    ],
)
def test_what_a_name_without_packed_types_means_depends_on_the_machine(machine, told, tmp_path):
    """And which microkernel ran is said to be not known."""
    run = content(kit_files.write_run(tmp_path / "mac", pairs=[kit_files.pair("alpha", "beta")]))
    environment = msgspec.structs.replace(run.manifest.environment, machine=machine)
    shown = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, environment=environment))
    section = markdown_report(shown).split("## Kernel Insights")[1].split("\n## ")[0]
    assert told in section
    assert "SME family" not in section
    assert NO_MICROKERNEL in section


def test_the_page_counts_the_skills() -> None:
    """As many as there are."""
    assert len(list((ROOT / "src/opscope/skills").glob("*/SKILL.md"))) == 12
    assert "twelve: `opscope skills list`" in CHECKLIST
