"""``make frozen``: everything that opscope writes for the files of the tests, to compare before and after a change.

``python tests/support/frozen.py OUT`` runs the commands below, each in a new directory, and keeps what they print and
write; ``--against BEFORE`` compares with another such directory byte by byte, names what differs and ends with 1.
Inputs are the traces, programs and bundles of ``tests/data``, bundles of a pretended target, made traces of an NPU, and
real ones where ``--captures DIR`` has them. What belongs to a run is left out: paths, versions, the time of adding.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import itertools
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import typer

import gate_cases
from opscope.cli import main as cli
from opscope.core.version import __version__
from opscope.fleet.store.schema import TABLES

DATA = Path(__file__).parents[1] / "data"
_FORMATS = ("csv", "perfetto", "speedscope", "github-benchmark", "tables")
_MOST_LINES = 12
_WORK = Path(os.path.realpath(tempfile.gettempdir())) / "opscope-frozen"
"""The same each time: bundles hold where they were made."""
_BINARY = {".parquet", ".gz"}
_TABLES = {name: "* EXCLUDE (added)" if name == "bundles" else "*" for name in (*TABLES, "bundles")}


class Case(NamedTuple):
    """Commands that are run one behind the other in a directory, and the files that are copied there before."""

    name: str
    files: tuple[Path, ...]
    commands: tuple[str, ...]


def cases(work: Path, captures: Path | None) -> Iterator[Case]:
    """All of them; what has to be made is made in a directory."""
    yield from (
        Case(f"help/{'-'.join(words) or 'opscope'}", (), (f"{' '.join(words)} --help",)) for words in _commands()
    )
    for trace in _traces():
        yield Case(f"traces/{trace.name}", (trace,), tuple(_of_trace(trace.name)))
    for program in sorted(itertools.chain(DATA.rglob("*.pte"), DATA.rglob("*.tflite"))):
        if "bundles" not in program.parts:
            wanted = (f"preflight {program.name} --json p.json --markdown p.md", f"analyze {program.name}")
            yield Case(f"programs/{program.stem}", (program,), wanted)
    for bundle in [*sorted((DATA / "bundles").iterdir()), *_made_bundles(work)]:
        yield Case(f"bundles/{bundle.name}", (bundle,), tuple(_of_bundle(bundle.name)))
    yield Case("two", tuple(sorted((DATA / "bundles").iterdir())), tuple(_of_two("flat-rooms", "with-ceilings")))
    yield Case("store", tuple(_made_bundles(work)), tuple(_of_store()))
    (work / "budget.toml").write_text(gate_cases.BUDGET)
    for gate_case in gate_cases.GATE_CASES:
        files = (gate_cases.make_bundle(gate_case, work), work / "budget.toml")
        yield Case(f"gates/{gate_case.name}", files, tuple(gate_cases.gate_commands(gate_case)))
    yield Case("codes", _files_of_codes(work), tuple(command for _, command in gate_cases.EXIT_CODE_COMMANDS))
    for trace in [*_made_tiles(work), *(sorted(captures.rglob("*.json")) if captures else [])]:
        yield Case(f"tiles/{trace.stem}", (trace,), tuple(_of_tiles(trace.name)))


def _commands() -> Iterator[tuple[str, ...]]:
    def visit(command: object, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from visit(inner, (*words, name))

    return visit(typer.main.get_command(cli.app), ())


def _traces() -> list[Path]:
    listed = [DATA / "toy_cnn.etdump", DATA / "litert" / "partial.litert.json", DATA / "openvino" / "cnn.openvino.json"]
    return [
        *listed,
        *sorted((DATA / "onnxruntime").glob("*.json")),
        *sorted(path for path in (DATA / "benchmark_model").iterdir() if path.suffix == ".txt"),
    ]


def _of_tiles(name: str) -> Iterator[str]:
    yield f"aie {name} --out aie"
    yield f"analyze {name} --json a.json"
    yield f"convert {name} --to csv --out t.csv"


def _of_trace(name: str) -> Iterator[str]:
    yield f"analyze {name} --json a.json --csv csv"
    yield f"compare {name} {name} --json c.json"
    yield from (f"convert {name} --to {to} --out converted-{to}" for to in _FORMATS)


def _of_bundle(name: str) -> Iterator[str]:
    yield f"validate {name} --json v.json --markdown v.md"
    yield f"report {name} --format md,json,html --out report"
    yield f"analyze {name} --json a.json --csv csv"
    yield f"kernels {name} --json k.json --md k.md"
    yield from (f"convert {name} --to {to} --out converted-{to}" for to in (*_FORMATS, "model-explorer"))


def _of_two(first: str, second: str) -> Iterator[str]:
    yield f"compare {first} {second} --json c.json"
    yield f"check {first} --against {second} --json g.json --junit j.xml --markdown g.md"
    yield f"report {first} {second} --format md,json,html --out both"


def _of_store() -> Iterator[str]:
    yield "store add . --store store --device phone"
    yield from (
        f"store query 'SELECT {chosen} FROM {name} ORDER BY ALL' --store store --format csv"
        for name, chosen in _TABLES.items()
    )
    yield "store report --store store --out fleet"
    yield "history latency --store store --json h.json --html h.html"


def _made_bundles(work: Path) -> list[Path]:
    """Bundles of a pretended target with a pretended clock, with and without traces."""
    from many_bundles import Made, Mint

    if not (work / "made-0").exists():
        mint = Mint(work / "mint", operators=6, rounds=7, runs=4)
        for number in range(3):
            mint.make(work / f"made-{number}", Made(number, hours=float(number), factor=1 + number / 10))
    return sorted(work.glob("made-*"))


def _files_of_codes(work: Path) -> tuple[Path, ...]:
    """Write what the commands of exit codes are given into a directory, and list it."""
    place = work / "codes"
    place.mkdir()
    for name, source in (("bundle", "with-ceilings"), ("other", "flat-rooms"), ("damaged", "with-ceilings")):
        shutil.copytree(DATA / "bundles" / source, place / name)
    next((place / "damaged").rglob("trace.etdump*")).write_bytes(b"damaged")
    shutil.copy(DATA / "toy_cnn.etdump", place / "trace.etdump")
    shutil.copy(next((place / "bundle" / "model").glob("*.pte")), place / "trace.pte")
    list(gate_cases.damage_files(place))
    return tuple(sorted(place.iterdir()))


def _made_tiles(work: Path) -> list[Path]:
    from aie_gemm import Gemm
    from aie_traces import json_text, words_text

    cores = [Gemm(outputs=3, rest=90, row=row, column=column, begin=1 + 9 * row) for row in (2, 3) for column in (0, 1)]
    tiles = [core.tile() for core in cores]
    (work / "gemm.json").write_bytes(b"".join(json_text(tiles)))
    (work / "gemm_words.txt").write_bytes(words_text(tiles))
    return [work / "gemm.json", work / "gemm_words.txt"]


def freeze(case: Case, out: Path) -> None:
    """Run the commands of a case; keep files, and what was printed in ``said.txt``."""
    place, given = _WORK / "place", {path.name for path in case.files}
    place.mkdir()
    for path in case.files:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, place / path.name)
    said = "".join(_said(place, command) for command in case.commands)
    (place / "said.txt").write_text(said, "utf-8")
    for path in sorted(place.rglob("*")):
        parts = path.relative_to(place).parts
        if path.is_file() and parts[0] not in given | {"store"}:
            _keep(path, out / case.name / Path(*parts), place)
    shutil.rmtree(place)


def _said(place: Path, command: str) -> str:
    code, printed = 0, io.TextIOWrapper(io.BytesIO(), "utf-8")
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "OPSCOPE_CACHE": str(place / "store" / "cache")}
    os.chdir(place)
    with (
        mock.patch.object(sys, "argv", ["opscope", *shlex.split(command)]),
        mock.patch.dict(os.environ, plain),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    printed.flush()
    return f"$ opscope {command}\n{printed.buffer.getvalue().decode('utf-8', 'replace')}exit code {code}\n\n"  # type: ignore[attr-defined]


def _keep(path: Path, to: Path, place: Path) -> None:
    """Copy a file without what belongs to this run."""
    to.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes()
    if path.suffix not in _BINARY:
        data = data.replace(str(place).encode(), b"PLACE").replace(f'"{__version__}"'.encode(), b'"VERSION"')
    to.write_bytes(data)


def differences(before: Path, after: Path) -> list[str]:
    """What differs between two such directories, a file each, with its first lines."""
    names = sorted(
        {str(path.relative_to(side)) for side in (before, after) for path in side.rglob("*") if path.is_file()}
    )
    return [told for name in names if (told := _difference(before / name, after / name, name))]


def _difference(before: Path, after: Path, name: str) -> str:
    if not (before.exists() and after.exists()):
        return f"{name}: only {'before' if before.exists() else 'after'}"
    sides = before.read_bytes(), after.read_bytes()
    if sides[0] == sides[1]:
        return ""
    lines = (side.decode("utf-8", "replace").splitlines() for side in sides)
    changed = itertools.islice(difflib.unified_diff(*lines, lineterm="", n=0), 2, 2 + _MOST_LINES)
    return "\n".join([f"{name}:", *(f"  {line[:200]}" for line in changed)])


def main() -> int:
    """Freeze, and compare where that is asked; 1 when something differs."""
    parser = argparse.ArgumentParser(prog="make frozen", description="Keep all that opscope writes, and compare.")
    parser.add_argument("out", type=Path, help="a new directory")
    parser.add_argument("--against", type=Path, metavar="BEFORE", help="compare with this one")
    parser.add_argument("--captures", type=Path, metavar="DIR", help="real traces of NPUs")
    options = parser.parse_args()
    out = options.out.resolve()
    shutil.rmtree(_WORK, ignore_errors=True)
    (_WORK / "made").mkdir(parents=True)
    for case in cases(_WORK / "made", options.captures):
        freeze(case, out)
    shutil.rmtree(_WORK)
    files = sum(path.is_file() for path in options.out.rglob("*"))
    told = differences(options.against, options.out) if options.against else []
    print("\n".join([*told, f"{files} files, {len(told)} differ" if options.against else f"{files} files"]))
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main())
