"""A dozen models of the zoo tried for real, why others fail, and the page that tells of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from zoo.__main__ import main
from zoo.catalogue import catalogue
from zoo.limits import LIMITS, limit_of
from zoo.page import FP32, RESULTS, read_results, summary
from zoo.record import Counted, Export, Record, Results, Run
from zoo.trial import ROOT, steps

PAGE = ROOT / "docs" / "design" / "zoo.md"
ENTRIES = {entry.name: entry for entry in catalogue()}
SMALL = (
    "transposed", "dilated", "bilinear", "nearest", "super_resolution", "scanned", "chosen", "two_towers", "named",
    "counting", "dynamic_batch", "autoencoder",
)  # fmt: skip
FINISHED = Record(
    "grouped",
    FP32,
    1.0,
    Export(100, 1e-7, 1e-4, Counted(1, 2, 3), 10, 10),
    Counted(1, 2, 3),
    Run(Counted(1, 2, 3), 2, 10.0, 10.0, 1.0, 0.1, 0.1, forecast=None, agree=True, peak_bytes=1000, problems=[]),
)


@pytest.mark.nightly  # exports twelve models
@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_exports_runs_and_is_attributed(name: str, tmp_path: Path) -> None:
    """It agrees with PyTorch, its split sums to the latency, and every operator of a delegate is known."""
    found = steps(ENTRIES[name], FP32, tmp_path)
    assert found.failure is None
    assert found.export is not None
    assert found.run is not None
    assert found.export.error <= found.export.tolerance
    assert found.run.split == pytest.approx(1)
    assert found.run.exact_operators == found.run.measured.delegated
    assert found.run.agree


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_fails_is_a_result(tmp_path: Path) -> None:
    """With the step, and with words that the list of limits knows and that name no place of this machine."""
    found = steps(ENTRIES["transposed_groups"], FP32, tmp_path)
    assert found.failure is not None
    assert found.failure.step == "export"
    assert limit_of(found.name, found.failure.problem) is not None
    assert str(tmp_path) not in found.failure.problem


@pytest.mark.runtime
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit.example], ids=lambda limit: limit.title)
def test_a_minimal_example_fails_as_the_page_says(limit) -> None:
    """Each is whole by itself."""
    with pytest.raises(Exception, match=re.escape(limit.raises)):
        exec(compile(limit.example, limit.title, "exec"), {"__name__": "example"})  # noqa: S102 - ours


def test_what_was_tried_is_not_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that is there is read, so that a run goes on where it was ended."""
    (tmp_path / "grouped-fp32.json").write_bytes(msgspec.json.encode(FINISHED))
    assert main(["grouped", "--out", str(tmp_path)]) == 0
    assert "grouped fp32 1 s: error 1.0e-07, 100.0% exact" in capsys.readouterr().out


def test_names_are_unique() -> None:
    """A record is found by its name."""
    assert len(ENTRIES) == len(catalogue())


def test_the_summary_counts_models_once_and_weighs_time() -> None:
    """Two models, of which one fails; the other in a second number type is a trial more."""
    half = msgspec.structs.replace(FINISHED, dtype="fp16", run=msgspec.structs.replace(FINISHED.run, exact_ns=0.0))
    failed = Record("volume", FP32, 1.0)
    told = summary(Results("2026-01-01", "a machine", {}, [FINISHED, half, failed]))
    assert (told.models, told.passed, told.trials, told.passed_trials) == (2, 1, 3, 2)
    assert (told.exact, told.enough, told.counted) == (1.0, 1, 2)


def test_the_page_says_what_the_results_hold() -> None:
    """Its first figures, counted here from the file, and a row for every record."""
    page, records = PAGE.read_text(), json.loads(RESULTS.read_bytes())["records"]
    single = [record for record in records if record["dtype"] == FP32]
    passed = [record for record in single if record["failure"] is None]
    exact, time = (sum(record["run"][key] for record in passed) for key in ("exact_ns", "delegate_ns"))
    assert f"**{len(passed)} of {len(single)} models" in page
    assert f"{100 * exact / time:.1f} % of the time" in page
    rows = [line for line in page.splitlines() if re.match(r"\| \w+ \| (fp32|fp16|int8|dynamic-int8) \|", line)]
    assert len(rows) == len(records)


def test_the_results_hold_what_the_zoo_is_for() -> None:
    """Fifty models pass, 95 % of their delegates' time is attributed exactly, and every failure has its reason."""
    results = read_results()
    told = summary(results)
    assert told.passed >= 50
    assert told.exact >= 0.95
    failures = [(record.name, record.failure.problem) for record in results.records if record.failure]
    assert [name for name, problem in failures if limit_of(name, problem) is None] == []


def test_the_results_name_no_machine() -> None:
    """Neither paths nor hosts."""
    assert not re.search(r"/(?:tmp|home|root|work|usr)/|localhost", RESULTS.read_text())
