"""The history of a figure: its order, its changes of level, and the gate that measures a run by its predecessors."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from many_bundles import Made, Mint
from opscope.api import add_to_store, check_history, stored_history
from opscope.core.errors import MismatchError, NotFoundError, RegressionError, UsageError
from opscope.core.stats.effect import FEWEST, Verdict, predict
from opscope.fleet.analysis.changes import SeriesRuns, Subject
from opscope.fleet.analysis.history import (
    FigureUnit,
    History,
    Metric,
    Order,
    Series,
    arrange_runs,
    make_history,
    version_key,
)
from opscope.fleet.analysis.history_gate import current_level
from opscope.fleet.bundles import BundleLabels
from opscope.fleet.history import check_new_changes
from opscope.fleet.reports.history import history_document
from opscope.fleet.runs import parse_filter
from opscope.reports.document.html import html_document
from opscope.reports.document.terminal import terminal_document
from texts import OPERATORS_SLOWER

BIN = Path(sys.executable).parent / "opscope"
LATENCY = Metric("latency", FigureUnit.TIME)
SUBJECT = Subject("toy", "fp32", "a phone", "local", "accelerated", 1, "", "untraced")
NOISE = [1.004, 0.997, 1.001, 0.995, 1.006, 0.999, 1.002, 0.996, 1.003, 0.998]


def runs(values: list[float], labels: list[str] | None = None, subject: Subject = SUBJECT) -> SeriesRuns:
    """One run an hour."""
    count = range(len(values))
    placed = [f"2026-01-{1 + number // 24:02d}T{number % 24:02d}:00:00" for number in count]
    named = labels or [f"day {number:03d}" for number in count]
    return SeriesRuns(
        subject, np.array(values), [f"{number:064x}" for number in count], placed, named, created=[None] * len(values)
    )


def history(*series: SeriesRuns, metric: Metric = LATENCY, since: str = "") -> History:
    """A history by date of runs of which nothing else is known."""
    return make_history("store", metric, Order.DATE, series, lambda _: {}, since)


def series(runs: SeriesRuns, metric: Metric = LATENCY) -> Series:
    """The only series of a history."""
    (found,) = history(runs._replace(higher_is_better=metric.higher_is_better), metric=metric).series
    return found


def nights(*levels: float, each: int = 15, since: str = "") -> History:
    """Nights of July 2026 on, so many of each level, with a scatter of 0.5 %."""
    values = np.repeat(levels, each) * np.exp(np.random.default_rng(1).normal(0, 0.005, each * len(levels)))
    dates = [f"2026-{7 + night // 28:02d}-{night % 28 + 1:02d}" for night in range(len(values))]
    made = runs(values.tolist(), dates)._replace(placed=[f"{date}T03:00:00" for date in dates])
    return history(made, since=since)


@pytest.fixture(scope="module")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Mint:
    """What bundles are made from."""
    return Mint(tmp_path_factory.mktemp("mint"), operators=6, rounds=2, runs=2)


@pytest.fixture(scope="module")
def store(mint: Mint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty runs an hour apart; behind the sixteenth, with another runtime, they take 20 % longer."""
    work = tmp_path_factory.mktemp("history")
    for number in range(30):
        factor = NOISE[number % len(NOISE)] * (1.2 if number >= 16 else 1.0)
        made = Made(number, hours=number, factor=factor, executorch="1.10.0" if number >= 16 else "1.9.0")
        add_to_store(
            [mint.make(work / f"{number}", made)], work / "store", given=BundleLabels(commit=f"c{number // 4}")
        )
    return work / "store"


def test_a_step_is_found_where_it_is() -> None:
    """20 runs, then 15 that take 10 % longer: one change, between its neighbours, with an interval that holds 10 %."""
    values = [100.0 * NOISE[n % 10] for n in range(20)] + [110.0 * NOISE[n % 10] for n in range(15)]
    (change,) = series(runs(values)).changes
    assert (change.first, change.before, change.label, change.runs) == (20, "day 019", "day 020", (20, 15))
    assert change.ratio == pytest.approx(1.1, abs=0.005)
    assert change.ci95 is not None
    assert change.ci95[0] < 1.1 < change.ci95[1]
    assert not change.better


@pytest.mark.parametrize(("higher", "better"), [(False, True), (True, False)])
def test_whether_a_change_is_good_depends_on_the_figure(higher: bool, better: bool) -> None:
    """Half the latency is better, half the speedup is worse."""
    values = [2.0 * NOISE[n % 10] for n in range(12)] + [1.0 * NOISE[n % 10] for n in range(12)]
    (change,) = series(runs(values), Metric("x", FigureUnit.RATIO, higher)).changes
    assert change.better is better


def test_zeros_are_not_judged() -> None:
    """A category that takes no time has no ratio."""
    assert series(runs([0.0] * 20)).not_judged == "some values are zero, so ratios are meaningless"


def test_versions_stand_in_order_of_their_numbers() -> None:
    """1.10 behind 1.9, a candidate before its release, and all runs of one version together."""
    words = ["1.10.0", "1.9.2", "1.10.0rc1", "2.0", "1.9.10", "not known"]
    assert sorted(words, key=version_key) == ["not known", "1.9.2", "1.9.10", "1.10.0rc1", "1.10.0", "2.0"]
    mixed = runs([1.0, 2.0, 3.0], ["1.10", "1.9", "1.10"])
    assert arrange_runs(mixed, Order.VERSION).values.tolist() == [2.0, 1.0, 3.0]


def test_commits_stand_in_order_of_their_first_runs() -> None:
    """A run of an old commit joins the others of that commit."""
    mixed = arrange_runs(runs([1.0, 2.0, 3.0], ["beef", "cafe", "beef"]), Order.COMMIT)
    assert (mixed.values.tolist(), mixed.labels) == ([1.0, 3.0, 2.0], ["beef", "beef", "cafe"])


def test_series_that_differ_in_anything_are_apart() -> None:
    """Another device is another series, and its runs do not look like a change."""
    other = msgspec.structs.replace(SUBJECT, device="another")
    found = history(runs([1.0] * 20, subject=other), runs([2.0] * 20))
    assert [(one.subject.device, one.level, one.changes) for one in found.series] == [
        ("a phone", 2.0, []),
        ("another", 1.0, []),
    ]


def test_one_more_value_of_the_same_scatter_is_seldom_called() -> None:
    """Of 2,000 normal histories of 5 to 40 values, at most 6 in 100 call the next value different."""
    generator = np.random.default_rng(5)
    called = 0
    for _ in range(2_000):
        values = generator.normal(0, 0.02, int(generator.integers(FEWEST, 41)))
        called += predict(values, float(generator.normal(0, 0.02))).verdict() is not Verdict.NO_DIFFERENCE
    assert 0.03 < called / 2_000 < 0.06


def test_a_value_that_scatter_does_not_explain_is_called() -> None:
    """Five predecessors decide, four do not; equal ones leave no room at all."""
    values = np.array([0.0, 0.01, -0.01, 0.005, -0.005])
    assert predict(values, 0.1).verdict() is Verdict.SLOWER
    assert predict(values, -0.1).verdict() is Verdict.FASTER
    assert predict(values[:4], 0.1).verdict() is Verdict.UNDECIDABLE
    assert predict(np.zeros(6), 0.0).verdict() is Verdict.NO_DIFFERENCE
    assert predict(np.zeros(6), 0.001).verdict() is Verdict.SLOWER


def test_only_the_current_level_counts() -> None:
    """Predecessors from before the last change are left out; of a short series none are."""
    assert current_level([100.0 * NOISE[n % 10] for n in range(15)] + [150.0 * NOISE[n % 10] for n in range(15)]) == 15
    assert current_level([1.0, 2.0, 1.0]) == 0


@pytest.mark.parametrize(
    ("text", "conditions", "last"),
    [
        ("", 0, None),
        ("model=toy, device=Test CPU, Linux x86_64,last=9", 2, 9),
        ("since=2026-01-01,until=2026-02-01,threads=2,version=1.5.1", 4, None),
    ],
)
def test_a_filter_is_a_list_of_keys(text: str, conditions: int, last: int | None) -> None:
    """A comma belongs to a value unless a key follows."""
    found = parse_filter(text)
    assert (len(found.conditions), found.last) == (conditions, last)
    assert "Test CPU, Linux x86_64" in found.values or "device" not in text


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T14:00:00+02:00", "2026-01-31 12:00"])
def test_a_date_in_a_filter_may_have_a_zone(text: str) -> None:
    """It is compared with the times in a store, which are UTC; Z is understood by Python 3.10 too."""
    assert parse_filter(f"since={text}").values == (datetime(2026, 1, 31, 12),)  # noqa: DTZ001 - as tables hold it


@pytest.mark.parametrize("text", ["modle=toy", "model", "last=none", "since=yesterday", "threads=0"])
def test_a_wrong_filter_is_named(text: str) -> None:
    """With what may stand there."""
    with pytest.raises(UsageError) as caught:
        parse_filter(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("by", "before", "label"),
    [("date", "2026-01-01", "2026-01-01"), ("commit", "c3", "c4"), ("version", "1.9.0", "1.10.0")],
)
def test_the_history_of_a_store_says_where_its_level_changed(by: str, before: str, label: str, store: Path) -> None:
    """By date, commit or version: the same runs, and one change of 20 %."""
    found = stored_history("latency", store, by=by, where="variant=accelerated")
    ((change,),) = [one.changes for one in found.series]
    assert (change.before, change.label, change.runs) == (before, label, (16, 14))
    assert change.ratio == pytest.approx(1.2, abs=0.01)


@pytest.mark.parametrize(
    "metric",
    [
        "p90",
        "mean",
        "category:Convolution",
        "kind:convolution",
        "backend:XNNPACK",
        "module:layers.0",
        "kernel:Add (ND)",
    ],
)
def test_every_figure_of_time_follows(metric: str, store: Path) -> None:
    """Parts of an inference take 20 % longer, too."""
    (one,) = stored_history(metric, store, where="variant=accelerated").series
    assert len(one.points) == 30
    assert [round(change.ratio, 1) for change in one.changes] == [1.2]


def test_what_does_not_change_has_no_change(store: Path) -> None:
    """The speedup is the same with either runtime."""
    (one,) = stored_history("speedup", store).series
    assert one.changes == []


@pytest.mark.parametrize(
    ("metric", "options", "kind"),
    [
        ("latenci", {}, UsageError),
        ("category:", {}, UsageError),
        ("latency", {"by": "moon"}, UsageError),
        ("latency", {"by": "version:'; DROP VIEW runs"}, UsageError),
        ("latency", {"where": "model=nothing"}, NotFoundError),
        ("module:nothing", {}, NotFoundError),
    ],
)
def test_what_is_not_there_is_said(metric: str, options: dict[str, str], kind: type[Exception], store: Path) -> None:
    """An unknown figure, order, model or module."""
    with pytest.raises(kind):
        stored_history(metric, store, **options)


def test_the_command_prints_a_line_and_writes_a_page(store: Path, tmp_path: Path) -> None:
    """Blocks for a terminal, a page with a picture that loads nothing, JSON of the published schema's name."""
    words = ["history", "latency", "--store", store, "--where", "variant=accelerated", "--by", "version"]
    done = subprocess.run(
        [str(BIN), *map(str, words), "--html", str(tmp_path / "h.html"), "--json", str(tmp_path / "h.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "▁" in done.stdout
    assert "+20" in done.stdout
    assert "1.10.0" in done.stdout
    page = (tmp_path / "h.html").read_text()
    assert "default-src &#39;none&#39;" in page
    assert "<svg" in page
    assert json.loads((tmp_path / "h.json").read_text())["schema"] == "opscope.history/2"


def test_names_stay_text_on_the_page_and_on_the_terminal() -> None:
    """A model, a version or a store that looks like markup."""
    trap = "<script>alert(1)</script>\x1b[2J"
    subject = msgspec.structs.replace(SUBJECT, model=trap, device=trap)
    values = [1e6 * NOISE[n % 10] * (2 if n > 14 else 1) for n in range(30)]
    labelled = runs(values, [trap if n > 14 else "old" for n in range(30)], subject)
    found = make_history(trap, Metric(trap, FigureUnit.TIME), Order.COMMIT, [labelled], lambda _: {})
    page = html_document(history_document(found), styles=("fleet.css",))
    assert "<script>" not in page
    assert "\x1b" not in page
    from rich.console import Console

    console = Console(width=100, record=True)
    console.print(terminal_document(history_document(found, has_pictures=False)))
    assert "\x1b[2J" not in console.export_text(styles=False)


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.2, "passed"), (1.22, "passed"), (1.3, "regression"), (1.0, "passed")]
)
def test_a_bundle_is_measured_by_its_stored_history(
    factor: float, outcome: str, mint: Mint, store: Path, tmp_path: Path
) -> None:
    """The current level passes, and so does what is within the threshold; 8 % more is a regression by operators."""
    report = check_history(mint.make(tmp_path / "new", Made(99, hours=99, factor=factor)), "store:", store=store)
    assert report.outcome.value == outcome
    assert (report.evidence.end_to_end.design, report.evidence.end_to_end.baseline_processes) == ("history", 14)
    assert any("16 earlier runs excluded" in note for note in report.notes)
    assert bool(report.evidence.slower) is (factor > 1.2)


def test_the_command_stops_a_slower_bundle(mint: Mint, store: Path, tmp_path: Path) -> None:
    """Exit code 1 with the operators that became slower, and Markdown for a job's summary."""
    bundle = mint.make(tmp_path / "new", Made(99, hours=99, factor=1.3))
    words = ["check", bundle, "--against", "store:", "--store", store, "--markdown", tmp_path / "c.md"]
    done = subprocess.run([str(BIN), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"see which {OPERATORS_SLOWER}" in done.stderr
    assert "### Operators that became slower" in (tmp_path / "c.md").read_text()


def test_a_bundle_is_not_measured_by_itself(mint: Mint, store: Path, tmp_path: Path) -> None:
    """One that is in the store already is judged by the others."""
    path = store.parent / "20"
    assert check_history(path, "store:", store=store).evidence.end_to_end.baseline_processes == 13
    lone = mint.make(tmp_path / "lone", Made(1, model="lone"))
    add_to_store([lone], tmp_path / "store")
    with pytest.raises(MismatchError, match="no comparable run"):
        check_history(lone, "store:", store=tmp_path / "store")


def test_a_filter_chooses_the_history(mint: Mint, store: Path, tmp_path: Path) -> None:
    """Only the newest four runs cannot decide; those of the old runtime make the new level a regression."""
    bundle = mint.make(tmp_path / "new", Made(98, hours=98, factor=1.2))
    few = check_history(bundle, "store:last=4", store=store)
    assert few.outcome.value == "inconclusive"
    assert few.criteria[0].reason == "4 runs in the history; a verdict needs at least 5"
    assert check_history(bundle, "store:version=1.9.0", store=store).outcome.value == "regression"
    with pytest.raises(MismatchError):
        check_history(bundle, "store:device=elsewhere", store=store)


def test_a_history_takes_no_budget(store: Path) -> None:
    """Options that need a baseline bundle are refused, before anything is read."""
    command = ["check", store, "--against", "store:", "--store", store, "--force"]
    done = subprocess.run([str(BIN), *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--force" in done.stderr


def test_a_drift_is_a_change() -> None:
    """It has one place less than a step: any of its runs."""
    (found,) = nights(*np.linspace(100, 110, 30), each=1).series
    assert [(change.kind, change.better) for change in found.changes] == [("drift", False)]


@pytest.mark.parametrize(("values", "changes", "judged"), [(35, 0, True), (8, 0, True), (7, 0, False)])
def test_scatter_is_no_change(values: int, changes: int, judged: bool) -> None:
    """A series without a step has none; of seven runs nothing is said, and why."""
    found = series(runs([100.0 * NOISE[n % 10] for n in range(values)]))
    assert (len(found.changes), found.not_judged is None) == (changes, judged)


def test_older_changes_are_left_out_and_all_runs_stay() -> None:
    """A step of July and one of August: since August there is one, at the same level; it ends a job."""
    whole = nights(100, 105, 112, each=20)
    late = nights(100, 105, 112, each=20, since="2026-08-01T00:00:00")
    assert [one.label for one in whole.series[0].changes] == ["2026-07-21", "2026-08-13"]
    assert [one.label for one in late.series[0].changes] == ["2026-08-13"]
    assert late.series[0].level == whole.series[0].level
    with pytest.raises(RegressionError, match="1 change for the worse"):
        check_new_changes(late)
    check_new_changes(nights(100, 105, 112, each=20, since="2026-09-15T00:00:00"))
    check_new_changes(nights(100, 90))


def test_runs_stand_where_they_began(mint: Mint, tmp_path: Path) -> None:
    """Also old runs that are added later."""
    store = tmp_path / "store"
    made = [mint.make(tmp_path / f"{number}", Made(number, hours=-number)) for number in range(4)]
    add_to_store(made[:2], store)
    add_to_store(made[2:], store)
    (found,) = stored_history("latency", store, where="variant=accelerated").series
    times = [point.created for point in found.points]
    assert (len(times), times) == (4, sorted(times))
