"""Which runs are meant: as text, or as values by key, which teach the text where they are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from opscope.core.errors import UsageError
from opscope.fleet.runs import parse_filter


def test_values_by_key_mean_what_the_text_means() -> None:
    """In their order; numbers too."""
    asked = {"device": "Pixel 8", "since": "2026-01-01", "threads": 4, "last": 30}
    text = "device=Pixel 8,since=2026-01-01,threads=4,last=30"
    assert parse_filter(asked) == parse_filter(text)
    assert parse_filter(asked).text == text
    assert parse_filter({}).text == ""


def test_a_comma_in_a_value_stays_in_it() -> None:
    """As in the text, unless a key follows it; what is given by key is never taken apart."""
    assert parse_filter("device=Pixel, the old one,last=3").values == ("Pixel, the old one",)
    assert parse_filter({"device": "Pixel, the old one", "last": 3}).values == ("Pixel, the old one",)
    assert parse_filter({"device": "Pixel,model=other"}).values == ("Pixel,model=other",)


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        (7, 'write where="device=NAME,last=30" or where={"device": "NAME", "last": 30}'),
        (["device=x"], 'write where="device=NAME,last=30" or where={"device": "NAME", "last": 30}'),
        ({"last": 3.5}, "write last=VALUE; a value is a text or a whole number"),
        ({"device": None}, "write device=VALUE; a value is a text or a whole number"),
        ({"last": True}, "write last=VALUE; a value is a text or a whole number"),
        ("model", "write model=VALUE; a value is a text or a whole number"),
    ],
)
def test_what_is_no_filter_is_told_with_what_to_write(where: Any, hint: str) -> None:
    """Instead of an error of Python's from somewhere inside."""
    with pytest.raises(UsageError) as raised:
        parse_filter(where)
    assert raised.value.hint == hint


def test_an_unknown_key_is_told_as_in_the_text() -> None:
    """With the keys that are near."""
    with pytest.raises(UsageError) as raised:
        parse_filter({"devise": "x"})
    assert "device" in (raised.value.hint or "")
