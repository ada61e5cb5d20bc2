"""What a person reads first of profile, analyze, check and preflight: at most 120 words beside the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ended import Command
from opscope.api import check, inspect, preflight
from opscope.reports.document.blocks import Document
from opscope.reports.gate import comparison_text, gate_document
from opscope.reports.inspected import inspected_document
from opscope.reports.preflight import preflight_document
from opscope.reports.report import report_document
from opscope.workflows.reports.reports import content
from screen_words import words_beside_tables

DATA = Path(__file__).parents[1] / "data"
BUNDLES = sorted((DATA / "bundles").iterdir())
PROGRAMS = sorted(path for path in DATA.glob("programs/*/*.pte") if "methods" not in path.name)
MOST = 120


def documents() -> Iterator[tuple[str, Callable[[], Document], tuple[str, ...]]]:
    """What each screen is of, the document that it shows, and words that stand on it."""
    quality = ("comparison: do not trust", "Measure again before acting on any finding: ", "next: ")
    for bundle in BUNDLES:
        yield f"profile {bundle.name}", lambda of=bundle: report_document(content(of)), quality
        yield f"check {bundle.name}", lambda of=bundle: checked(of), ("Next:",)
    for path in (DATA / "toy_cnn.etdump", *BUNDLES):
        yield f"analyze {path.name}", lambda of=path: inspected_document(inspect(str(of))), ("next:",)
    for path in PROGRAMS:
        yield f"preflight {path.stem}", lambda of=path: preflight_document(preflight(str(of))), ()


def checked(bundle: Path) -> Document:
    """The check of both variants of a bundle, below its heading."""
    decision = check(f"{bundle}#accelerated", f"{bundle}#baseline")
    return gate_document(decision, comparison_text(decision), 8)._replace(heading="")


@pytest.mark.parametrize(
    ("document", "told"), [pytest.param(make, words, id=name) for name, make, words in documents()]
)
def test_a_screen_is_short(document: Callable[[], Document], told: tuple[str, ...]) -> None:
    """Give the answer, how sure it is, what to do, and what else the report has."""
    words = words_beside_tables(document())
    text = " ".join(words)
    assert len(words) <= MOST, text
    assert [part for part in told if part not in text] == []


def test_what_is_measured_here_is_what_is_printed(command: Command) -> None:
    """Find these words, and tables, in the whole output of a command."""
    printed = command("analyze", DATA / "toy_cnn.etdump").stdout.split()
    words = words_beside_tables(inspected_document(inspect(str(DATA / "toy_cnn.etdump"))))
    assert len(words) < len(printed)
    assert set(words) <= set(printed)
