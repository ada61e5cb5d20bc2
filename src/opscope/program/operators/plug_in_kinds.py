"""Kinds of operators that other packages add, by entry points in ``opscope.kinds``: for names that no kind of ours has.

An entry point is a :class:`~opscope.program.operators.kinds.Kind` or several. The five categories are those of every
report and stay; a kind says which of them its operators belong to.
"""

from __future__ import annotations

from opscope.core.plug_ins import PlugIn, plug_ins
from opscope.program.operators.kinds import Category, Kind

GROUP = "opscope.kinds"


def plug_in_kinds() -> tuple[list[Kind], list[str]]:
    """The kinds of all installed packages, named PACKAGE:KIND, and why some are not there, one sentence each.

    Of two for one name the last counts.
    """
    kinds: list[Kind] = []
    problems: list[str] = []
    for one in plug_ins(GROUP):
        if one.problem:
            problems.append(one.problem)
            continue
        try:
            kinds += _checked(one)
        except Exception as error:  # noqa: BLE001 - the objects of any package
            problems.append(one.failed("has no kinds", error))
    return kinds, problems


def _checked(one: PlugIn) -> list[Kind]:
    found = [one.loaded] if isinstance(one.loaded, Kind) else [*one.loaded]
    for kind in found:
        if not isinstance(kind, Kind) or not isinstance(kind.category, Category):
            raise TypeError(f"{kind!r} is not a Kind with a Category")
        if not all(isinstance(text, str) for text in kind._replace(category=Category.OTHER)):
            raise TypeError(f"the names of {kind.name!r} are not text")
    return [kind._replace(name=f"{one.package}:{kind.name}") for kind in found]
