"""Changes of histories that somebody has looked at: what is new, what is known, and what ends a job."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from opscope.core.errors import RegressionError, UsageError
from opscope.fleet.analysis.history import FigureUnit, History, Metric, Order, Point, Subject, history
from opscope.fleet.analysis.history_changes import KnownChanges, acknowledged, new_for_the_worse, seen_since, with_known
from opscope.fleet.history import acknowledge_changes, check_new_changes, read_known

SUBJECT = Subject("toy", "fp32", "a phone", "local", "accelerated", 1, "", "untraced")


def nights(*levels: float, each: int = 15, seed: int = 1) -> History:
    """Nights of July 2026 on, so many of each level, with a scatter of 0.5 %."""
    values = np.repeat(levels, each) * np.exp(np.random.default_rng(seed).normal(0, 0.005, each * len(levels)))
    dates = [f"2026-{7 + night // 28:02d}-{night % 28 + 1:02d}" for night in range(len(values))]
    points = [
        Point(f"{night:064x}", f"{date}T03:00:00", date, float(value), f"{date}T03:00:00")
        for night, (date, value) in enumerate(zip(dates, values, strict=True))
    ]
    metric = Metric("latency", FigureUnit.TIME)
    return history("store", metric, Order.DATE, [(SUBJECT, point) for point in points], 0)


def known_of(found: History, note: str = "accepted") -> KnownChanges:
    """All changes of a history, acknowledged."""
    return acknowledged(found, KnownChanges(), note, "2026-09-01T00:00:00+00:00")


def test_only_changes_for_the_worse_are_new() -> None:
    """Of a rise and a fall, the rise."""
    ((series, new),) = new_for_the_worse(nights(100, 110, 95))
    seen = series.points[new.seen].placed
    assert (new.kind, new.label, seen) == ("step", "2026-07-16", "2026-07-16T03:00:00")


def test_a_known_change_bears_its_note_and_is_not_new() -> None:
    """Also when more nights have come, which move its place by no more than three."""
    known = known_of(nights(100, 110), "new compiler")
    later = with_known(nights(100, 110, 110, seed=2), known)
    assert [one.acknowledged for one in later.series[0].changes] == ["new compiler"]
    assert new_for_the_worse(later) == []
    assert acknowledged(later, known, "again", "2026-09-02") == known


def test_a_known_change_that_has_grown_is_new_again() -> None:
    """5 % were acknowledged, the step is 12 % now."""
    found = with_known(nights(100, 112), known_of(nights(100, 105)))
    assert len(new_for_the_worse(found)) == 1


def test_a_change_of_another_figure_or_device_is_not_known() -> None:
    """Nor one in the other direction."""
    known = known_of(nights(100, 110))
    found = nights(100, 110)
    other = msgspec.structs.replace(found, metric=Metric("p90", FigureUnit.TIME))
    assert len(new_for_the_worse(with_known(other, known))) == 1
    better = known_of(nights(100, 90))
    assert len(new_for_the_worse(with_known(found, better))) == 1


def test_a_drift_is_known_by_its_runs() -> None:
    """It has one place less than a step: any of its runs."""
    found = nights(*np.linspace(100, 110, 30), each=1)
    assert [change.kind for _, change in new_for_the_worse(found)] == ["drift"]
    assert new_for_the_worse(with_known(found, known_of(found))) == []


def test_older_changes_are_left_out_and_all_runs_stay() -> None:
    """A step of July and one of August: since August there is one, at the same level."""
    whole = nights(100, 105, 112, each=20)
    late = seen_since(whole, "2026-08-01T00:00:00")
    assert [one.label for one in whole.series[0].changes] == ["2026-07-21", "2026-08-13"]
    assert [one.label for one in late.series[0].changes] == ["2026-08-13"]
    assert late.series[0].level == whole.series[0].level


def test_a_job_ends_with_a_regression_until_somebody_has_looked(tmp_path: Path) -> None:
    """The file is made by the first acknowledgement, and holds each change once."""
    path, found = tmp_path / "known.json", nights(100, 110)
    with pytest.raises(RegressionError, match="1 change not acknowledged"):
        check_new_changes(found)
    assert acknowledge_changes(found, path, "accepted") == 1
    marked = with_known(found, read_known(path))
    assert acknowledge_changes(marked, path, "accepted") == 0
    check_new_changes(marked)


def test_another_file_is_refused(tmp_path: Path) -> None:
    """Nothing of it is overwritten."""
    path = tmp_path / "notes.json"
    path.write_text('{"schema": "opscope.history/1"}')
    with pytest.raises(UsageError, match="not a file of acknowledged changes"):
        acknowledge_changes(nights(100, 110), path, "accepted")
    assert path.read_text() == '{"schema": "opscope.history/1"}'
