"""Whole commands as targets of the fuzzer: a command and what is damaged, such as ``report-bundle-trace``.

Damaged traces, programs and files of bundles go through readers, rules, costs, reports and SQL, as a user's do. A
finding is an exit code that is not one of opscope's, a bug in a part of a result (``OPSCOPE_RAISE``), a file outside of
the output directory that was changed, or more time or memory than the size of the input allows.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from fuzz import aie_commands, aie_tiles, etdump_tree, onnx_program, targets
from fuzz.structure import FindingError
from opscope.core.errors import (
    EXIT_OK,
    InconclusiveError,
    OpscopeError,
    RegressionError,
    TraceFormatError,
    UntrustedError,
    kinds,
)
from opscope.runtimes.onnxruntime.graph import GRAPH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fuzz.structure import Structure

BUNDLE = targets.DATA / "bundles" / "with-ceilings"
_CODES = {EXIT_OK, *(kind.exit_code for kind in kinds() if kind is not OpscopeError)}
_DONE = {EXIT_OK, *(kind.exit_code for kind in (RegressionError, InconclusiveError, UntrustedError))}
"""Codes of commands that did their work to the end; a gate judges by them."""
_SECONDS = 3.0
_FRAME = re.compile(r'File ".*/opscope/([^"]+)", line (\d+)')
_RAISED = re.compile(r"[\w.]+(Error|Exception|Warning)\b")
_EVENTS = ("csv", "parquet", "perfetto", "kit-csv")
_SUMS = ("speedscope", "tables")
_TRACE, _PROGRAM = "variants/accelerated/round-00/trace.etdump", "model/toy_cnn_xnnpack_fp32.pte"
_RECORD = _PROGRAM.replace(".pte", ".etrecord")
_LITERT = targets.DATA / "litert"
_PROCESSES = 6


class Case(NamedTuple):
    """What is damaged, and the commands that are given it.

    Attributes:
        name: of the kind of input.
        file: as which it is written, within the directory of the commands.
        seeds: valid inputs.
        commands: by their names; several words of arguments, several commands behind ``&&``.
        tokens: pieces of the format.
        structure: see :class:`fuzz.targets.Target`.
    """

    name: str
    file: str
    seeds: Callable[[], list[bytes]]
    commands: dict[str, str]
    tokens: tuple[bytes, ...] = ()
    structure: Structure | None = None


class Commands:
    """Commands on one input, as a target of the fuzzer reads it.

    Args:
        file: as which it is written.
        commands: the arguments of each.
    """

    def __init__(self, file: str, commands: Sequence[Sequence[str]]) -> None:
        self._file = file
        self._commands = commands

    @cached_property
    def _place(self) -> Path:
        """A directory of its own with all that commands are given beside the input."""
        place = Path(tempfile.mkdtemp(dir=targets.scratch_directory()))
        for name in ("bundle", "good") if self._file.startswith("bundle/") else ():
            shutil.copytree(BUNDLE, place / name)
        for name, data in _given().items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(data)
        return place

    def __call__(self, data: bytes) -> None:
        """Run the commands.

        Raises:
            TraceFormatError: one of them refused.
            FindingError: one of them did what it must not do.
        """
        place = self._place
        shutil.rmtree(place / "out", ignore_errors=True)
        (place / self._file).write_bytes(data)
        if self._file.startswith("bundle/"):
            _state_hashes(place / "bundle", self._file.partition("/")[2])
        before = _tree(place)
        (place / "out").mkdir()
        code, said = EXIT_OK, ""
        try:
            for arguments in self._commands:
                code, said = run_command(place, arguments)
                if code not in _DONE:
                    break
        finally:
            shutil.rmtree(place / "out")
        if code not in _CODES:
            raise FindingError(_bug(code, said))
        changed = sorted({name for name, _ in before.items() ^ _tree(place).items()})
        if changed:
            raise FindingError(f"changed {', '.join(changed)}")
        if code not in _DONE:
            raise TraceFormatError(said.rpartition("error: ")[2].partition("\n")[0])


def _given() -> dict[str, bytes]:
    """Files beside the input: of another trace and what belongs to it, of each format."""
    run = onnx_program.nodes()
    traces = targets.etdump_traces()
    return {
        "foreign/thesis.txt": b"not ours\n",
        "good.etdump": (BUNDLE / _TRACE).read_bytes(),
        "good.pte": (BUNDLE / _PROGRAM).read_bytes(),
        "good.etrecord": (BUNDLE / _RECORD).read_bytes(),
        "good.tflite": (_LITERT / "partial.tflite").read_bytes(),
        "good.litert.json": (_LITERT / "partial.litert.json").read_bytes(),
        "good.json": onnx_program.profile(run),
        "good.onnx": onnx_program.onnx(run),
        GRAPH: onnx_program.session_graph(run),
        **{f"side/{number}.etdump": traces[1] for number in range(_PROCESSES)},
        **{f"other/{number}.etdump": traces[2] for number in range(_PROCESSES)},
        "run/m_on_t1.etdump": traces[0],
        "run/m_on_t1_latency.log": b"",
    }


def run_command(place: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run the command line in this process, in a directory; its exit code and what it said on standard error."""
    from opscope.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    environment = {"OPSCOPE_CACHE": str(place.parent / "cache"), "OPSCOPE_RAISE": "1"}
    back = Path.cwd()
    os.chdir(place)
    try:
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(sys, "argv", ["opscope", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main.main()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    finally:
        os.chdir(back)
    err.flush()
    return code, err.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined] # of a BytesIO


def _bug(code: int, said: str) -> str:
    """Exit code, kind of exception and the innermost line of opscope, without what differs between inputs."""
    frames = _FRAME.findall(said)
    raised = (line.partition(":")[0] for line in reversed(said.splitlines()) if _RAISED.match(line))
    kind = next(raised, "")
    return f"exit code {code}: {kind} at {':'.join(frames[-1]) if frames else 'an unknown place'}"


def _tree(place: Path) -> dict[str, str]:
    files = (path for path in place.rglob("*") if path.is_file() and path.relative_to(place).parts[0] != "out")
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _state_hashes(bundle: Path, file: str) -> None:
    """Let the manifest of a bundle state the hash of a file that was changed, so that it is read."""
    if file == "manifest.json":
        return
    manifest = json.loads((BUNDLE / "manifest.json").read_text("utf-8"))
    sha256 = hashlib.sha256((bundle / file).read_bytes()).hexdigest()
    if file == manifest["model"]["program"]:
        manifest["model"]["sha256"] = sha256
        manifest["model"]["size"] = (bundle / file).stat().st_size
    for repetition in manifest["repetitions"]:
        if repetition["trace"] and file in {repetition["trace"], f"{repetition['directory']}/{repetition['trace']}"}:
            repetition["trace_sha256"] = sha256
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def _bundle_file(file: str) -> Callable[[], list[bytes]]:
    return lambda: [(BUNDLE / file).read_bytes()]


def _converted(path: str, formats: Sequence[str]) -> str:
    return " && ".join(f"convert {path} --to {to} --out out/{to}" for to in formats)


def _of_trace(file: str, program: str | None = None) -> dict[str, str]:
    """The commands of a trace in a file, and of its program where there is one."""
    explored = (
        "" if program == "good.onnx" else f" && convert {file} --to model-explorer --program {program} --out out/m"
    )
    named = {
        "analyze-program": f"analyze {file} --program {program} --json out/a.json --csv out/csv",
        "convert-program": f"convert {file} --to speedscope --by module --program {program} --out out/s{explored}",
    }
    return {
        "analyze": f"analyze {file} --json out/a.json --csv out/csv",
        "compare": f"compare good.etdump {file} --json out/c.json",
        "check": f"check {file} --against good.etdump {_CHECKED}",
        "convert-events": _converted(file, _EVENTS),
        "convert-sums": _converted(file, _SUMS),
        **(named if program else {}),
    }


_CHECKED = "--json out/g.json --junit out/j.xml --markdown out/g.md --force"
_OF_SIDE = {
    "analyze": "analyze side --json out/a.json --csv out/csv",
    "compare": "compare other side --json out/c.json",
    "check": f"check side --against other {_CHECKED}",
}
_OF_BUNDLE = {
    "validate": "validate bundle --json out/v.json --markdown out/v.md",
    "report": "report bundle --format md,json,html --out out/report",
    "analyze": "analyze bundle --json out/a.json --csv out/csv",
    "compare": "compare good bundle --json out/c.json",
    "check": f"check bundle --against good {_CHECKED}",
    "kernels": "kernels bundle --json out/k.json --md out/k.md",
    "store": "store add bundle --recompute --store out/store && store query SELECT_1 --store out/store "
    "&& store report --store out/store --format md,json --out out/fleet",
    "convert": _converted("bundle", (*_EVENTS, *_SUMS, "model-explorer")),
}
_JOINED = "runs LEFT JOIN operators USING (bundle, variant) LEFT JOIN tiles USING (bundle)"
_SQL = f"SELECT count(*), max(COLUMNS(*)) FROM {_JOINED}"  # noqa: S608 - ours
_SLOTS = "--slots INSTR_EVENT_0,INSTR_EVENT_1,INSTR_VECTOR,LOCK_STALL --slots memtile=PORT_RUNNING_0"
_OF_TILES = {
    "aie": f"aie in.tiles {_SLOTS} --out out/aie",
    "aie-sizes": f"aie in.tiles {_SLOTS} --M 64 --K 64 --N 64 --m 32 --k 32 --n 32 --dtype int8 --arch npu1 "
    "--out out/aie",
    "aie-store": f"aie in.tiles {_SLOTS} --out out/aie && store add out/aie --store out/store "
    "&& store query SELECT_1 --store out/store",
}


def _of_program(file: str, trace: str) -> dict[str, str]:
    return {
        "preflight": f"preflight {file} --json out/p.json",
        "describe": f"analyze {file}",
        "analyze": f"analyze {trace} --program {file} --json out/a.json",
        "convert": f"convert {trace} --to model-explorer --program {file} --out out/graphs",
    }


def _cases() -> Iterator[Case]:
    own = {target.name: target for target in targets.TARGETS}
    traces: dict[str, tuple[str, str | None]] = {
        "etdump": ("in.etdump", "good.pte --etrecord good.etrecord"),
        "onnxruntime-profile": ("in.json", "good.onnx"),
        "litert-trace": ("in.litert.json", "good.tflite"),
        "benchmark-text": ("in.txt", "good.tflite"),
        "events-csv": ("in.csv", None),
        "events-parquet": ("in.parquet", None),
        "kit-csv": ("in.csv", None),
    }
    of_programs = {
        "etdump": _bundle_file(_TRACE),
        "onnxruntime-profile": lambda: [onnx_program.profile(onnx_program.nodes())],
    }
    built = {"onnxruntime-profile": onnx_program.PROFILE}
    for name, (file, program) in traces.items():
        seeds = _both(own[name].seeds, of_programs.get(name, list))
        structure = built.get(name, own[name].structure)
        yield Case(name, file, seeds, _of_trace(file, program), own[name].tokens, structure)
    yield Case("side", "side/5.etdump", own["etdump"].seeds, _OF_SIDE, own["etdump"].tokens, etdump_tree.STRUCTURE)
    yield from _programs(own)
    kernels = {"kernels": "kernels in.log --json out/k.json --md out/k.md --kit-csv out/kit"}
    for name in ("xnnpack-log", "kernel-counts"):
        yield Case(name, "in.log", own[name].seeds, kernels, own[name].tokens)
    for name, json_or_words, built_of in (
        ("aie-json", aie_tiles.json_traces, None),
        ("aie-words", aie_tiles.words_traces, aie_commands.STRUCTURE),
    ):
        yield Case(name, "in.tiles", json_or_words, _OF_TILES, own[name].tokens, built_of)
    yield from _bundles(own)


def _programs(own: dict[str, targets.Target]) -> Iterator[Case]:
    """What traces are analysed with."""
    of_onnx = {"analyze": "analyze good.json --program in.onnx --json out/a.json"}
    yield Case("onnx", "in.onnx", own["onnx"].seeds, of_onnx, own["onnx"].tokens, onnx_program.PROGRAM)
    of_graph = {"analyze": "analyze good.json --program good.onnx --json out/a.json"}
    yield Case("onnx-graph", GRAPH, list, of_graph, own["bundle-manifest"].tokens, onnx_program.GRAPH)
    pte = _both(own["pte"].seeds, _bundle_file(_PROGRAM))
    yield Case("pte", "in.pte", pte, _of_program("in.pte", "good.etdump"), own["pte"].tokens)
    tflite = _both(own["tflite"].seeds, lambda: [(_LITERT / "partial.tflite").read_bytes()])
    yield Case("tflite", "in.tflite", tflite, _of_program("in.tflite", "good.litert.json"), own["tflite"].tokens)
    record = _both(own["etrecord"].seeds, _bundle_file(_RECORD))
    with_record = "analyze good.etdump --program good.pte --etrecord in.etrecord --json out/a.json"
    of_record = {"analyze": with_record, "describe": "analyze in.etrecord"}
    yield Case("etrecord", "in.etrecord", record, of_record, own["etrecord"].tokens)
    of_run = {"analyze": "analyze run --json out/a.json", "kernels": "kernels run --json out/k.json"}
    yield Case("kit-run", "run/manifest.json", own["kit-run"].seeds, of_run, own["kit-run"].tokens)


def _bundles(own: dict[str, targets.Target]) -> Iterator[Case]:
    built, tokens = {_TRACE: etdump_tree.STRUCTURE}, {_PROGRAM: own["pte"].tokens}
    results = ("manifest.json", "analysis.json", "comparison.json", "variants/accelerated/ceilings.json")
    left = (_TRACE, *(_TRACE.replace("trace.etdump", name) for name in ("log.txt", "outputs.npz")))
    for file in (*results, *left, _PROGRAM):
        pieces = tokens.get(file, own["bundle-manifest"].tokens if file in results else ())
        kind = f"bundle-{'program' if file == _PROGRAM else Path(file).stem}"
        yield Case(kind, f"bundle/{file}", _bundle_file(file), _OF_BUNDLE, pieces, built.get(file))


def _both(seeds: targets.Seeds, others: targets.Seeds) -> targets.Seeds:
    return lambda: [*seeds(), *others()]


def _words(command: str) -> list[list[str]]:
    return [[_SQL if word == "SELECT_1" else word for word in one.split()] for one in command.split("&&")]


_READERS = targets.targets()
TARGETS = {
    f"{name}-{case.name}": targets.Target(
        f"{name}-{case.name}",
        "opscope.cli.main",
        Commands(case.file, _words(command)),
        case.seeds,
        case.tokens,
        case.structure,
        _SECONDS,
        memory=_READERS[case.name].memory if case.name in _READERS else targets.MEMORY_AN_INPUT,
        memory_a_byte=_READERS[case.name].memory_a_byte if case.name in _READERS else targets.MEMORY_A_BYTE,
    )
    for case in _cases()
    for name, command in case.commands.items()
}
