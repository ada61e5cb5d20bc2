"""Settings as options of a command, and the words that ask for them again."""

from __future__ import annotations

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from opscope.bundle.settings import USUAL, ExperimentSettings, words_of
from opscope.cli.shared.measuring import GivenSettings, with_settings
from opscope.experiment.planned import Settings

OTHER = {
    "ablate": ("avx512", "avx2"),
    "ladder": True,
    "switch": "trap",
    "untouched": False,
    "runtime": "openvino",
    "delegate": "both",
    "session_options": {"graph_optimization_level": "basic", "mlas.disable_kleidiai": "1"},
    "threads": (2, 1),
    "oversubscribe": True,
    "affinity": (1, 0),
    "nice": 7,
    "rounds": 3,
    "runs": 7,
    "warmup": 0,
    "dtype": "int8",
    "min_seconds": 0.1,
    "until": 0.02,
    "max_rounds": 12,
    "cooldown_seconds": 1.5,
    "max_temperature": 61.0,
    "seed": 9,
    "timeout": 0.25,
    "untraced": False,
    "methods": ("prefill", "decode:16"),
    "input": ("float32[1,3]", "5"),
    "dim": {"height": 320, "width": 240},
    "guess_inputs": True,
    "inputs": "a file.npz",
    "data": "weights.ptd",
    "ceilings": True,
}
"""Another value than the usual one for every setting."""


def parsed(*words: str) -> Settings:
    """The settings that a command line asks for."""
    found: list[Settings] = []
    app = typer.Typer()

    @app.command()
    @with_settings()
    def command(asked: GivenSettings) -> None:
        found.append(asked.settings())

    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


def test_all_settings_at_once() -> None:
    """Let none take another one's words, and nothing asked for be as usual; a new setting is looked at here."""
    assert OTHER.keys() == set(ExperimentSettings.__struct_fields__)
    assert all(getattr(USUAL, name) != value for name, value in OTHER.items())
    wanted = ExperimentSettings(**OTHER)  # type: ignore[arg-type]
    assert parsed(*words_of(wanted, OTHER)).own() == wanted.own()
    assert parsed() == Settings()
    assert list(words_of(USUAL, OTHER)) == []


@pytest.mark.parametrize("name", OTHER)
def test_the_words_of_a_setting_ask_for_it(name: str) -> None:
    """What reproduces a run is read as what was asked for."""
    wanted = msgspec.structs.replace(USUAL, **{name: OTHER[name]})
    assert parsed(*words_of(wanted, [name])).own() == wanted.own()
