"""Files are written, replaced and removed by ``opscope.core.files`` and ``opscope.core.outputs`` alone.

Nothing else can replace a device, leave half a file, or delete what opscope did not make.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "opscope"
SCRATCH = "a temporary directory of its own, or a place that comes into being with its last step"
OTHERS = {
    "core/files.py": "the writer",
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
    "runtimes/litert/ceilings.py": SCRATCH,
    "runtimes/package_target.py": SCRATCH,
    "workflows/measure/counting.py": SCRATCH,
    "workflows/measure/parallel/carried.py": SCRATCH,
    "workflows/measure/parallel/cluster.py": SCRATCH,
}
"""Modules that write without the writer, and where to."""
ATTEMPT = "what a run left in the directory of its attempt, which is new for each"
REMOVERS = {
    "core/files.py": "the writer",
    "core/system/cache.py": "an entry of the cache comes to its place in one step, and goes when nobody uses it",
    "bundle/bundle.py": "the space held back in the bundle; a new bundle that cannot be written whole",
    "experiment/engine.py": ATTEMPT,
    "fleet/store/place.py": "data files that the log of the store says were replaced",
    "hosts/adb/device.py": ATTEMPT,
    "hosts/ssh.py": SCRATCH,
    "hosts/this_machine.py": ATTEMPT,
    "machine/ceilings_cache.py": "an entry of the cache",
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
    "workflows/exporting.py": "an export whose files all are as its record says, and its own scratch directory",
}
"""Modules that remove or rename files, and which."""
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
