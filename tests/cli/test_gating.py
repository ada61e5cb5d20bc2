"""Every gate has one form: JSON, JUnit, Markdown, the terminal and exit codes, whatever was judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest

import opscope
from aie_gemm import Gemm
from aie_traces import json_text
from fakes import FakeClock, FakeTarget
from fleet_nights import steady, write_nights
from many_bundles import Made, Mint
from opscope.analysis.gate.decision import ERRORS, Decision, Outcome
from opscope.analysis.gate.gate import ComparisonEvidence
from opscope.api import Settings, add_to_store, check_fleet, check_programs
from opscope.cli.shared.gating import GateOutputs, tell
from opscope.core.errors import OpscopeError
from opscope.core.json import to_json
from opscope.fleet.analysis.gate import FleetEvidence
from opscope.npu.analysis.compare import TilesEvidence
from programs import tiny_program

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "schemas" / "check.schema.json"
Found: TypeAlias = Decision[ComparisonEvidence | FleetEvidence | TilesEvidence]


def of_programs(work: Path) -> Decision[Any]:
    """The new program takes twice as long."""
    sides = [work / "new.pte", work / "old.pte"]
    for path in sides:
        path.write_bytes(tiny_program() + path.stem.encode())
    target = FakeTarget(noise=0.005)
    target.slower = lambda job: 2.0 if Path(job.program).read_bytes().endswith(b"new") else 1.0
    settings = Settings(rounds=6, runs=3, warmup=1, ceilings=False)
    return check_programs(*sides, settings=settings, out=work / "out", target=target, clock=FakeClock()).decision


def of_bundles(work: Path) -> Decision[Any]:
    """The same, measured already, with a budget that the candidate exceeds as well."""
    of_programs(work)
    (work / "budget.toml").write_text('[end_to_end]\nmax_ms = 0.001\n[[budget]]\nbackend = "portable"\nmax_share = 1\n')
    return opscope.check(f"{work}/out#new", f"{work}/out#old", budget=work / "budget.toml")


def of_history(work: Path) -> Decision[Any]:
    """A run behind ten that took less."""
    mint = Mint(work / "mint", operators=6, rounds=2, runs=2)
    for number in range(10):
        made = Made(number, hours=number, factor=1 + number % 3 / 1000)
        add_to_store([mint.make(work / str(number), made)], work / "store")
    return opscope.check_history(
        mint.make(work / "new", Made(99, hours=99, factor=1.5)), "store:", store=work / "store"
    )


def of_fleet(work: Path) -> Decision[Any]:
    """One phone of five is slower for two nights; the last model is too new to be judged."""
    nights = steady(6, 5, 24, scatter=0.005)
    nights.latency[:, 2, -2:] *= 1.12
    nights.latency[5, :, :-1] = float("nan")
    return check_fleet("2026-01-24", write_nights(work / "store", nights))


def of_tiles(work: Path) -> Decision[Any]:
    """Four traces a side, of calls that take twice as long."""
    for name, call in (("old", 300), ("new", 620)):
        (work / name).mkdir()
        for number in range(4):
            trace = b"".join(json_text([Gemm(call=call + number).tile()]))
            (work / name / f"{number}.json").write_bytes(trace)
    return opscope.check_tiles(work / "new", work / "old")


KINDS: dict[str, Callable[[Path], Decision[Any]]] = {
    "programs": of_programs,
    "bundles": of_bundles,
    "history": of_history,
    "fleet": of_fleet,
    "tiles": of_tiles,
}


@pytest.fixture(scope="module", params=KINDS)
def regression(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decision[Any]:
    """A decision of each kind that stops its candidate."""
    pytest.importorskip("duckdb")
    found = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    assert found.outcome is Outcome.REGRESSION
    return found


def changed(decision: Decision[Any], outcome: Outcome) -> Decision[Any]:
    """The decision with another outcome of all that decides."""
    replace = msgspec.structs.replace
    criteria = [one if one.outcome is Outcome.SKIPPED else replace(one, outcome=outcome) for one in decision.criteria]
    return replace(decision, outcome=outcome, let_through=outcome is Outcome.PASSED, criteria=criteria)


def written(
    decision: Decision[Any], work: Path, *, lenient: bool = False
) -> tuple[Path, Path, Path, OpscopeError | None]:
    """JSON, Markdown and JUnit of a decision, and the error that the command ends with."""
    files = work / "c.json", work / "c.md", work / "c.xml"
    how = GateOutputs(lenient, quiet=True, json=str(files[0]), markdown=str(files[1]), junit=str(files[2]))
    try:
        tell(decision, "it", how)
    except OpscopeError as error:
        return (*files, error)
    return (*files, None)


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.SKIPPED])
def test_every_gate_has_one_form(regression: Decision[Any], outcome: Outcome, tmp_path: Path) -> None:
    """JSON is a decision, JUnit has a test for each criterion, the heading answers, one table has the exit codes."""
    decision = changed(regression, outcome)
    as_json, as_markdown, as_junit, error = written(decision, tmp_path)
    content = as_json.read_bytes()
    jsonschema.validate(json.loads(content), json.loads(SCHEMA.read_text()))
    assert to_json(msgspec.json.decode(content, type=Found)) == content
    assert re.match(
        rf"## opscope check: {outcome.value}, \w.+\n\n\*\*{outcome.value}.*: .+\*\*\n", as_markdown.read_text()
    )
    cases = ET.fromstring(as_junit.read_bytes()).findall(".//testcase")  # noqa: S314 - our own output
    assert [case.get("name") for case in cases] == [criterion.name for criterion in decision.criteria]
    assert len({criterion.name for criterion in decision.criteria}) == len(cases)
    stopped = [case for case in cases if {child.tag for child in case} & {"failure", "error"}]
    assert bool(stopped) is (outcome is not Outcome.PASSED)
    assert (type(error) if error else None) is ERRORS.get(outcome)


def test_what_is_inconclusive_may_pass_everywhere(regression: Decision[Any], tmp_path: Path) -> None:
    """Skipped in JUnit, said in the heading, and the command ends well."""
    decision = changed(regression, Outcome.INCONCLUSIVE)
    as_json, as_markdown, as_junit, error = written(decision, tmp_path, lenient=True)
    assert error is None
    assert json.loads(as_json.read_bytes())["let_through"] is True
    assert as_markdown.read_text().startswith("## opscope check: inconclusive (allowed to pass), ")
    suite = ET.fromstring(as_junit.read_bytes())[0]  # noqa: S314 - our own output
    assert (suite.get("errors"), suite.get("failures")) == ("0", "0")
    assert suite.get("skipped") == str(len(decision.criteria))


def test_a_model_that_cannot_be_judged_decides_nothing_beside_others(tmp_path: Path) -> None:
    """It is skipped; where no model can be judged, all of them are inconclusive."""
    some = of_fleet(tmp_path)
    assert [one.name for one in some.criteria if one.outcome is Outcome.SKIPPED] == ["series of model-5"]
    none = check_fleet("2026-01-05", write_nights(tmp_path / "short", steady(2, 2, 5)))
    assert {one.outcome for one in none.criteria} == {none.outcome} == {Outcome.INCONCLUSIVE}
