"""Bisections on fake targets: the planted state is found, in few measurements, and what cannot be told is not."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

import opscope
from bisections import SMALL, asked, found, state
from fakes import FakeClock, FakeTarget, PhasesTarget
from opscope.analysis.bisection import BisectedState, Bisection, SearchResult, StateLevel, max_measured_states, search
from opscope.analysis.work.work import CountedOperator, RestWork, Work
from opscope.api import to_json
from opscope.core.errors import InterruptedRunError, UsageError
from opscope.core.json import from_json
from opscope.core.stats.effect import Verdict
from opscope.reports.bisection import bisection_document
from opscope.reports.document.html import html_document
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.terminal import terminal_document
from opscope.workflows.bisect import bisecting
from opscope.workflows.bisect.bisecting import BisectRequest, RunState, run_bisection
from opscope.workflows.measure.experiments import Means
from programs import write_tiny_program
from runners import INFERENCE, write_runner
from terminal_text import text_of
from traces import etdump


@pytest.mark.parametrize("count", range(2, 33))
def test_every_planted_place_is_found_in_few_steps(count: int) -> None:
    """At most log2 n + 1 states beside both ends."""
    for place in range(1, count):
        calls: list[int] = []

        def level(number: int, place: int = place, calls: list[int] = calls) -> StateLevel:
            calls.append(number)
            return StateLevel.BAD if number >= place else StateLevel.GOOD

        result = search(count, level)
        assert (result.last_good, result.first_bad) == (place - 1, place)
        assert len(calls) == result.tried <= math.log2(count) + 1
        assert len(calls) == len(set(calls))
        assert not {0, count - 1} & set(calls)


def test_states_that_tell_nothing_are_passed_over() -> None:
    """Those that fail, or lie between: the next beside the middle is asked, and none of them is named."""

    def level(number: int) -> StateLevel:
        if number in {4, 5}:
            return StateLevel.FAILED
        return StateLevel.BAD if number >= 6 else StateLevel.GOOD

    result = search(9, level)
    assert result.last_good < 4
    assert result.first_bad == 6
    assert search(9, lambda _: StateLevel.UNDECIDED) == SearchResult(0, 8, max_measured_states(9))
    assert search(2, level) == SearchResult(0, 1, 0)


@pytest.mark.parametrize("place", [1, 3, 6, 8])
def test_the_release_and_the_operator_are_named(tmp_path: Path, place: int) -> None:
    """Name the convolution, which is 40 % slower from a release on, and not the other operator.

    The result is read back; both pages name the release, and Markdown what repeats it.
    """
    result = found(tmp_path, [state(number, 1.4 if number >= place else 1.0) for number in range(9)])
    assert (result.last_good, result.first_bad) == (f"1.{place - 1}", f"1.{place}")
    assert (result.is_found, result.is_inconclusive) == (True, False)
    assert result.measured <= 4
    assert result.explained == pytest.approx(1.0, abs=0.2)
    assert min(result.step.operators, key=lambda one: one.saved_ns).name.startswith("Convolution")
    document = bisection_document(result)
    assert document.answer.startswith(f"1.{place} made it slower: 1.3")
    assert f"the latency of 1.{place - 1}" in document.answer
    for page, words in (
        (text_of(terminal_document(document)), ("Convolution", "between the ends")),
        (html_document(document), ("<svg", f"1.{place} made it slower")),
        (markdown_document(document), ("opscope bisect tiny.pte --good 1.0 --bad 1.9", result.sha256)),
    ):
        assert [word for word in words if word not in page] == []
    assert from_json(to_json(result), Bisection) == result


def test_of_several_methods_the_one_that_slowed_most_is_followed(tmp_path: Path) -> None:
    """Prefill is slower from a release on, decode is not: the release is found by prefill alone, and named with it."""
    states = [
        RunState(BisectedState(f"1.{number}"), PhasesTarget(number, prefill=1.3 if number >= 2 else 1.0))
        for number in range(4)
    ]
    settings = msgspec.structs.replace(SMALL, methods=("prefill", "decode:4"))
    program = Path(__file__).parents[1] / "data" / "two_methods.pte"
    request = BisectRequest("two.pte", program, "Fake", "release", states, settings, "opscope bisect", work=False)
    result = run_bisection(request, tmp_path / "out", Means(clock=FakeClock(), sleep=lambda _: None))
    assert (result.last_good, result.first_bad, result.method) == ("1.1", "1.2", "prefill")
    assert result.ends.speedup == pytest.approx(1 / 1.27, abs=0.03)
    document = bisection_document(result)
    assert document.heading == "two.pte, prefill, Fake: 1.0 to 1.3"
    assert document.answer.startswith("1.2 made it slower: 1.2")
    assert any("this follows prefill" in note for note in result.notes)


@pytest.mark.parametrize(
    ("good", "verdict", "words"),
    [
        (1.0, Verdict.NO_DIFFERENCE, ("no difference detected", "cannot detect changes below")),
        (1.4, Verdict.FASTER, ("faster",)),
    ],
    ids=["no difference", "faster"],
)
def test_ends_without_a_regression_are_an_answer(
    tmp_path: Path, good: float, verdict: Verdict, words: tuple[str, ...]
) -> None:
    """Measure nothing between them, and tell the smallest change that would have shown."""
    result = found(tmp_path, [state(number, good if number < 2 else 1.0) for number in range(4)])
    assert (result.last_good, result.first_bad, result.measured) == (None, None, 0)
    assert (result.ends.verdict, result.is_inconclusive) == (verdict, False)
    assert [word for word in words if word not in bisection_document(result).answer] == []


def test_a_release_that_does_not_run_is_passed_over_and_told(tmp_path: Path) -> None:
    """Ask the neighbours of one in the middle that crashes, and say that it failed; an end that does ends it.

    Where all between the ends crash no release is named, and the answer says between which it is.
    """
    states = [state(number, 1.4 if number >= 3 else 1.0, crashes=number == 4) for number in range(9)]
    result = found(tmp_path / "middle", states)
    assert result.states[4].level is StateLevel.FAILED
    assert "SIGSEGV" in (result.states[4].problem or "")
    assert result.first_bad in {"1.3", "1.5"}
    assert any("1.4" in one for one in result.notes)
    states = [state(number, 1.4 if number else 1.0, crashes=number == 1) for number in range(3)]
    result = found(tmp_path / "all", states)
    assert (result.last_good, result.first_bad) == ("1.0", "1.2")
    assert (result.is_found, result.is_inconclusive) == (False, True)
    assert "between 1.0 and 1.2" in bisection_document(result).answer
    with pytest.raises(UsageError, match=r"an end does not run the model: .*SIGSEGV"):
        found(tmp_path / "end", [state(0, 1.0), state(1, 1.4, crashes=True)])


def test_a_second_change_is_told(tmp_path: Path) -> None:
    """Find the largest step, and note the other one; of a list every release is measured, and nothing searched for."""
    factors = [1.0, 1.0, 1.15, 1.15, 1.15, 1.8, 1.8, 1.8]
    result = found(tmp_path / "search", [state(number, factor) for number, factor in enumerate(factors)])
    assert result.first_bad == "1.5"
    assert any("1.2" in one or "1.1" in one or "1.3" in one for one in result.notes)
    states = [state(number, 1.4 if number >= 2 else 1.0) for number in range(4)]
    result = found(tmp_path / "list", states, listed=True)
    assert [one.level.value for one in result.states] == ["good", "good", "bad", "bad"]
    assert (result.first_bad, {one.bundle for one in result.states}) == (None, {"ends"})
    assert "slower" in bisection_document(result).answer


@pytest.mark.parametrize(("place", "by"), [(5, "work"), (2, "time")])
def test_exact_work_leads_only_where_time_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, by: str
) -> None:
    """Time changes at the sixth release; counts that change elsewhere are told of, and time is asked."""

    def counted(_: Path, *, target: str, **__: object) -> Work:
        count = 140 if int(target.partition(".")[2]) >= place else 100
        operator = CountedOperator(
            "forward", 0, 0, "Conv", None, "Convolution", "convolution", count, {}, 0, 0, 0, 0, 1
        )
        return Work("tiny.pte", "00", "Fake", "x86-64", "counter", [], [], [operator], RestWork(0, 0, 0))

    monkeypatch.setattr(bisecting, "count", counted)
    states = [state(number, 1.4 if number >= 5 else 1.0)._replace(counted=f"1.{number}") for number in range(9)]
    request = asked(tmp_path, states)._replace(work=True)
    means = Means(clock=FakeClock(), sleep=lambda _: None)
    result = run_bisection(request, tmp_path / "out", means)
    assert (result.by, result.last_good, result.first_bad) == (by, "1.4", "1.5")
    assert result.is_found
    assert any("elsewhere" in one for one in result.notes) == (by == "time")
    assert [one.more for one in result.work.changed] == ([] if by == "time" else [40])
    assert run_bisection(request, tmp_path / "out", means, resume=True) == result


def test_two_builds_of_a_runner_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes, each with the trace of its build: the convolution of the bad one takes longer."""
    monkeypatch.chdir(tmp_path)
    program = write_tiny_program(tmp_path)
    write_runner(tmp_path / "old")
    bad = write_runner(tmp_path / "new")
    slow = INFERENCE.replace("execute 100", "execute 150").replace("@0 80", "@0 130").replace("#1 50", "#1 100")
    for runs in range(1, 6):
        (bad.parent / "prepared" / f"{runs}.etdump").write_bytes(etdump(slow, repeat=runs))
    settings = opscope.Settings(rounds=6, runs=3, warmup=1)
    result = opscope.bisect(
        program, good="runner:old/runner", bad="runner:new/runner", settings=settings, out=tmp_path / "out"
    )
    assert (result.last_good, result.first_bad, result.kind) == ("good", "bad", "build")
    assert result.is_found
    assert min(result.step.operators, key=lambda one: one.saved_ns).name.startswith("Convolution")
    assert "--good runner:old/runner --bad runner:new/runner" in result.command
    assert "bad made it slower: 1.5" in (tmp_path / "out" / "report.md").read_text("utf-8")


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """After an interruption the finished bundles stand, and the answer is that of an uninterrupted one."""
    states = [state(number, 1.4 if number >= 3 else 1.0) for number in range(9)]
    whole = found(tmp_path, states)
    again = [state(number, 1.4 if number >= 3 else 1.0) for number in range(9)]
    means = Means(clock=FakeClock(), sleep=lambda _: None)
    resumed = run_bisection(asked(tmp_path, again), tmp_path / "out", means, resume=True)
    assert not any(isinstance(one.target, FakeTarget) and one.target.jobs for one in again)
    assert resumed == whole

    def stop(done: int, _total: int, repetition: object) -> None:
        if done == 5 and repetition is not None:
            raise InterruptedRunError("enough")

    with pytest.raises(UsageError, match="no bisection was begun there"):
        run_bisection(asked(tmp_path, again), tmp_path / "none", means, resume=True)
    with pytest.raises(InterruptedRunError):
        run_bisection(asked(tmp_path, states), tmp_path / "other", means._replace(progress=stop))
    last = run_bisection(asked(tmp_path, states), tmp_path / "other", means, resume=True)
    assert last.first_bad == "1.3"


def test_why_nothing_is_counted_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all states that have the same reason."""

    def refused(_: Path, *, target: str, **__: object) -> Work:
        raise UsageError(f"fake {target} is installed; opscope supports 9.9")

    monkeypatch.setattr(bisecting, "count", refused)
    states = [state(number, 1.4 if number else 1.0)._replace(counted=f"1.{number}") for number in range(2)]
    request = asked(tmp_path, states)._replace(work=True)
    result = run_bisection(request, tmp_path / "out", Means(clock=FakeClock(), sleep=lambda _: None))
    told = [note for note in result.notes if "not counted" in note]
    assert told == ["the work of 1.0, 1.1 is not counted: fake of that release is installed; opscope supports 9.9"]
