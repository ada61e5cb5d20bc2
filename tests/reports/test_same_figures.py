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
from opscope.api import Settings, content, profile
from opscope.program.operators.kinds import Category
from opscope.reports.comparison import comparison_document
from opscope.reports.document.terminal import terminal_document
from opscope.reports.notebook.card import html as card_html
from opscope.reports.notebook.cards import content_card
from opscope.reports.report import html, summary
from programs import write_tiny_program
from whole_report import whole_report

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
    compared.print(
        terminal_document(comparison_document(opscope.compare(f"{bundle}#baseline", f"{bundle}#accelerated")))
    )
    return {
        "terminal": console.file.getvalue(),
        "compare": compared.file.getvalue(),
        "markdown": whole_report(found).replace("*", ""),
        "page": plain(html(found)),
        "card": plain(card_html(content_card(found, bundle))),
    }


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
    row = re.compile(rf"^[\s|]*{category}(?=[\s|\d])((?:[\s|\d.]*? %){{1,2}})")
    return [list(map(float, _PERCENT.findall(match[1]))) for line in text.splitlines() if (match := row.search(line))]


def test_a_category_has_one_share(bundle: Path, texts: dict[str, str]) -> None:
    """In tables, findings and sentences, as analysis.json says."""
    stated = msgspec.json.decode((bundle / "analysis.json").read_bytes(), type=Analysis)
    fresh = opscope.analyze(bundle)
    checked = 0
    for row in fresh.categories:
        assert row.share == pytest.approx(next(one.share for one in stated.categories if one.category is row.category))
        for name in ("terminal", "markdown", "page", "card"):
            told = shares(texts[name], row.category.value)
            checked += len(told)
            assert all(one == pytest.approx(row.share * 100, abs=0.051) for one in told), (name, row.category, told)
    assert checked >= 3 * len(Category)


def test_a_category_has_one_share_before(bundle: Path, texts: dict[str, str]) -> None:
    """Beside the one that it has now, as the analysis of the baseline says."""
    for row in opscope.analyze(f"{bundle}#baseline").categories:
        for name in ("terminal", "markdown", "page", "card"):
            told = [own[0] for own in rows_of(texts[name], row.category.value) if len(own) > 1]
            assert told, (name, row.category)
            assert told == pytest.approx([row.share * 100] * len(told), abs=0.051), (name, row.category)


def test_no_share_is_outside_of_the_whole(texts: dict[str, str]) -> None:
    """Shares of the latency in tables of categories and operators."""
    for name, text in texts.items():
        for line in text.splitlines():
            if any(line.strip(" |").startswith(category.value) for category in Category):
                assert all(0 <= float(one) <= 100 for one in _PERCENT.findall(line)), (name, line)


def test_latencies_divide_to_the_speedup(bundle: Path, texts: dict[str, str]) -> None:
    """On the first screen of each form, within what rounding to three digits leaves."""
    answers = {name: _ANSWER.search(text) for name, text in texts.items()}
    assert all(answers[name] for name in ("terminal", "markdown", "page", "card"))
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
