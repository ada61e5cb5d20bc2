"""The one command that a command ends with: it is run as it is printed. And the page that opens in the browser."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from installed import needs_onnxruntime
from opscope.cli.main import app
from opscope.core.errors import RunError, UsageError

DATA = Path(__file__).parents[1] / "data"
QUICK = "--rounds 1 --runs 3 --warmup 1 --ablate none --no-ceilings --lock warn".split()
JUDGED = {0, 1, 14, 20}
"""Exit codes of a gate that could judge, or said why not."""


def run(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; its exit code and what it printed."""
    done = CliRunner().invoke(app, list(words))
    code = getattr(done.exception, "exit_code", done.exit_code)
    return code, done.output


def next_words(output: str) -> list[str]:
    """The words of the command at the end of an output, without the program's name."""
    purpose, _, command = output.strip().splitlines()[-1].partition(": ")
    assert purpose.startswith(("to ", "for "))
    program, *words = shlex.split(command)
    assert program == "opscope"
    return words


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A measured bundle in the current directory, under a name that a shell splits."""
    place = tmp_path / "with ceilings"
    shutil.copytree(DATA / "bundles" / "with-ceilings", place)
    monkeypatch.chdir(tmp_path)
    return place


def test_a_comparison_leads_to_a_gate(bundle: Path) -> None:
    """Of two variants of one bundle, whose names have a mark that shells take for a comment."""
    code, output = run(["compare", f"{bundle.name}#baseline", f"{bundle.name}#accelerated"])
    assert code == 0
    words = next_words(output)
    assert words == ["check", f"{bundle.name}#accelerated", "--against", f"{bundle.name}#baseline"]
    assert run(words)[0] in JUDGED


def test_a_store_leads_to_its_report(bundle: Path) -> None:
    """The report is written beside the store."""
    code, output = run(["store", "add", bundle.name, "--store", "runs"])
    assert code == 0
    assert run(next_words(output))[0] == 0
    assert Path("fleet", "fleet.md").is_file()


@needs_onnxruntime
def test_a_first_look_leads_to_a_verdict_and_a_run_to_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for stands in the command; the page is handed to the browser of the environment."""
    monkeypatch.chdir(tmp_path)
    opened = tmp_path / "opened"
    monkeypatch.setenv("BROWSER", f"sh -c 'echo %s >{opened}'")
    model = str(DATA / "onnx" / "cnn.onnx")
    code, output = run(["profile", model, "--quick", *QUICK, "--out", "first look"])
    assert code == 0
    words = next_words(output)
    assert words[:2] == ["profile", model]
    code, output = run([*words, *QUICK, "--out", "whole run"])
    assert code == 0
    words = next_words(output)
    assert words == ["report", "whole run", "--open"]
    code, _ = run(words)
    assert code == 0
    assert opened.read_text().strip() == (tmp_path / "whole run" / "report.html").as_uri()


def test_a_page_that_cannot_be_opened(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a browser, and where no page is written; the report stays."""
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    done = CliRunner().invoke(app, ["report", bundle.name, "--open"])
    assert isinstance(done.exception, RunError)
    assert done.exception.where == str(Path(bundle.name) / "report.html")
    done = CliRunner().invoke(app, ["report", bundle.name, "--format", "md", "--open"])
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "{litert}", "{litert}"], "a model of LiteRT, which holds no measurement"),
        (["compare", "{onnx}", "{onnx}"], "it is an ONNX model"),
        (["report", "{litert}"], "a file, and not the directory of a bundle"),
        (["profile", "{weights}"], "the weights of an OpenVINO model"),
        (["profile", "nosuch.onx"], "no such file"),
        (["preflight", "{cut}"], "extends past the end"),
    ],
)
def test_a_file_of_another_kind_has_a_way_from_there(tmp_path: Path, words: list[str], told: str) -> None:
    """Every message has a hint."""
    cut = tmp_path / "cut.onnx"
    cut.write_bytes((DATA / "onnx" / "cnn.onnx").read_bytes()[:3000])
    names = {
        "litert": DATA / "litert" / "tiny_fp32.tflite",
        "onnx": DATA / "onnx" / "cnn.onnx",
        "weights": DATA / "openvino" / "cnn.bin",
        "cut": cut,
    }
    done = CliRunner().invoke(app, [word.format(**names) for word in words])
    assert told in getattr(done.exception, "problem", "")
    assert getattr(done.exception, "hint", "")
