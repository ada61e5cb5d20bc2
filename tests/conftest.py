"""Fixtures shared by the tests, and the switch that writes expected reports anew."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_RUNTIME = find_spec("executorch") is not None and find_spec("torch") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--bless`` writes the expected reports anew."""
    parser.addoption("--bless", action="store_true", help="write the expected reports anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of the real runtime where it is not installed, and say so."""
    skip = pytest.mark.skip(reason="needs torch and executorch: pip install 'opscope[executorch]'")
    for item in items:
        if item.get_closest_marker("runtime") and not HAS_RUNTIME:
            item.add_marker(skip)


@pytest.fixture
def small_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of a few lines are read the way that is for long ones."""
    from opscope.runtimes.executorch.etdump import repeats

    monkeypatch.setattr(repeats, "WORTH_BYTES", 0)


@pytest.fixture(scope="session")
def toy_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """toy_cnn, exported once by the real exporter."""
    from opscope.runtimes.executorch.export.process import export_model

    return export_model("toy_cnn", "fp32", tmp_path_factory.mktemp("toy"))[0]
