"""Long lists on a page: some rows at once, more of them folded, and a bound that is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Listed(NamedTuple):
    """The rows of a list that are shown at once, those that are folded, and how many the page leaves out."""

    first: Sequence[Any]
    folded: Sequence[Any]
    left_out: int

    @property
    def total(self) -> int:
        """All of them."""
        return len(self.first) + len(self.folded) + self.left_out


def listed(rows: Sequence[Any], shown: int, most: int) -> Listed:
    """The rows, as far as there is room."""
    return Listed(rows[:shown], rows[shown:most], max(0, len(rows) - most))
