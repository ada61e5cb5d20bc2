"""Other releases of LiteRT, through their Interpreters: timed, and split into operators, with the delegate and without.

Each is installed beside the packages of these tests, and found before the one that is theirs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import requires
from pathlib import Path

import pytest

import opscope
from foreign_wheels import installed
from installed import needs_litert
from opscope.api import analyze
from opscope.bundle.bundle import Bundle
from opscope.bundle.manifest import TracingMode
from opscope.workflows.validate.validation import validate

pytestmark = [
    needs_litert,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="its wheels are those of Python 3.11"),
    pytest.mark.nightly,  # downloads 500 MB
]
MODELS = Path(__file__).parents[2] / "data" / "litert"
RELEASES = ["1.0.1", "1.1.2", "1.2.0", "1.3.0", "1.4.0", "2.0.2", "2.1.0", "2.2.0"]
_OLD_NUMPY = "numpy==1.26.4"
"""What the wheel of 1.0 was built for."""
_MAIN = "import sys; from opscope.cli.main import main; sys.exit(main())"


def profiled(places: Sequence[Path], model: str, out: Path, python: str = sys.executable) -> None:
    """Profile a model with the release that lies in a directory, with the delegate and without."""
    words = ["profile", str(MODELS / f"{model}.tflite"), "--delegate", "both", "--rounds", "2", "--runs", "3"]
    words += ["--warmup", "1", "--lock", "warn", "--no-ceilings", "--out", str(out)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [python, "-c", _MAIN, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_another_release_is_timed_and_split(release: str, tmp_path: Path) -> None:
    """Both variants, the same outputs, operators of both kinds; the report says which way it took."""
    numpy = [_OLD_NUMPY] if release.startswith("1.0") else []
    place = installed([f"ai-edge-litert=={release}", *numpy], tmp_path / "release")
    for model in ("partial", "stateful"):
        profiled([place], model, tmp_path / model)
        check_both(tmp_path / model, {"ai-edge-litert": release})


def check_both(out: Path, versions: dict[str, str]) -> None:
    """Both variants were timed and split, by this release."""
    manifest = Bundle.open(out).manifest
    assert versions.items() <= manifest.environment.versions.items()
    assert "LiteRT's Interpreter ran it from Python" in str(manifest.left_out.runner)
    assert not manifest.failures()
    for variant in ("accelerated", "baseline"):
        assert manifest.completed(variant, TracingMode.TIMED)
        found = {one.backend for one in analyze(f"{out}#{variant}").operators}
        assert ("XNNPACK" in found) is (variant == "accelerated")
        assert "portable" in found
    assert validate(out).valid


def test_tflite_runtime_is_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """Where no ai-edge-litert is: in an environment with nothing else than what opscope needs."""
    needed = [one for one in requires("opscope") or () if "extra ==" not in one]
    place = installed(["tflite-runtime==2.14.0", _OLD_NUMPY, *needed], tmp_path / "release", whole=True)
    venv.create(tmp_path / "venv")
    sources = Path(opscope.__file__).parents[1]
    profiled([place, sources], "partial", tmp_path / "out", str(tmp_path / "venv" / "bin" / "python"))
    check_both(tmp_path / "out", {"tflite-runtime": "2.14.0"})
