"""Whole reports against expected ones. ``make bless`` shows each difference and asks before it replaces one."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from bless import NEW, review
from fakes import FakeClock, FakeTarget
from opscope.analysis.findings.message import MessageKind
from opscope.api import Profiled, Settings, profile
from opscope.bundle.manifest import Failure, FailureKind
from opscope.reports.document.text import LONG, plain
from opscope.reports.report import html_report, markdown_report, report_document, summary
from opscope.workflows.reports.reports import content
from programs import write_tiny_program
from screen_words import words_beside_tables
from terminal_text import text_of

PARTS = (
    "Operator Category Breakdown",
    "Latency Comparison",
    "Acceleration Analysis",
    "Bottlenecks",
    "Portable vs Delegated",
    "Kernel Insights",
    "Metadata",
)
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """A bundle of seven rounds with one crash in it, the same every time."""
    directory = tmp_path_factory.mktemp("golden")
    write_tiny_program(directory)
    crash = Failure(FailureKind.SIGNAL, "the process was killed by SIGSEGV; its last output: kernel | `7`", "SIGSEGV")
    clock = FakeClock()
    target = FakeTarget(clock=clock, fail=lambda job: crash if job == 5 else None)
    before = Path.cwd()
    os.chdir(directory)
    try:
        found = profile(
            "tiny.pte", settings=Settings(rounds=7, runs=5, warmup=2), out="out", target=target, clock=clock
        )
        return replace(found, path=directory / "out")
    finally:
        os.chdir(before)


def check(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """Compare with the expected text; with ``--bless``, write what is different beside it."""
    path = GOLDEN / name
    if request.config.getoption("--bless") and path.read_text() != text:
        path.with_name(path.name + NEW).write_text(text)
    assert path.read_text() == text, f"the report differs from {path.name}; if that is right: make bless"


def test_the_markdown_report(done: Profiled, request: pytest.FixtureRequest) -> None:
    """Every section, the failed round named, the command to reproduce."""
    check("report.md", (done.path / "report.md").read_text(), request)


def test_markdown_has_the_tables_of_every_part() -> None:
    """A reader in a pull request or over ssh, and an assistant, have no page."""
    shown = content(GOLDEN.parent / "data" / "bundles" / "with-ceilings")
    parts = re.split(r"^## ", markdown_report(shown), flags=re.MULTILINE)
    rows = {part.partition("\n")[0]: part.count("\n| ") for part in parts}
    assert {name: rows[name] for name in PARTS if rows[name] < 3} == {}
    recommendations = next(part for part in parts if part.startswith("Recommendations"))
    assert recommendations.count("Next: ") == len(shown.advice)


def test_long_lists_of_markdown_end_with_how_many_more() -> None:
    """Ten rows and ten sentences are shown; the page and the JSON have all."""
    shown = content(GOLDEN.parent / "data" / "bundles" / "with-ceilings")
    assert shown.quality is not None
    text, page = markdown_report(shown), html_report(shown)
    checks = [*shown.ruled_out, *shown.quality.ruled_out]
    passed, missed = (
        [one.title for one in checks if one.kind is kind] for kind in (MessageKind.PASSED, MessageKind.NOT_CHECKED)
    )
    assert len(passed) > 10
    assert f"Passed checks: {len(passed)}." in text
    assert f"- {len(missed) - 10} more: see the HTML report" in text
    assert [title for title in (*passed, *missed) if plain(title, LONG) not in unescape(page)] == []


def test_the_html_report(done: Profiled, request: pytest.FixtureRequest) -> None:
    """The page without style and script, and without pictures whose strokes depend on the drawing library's version."""
    page = (done.path / "report.html").read_text()
    page = re.sub(r'<svg [^>]*class="marks".*?</svg>', "<svg></svg>", page, flags=re.DOTALL)
    page = re.sub(r'(?<=<meta name="pictures" content=")[^"]*', "", page)
    page = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", page, flags=re.DOTALL)
    check("report.html", re.sub(r"sha256-[\w+/=&#;]+", "sha256-", page), request)


def test_the_terminal_summary(done: Profiled, request: pytest.FixtureRequest) -> None:
    """Within 80 columns, the answer in the first lines."""
    lines = text_of(summary(done.content)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(words_beside_tables(report_document(done.content))) <= 120
    check("summary.txt", "\n".join(lines) + "\n", request)


def test_the_page_needs_nothing_else(done: Profiled) -> None:
    """No script, no style sheet, no font, no picture from elsewhere: it opens offline."""
    page = (done.path / "report.html").read_text()
    assert not re.search(r"<(link|iframe|object|embed|img)|<script [^>]*src|url\(", page)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert "@import" not in page
    assert page.count('class="marks"') == 3
    assert page.count('<svg class="bars"') == 1


def test_the_first_screen_answers(done: Profiled) -> None:
    """Latency, speedup with interval, split, top operators and next steps come before everything else."""
    first = (done.path / "report.html").read_text().split("</section>")[0]
    headings = ("Operator Category Breakdown", "Top operators", "Recommendations")
    for words in ("with acceleration", "95 % interval", *headings):
        assert words in first
    assert "delegated" in first
    assert "portable" in first


def test_only_what_was_agreed_to_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each difference is shown; what is not agreed to stays beside, as does all where nobody can be asked."""
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("old\n")
        (tmp_path / f"{name}{NEW}").write_text("new\n")
    assert len(review(tmp_path, None)) == 2
    assert [path.name for path in review(tmp_path, lambda name: name == "a.md")] == [f"b.md{NEW}"]
    assert [(tmp_path / name).read_text() for name in ("a.md", "b.md")] == ["new\n", "old\n"]
    assert capsys.readouterr().out.count("-old\n+new\n") == 4
