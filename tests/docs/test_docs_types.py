"""Every Python example of the documents is clean under ``mypy --strict``, and checkers see the types of results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from documents import ROOT, blocks, documents

REFERENCE = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
CONFIG = """
[mypy]
strict = true
# Networks subclass torch's Module, which is not read; see below.
disallow_subclassing_any = false
python_version = 3.10
mypy_path = {sources}
follow_imports = silent

# Not read: they are extras, and PyTorch alone would take longer than everything else. So its classes have any type.
[mypy-torch.*,executorch.*,torchao.*,transformers.*,deltalake.*,duckdb.*,obstore.*,distributed.*,dask.*,fsspec.*]
follow_imports = skip
ignore_missing_imports = true

# The reader's own modules, whose names begin with my_.
[mypy-{own}]
ignore_missing_imports = true
"""
INSTALLED = """
[mypy]
follow_imports = silent

[mypy-torch.*]
follow_imports = skip
ignore_missing_imports = true
"""
USE = """
from typing_extensions import assert_type

import altair as alt
import opscope
import polars as pl

analysis = opscope.analyze("out")
change = opscope.compare("out#baseline", "out#accelerated")
history = opscope.stored_history("latency", "runs")
assert_type(opscope.read("trace.etdump"), opscope.EventsResult)
assert_type(analysis, opscope.AnalysisResult)
assert_type(change, opscope.ComparisonResult)
assert_type(opscope.compare_tiles("a", "b"), opscope.TilesComparisonResult)
assert_type(opscope.check("new", "old"), opscope.GateResult)
assert_type(opscope.check_tiles("new", "old"), opscope.TilesGateResult)
assert_type(opscope.check_history("new", "store:"), opscope.GateResult)
assert_type(history, opscope.HistoryResult)
assert_type(opscope.query_store("SELECT model FROM runs").to_polars(), pl.DataFrame)
assert_type([entry.bundle for entry in opscope.store_entries("runs")], list[str])
assert_type(analysis.plot(), alt.Chart)
assert_type(change.plot(), alt.LayerChart)
assert_type(history.plot(), alt.VConcatChart)
"""
WRONG = """
import opscope

opscope.comapre("a", "b")
opscope.compare("a", "b").stalls
opscope.stored_history("latency", stroe="runs")
"""


def examples() -> dict[str, str]:
    """Name of a module and its text, for every block of Python and every example of the API's reference."""
    found = {}
    for page in documents():
        for block in blocks(page):
            if block.language == "python":
                found[_module(page, block.line)] = block.text
    for page in REFERENCE:
        for block in blocks(page):
            if block.language == "pycon":
                lines = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", block.text, re.MULTILINE)
                found[_module(page, block.line)] = "\n".join([*lines, ""])
    return found


def _module(page: Path, line: int) -> str:
    name = page.relative_to(ROOT).with_suffix("").as_posix()
    return f"{re.sub(r'[^a-z0-9]', '_', name.lower())}_line_{line}"


def complaints(place: Path, texts: dict[str, str]) -> list[str]:
    """What mypy says of some modules, a line each."""
    for name, text in texts.items():
        (place / f"{name}.py").write_text(text, encoding="utf-8")
    own = sorted(set(re.findall(r"^from (my_\w+) import", "\n".join(texts.values()), re.MULTILINE))) or ["my_own"]
    config = CONFIG.format(sources=ROOT / "src", own=",".join(own))
    (place / "mypy.ini").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary"]
    kept = ROOT / ".mypy_cache" / "examples"
    done = subprocess.run(
        [*command, "--cache-dir", str(kept), *(f"{name}.py" for name in texts)],
        cwd=place,
        env={name: value for name, value in os.environ.items() if name not in {"MYPYPATH", "PYTHONPATH"}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_every_example_is_clean_under_strict_mypy(tmp_path: Path) -> None:
    """All in one go. The name of a file in a message is the page and the line where the block begins."""
    found = examples()
    assert len(found) > 20
    assert any(name.startswith("docs_reference_api_functions") for name in found)
    assert complaints(tmp_path, found) == []


def test_the_package_tells_a_checker_what_it_gives(tmp_path: Path) -> None:
    """No union to take apart, no ``Any``; a misspelt name or a field of another result is an error."""
    assert complaints(tmp_path, {"use": USE}) == []
    told = [line.split(": ", 2)[2] for line in complaints(tmp_path, {"wrong": WRONG})]
    codes = [re.findall(r"\[([a-z-]+)\]$", line)[0] for line in told if re.search(r"\]$", line)]
    assert codes == ["attr-defined", "attr-defined", "call-arg"]


def test_the_package_says_that_it_has_types() -> None:
    """A checker reads an installed package only with this file."""
    assert (ROOT / "src" / "opscope" / "py.typed").is_file()


@pytest.mark.nightly
def test_the_ten_tasks_of_a_notebook_are_a_typed_script(tmp_path: Path) -> None:
    """As its user would check it: with the package as it is installed, and no path to its sources."""
    page = ROOT / "docs" / "how-to" / "use-the-python-api.md"
    begins = page.read_text(encoding="utf-8").partition("## Ten tasks")[0].count("\n")
    tasks = [block.text for block in blocks(page) if block.language == "python" and block.line > begins]
    assert len(tasks) == 10
    # Names are those of one task: each is the body of a function, as cells of a notebook may be run in any order.
    lines = [f"def task_{number}() -> None:\n{indent(text, '    ')}" for number, text in enumerate(tasks, 1)]
    (tmp_path / "tasks.py").write_text("\n\n".join(lines), encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(INSTALLED, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", "--no-error-summary", "tasks.py"]
    kept = ROOT / ".mypy_cache" / "installed"
    environment = {name: value for name, value in os.environ.items() if name not in {"MYPYPATH", "PYTHONPATH"}}
    done = subprocess.run(
        [*command, "--cache-dir", str(kept)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_both_names_of_the_package_have_the_same_names() -> None:
    """`opscope` and `opscope.api`, also where a notebook completes them; the version is of the package alone."""
    import opscope
    from opscope import api

    assert set(opscope.__all__) == {*api.__all__, "__version__"}
    assert dir(opscope) == sorted({*dir(api), "__version__"})
    assert all(getattr(opscope, name) is getattr(api, name) for name in api.__all__)
