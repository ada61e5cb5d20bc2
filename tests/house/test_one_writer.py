"""Files are written by ``opscope.core.files`` alone: nothing else can replace a device or leave half a file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "opscope"
SCRATCH = "a temporary directory of its own, or a place that comes into being with its last step"
OTHERS = {
    "core/files.py": "the writer",
    "core/system/capped_log.py": "the log of an attempt, written while its process runs",
    "core/system/launch.py": "a file descriptor's report, in a temporary directory",
    "bundle/bundle.py": "the lock, and copies into a new bundle, which is removed when one fails",
    "cli/main.py": "standard output after its reader ended",
    "hosts/adb/device.py": "the log of an attempt, written by its process until then",
    "hosts/ssh.py": SCRATCH,
    "runtimes/executorch/etrecord/slim.py": "an archive in memory",
    "runtimes/executorch/export/child.py": "the pipe to the process that asked",
    "runtimes/executorch/export/models/llama.py": SCRATCH,
    "runtimes/executorch/export/process.py": SCRATCH,
    "runtimes/executorch/runners/executor_runner.py": SCRATCH,
    "runtimes/executorch/runners/interpreters.py": SCRATCH,
    "runtimes/executorch/runners/kernel_counter.py": SCRATCH,
    "runtimes/executorch/runners/native_answer.py": SCRATCH,
    "runtimes/executorch/runners/python.py": SCRATCH,
    "runtimes/litert/native/jobs.py": SCRATCH,
    "runtimes/native/wheels.py": SCRATCH,
    "runtimes/litert/peak_rates/child.py": SCRATCH,
    "runtimes/package_target.py": SCRATCH,
    "workflows/measure/parallel/cluster.py": SCRATCH,
}
"""Modules that write without the writer, and where to."""
WRITERS = {
    "write_text",
    "write_bytes",
    "copyfile",
    "copy2",
    "copytree",
    "move",
    "extractall",
    "extract",
    "sink_parquet",
}
OPENERS = {"open", "fdopen", "ZipFile", "TarFile", "NamedTemporaryFile"}
MODES = set("wax+")


def writes(source: str) -> list[int]:
    """Lines of a module that write a file, or open one for writing."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _name(call) in WRITERS or (_name(call) in OPENERS and _for_writing(call))]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _for_writing(call: ast.Call) -> bool:
    """Whether a mode of words or a flag of the system asks for it."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    flags = {node.attr for one in given for node in ast.walk(one) if isinstance(node, ast.Attribute)}
    return any(len(mode) <= 3 and set(mode) & MODES for mode in modes) or bool(flags & {"O_WRONLY", "O_RDWR"})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("Path(a).write_text(b)", True),
        ("path.open('wb')", True),
        ("open(path, mode='a')", True),
        ("os.open(path, os.O_RDWR | os.O_CREAT)", True),
        ("shutil.copyfile(a, b)", True),
        ("path.open()", False),
        ("path.open('rb', buffering=0)", False),
        ("os.open('.', os.O_RDONLY)", False),
        ("Bundle.open(path)", False),
    ],
)
def test_what_counts_as_writing(source: str, found: bool) -> None:
    """Calls that create or change a file; reading is free."""
    assert bool(writes(source)) is found


def test_every_other_module_goes_through_the_writer() -> None:
    """Modules that need not are listed, each with its reason; one that no longer writes is not."""
    found = {
        path.relative_to(PACKAGE).as_posix(): writes(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")
    }
    others = {name: lines for name, lines in found.items() if lines}
    assert {name: lines for name, lines in others.items() if name not in OTHERS} == {}
    assert sorted(set(OTHERS) - set(others)) == []
