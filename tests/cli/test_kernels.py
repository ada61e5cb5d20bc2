"""``opscope kernels``: bundles, runs of the kit and logs on one view; counting into the evidence arm."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arm import arm_target
from ended import Command
from fakes import FakeClock, FakeTarget
from kernel_files import FILE
from kit_files import kernels as kit_kernels
from kit_files import pair, write_run
from native_runner import native_cache
from opscope.api import Settings, analyze, content, profile, report, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.kernel_evidence import evidence_directory, evidence_runs
from opscope.core.errors import BundleError, FeatureError, NotFoundError, OpscopeError, TraceFormatError
from opscope.kit.readers.csv import kernel_rows
from opscope.reports.formats.tables import COLUMNS
from opscope.reports.report import markdown_report
from opscope.workflows.kernel_view import count_kernels, kernel_filter, kernels
from programs import write_tiny_program
from texts import NO_MICROKERNEL, SME_SELECTED

SME2 = "xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2"
NEON = "xnn_f32_gemm_minmax_ukernel_6x8__neonfma_lane_ld128"
AVX512 = "xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast"
HOSTILE = "xnn_<script>|`*\x1b[31m\u202e_ukernel__=cmd"


def log(*names: str) -> str:
    """A log of XNNPACK."""
    return "".join(f"Note (XNNPACK): Using gemm microkernel '{name}'.\n" for name in names)


def test_logs_of_two_variants_are_held_against_each_other(command: Command, tmp_path: Path) -> None:
    """Take what is behind the last # for the variant, unless a file is called so; registered is never called run."""
    (tmp_path / "on#1.log").write_text(log(SME2, NEON, SME2))
    (tmp_path / "off.log").write_text(log(NEON))
    done = command("kernels", f"{tmp_path}/on#1.log#on", f"{tmp_path}/off.log#off", "--json", "-")
    view = json.loads(done.stdout)
    assert view["schema"] == "opscope.kernel-view/1"
    assert [column["variant"] for column in view["columns"]] == ["on", "off"]
    assert {column["kind"] for column in view["columns"]} == {"registered"}
    cells = {line["name"]: [cell["state"] for cell in line["cells"]] for line in view["kernels"]}
    assert cells == {SME2: ["present", "absent"], NEON: ["present", "present"]}
    assert (view["pairs"][0]["only_left"], view["pairs"][0]["both"]) == ([SME2], [NEON])
    shown = command("kernels", f"{tmp_path}/on#1.log#on").stdout
    assert "registered, not necessarily run" in shown
    (column,) = kernels([tmp_path / "on#1.log"]).columns
    assert column.kernels == 2


def test_a_run_of_the_kit_is_shown_with_its_roles(tmp_path: Path) -> None:
    """Take lists of kernels beside its traces; the config says which is the baseline.

    Its report has them by name, present or absent, and never as run; NEON is named.
    """
    directory = write_run(tmp_path / "run", pairs=[pair("alpha", "beta")])
    (directory / "alpha" / "toy_fp32_alpha_t1_kernels.csv").write_text(kit_kernels([NEON]))
    (directory / "beta" / "toy_fp32_beta_t1_kernels.csv").write_text(kit_kernels([NEON, SME2]))
    view = kernels([directory])
    assert [(c.variant, c.role, c.threads) for c in view.columns] == [
        ("alpha", "baseline", 1),
        ("beta", "candidate", 1),
    ]
    assert (view.pairs[0].left, view.pairs[0].only_left) == (1, [SME2])
    assert [column.variant for column in kernels([f"{directory}#beta"]).columns] == ["beta"]
    assert len(report(directory, ["md", "html"])) == 2
    text = markdown_report(content(directory)).replace("\\", "")
    assert f"| {SME2} | SME2 | absent | present |" in text
    assert f"| {NEON} | NEON | present | present |" in text
    assert "alpha, baseline, 1 thread: registered, not necessarily run, alpha/toy_fp32_alpha_t1_kernels.csv" in text
    assert SME2 in (directory / "opscope" / "report.html").read_text()


@pytest.mark.parametrize("name", ["toy_fp32_{0}_t1_kernels.csv", "{0}/kernels.csv", "{0}/toy_{0}_kernels.csv"])
def test_a_directory_of_lists_alone_is_shown(command: Command, name: str, tmp_path: Path) -> None:
    """Lists of kernels that the kit's script wrote where it likes, and no trace beside them."""
    for experiment, names in (("mac_on", [NEON, SME2]), ("mac_off", [NEON])):
        file = tmp_path / name.format(experiment)
        file.parent.mkdir(exist_ok=True)
        file.write_text(kit_kernels(names))
    view = kernels([tmp_path])
    assert [line.name for line in view.kernels] == [SME2, NEON]
    assert sorted(column.kernels for column in view.columns) == [1, 2]
    assert command("kernels", tmp_path).returncode == 0


def test_lists_have_the_columns_of_the_kit_and_are_read_again(command: Command, tmp_path: Path) -> None:
    """One file for each variant; what is written can be given back."""
    (tmp_path / "on.log").write_text(log(SME2, NEON, SME2))
    assert command("kernels", tmp_path / "on.log", "--kit-csv", tmp_path / "lists", "--quiet").returncode == 0
    [file] = (tmp_path / "lists").iterdir()
    assert file.name == "on_kernels.csv"
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    first = {"kernel_name": SME2, "category": "gemm", "count": "2", "dtype": "pf32", "xnn_op": "gemm"}
    more = {"variant": "minmax", "ukernel_shape": "32x32", "arch_chain": "neonsme2", "has_sme": "1"}
    assert rows[0] == {"model_id": "on", **first, **more, "has_sme2": "1"}
    assert [(row.kernel.whole, row.registrations) for row in kernel_rows(file)] == [(SME2, 2), (NEON, 1)]
    assert [line.name for line in kernels([file]).kernels] == [SME2, NEON]


def test_hostile_names_stay_text(command: Command, tmp_path: Path) -> None:
    """On the terminal, in Markdown and in CSV."""
    (tmp_path / "x.log").write_text(log(HOSTILE, "=1+1"))
    done = command("kernels", tmp_path / "x.log", "--md", tmp_path / "x.md", "--kit-csv", tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    text = (tmp_path / "x.md").read_text()
    assert "<script>" not in text
    assert "\u202e" not in text
    names = [row["kernel_name"] for row in csv.DictReader((tmp_path / "x_kernels.csv").read_text().splitlines())]
    assert "'=1+1" in names


def test_what_processes_of_a_bundle_registered_is_shown(tmp_path: Path) -> None:
    """A library with XNNPACK's log: by name and side in the view and in reports, and never as run."""
    out = tmp_path / "bundle"
    settings = Settings(rounds=2, runs=4, warmup=1)
    profile(str(write_tiny_program(tmp_path)), settings=settings, out=out, target=FakeTarget(), clock=FakeClock())
    opened = Bundle.open(out)
    for name, names in (("accelerated", [AVX512, NEON]), ("baseline", [NEON])):
        place = out / opened.manifest.completed(name)[0].directory / "log.txt"
        place.write_text(log(*names))
    view = kernels([out])
    assert [(column.variant, column.kind.value) for column in view.columns] == [
        ("accelerated", "registered"),
        ("baseline", "registered"),
    ]
    assert view.pairs[0].only_left == [AVX512]
    assert not view.notes  # nothing can be counted on x86-64
    report(out, ["md"])
    text = markdown_report(content(out)).replace("\\", "")
    assert f"| {AVX512} | AVX-512 | present | absent |" in text
    assert f"| {NEON} | NEON | present | present |" in text
    assert "registered, not necessarily run" in text


def test_a_bundle_without_counts_says_how_far_its_evidence_goes(command: Command, bundle: Path, tmp_path: Path) -> None:
    """On x86-64 names tell nothing; only the comparison answers, and each other rung says why it cannot."""
    view = kernels([bundle])
    accelerated = next(ladder for ladder in view.ladders if ladder.variant == "accelerated")
    assert accelerated.about == "avx512"
    [convolution] = accelerated.operators
    answers = {step.rung.value: step.answer.value for step in convolution.steps}
    assert answers == {
        **dict.fromkeys(("eligible", "in binary", "selected", "executed"), "not known here"),
        "faster": "yes",
    }
    assert all(step.detail for step in convolution.steps)
    assert not view.notes
    done = command("kernels", bundle, "--md", tmp_path / "k.md")
    assert "Not known here: eligible (" in done.stdout
    assert "?" not in done.stdout
    assert "on x86-64 the library's kernels have no exported names" in (tmp_path / "k.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["none"], 3, "cannot be read"),
        (["x.log", "--isa", "sme3"], 2, "did you mean sme"),
        (["x.log", "--count"], 2, "none of the paths is a bundle"),
        (["plain.txt"], 4, "it has no kernel data"),
        (["x.log#y#z"], 3, "cannot be read"),
    ],
)
def test_mistakes_say_what_to_do(command: Command, tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    """Give each an exit code of its own."""
    (tmp_path / "x.log").write_text(log(NEON))
    (tmp_path / "plain.txt").write_text("hello\n")
    done = command("kernels", tmp_path / arguments[0], *arguments[1:])
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda bundle: kernels([f"{bundle}#acelerated"]), NotFoundError, "accelerated"),
        (lambda bundle: kernels([bundle], library=bundle / "report.md"), TraceFormatError, "not an ELF library"),
        (lambda bundle: kernels([bundle], library=bundle / "none.so"), NotFoundError, "no such file"),
        (lambda bundle: count_kernels(bundle, target=FakeTarget()), FeatureError, "--target native"),
        (lambda _: kernels(["#accelerated"]), NotFoundError, "cannot be read"),
    ],
    ids=["an unknown variant", "no library", "a library that is absent", "a target that cannot count", "a mark alone"],
)
def test_what_cannot_be_shown_or_counted_is_refused(
    ask: Callable[[Path], object], error: type[OpscopeError], said: str, bundle: Path
) -> None:
    """Say what to do instead, and change nothing of the bundle."""
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(error) as caught:
        ask(bundle)
    assert said in f"{caught.value.problem} {caught.value.hint}"
    assert (bundle / "manifest.json").read_bytes() == before
    assert not (bundle / "evidence").exists()


def test_a_file_of_counts_can_be_shown_by_itself(tmp_path: Path) -> None:
    """By whoever preloaded the counter."""
    (tmp_path / "kernels.counts").write_bytes(FILE)
    view = kernels([tmp_path / "kernels.counts"])
    assert view.columns[0].kind.value == "counted"
    assert {line.name: line.cells[0].amount for line in view.kernels} == {"kai_run_a": 4, "kai_run_b": 321}


# ---- the whole way, on the Arm runtime


@pytest.fixture(scope="module")
def counted(toy_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """toy_cnn on the emulated CPU, with and without SME, its kernels counted."""
    target, _ = arm_target()
    out = tmp_path_factory.mktemp("arm") / "bundle"
    settings = Settings(rounds=1, runs=2, warmup=0, ablate=("sme",), untraced=False)
    profile(str(toy_program), settings=settings, out=out, target=target)
    runs = count_kernels(out, target=target, cache=native_cache())
    assert [(each.variant, each.failure) for each in runs] == [("accelerated", None), ("baseline", None)]
    return out


@pytest.mark.runtime
def test_counted_variants_show_which_kernels_ran_by_operator(counted: Path) -> None:
    """Show SME2 with acceleration, none without; each rung with its source, and no word of times.

    Evidence is no part of what is measured: the manifest's repetitions are those that were planned.
    """
    view = kernels([counted])
    ladders = {ladder.variant: ladder for ladder in view.ladders}
    ran = {
        name: {step.answer.value for own in ladder.operators for step in own.steps if step.rung.value == "executed"}
        for name, ladder in ladders.items()
    }
    assert ran == {"accelerated": {"yes"}, "baseline": {"no"}}
    assert all(len(ladder.operators) == 3 for ladder in ladders.values())
    faster = {step.answer.value for own in ladders["accelerated"].operators for step in own.steps[-1:]}
    assert faster == {"not known here"}
    assert (view.pairs[0].only_right, len(view.pairs[0].only_left)) == ([], 4)
    products = kernels([counted], wanted=kernel_filter(["sme2"], ["fp32"], ["matmul"]))
    assert {line.operator for line in products.kernels} == {"matmul"}
    assert {ladder.variant: len(ladder.operators) for ladder in products.ladders} == {"accelerated": 3, "baseline": 0}
    manifest = Bundle.open(counted).manifest
    assert len(manifest.repetitions) == len(manifest.planned())
    assert sorted(path.name for path in (counted / "evidence").iterdir()) == ["accelerated", "baseline"]
    told = [problem for check in validate(counted).checks for problem in check.problems]
    assert not [problem for problem in told if "evidence" in problem.file]


@pytest.mark.runtime
def test_evidence_that_was_changed_is_refused(counted: Path, tmp_path: Path) -> None:
    """Show nothing unless counts and trace are those of the record, which may name no files elsewhere."""
    copy = Bundle.open(shutil.copytree(counted, tmp_path / "copy"))
    counts = evidence_directory(copy, "accelerated") / "kernels.counts"
    kept = counts.read_bytes()
    counts.write_bytes(kept[:-1] + b"\1")
    with pytest.raises(BundleError, match="differs from the recorded one"):
        evidence_runs(copy)
    counts.write_bytes(kept)
    file = evidence_directory(copy, "baseline") / "evidence.json"
    record: dict[str, Any] = json.loads(file.read_text())
    file.write_bytes(msgspec.json.encode({**record, "counts": "../../manifest.json"}))
    with pytest.raises(TraceFormatError, match="not part of it"):
        kernels([copy.path])


@pytest.mark.runtime
def test_reports_name_the_kernels_that_were_counted(counted: Path) -> None:
    """Written anew behind the count; what only lays data out is not a kernel of an operator."""
    analysis = analyze(f"{counted}#accelerated")
    known = {row.module: row.kernel for row in analysis.operators if row.kernel}
    assert known == {
        **dict.fromkeys(("stem.0", "body"), "kai_run_matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa"),
        "head": "kai_run_matmul_clamp_f32_f32_f32p2vlx1b_1x16vl_sme2_mla",
    }
    text = markdown_report(content(counted))
    assert "3 operators" in text
    assert "called kernels that were counted in separate runs" in text
    assert NO_MICROKERNEL not in text
    assert "3 of 3 convolutions and products ran SME2 kernels" in text
    assert "0 of 3 ran SME kernels" in text
    assert "executed, calls counted | NEON or scalar | SME: 0 | executed, calls counted" in text
    assert all(row.kernel is None for row in analyze(f"{counted}#baseline").operators)


@pytest.mark.runtime
def test_evidence_that_cannot_be_used_is_a_warning_of_the_analysis(counted: Path, tmp_path: Path) -> None:
    """Keep the times, which do not depend on it."""
    copy = Path(shutil.copytree(counted, tmp_path / "copy"))
    (copy / "evidence" / "accelerated" / "evidence.json").write_text("{")
    found = analyze(f"{copy}#accelerated")
    assert "evidence_unusable" in [warning.code for warning in found.trace.warnings]
    assert all(row.kernel is None for row in found.operators)
    report(copy, ["md"])
    text = markdown_report(content(copy))
    assert "Not shown: the counted kernels cannot be used: the record is damaged" in text
    assert f"{SME_SELECTED} 3 of 3 convolutions and products" in text
