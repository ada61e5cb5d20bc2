"""A directory of traces is one side with as many repetitions, whatever registered format they are of."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import opscope
from aie_traces import Span, Tile, json_text, words_text
from opscope.core.errors import EmptyTraceError, NotFoundError, TraceFormatError
from opscope.npu.workflows.aie import analyze_tiles
from opscope.npu.workflows.sides import is_tiles
from opscope.readers.registry import GROUP, built_in, traces_in
from opscope.workflows.analyze.analyses import inspect
from opscope.workflows.reports.conversion import convert
from traces import etdump

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODEL = """
Method::execute {0}
  DELEGATE_CALL {1}
    @Convolution (NHWC, F32) {2}
"""
TILE = Tile(
    "core",
    2,
    0,
    ["INSTR_EVENT_0", "INSTR_EVENT_1", "INSTR_VECTOR"],
    [Span(0, 10, 11), Span(1, 90, 91), Span(2, 20, 80)],
)


def traced(directory: Path, times: list[int]) -> Path:
    """A directory of ETDumps of four inferences each, of which one takes so many microseconds."""
    directory.mkdir()
    for number, each in enumerate(times):
        text = MODEL.format(each * 1000, each * 900, each * 800)
        (directory / f"r{number}.etdump").write_bytes(etdump(text, repeat=4))
    return directory


def converted(directory: Path, form: str) -> Path:
    """The same traces in a directory of another format."""
    place = directory.with_name(f"{directory.name}-{form}")
    for file in sorted(directory.iterdir()):
        convert(file, form, out=place / f"{file.stem}.{form}", warmup=0)
    return place


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_events_in_a_directory_are_repetitions(form: str, tmp_path: Path) -> None:
    """What a comparison says of them is what it says of the traces that they were converted from."""
    sides = [traced(tmp_path / "slow", [200, 210, 205]), traced(tmp_path / "fast", [100, 101, 102])]
    again = opscope.compare(*(converted(side, form) for side in sides), warmup=0)
    first = opscope.compare(*sides, warmup=0)
    assert again.end_to_end == first.end_to_end


def test_analyze_of_a_directory_of_events_counts_every_process(tmp_path: Path) -> None:
    """By the command, by Python and by what is inspected."""
    place = converted(traced(tmp_path / "runs", [100, 110]), "csv")
    found = opscope.analyze(place, warmup=0)
    assert (found.trace.format, found.latency.n, opscope.read(place).processes) == ("events-csv", 8, 2)
    assert inspect(place, warmup=0).latency == found.latency


def test_a_converted_trace_beside_its_own_is_not_counted_twice(tmp_path: Path) -> None:
    """The traces are read, and it is said that others were not."""
    place = traced(tmp_path / "runs", [100, 110])
    convert(place / "r0.etdump", "csv", out=place / "r0.csv")
    (place / "notes.json").write_text('{"why": "a test"}')
    (place / "analysis.txt").write_text("text")
    found = opscope.analyze(place, warmup=0)
    assert (found.trace.format, found.latency.n) == ("etdump", 8)
    (told,) = [warning for warning in found.trace.warnings if warning.code == "other_formats"]
    assert "1 of the format events-csv" in told.message
    assert "aie" not in told.message


@pytest.mark.parametrize("name", ["r9.etdump", "r9.etdump.gz"])
@pytest.mark.parametrize(
    "content", [b"", b"damaged", gzip.compress(b"", mtime=0)[:5]], ids=["empty", "damaged", "cut off"]
)
def test_a_damaged_repetition_is_not_overlooked(name: str, content: bytes, tmp_path: Path) -> None:
    """One that a failed run left empty least of all."""
    place = traced(tmp_path / "runs", [100])
    (place / name).write_bytes(content)
    with pytest.raises(TraceFormatError) as caught:
        opscope.analyze(place)
    assert caught.value.where == str(place / name)


def test_an_empty_table_of_events_is_not_overlooked(tmp_path: Path) -> None:
    """It is named like the others; one with other content is none of them."""
    place = converted(traced(tmp_path / "runs", [100, 110]), "csv")
    (place / "operators.csv").write_text("operator,time\n")
    assert opscope.read(place).processes == 2
    (place / "r9.csv").touch()
    with pytest.raises(EmptyTraceError):
        opscope.read(place)


def test_a_directory_without_traces_lists_the_formats(tmp_path: Path) -> None:
    """All that are read."""
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(NotFoundError, match="no traces in this directory") as caught:
        opscope.analyze(tmp_path)
    assert "events-csv" in str(caught.value.hint)


@pytest.mark.parametrize(("name", "text"), [("t.json", json_text), ("t", words_text)])
def test_a_directory_of_tiles_is_one_of_tiles_by_content(name: str, text, tmp_path: Path) -> None:
    """Whatever the names of its files; an analysis beside them of something else changes nothing."""
    content = text([TILE])
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else b"".join(content))
    assert is_tiles(tmp_path)
    assert [file.name for file in traces_in(tmp_path)[0]] == [name]
    (tmp_path / "other.etdump").write_bytes(etdump("Method::execute 100"))
    assert not is_tiles(tmp_path)


def test_aie_says_what_another_trace_is(tmp_path: Path) -> None:
    """By the registry of readers."""
    file = tmp_path / "trace.json"
    file.write_bytes(etdump("Method::execute 100"))
    with pytest.raises(TraceFormatError, match="a trace of the format etdump, not an AI Engine trace"):
        analyze_tiles(file)


@pytest.fixture
def other_formats(tmp_path, monkeypatch):
    """An installed package that reads events behind a line of its own, and tiles likewise."""
    site = tmp_path / "site"
    information = site / "opscope_test_plugin-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: opscope-test-plugin\nVersion: 1.0\n")
    points = "mine = opscope_test_plugin:Mine\ntiles = opscope_test_plugin:Tiles\n"
    (information / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    (site / "opscope_test_plugin.py").write_text(
        dedent("""
        from opscope.npu.readers.json import read_json
        from opscope.runtimes.executorch.etdump import EtdumpReader

        class Mine:
            name = "mine"

            def sniff(self, head):
                return head.startswith(b"MINE")

            def read(self, data, path):
                return EtdumpReader().read(data[4:], path)

        class Tiles:
            name = "mine-tiles"

            def sniff(self, head):
                return head.startswith(b"TILES")

            def read(self, data, path):
                return read_json(data[5:], path).table()

            def read_tiles(self, data, path, slots):
                return read_json(bytes(data[5:]), path)
        """)
    )
    monkeypatch.syspath_prepend(site)
    yield
    sys.modules.pop("opscope_test_plugin", None)


@pytest.mark.usefixtures("other_formats")
def test_a_directory_of_another_packages_format_is_a_side(tmp_path: Path) -> None:
    """It goes through the same registry."""
    place = traced(tmp_path / "runs", [100, 110])
    for file in list(place.iterdir()):
        file.with_suffix(".mine").write_bytes(b"MINE" + file.read_bytes())
        file.unlink()
    assert (opscope.analyze(place, warmup=0).trace.format, opscope.read(place).processes) == ("mine", 2)


@pytest.mark.usefixtures("other_formats")
def test_aie_reads_tiles_of_another_packages_format(tmp_path: Path) -> None:
    """As its own, alone and in a directory."""
    content = b"".join(json_text([TILE]))
    for name, data in (("own.json", content), ("other.mine", b"TILES" + content)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trace").write_bytes(data)
    found = [analyze_tiles(tmp_path / name / "trace").analysis.tiles for name in ("own.json", "other.mine")]
    assert found[0] == found[1]
    assert is_tiles(tmp_path / "other.mine")


def test_built_in_readers_are_those_that_are_published() -> None:
    """Two lists, since looking up what is installed takes longer than most traces."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    published = project["project"]["entry-points"][GROUP].values()
    assert sorted(published) == sorted(":".join(place) for place in built_in())
