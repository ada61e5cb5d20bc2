"""Speedscope files: an inference in stacks whose weights add up."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import polars as pl
import pytest

from hostile_names import HOSTILE
from layered_model import TRACE, analysed
from opscope.analysis.analysis import Analysis, TraceSource, analyse
from opscope.core.table import Clock, EventTable, Scope
from opscope.reports.formats.speedscope import By, list_stacks, speedscope
from traces import table

UNEVEN = """
    Method::execute 100001
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
      OPERATOR_CALL @1 20000
        native_call_add.out 19001
"""


class Frame(msgspec.Struct, forbid_unknown_fields=True):
    """As ``FileFormat.Frame`` of file-format-schema.json, speedscope 1.25."""

    name: str
    file: str | None = None
    line: int | None = None


class Shared(msgspec.Struct, forbid_unknown_fields=True):
    """As ``shared``."""

    frames: list[Frame]


class Profile(msgspec.Struct, forbid_unknown_fields=True):
    """As ``FileFormat.SampledProfile``."""

    type: Literal["sampled"]
    name: str
    unit: Literal["nanoseconds", "none"]
    startValue: int  # noqa: N815 - the format's names
    endValue: int  # noqa: N815
    samples: list[list[int]]
    weights: list[int]


class File(msgspec.Struct, forbid_unknown_fields=True):
    """As ``FileFormat.File``."""

    profiles: list[Profile]
    shared: Shared
    name: str
    exporter: str
    activeProfileIndex: int  # noqa: N815
    schema: Literal["https://www.speedscope.app/file-format-schema.json"] = msgspec.field(name="$schema")


def read(content: bytes) -> File:
    """The file, strictly: every stack leads to frames, and the weights fill the profile."""
    file = msgspec.json.decode(content, type=File)
    for profile in file.profiles:
        assert len(profile.samples) == len(profile.weights)
        assert sum(profile.weights) == profile.endValue - profile.startValue
        assert all(0 <= number < len(file.shared.frames) for stack in profile.samples for number in stack)
    assert 0 <= file.activeProfileIndex < len(file.profiles)
    return file


def names(file: File, number: int = 0) -> list[str]:
    """The stacks of a profile as lines."""
    profile = file.profiles[number]
    stacks_ = [[file.shared.frames[n].name for n in stack] for stack in profile.samples]
    return [f"{';'.join(stack)} {weight}" for stack, weight in zip(stacks_, profile.weights, strict=True)]


def summed_stacks(content: bytes) -> list[str]:
    """Every stack of the first profile once, with the sum of its weights."""
    sums: dict[str, int] = {}
    for line in names(read(content)):
        stack, _, weight = line.rpartition(" ")
        sums[stack] = sums.get(stack, 0) + int(weight)
    return [f"{stack} {weight}" for stack, weight in sums.items() if weight]


def by_name(text: str, repeat: int = 1) -> Analysis:
    """The analysis of a trace alone."""
    return analyse(table(text, repeat=repeat), TraceSource("t", "etdump", [("t", "0")]))


def test_operators_stand_in_their_calls() -> None:
    """The framework's own time is that of the frame it was spent in."""
    assert summed_stacks(speedscope("toy", [("fast", analysed())], By.OPERATOR)) == [
        "forward;0: delegate;Transpose (ND, X32) #1 50000",
        "forward;0: delegate;Convolution (NHWC, F32) IGEMM #1 300000",
        "forward;0: delegate;Add (ND, F32) #1 200000",
        "forward;0: delegate;Clamp (NC, F32) #1 40000",
        "forward;0: delegate 20000",
        "forward;1: portable;native_call_mean.out 90000",
        "forward;1: portable 10000",
        "forward;2: delegate;whatever 150000",
        "forward;2: delegate 50000",
        "forward 90000",
    ]


def test_operators_stand_in_their_modules() -> None:
    """Modules by their whole path, with their class; what belongs to none is apart."""
    assert summed_stacks(speedscope("toy", [("fast", analysed())], By.MODULE)) == [
        "forward;stem (Stem);stem.conv (Conv);Transpose (ND, X32) #1 50000",
        "forward;stem (Stem);stem.conv (Conv);Convolution (NHWC, F32) IGEMM #1 300000",
        "forward;stem (Stem);Add (ND, F32) #1 200000",
        "forward;stem (Stem);Clamp (NC, F32) #1 40000",
        "forward;DELEGATE_CALL 70000",
        "forward;head (Head);native_call_mean.out 90000",
        "forward;OPERATOR_CALL 10000",
        "forward;module unknown;whatever 150000",
        "forward 90000",
    ]


@pytest.mark.parametrize("repeat", [1, 3, 7])
@pytest.mark.parametrize("by", list(By))
def test_weights_are_whole_and_add_up_to_the_mean(by: By, repeat: int) -> None:
    """Though the means of single operators are not whole, and rounding each would lose some."""
    analysis = by_name(UNEVEN, repeat)
    operators = [msgspec.structs.replace(o, time_ns=o.time_ns + 0.4) for o in analysis.operators]
    whole = round(sum(o.time_ns for o in operators))
    found = list_stacks(msgspec.structs.replace(analysis, operators=operators), by)
    assert sum(weight for _, weight in found) == whole == 100003
    assert all(abs(weight - o.time_ns) < 1 for (_, weight), o in zip(found, operators, strict=True))


def test_frames_of_operators_lead_to_the_line() -> None:
    """Speedscope shows it beside the name."""
    file = read(speedscope("toy", [("fast", analysed())], By.OPERATOR))
    frame = next(frame for frame in file.shared.frames if frame.name.startswith("Convolution"))
    assert (frame.file, frame.line) == ("/home/me/model.py", 12)


def test_variants_are_profiles() -> None:
    """Frames are shared; one variant alone has no frame of its own."""
    results = [("fast", analysed()), ("a;b\nc", analysed(TRACE.replace("1000000", "1100000")))]
    file = read(speedscope("toy", results, By.OPERATOR))
    assert [profile.name for profile in file.profiles] == [
        "fast: mean inference by operator",
        "a;b\\nc: mean inference by operator",
    ]
    assert [profile.endValue for profile in file.profiles] == [1_000_000, 1_100_000]
    assert len(file.shared.frames) == len({frame.name for frame in file.shared.frames})


@pytest.mark.parametrize("name", [*HOSTILE, "a;b;c", "ends in 12", "", " "])
@pytest.mark.parametrize("by", list(By))
def test_hostile_names_stay_one_frame(name: str, by: By) -> None:
    """Names of methods, operators and backends are one line of limited length whatever they are."""
    analysis = analysed()
    rows = [
        msgspec.structs.replace(o, name=name, method=name, backend=name, module=None if o.position is None else name)
        for o in analysis.operators
    ]
    analysis = msgspec.structs.replace(analysis, operators=rows)
    file = read(speedscope(name, [(name, analysis)], by))
    assert all(re.fullmatch(r"[^\n]{1,300}", frame.name) for frame in file.shared.frames)


def test_a_trace_in_cycles_has_no_unit() -> None:
    """Speedscope knows none for cycles; the numbers are exact."""
    columns = {
        "run": pl.Series([0, 0]),
        "scope": pl.Series([Scope.KERNEL.value, Scope.EXECUTE.value]),
        "name": pl.Series(["INSTR_VECTOR", "Method::execute"]),
        "start": pl.Series([5, 0]),
        "duration": pl.Series([12, 20]),
        "parent": pl.Series([1, -1]),
        "instruction": pl.Series([0, None], dtype=pl.Int64),
    }
    analysis = analyse(EventTable.build(columns, Clock.CYCLES), TraceSource("t", "x", [("t", "0")]))
    (profile,) = read(speedscope("toy", [("t", analysis)], By.OPERATOR)).profiles
    assert (profile.unit, profile.endValue) == ("none", 20)
