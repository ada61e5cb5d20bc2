"""The command line: answers on standard output, errors with a hint and a code, never a traceback."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest

from command_line import opscope
from fakes import FakeClock, FakeTarget
from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import Comparison
from opscope.api import Settings, profile
from opscope.cli import main
from programs import tiny_program, write_tiny_program
from pseudo_terminal import on_terminal
from texts import NO_PROGRAM
from traces import etdump

TRACE = """
    Program::load_method 900
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle of six rounds."""
    directory = tmp_path_factory.mktemp("cli")
    program = write_tiny_program(directory)
    profile(
        str(program), settings=Settings(rounds=6, runs=2), out=directory / "out", target=FakeTarget(), clock=FakeClock()
    )
    return directory / "out"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of four inferences."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump(TRACE, repeat=4))
    return path


@pytest.mark.parametrize(
    ("option", "begins"), [("--html", "<!doctype html>"), ("--markdown", "# accelerated against baseline")]
)
def test_a_comparison_is_written_as_a_page(option: str, begins: str, bundle: Path) -> None:
    """With the same answer as on a terminal, and onto standard output alone where that is asked for."""
    sides = (f"{bundle}#baseline", f"{bundle}#accelerated")
    page = opscope("compare", *sides, option, "-")
    assert page.returncode == 0
    assert page.stdout.startswith(begins)
    answer = next(line for line in opscope("compare", *sides).stdout.splitlines() if line.startswith("speedup "))
    assert answer in page.stdout.replace("\\", "")


def test_analyze_answers_the_question(trace: Path) -> None:
    """The latency and where it goes, on standard output."""
    done = opscope("analyze", trace)
    assert done.returncode == 0
    assert "100 µs per inference on average" in done.stdout
    assert "Convolution (NHWC, F32) IGEMM #1" in done.stdout
    assert done.stderr == ""


def test_the_analysis_obeys_its_schema(trace: Path) -> None:
    """JSON on standard output alone, valid against the schema, its parts adding up."""
    done = opscope("analyze", trace, "--json", "-", "--warmup", "0")
    found = json.loads(done.stdout)
    jsonschema.validate(found, msgspec.json.schema(Analysis))
    assert found["schema"] == "opscope.analysis/2"
    assert found["latency"]["n"] == 4
    assert sum(row["time_ns"] for row in found["categories"]) == pytest.approx(found["latency"]["mean_ns"])
    assert sum(row["time_ns"] for row in found["operators"]) == pytest.approx(found["latency"]["mean_ns"])
    assert found["trace"]["format"] == "etdump"
    assert len(found["trace"]["sha256"]) == 64


def test_the_comparison_obeys_its_schema(bundle: Path, tmp_path: Path) -> None:
    """The verdict of two variants, written to a file."""
    target = tmp_path / "comparison.json"
    done = opscope("compare", f"{bundle}#baseline", f"{bundle}#accelerated", "--json", target, "--quiet")
    assert (done.returncode, done.stdout) == (0, "")
    found = json.loads(target.read_text())
    jsonschema.validate(found, msgspec.json.schema(Comparison))
    assert found["schema"] == "opscope.comparison/2"
    assert found["end_to_end"]["verdict"] == "faster"


def test_one_trace_a_side_is_undecidable(trace: Path) -> None:
    """However large the difference, one process a side proves nothing."""
    done = opscope("compare", trace, trace)
    assert "inconclusive" in done.stdout


def test_tables_come_as_csv(trace: Path, tmp_path: Path) -> None:
    """Tidy files with one header line; the operators' times add up."""
    assert opscope("analyze", trace, "--csv", tmp_path / "csv", "-q").returncode == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "csv/operators.csv").read_text())))
    assert sum(float(row["time_ns"]) for row in rows) == pytest.approx(100_000)
    assert (tmp_path / "csv/latency.csv").read_text().splitlines()[0] == "latency_ns"


def test_reports_are_written_again(bundle: Path) -> None:
    """Deleted reports come back the same, since they are computed from the traces."""
    before = (bundle / "report.md").read_text()
    (bundle / "report.md").unlink()
    done = opscope("report", bundle, "--format", "md")
    assert done.stdout.strip() == str(bundle / "report.md")
    assert (bundle / "report.md").read_text() == before


def test_summaries_fit_80_columns(trace: Path, bundle: Path) -> None:
    """On a terminal of 80 columns, no line is longer."""
    for arguments in (["analyze", trace], ["compare", f"{bundle}#baseline", bundle]):
        assert max(map(len, on_terminal(*arguments).lines)) <= 80


@pytest.mark.parametrize(
    "command", ["profile", "run", "init", "analyze", "compare", "report", "convert", "models", "doctor"]
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    """``--help`` names what the command does and shows one use of it."""
    done = opscope(command, "--help")
    assert done.returncode == 0
    assert f"Example: opscope {command}" in done.stdout


def test_every_module_of_a_command_is_listed() -> None:
    """The list of commands names every module that defines one, and no other."""
    modules = [path for path in Path(main.__file__).parent.glob("*.py") if path.stem != "main"]
    defining = [path.stem for path in modules if re.search(r"^(def command\(|app = )", path.read_text(), re.MULTILINE)]
    assert {name.replace("_", "-") for name in defining} == set(main.COMMANDS)


def test_models_are_listed() -> None:
    """Names and what they are, one a line."""
    lines = opscope("models").stdout.splitlines()
    names = [line.split()[0] for line in lines[: lines.index("")]]
    assert names[:3] == ["toy_cnn", "mobilenet_v3_small", "vit_tiny"]
    assert {"bert_mini", "segmenter", "decoder_tiny", "edgetam_image_encoder", "edgetam_standin"} <= set(names)


def files(directory: Path) -> None:
    """Files that are not what they seem."""
    program = tiny_program()
    (directory / "trace.etdump").write_bytes(etdump(TRACE))
    (directory / "empty.etdump").write_bytes(b"")
    (directory / "no-events.etdump").write_bytes(etdump(""))
    (directory / "cut.etdump").write_bytes(etdump(TRACE, repeat=9)[:200])
    (directory / "text.pte").write_text("hello")
    (directory / "cut.pte").write_bytes(program[: len(program) // 2])
    (directory / "ok.pte").write_bytes(program)
    (directory / "folder").mkdir()
    (directory / "folder" / "file").write_text("")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("analyze nowhere.etdump", 3, "no such file"),
        ("analyze folder", 3, "no traces in this directory"),
        ("analyze trace.etdump#on", 3, "no variants"),
        ("analyze empty.etdump", 4, "built without event tracing"),
        ("analyze no-events.etdump", 4, "built without event tracing"),
        ("analyze cut.etdump", 4, "truncated"),
        ("analyze text.pte", 4, "unrecognised format"),
        ("analyze trace.etdump --warmup 99", 4, "no complete inference remains"),
        ("analyze trace.etdump --warmup some", 2, "--warmup"),
        ("analyze trace.etdump --json trace.etdump/x", 9, "cannot be written"),
        ("analyze", 2, "Missing argument"),
        ("analyse trace.etdump", 2, "No such command"),
        ("profile mobilnet_v3 --out out", 3, "did you mean mobilenet_v3_small"),
        ("profile nowhere.pte --out out", 3, "no such file"),
        ("profile text.pte --out out", 4, NO_PROGRAM),
        ("profile cut.pte --out out", 4, "cut.pte"),
        ("profile ok.pte --out folder", 8, "not empty"),
        ("profile ok.pte --out text.pte", 8, "is a file"),
        ("profile ok.pte --rounds 0 --out out", 2, "--rounds"),
        ("profile ok.pte --threads many --out out", 2, "--threads"),
        ("profile ok.pte --target moon --out out", 2, "no target"),
        ("profile toy_cnn --dtype fp8 --out out", 2, "did you mean"),
        ("profile ok.pte --resume", 2, "--out DIR"),
        ("profile ok.pte --resume --out folder", 3, "no manifest.json"),
        ("report folder", 3, "not a bundle"),
        ("report nowhere", 3, "not a bundle"),
    ],
)
def test_wrong_input_gets_a_message_a_hint_and_a_code(arguments: str, code: int, said: str, tmp_path: Path) -> None:
    """What happened, where, what to do next; no traceback, and nothing left behind."""
    files(tmp_path)
    done = opscope(*arguments.split(), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Names with markup, pipes, formulas, control and direction characters break no table and run nothing."""
    names = [
        "<script>alert(1)</script>",
        "a|b`c*d_e[f](g)",
        "=HYPERLINK('x')",
        "\N{RIGHT-TO-LEFT OVERRIDE}right to left",
        "x" * 10_000,
        "new\\nline\x07",
    ]
    lines = [f"      OPERATOR_CALL @{i} 2000\n        {name} 1900" for i, name in enumerate(names)]
    path = tmp_path / "hostile.etdump"
    path.write_bytes(etdump("    Method::execute 100000\n" + "\n".join(lines)))
    done = opscope("analyze", path, "--csv", tmp_path / "csv", "--json", tmp_path / "a.json")
    assert done.returncode == 0
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in done.stdout
    assert "\x07" not in done.stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "csv/operators.csv").read_text())))
    assert "'=HYPERLINK('x')" in {row["name"] for row in rows}
    assert {o["name"] for o in json.loads((tmp_path / "a.json").read_text())["operators"]} >= set(names)
