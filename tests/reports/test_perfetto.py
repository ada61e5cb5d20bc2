"""Trace-event JSON: what a viewer is told about processes, tracks and events."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any, Literal

import msgspec
import polars as pl
import pytest

from hostile_names import HOSTILE
from layered_model import TRACE as LAYERED
from layered_model import model, record
from opscope.analysis.operators.attribution import attribute
from opscope.core.table import Clock, EventTable, Scope
from opscope.reports.formats.perfetto import TrackGroup, perfetto
from texts import ALL_FEATURES_ON
from traces import table

TRACE = """
    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
        Clamp (NC) #1 3000
      OPERATOR_CALL @1 20001
        native_call_add.out 19000
"""
MEASURED = """
    Method::execute 1000
      DELEGATE_CALL @0 700
        Convolution (NHWC, F32) IGEMM #1 333
"""


def shown(events: EventTable, *processes: str) -> dict[str, Any]:
    """What a viewer reads; numbers as the exact decimals that stand in the file."""
    return json.loads(b"".join(perfetto([TrackGroup(events, processes or ["trace.etdump"])])), parse_float=Decimal)


def events_of(document: dict[str, Any], phase: str = "X") -> list[dict[str, Any]]:
    """The events of one phase."""
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def tracks(document: dict[str, Any]) -> dict[tuple[int, int], str]:
    """Name of every track that has one."""
    named = [event for event in events_of(document, "M") if event["name"] == "thread_name"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def test_every_event_has_its_name_place_and_exact_time() -> None:
    """Microseconds with three decimals, counted from the start of the process; children precede their parents."""
    found = events_of(shown(table(TRACE)))
    assert [(event["name"], str(event["ts"]), str(event["dur"])) for event in found] == [
        ("Method::init", "0.000", "0.700"),
        ("Program::load_method", "0.000", "0.900"),
        ("Convolution (NHWC, F32) IGEMM #1", "1.900", "50.000"),
        ("Clamp (NC) #1", "51.900", "3.000"),
        ("DELEGATE_CALL", "1.900", "70.000"),
        ("native_call_add.out", "71.900", "19.000"),
        ("OPERATOR_CALL", "71.900", "20.001"),
        ("Method::execute", "1.900", "100.000"),
    ]


def test_an_operator_carries_what_is_known_of_it() -> None:
    """Among its arguments; what is null is left out."""
    found = {event["name"]: event for event in events_of(shown(table(TRACE)))}
    assert found["Clamp (NC) #1"]["args"] == {
        "category": "Elementwise",
        "kind": "activation",
        "backend": "XNNPACK",
        "resolution": 1000,
        "synthetic_start": True,
        "warmup": False,
        "instruction": 0,
        "position": 1,
        "inference": 0,
        "self_ns": 3000,
    }
    assert found["Program::load_method"]["args"] == {
        "category": "Other",
        "kind": "framework",
        "backend": "framework",
        "resolution": 1,
        "synthetic_start": False,
        "warmup": False,
        "self_ns": 200,
    }


def test_operators_without_measured_starts_are_on_a_track_that_says_so() -> None:
    """And the process says it beside its name."""
    document = shown(table(TRACE))
    names = tracks(document)
    places = {event["name"]: names[event["pid"], event["tid"]] for event in events_of(document)}
    assert places["Clamp (NC) #1"] == "delegate operators (synthetic start times, laid end to end)"
    assert places["native_call_add.out"] == places["Method::execute"] == "framework and portable kernels"
    (label,) = [event["args"]["labels"] for event in events_of(document, "M") if event["name"] == "process_labels"]
    assert "synthetic" in label


def test_operators_with_measured_starts_are_on_a_plain_track() -> None:
    """Nothing is called synthetic, and tracks without events are not named."""
    document = shown(table(MEASURED))
    assert list(tracks(document).values()) == ["framework and portable kernels", "delegate operators"]
    assert "synthetic" not in json.dumps(events_of(document, "M"))


def test_warm_up_is_marked() -> None:
    """In the category of the event, its arguments and its colour."""
    found = [
        event for event in events_of(shown(table(MEASURED, repeat=2, warmup=1))) if event["name"] == "DELEGATE_CALL"
    ]
    assert [event["cat"] for event in found] == ["delegate_call,warmup", "delegate_call"]
    assert [event["args"]["warmup"] for event in found] == [True, False]
    assert [event.get("cname") for event in found] == ["grey", None]


def test_processes_are_named_and_each_starts_at_zero() -> None:
    """The value of the clock at that moment is kept; numbers of processes and tracks never meet."""
    both = EventTable.concat([table(TRACE), table(MEASURED)])
    document = shown(both, "first.etdump", "second.etdump")
    named = [event for event in events_of(document, "M") if event["name"] == "process_name"]
    assert [event["args"]["name"] for event in named] == ["first.etdump", "second.etdump"]
    starts = defaultdict(list)
    for event in events_of(document):
        starts[event["pid"]].append(event["ts"])
    assert [min(times) for times in starts.values()] == [0, 0]
    assert document["otherData"]["origin"] == [1_000_000, 1_000_000]
    assert not {pid for pid, _ in tracks(document)} & {tid for _, tid in tracks(document)}


def test_events_of_a_track_lie_inside_each_other_or_apart() -> None:
    """What a viewer needs to draw them; no two overlap in part."""
    document = shown(table(TRACE, repeat=3))
    for track in tracks(document):
        held = [event for event in events_of(document) if (event["pid"], event["tid"]) == track]
        spans = sorted(((event["ts"], event["ts"] + event["dur"]) for event in held), key=lambda s: (s[0], -s[1]))
        open_ends: list[Decimal] = []
        for start, end in spans:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_durations_add_up_to_the_table() -> None:
    """Self times as in the table, to the nanosecond."""
    events = table(TRACE, repeat=3)
    found = events_of(shown(events))
    assert sum(event["args"]["self_ns"] for event in found) == events.frame["self_time"].sum()
    assert sum(event["dur"] for event in found) * 1000 == events.frame["duration"].sum()


def test_hostile_names_are_text() -> None:
    """Quotes, braces, line breaks and control characters do not break out of the JSON."""
    names = ['"},{"', "{}", "\n\r\x07\x00", "\\", "\N{LINE SEPARATOR}", "</script>", ",", "%s"]
    columns = {
        "run": pl.Series([0] * len(names)),
        "scope": pl.Series([Scope.KERNEL.value] * len(names)),
        "name": pl.Series(names),
        "start": pl.Series(range(len(names)), dtype=pl.Int64),
        "duration": pl.Series([1] * len(names)),
        "parent": pl.Series([-1] * len(names)),
    }
    assert [event["name"] for event in events_of(shown(EventTable.build(columns, Clock.NS)))] == names


@pytest.mark.parametrize("start", [-5, 1 << 60])
def test_cycles_are_shown_as_microseconds_and_said_so(start: int) -> None:
    """Whole numbers, since a cycle has no parts; any start is 0 in the view."""
    columns = {
        "run": pl.Series([0]),
        "scope": pl.Series([Scope.KERNEL.value]),
        "name": pl.Series(["INSTR_VECTOR"]),
        "start": pl.Series([start]),
        "duration": pl.Series([12]),
        "parent": pl.Series([-1]),
    }
    document = shown(EventTable.build(columns, Clock.CYCLES))
    (event,) = events_of(document)
    assert (event["ts"], event["dur"], event["args"]["self_cycles"]) == (0, 12, 12)
    assert document["otherData"]["shown_as"] == "1 cycle is 1 µs"


class Metadata(msgspec.Struct, forbid_unknown_fields=True, tag_field="ph", tag="M"):
    """A metadata event of the Trace Event Format."""

    name: Literal["process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"]
    pid: int
    tid: int
    args: dict[str, str | int]


class Complete(msgspec.Struct, forbid_unknown_fields=True, tag_field="ph", tag="X"):
    """A complete event of the Trace Event Format; times in microseconds."""

    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, str | int | bool | list[str]]
    cname: Literal["grey"] | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of the format."""

    traceEvents: list[Metadata | Complete]  # noqa: N815 - the format's names
    displayTimeUnit: Literal["ns", "ms"]  # noqa: N815
    otherData: dict[str, str | list[int | str]]  # noqa: N815


def parts() -> list[TrackGroup]:
    """Two variants of a program, whose operators are known."""
    given, named = model(record()), table(LAYERED, repeat=2, warmup=1).with_method_names({None: "forward"})
    facts = attribute(named, given).operators
    return [
        TrackGroup(named, ["fast, round 0"], facts, ALL_FEATURES_ON),
        TrackGroup(EventTable.concat([named, named]), ["slow, round 0", "slow, round 1"], facts, "avx512 off"),
    ]


def test_the_file_is_of_the_format_and_of_nothing_else() -> None:
    """Strictly read: every field, every type; parts and what is known of operators included."""
    document = msgspec.json.decode(b"".join(perfetto(parts())), type=Document)
    complete = [event for event in document.traceEvents if isinstance(event, Complete)]
    assert all(event.ts >= 0 and event.dur >= 0 for event in complete)
    assert len(complete) == sum(len(part.table.frame) for part in parts())


def test_parts_follow_each_other_process_by_process() -> None:
    """No two share a number, and each says what it is."""
    document = json.loads(b"".join(perfetto(parts())))
    records = events_of(document, "M")
    named = {e["pid"]: e["args"]["name"] for e in records if e["name"] == "process_name"}
    assert list(named.items()) == [(1000, "fast, round 0"), (2000, "slow, round 0"), (3000, "slow, round 1")]
    labels = {e["pid"]: e["args"]["labels"] for e in records if e["name"] == "process_labels"}
    said = {pid: text.partition(",")[0] for pid, text in labels.items()}
    assert said == {1000: ALL_FEATURES_ON, 2000: "avx512 off", 3000: "avx512 off"}
    counts = Counter(event["pid"] for event in events_of(document))
    assert len(set(counts.values())) == 1
    assert set(counts) == set(named)
    assert len(document["otherData"]["origin"]) == 3


def test_operators_have_their_category_and_their_layer() -> None:
    """By the program where it tells: the clamp is the activation of the addition, in its module."""
    found = {e["name"]: e for e in events_of(json.loads(b"".join(perfetto(parts())))) if not e["args"]["warmup"]}
    convolution, clamp = found["Convolution (NHWC, F32) IGEMM #1"], found["Clamp (NC, F32) #1"]
    assert convolution["cat"] == "delegate_op,Convolution"
    known = {key: convolution["args"][key] for key in ("attribution", "layer", "aten")}
    assert known == {"attribution": "exact", "layer": "stem.conv", "aten": "aten.convolution.default"}
    assert (clamp["args"]["kind"], clamp["args"]["layer"]) == ("activation", "stem")
    assert found["Method::execute"]["cat"] == "execute"
    assert "attribution" not in found["Method::execute"]["args"]
    assert found["whatever"]["args"]["attribution"] == "name"


def test_warm_up_keeps_its_mark_beside_the_category() -> None:
    """So that a search finds either."""
    document = json.loads(b"".join(perfetto(parts())))
    categories = {e["cat"] for e in events_of(document) if e["name"].startswith("Convolution")}
    assert categories == {"delegate_op,Convolution", "delegate_op,Convolution,warmup"}


def test_hostile_layers_and_process_names_are_text() -> None:
    """Names of modules, variants and files."""
    for name in HOSTILE:
        given = model(record((name, name, name)))
        named = table(LAYERED).with_method_names({None: "forward"})
        part = TrackGroup(named, [name], attribute(named, given).operators, name)
        document = json.loads(b"".join(perfetto([part])))
        assert name in {e["args"].get("layer") for e in events_of(document)}
        assert [e["args"]["name"] for e in events_of(document, "M") if e["name"] == "process_name"] == [name]
