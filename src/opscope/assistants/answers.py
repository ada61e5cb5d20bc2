"""What a tool answers: a sentence, opscope's JSON with its long lists cut, and how to get the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    Json: TypeAlias = Any
    """A document of any shape."""

_LONGEST_TEXT = 2_000
_MORE_LISTS = 12


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool answers.

    Attributes:
        answer: in one sentence.
        result: the document that the command line writes with --json, its long lists cut; its `schema` names the JSON
            schema that describes it.
        more: what was cut, and how to get it; empty where everything is here.
    """

    answer: str
    result: dict[str, Any]
    more: list[str]


def answered(answer: str, document: msgspec.Struct, most: int, more: Sequence[str] = ()) -> ToolAnswer:
    """A result as an answer.

    Args:
        answer: it in one sentence.
        document: all of it.
        most: entries of a list that are kept, the first ones.
        more: what else is to be said of how to get more.
    """
    cut: dict[str, int] = {}
    result = _cut(msgspec.to_builtins(document, str_keys=True), most, "", cut)
    lists = [f"{place}: the first {most} of {count:,}" for place, count in list(cut.items())[:_MORE_LISTS]]
    if len(cut) > _MORE_LISTS:
        lists.append(f"{len(cut) - _MORE_LISTS} more lists are cut")
    limit = [f"a larger `limit` shows more of each list (now {most})"] if cut else []
    return ToolAnswer(answer, result, [*lists, *limit, *more])


def _cut(value: Json, most: int, place: str, cut: dict[str, int]) -> Json:
    """A part of a document without the ends of its long lists, whose lengths are noted."""
    if isinstance(value, dict):
        return {name: _cut(one, most, f"{place}.{name}".lstrip("."), cut) for name, one in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > most:
            cut[place] = max(cut.get(place, 0), len(value))
        return [_cut(one, most, f"{place}[]", cut) for one in value[:most]]
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}..."
    return value
