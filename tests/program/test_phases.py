"""Names of calls that stand for phases of a language model."""

import pytest

from opscope.program.phases import Phase, PhaseKind, phase_name, phase_of


@pytest.mark.parametrize(
    "phase",
    [
        Phase(PhaseKind.PREFILL, 128, 0),
        Phase(PhaseKind.PREFILL, 16, 0, 4096),
        Phase(PhaseKind.PREFILL, 16, 10, 4096),
        Phase(PhaseKind.DECODE, 1, 0),
        Phase(PhaseKind.DECODE, 64, 10, 4096),
        Phase(PhaseKind.DECODE, 1, 1000, 1280),
    ],
)
def test_a_name_says_what_a_call_does(phase: Phase) -> None:
    """There and back."""
    assert phase_of(phase_name(phase)) == phase


@pytest.mark.parametrize(
    ("name", "tokens", "found"),
    [
        ("decode", None, None),
        ("prefill", None, None),
        ("forward", None, None),
        ("decode_at_010", None, None),
        ("decode_at_", None, None),
        ("decode_2", None, None),
        ("prefill", 16, Phase(PhaseKind.PREFILL, 16, 0)),
        ("decode", 1, Phase(PhaseKind.DECODE, 1)),
        ("forward", 1, Phase(PhaseKind.DECODE, 1)),
        ("forward", 8, Phase(PhaseKind.PREFILL, 8)),
        ("decode_at_10", 4, Phase(PhaseKind.DECODE, 4, 10)),
        ("decode_at_10 n_threads=4", 4, Phase(PhaseKind.DECODE, 4, 10)),
    ],
)
def test_a_name_without_a_number_says_nothing_alone(name: str, tokens: int | None, found: Phase | None) -> None:
    """Methods of image models have such names, too; with known tokens a call is what they say."""
    assert phase_of(name, tokens) == found
