"""Bugs in the analysis of a trace of tiles: they cost what they are in, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import pytest

from aie_gemm import Gemm
from aie_traces import Tile, json_text
from opscope.api import to_json
from opscope.npu.analysis import tiles as analysis
from opscope.npu.reports import page, pictures
from opscope.npu.workflows import aie
from texts import IF_SHARED, NOTHING_TO_REPORT, REPORT_THE_BUG

Run: TypeAlias = Callable[..., tuple[int, str]]
BUG = "a bug in opscope (KeyError: 'planted')"
SIZES = "--M 48 --K 128 --N 32 --m 16 --k 32 --n 32 --row 1 --col 1 --dtype bf16 --arch npu1".split()


pytestmark = pytest.mark.usefixtures("as_for_users")


def saved(path: Path, *tiles: Tile) -> Path:
    """A trace in JSON."""
    path.write_bytes(b"".join(json_text(tiles)))
    return path


def broken(*_: object, **__: object) -> NoReturn:
    """Code with a bug."""
    raise KeyError("planted")


def document(out: Path) -> dict[str, Any]:
    """What was written of a trace."""
    return json.loads((out / "analysis.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The row of the core without a bug."""
    trace = saved(tmp_path_factory.mktemp("whole") / "t.json", Gemm().tile())
    asked = dict(zip((word.strip("-") for word in SIZES[::2]), SIZES[1::2], strict=True))
    numbers = {name: int(value) for name, value in asked.items() if value.isdecimal()}
    request = aie.TilesRequest(**numbers, dtype="bf16", arch="npu1")
    (row,) = json.loads(to_json(aie.analyze_tiles(trace, request).analysis))["tiles"]
    return row


MEANING = "what the cycles of tile 2,0 mean"
PARTS = {
    "judge_iterations": "the comparison of iterations",
    "find_damage": MEANING,
    "rate": MEANING,
    "find_bound": MEANING,
    "advise": MEANING,
    "view_array": "all cores together",
    "inconsistencies": "contradictions in the given values",
    "wait_findings": "waits of other units",
    "recommendations": "the advice on tile 2,0",
    "report_slowest": "the advice on all cores",
}
"""What the analysis of a trace calls, and what a bug in it costs."""


@pytest.mark.parametrize("function", PARTS)
def test_a_bug_in_one_part_costs_that_part(
    function: str, whole: dict[str, Any], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cycles, calls and their kinds are there, and every page says what is not known."""
    trace, out = saved(tmp_path / "t.json", Gemm().tile()), tmp_path / "out"
    monkeypatch.setattr(analysis, function, broken)
    code, said = run("aie", trace, *SIZES, "--out", out)
    told = f"{PARTS[function]}: unknown because of {BUG}"
    assert (code, f"warning: {told}" in said) == (0, True)
    (kept,) = (out / "problems").iterdir()
    assert f"with {kept} and" in said
    assert "planted" in kept.read_text()
    for name in ("report.md", "report.html", "analysis.json"):
        text = (out / name).read_text().replace("\\", "").replace("&#39;", "'")
        assert told in text, name
    (row,) = document(out)["tiles"]
    for known in ("calls", "window_cycles", "cycles", "slots", "kinds"):
        assert row[known] == whole[known]
    assert (row["mac_per_cycle"] is None, row["bound"] is None) == (PARTS[function] == MEANING,) * 2


def test_a_core_with_a_bug_leaves_the_others(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row says why it has no calls; the page is of the other core."""
    trace = saved(tmp_path / "t.json", Gemm().tile(), Gemm()._replace(row=3).tile())
    pair = analysis.pair_calls
    monkeypatch.setattr(analysis, "pair_calls", lambda tile: broken() if tile.tile == "3,0" else pair(tile))
    code, said = run("aie", trace, "--out", tmp_path / "out")
    assert (code, f"tile 3,0: unknown because of {BUG}" in said) == (0, True)
    rows = {row["tile"]: row for row in document(tmp_path / "out")["tiles"]}
    assert rows["3,0"]["bound_reason"] == f"unknown because of {BUG}"
    assert rows["2,0"]["window_cycles"] > 0


def test_without_a_core_the_error_names_the_trace_and_what_to_attach(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say that the trace holds no calls."""
    trace, out = saved(tmp_path / "t.json", Gemm().tile()), tmp_path / "out"
    monkeypatch.setattr(analysis, "account", broken)
    code, said = run("aie", trace, "--out", out)
    assert (code, f"error: {trace}: {NOTHING_TO_REPORT}: tile 2,0: unknown because of {BUG}" in said) == (
        70,
        True,
    )
    assert f"{REPORT_THE_BUG} {out / 'problems'} {IF_SHARED} {trace}" in said
    assert "no call" not in said
    assert (out / "report.md").exists()


@pytest.mark.parametrize(
    ("room", "function", "named"),
    [
        (pictures, "call_durations", "the picture durations"),
        (page, "_headline_figures", "the figures of the first screen"),
        (page, "answer", "report.html"),
        (aie, "published", "the published tool's files"),
    ],
)
def test_a_report_with_a_bug_leaves_the_rest(
    room: object, function: str, named: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture, a section, a page, the published files."""
    trace, out = saved(tmp_path / "t.json", Gemm().tile()), tmp_path / "out"
    monkeypatch.setattr(room, function, broken)
    code, said = run("aie", trace, "--out", out)
    assert (code, f"warning: {named}: unknown because of {BUG}" in said) == (0, True)
    assert document(out)["tiles"][0]["window_cycles"] > 0
    assert (out / "report.html").read_text().rstrip().endswith("</html>")
    assert (out / "report.md").exists()
