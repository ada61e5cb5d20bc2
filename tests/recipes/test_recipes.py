"""Every recipe of docs/recipes: its two models are exported, and hold the operators that the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe_pages import RECIPES, ROWS, Counts, Recipe, counts_of, difference, recipes, table_of

pytestmark = [
    pytest.mark.nightly,  # exports the models of all pages
    pytest.mark.runtime,
    pytest.mark.filterwarnings("ignore"),
]

NAMES = [recipe.name for recipe in recipes()]
CLOSE = 1e-5
"""Largest difference of outputs in float32, as a part of the largest value."""
CLOSE_IN_INT8 = 0.05


@pytest.fixture(scope="module", params=NAMES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A recipe, and the directory with both programs."""
    recipe = Recipe(RECIPES / f"{request.param}.md")
    directory = tmp_path_factory.mktemp(request.param)
    for side in ("before", "after"):
        recipe.exported(side, directory)
    return recipe, directory


def counted(directory: Path) -> tuple[Counts, Counts]:
    """What both programs hold."""
    before, after = (counts_of(next((directory / side).glob("*.pte"))) for side in ("before", "after"))
    return before, after


def test_the_page_shows_the_operators_of_the_programs(exported: tuple[Recipe, Path]) -> None:
    """Exactly: calls, delegated and portable operators, transposes, multiply-accumulates and bytes."""
    recipe, directory = exported
    before, after = counted(directory)
    shown = recipe.shown()
    assert shown == {ROWS[key]: (getattr(before, key), getattr(after, key)) for key in ROWS}, table_of(before, after)


def test_both_programs_compute_the_same(exported: tuple[Recipe, Path]) -> None:
    """On the example inputs of the page."""
    recipe, directory = exported
    limit = CLOSE_IN_INT8 if recipe.name == "dynamic-int8" else CLOSE
    assert difference(*recipe.outputs(directory)) < limit


def test_a_recipe_gains_something_that_can_be_counted(exported: tuple[Recipe, Path]) -> None:
    """Nothing more is portable, and there are fewer portable operators, fewer transposes or fewer bytes."""
    _, directory = exported
    before, after = counted(directory)
    assert after.portable <= before.portable
    assert after.portable < before.portable or after.transposes < before.transposes or after.bytes < before.bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_when_it_does_not_help(name: str) -> None:
    """Advice without its limits is not true everywhere."""
    text = (RECIPES / f"{name}.md").read_text(encoding="utf-8")
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## Before", "## After", "## What changes", "## When it does not help"]
    assert "**You see:**" in text
    assert "Measured: " in text
