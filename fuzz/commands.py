"""Fuzz whole commands: ``python -m fuzz.commands --seconds 600 --seed 1 --only report``.

Damaged traces, programs and files of bundles go through readers, rules, costs, reports and SQL, as a user's do. A
finding is an exit code that is not one of opscope's, a bug in a part of a result (``OPSCOPE_RAISE``), a file outside of
the output directory that was changed, or more time or memory than the size of the input allows. The rest is as in
:mod:`fuzz.run`, which reads a finding again: ``python -m fuzz.run --target fuzz.commands:analyze-etdump --input FILE``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from fuzz import aie_commands, aie_tiles, etdump_tree, targets
from fuzz.structure import FindingError
from opscope.core.errors import EXIT_OK, OpscopeError, TraceFormatError, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fuzz.structure import Structure

BUNDLE = targets.DATA / "bundles" / "with-ceilings"
_CODES = {EXIT_OK, *(kind.exit_code for kind in kinds() if kind is not OpscopeError)}
_SECONDS, _SECONDS_A_MEGABYTE = 3.0, 40.0
_FRAME = re.compile(r'File ".*/opscope/([^"]+)", line (\d+)')
_RAISED = re.compile(r"[\w.]+(Error|Exception|Warning)\b")
_FORMATS = ("csv", "parquet", "perfetto", "speedscope", "folded", "openmetrics", "model-explorer", "tables", "kit-csv")


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
        """A directory of this process with all that commands are given beside the input."""
        place = targets.scratch_directory() / "commands"
        for name in ("bundle", "good") if self._file.startswith("bundle/") else ():
            shutil.copytree(BUNDLE, place / name)
        (place / "foreign").mkdir(parents=True)
        (place / "foreign" / "thesis.txt").write_text("not ours\n", "utf-8")
        for name, seeds in (("good.etdump", targets.etdump_traces), ("good.pte", targets.pte_programs)):
            (place / name).write_bytes(seeds()[0])
        shutil.copy(targets.DATA / "onnxruntime" / "cnn-1.31.json", place / "good.json")
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
                if code != EXIT_OK:
                    break
        finally:
            shutil.rmtree(place / "out")
        if code not in _CODES:
            raise FindingError(_bug(code, said))
        changed = sorted({name for name, _ in before.items() ^ _tree(place).items()})
        if changed:
            raise FindingError(f"changed {', '.join(changed)}")
        if code != EXIT_OK:
            raise TraceFormatError(said.rpartition("error: ")[2].partition("\n")[0])


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


def _of_trace(file: str) -> dict[str, str]:
    """The commands of a trace in a file."""
    converted = {f"convert-{to}": f"convert {file} --to {to} --out out/converted" for to in _FORMATS}
    return {
        "analyze": f"analyze {file} --json out/a.json --csv out/csv",
        "compare": f"compare good.etdump {file} --json out/c.json",
        "check": f"check {file} --against good.etdump --json out/g.json --junit out/j.xml --markdown out/g.md --force",
        **converted,
    }


_OF_BUNDLE = {
    "validate": "validate bundle --json out/v.json --markdown out/v.md",
    "report": "report bundle --format md,json --out out/report",
    "analyze": "analyze bundle --json out/a.json --csv out/csv",
    "compare": "compare good bundle --json out/c.json",
    "check": "check bundle --against good --json out/g.json --junit out/j.xml --markdown out/g.md --force",
    "kernels": "kernels bundle --json out/k.json --md out/k.md",
    "store": "store add bundle --recompute --store out/store && store query SELECT_1 --store out/store "
    "&& store report --store out/store --format md,json --out out/fleet",
    **{f"convert-{to}": f"convert bundle --to {to} --out out/converted" for to in ("tables", "perfetto", "folded")},
}
_SQL = "SELECT * FROM operators ORDER BY ALL"


def _of_program(file: str) -> dict[str, str]:
    return {
        "preflight": f"preflight {file} --json out/p.json",
        "analyze": f"analyze good.etdump --program {file} --json out/a.json",
        "convert-model-explorer": f"convert {file} --to model-explorer --out out/graphs",
    }


def _cases() -> Iterator[Case]:
    own = {target.name: target for target in targets.TARGETS}
    trace = "bundle/variants/accelerated/round-00/trace.etdump"
    program = "bundle/model/toy_cnn_xnnpack_fp32.pte"
    traces = {
        "etdump": "in.etdump",
        "onnxruntime-profile": "in.json",
        "litert-trace": "in.litert.json",
        "benchmark-text": "in.txt",
        "benchmark-proto": "in.pb",
        "events-csv": "in.csv",
        "events-parquet": "in.parquet",
        "kit-csv": "in.csv",
    }
    for name, file in traces.items():
        yield Case(name, file, own[name].seeds, _of_trace(file), own[name].tokens, own[name].structure)
    onnx = {"analyze": "analyze good.json --program in.onnx --json out/a.json"}
    yield Case("onnx", "in.onnx", own["onnx"].seeds, onnx, own["onnx"].tokens)
    for name, file in {"pte": "in.pte", "tflite": "in.tflite"}.items():
        yield Case(name, file, own[name].seeds, _of_program(file), own[name].tokens)
    kernels = {"kernels": "kernels in.log --json out/k.json --md out/k.md"}
    for name in ("xnnpack-log", "kernel-counts", "recording"):
        yield Case(name, "in.log", own[name].seeds, kernels, own[name].tokens)
    record = {"analyze": "analyze good.etdump --etrecord in.etrecord --json out/a.json"}
    yield Case("etrecord", "in.etrecord", own["etrecord"].seeds, record, own["etrecord"].tokens)
    tiles = {"aie": "aie in.tiles --out out/aie", "analyze": "analyze in.tiles --json out/a.json"}
    yield Case("aie-json", "in.tiles", aie_tiles.json_traces, tiles, own["aie-json"].tokens)
    yield Case("aie-words", "in.tiles", aie_tiles.words_traces, tiles, own["aie-words"].tokens, aie_commands.STRUCTURE)
    yield Case("bundle-trace", trace, _bundle_file(trace[7:]), _OF_BUNDLE, structure=etdump_tree.STRUCTURE)
    yield Case("bundle-program", program, _bundle_file(program[7:]), _OF_BUNDLE, own["pte"].tokens)
    for name in ("manifest.json", "analysis.json", "comparison.json", "variants/accelerated/roofs.json"):
        kind = f"bundle-{Path(name).stem}"
        yield Case(kind, f"bundle/{name}", _bundle_file(name), _OF_BUNDLE, own["bundle-manifest"].tokens)
    for name in ("log.txt", "outputs.npz"):
        file = f"variants/accelerated/round-00/{name}"
        yield Case(f"bundle-{Path(name).stem}", f"bundle/{file}", _bundle_file(file), _OF_BUNDLE)


def _words(command: str) -> list[list[str]]:
    return [[_SQL if word == "SELECT_1" else word for word in one.split()] for one in command.split("&&")]


TARGETS = {
    f"{name}-{case.name}": targets.Target(
        f"fuzz.commands:{name}-{case.name}",
        "opscope.cli.main",
        Commands(case.file, _words(command)),
        case.seeds,
        case.tokens,
        case.structure,
        _SECONDS,
        _SECONDS_A_MEGABYTE,
    )
    for case in _cases()
    for name, command in case.commands.items()
}


def __getattr__(name: str) -> targets.Target:
    """A target by its name, as :mod:`fuzz.run` asks for it."""
    if name not in TARGETS:
        raise AttributeError(name)
    return TARGETS[name]


def main(arguments: list[str] | None = None) -> int:
    """Fuzz the commands; 1 when something was found."""
    from fuzz.run import FINDINGS, fuzz_target, line
    from fuzz.worker import Effort

    parser = argparse.ArgumentParser(prog="python -m fuzz.commands", description="Fuzz commands.")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all")
    parser.add_argument("--seed", type=int, default=1, help="decides what is tried")
    parser.add_argument("--only", default="", metavar="TEXT", help="commands and inputs with this in their names")
    parser.add_argument("--part", default="0/1", metavar="N/M", help="every M-th of them, from the N-th")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="directory for failing inputs")
    options = parser.parse_args(arguments)
    first, step = (int(word) for word in options.part.split("/"))
    chosen = list(itertools.islice((name for name in TARGETS if options.only in name), first, None, step))
    found = inputs = refused = 0
    for name in chosen:
        effort = Effort(options.seconds / len(chosen), 1)
        report = fuzz_target(f"fuzz.commands:{name}", str(options.seed), effort, options.findings.resolve())
        found, inputs, refused = found + len(report.findings), inputs + report.inputs, refused + report.refused
        print(line(name, report), flush=True)
        for path, what in report.findings:
            print(f"  {what}: {os.path.relpath(path)}", flush=True)
    print(f"commands: {inputs:,} inputs of {len(chosen)} kinds, {refused:,} refused, {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
