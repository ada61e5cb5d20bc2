"""Names that want to be more than names: in every report they stay text."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from hostile_names import HOSTILE
from opscope.analysis.rules.evidence import Evidence
from opscope.analysis.rules.rules import examine
from opscope.api import Settings, profile
from opscope.reports.content.content import ReportContent
from opscope.reports.report import html_report, markdown_report
from programs import write_tiny_program


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """A report whose model, machine and operators all have hostile names."""
    directory = tmp_path_factory.mktemp("hostile")
    program = write_tiny_program(directory)
    settings = Settings(rounds=6, runs=2, warmup=0)
    shown = profile(
        str(program), settings=settings, out=directory / "out", target=FakeTarget(), clock=FakeClock()
    ).content
    replace = msgspec.structs.replace
    results, name = [], iter((*HOSTILE[4:], *HOSTILE * 4))  # the first ones take time
    for result in shown.variants:
        assert result.analysis is not None
        operators = [replace(operator, name=next(name)) for operator in result.analysis.operators]
        found = examine(Evidence(result.analysis.latency, operators))
        analysis = replace(result.analysis, operators=operators, findings=found[0])
        results.append(replace(result, analysis=analysis))
    manifest = replace(
        shown.manifest,
        model=replace(shown.manifest.model, name=HOSTILE[0], source=HOSTILE[2]),
        environment=replace(shown.manifest.environment, cpu=HOSTILE[1], kernel=HOSTILE[6]),
    )
    return replace(shown, manifest=manifest, variants=results, findings=results[0].analysis.findings)


def test_the_page_runs_nothing(content: ReportContent) -> None:
    """No element and no attribute comes from a name, and templates in names are not computed."""
    page = html_report(content)
    assert page.count("<script") == 1
    assert not re.search(r"<(img|iframe)|<[a-z]+ [^>]*(?:onerror|onload|style)\s*=", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert page.count("<table") == page.count("</table>")


def test_the_policy_names_the_very_style_and_script(content: ReportContent) -> None:
    """Nothing is allowed but what has the hash of the one style sheet and the one script; no ``unsafe`` word."""
    page = html_report(content)
    allowed = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    for name in ("style", "script"):
        [text] = re.findall(rf"<{name}>(.*?)</{name}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in allowed
    assert allowed.startswith("default-src 'none';")
    assert "unsafe" not in allowed
    assert page.index("Content-Security-Policy") < page.index("<title>")


TAGS = {"svg", "g", "path", "line", "rect", "text", "title", "div", "span"}
"""Of pictures; none of them does anything by itself."""


def test_pictures_run_nothing(content: ReportContent) -> None:
    """Names in pictures are text as well."""
    found = r'<svg [^>]*class="marks".*?</svg>|<div class="lines bars">.*?</svg></div>|<svg class="icicle".*?^</svg>'
    pictures = re.findall(found, html_report(content), flags=re.DOTALL | re.MULTILINE)
    assert len(pictures) >= 5
    for picture in pictures:
        for element in ET.fromstring(picture).iter():  # noqa: S314 - it was written a line ago
            assert element.tag.rpartition("}")[2] in TAGS
            assert not [name for name in element.attrib if name.startswith("on") or name in {"href", "style"}]


def test_no_markdown_table_breaks(content: ReportContent) -> None:
    """Every row of a table has as many cells as its head, and no line holds raw HTML."""
    rows = 0
    cells = None
    for line in markdown_report(content).splitlines():
        if not line.startswith("|"):
            cells = None
            continue
        count = len(re.findall(r"(?<!\\)\|", line))
        cells = cells or count
        assert count == cells, line[:200]
        rows += 1
    assert rows > 20
    assert not re.search(r"(?<!\\)<(script|img)", markdown_report(content))


def test_long_and_reversed_names_are_shown_short_and_straight(content: ReportContent) -> None:
    """Ten thousand characters are cut in the middle; direction marks are replaced."""
    for text in (html_report(content), markdown_report(content)):
        assert "x" * 200 not in text
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
        assert "\x07" not in text


def test_the_page_title_holds_the_name_as_text(content: ReportContent, tmp_path: Path) -> None:
    """The page can be written and read back as UTF-8."""
    path = tmp_path / "report.html"
    path.write_text(html_report(content), encoding="utf-8")
    assert "<title>&lt;script&gt;" in path.read_text(encoding="utf-8")
