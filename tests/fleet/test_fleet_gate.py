"""`opscope check --new`: all series of a store, what they share, since when, in which operators; wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pytest

from fleet_nights import steady, write_nights
from opscope.analysis.gate.decision import Outcome
from opscope.api import check_fleet, stored_fleet, stored_history
from opscope.core.errors import NotFoundError, UntrustedError, UsageError
from opscope.fleet.analysis.causes import CauseKind
from opscope.fleet.analysis.changes import FALSE_RED_NIGHTS, SeriesRuns, Subject, detect_changes
from opscope.fleet.reports.fleet_gate import fleet_text
from opscope.reports.formats.ci import junit_xml
from opscope.reports.gate import gate_markdown

BIN = Path(sys.executable).parent / "opscope"
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
NIGHTS = 24
LAST = "2026-01-24"
"""Date of the last night."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six models on five phones: phone 2 is slower for two nights, with a new system; last night model 1 on phone 4."""
    nights = steady(6, 5, NIGHTS, scatter=0.005)
    nights.latency[:, 2, -2:] *= 1.12
    nights.system[2, -2:] = "Android 15"
    nights.latency[1, 4, -1] *= 1.3
    return write_nights(tmp_path_factory.mktemp("gate") / "store", nights)


def test_a_device_is_told_from_a_single_series(store: Path) -> None:
    """Six of six series of one phone with its new system, and one series alone, with its first run and operators."""
    found = check_fleet(LAST, store)
    assert found.outcome is Outcome.REGRESSION
    assert (found.evidence.judged, len(found.evidence.slower)) == (30, 7)
    (cause,) = found.evidence.causes
    assert (cause.kind, cause.name, cause.changed, cause.series) == (CauseKind.DEVICE, "phone 2", 6, 6)
    assert (cause.elsewhere, cause.elsewhere_changed, cause.label) == (24, 1, "2026-01-23")
    assert [(f.name, f.after, f.changed, f.stayed) for f in cause.facts] == [("system", "Android 15", 6, 0)]
    (alone,) = [row for row in found.evidence.slower if row.cause is None]
    assert (alone.subject.model, alone.subject.device, alone.runs) == ("model-1", "phone 4", 1)
    assert alone.slowdown == pytest.approx(0.3, abs=0.02)
    assert (alone.before.placed[:10], alone.first.placed[:10]) == ("2026-01-23", LAST)
    assert (alone.operators[0].name, alone.changed) == ("Convolution", [])
    together = [row for row in found.evidence.slower if row.cause is CauseKind.DEVICE]
    assert len(together) == 6
    assert {fact.after for row in together for fact in row.changed} == {"Android 15"}


def test_every_form_says_it_once(store: Path) -> None:
    """Markdown and JUnit name the device and the series."""
    found = check_fleet(LAST, store)
    text = fleet_text(found)
    markdown = gate_markdown(found, text)
    assert markdown.count("device phone 2 at 2026-01-23: 6 of 6 series slower") == 1
    assert markdown.count("model-1 fp32 on phone 4") == 1
    suite = ET.fromstring(junit_xml(found, text))[0]  # noqa: S314 - our own output
    assert len(suite.findall("testcase")) == 6


@pytest.mark.parametrize(
    ("place", "kind", "name"),
    [
        (np.s_[3, :, -1], CauseKind.MODEL, "model-3"),
        (np.s_[:, 4, -1], CauseKind.DEVICE, "phone 4"),
        (np.s_[:, :, -1], CauseKind.SOFTWARE, ""),
    ],
    ids=["model", "device", "software"],
)
def test_what_slowed_is_named_by_the_manifests(
    place: tuple[object, ...], kind: CauseKind, name: str, tmp_path: Path
) -> None:
    """One model with another program, one phone with another system, or all with another runtime; in the last night."""
    nights = steady(6, 5, NIGHTS, scatter=0.005)
    nights.latency[place] *= 1.1
    fact = {CauseKind.MODEL: "program_sha256", CauseKind.DEVICE: "system", CauseKind.SOFTWARE: "versions.executorch"}[
        kind
    ]
    if kind is CauseKind.MODEL:
        nights.program[3, -1] = "f" * 64
    elif kind is CauseKind.DEVICE:
        nights.system[4, -1] = "Android 15"
    else:
        nights.executorch[-1] = "1.6.0"
    store = write_nights(tmp_path / "store", nights)
    for causes in (
        check_fleet(LAST, store).evidence.causes,
        stored_fleet(store).causes,
        stored_history("latency", store).causes,
    ):
        (cause,) = causes
        assert (cause.kind, cause.name, [one.name for one in cause.facts]) == (kind, name, [fact])


@pytest.mark.parametrize("age", [1, 3, 6])
def test_gate_page_and_history_tell_the_same_step(tmp_path: Path, age: int) -> None:
    """One detector: ratio, last run before, first run behind; and the true night lies between these."""
    sizes = (1.05, 1.08, 1.12, 1.2, 1.35, 1.8)
    nights = steady(6, 2, 70 + age, scatter=0.01, seed=age)
    nights.latency[:, 0, 70:] *= np.array(sizes)[:, None]
    store = write_nights(tmp_path / "store", nights)
    began = str(np.datetime64("2026-01-01") + 70)
    gate = {
        row.subject.model: (row.slowdown + 1, row.before.placed[:10], row.first.placed[:10])
        for row in check_fleet(began, store).evidence.slower
    }
    page = {
        one.subject.model: (one.change.ratio, one.change.before, one.change.label)
        for one in stored_fleet(store).changes
        if one.subject.device == "phone 0"
    }
    history = {
        one.subject.model: (one.changes[-1].ratio, one.changes[-1].before, one.changes[-1].label)
        for one in stored_history("latency", store).series
        if one.changes and one.subject.device == "phone 0"
    }
    assert gate == page == {model: history[model] for model in gate}
    assert len(gate) >= 5
    assert all(before < began <= first for _, before, first in gate.values())


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "correlated"])
def test_at_most_one_night_of_a_month_is_red_without_a_reason(noise: str) -> None:
    """Thirty nights of 300 series, each judged by those before it, at a threshold of 3 %."""
    generator = np.random.default_rng(list(noise.encode()))
    logs = generator.standard_t(2, (300, 54)) if noise == "heavy tails" else generator.normal(0, 1, (300, 54))
    for night in range(1, 54 if noise == "correlated" else 0):
        logs[:, night] = 0.5 * logs[:, night - 1] + np.sqrt(0.75) * logs[:, night]
    values, names = np.exp(logs * 0.01), [f"{night}" for night in range(54)]
    subject = Subject("m", None, "d", None, "v", None, None, None)
    red = 0
    for night in range(25, 55):
        courses = detect_changes([SeriesRuns(subject, row[:night], names, names, names) for row in values]).courses
        red += any(
            change.kind == "step" and change.confirmed and change.ratio > 1.03 and change.settled >= night - 1
            for course in courses
            for change in course.changes
        )
    assert red <= 30 * FALSE_RED_NIGHTS


def test_budgets_choose_limits_and_let_devices_through(store: Path, tmp_path: Path) -> None:
    """A wider threshold for one series, changes of devices told only, an absolute limit that is exceeded."""
    budget = tmp_path / "budget.toml"
    lenient = '[fleet]\ndevice_changes = "tell"\n[[budget]]\nmodel = "model-1"\ndevice = "phone 4"\nmax_slower = 0.5\n'
    budget.write_text(lenient)
    found = check_fleet(LAST, store, budget=budget)
    assert (found.outcome, found.evidence.slower) == (Outcome.PASSED, [])
    assert [cause.name for cause in found.evidence.causes] == ["phone 2"]
    budget.write_text(lenient + '[[budget]]\nmodel = "model-5"\nmax_ms = 0.001\n')
    (limit,) = check_fleet(LAST, store, budget=budget).evidence.budgets
    assert (limit.series, limit.beyond, limit.entry) == (5, 5, 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[budget]]\nmodel = "model-x"\nmax_ms = 1\n', "no series with a new run has the model 'model-x'"),
        ('[[budget]]\nmodel = "model-1"\n', "it sets no limit"),
        ("[[budget]]\nmax_ms = 1\n", "it chooses no series"),
        ('[fleet]\ndevice_changes = "maybe"\n', "device_changes"),
    ],
)
def test_budgets_that_name_nothing_are_refused(store: Path, tmp_path: Path, text: str, problem: str) -> None:
    """A misspelt model must not pass."""
    budget = tmp_path / "budget.toml"
    budget.write_text(text)
    with pytest.raises(UsageError, match=problem):
        check_fleet(LAST, store, budget=budget)


@pytest.mark.parametrize(
    ("since", "where", "kind", "problem"),
    [
        ("last night", "", UsageError, "is not a date"),
        ("2027-01-01", "", NotFoundError, "no run began since then"),
        (LAST, "model=none", NotFoundError, "no stored run matches"),
    ],
)
def test_wrong_dates_and_filters(since: str, where: str, kind: type[Exception], problem: str, store: Path) -> None:
    """Each is told by name."""
    with pytest.raises(kind, match=problem):
        check_fleet(since, store, where=where)


def test_short_histories_are_inconclusive(tmp_path: Path) -> None:
    """Five nights are not judged, and counted; a series without a new run is counted, too."""
    nights = steady(2, 2, 5)
    nights.latency[1, 1, -1] = float("nan")
    found = check_fleet("2026-01-05", write_nights(tmp_path / "store", nights))
    rests = found.evidence
    assert (found.outcome, rests.series, rests.without, rests.judged) == (Outcome.INCONCLUSIVE, 3, 1, 0)
    assert [(one.reason, one.series) for one in rests.not_judged] == [("fewer than 8 runs", 3)]


def test_disturbed_runs_decide_nothing(tmp_path: Path) -> None:
    """Threefold latencies of runs that are graded do_not_trust neither fail the gate nor measure others."""
    nights = steady(2, 3, 12, scatter=0.005)
    grade = np.full(nights.latency.shape, "good", "<U20")
    grade[0, :, 3:6] = grade[1, 0, -1] = "do_not_trust"
    nights.latency[grade == "do_not_trust"] *= 3
    store = write_nights(tmp_path / "store", nights._replace(grade=grade))
    found = check_fleet("2026-01-12", store)
    assert (found.outcome, found.evidence.series, found.evidence.judged) == (Outcome.PASSED, 6, 5)
    assert [(one.reason, one.series) for one in found.evidence.not_judged] == [
        ("new runs that are not to be trusted", 1)
    ]
    told = stored_history("latency", store)
    assert (told.left_out, sum(len(one.changes) for one in told.series)) == (10, 0)
    with pytest.raises(UntrustedError, match="no new run of 1 series") as error:
        check_fleet("2026-01-12", store, where="model=model-1,device=phone 0")
    assert error.value.exit_code == 20


def test_the_command(store: Path, tmp_path: Path) -> None:
    """Exit code 1 with JSON that fits its schema, and 2 for options that do not belong together."""
    out = tmp_path / "check.json"
    words = [BIN, "check", "--new", LAST, "--store", store]
    done = subprocess.run([*words, "--json", out, "--quiet"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    schema = json.loads((SCHEMAS / "check.schema.json").read_text())
    jsonschema.validate(json.loads(out.read_text()), schema)
    wrong = subprocess.run([*words, "--against", "old"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "--against" in wrong.stderr) == (2, True)
