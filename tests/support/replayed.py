"""Savings that findings predict, held against what following their recipe saves: both from one interleaved run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opscope.api import Settings, analyze, check_programs, compare
from opscope.runtimes.executorch.export.checked import export_live
from stock_layers import build

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CLOSE = 0.3
"""Largest difference of a prediction from what was saved, as a part of the latter."""
ENOUGH = 0.8
"""Part of the predictions that must be as close."""
RULES = ("attention_masking", "unrolled_recurrence")
SETTINGS = Settings(rounds=8, runs=40, warmup=5, ceilings=False)


class Replay(NamedTuple):
    """A prediction, and what came of following it."""

    model: str
    rule: str
    before_ns: float
    after_ns: float
    predicted_ns: float
    is_limit: bool  # the finding says what it would save at most

    @property
    def saved_ns(self) -> float:
        """What following the recipe saved."""
        return self.before_ns - self.after_ns

    @property
    def ratio(self) -> float:
        """The prediction as a part of it."""
        return self.predicted_ns / self.saved_ns

    @property
    def close(self) -> bool:
        """Whether the prediction was within the limit."""
        return self.saved_ns > 0 and abs(self.ratio - 1) <= CLOSE


def exported(model: str, directory: Path) -> dict[str, Path]:
    """The programs of a model of ``stock_layers``, as it comes and as the advice makes it; what is there stays."""
    found = {}
    for side in ("before", "after"):
        place = directory / side
        place.mkdir(parents=True, exist_ok=True)
        made = next(place.glob("*.pte"), None)
        found[side] = made or export_live(*build(model, advised=side == "after"), "fp32", place)
    return found


def replay(model: str, programs: Mapping[str, Path], work: Path) -> list[Replay]:
    """Run a program and the one that follows its advice in turns; one row for each finding that predicts a saving."""
    check_programs(programs["after"], programs["before"], settings=SETTINGS, out=work)
    result = compare(f"{work}#old", f"{work}#new").end_to_end
    findings = [one for one in analyze(f"{work}#old").findings if one.rule in RULES and one.saving_ns is not None]
    times = result.baseline_ns, result.candidate_ns
    return [
        Replay(model, one.rule, *times, one.saving_ns or 0.0, (one.saving_basis or "").startswith("at most"))
        for one in findings
    ]


def share_close(rows: Sequence[Replay]) -> float:
    """Part of the predictions that were close; limits are none."""
    told = [row for row in rows if not row.is_limit]
    return sum(row.close for row in told) / len(told)
