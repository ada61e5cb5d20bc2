"""Files are written, replaced and removed by ``opscope.core.writing`` and ``opscope.core.outputs`` alone.

Nothing else can replace a device, leave half a file, or delete what opscope did not make. ``opscope.core.writing`` does
not ask whether something may be lost, so each module that imports it is listed with the place that it writes to.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "opscope"
SCRATCH = "a temporary directory of its own, or a place that comes into being with its last step"
OTHERS = {
    "core/writing.py": "the writer",
    "core/outputs.py": "hashes of outputs that bear no mark, a line each, in the cache",
    "core/system/cache.py": "the hash of an entry, before both come to their places",
    "core/system/capped_log.py": "the log of an attempt, written while its process runs",
    "core/system/launch.py": "a file descriptor's report, in a temporary directory",
    "bundle/bundle.py": "the lock, and copies into a new bundle, which is removed when one fails",
    "cli/main.py": "the text of a help, in memory; standard output after its reader ended",
    "hosts/adb/device.py": "the log of an attempt, written by its process until then",
    "hosts/ssh.py": SCRATCH,
    "runtimes/executorch/etrecord.py": "an archive in memory",
    "runtimes/executorch/export/child.py": "the pipe to the process that asked",
    "runtimes/executorch/export/models/llama.py": SCRATCH,
    "runtimes/executorch/export/process.py": SCRATCH,
    "runtimes/executorch/runners/executor_runner.py": SCRATCH,
    "runtimes/executorch/runners/python.py": SCRATCH,
    "runtimes/counting/emulated.py": "a pipe in a temporary directory, held open until the emulator comes",
    "runtimes/counting/kernel_counter.py": SCRATCH,
    "runtimes/executorch/runners/native.py": SCRATCH,
    "runtimes/litert/native.py": SCRATCH,
    "runtimes/onnxruntime/target.py": SCRATCH,
    "runtimes/native/wheel_runner.py": SCRATCH,
    "runtimes/package_target.py": SCRATCH,
    "workflows/measure/counting.py": SCRATCH,
    "workflows/measure/parallel/remote_experiments.py": SCRATCH,
}
"""Modules that write without the writer, and where to."""
ATTEMPT = "what a run left in the directory of its attempt, which is new for each"
REMOVERS = {
    "core/writing.py": "the writer",
    "core/system/cache.py": "an entry of the cache comes to its place in one step, and goes when nobody uses it",
    "bundle/bundle.py": "the space held back in the bundle; a new bundle that cannot be written whole",
    "experiment/engine.py": ATTEMPT,
    "hosts/adb/device.py": ATTEMPT,
    "hosts/ssh.py": SCRATCH,
    "hosts/this_machine.py": ATTEMPT,
    "machine/ceilings/cache.py": "an entry of the cache",
    "machine/switch/switch.py": ATTEMPT,
    "runtimes/executorch/export/lower.py": "a record that failed half-way, in the directory of the export",
    "runtimes/executorch/export/process.py": SCRATCH,
    "runtimes/executorch/runners/executor_runner.py": ATTEMPT,
    "runtimes/native/start.py": ATTEMPT,
    "runtimes/onnxruntime/child.py": ATTEMPT,
    "runtimes/package_target.py": ATTEMPT,
    "runtimes/switching.py": ATTEMPT,
    "runtimes/executorch/export/checked.py": "outputs that an export wrote, once they are compared",
    "readers/compressed.py": "a trace beside which its compressed content was written",
    "workflows/tune/tuning.py": "the empty search bundle that a replay has just created in its new directory",
    "workflows/exporting.py": "an export whose files all are as its record says, and its own scratch directory",
}
"""Modules that remove or rename files, and which."""
ANSWER = "the answer or the trace of a child process, in the directory of its attempt"
EXPORTED = "the new directory of an export"
COPY = "a copy of a program in a temporary directory"
USERS_OF_THE_WRITER = {
    "bundle/bundle.py": "the bundle",
    "core/outputs.py": "outputs that a user named, once it has asked",
    "machine/ceilings/cache.py": "the cache",
    "machine/switch/switch.py": "the directory of an attempt",
    "readers/compressed.py": "a compressed trace beside the trace, in the directory of an attempt",
    "runtimes/child.py": ANSWER,
    "runtimes/executorch/export/checked.py": EXPORTED,
    "runtimes/executorch/export/child.py": EXPORTED,
    "runtimes/executorch/export/lower.py": EXPORTED,
    "runtimes/executorch/export/registry.py": "a new model file, never one that exists",
    "runtimes/executorch/program_files.py": "the bundle's copy of a program",
    "runtimes/executorch/runners/child.py": ANSWER,
    "runtimes/executorch/runners/executor_runner.py": ANSWER,
    "runtimes/executorch/runtime.py": COPY,
    "runtimes/litert/child.py": ANSWER,
    "runtimes/litert/native.py": ANSWER,
    "runtimes/native/jobs.py": "a directory of the job that is removed at its end",
    "runtimes/onnxruntime/child.py": ANSWER,
    "runtimes/onnxruntime/target.py": ANSWER,
    "runtimes/openvino/child.py": ANSWER,
    "workflows/bisect/bisecting.py": "the directory of a bisection",
    "workflows/bisect/releases.py": "environments in the cache",
    "workflows/github.py": "a new workflow file, never one that exists",
    "workflows/kernel_view.py": "evidence of the bundle",
    "workflows/measure/experiments.py": "the bundle",
    "workflows/measure/parallel/remote_experiments.py": "the directory of a worker",
    "workflows/measure/program_inputs.py": "a temporary directory",
    "workflows/measure/running.py": "a new configuration, never one that exists",
}
"""Modules that write without asking, and where to."""
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
REMOVALS = {"rmtree", "unlink", "rmdir", "removedirs", "rename"}


def writes(source: str) -> list[int]:
    """Lines of a module that write a file, or open one for writing."""
    calls = _calls(source)
    return [call.lineno for call in calls if _name(call) in WRITERS or (_name(call) in OPENERS and _for_writing(call))]


def removes(source: str) -> list[int]:
    """Lines of a module that remove or rename a file."""
    return [call.lineno for call in _calls(source) if _name(call) in REMOVALS or _replaces_a_file(call)]


def _calls(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _replaces_a_file(call: ast.Call) -> bool:
    """``path.replace(other)`` and ``os.remove(path)``; texts and structs take other arguments, a list has no ``os``."""
    if _name(call) == "replace":
        return len(call.args) == 1 and not call.keywords
    of = getattr(call.func, "value", None)
    return _name(call) == "remove" and isinstance(of, ast.Name) and of.id == "os"


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


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("shutil.rmtree(path)", True),
        ("path.unlink(missing_ok=True)", True),
        ("os.remove(path)", True),
        ("path.replace(other)", True),
        ("text.replace('a', 'b')", False),
        ("msgspec.structs.replace(value, a=1)", False),
        ("modules.remove(name)", False),
    ],
)
def test_what_counts_as_removing(source: str, found: bool) -> None:
    """Calls after which a file is not where it was."""
    assert bool(removes(source)) is found


@pytest.mark.parametrize(("finds", "others"), [(writes, OTHERS), (removes, REMOVERS)])
def test_every_other_module_goes_through_the_writer(finds: object, others: dict[str, str]) -> None:
    """Modules that need not are listed, each with its reason; one that no longer does so is not."""
    assert callable(finds)
    found = {
        path.relative_to(PACKAGE).as_posix(): finds(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")
    }
    lines = {name: lines for name, lines in found.items() if lines}
    assert {name: lines for name, lines in lines.items() if name not in others} == {}
    assert sorted(set(others) - set(lines)) == []


def test_every_user_of_the_writer_is_listed() -> None:
    """An option of a command that is written through a new module shows up here."""
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "opscope.core.writing"
    }
    assert users == set(USERS_OF_THE_WRITER)


@pytest.mark.parametrize("room", ["cli", "assistants", "api"])
def test_what_commands_import_does_not_write_without_asking(room: str) -> None:
    """No function that a command imports calls the writer itself, but for a file that must not exist yet."""
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opscope."):
                for name in (alias.name for alias in node.names if node.module != "opscope.core.outputs"):
                    called = _writers_called_by(str(node.module), name)
                    assert called <= {"create", "write_new"}, f"{path.name} imports {name}"


@functools.cache
def _writers_called_by(module: str, name: str) -> set[str]:
    """Return the functions of the writer that a function calls itself, by their local names."""
    file = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    if not file.exists():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "opscope.core.writing"
        for alias in node.names
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
    calls = (call for function in functions for call in ast.walk(function) if isinstance(call, ast.Call))
    return {_name(call) for call in calls} & imported
