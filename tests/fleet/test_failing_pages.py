"""Bugs in pages on many runs: a section that fails is not known, and the page never says that there is nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeAlias

import pytest

from opscope.fleet import fleet as stored
from opscope.fleet import history as stored_history
from opscope.fleet.analysis import fleet as analysis
from opscope.fleet.analysis import history as history_analysis
from opscope.fleet.reports import fleet as page
from opscope.fleet.reports import history as history_page
from opscope.runtimes.executorch.etdump import EtdumpReader
from opscope.workflows.reports import combined
from texts import FIRST_NIGHT, NOTHING_TO_REPORT, REPORT_THE_BUG

pytest.importorskip("duckdb")
Run: TypeAlias = Callable[..., tuple[int, str]]
BUNDLES = Path(__file__).parents[1] / "data" / "bundles"
BUG = "a bug in opscope (KeyError: 'planted')"


pytestmark = pytest.mark.usefixtures("as_for_users")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded bundles."""
    from opscope.api import add_to_store

    place = tmp_path_factory.mktemp("pages") / "store"
    add_to_store([BUNDLES / "with-ceilings", BUNDLES / "flat-rooms"], place)
    return place


def broken(*_: object, **__: object) -> NoReturn:
    """Code with a bug."""
    raise KeyError("planted")


def text_of(path: Path) -> str:
    """A page without what keeps names from being read as markup."""
    return path.read_text().replace("\\", "").replace("&#39;", "'")


@pytest.mark.parametrize(
    ("room", "function", "named"),
    [
        (stored, "_sorts", "the operators of runs"),
        (stored, "_followed", "the runs before the newest"),
        (stored, "level_changes_since", "changes of level"),
        (stored, "_with_changes", "what changed tonight"),
        (analysis, "rankings", "the rankings of devices"),
        (analysis, "dominant", "the operators that dominate"),
        (analysis, "parts_by", "the table of devices"),
        (analysis, "distant_pairs", "pairs far from the best device"),
        (analysis, "widespread", "common changes"),
        (page, "_tiles", "the figures of the first screen"),
        (page, "distance_map", "the map of distances"),
        (page, "speedup_map", "the maps of speedups"),
        (page, "fleet_facts", "the sentences on speedups"),
    ],
)
def test_a_section_of_a_fleet_with_a_bug_leaves_the_rest(  # noqa: PLR0913, PLR0917 - where, what, and four fixtures
    room: ModuleType,
    function: str,
    named: str,
    store: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both pages say what is not known; the traceback is beside them."""
    monkeypatch.setattr(room, function, broken)
    code, said = run("store", "report", "--store", store, "--out", tmp_path)
    told = f"{named}: unknown because of {BUG}"
    kept = tmp_path / "problems" / f"{named.replace(' ', '-')}.txt"
    assert (code, f"warning: {told}" in said, str(kept) in said) == (0, True, True)
    assert "planted" in kept.read_text()
    for name in ("fleet.html", "fleet.md"):
        assert told in text_of(tmp_path / name), name
        assert "accelerated" in text_of(tmp_path / name)
    assert len(json.loads((tmp_path / "fleet.json").read_text())["runs"]) == 4
    html = text_of(tmp_path / "fleet.html")
    assert ("No pair is" in html) <= (function != "distant_pairs")
    assert (FIRST_NIGHT in html) <= (function not in {"_followed", "_with_changes"})


@pytest.mark.parametrize("named", page.SECTIONS)
def test_each_section_of_a_fleet_is_one_that_can_fail(
    named: str, store: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pages say what is not known, and have the others."""
    assert run("store", "report", "--store", store, "--out", tmp_path / "whole")[0] == 0
    monkeypatch.setitem(page.SECTIONS, named, broken)
    assert run("store", "report", "--store", store, "--out", tmp_path)[0] == 0
    for name, heading in (("fleet.html", "<h2>"), ("fleet.md", "\n## ")):
        told, whole = text_of(tmp_path / name), text_of(tmp_path / "whole" / name)
        assert f"{named}: unknown because of {BUG}" in told
        assert whole.count(heading) - told.count(heading) in {0, 1}
        assert told.count(heading) >= 3


def test_a_page_of_a_fleet_with_a_bug_leaves_the_other(
    store: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that is lost says where its traceback is; without any figure the error names what to attach."""
    monkeypatch.setattr(page, "html_document", broken)
    assert run("store", "report", "--store", store, "--out", tmp_path)[0] == 0
    assert f"fleet.html: unknown because of {BUG}" in text_of(tmp_path / "fleet.html")
    assert "Devices" in (tmp_path / "fleet.md").read_text()
    monkeypatch.setattr(stored, "_named", broken)
    code, said = run("store", "report", "--store", store, "--out", tmp_path)
    assert (code, f"error: {tmp_path}: {NOTHING_TO_REPORT}: {BUG}" in said) == (70, True)
    assert f"{REPORT_THE_BUG} {tmp_path / 'problems'}" in said


@pytest.mark.parametrize(
    ("room", "function", "named"),
    [
        (history_analysis, "series", "the series of toy_cnn_xnnpack_fp32 on"),
        (stored_history, "common_steps", "what changes have in common"),
        (history_page, "_tiles", "the figures of the first screen"),
        (history_page, "_steady", "the table of series"),
        (history_page, "html_document", "history.html"),
    ],
)
def test_a_part_of_a_history_with_a_bug_leaves_the_rest(  # noqa: PLR0913, PLR0917 - where, what, and four fixtures
    room: ModuleType,
    function: str,
    named: str,
    store: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A series that cannot be judged says so, and a gate does not pass on it."""
    monkeypatch.setattr(room, function, broken)
    out = tmp_path / "history.html"
    code, said = run("history", "memory", "--store", store, "--html", out)
    assert (code, f"warning: {named}" in said, "Traceback" in said) == (0, True, True)
    assert "toy_cnn_xnnpack_fp32" in said
    assert out.read_text().rstrip().endswith("</html>")
    lost = function == "series"
    assert (f"not searched for changes: {BUG}" in " ".join(said.split())) == lost
    if lost:
        assert f"not searched for changes: {BUG}" in text_of(out)
    code, said = run("history", "memory", "--store", store, "--fail-on", "new", "--quiet")
    assert (code, "series are not judged: a bug in opscope" in said) == ((14, True) if lost else (0, False))


def test_a_combined_report_with_a_bug_keeps_its_other_formats(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback is beside them, and what ends all of it names what to attach."""
    monkeypatch.setattr("opscope.reports.combined.combined.combined_html", broken)
    both = (BUNDLES / "with-ceilings", BUNDLES / "flat-rooms")
    code, said = run("report", *both, "--out", tmp_path)
    assert (code, f"warning: combined.html: unknown because of {BUG}" in said) == (0, True)
    assert (tmp_path / "problems" / "combined.html.txt").exists()
    assert "accelerated" in (tmp_path / "combined.json").read_text()
    monkeypatch.setattr(combined, "combined", broken)
    code, said = run("report", *both, "--out", tmp_path)
    assert (code, f"files in {tmp_path / 'problems'}" in said) == (70, True)


def test_a_store_takes_no_bundle_of_which_a_bug_leaves_a_gap(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the gap for good; the bundle is named, and can be added once the bug is mended."""
    monkeypatch.setattr(EtdumpReader, "read", broken)
    bundle = BUNDLES / "flat-rooms"
    code, said = run("store", "add", bundle, "--store", tmp_path / "store", "--recompute")
    assert (code, f"{NOTHING_TO_REPORT}: the trace variants/" in said) == (11, True)
    monkeypatch.undo()
    assert run("store", "add", bundle, "--store", tmp_path / "store", "--recompute")[0] == 0
