"""What a person reads first of profile, analyze, check and preflight: at most 120 words beside the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import opscope
from opscope.api import check, inspect, preflight
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
HERE = "No SME here but avx512, avx2, avx, sse4; measure: opscope profile model.pte"


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_a_profile_is_short(bundle: Path) -> None:
    """With the answer, how sure it is, what to do, and what else the report has."""
    words = words_beside_tables(report_document(content(bundle)))
    text = " ".join(words)
    assert len(words) <= MOST, text
    assert "Measurement quality: do not trust" in text
    assert "Measure again before acting on any finding: " in text
    assert "next: " in text


@pytest.mark.parametrize("path", [DATA / "toy_cnn.etdump", *BUNDLES], ids=lambda path: path.name)
def test_an_analysis_is_short(path: Path) -> None:
    """Of a trace alone and of a bundle."""
    words = words_beside_tables(inspected_document(inspect(str(path))))
    assert len(words) <= MOST, " ".join(words)
    assert "next:" in words


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_a_check_is_short(bundle: Path) -> None:
    """The verdict, why, and what to do next."""
    decision = check(f"{bundle}#accelerated", f"{bundle}#baseline")
    words = words_beside_tables(gate_document(decision, comparison_text(decision), 8)._replace(heading=""))
    assert len(words) <= MOST, " ".join(words)
    assert "Next:" in words


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_preflight_is_short(program: Path) -> None:
    """Of a program with one method, on a machine without SME."""
    words = words_beside_tables(preflight_document(preflight(str(program)), HERE))
    assert len(words) <= MOST, " ".join(words)


def test_what_is_measured_here_is_what_is_printed() -> None:
    """The whole output of a command holds these words, and its tables."""
    printed = opscope("analyze", DATA / "toy_cnn.etdump").stdout.split()
    words = words_beside_tables(inspected_document(inspect(str(DATA / "toy_cnn.etdump"))))
    assert len(words) < len(printed)
    assert set(words) <= set(printed)
