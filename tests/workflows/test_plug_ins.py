"""Plug-ins of other packages: the example is built and installed by pip, and one that fails is told of by its name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from opscope.core.plug_ins import plug_ins
from traces import etdump

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plug-in"
BUNDLE = ROOT / "tests" / "data" / "bundles" / "with-ceilings"
TRACE = """
    Method::execute 1000000
      DELEGATE_CALL @0 700000
        Convolution (NHWC, F32) IGEMM #1 600000
      OPERATOR_CALL @1 200000
        native_call_fused_rope.out 190000
      OPERATOR_CALL @2 20000
        native_call_add.out 19000
      OPERATOR_CALL @3 20000
        native_call_mul.out 19000
"""
BROKEN = """
from opscope.analysis.findings.message import Message, MessageKind, Severity
from opscope.program.operators.kinds import Kind

def raises(evidence):
    raise RuntimeError("planted")

def wrong(evidence):
    evidence.operators.clear()
    return "a string"

def half(evidence):
    return Message(MessageKind.FINDING, "", Severity.HIGH, None, "", None, "")

CATEGORY = Kind("mine", "My category", aten="fused_rope")

class Writes:
    suffix = ".x"
    def export(self, results):
        return 1 / 0

class Text:
    suffix = ".x"
    def export(self, results):
        return "text"
"""
POINTS = """
[opscope.rules]
raises = broken_plug_in:raises
wrong = broken_plug_in:wrong
half = broken_plug_in:half
gone = broken_plug_in:gone
absent = broken_plug_in_of_nobody:gone
[opscope.kinds]
category = broken_plug_in:CATEGORY
number = broken_plug_in:raises
[opscope.exporters]
divides = broken_plug_in:Writes
text = broken_plug_in:Text
function = broken_plug_in:raises
missing = broken_plug_in:Missing
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which pip built and installed the example of the documents."""
    pytest.importorskip("setuptools")  # builds it; nothing is downloaded
    place = tmp_path_factory.mktemp("plug-in")
    shutil.copytree(EXAMPLE, place / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", place / "site", place / "source"], check=True)
    return place / "site"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose every plug-in fails in its own way."""
    site = tmp_path_factory.mktemp("broken")
    information = site / "broken_plug_in-2.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plug-in\nVersion: 2.0\n")
    (information / "entry_points.txt").write_text(POINTS)
    (site / "broken_plug_in.py").write_text(dedent(BROKEN))
    return site


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace with an operator that opscope does not know."""
    path = tmp_path / "trace.etdump"
    path.write_bytes(etdump(TRACE, repeat=4))
    return path


def opscope(*words: str | Path, sites: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A command where packages are installed."""
    path = os.pathsep.join(filter(None, [*map(str, sites), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "opscope", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def analysis(trace: Path, *sites: Path) -> dict[str, Any]:
    """The analysis of a trace where packages are installed."""
    done = opscope("analyze", trace, "--warmup", "0", "--json", "-", sites=sites)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_installed_plug_in_adds_a_rule_a_kind_and_a_format(trace: Path, example: Path) -> None:
    """Name each after its package; the split adds up as before, and without it operator and format are unknown."""
    found = analysis(trace, example)
    (told,) = [one for one in found["findings"] if one["rule"] == "opscope-example:short_operators"]
    assert told["title"] == "2 operators take less than 50 us each"
    assert told["saving_ns"] == pytest.approx(38_000)
    (rope,) = [one for one in found["operators"] if one["kind"] == "opscope-example:rope"]
    assert (rope["name"], rope["category"]) == ("native_call_fused_rope.out", "Elementwise")
    assert sum(one["time_ns"] for one in found["categories"]) == pytest.approx(found["headline_ns"])
    words = ("convert", trace, "--to", "lines", "--warmup", "0")
    done = opscope(*words, sites=(example,))
    assert done.returncode == 0, done.stderr
    lines = trace.with_name("trace.lines.txt").read_text().splitlines()
    assert len(lines) == len(found["operators"])
    assert any(line.split("\t")[1:] == ["190000", "native_call_fused_rope.out"] for line in lines)
    (rope,) = [one for one in analysis(trace)["operators"] if "rope" in one["name"]]
    assert (rope["kind"], rope["category"]) == ("unknown", "Other")
    done = opscope(*words)
    assert (done.returncode, "unknown format 'lines'" in done.stderr) == (2, True)


def test_a_plug_in_that_fails_is_told_by_its_name_and_nothing_else_is_lost(trace: Path, broken: Path) -> None:
    """Rules were not checked, kinds are warned of, and all other parts are those without it."""
    found, plain = analysis(trace, broken), analysis(trace)
    own = {one["rule"]: one["title"] for one in found["ruled_out"] if one["rule"].startswith("broken-plug-in:")}
    said = {name.partition(":")[2]: title for name, title in own.items()}
    assert set(said) == {"raises", "wrong", "half", "gone", "absent"}
    for name, words in {
        "raises": "the plug-in broken-plug-in:raises (broken_plug_in:raises) failed: RuntimeError: planted",
        "gone": "cannot be loaded: AttributeError",
        "absent": "cannot be loaded: ModuleNotFoundError",
        "wrong": "failed: ValidationError",
        "half": "failed: ValidationError",
    }.items():
        assert words in said[name]
    warned = [one["message"] for one in found["trace"]["warnings"] if one["code"] == "plug_in"]
    assert ["category" in warned[0], "number" in warned[1], len(warned)] == [True, True, 2]
    found["ruled_out"] = [one for one in found["ruled_out"] if one["rule"] not in own]
    found["trace"]["warnings"] = [one for one in found["trace"]["warnings"] if one["code"] != "plug_in"]
    assert found == plain


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("divides", "broken-plug-in:divides (broken_plug_in:Writes) failed: ZeroDivisionError"),
        ("text", "returned str, not bytes"),
        ("function", "is not an exporter: it needs a suffix and export(results)"),
        ("missing", "cannot be loaded: AttributeError"),
    ],
)
def test_a_format_that_fails_is_told_by_its_name(trace: Path, broken: Path, name: str, words: str) -> None:
    """And writes nothing; the formats of opscope are unaffected."""
    done = opscope("convert", trace, "--to", name, sites=(broken,))
    assert (done.returncode, words in done.stderr) == (5, True), done.stderr
    assert [file.name for file in trace.parent.iterdir()] == ["trace.etdump"]
    csv = opscope("convert", trace, "--to", "csv", sites=(broken,))
    assert csv.returncode == 0, csv.stderr


def test_a_bundle_is_validated_where_the_plug_in_is_missing(tmp_path: Path, example: Path) -> None:
    """What it added cannot be derived again there: that is said, and is no fault of the bundle."""
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLE, bundle)
    assert opscope("report", bundle, sites=(example,)).returncode == 0
    assert "operators take less than 50 us each" in (bundle / "report.md").read_text()
    there = opscope("validate", bundle, "--json", "-", sites=(example,))
    here = opscope("validate", bundle, "--json", "-")
    there_checks, here_checks = (
        {one["name"]: one for one in json.loads(done.stdout)["checks"]} for done in (there, here)
    )
    changed = [name for name, one in here_checks.items() if one != there_checks[name]]
    assert len(changed) == 3
    for name in changed:
        assert here_checks[name]["status"] == "skipped", here_checks[name]
        assert "plug-ins that are not used here: opscope-example" in json.dumps(here_checks[name])
    assert not any(one["status"] == "failed" for one in here_checks.values())


def test_nothing_is_looked_up_where_no_package_names_a_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The standard library's way takes as long as an analysis of a small trace."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setitem(sys.modules, "importlib.metadata", None)
    assert plug_ins("opscope.rules") == ()
