"""What a user of the Arm kit gets from a run directory: analyses, comparisons, reports, and where the kit was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import kit_files
from kit_files import BASELINE, CANDIDATE, pair, write_run
from opscope.api import analyze, compare, content, read, report
from opscope.bundle.manifest import Role
from opscope.core.errors import NotFoundError, TraceFormatError
from opscope.core.stats.effect import Verdict
from opscope.reports.report import html_report, markdown_report
from texts import ALL_FEATURES_ON


@pytest.fixture
def plain(tmp_path) -> Path:
    """A run without any comparison."""
    return write_run(tmp_path / "out_toy/runs/mac")


@pytest.fixture
def paired(tmp_path) -> Path:
    """A flat run that was asked to compare beta with alpha."""
    return write_run(tmp_path / "paired", nested=False, pairs=[pair("alpha", "beta")])


def codes(path) -> list[str]:
    """What an analysis warns of."""
    return [warning.code for warning in analyze(path).trace.warnings]


def files(directory: Path) -> list[str]:
    """All files in a directory, relative."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_an_experiment_is_analysed_from_its_etdump(plain):
    """The latency of Method::execute, under the experiment's name."""
    analysis = analyze(f"{plain}#beta", warmup=0)
    assert (analysis.variant, analysis.trace.format) == ("beta_t1", "etdump")
    assert analysis.latency.samples_ns == [2_000_000] * 3


def test_without_a_name_the_candidate_is_shown(paired):
    """The config says which one that is."""
    analysis = analyze(paired)
    assert analysis.variant == "beta_t1"
    assert "kit_first_experiment" not in [warning.code for warning in analysis.trace.warnings]


def test_without_a_name_and_a_role_the_first_is_shown_and_said(plain):
    """Never silently."""
    assert analyze(plain).variant == "alpha_t1"
    assert {"kit_first_experiment", "kit_no_roles"} <= set(codes(plain))


def test_an_unknown_experiment_lists_the_known_ones(plain):
    """With the near one."""
    with pytest.raises(NotFoundError, match="no experiment 'alfa'") as caught:
        analyze(f"{plain}#alfa")
    assert "alpha_t1" in (caught.value.hint or "")


def test_without_etdump_the_timeline_of_all_runs_is_read(plain):
    """And without that, the first run, with a warning."""
    before = analyze(f"{plain}#beta", warmup=0)
    (plain / "beta/toy_fp32_beta_t1.etdump").unlink()
    after = analyze(f"{plain}#beta", warmup=0)
    assert after.trace.format == "kit-timeline-csv"
    assert after.latency.samples_ns == before.latency.samples_ns
    assert [(o.instruction, o.name, o.time_ns) for o in after.operators] == [
        (o.instruction, o.name, o.time_ns) for o in before.operators
    ]
    (plain / "beta/toy_fp32_beta_t1_exec_all_runs_timeline.csv").unlink()
    assert read(f"{plain}#beta").inferences().height == 1
    assert "kit_first_run_only" in codes(f"{plain}#beta")


def test_two_experiments_are_compared(plain):
    """One process a side decides nothing, however large the difference."""
    compared = compare(f"{plain}#alpha", f"{plain}#beta")
    assert compared.end_to_end.speedup == pytest.approx(2.0)
    assert compared.end_to_end.verdict is Verdict.UNDECIDABLE
    assert (compared.baseline.label, compared.candidate.label) == ("alpha_t1", "beta_t1")


def test_correct_figures_are_not_complained_about(plain):
    """Only the percentages are wrong in a run whose medians are right."""
    assert {code for code in codes(f"{plain}#alpha") if code.startswith("kit_")} == {"kit_no_roles", "kit_percentages"}


def test_a_median_that_is_not_of_the_trace_is_said(plain):
    """With both figures and the file that states the wrong one."""
    kit_files.write_json(plain / "metrics.json", {"results": [kit_files.result("alpha", 3.5)]})
    (warning,) = [w for w in analyze(f"{plain}#alpha").trace.warnings if w.code == "kit_median_differs"]
    assert warning.message == (
        "metrics.json states a median of 3.50 ms for alpha_t1, "
        "Method::execute in alpha/toy_fp32_alpha_t1.etdump has 4.00 ms"
    )


def test_a_timeline_of_another_run_is_said(plain):
    """The ETDump counts; a damaged timeline beside it is said too."""
    other = plain / "alpha/toy_fp32_alpha_t1_exec_all_runs_timeline.csv"
    other.write_text(kit_files.timeline(CANDIDATE))
    assert "kit_timeline_differs" in codes(f"{plain}#alpha")
    other.write_text("name,duration_ms\n")
    assert "kit_timeline_damaged" in codes(f"{plain}#alpha")


def test_a_damaged_etdump_is_refused(plain):
    """A placeholder is not a trace, although a timeline is beside it."""
    (plain / "alpha/toy_fp32_alpha_t1.etdump").write_text("dummy-etdump\n")
    with pytest.raises(TraceFormatError, match="unrecognised format"):
        analyze(f"{plain}#alpha")


def test_an_experiment_without_trace_says_why(plain):
    """What the kit recorded, and what is there."""
    kit_files.write_json(plain / "metrics.json", {"results": [{"experiment": "gone", "threads": 1, "status": "ok"}]})
    with pytest.raises(NotFoundError, match="gone_t1 left no trace") as caught:
        analyze(f"{plain}#gone")
    assert "recorded as 'ok'" in (caught.value.hint or "")


def test_a_report_leaves_the_kits_files_alone(plain):
    """It goes to a directory of its own; a second one does not take the first for a part of the run."""
    before = {name: (plain / name).read_bytes() for name in files(plain)}
    for _ in range(2):
        written = report(plain)
        assert {path.parent for path in written if path.suffix != ".json"} == {plain / "opscope"}
    assert {name: (plain / name).read_bytes() for name in before} == before
    assert all(name.startswith("opscope/") for name in files(plain) if name not in before)


def test_a_report_can_be_written_elsewhere(paired, tmp_path):
    """Then nothing is written into the run."""
    before = files(paired)
    report(paired, out=tmp_path / "reports")
    assert files(paired) == before
    assert {"report.md", "report.html", "analysis.json", "comparison.json"} <= set(files(tmp_path / "reports"))


def test_a_report_says_what_is_not_known(paired):
    """The machine, the features and the seed are in no file of the kit; nothing is claimed about them."""
    shown = content(paired)
    for text in (markdown_report(shown), html_report(shown)):
        assert "not known" in text
        assert "None" not in text
        assert ALL_FEATURES_ON not in text
        assert "with acceleration" not in text
        assert "as beta_t1" in text.replace("\\", "")
    assert [r.variant.role for r in shown.variants] == [Role.BASELINE, Role.CANDIDATE]


def test_a_report_without_roles_compares_nothing(plain):
    """It lists the experiments and says that the baseline is not known."""
    shown = content(plain)
    assert (shown.comparisons, [r.variant.role for r in shown.variants]) == ([], [None, None])
    assert "which of 2 variants is the baseline" in markdown_report(shown)


def test_a_report_lists_what_failed(plain):
    """Recorded as ok, but nan and without a trace: failed. The warnings of every experiment are in it."""
    crash = {"experiment": "gone", "threads": 1, "status": "ok", "metrics": {"median_ms": float("nan")}}
    kit_files.write_json(plain / "metrics.json", {"results": [crash]})
    (plain / "beta/toy_fp32_beta_t1.etdump").write_text("dummy-etdump\n")
    text = markdown_report(content(plain))
    assert "round 0 of gone\\_t1 failed" in text
    assert "its median is not a number" in text
    assert "beta\\_t1 has no result" in text


def test_names_cannot_lead_out_of_the_report(plain, tmp_path):
    """An experiment's name is text, never a path."""
    name = "../../../escaped"
    listed = kit_files.result(name, 4.0)
    listed["metrics"]["etdump"] = "alpha/toy_fp32_alpha_t1.etdump"
    kit_files.write_json(plain / "metrics.json", {"results": [listed]})
    report(plain, out=tmp_path / "reports")
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_run_without_any_trace_is_refused(tmp_path):
    """There is nothing to report."""
    directory = tmp_path / "mac"
    directory.mkdir()
    kit_files.write_json(directory / "manifest.json", {"results": [kit_files.result("alpha", 4.0)]})
    with pytest.raises(NotFoundError, match="none of its 1 experiment left a trace"):
        report(directory)
    assert files(directory) == ["manifest.json"]


def test_a_run_of_damaged_traces_alone_is_refused(plain):
    """A report of nothing is not a report, and nothing is written."""
    for name in ("alpha", "beta"):
        (plain / name / f"toy_fp32_{name}_t1.etdump").write_text("dummy-etdump\n")
    with pytest.raises(TraceFormatError, match="no experiment could be measured: alpha_t1: unrecognised"):
        report(plain)
    assert not (plain / "opscope").exists()


def test_experiments_of_several_thread_counts_are_told_apart(plain):
    """By the key that the kit's file names have."""
    kit_files.write_experiment(plain, "alpha", BASELINE, nested=True, threads=4)
    assert analyze(f"{plain}#alpha_t4").variant == "alpha_t4"
