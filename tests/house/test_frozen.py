"""``make frozen`` keeps a case for every outcome of a gate, every verdict, every grade and every reason of the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate_cases import EXIT_CODE_COMMANDS, GATE_CASES, make_bundle
from opscope.analysis.findings.message import Grade
from opscope.analysis.gate.decision import Outcome
from opscope.api import check, compare
from opscope.core.stats.effect import Verdict

THRESHOLDS = {"passed-detectable": 0.0213, "passed-slower": 0.09, "inconclusive-blind": 0.05}
REASONS = (
    "the whole 95 % interval is within the limit",
    "no slowdown detected; minimum detectable change: ",
    "slower, but within the limit; the interval reaches ",
    "slower by ",
    "too few processes for a verdict",
    "exceeds the limit, but may be noise",
    "too noisy: cannot detect changes below ",
    "other processes took ",
)
"""Parts of the sentences by which a gate gives its reasons."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundle of every case."""
    work = tmp_path_factory.mktemp("gates")
    return {case.name: make_bundle(case, work) for case in GATE_CASES}


def test_every_outcome_verdict_and_grade_has_a_case(bundles: dict[str, Path]) -> None:
    """A message that no case shows was once wrong unseen."""
    outcomes, verdicts, grades, reasons = set(), set(), set(), []
    for name, bundle in bundles.items():
        sides = (f"{bundle}#baseline", f"{bundle}#accelerated")
        for candidate, baseline in (sides, sides[::-1]):
            decision = check(candidate, baseline, threshold=THRESHOLDS.get(name, 0.03))
            outcomes.add(decision.outcome)
            reasons += [criterion.reason for criterion in decision.criteria]
            grades |= {decision.quality.grade} if decision.quality else set()
            verdicts.add(compare(baseline, candidate).end_to_end.verdict)
    assert outcomes == set(Outcome) - {Outcome.SKIPPED}
    assert verdicts == set(Verdict)
    assert grades == set(Grade)
    assert [part for part in REASONS if not any(part in reason for reason in reasons)] == []


def test_every_exit_code_that_files_bring_about_has_a_command() -> None:
    """Gates give 0, 1, 14 and 20; devices, schedulers, missing packages and a full disk need more than files."""
    codes = {code for code, _ in EXIT_CODE_COMMANDS}
    assert codes == {2, 3, 4, 6, 8, 13, 15, 19}
