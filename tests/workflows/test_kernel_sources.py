"""What tells of kernels, as a user names it: a path, and the variant behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.workflows.kernel_view import split_label


@pytest.mark.parametrize(
    ("given", "path", "label"),
    [
        ("out/kernels.log", "out/kernels.log", None),
        ("out#accelerated", "out", "accelerated"),
        ("out#1#accelerated", "out#1", "accelerated"),
        ("#accelerated", "#accelerated", None),
        ("", ".", None),
    ],
)
def test_a_variant_stands_behind_the_last_mark(given: str, path: str, label: str | None) -> None:
    """A path with nothing before the mark is a name."""
    assert split_label(given) == (Path(path), label)


def test_a_file_with_a_mark_in_its_name_is_taken_as_it_is(tmp_path: Path) -> None:
    """Where it is there; else the mark ends the path."""
    named = tmp_path / "run#2.log"
    assert split_label(str(named)) == (tmp_path / "run", "2.log")
    named.touch()
    assert split_label(str(named)) == (named, None)
