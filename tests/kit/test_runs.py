"""A run directory of the kit as a bundle: its program, its sides, what is checked, and how one is written."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import kit_files
from command_line import opscope as command
from opscope.api import analyze, combined, content, convert, report, validate
from opscope.bundle.manifest import Role
from opscope.bundle.validation import CheckStatus
from opscope.core.errors import MismatchError, NotFoundError, OverwriteError, TraceFormatError, UsageError
from opscope.kit.readers.directory import read_kit
from opscope.reports.combined.combined import combined_markdown
from texts import ANOTHER_PROGRAM

BUNDLE = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"
PROGRAM = next(BUNDLE.rglob("*.pte"))
RECORD = next(BUNDLE.rglob("*.etrecord"))
EXPERIMENTS = {"mac_sme2_on": "accelerated", "mac_sme2_off": "baseline"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run as the kit's default config makes it: no comparison asked for, and the program where its export put it."""
    directory = tmp_path / "out_toy" / "runs" / "mac"
    directory.mkdir(parents=True)
    stem = PROGRAM.stem
    for name, variant in EXPERIMENTS.items():
        trace = min((BUNDLE / "variants" / variant).rglob("*.etdump"))
        shutil.copyfile(trace, directory / f"{stem}_{name}_t1.etdump")
        (directory / f"{stem}_{name}_t1_latency.log").write_text(kit_files.FINISHED)
    artifacts = tmp_path / "out_toy" / "artifacts"
    artifacts.mkdir()
    shutil.copyfile(PROGRAM, artifacts / PROGRAM.name)
    shutil.copyfile(RECORD, artifacts / f"{PROGRAM.name}.etrecord")
    runs = [{"experiment": name, "threads": 1, "mode": "timing", "status": "ok"} for name in EXPERIMENTS]
    kit_files.write_json(
        directory / f"{stem}_pipeline_summary.json", {"model": f"out_toy/artifacts/{PROGRAM.name}", "runs": runs}
    )
    return directory


def codes(path: object) -> set[str]:
    """Codes of the warnings of an analysis."""
    return {warning.code for warning in analyze(str(path)).trace.warnings}


def test_the_program_that_the_kit_recorded_is_found_with_its_record(run: Path) -> None:
    """Every experiment has the layers of the bundle that its trace is from."""
    for name, variant in EXPERIMENTS.items():
        found, expected = analyze(f"{run}#{name}", warmup=0), analyze(f"{BUNDLE}#{variant}", warmup=0)
        assert found.program is not None
        assert found.program.path.endswith(f"artifacts/{PROGRAM.name}")
        assert found.program.etrecord is not None
        assert [(o.name, o.module, o.category) for o in found.operators] == [
            (o.name, o.module, o.category) for o in expected.operators
        ]


def test_a_program_that_is_gone_can_be_named(run: Path, tmp_path: Path) -> None:
    """Without it operators have no layers; another one is refused where it is named, and said where it was found."""
    home = tmp_path / "out_toy" / "artifacts"
    moved = shutil.move(home, tmp_path / "elsewhere")
    assert content(run).variants[0].analysis.program is None
    named = content(run, program=Path(moved) / PROGRAM.name)
    assert named.variants[0].analysis.program.etrecord.endswith(".etrecord")

    other = Path(__file__).parents[1] / "data" / "two_methods.pte"
    with pytest.raises(MismatchError, match=ANOTHER_PROGRAM):
        content(run, program=other)
    with pytest.raises(TraceFormatError, match="not an ExecuTorch program"):
        content(run, program=Path(__file__))
    home.mkdir()
    shutil.copyfile(other, home / PROGRAM.name)
    assert "program_unusable" in codes(f"{run}#mac_sme2_on")


def test_two_experiments_that_are_named_are_compared(run: Path) -> None:
    """They get their roles; a thread count may be left out where there is one."""
    found = content(run, compared=("mac_sme2_off", "mac_sme2_on_t1"))
    assert [(v.variant.name, v.variant.role) for v in found.variants] == [
        ("mac_sme2_on_t1", Role.CANDIDATE),
        ("mac_sme2_off_t1", Role.BASELINE),
    ]
    assert found.primary.baseline.label == "mac_sme2_off_t1"
    assert found.primary.candidate.label == "mac_sme2_on_t1"


@pytest.mark.parametrize(
    ("names", "error", "hint"),
    [
        (("mac_sme2_off", None), UsageError, "mac_sme2_on_t1"),
        ((None, "mac_sme2_on"), UsageError, "mac_sme2_off_t1"),
        (("mac_sme2_off", "mac_sme2_off_t1"), UsageError, "name two"),
        (("mac_sme2_of", "mac_sme2_on"), NotFoundError, "mac_sme2_off_t1"),
    ],
)
def test_sides_that_cannot_be_compared(run: Path, names: tuple, error: type[Exception], hint: str) -> None:
    """One of two, the same twice, one that is not there: each is refused with names that there are."""
    with pytest.raises(error) as caught:
        content(run, compared=names)
    assert hint in (caught.value.hint or "")


def test_a_bundle_has_its_own_program() -> None:
    """Only a run of the kit can lack it."""
    with pytest.raises(UsageError, match="a bundle has its own"):
        content(BUNDLE, program=PROGRAM)


def test_the_sides_of_a_bundle_can_be_named() -> None:
    """They take the places of those that were planned; what cannot be compared is refused."""
    swapped = content(BUNDLE, compared=("accelerated", "baseline")).primary
    planned = content(BUNDLE).primary
    assert swapped is not None
    assert planned is not None
    assert (swapped.baseline.label, swapped.candidate.label) == (planned.candidate.label, planned.baseline.label)
    assert swapped.end_to_end.speedup == pytest.approx(1 / (planned.end_to_end.speedup or 1))
    for names, error in {
        ("accelerated", None): UsageError,
        ("accelerated", "accelerated"): UsageError,
        ("accelerated", "nobody"): NotFoundError,
    }.items():
        with pytest.raises(error):
            content(BUNDLE, compared=names)
    with pytest.raises(UsageError, match="those of its plan"):
        report(BUNDLE, compared=("accelerated", "baseline"))


def test_the_templates_pair_is_compared_by_its_names(run: Path) -> None:
    """SME2 is what the names declare as switched; names that differ in more than on and off propose nothing."""
    shown = content(run)
    assert shown.primary is not None
    assert (shown.primary.baseline.label, shown.primary.candidate.label) == ("mac_sme2_off_t1", "mac_sme2_on_t1")
    effect = next(one for one in (*shown.findings, *shown.ruled_out) if one.rule == "acceleration_effect")
    assert not effect.title.startswith("which CPU features differ")
    for path in run.glob("*_on_t1*"):
        path.rename(path.with_name(path.name.replace("_on_", "_office_")))
    summary = next(run.glob("*_summary.json"))
    summary.write_text(summary.read_text().replace("sme2_on", "sme2_office"))
    assert read_kit(run).comparisons == ()


def compared_by_the_kit(run: Path, **medians: float) -> Path:
    """The comparison that the kit wrote of the two experiments, in whose command the labels were swapped."""
    stem = PROGRAM.stem
    first, second = (f"{stem}_mac_sme2_{side}_t1_exec_all_runs_timeline" for side in ("off", "on"))
    file = run / f"{first}_vs_{second}_robust_comparison.json"
    sides = {
        f"config{number}": {"name": label, "median_ms": medians.get(side)}
        for number, label, side in ((1, "SME2-On", "off"), (2, "SME2-Off", "on"))
    }
    kit_files.write_json(file, sides)
    return file


def test_a_comparison_that_the_kit_made_is_made_again(run: Path) -> None:
    """Of the timelines in its name, whatever it calls them; its medians are held against the traces."""
    true = {side: analyze(f"{run}#mac_sme2_{side}", warmup=0).latency.median_ns / 1e6 for side in ("on", "off")}
    file = compared_by_the_kit(run, **true)
    found = read_kit(run)
    assert [(pair.baseline, pair.candidate) for pair in found.comparisons] == [("mac_sme2_off_t1", "mac_sme2_on_t1")]
    assert not codes(f"{run}#mac_sme2_off") & {"kit_median_differs", "kit_no_roles"}
    compared_by_the_kit(run, on=true["on"], off=2 * true["off"])
    assert "kit_median_differs" in codes(f"{run}#mac_sme2_off")
    assert "kit_median_differs" not in codes(f"{run}#mac_sme2_on")
    file.write_text("{")
    with pytest.raises(TraceFormatError, match="not valid JSON"):
        read_kit(run)


def states(run: Path) -> dict[str, CheckStatus]:
    """What became of each check."""
    return {check.name: check.status for check in validate(run).checks}


def test_a_whole_run_is_valid(run: Path) -> None:
    """All is asked that there is, the comparison that the names propose included."""
    assert states(run) == {
        "manifest": CheckStatus.PASSED,
        "pairs": CheckStatus.PASSED,
        "complete": CheckStatus.PASSED,
        "traces": CheckStatus.PASSED,
        "program": CheckStatus.PASSED,
        "stated": CheckStatus.PASSED,
    }
    assert validate(run).valid
    with pytest.raises(UsageError, match="another structure"):
        validate(run, like=BUNDLE)


def test_what_is_wrong_with_a_run_is_found(run: Path, tmp_path: Path) -> None:
    """Each damage by the check that it is of."""
    trace, log = next(run.glob("*_on_t1.etdump")), next(run.glob("*_off_t1_latency.log"))
    whole = trace.read_bytes()
    trace.write_bytes(whole[:100])
    assert states(run)["traces"] is CheckStatus.FAILED
    trace.unlink()
    assert states(run)["complete"] is CheckStatus.FAILED
    trace.write_bytes(whole)
    closing = log.read_text()
    log.write_text("killed")
    assert states(run)["complete"] is CheckStatus.FAILED
    log.write_text(closing)
    kit_files.write_json(run / "metrics.json", {"results": [kit_files.result("mac_sme2_on", 99.0)]})
    assert states(run)["stated"] is CheckStatus.FAILED
    kit_files.write_json(
        run / "config.json", kit_files.config([kit_files.pair("mac_sme2_off", "mac_sme3_on")]) | {"experiments": []}
    )
    summary = next(run.glob("*_summary.json"))
    summary.write_text(summary.read_text().replace('"model"', '"config": "config.json", "model"'))
    assert states(run)["pairs"] is CheckStatus.FAILED
    shutil.copyfile(
        Path(__file__).parents[1] / "data" / "two_methods.pte", tmp_path / "out_toy/artifacts" / PROGRAM.name
    )
    assert states(run)["program"] is CheckStatus.FAILED
    summary.write_text("{")
    assert states(run) == {"manifest": CheckStatus.FAILED, **dict.fromkeys(list(states(run))[1:], CheckStatus.SKIPPED)}


def test_in_a_combined_report_a_pair_of_the_kit_has_its_speedup(run: Path) -> None:
    """By its name, and under no word that says that it was accelerated."""
    text = combined_markdown(combined([run, BUNDLE])).replace("\\", "")
    (row,) = [line for line in text.splitlines() if "| mac_sme2_" in line]
    assert re.search(r"\| mac_sme2_on_t1 \|.*\| [\d.]+x \|", row)
    assert "accelerated ms" not in text


def test_reports_of_named_sides(run: Path) -> None:
    """With a comparison, beside the kit's files."""
    written = report(run, compared=("mac_sme2_off", "mac_sme2_on"))
    assert run / "opscope" / "comparison.json" in written


@pytest.mark.parametrize("name", ["answer.md", "answer.html"])
def test_one_file_is_written_where_one_is_named(run: Path, tmp_path: Path, name: str) -> None:
    """In the format of its name; it is replaced, and what another program wrote is not."""
    file = tmp_path / name
    assert report(run, out=file) == report(run, out=file) == [file]
    assert "Config File" in file.read_text()
    with pytest.raises(UsageError, match="is not json"):
        report(run, ["json"], out=file)
    file.write_text("mine")
    with pytest.raises(OverwriteError):
        report(run, out=file)
    assert file.read_text() == "mine"


def test_the_report_that_a_run_of_the_kits_config_names_is_there(run: Path, tmp_path: Path) -> None:
    """Analysed alone, from a directory that the kit filled."""
    runner = {"runner_path": "cmake-out/executor_runner", "mode": "timing", "runs": 3, "warmup": 1, "threads": [1]}
    config = tmp_path / "config.json"
    kit_files.write_json(
        config,
        {
            "model": str(tmp_path / "out_toy" / "artifacts" / PROGRAM.name),
            "output_root": str(run),
            "experiments": [{"name": name, **runner} for name in EXPERIMENTS],
        },
    )
    done = command("run", config, "--analysis-only")
    assert done.returncode == 0
    (named,) = (line.removeprefix("report: ") for line in done.stdout.splitlines() if line.startswith("report: "))
    assert Path(named).is_file()


def rows_of(path: Path) -> list[dict[str, str]]:
    """A table."""
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_bundle_is_written_as_a_run_of_the_kit(tmp_path: Path) -> None:
    """All its files with the figures of the analyses; what is written can be read again, and says the same."""
    files = convert(BUNDLE, "kit", out=tmp_path / "run")
    stem = f"{json.loads((BUNDLE / 'manifest.json').read_text())['model']['name']}_accelerated_t1"
    names = {file.name for file in files}
    ends = "category_summary operator_details e2e_latency comparison exec_run0_timeline exec_ops_stats".split()
    assert {f"{stem}_{end}.csv" for end in ends} <= names
    found = analyze(f"{BUNDLE}#accelerated")
    latency = found.traced or found.latency
    robust = json.loads(
        (tmp_path / "run" / "accelerated" / f"{stem}_exec_all_runs_timeline_robust_stats.json").read_text()
    )
    assert robust["median_ms"] == pytest.approx(latency.median_ns / 1e6)
    assert robust["latencies_ms"] == pytest.approx([sample / 1e6 for sample in latency.samples_ns])
    assert robust["outliers"]["count"] + robust["robust_stats"]["count"] == robust["count"] == latency.n
    assert robust["std_dev_ms"] == pytest.approx(np.std(latency.samples_ns, ddof=1) / 1e6)

    details = rows_of(tmp_path / "run" / "accelerated" / f"{stem}_operator_details.csv")
    operators = [operator for operator in found.operators if operator.position is not None]
    assert sum(float(row["avg_ms"]) for row in details) == pytest.approx(sum(o.traced_ns for o in operators) / 1e6)
    categories = rows_of(tmp_path / "run" / "accelerated" / f"{stem}_category_summary.csv")
    # Other is what the named categories leave of the latency, whatever operators there are.
    assert sum(float(row["pct_of_e2e"]) for row in categories) == pytest.approx(100)

    for file in (tmp_path / "run").glob("*_pipeline_summary.*"):
        assert json.loads((BUNDLE / "manifest.json").read_text())["created"] in file.read_text()
    again = read_kit(tmp_path / "run")
    assert [e.key for e in again.experiments] == ["accelerated_t1", "baseline_t1"]
    assert {stated.median_ms for e in again.experiments for stated in e.stated} == {
        own["metrics"]["median_ms"] for own in json.loads((tmp_path / "run/metrics.json").read_text())["results"]
    }


@pytest.mark.parametrize("name", ["..", ".", "/", "a/../.."])
def test_an_experiment_of_any_name_is_written_in_the_directory(tmp_path: Path, name: str) -> None:
    """A name of dots alone is no directory, and none leads out of that of the run."""
    run = tmp_path / "given"
    run.mkdir()
    for experiment, text in (("odd", kit_files.BASELINE), ("beta", kit_files.CANDIDATE)):
        kit_files.write_experiment(run, experiment, text, nested=False)
    results = [kit_files.result("odd", 4.0) | {"experiment": name}, kit_files.result("beta", 2.0)]
    results[0]["metrics"]["etdump"] = "toy_fp32_odd_t1.etdump"
    kit_files.write_json(run / "manifest.json", {"model": kit_files.MODEL, "results": results})
    files = convert(run, "kit", out=tmp_path / "out")
    assert len(files) > 20
    assert all(file.resolve().is_relative_to((tmp_path / "out").resolve()) for file in files)


def test_a_speedup_in_a_written_comparison_is_above_one_where_the_candidate_is_faster(tmp_path: Path) -> None:
    """The first name is the candidate."""
    files = convert(BUNDLE, "kit", out=tmp_path / "run")
    (file,) = (path for path in files if path.name.endswith("_comparison.csv"))
    for row in rows_of(file):
        times = float(row["accelerated_t1_ms"]), float(row["baseline_t1_ms"])
        assert float(row["speedup"]) == pytest.approx(times[1] / times[0] if times[0] else 0)


def test_columns_and_files_that_the_documents_describe_are_written(tmp_path: Path) -> None:
    """Time since the inference began, the event around, category and backend; operators; and Other is what is left."""
    run = tmp_path / "run"
    convert(BUNDLE, "kit", out=run)
    (experiment, *_), summary = (
        json.loads((run / name).read_bytes())[key]
        for name, key in (("operator_analysis.json", "per_etdump"), ("analysis_summary.json", "per_etdump"))
    )
    assert experiment["operators"] == summary[0]["operator_details"]
    found = analyze(f"{BUNDLE}#accelerated")
    latency = found.traced or found.latency
    assert sum(summary[0]["categories_ms"].values()) == pytest.approx(latency.mean_ns / 1e6)
    assert summary[0]["categories_ms"]["Other"] > 0
    rows = rows_of(run / summary[0]["csv_timeline"])
    whole = next(row for row in rows if row["name"] == "Method::execute")
    assert (float(whole["timestamp_ms"]), whole["parent_id"]) == (0.0, "")
    inside = [row for row in rows if row["parent_id"] == whole["node_id"] and row is not whole]
    assert inside
    assert all(float(row["timestamp_ms"]) <= float(whole["duration_ms"]) for row in inside)
    assert {row["backend"] for row in rows} == {row["delegate_backend"] for row in rows}
    assert {row["op_type"] for row in rows} <= {"Convolution", "GEMM", "Data Movement", "Elementwise", "Other"}


GOOD = Path(__file__).parents[2] / "examples" / "known-good-run" / "runs" / "mac"


def test_a_written_run_is_valid_and_like_the_known_good_one(tmp_path: Path) -> None:
    """Its medians are those of its timelines: neither has the warm-up."""
    convert(BUNDLE, "kit", out=tmp_path / "run")
    found = validate(tmp_path / "run", like=GOOD)
    assert found.valid
    statuses = {check.name: check.status for check in found.checks}
    assert {statuses[name] for name in ("stated", "like_files", "like_fields")} == {CheckStatus.PASSED}


def test_what_a_run_lacks_of_the_known_good_one_is_named(tmp_path: Path) -> None:
    """A kind of file, a column, a field; what it has beyond is no problem, and a bundle is no good run."""
    run = tmp_path / "run"
    shutil.copytree(GOOD, run)
    (run / "more.csv").write_text("a,b\n")
    assert validate(run, like=GOOD).valid
    (run / "operator_analysis.json").unlink()
    summary = json.loads((run / "analysis_summary.json").read_text())
    field = next(iter(summary))
    del summary[field]
    (run / "analysis_summary.json").write_text(json.dumps(summary))
    table = next(run.rglob("*_category_summary.csv"))
    columns, _, rows = table.read_text().partition("\n")
    for path in run.rglob("*_category_summary.csv"):
        path.write_text(f"{columns.rpartition(',')[0]}\n{rows}")
    problems = {(problem.file, problem.at) for check in validate(run, like=GOOD).checks for problem in check.problems}
    assert ("operator_analysis.json", "") in problems
    assert ("analysis_summary.json", field) in problems
    assert (table.name, columns.rpartition(",")[2]) in problems
    with pytest.raises(UsageError, match="structure"):
        validate(run, like=BUNDLE)
