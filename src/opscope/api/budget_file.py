"""Reading a budget file: TOML or JSON, every mistake named by file, entry and field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analyze.budgets import LIMITS, SELECTORS, Budgets, chosen, describe, known_words
from opscope.errors import did_you_mean
from opscope.program.taxonomy import Category
from opscope.run.config_errors import shown, typed, wrong
from opscope.run.config_files import decoded

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.analyze.budgets import Budget, Sides

_CHOICES = {"category": tuple(category.value for category in Category)}


def read_budgets(file: Path) -> Budgets:
    """The limits that a file sets.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        UsageError: it is no TOML or JSON, a field is wrong, or an entry chooses or limits nothing.
    """
    budgets = typed(decoded(file, hint="give a TOML or JSON file with [[budget]] entries"), Budgets, file, _CHOICES)
    end_to_end = budgets.end_to_end
    if not budgets.budget and end_to_end.max_ms is None and end_to_end.max_slower is None:
        raise wrong(file, "", "it sets no limit", "for example [end_to_end] with max_ms = 12.5")
    for number, budget in enumerate(budgets.budget):
        place = f"budget[{number}]"
        if not _given(budget, SELECTORS):
            raise wrong(file, place, "it chooses no operators", f"give at least one of {', '.join(SELECTORS)}")
        if not _given(budget, LIMITS):
            raise wrong(file, place, "it sets no limit", f"give at least one of {', '.join(LIMITS)}")
    return budgets


def check_chosen(budgets: Budgets, file: Path, sides: Sides) -> None:
    """Make sure that every entry chooses something in the candidate: a misspelt layer must not pass.

    Raises:
        UsageError: one chooses nothing; the message names the word that is to blame when one alone is.
    """
    rows = sides.candidate.operators
    for number, budget in enumerate(budgets.budget):
        if chosen(budget, rows):
            continue
        place = f"budget[{number}]"
        for name in _given(budget, SELECTORS):
            value = getattr(budget, name)
            word = str(getattr(value, "value", value))
            known = known_words(name, rows)
            if not known:
                hint = "modules are known with an export record (.etrecord) only" if name == "module" else None
                raise wrong(file, f"{place}.{name}", f"no operator of the candidate has a known {name}", hint)
            if word not in known:
                problem = f"the candidate has no operator of {name} {shown(value)}"
                raise wrong(file, f"{place}.{name}", problem, did_you_mean(word, known))
        raise wrong(file, place, f"no operator of the candidate is all of this: {describe(budget)}")


def _given(budget: Budget, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(budget, name) is not None]
