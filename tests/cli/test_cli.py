"""The command line: answers on standard output, errors with a hint and a code, never a traceback."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from ended import Command
from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import Comparison
from opscope.cli import main
from programs import tiny_program
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


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of four inferences."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump(TRACE, repeat=4))
    return path


@pytest.mark.parametrize(
    ("option", "begins"), [("--html", "<!doctype html>"), ("--markdown", "# accelerated against baseline")]
)
def test_a_comparison_is_written_as_a_page(command: Command, option: str, begins: str, bundle: Path) -> None:
    """With the same answer as on a terminal, and onto standard output alone where that is asked for."""
    sides = (f"{bundle}#baseline", f"{bundle}#accelerated")
    page = command("compare", *sides, option, "-")
    assert (page.returncode, page.stdout.startswith(begins)) == (0, True)
    answer = next(line for line in command("compare", *sides).stdout.splitlines() if line.startswith("speedup "))
    assert answer in page.stdout.replace("\\", "")


def test_analyze_answers_the_question(command: Command, trace: Path, bundle: Path) -> None:
    """Say the latency and where it goes, on standard output, in 80 columns of a terminal."""
    done = command("analyze", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert "100 µs per inference on average" in done.stdout
    assert "Convolution (NHWC, F32) IGEMM #1" in done.stdout
    for arguments in (["analyze", trace], ["compare", f"{bundle}#baseline", bundle]):
        # A command to copy stays on its line, however long its paths are.
        lines = [line for line in on_terminal(*arguments).lines if ": opscope check " not in line]
        assert max(map(len, lines)) <= 80


def test_the_analysis_obeys_its_schema(command: Command, trace: Path) -> None:
    """Print JSON alone on standard output, whose parts add up."""
    found = json.loads(command("analyze", trace, "--json", "-", "--warmup", "0").stdout)
    jsonschema.validate(found, msgspec.json.schema(Analysis))
    assert (found["schema"], found["latency"]["n"]) == ("opscope.analysis/3", 4)
    for rows in ("categories", "operators"):
        assert sum(row["time_ns"] for row in found[rows]) == pytest.approx(found["latency"]["mean_ns"])
    assert (found["trace"]["format"], len(found["trace"]["sha256"])) == ("etdump", 64)


def test_the_comparison_obeys_its_schema(command: Command, trace: Path, bundle: Path, tmp_path: Path) -> None:
    """Write the verdict of two variants to a file; one process a side proves nothing, however large the difference."""
    target = tmp_path / "comparison.json"
    sides = (f"{bundle}#baseline", f"{bundle}#accelerated")
    assert command("compare", *sides, "--json", target, "--quiet")[:2] == (0, "")
    found = json.loads(target.read_text())
    jsonschema.validate(found, msgspec.json.schema(Comparison))
    assert (found["schema"], found["end_to_end"]["verdict"]) == ("opscope.comparison/2", "faster")
    assert "inconclusive" in command("compare", trace, trace).stdout


def test_tables_come_as_csv(command: Command, trace: Path, tmp_path: Path) -> None:
    """Tidy files with one header line; the operators' times add up."""
    assert command("analyze", trace, "--csv", tmp_path / "csv", "-q").returncode == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "csv/operators.csv").read_text())))
    assert sum(float(row["time_ns"]) for row in rows) == pytest.approx(100_000)
    assert (tmp_path / "csv/latency.csv").read_text().splitlines()[0] == "latency_ns"


def test_reports_are_written_again(command: Command, bundle: Path) -> None:
    """Compute deleted reports from the traces, the same as before."""
    before = (bundle / "report.md").read_text()
    (bundle / "report.md").unlink()
    assert command("report", bundle, "--format", "md").stdout.strip() == str(bundle / "report.md")
    assert (bundle / "report.md").read_text() == before


@pytest.mark.parametrize(
    "name", ["profile", "run", "init", "analyze", "compare", "report", "convert", "models", "doctor"]
)
def test_every_command_has_help_with_an_example(command: Command, name: str) -> None:
    """Show one use of it."""
    done = command(name, "--help")
    assert (done.returncode, f"Example: opscope {name}" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    "words",
    [
        ["preflight", "--help"],
        ["preflight", "{program}"],
        ["validate", "{bundle}"],
        ["check", "{bundle}#accelerated", "--against", "{bundle}#baseline", "--force"],
    ],
    ids=" ".join,
)
def test_what_reads_and_judges_needs_no_runtime(words: list[str], bundle: Path) -> None:
    """Read a program or a bundle without the packages that made it: a gate runs where only the traces are."""
    (program,) = bundle.glob("model/*.pte")
    code = (
        f"import sys\nsys.argv = ['opscope', *{[word.format(program=program, bundle=bundle) for word in words]!r}]\n"
        "from opscope.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'executorch', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_of_a_command_is_listed() -> None:
    """The list of commands names every module that defines one, and no other."""
    modules = [path for path in Path(main.__file__).parent.glob("*.py") if path.stem != "main"]
    defining = [path.stem for path in modules if re.search(r"^(def command\(|app = )", path.read_text(), re.MULTILINE)]
    assert {name.replace("_", "-") for name in defining} == set(main.COMMANDS)


def test_models_are_listed(command: Command) -> None:
    """Names and what they are, one a line."""
    lines = command("models").stdout.splitlines()
    names = [line.split()[0] for line in lines[: lines.index("")]]
    assert names[:3] == ["toy_cnn", "mobilenet_v3_small", "vit_tiny"]
    assert {"bert_mini", "segmenter", "decoder_tiny", "edgetam_image_encoder", "edgetam_standin"} <= set(names)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with files that are not what they seem."""
    program = tiny_program()
    contents = {
        "trace.etdump": etdump(TRACE),
        "empty.etdump": b"",
        "no-events.etdump": etdump(""),
        "cut.etdump": etdump(TRACE, repeat=9)[:200],
        "text.pte": b"hello",
        "cut.pte": program[: len(program) // 2],
        "ok.pte": program,
        "folder/file": b"",
    }
    (tmp_path / "folder").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


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
def test_wrong_input_gets_a_message_a_hint_and_a_code(
    command: Command, arguments: str, code: int, said: str, files: Path
) -> None:
    """What happened, where, what to do next; no traceback, and nothing left behind."""
    done = command(*arguments.split(), cwd=files)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not (files / "out").exists()
