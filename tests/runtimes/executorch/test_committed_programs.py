"""Programs that tests use are those of their sources, and of the installed exporter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exports import COMMITTED, INDEX, directory_name, program
from opscope.api import preflight
from opscope.runtimes.executorch.export.process import export_model


def test_each_is_named_after_its_source() -> None:
    """A model that was changed has another hash, and no other program is left behind."""
    index = json.loads(INDEX.read_text())
    named = {directory_name(name, index[name]) for name in COMMITTED}
    assert named == {path.name for path in INDEX.parent.iterdir() if path.is_dir()}


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMITTED)
def test_the_installed_exporter_gives_the_same_operators(name: str, tmp_path: Path) -> None:
    """What is delegated and what is not, by category with its work, and the layout changes."""
    exported, _ = export_model(COMMITTED[name].model, COMMITTED[name].dtype, tmp_path)
    assert preflight(exported).methods == preflight(program(name)).methods
