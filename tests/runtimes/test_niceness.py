"""How far measured processes give way to others: every runner asks for it, and none drops it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from niceness import writes_down
from opscope.experiment.protocol import AS_IT_IS, Job
from opscope.experiment.target import RunTarget
from opscope.hosts.host import ProcessSettings
from opscope.runtimes.executorch.runners.executor_runner import ExecutorRunnerTarget
from opscope.runtimes.litert.target import litert_here
from opscope.runtimes.onnxruntime.target import onnxruntime_here
from programs import write_tiny_program
from runners import this_machine, write_runner


def _user_build(directory: Path) -> ExecutorRunnerTarget:
    runner = write_runner(directory)
    return ExecutorRunnerTarget(this_machine(runner), runner)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("opscope", _user_build),
        ("ai_edge_litert", lambda _: litert_here()),
        ("onnxruntime", lambda _: onnxruntime_here()),
    ],
    ids=["executor_runner", "litert", "onnxruntime"],
)
def test_a_process_gives_way_as_it_is_asked(
    package: str, make: Callable[[Path], RunTarget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By nice(1), whether it can run the program or not; those of ExecuTorch are in tests/experiment/test_target.py."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    program = write_tiny_program(tmp_path)
    told, target = writes_down(tmp_path, monkeypatch), make(tmp_path)
    for nice in (7, 0):
        place = tmp_path / str(nice)
        place.mkdir()
        target.execute(Job(str(program), AS_IT_IS, 1, 0, 60.0, process=ProcessSettings(nice)), place)
    assert told.read_text() == "-n 7\n"
