"""``opscope skills show``: the recipes that findings name, and the skills."""

from __future__ import annotations

from ended import Command
from opscope.core.errors import NotFoundError
from recipe_pages import recipes


def test_the_command_shows_every_recipe(command: Command) -> None:
    """As the page has it, and each skill; a name that is neither is answered with those that are like it."""
    for recipe in recipes():
        done = command("skills", "show", recipe.name)
        assert done.returncode == 0
        assert done.stdout.rstrip() == recipe.page.read_text(encoding="utf-8").rstrip()
    assert command("skills", "show", "opscope-run-profiling").returncode == 0
    wrong = command("skills", "show", "layer-norms")
    assert wrong.returncode == NotFoundError.exit_code
    assert "layer-norm" in wrong.stderr
