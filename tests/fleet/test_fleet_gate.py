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
from opscope.api import check_fleet, stored_history
from opscope.core.errors import NotFoundError, UntrustedError, UsageError
from opscope.fleet.analysis.common_moves import MoveKind
from opscope.fleet.reports.common_moves import move_text
from opscope.fleet.reports.fleet_gate import fleet_text
from opscope.fleet.reports.history import history_html, history_summary
from opscope.reports.formats.ci import junit_xml
from opscope.reports.gate import gate_markdown, gate_summary
from terminal_text import text_of

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
    (move,) = found.evidence.moves
    assert (move.kind, move.name, move.moved, move.series) == (MoveKind.DEVICE, "phone 2", 6, 6)
    assert (move.elsewhere, move.elsewhere_moved, move.regression) == (24, 1, True)
    assert [(fact.name, fact.after, fact.moved, fact.stayed) for fact in move.facts] == [("system", "Android 15", 6, 0)]
    (alone,) = [row for row in found.evidence.slower if row.common is None]
    assert (alone.subject.model, alone.subject.device, alone.runs) == ("model-1", "phone 4", 1)
    assert alone.slowdown == pytest.approx(0.3, abs=0.02)
    assert alone.origin is not None
    assert alone.origin.first.placed.startswith(LAST)
    assert alone.origin.before is not None
    assert alone.origin.before.placed.startswith("2026-01-23")
    assert alone.origin.operators[0].name == "Convolution"
    assert alone.origin.categories[0].after_ns > alone.origin.categories[0].before_ns
    together = [row.origin for row in found.evidence.slower if row.common is MoveKind.DEVICE and row.origin]
    assert len(together) == 6
    assert {one.first.placed[:10] for one in together} <= {"2026-01-23", LAST}
    assert all(one.runs_ago[0] <= 2 <= one.runs_ago[1] for one in together)
    known = [one for one in together if one.runs_ago == (2, 2)]
    assert len(known) >= 4
    assert {one.before.placed[:10] for one in known if one.before} == {"2026-01-22"}


def test_the_first_sentences_say_where_and_why(store: Path) -> None:
    """The same in text, Markdown and JUnit."""
    found = check_fleet(LAST, store)
    sentence = (
        "device phone 2: 6 of 6 series slower (median +12.0 %, +10.9 % to +12.4 %), 1 of 24 of other devices: "
        "the device changed, not the programs; with it system Android 14 -> Android 15 in 6 of these and 0 of 23 others"
    )
    assert move_text(found.evidence.moves[0]) == sentence
    text = fleet_text(found)
    shown = " ".join(text_of(gate_summary(found, text)).split())
    assert "7 of 30 judged series slower (1 alone" in shown
    assert f"regression: {sentence}" in shown
    heading = (
        "## opscope check: regression, 7 of 30 judged series slower (1 alone, 6 with the device or model), 1 device"
    )
    assert gate_markdown(found, text).startswith(heading)
    suite = ET.fromstring(junit_xml(found, text))[0]  # noqa: S314 - our own output
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["device phone 2", *(f"series of model-{number}" for number in range(6))]


def test_a_notebook_gets_a_line_a_card_and_a_frame(store: Path) -> None:
    """Every field of a decision on a fleet took 154,400 characters; series that are slower are rows with an origin."""
    found = check_fleet(LAST, store)
    line, shown, frame = repr(found), found._repr_html_(), found.to_polars()
    assert len(line) < 300
    assert "regression: 7 of 30 judged series slower" in line
    assert "model-1 fp32 on phone 4" in shown
    assert frame["confirmed"].to_list() == [True] * 7 + [False] * len(found.evidence.suspects)
    assert frame["slowdown"].to_list() == [row.slowdown for row in (*found.evidence.slower, *found.evidence.suspects)]
    together = frame.filter(frame["common"] == "device")
    assert together["device"].to_list() == ["phone 2"] * 6
    assert set(together["changed"]) == {"system Android 14 -> Android 15"}
    assert all(first.isoformat() >= "2026-01-23" for first in frame["first_placed"].drop_nulls())
    one = check_fleet(LAST, store, where={"device": "phone 4", "last": NIGHTS})
    assert [row.subject.model for row in one.evidence.slower] == ["model-1"]


def test_a_program_is_told_from_a_device(tmp_path: Path) -> None:
    """One model with another program on all five phones."""
    nights = steady(6, 5, NIGHTS, scatter=0.005)
    nights.latency[3, :, -1] *= 1.1
    nights.program[3, -1] = "f" * 64
    found = check_fleet(LAST, write_nights(tmp_path / "store", nights))
    (move,) = found.evidence.moves
    assert (move.kind, move.name, move.moved, move.regression) == (MoveKind.MODEL, "model-3", 5, True)
    assert "the program changed, not the devices" in move_text(move)


def test_where_all_moved_no_cause_is_said(tmp_path: Path) -> None:
    """All series of all phones, with another runtime."""
    nights = steady(4, 4, NIGHTS, scatter=0.005)
    nights.latency[:, :, -1] *= 1.1
    nights.executorch[-1] = "1.6.0"
    (move,) = check_fleet(LAST, write_nights(tmp_path / "store", nights)).evidence.moves
    assert (move.kind, move.moved, move.facts[0].name) == (MoveKind.FLEET, 16, "versions.executorch")
    assert "devices and programs cannot be distinguished" in move_text(move)


def test_budgets_choose_limits_and_let_devices_through(store: Path, tmp_path: Path) -> None:
    """A wider threshold for one series, changes of devices told only, an absolute limit that is exceeded."""
    budget = tmp_path / "budget.toml"
    lenient = '[fleet]\ndevice_changes = "tell"\n[[budget]]\nmodel = "model-1"\ndevice = "phone 4"\nmax_slower = 0.5\n'
    budget.write_text(lenient)
    found = check_fleet(LAST, store, budget=budget)
    assert (found.outcome, found.evidence.slower, [move.regression for move in found.evidence.moves]) == (
        Outcome.PASSED,
        [],
        [False],
    )
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


def test_wrong_dates_filters_and_stores(store: Path, tmp_path: Path) -> None:
    """Each is told by name."""
    with pytest.raises(UsageError, match="is not a date"):
        check_fleet("last night", store)
    with pytest.raises(NotFoundError, match="no run was added since then"):
        check_fleet("2027-01-01", store)
    with pytest.raises(NotFoundError, match="no stored run matches"):
        check_fleet(LAST, store, where="model=none")
    with pytest.raises(NotFoundError):
        check_fleet(LAST, tmp_path / "none")


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
    nothing = subprocess.run([BIN, "check"], capture_output=True, text=True, check=False)
    assert (nothing.returncode, "--new DATE" in nothing.stderr) == (2, True)


def test_a_history_tells_devices_from_programs(tmp_path: Path) -> None:
    """A phone that changed ten nights ago: how many of how many, on the terminal and on the page."""
    nights = steady(4, 4, NIGHTS, scatter=0.003)
    nights.latency[:, 1, -10:] *= 1.08
    nights.system[1, -10:] = "Android 15"
    found = stored_history("latency", write_nights(tmp_path / "store", nights))
    (move,) = found.moves
    assert (move.kind, move.name, move.moved, move.elsewhere_moved, move.label) == (
        MoveKind.DEVICE,
        "phone 1",
        4,
        0,
        "2026-01-15",
    )
    sentence = "device phone 1 at 2026-01-15: 4 of 4 series slower"
    assert sentence in " ".join(text_of(history_summary(found)).split())
    assert sentence in history_html(found)
