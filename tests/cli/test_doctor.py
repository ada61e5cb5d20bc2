"""``opscope doctor``: what prevents profiling, what only limits it, and what a program reads of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from opscope.core.errors import FeatureError, MissingDependencyError, NotReadyError
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
    """No problem here, whatever else runs; the document is the published one, and no action is to ask again."""
    code, found = doctor()
    jsonschema.validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert (code, found["ready"], found["target"]) == (0, True, None)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert {states[name] for name in ("python", "executorch", "torch")} == {"ok"}
    assert not [check for check in found["checks"] if "opscope doctor" in check["action"]]


def test_a_missing_compiler_is_a_limit_and_no_problem() -> None:
    """The Python bindings run programs, only slower to start."""
    code, found = doctor(CXX="/nowhere/c++")
    (runner,) = [check for check in found["checks"] if check["name"] == "runner"]
    assert (code, runner["state"]) == (0, "note")
    assert runner["found"].startswith(f"Python bindings: the C++ compiler /nowhere/c++ {CXX_DOES_NOT_WORK}")


def test_nothing_that_runs_programs_is_a_problem(tmp_path: Path) -> None:
    """Neither a compiler nor torch: not ready, with both ways out, and `profile` says so before it runs anything."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as util\n"
        "known = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'torch' else known(name, package)\n"
    )
    variables = {"CXX": "/nowhere/c++", "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    code, found = doctor(**variables)
    (runner,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert code != 0
    assert not found["ready"]
    assert (runner["name"], "C++17 compiler" in runner["action"], "torch" in runner["action"]) == ("runner", True, True)
    command = [sys.executable, "-m", "opscope", "profile", "toy_cnn", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert done.returncode == MissingDependencyError.exit_code
    assert "torch is not installed" in done.stderr
    assert "install a C++17 compiler" in done.stderr


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
    assert checks["models"]["state"] == "ok"
    assert ".pte (ExecuTorch)" in checks["models"]["found"]
    assert ".onnx" not in checks["models"]["found"]


def test_other_runtimes_do_without_executorch(tmp_path: Path) -> None:
    """A machine with LiteRT and ONNX Runtime alone is ready for their models."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "import importlib.util as util\n"
        "spec, version = util.find_spec, metadata.version\n"
        "hidden = {'executorch', 'torch'}\n"
        "def of(name):\n"
        "    if name in hidden:\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = of\n"
        "util.find_spec = lambda name, package=None: None if name in hidden else spec(name, package)\n"
    )
    code, found = doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
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
    """A runtime that is not installed, with what installs it; a model that its runtime refuses, in its words."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "spec = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'onnxruntime' else spec(name, package)\n"
    )
    python_path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    code, found = doctor(str(DATA / "onnx" / "cnn.onnx"), PYTHONPATH=python_path)
    (problem,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert (code, problem["name"]) == (NotReadyError.exit_code, "one inference")
    assert "[onnxruntime]" in problem["action"]
    strange = tmp_path / "strange.onnx"
    strange.write_bytes((DATA / "onnx" / "products.onnx").read_bytes().replace(b"Tanh", b"Tank"))
    code, found = doctor(str(strange))
    (problem,) = [check for check in found["checks"] if check["state"] == "problem"]
    assert (code, "Tank" in problem["found"]) == (NotReadyError.exit_code, True)


def test_a_switch_that_cannot_be_proved_is_a_limit() -> None:
    """It says what still works; a CPU without features is told apart; a missing package is a problem."""

    def refuse() -> ProbeAnswer:
        raise FeatureError("cpuinfo_isa has 99 bytes", hint="--ablate none")

    def lack() -> ProbeAnswer:
        raise MissingDependencyError("executorch is not installed", hint="pip")

    refused = switching_check(refuse)
    assert (refused.state, refused.found, refused.action) == (
        State.NOTE,
        "not available: cpuinfo_isa has 99 bytes",
        "--ablate none",
    )
    assert switching_check(lack).state is State.PROBLEM
    bare = switching_check(lambda: ProbeAnswer("x86_64", ["sse3"], 85, 85, {}))
    assert (bare.state, bare.found) == (State.NOTE, "this CPU has no feature to switch off")
