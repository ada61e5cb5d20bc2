"""A thing has one figure: wherever a report names a category, a latency or a speedup, it says the same of it."""

from __future__ import annotations

import io
import re
import shutil
from html import unescape
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import opscope
from fakes import FakeClock, FakeTarget
from opscope.analysis.analysis import Analysis
from opscope.analysis.compare.compare import Comparison
from opscope.api import Settings, content, inspect, profile
from opscope.core.units import time_text
from opscope.program.operators.kinds import Category
from opscope.reports.comparison import comparison_document
from opscope.reports.content.content import latency_ns
from opscope.reports.document.html import html_fragment
from opscope.reports.document.messages import grade_text
from opscope.reports.document.terminal import terminal_document
from opscope.reports.formats.github_benchmark import bundle_benchmark
from opscope.reports.inspected import inspected_document
from opscope.reports.report import html_report, markdown_report, report_document, summary
from programs import write_tiny_program

DATA = Path(__file__).parents[1] / "data" / "bundles"
_TIME = r"([\d.]+) (ns|µs|ms|s)"
_UNIT = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
_ANSWER = re.compile(rf"{_TIME} with acceleration, {_TIME} without: (?:slower with it, )?([\d.]+)x")
_PERCENT = re.compile(r"(-?[\d.]+) %")


def of_fakes(directory: Path) -> Path:
    """A bundle with copies, tracing that costs something and a change that is decided."""
    settings = Settings(rounds=8, runs=6, warmup=1)
    program = write_tiny_program(directory)
    profile(str(program), settings=settings, out=directory / "out", target=FakeTarget(), clock=FakeClock())
    return directory / "out"


@pytest.fixture(scope="module", params=["made", *sorted(path.name for path in DATA.iterdir())])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each recorded bundle, and a made one."""
    directory = tmp_path_factory.mktemp("figures")
    if request.param == "made":
        return of_fakes(directory)
    return Path(shutil.copytree(DATA / request.param, directory / "bundle"))


@pytest.fixture(scope="module")
def texts(bundle: Path) -> dict[str, str]:
    """Every form of the report as lines of text."""
    found, console = content(bundle), Console(file=io.StringIO(), width=200)
    console.print(summary(found))
    compared = Console(file=io.StringIO(), width=200)
    compared.print(terminal_document(comparison_document(pair_of(bundle))))
    return {
        "terminal": console.file.getvalue(),
        "compare": compared.file.getvalue(),
        "markdown": markdown_report(found).replace("*", ""),
        "page": plain(html_report(found)),
        "notebook": plain(html_fragment(report_document(found))),
    }


def pair_of(bundle: Path) -> Comparison:
    """The comparison of the two variants, made anew."""
    return opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated")


def test_a_subject_has_one_grade(bundle: Path, texts: dict[str, str]) -> None:
    """Latency and comparison are graded in every form, by analysis.json and comparison.json too."""
    latency, comparison = opscope.analyze(bundle).quality, pair_of(bundle).quality
    assert latency is not None
    assert comparison is not None
    stated = msgspec.json.decode((bundle / "analysis.json").read_bytes(), type=Analysis).quality
    compared = msgspec.json.decode((bundle / "comparison.json").read_bytes(), type=Comparison)
    assert (stated.grade, compared.quality.grade, compared.end_to_end.grade) == (
        latency.grade,
        comparison.grade,
        comparison.grade,
    )
    words = {"latency": grade_text(latency.grade), "comparison": grade_text(comparison.grade)}
    for name, text in texts.items():
        told = dict(re.findall(r"(?:of|and) (latency|comparison)(?: and comparison)?: ([a-z ]+)[.,;]", text))
        assert told, name
        for subject, word in told.items():
            assert words[subject] == word, (name, subject)
    analysed = Console(file=io.StringIO(), width=200)
    analysed.print(terminal_document(inspected_document(inspect(str(bundle)))))
    assert f"of latency: {words['latency']}" in analysed.file.getvalue()
    entries = msgspec.json.decode(bundle_benchmark(content(bundle)))
    extras = [entry["extra"] for entry in entries if ": latency" in entry["name"] and "accelerated" in entry["name"]]
    assert extras
    assert all(f"latency quality: {words['latency']}" in extra for extra in extras)


def plain(page: str) -> str:
    """The text of a page, a row, a tile or a sentence in a line."""
    rows = re.sub(r"</(tr|li|p|h\d|div|title)>", "\n", page.partition("<script")[0])
    return unescape(re.sub(r"<[^>]*>", " ", rows))


def shares(text: str, category: str) -> set[float]:
    """Percentages that are said of a category as it is now: in rows that hold figures only, and in sentences."""
    sentence = rf"(?:Bottleneck: |^[\s\d.]*){category}(?: dominates(?: the rest)?:?|,) \(?(-?[\d.]+) %"
    found = {float(match[1]) for line in text.splitlines() if (match := re.search(sentence, line))}
    return found | {own[-1] for own in rows_of(text, category)}


def rows_of(text: str, category: str) -> list[list[float]]:
    """The percentages of each row of a category: of the baseline where there is one, and now."""
    row = re.compile(rf"^[\s|]*{category}(?=[\s|\d<\\])((?:[\s|\d.<\\]*? %){{1,2}})")
    return [list(map(float, _PERCENT.findall(match[1]))) for line in text.splitlines() if (match := row.search(line))]


def test_a_category_has_one_share(bundle: Path, texts: dict[str, str]) -> None:
    """In tables, findings and sentences, as analysis.json says."""
    stated = msgspec.json.decode((bundle / "analysis.json").read_bytes(), type=Analysis)
    fresh = opscope.analyze(bundle)
    checked = 0
    for row in fresh.categories:
        assert row.share == pytest.approx(next(one.share for one in stated.categories if one.category is row.category))
        for name in ("terminal", "markdown", "page", "notebook"):
            told = shares(texts[name], row.category.value)
            checked += len(told)
            assert all(one == pytest.approx(row.share * 100, abs=0.051) for one in told), (name, row.category, told)
    assert checked >= 3 * len(Category)


def test_a_category_has_one_share_before(bundle: Path, texts: dict[str, str]) -> None:
    """Beside the one that it has now, as the analysis of the baseline says."""
    for row in opscope.analyze(f"{bundle}#baseline").categories:
        for name in ("terminal", "markdown", "page", "notebook"):
            told = [own[0] for own in rows_of(texts[name], row.category.value) if len(own) > 1]
            assert told, (name, row.category)
            assert told == pytest.approx([row.share * 100] * len(told), abs=0.051), (name, row.category)


def test_no_share_is_outside_of_the_whole(texts: dict[str, str]) -> None:
    """Shares of the latency in tables of categories and operators."""
    for name, text in texts.items():
        for line in text.splitlines():
            if any(line.strip(" |").startswith(category.value) for category in Category):
                assert all(0 <= float(one) <= 100 for one in _PERCENT.findall(line)), (name, line)


def test_an_export_and_an_analysis_state_the_latency_of_the_report(bundle: Path) -> None:
    """Of every variant: the figure by which sides are compared, not the median of all calls together."""
    shown = content(bundle)
    exported = {
        entry["name"].partition("/")[2].removesuffix(": latency"): entry["value"] * 1e6
        for entry in msgspec.json.decode(bundle_benchmark(shown))
        if entry["name"].endswith(": latency")
    }
    assert set(exported) == {result.variant.name for result in shown.variants}
    for variant, exported_ns in exported.items():
        analysis = opscope.analyze(f"{bundle}#{variant}")
        assert exported_ns == pytest.approx(latency_ns(shown, variant))
        assert analysis.headline_ns == pytest.approx(exported_ns)
        assert time_text(exported_ns) in analysis.answer


def test_latencies_divide_to_the_speedup(bundle: Path, texts: dict[str, str]) -> None:
    """On the first screen of each form, within what rounding to three digits leaves."""
    answers = {name: _ANSWER.search(text) for name, text in texts.items()}
    assert all(answers[name] for name in ("terminal", "markdown", "page", "notebook"))
    told = {found.groups() for found in answers.values() if found}
    assert len(told) == 1
    ((candidate, unit, baseline, other, speedup),) = told
    exact = float(baseline) * _UNIT[other] / (float(candidate) * _UNIT[unit])
    assert float(speedup) == pytest.approx(exact, rel=0.01)
    stated = msgspec.json.decode((bundle / "comparison.json").read_bytes(), type=Comparison).end_to_end
    assert stated.baseline_ns == pytest.approx(float(baseline) * _UNIT[other], rel=0.006)
    assert stated.speedup == pytest.approx(stated.baseline_ns / stated.candidate_ns)


def test_splits_end_with_the_latencies_above_them(bundle: Path, texts: dict[str, str]) -> None:
    """The sum of the table is the latency of the first screen, on both sides."""
    end = opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated").end_to_end
    own = [f"{value / 1e6:.3f}" for value in (end.baseline_ns, end.candidate_ns)]
    for name in ("terminal", "markdown", "page"):
        lines = [line for line in texts[name].splitlines() if line.strip(" |").startswith("total")]
        assert lines, name
        assert re.findall(r"\d+\.\d{3}", lines[0])[:2] == own, name
