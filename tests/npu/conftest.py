"""Captures of AI Engine hardware: those that are made of their figures everywhere, and the real ones where they are."""

from __future__ import annotations

import pytest

from aie_captures import Captures, made
from beside import CAPTURES, reads_captures


@pytest.fixture(scope="session")
def made_captures(tmp_path_factory: pytest.TempPathFactory) -> Captures:
    """Made of the outlines, once."""
    return made(tmp_path_factory.mktemp("captures"))


@pytest.fixture(params=["made", pytest.param("real", marks=reads_captures)])
def captures(request: pytest.FixtureRequest, made_captures: Captures) -> Captures:
    """All captures; the real ones only where they are."""
    return made_captures if request.param == "made" else Captures(CAPTURES)


@pytest.fixture
def real_captures() -> Captures:
    """The real ones alone, for what depends on where events lie within a call."""
    return Captures(CAPTURES)
