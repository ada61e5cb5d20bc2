"""What commands must not load: torch, executorch and pandas stay out of everything that reads and reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.cli.main import COMMANDS
from opscope.core.install import install_command
from programs import write_tiny_program

HEAVY = ("torch", "executorch", "pandas")
LIGHT = ("polars", "altair", "numpy")
DRAWN = ("opscope.reports", "rich", "jinja2", "polars", "altair")
ELSEWHERE = ("opscope.bundle", "opscope.kit", "opscope.npu", "opscope.hosts", "opscope.experiment")
ATTRIBUTED = (
    "opscope.program.xnnpack",
    "opscope.program.structure",
    "opscope.program.cost.cost",
    "opscope.program.partition.sme_rules",
    "opscope.program.partition.partition_reasons",
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle."""
    directory = tmp_path_factory.mktemp("contract")
    program = write_tiny_program(directory)
    profile(
        str(program), settings=Settings(rounds=2, runs=2), out=directory / "out", target=FakeTarget(), clock=FakeClock()
    )
    return directory / "out"


def loaded_by(*arguments: str, code: str = "") -> set[str]:
    """Top-level modules in a fresh process after a command."""
    return {name.partition(".")[0] for name in modules_loaded_by(*arguments, code=code)}


def modules_loaded_by(*arguments: str, code: str = "") -> set[str]:
    """All modules in a fresh process after a command."""
    script = code or (
        "import sys\n"
        f"sys.argv = ['opscope', *{list(arguments)!r}]\n"
        "from opscope.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    )
    script += "\nimport sys\nprint('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.strip().splitlines()[-1].split()[1:])


def test_import_opscope_loads_nothing_heavy() -> None:
    """Not even the tables: the import costs nothing until something is asked."""
    assert not loaded_by(code="import opscope").intersection(HEAVY + LIGHT)


@pytest.mark.parametrize("command", [["--help"], ["profile", "--help"], ["models"], ["--version"]])
def test_help_loads_no_table_and_no_picture(command: list[str]) -> None:
    """Help answers at once."""
    assert not loaded_by(*command).intersection(HEAVY + LIGHT)


@pytest.mark.parametrize("command", ["analyze", "models", "store"])
def test_only_the_command_that_is_asked_for_is_imported(command: str) -> None:
    """The others, with their options, are left out."""
    modules = {f"opscope.cli.{name.replace('-', '_')}" for name in COMMANDS}
    assert modules_loaded_by(command, "--help") & modules == {f"opscope.cli.{command}"}


def test_analysing_a_trace_imports_only_what_that_takes(bundle: Path) -> None:
    """As JSON: no renderer; of a trace alone: neither bundles nor the rules by which a program is attributed."""
    trace = bundle / "variants/baseline/round-00/trace.etdump.zst"
    loaded = modules_loaded_by("analyze", str(trace), "--json", str(bundle.parent / "analysis.json"), "--quiet")
    assert "opscope.analysis.analysis" in loaded
    assert not loaded.intersection(DRAWN + ELSEWHERE + ATTRIBUTED)


def test_analysing_from_python_imports_no_renderer(bundle: Path) -> None:
    """The result draws itself only when a notebook asks."""
    trace = bundle / "variants/baseline/round-00/trace.etdump.zst"
    assert not modules_loaded_by(code=f"import opscope\nopscope.analyze({str(trace)!r})").intersection(DRAWN)


@pytest.mark.parametrize(
    "command",
    [
        ["analyze", "{bundle}"],
        ["analyze", "{trace}", "--json", "-"],
        ["compare", "{bundle}#baseline", "{bundle}#accelerated"],
        ["report", "{bundle}"],
        ["convert", "{trace}", "--to", "perfetto", "--out", "-"],
        ["store", "add", "{bundle}", "--store", "{bundle}-store"],
        ["store", "query", "SELECT * FROM runs", "--store", "{bundle}-store"],
    ],
)
def test_reading_and_reporting_need_no_runtime(command: list[str], bundle: Path) -> None:
    """Neither torch nor executorch nor pandas, although they are installed here."""
    trace = bundle / "variants/baseline/round-00/trace.etdump.zst"
    arguments = [word.format(bundle=bundle, trace=trace) for word in command]
    assert not loaded_by(*arguments).intersection(HEAVY)


@pytest.mark.runtime
def test_asking_for_features_keeps_the_runtime_out_of_this_process() -> None:
    """The runtime's libraries are loaded in their own process."""
    assert not loaded_by("doctor", "--features").intersection(HEAVY)


def test_without_executorch_the_extra_to_install_is_named(tmp_path: Path) -> None:
    """In an environment where executorch cannot be found, profiling says exactly what to type."""
    script = (
        "import sys, importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('torch', 'executorch') else real(name, *a)\n"
        f"sys.argv = ['opscope', 'profile', 'toy_cnn', '--out', {str(tmp_path / 'out')!r}]\n"
        "from opscope.cli.main import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert install_command("executorch") in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
