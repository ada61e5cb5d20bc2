"""Real dumps of eleven models, read by us, by ExecuTorch's Inspector, and by flatc, which shows the file as it is.

Compared with flatc, in every model and event for event: block, name, chain, instruction, delegate identifier, start,
duration, order, and the parent that the times themselves give.

Compared with Inspector, in every model: its blocks, the names in them, and start and duration of every event that it
kept, in its order. It keeps every event of straight programs, of conditions (one block a way) and of two methods that
run different instructions (one block each; which came first is only in the start times). It does not keep all:

- Within an inference, events with equal instruction, chain, delegate identifier and name are one entry of a dict, so
  the last one wins. Of a loop or map it shows the last trip as if it were the only one, with no warning: the parts of
  an inference no longer add up to it.
- Inferences whose sets of such entries are equal are one block. Loops that ran for different numbers of trips, and two
  methods that run the same instructions (prefill and decode of one network), become one population of durations.
- A file with an allocation event is refused with a ValueError.

The entries of its blocks are sorted by first appearance of their instruction, which is the order of the file as long as
no instruction repeats.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import flatbuffers
import pytest

import traces
from opscope.core.table import EventTable
from opscope.kit.run_files import kit_csv
from opscope.runtimes.executorch.etdump import EtdumpReader
from traced_models import MODELS, ROUNDS, TRIPS, trace
from traces import Node

pytestmark = [
    pytest.mark.nightly,  # imports torch and traces eleven models
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore"),  # Inspector's imports warn, of torch's deprecations and of its own
]
LOOPS = ("map", "scan")
MERGED = (*LOOPS, "twin_methods")
COLUMNS = ["run", "block", "name", "chain", "instruction", "delegate_id", "start", "duration"]


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with NAME.etdump of every model."""
    directory = tmp_path_factory.mktemp("traced")
    for name in MODELS:
        trace(name, directory)
    return directory


def _read(path: Path) -> EventTable:
    return EtdumpReader().read(path.read_bytes(), path)


def _event_rows(path: Path) -> list[dict[str, Any]]:
    return _read(path).frame.to_dicts()


def flatc_rows(path: Path, out: Path) -> list[dict[str, Any]]:
    """The profiling events that flatc finds in a dump, in file order, in the terms of our columns."""
    package = Path(importlib.util.find_spec("executorch").submodule_search_locations[0])
    schema = package / "devtools" / "etdump" / "etdump_schema_flatcc.fbs"
    options = ["--json", "--strict-json", "--defaults-json", "--raw-binary", "--size-prefixed", "-o", str(out)]
    command = [str(package / "data" / "bin" / "flatc"), *options, str(schema), "--", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    blocks = json.loads((out / f"{path.stem}.json").read_text("utf-8"))["run_data"]
    return [
        flatc_row(event["profile_event"], run, block["name"])
        for run, block in enumerate(blocks)
        for event in block["events"]
    ]


def flatc_row(event: dict[str, Any], run: int, block: str) -> dict[str, Any]:
    """One event: -1 is our null, and events of no chain belong to no instruction."""
    number = event["delegate_debug_id_int"]
    return {
        "run": run,
        "block": block,
        "name": event.get("delegate_debug_id_str") or event["name"],
        "chain": event["chain_index"] if event["chain_index"] >= 0 else None,
        "instruction": event["instruction_id"] if event["chain_index"] >= 0 else None,
        "delegate_id": number if number >= 0 else None,
        "start": event["start_time"],
        "duration": event["end_time"] - event["start_time"],
    }


def enclosing(events: list[dict[str, Any]], row: int) -> int | None:
    """The next later event of the same block that is further out and, where starts are measured, encloses this one."""
    inner = events[row]
    for later in range(row + 1, len(events)):
        outer = events[later]
        further_out = rank(outer["name"]) < rank(inner["name"])
        if outer["run"] != inner["run"]:
            return None
        if further_out and (inner["synthetic_start"] or outer["start"] <= inner["start"]):
            assert _end_of(outer) >= _end_of(inner) or inner["synthetic_start"]
            return later
    return None


def rank(name: str) -> int:
    """0 for the outermost events, 2 for those that enclose nothing."""
    if name in {"Method::execute", "Program::load_method"}:
        return 0
    return 1 if name.endswith("_CALL") or name == "Method::init" else 2


def _end_of(event: dict[str, Any]) -> int:
    return event["start"] + event["duration"]


def inspected(**source: Any) -> list[Any]:
    """The blocks that Inspector makes of a dump; times in ns."""
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    return Inspector(**source, target_time_scale=TimeScale.NS).event_blocks


Entry = tuple[str, tuple[int, ...], tuple[int, ...]]


def inspector_entries(path: Path) -> list[tuple[str, list[Entry]]]:
    """Name of each block and its entries: name, starts and durations of each inference in it."""
    return [
        (block.name, [(e.name, _whole_numbers(e.start_time), _whole_numbers(e.perf_data.raw)) for e in block.events])
        for block in inspected(etdump_path=str(path))
    ]


def _whole_numbers(numbers: Iterable[float]) -> tuple[int, ...]:
    assert all(float(number).is_integer() for number in numbers)
    return tuple(int(number) for number in numbers)


def kept_by_inspector(events: list[dict[str, Any]]) -> list[tuple[str, list[Entry]]]:
    """Our events after the merging that Inspector does, as the module's docstring says."""
    blocks: dict[tuple[Any, ...], list[dict[Any, dict[str, Any]]]] = {}
    for run in dict.fromkeys(event["run"] for event in events):
        entries = last_of_each([event for event in events if event["run"] == run])
        block = next(iter(entries.values()))["block"]
        blocks.setdefault((block, *entries), []).append(entries)
    return [
        (key[0], [joined([i[entry] for i in inferences]) for entry in key[1:]]) for key, inferences in blocks.items()
    ]


def last_of_each(events: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Of events that Inspector cannot tell apart the last, by first appearance of their instruction."""
    instructions: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        delegated = event["name"] if event["scope"] == "delegate_op" else None
        instructions.setdefault((event["instruction"], event["chain"], delegated), []).append(event)
    return {(key, event["name"]): event for key, same in instructions.items() for event in same}


def joined(inferences: list[dict[str, Any]]) -> Entry:
    """One entry of a block: the same event of several inferences."""
    starts, durations = (tuple(event[column] for event in inferences) for column in ("start", "duration"))
    return inferences[0]["name"], starts, durations


@pytest.mark.parametrize("name", MODELS)
def test_our_events_are_those_of_the_file(name: str, dumps: Path, tmp_path: Path) -> None:
    """Every event that flatc shows, every field, in the order of the file; none is missing, none is added."""
    found = _read(dumps / f"{name}.etdump").frame.select(COLUMNS).to_dicts()
    assert found == flatc_rows(dumps / f"{name}.etdump", tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_every_event_lies_in_the_parent_that_the_times_give(name: str, dumps: Path) -> None:
    """The tree is the one that a search through the intervals finds, in every trip of a loop too.

    Self times sum to Method::execute, whatever the program: nothing is lost and nothing counted twice.
    """
    events = _event_rows(dumps / f"{name}.etdump")
    assert [event["parent"] for event in events] == [enclosing(events, row) for row in range(len(events))]
    whole_times = {e["inference"]: e["duration"] for e in events if e["scope"] == "execute"}
    assert {i: sum(e["self_time"] for e in events if e["inference"] == i) for i in whole_times} == whole_times


@pytest.mark.parametrize("name", MODELS)
def test_inspector_shows_what_its_merging_leaves_of_ours(name: str, dumps: Path) -> None:
    """Blocks, names, starts and durations of all inferences and their order are equal, event for event."""
    path = dumps / f"{name}.etdump"
    assert inspector_entries(path) == kept_by_inspector(_event_rows(path))


@pytest.mark.parametrize("name", sorted(MODELS.keys() - set(LOOPS)))
def test_inspector_keeps_every_event_where_no_instruction_repeats(name: str, dumps: Path) -> None:
    """So the comparison covers the whole file: as many durations there as rows here."""
    path = dumps / f"{name}.etdump"
    kept = sum(len(durations) for _, entries in inspector_entries(path) for _, _, durations in entries)
    assert kept == len(_event_rows(path))


@pytest.mark.parametrize("name", LOOPS)
def test_every_trip_of_a_loop_is_kept(name: str, dumps: Path) -> None:
    """Each kernel of the body as often as the loop turned; Inspector has the last turn of each inference alone."""
    path = dumps / f"{name}.etdump"
    turns = [event for event in _event_rows(path) if event["name"] == "native_call_sin.out"]
    assert Counter(event["inference"] for event in turns) == dict.fromkeys(range(ROUNDS), TRIPS)
    _, (_, entries) = inspector_entries(path)
    (shown,) = (durations for entry, _, durations in entries if entry == "native_call_sin.out")
    assert shown == tuple(event["duration"] for event in turns[TRIPS - 1 :: TRIPS])


def test_the_two_ways_of_a_condition_alternate(dumps: Path) -> None:
    """One method: the way that an inference took shows in its kernels, and the file tells no method."""
    events = _event_rows(dumps / "branches.etdump")
    taken = [event["name"] for event in events if event["name"] in {"native_call_sin.out", "native_call_cos.out"}]
    assert taken == ["native_call_sin.out", "native_call_cos.out"] * ROUNDS
    assert {event["method"] for event in events} == {None}


def test_methods_with_different_instructions_are_told_apart(dumps: Path) -> None:
    """One prefill, two decodes, three times over; the second method is loaded in the middle of the first round."""
    table = _read(dumps / "prefill_decode.etdump")
    methods = table.inferences()["method"].to_list()
    assert methods == [methods[0], methods[1], methods[1]] * ROUNDS
    assert len(set(methods)) == 2
    assert "several_methods" in [warning.code for warning in table.warnings]
    assert table.frame.filter(scope="load")["run"].to_list() == [0, 2]


def test_methods_with_the_same_instructions_are_one_to_inspector(dumps: Path) -> None:
    """It mixes prefill and decode in one block; we keep the order of the calls, and warn that methods are mixed."""
    path = dumps / "twin_methods.etdump"
    table = _read(path)
    assert [name for name, _ in inspector_entries(path)] == ["Default", "Execute"]
    assert "several_methods" in [warning.code for warning in table.warnings]
    starts = table.inferences()["start"].to_list()
    assert (len(starts), starts) == (3 * ROUNDS, sorted(starts))


def test_inspector_refuses_a_trace_with_an_allocation() -> None:
    """We read the events around it."""
    builder = flatbuffers.Builder(256)
    builder.StartObject(0)
    allocation = traces._table(builder, 3, [(1, builder.EndObject())])
    events = [allocation, *traces._events(builder, Node("Method::execute", 50), 0)]
    run = traces._run(builder, "Execute", events)
    builder.FinishSizePrefixed(traces._table(builder, 2, [(1, traces._vector(builder, [run]))]), b"ED00")
    data = bytes(builder.Output())
    assert "Method::execute" in EtdumpReader().read(data, Path("trace.etdump")).frame["name"].to_list()
    with pytest.raises(ValueError, match="Unable to find populated event"):
        inspected(etdump_data=data)


def test_the_kits_statistics_are_inspectors_means(dumps: Path) -> None:
    """Of programs that run one way, as Arm's kit makes them: events by name without number, their means added up."""
    compared = 0
    for name in sorted(MODELS.keys() - set(MERGED)):
        path = dumps / f"{name}.etdump"
        blocks = inspector_entries(path)
        if len(blocks) > len({block for block, _ in blocks}):
            continue  # a block for each way: its means are not of an inference
        wanted: dict[str, list[float]] = {}
        for entry, _, durations in (one for _, entries in blocks for one in entries):
            wanted.setdefault(entry.rsplit(" #", 1)[0], []).append(sum(durations) / len(durations))
        lines = csv.DictReader(kit_csv(_read(path), name)[2].decode().splitlines())
        found = {row["name"]: (int(row["count"]), float(row["total_ms"]) * 1e6) for row in lines}
        assert found == {key: (len(own), pytest.approx(sum(own), abs=1)) for key, own in wanted.items()}
        compared += 1
    assert compared >= 5
