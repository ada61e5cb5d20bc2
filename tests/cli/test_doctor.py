"""``opscope doctor``: what prevents profiling, what only limits it, and what a program reads of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import jsonschema
import pytest

from opscope.core.errors import FeatureError, MissingDependencyError, NotReadyError, OpscopeError
from opscope.experiment.checks import State, switching_check
from opscope.experiment.protocol import ProbeAnswer
from texts import CXX_DOES_NOT_WORK

pytestmark = pytest.mark.runtime
DATA = Path(__file__).parents[1] / "data"
SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "schemas" / "doctor.schema.json"


def doctor(*words: str, **variables: str) -> tuple[int, dict]:
    """Exit code and JSON of ``opscope doctor --json -``, with these variables of the environment."""
    command = [sys.executable, "-m", "opscope", "doctor", *words, "--json", "-"]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, json.loads(done.stdout)


def test_a_machine_that_can_profile_is_ready_and_says_what_limits_it() -> None:
    """Find no problem here, whatever else runs; no action is to ask again.

    Without a compiler programs run by the Python bindings, only slower to start, which is a limit and no problem.
    """
    code, found = doctor(CXX="/nowhere/c++")
    jsonschema.validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert (code, found["ready"], found["target"]) == (0, True, None)
    checks = {check["name"]: check for check in found["checks"]}
    assert {checks[name]["state"] for name in ("python", "executorch", "torch")} == {"ok"}
    assert not [check for check in found["checks"] if "opscope doctor" in check["action"]]
    assert checks["runner"]["state"] == "note"
    assert f"the C++ compiler /nowhere/c++ {CXX_DOES_NOT_WORK}" in checks["runner"]["found"]


HIDING = """
import importlib.metadata as metadata
import importlib.util as util
spec, version = util.find_spec, metadata.version
hidden = {hidden!r}
def of(name):
    if name in hidden:
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = of
util.find_spec = lambda name, package=None: None if name in hidden else spec(name, package)
"""


def hiding(directory: Path, *names: str) -> dict[str, str]:
    """Variables of processes in which these packages are not installed."""
    (directory / "sitecustomize.py").write_text(HIDING.format(hidden=names))
    return {"PYTHONPATH": f"{directory}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def test_nothing_that_runs_programs_is_a_problem(tmp_path: Path) -> None:
    """Name both ways out where there is neither a compiler nor torch; `profile` says so before it runs anything."""
    variables = {"CXX": "/nowhere/c++", **hiding(tmp_path, "torch")}
    code, found = doctor(**variables)
    (runner,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert (code != 0, found["ready"], runner["name"]) == (True, False, "runner")
    program = DATA / "programs" / "toy_cnn-fp32-5234ad148c4c" / "toy_cnn_xnnpack_fp32.pte"
    command = [sys.executable, "-m", "opscope", "profile", str(program), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert done.returncode == MissingDependencyError.exit_code
    assert "torch is not installed" in done.stderr
    for text in (runner["action"], done.stderr):
        assert "C++17 compiler" in text
        assert "torch" in text
    exported = subprocess.run(
        [*command[:4], "toy_cnn"], capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    assert exported.returncode == MissingDependencyError.exit_code
    assert "torch is not installed" in exported.stderr
    assert "compiler" not in exported.stderr  # it would not help: a model is exported with torch


@pytest.mark.parametrize("broken", ["raise ImportError", "raise OSError('no such file: libmissing.so')"])
def test_a_runtime_that_cannot_be_imported_is_a_problem(broken: str, tmp_path: Path) -> None:
    """It is found and has a version; why it cannot be imported is said, and what the others are ready for."""
    found_there = tmp_path / "onnxruntime"
    (found_there / "capi").mkdir(parents=True)
    (found_there / "capi" / "onnxruntime_pybind11_state.so").touch()
    (found_there / "__init__.py").write_text(
        f"import sys\nprint('compiled for another numpy', file=sys.stderr)\n{broken}\n"
    )
    code, found = doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    checks = {check["name"]: check for check in found["checks"]}
    assert code == NotReadyError.exit_code
    assert checks["onnxruntime"]["state"] == "problem"
    told = "compiled for another numpy" if broken.endswith("ImportError") else "OSError: no such file: libmissing.so"
    assert checks["onnxruntime"]["found"].endswith(f"is installed but cannot be loaded: {told}")
    models = checks["models"]
    assert (models["state"], ".onnx" in models["found"]) == ("ok", False)
    assert ".pte (ExecuTorch)" in models["found"]


def test_other_runtimes_do_without_executorch(tmp_path: Path) -> None:
    """Be ready for the models of LiteRT and ONNX Runtime on a machine with these alone."""
    code, found = doctor(**hiding(tmp_path, "executorch", "torch"))
    checks = {check["name"]: check for check in found["checks"]}
    assert (code, found["ready"]) == (0, True)
    assert checks["executorch"]["state"] == "note"
    assert checks["models"]["found"] == "ready for .tflite (LiteRT), .onnx (ONNX Runtime), .xml (OpenVINO)"
    assert checks["acceleration switch"]["state"] in {"ok", "note"}


@pytest.mark.parametrize("name", ["onnx/open_sizes.onnx", "litert/tiny_fp32.tflite", "versions/executorch-1.5.1.pte"])
def test_what_a_model_needs(name: str) -> None:
    """Its runtime alone, its inputs as they can be given, and one inference that was run."""
    code, found = doctor(str(DATA / name))
    checks = {check["name"]: check for check in found["checks"]}
    assert (code, found["ready"]) == (0, True)
    assert len(checks.keys() & {"executorch", "litert", "onnxruntime"}) == 1
    assert checks["one inference"]["state"] == "ok"
    is_open = name.startswith("onnx")
    assert checks["inputs"]["state"] == ("note" if is_open else "ok")
    assert checks["inputs"]["action"].endswith("--input 'x=float32[1,8]'" if is_open else "")


def test_what_keeps_a_model_from_running(tmp_path: Path) -> None:
    """Name what installs a missing runtime, and repeat the words of a runtime that refuses a model."""
    code, found = doctor(str(DATA / "onnx" / "cnn.onnx"), **hiding(tmp_path, "onnxruntime"))
    (problem,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert (code, problem["name"]) == (NotReadyError.exit_code, "one inference")
    assert "[onnxruntime]" in problem["action"]
    strange = tmp_path / "strange.onnx"
    strange.write_bytes((DATA / "onnx" / "products.onnx").read_bytes().replace(b"Tanh", b"Tank"))
    code, found = doctor(str(strange))
    (problem,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert (code, "Tank" in problem["found"]) == (NotReadyError.exit_code, True)


@pytest.mark.parametrize(
    ("probe", "state", "found"),
    [
        (FeatureError("cpuinfo_isa has 99 bytes", hint="--ablate none"), State.NOTE, "not available: cpuinfo_isa has"),
        (MissingDependencyError("executorch is not installed", hint="pip"), State.PROBLEM, "executorch"),
        (None, State.NOTE, "this CPU has no feature to switch off"),
    ],
    ids=["unknown layout", "no package", "no feature"],
)
def test_a_switch_that_cannot_be_proved_is_a_limit(probe: OpscopeError | None, state: State, found: str) -> None:
    """Say what still works; a CPU without features is told apart, and a missing package is a problem."""
    check = switching_check(Mock(side_effect=probe, return_value=ProbeAnswer("x86_64", ["sse3"], 85, 85, {})))
    assert (check.state, found in check.found) == (state, True), check
    assert check.action == getattr(probe, "hint", "")
