"""The icicle: boxes lie inside of what holds them, add up, and stay few."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree as ET

import msgspec
import pytest

from large_content import large_content
from opscope.analysis.analysis import Analysis
from opscope.program.operators.kinds import Category
from opscope.reports.pictures.icicle import IcicleBox, build_module_boxes, build_program_boxes, draw_icicle


class Box(NamedTuple):
    """A box of a picture, in per cent and rows."""

    label: str
    title: str
    kind: str
    start: float
    width: float
    row: int


def boxes(picture: str) -> list[Box]:
    """The boxes of a picture, in its order."""
    return [
        Box(
            box.findtext("text"),
            box.findtext("title"),
            box.get("class"),
            float(box.get("x").rstrip("%")),
            float(box.get("width").rstrip("%")),
            int(box.get("y")) // 22,
        )
        for box in ET.fromstring(picture)  # noqa: S314 - it was written a line ago
    ]


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """A model of 20 operators whose layers are known."""
    shown = large_content(tmp_path_factory.mktemp("icicle"), operators=20, inferences=12).shown
    assert shown
    return shown


def leaf(label: str, time_ns: float, category: Category = Category.GEMM) -> IcicleBox:
    """An operator."""
    return IcicleBox(label, "", time_ns, category)


def test_a_box_is_as_wide_as_its_time() -> None:
    """Children stand side by side below their parent, in its order; what is left is the parent's own time."""
    root = IcicleBox("all", "", 100, None, (leaf("a", 60), leaf("b", 30, Category.CONVOLUTION)))
    found = [(box.label, box.start, box.width, box.row) for box in boxes(draw_icicle(root, "picture"))]
    assert found == [("all", 0, 100, 0), ("a", 0, 60, 1), ("b", 60, 30, 1)]


def test_a_title_tells_time_and_share() -> None:
    """The whole name, milliseconds, share, and what else is known."""
    root = IcicleBox("all", "", 2_000_000, None, (IcicleBox("a", "linear, XNNPACK", 500_000, Category.GEMM),))
    assert boxes(draw_icicle(root, "picture"))[1].title == "a: 0.500 ms, 25.0 %\nlinear, XNNPACK"


def test_short_neighbours_are_one_box_in_the_colour_of_most_of_them() -> None:
    """A thousand operators of which none could be seen are one box that says how many they are."""
    many = tuple(leaf(f"n{k}", 1, Category.CONVOLUTION if k % 3 else Category.GEMM) for k in range(1_000))
    root = IcicleBox("all", "", 101_000, None, (*many[:500], leaf("long", 100_000), *many[500:]))
    found = boxes(draw_icicle(root, "picture"))
    assert [box.label for box in found] == ["all", "500 shorter", "long", "500 shorter"]
    assert found[1].kind == "c0 small"
    assert found[1].title.endswith("mostly Convolution")
    assert sum(box.width for box in found[1:]) == pytest.approx(100, abs=0.01)


def test_ten_thousand_alike_are_still_a_picture() -> None:
    """The number of boxes is limited however the time is spread, and nothing is lost of it."""
    calls = tuple(
        IcicleBox(f"{call}", "", 100, None, tuple(leaf(f"{call}.{k}", 1) for k in range(100))) for call in range(100)
    )
    found = boxes(draw_icicle(IcicleBox("all", "", 10_000, None, calls), "picture"))
    assert len(found) < 1_000
    for row in (1, 2):
        assert sum(box.width for box in found if box.row == row) == pytest.approx(100, abs=0.1)


def test_what_takes_no_time_has_no_picture() -> None:
    """Nor are boxes without width drawn."""
    assert draw_icicle(IcicleBox("all", "", 0), "picture") == ""
    assert len(boxes(draw_icicle(IcicleBox("all", "", 10, None, (leaf("a", 10), leaf("b", 0))), "picture"))) == 2


def test_the_program_by_instruction(analysis: Analysis) -> None:
    """Method, calls with their backends in the program's order, operators by their layers; together the latency."""
    root = build_program_boxes(analysis)
    assert root.time_ns == pytest.approx(analysis.headline_ns - sum(row.time_ns or 0.0 for row in analysis.outside))
    assert root.label == "method forward"
    assert [part.label for part in root.children[:4]] == ["0 XNNPACK", "1 portable", "2 XNNPACK", "3 portable"]
    assert [part.label for part in root.children[0].children][:2] == ["blocks.0.layers.0", "blocks.0.layers.1"]
    assert "DELEGATE_CALL" in [part.label for part in root.children[0].children]
    assert root.children[-1].label == "Method::execute"


def test_the_program_by_module(analysis: Analysis) -> None:
    """Modules hold modules; what belongs to none stands apart; together the latency."""
    root = build_module_boxes(analysis)
    assert root is not None
    assert root.time_ns == pytest.approx(analysis.headline_ns - sum(row.time_ns or 0.0 for row in analysis.outside))
    blocks, loose = root.children
    assert (blocks.label, loose.label) == ("blocks", "outside any module")
    assert [part.label for part in blocks.children] == ["0.layers", "1.layers"]
    assert blocks.detail == "Sequential"
    convolution = blocks.children[0].children[1]
    assert (convolution.label, convolution.detail) == ("1", "Conv2d")
    assert convolution.children[0].detail == "Convolution (NHWC, F32) IGEMM #1; XNNPACK"


def test_without_modules_there_is_no_picture_of_them(analysis: Analysis) -> None:
    """They are not made up."""
    assert build_module_boxes(msgspec.structs.replace(analysis, modules=[])) is None


def test_boxes_lie_inside_of_what_holds_them(analysis: Analysis) -> None:
    """Every box but the first lies below one that is at least as wide, and none overlap in a row."""
    for root in (build_program_boxes(analysis), build_module_boxes(analysis)):
        assert root
        found = boxes(draw_icicle(root, "picture"))
        for box in found[1:]:
            above = [one for one in found if one.row == box.row - 1]
            end = box.start + box.width
            assert any(a.start - 0.002 <= box.start and end <= a.start + a.width + 0.002 for a in above), box
        for row in range(max(box.row for box in found) + 1):
            own = [box for box in found if box.row == row]
            assert all(a.start + a.width <= b.start + 0.002 for a, b in pairwise(own))


def test_a_path_of_a_thousand_modules_is_no_tower(analysis: Analysis) -> None:
    """Below a depth that can be read the rest of a path is one name; names are cut and stay text."""
    deep = ".".join(["<b>&"] * 1_000)
    branching = [f"{'.'.join('m' * k)}{'.' * bool(k)}end{k}" for k in range(40)]
    rows = [
        msgspec.structs.replace(row, module=deep if n % 2 else branching[n % 40], time_ns=1_000.0)
        for n, row in enumerate(analysis.operators)
    ]
    modules = [msgspec.structs.replace(analysis.modules[0], path=path) for path in (deep, *branching)]
    root = build_module_boxes(msgspec.structs.replace(analysis, operators=rows, modules=modules))
    assert root
    picture = draw_icicle(root, "picture")
    found = boxes(picture)
    assert max(box.row for box in found) <= 11
    assert max(len(box.label) for box in found) <= 60
    assert not re.search(r"<b>", picture)
