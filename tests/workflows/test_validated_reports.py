"""Reports under validation: every figure and every shape that a person sees is compared with what the traces give."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import opscope
from opscope.api import combined_report
from opscope.core.version import __version__

SEED = Path(__file__).parents[1] / "data" / "bundles" / "with-ceilings"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a real program with ceilings, whose reports were written now."""
    bundle = Path(shutil.copytree(SEED, tmp_path_factory.mktemp("sound") / "with-ceilings"))
    opscope.report(bundle)
    return bundle


@pytest.fixture
def bundle(sound: Path, tmp_path: Path) -> Path:
    """A copy of it, in another place."""
    return Path(shutil.copytree(sound, tmp_path / "out"))


def reports(bundle: Path, expected: str) -> list[str]:
    """What the check of the reports says, whose status must be the expected one."""
    found = opscope.validate(bundle).check("reports")
    assert found.status.value == expected
    return [f"{p.file} {p.at}: {p.message}" for p in found.problems] or [found.message]


def by_another(bundle: Path, *names: str) -> None:
    """Make reports say that another version wrote them, with a figure that is another."""
    for name in names:
        page = bundle / name
        text = page.read_text().replace(f"opscope {__version__}", "opscope 0.0.9").replace("0.99x", "0.98x")
        page.write_text(text)


def changed(text: str, pattern: str, after: str = "") -> str:
    """A page with one digit raised: the first that follows the pattern, behind the text ``after``."""
    start = text.index(after) if after else 0
    found = re.compile(pattern + r"[^0-9<>]*?(\d)", re.DOTALL).search(text, start)
    assert found is not None, pattern
    at = found.start(found.lastindex or 1)
    return text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]


_HEADLINE = r'<p class="headline">(?:<span class="tag">[^<]*</span> )?'
FIGURES = {
    "headline": (_HEADLINE, ""),
    "figure of the first screen": (r'<div class="tile"><span>speedup</span><b>', ""),
    "interval of the first screen": (r'<div class="tile"><span>speedup</span><b>[^<]*</b><span>', ""),
    "category": (r'Convolution</td><td class="n spare"[^>]*>', "Operator Category Breakdown"),
    "finding": (r'<span class="high">', 'class="findings"'),
    "statistics": (r'<td class="n"[^>]*>', 'id="latency"'),
    "text of a picture": (r"<text[^>]*>", 'class="marks"'),
    "shape of a picture": (r'aria-roledescription="bar"[^>]* d="M', 'class="marks"'),
    "label of a mark for screen readers": (r'<path aria-label="[^"]*; median ms of the process: ', 'class="marks"'),
    "bar of the split": (r'<rect x="[^"]*" y="[^"]*" width="', 'class="bars"'),
    "text of a bar for the pointer": (r"<title>Convolution: ", 'class="bars"'),
    "latency beside a bar": (r"<span>baseline, ", 'class="lines bars"'),
    "width in an icicle": (r'<svg class="[^"]*" x="[^"]*" y="[^"]*" width="', 'class="icicle"'),
    "text under the pointer": (r"<title>stem.0: ", 'class="icicle"'),
    "operator": (r'<td class="n" data-v="[\d.]+">', 'id="operators"'),
    "figure that a table is sorted by": (r'<td class="n" data-v="', 'id="operators"'),
    "kernel": (r'<td class="n"[^>]*>', 'id="kernels"'),
    "point of the roofline": (r'aria-label="[^"]*: ', 'id="roofline"'),
    "command to reproduce": (r"--rounds ", ""),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_changed_figure_of_the_page_is_found(name: str, bundle: Path) -> None:
    """Find it in text, in a cell, in a picture's shapes, and in what only the pointer or a sort shows."""
    page = bundle / "report.html"
    page.write_text(changed(page.read_text(), *FIGURES[name]))
    (told,) = reports(bundle, "failed")
    assert re.match(r"report\.html (section \w+, )?line \d+: states .*, it is ", told), told


def test_every_line_with_a_figure_is_held_against_the_traces(bundle: Path) -> None:
    """A digit raised in every line of the page's text that has one, all at once: each of these lines is counted."""
    page = bundle / "report.html"
    head, text, script = re.split(r"(?=<main>|</main>)", page.read_text())
    digits = re.compile(r"^(.*?[ >])(\d)", re.MULTILINE)
    raised, count = digits.subn(lambda found: f"{found[1]}{(int(found[2]) + 1) % 10}", text)
    page.write_text(head + raised + script)
    assert opscope.validate(bundle).check("reports").total == count > 150


def test_a_figure_that_the_script_would_change_is_found(bundle: Path) -> None:
    """Find other figures than the text of a page holds, and one of the Markdown with its line."""
    page, markdown = bundle / "report.html", bundle / "report.md"
    text = page.read_text()
    page.write_text(text.replace("</script>", 'document.title = "2x faster";\n</script>'))
    reports(bundle, "failed")
    page.write_text(text)
    markdown.write_text(changed(markdown.read_text(), r"\*\*"))
    assert reports(bundle, "failed")[0].startswith("report.md line 3: states")


def test_a_title_of_the_user_is_no_fault(bundle: Path, tmp_path: Path) -> None:
    """Take it for no figure; a combined report rests on other bundles, which are not opened."""
    opscope.report(bundle, title="Release <2.0> · candidate")
    combined_report([bundle, shutil.copytree(bundle, tmp_path / "other")], bundle, ["html"])
    (told,) = reports(bundle, "passed")
    assert told.startswith("2 files match the traces: 0 byte by byte, 2 line by line; ")
    assert "combined.html not recomputed: it covers other bundles too" in told


def test_a_report_of_another_version_is_a_note(bundle: Path) -> None:
    """Say which version wrote it, as its words and rules may be others; reports once named no writer."""
    text = (bundle / "report.html").read_text()
    by_another(bundle, "report.html")
    expected = "1 file matches the traces: byte by byte; report.html not recomputed, written by opscope 0.0.9"
    assert reports(bundle, "passed") == [expected]
    (bundle / "report.html").write_text(re.sub(r'<meta name="generator"[^>]*>\n', "", text))
    assert "report.html not recomputed, written by an earlier opscope version" in reports(bundle, "passed")[0]
    by_another(bundle, "report.md")
    assert "report.md not recomputed, written by opscope 0.0.9" in reports(bundle, "skipped")[0]


def test_pictures_of_other_libraries_are_a_note(bundle: Path) -> None:
    """Their strokes differ with the library; the text of the page is compared anyway."""
    page = bundle / "report.html"
    other = re.sub(r"altair [^,]*", "altair 0.1", page.read_text())
    page.write_text(changed(other, r"<text[^>]*>", 'class="marks"'))
    drawn = "pictures of report.html not recomputed: drawn by altair 0.1, vl-convert"
    assert drawn in reports(bundle, "passed")[0]
    page.write_text(changed(page.read_text(), _HEADLINE))
    reports(bundle, "failed")


@pytest.mark.skipif(sys.platform != "linux", reason="what is left of a limit of addresses is read from /proc")
def test_few_addresses_cost_the_pictures_and_not_the_report(bundle: Path) -> None:
    """As ulimit -v 2097152 leaves them: drawing would end the process by a signal."""
    for command in ("report", "validate"):
        limited = f"ulimit -v 2097152; exec {sys.executable} -m opscope {command} {bundle}"
        done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "2 files match the traces: byte by byte" in done.stdout
    page = (bundle / "report.html").read_text()
    assert page.count("<p>not drawn: pictures need 66 GiB of address space") == 4
    assert '<svg class="bars"' in page  # the split needs no library
    assert reports(bundle, "passed")[0].endswith(
        "; pictures of report.html not recomputed: they were not drawn when it was written"
    )
