"""The report on a fleet: who is fast and slow where, and what takes the time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from many_bundles import Made, Mint
from nightly_fleet import eventful_fleet, store_nights
from opscope.api import add_to_store, fleet_report, stored_fleet
from opscope.core.errors import NotFoundError, UsageError
from opscope.core.outputs import MARKDOWN_MARK
from opscope.fleet.analysis.fleet import Fleet, FleetRun, find_dominant, with_times_best
from opscope.fleet.bundles import BundleLabels
from opscope.fleet.reports.fleet import MOST_COLUMNS, distance_map, fleet_document, speedup_map
from opscope.reports.document.blocks import MapCell
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document

SHARES = {
    **dict.fromkeys(("bundle", "variant", "operator", "category", "backend"), pl.String),
    "share": pl.Float64,
}


def run(device: str, model: str = "toy", variant: str = "accelerated", **given: object) -> FleetRun:
    """A configuration of which only what matters is said."""
    usual = {
        "bundle": f"{device}-{model}",
        "role": variant,
        "created": "2026-01-01T00:00:00",
        "runs": 1,
        "latency_ns": 1e6,
        "arm": "untraced",
        "speedup": None if variant == "baseline" else 2.0,
        "ci95": None,
        "verdict": None if variant == "baseline" else "faster",
        "grade": "good",
        "placed": "2026-01-30T05:00:00",
    }
    return FleetRun(device=device, model=model, variant=variant, **(usual | given))  # type: ignore[arg-type]


def frame_of(shares: Sequence[tuple[str | float, ...]]) -> pl.DataFrame:
    """Shares of kinds of operators, a row each."""
    return pl.DataFrame(shares, schema=SHARES, orient="row")


def fleet(runs: list[FleetRun], shares: Sequence[tuple[str | float, ...]] = (), store: str = "store") -> Fleet:
    """A fleet of some runs, without changes."""
    names = [sorted({getattr(one, name) for one in runs}) for name in ("model", "device", "variant")]
    found = find_dominant(runs, frame_of(shares))
    return Fleet(store, *names, with_times_best(runs), len(runs), "2026-01-16T05:00:00", [], [], found, len(runs))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on two devices; one of them was run again with another result."""
    work = tmp_path_factory.mktemp("fleet")
    mint = Mint(work / "mint", operators=12, rounds=2, runs=2)
    made = [Made(n, model=f"m{n % 2}", cpu=f"d{n // 2}", hours=n, factor=1.0 + n) for n in range(4)]
    for one in (*made, Made(9, model="m0", cpu="d0", hours=9, factor=7.0)):
        add_to_store([mint.make(work / f"{one.number}", one)], work / "store")
    return work / "store"


def test_each_configuration_counts_with_its_newest_run(store: Path) -> None:
    """Four configurations of two variants; that of two runs has the latency of the second."""
    found = stored_fleet(store)
    assert (found.models, found.devices, found.variants) == (
        ["m0", "m1"],
        ["d0, Linux x86_64", "d1, Linux x86_64"],
        ["accelerated"],
    )
    assert len(found.runs) == 8
    kept = [run for run in found.runs if (run.device, run.variant) == ("d0, Linux x86_64", "accelerated")]
    first, other = (next(run for run in kept if run.model == model) for model in found.models)
    assert (first.runs, other.runs) == (2, 1)
    assert first.latency_ns == pytest.approx((other.latency_ns or 0) * 7 / 2, rel=1e-6)


def test_a_filter_chooses_runs(store: Path) -> None:
    """Until the second run of it, the configuration has the first one's latency."""
    before = stored_fleet(store, where="until=2026-01-01T08:00,model=m0")
    assert {one.runs for one in before.runs} == {1}
    with pytest.raises(NotFoundError):
        stored_fleet(store, where="model=m9")


def test_what_dominates_is_a_mean_over_configurations() -> None:
    """A sort that is in one of two configurations counts half; where it is largest is said."""
    runs = [run("a"), run("b")]
    shares = [
        ("a-toy", "accelerated", "Convolution", "Convolution", "XNNPACK", 0.6),
        ("b-toy", "accelerated", "Convolution", "Convolution", "XNNPACK", 0.2),
        ("b-toy", "accelerated", "Softmax", "Other", "portable", 0.7),
        ("b-toy", "baseline", "Softmax", "Other", "portable", 0.9),
    ]
    first, second = find_dominant(runs, frame_of(shares))
    assert (first.operator, first.share, first.present, first.first) == ("Convolution", 0.4, 2, 1)
    assert first.where == "toy on a, accelerated"
    assert (second.operator, second.share, second.highest, second.first) == ("Softmax", 0.35, 0.7, 1)


def test_the_report_has_a_page_markdown_and_json(store: Path, tmp_path: Path) -> None:
    """With every model and device; an unknown format is refused before anything is written."""
    written = fleet_report(tmp_path / "out", store)
    assert [path.name for path in written] == ["fleet.html", "fleet.md", "fleet.json"]
    for path in written[:2]:
        text = path.read_text()
        assert all(name in text for name in ("m0", "m1", "d0", "d1"))
    assert json.loads(written[2].read_text())["schema"] == "opscope.fleet/2"
    assert "default-src &#39;none&#39;" in written[0].read_text()
    with pytest.raises(UsageError):
        fleet_report(tmp_path / "other", store, ["pdf"])
    assert not (tmp_path / "other").exists()


def test_two_devices_of_one_kind_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """``--device`` names them; without it they are one."""
    mint = Mint(tmp_path / "mint", operators=6, rounds=2, runs=2)
    for number, name in enumerate(("left board", "right board")):
        bundle = mint.make(tmp_path / f"{number}", Made(number, hours=number))
        add_to_store([bundle], tmp_path / "store", given=BundleLabels(device=name))
    assert stored_fleet(tmp_path / "store").devices == ["left board", "right board"]


def test_names_stay_text() -> None:
    """Devices, models, variants and operators that look like markup."""
    trap = "<img src=x onerror=alert(1)>|`x`"
    runs = [run(f"{trap}{n}", trap, trap, role="accelerated", bundle="x") for n in range(2)]
    document = fleet_document(fleet(runs, [("x", trap, trap, trap, trap, 0.5)], trap))
    page = html_document(document, styles=("fleet.css",))
    assert "<img" not in page
    assert " style=" not in page
    text = markdown_document(document).removesuffix(f"{MARKDOWN_MARK}\n")
    for escaped in ("\\<", "\\`", "\\|"):
        text = text.replace(escaped, "")
    assert "<" not in text
    assert "`" not in text


@pytest.mark.parametrize(
    ("speedup", "verdict", "cell"),
    [
        (2.0, "faster", MapCell("2.00", 2)),
        (16.0, "faster", MapCell("16", 5)),
        (0.5, "slower", MapCell("0.50", -2)),
        (1.1, "no difference", MapCell("1.10?")),
        (2.0, "undecidable", MapCell("2.00?")),
        (None, None, MapCell("-")),
    ],
)
def test_only_what_was_shown_has_a_colour(speedup: float | None, verdict: str | None, cell: MapCell) -> None:
    """By the logarithm of the speedup, up to four times on either side; a question mark where none was shown."""
    runs = [run("phone", variant="sme2", speedup=speedup, verdict=verdict), run("phone", variant="i8mm")]
    assert speedup_map(fleet(runs), "sme2").rows == [("toy", [cell])]


def test_distances_are_from_the_fastest_device() -> None:
    """The fastest is named; a latency with tracing is never beside one without."""
    others = [run("three", latency_ns=64e6), run("four", latency_ns=1.0, arm="traced")]
    runs = [run("one"), run("two", latency_ns=4e6), *others]
    assert dict(distance_map(fleet(runs)).rows) == {
        "one": [MapCell("best", 2)],
        "two": [MapCell("4.0", -2)],
        "three": [MapCell("64", -5)],
    }


def test_a_map_is_bounded() -> None:
    """What has no room is counted."""
    shown = distance_map(fleet([run(f"d{n:03}", f"m{m:03}") for n in range(70) for m in range(80)]))
    assert (len(shown.columns), shown.left_out) == (MOST_COLUMNS, (0, 10))


def test_the_page_of_an_eventful_fleet_says_nothing_twice(tmp_path: Path) -> None:
    """Forty models on ten devices: changes stand in tables, and no sentence is said of each series."""
    store_nights(tmp_path / "store", eventful_fleet(40, 10, 20, seed=4))
    written = fleet_report(tmp_path / "out", tmp_path / "store")
    lines = [line for line in written[1].read_text().splitlines() if line and not line.startswith("|")]
    assert len(lines) == len(set(lines))
    found = json.loads(written[2].read_text())
    assert len(found["changes"]) > 20
    assert all(path.stat().st_size < 3_000_000 for path in written[:1])
