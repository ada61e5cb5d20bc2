"""``opscope analyze`` of methods that draft and verify, and what ``--acceptance`` makes of counts of kept tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import opscope
from opscope.readers.generation.report import PhaseCall, PhaseReport, table_of
from opscope.reports.formats.event_files import events_csv

TIMES = {"draft": 100_000, "verify_5": 1_500_000, "decode": 1_000_000}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Six processes that call each method thrice, with a round of four drafts that costs 1.9 tokens."""
    for process in range(6):
        calls = [PhaseCall(name, ns + 500 * process) for _ in range(3) for name, ns in TIMES.items()]
        parts = events_csv(table_of(PhaseReport("a test", calls), tmp_path))
        (tmp_path / f"{process}.csv").write_bytes(b"".join(parts))
    return tmp_path


def test_an_analysis_says_from_which_acceptance_rate_drafts_pay(traces: Path) -> None:
    """As text and as JSON, with an interval over processes."""
    done = opscope("analyze", str(traces), "--warmup", "0")
    assert "Speculation with 4 drafted tokens pays from an acceptance rate of 49.0 % [" in done.stdout
    assert "a round takes as long as 1.90 tokens" in done.stdout
    (found,) = json.loads(opscope("analyze", str(traces), "--warmup", "0", "--json", "-").stdout)["speculation"]
    (length,) = found["lengths"]
    low, high = length["break_even_ci95"]
    assert low < length["break_even"] < high
    assert (found["processes"], found["acceptance"]) == (6, None)


@pytest.mark.parametrize(
    ("counts", "verdict", "told"), [("1300/2000:4", "faster", "(faster)"), ("200/2000:4", "slower", "(slower)")]
)
def test_counts_of_kept_tokens_become_a_verdict(traces: Path, counts: str, verdict: str, told: str) -> None:
    """Of four drafted tokens 2.6 are kept, or 0.4, where 0.9 are needed."""
    done = opscope("analyze", str(traces), "--warmup", "0", "--acceptance", counts)
    assert told in done.stdout
    done = opscope("analyze", str(traces), "--warmup", "0", "--acceptance", counts, "--json", "-")
    (found,) = json.loads(done.stdout)["speculation"]
    assert [one["verdict"] for one in found["acceptance"]["judged"]] == [verdict]


@pytest.mark.parametrize("counts", ["half", "12/8:4", "8/12", "8/12:0"])
def test_counts_that_say_nothing_are_refused(traces: Path, counts: str) -> None:
    """With an example of what to write."""
    done = opscope("analyze", str(traces), "--warmup", "0", "--acceptance", counts)
    assert (done.returncode, "812/1600:4" in done.stderr) == (2, True)


def test_traces_without_drafts_have_no_acceptance(tmp_path: Path) -> None:
    """The hint names the methods that it takes."""
    table = table_of(PhaseReport("a test", [PhaseCall("decode", 5)]), tmp_path)
    (tmp_path / "a.csv").write_bytes(b"".join(events_csv(table)))
    done = opscope("analyze", str(tmp_path / "a.csv"), "--acceptance", "8/12:4")
    assert (done.returncode, "verify_5" in done.stderr) == (2, True)


def test_a_claim_needs_a_language_model_on_a_measured_machine(tmp_path: Path) -> None:
    """The hint says what to measure."""
    table = table_of(PhaseReport("a test", [PhaseCall("decode", 5)]), tmp_path)
    (tmp_path / "a.csv").write_bytes(b"".join(events_csv(table)))
    done = opscope("analyze", str(tmp_path / "a.csv"), "--claim", "3x")
    assert (done.returncode, "--no-ceilings" in done.stderr) == (2, True)
