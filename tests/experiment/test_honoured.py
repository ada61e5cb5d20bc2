"""Every runner over every setting of a job: it is honoured, or refused before anything runs."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.manifest import PlannedInput, Target, Variant
from opscope.bundle.settings import ExperimentSettings, options_of
from opscope.core.errors import UsageError
from opscope.experiment.protocol import AS_IT_IS, SETTINGS_OF_A_JOB, Job
from opscope.experiment.target import RunTarget
from opscope.hosts.host import ProcessSettings
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from opscope.runtimes.executorch.runners.native import NativeTarget
from opscope.runtimes.executorch.runners.python import PythonTarget
from opscope.runtimes.litert.native import NativeLitertTarget
from opscope.runtimes.litert.target import MODULES as INTERPRETER
from opscope.runtimes.litert.target import MODULES as LITERT
from opscope.runtimes.onnxruntime.target import MODULES as ONNXRUNTIME
from opscope.runtimes.onnxruntime.target import NativeOnnxTarget
from programs import tiny_program

PLAIN = Job("tiny.pte", AS_IT_IS, 10, 0, 60.0)
SET = {
    "affinity": (0,),
    "calls": ("forward",),
    "inputs": (PlannedInput([1], "float32"),),
    "values": "inputs.npz",
    "data": "weights.ptd",
    "delegate": "none",
    "options": {"execution_mode": "parallel"},
}
EXECUTORCH, PACKAGE = "opscope.runtimes.executorch.runners", "opscope.runtimes.package_target"
FRAME = "opscope.runtimes.native.jobs"
CHILDREN = [PACKAGE, "opscope.runtimes.child"]
RUNNERS = {
    "executorch from Python": (PythonTarget.honours, [f"{EXECUTORCH}.python", f"{EXECUTORCH}.child", *CHILDREN]),
    "executorch native": (NativeTarget.honours, [f"{EXECUTORCH}.native", FRAME]),
    "executor_runner": (ExecutorRunnerTarget.honours, [f"{EXECUTORCH}.executor_runner"]),
    "litert from Python": (LITERT.honours, [LITERT.child, *CHILDREN]),
    "litert's Interpreter": (INTERPRETER.honours, [INTERPRETER.child, *CHILDREN]),
    "litert native": (NativeLitertTarget.honours, ["opscope.runtimes.litert.native", FRAME]),
    "onnxruntime from Python": (ONNXRUNTIME.honours, [ONNXRUNTIME.child, *CHILDREN]),
    "onnxruntime native": (NativeOnnxTarget.honours, ["opscope.runtimes.onnxruntime.target", FRAME]),
}
ALONE = {(f"onnxruntime {way}", name) for way in ("from Python", "native") for name in ("calls", "data")}
"""A .onnx has one graph, which is called whatever its name, and the library finds its weights beside it."""


def read_of_jobs(modules: list[str]) -> set[str]:
    """Fields that modules read of a job or of the request that its process gets."""
    names = set()
    for module in modules:
        tree = ast.parse(Path(str(import_module(module).__file__)).read_text())
        reads = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        jobs = {"job", "request.job", "self._job"}
        of_jobs = {"request", *jobs, *(f"{job}.variant" for job in jobs)}
        names |= {node.attr for node in reads if ast.unparse(node.value) in of_jobs}
    return names


@pytest.mark.parametrize("name", SETTINGS_OF_A_JOB)
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_setting_is_read_or_refused(runner: str, name: str) -> None:
    """What a runner declares, its code reads; what it does not, nothing of it does, and it is refused by its option."""
    honoured, modules = RUNNERS[runner]
    if (runner, name) not in ALONE:
        assert (name in read_of_jobs(modules)) is (name in honoured)
    target = FakeTarget()
    target.honours = honoured
    if name in Job.__struct_fields__:
        job = msgspec.structs.replace(PLAIN, **{name: SET[name]})
    else:
        job = msgspec.structs.replace(PLAIN, variant=msgspec.structs.replace(AS_IT_IS, **{name: SET[name]}))
    if name in honoured:
        target.check_honoured(job)
    else:
        setting = SETTINGS_OF_A_JOB[name]
        word = options_of(ExperimentSettings)[setting].named(setting)
        with pytest.raises(UsageError, match=f"does not support {word}$"):
            target.check_honoured(job)


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_passes_on_what_hosts_give_a_process(runner: str) -> None:
    """A further setting of processes is a field of ProcessSettings, of which no runner knows the name."""
    assert "process" in read_of_jobs(RUNNERS[runner][1])


def test_a_setting_of_processes_is_one_of_experiments() -> None:
    """By name, type and usual value."""
    settings = {field.name: field for field in msgspec.structs.fields(ExperimentSettings)}
    for field in msgspec.structs.fields(ProcessSettings):
        assert field.default == settings[field.name].default
        asked = ExperimentSettings(**{field.name: 7})
        assert getattr(ProcessSettings.of(asked), field.name) == 7


def test_all_settings_with_a_usual_value_are_known() -> None:
    """A new field of a job is declared by each runner, or is one that any runner needs."""
    # who counts is said by Capabilities.backend; the runtime is who runs it
    needed = {"traced", "warmup", "switch", "counter", "process", "runtime"}
    fields = (*msgspec.structs.fields(Job), *msgspec.structs.fields(Variant))
    usual = {field.name for field in fields if not field.required}
    assert usual == set(SETTINGS_OF_A_JOB) | needed
    assert SET.keys() == SETTINGS_OF_A_JOB.keys()


def test_every_runner_is_here() -> None:
    """Those of the product that run jobs themselves."""
    kept = {PythonTarget, NativeTarget, ExecutorRunnerTarget, NativeLitertTarget, NativeOnnxTarget}
    declared = {one for one in _below(RunTarget) if "honours" in vars(one) and one.__module__.startswith("opscope.")}
    assert declared == kept


def _below(kind: type) -> set[type]:
    return {kind, *(one for child in kind.__subclasses__() for one in _below(child))}


class Forgetful(FakeTarget):
    """Keeps no process on chosen CPUs."""

    honours = frozenset(SETTINGS_OF_A_JOB) - {"affinity"}

    def describe(self) -> Target:
        """As a kind of its own."""
        return Target("forgetful", "")


def test_nothing_is_run_nor_written(tmp_path: Path) -> None:
    """What is refused is refused before a bundle is made."""
    target = Forgetful(clock=FakeClock())
    program, out = tmp_path / "tiny.pte", tmp_path / "out"
    program.write_bytes(tiny_program())
    with pytest.raises(UsageError, match="does not support --affinity"):
        profile(program, out=out, settings=Settings(rounds=2, affinity=(0,)), target=target)
    assert target.jobs == []
    assert not out.exists()
