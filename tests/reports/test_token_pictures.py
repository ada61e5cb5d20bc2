"""The picture of decoding: one bar at a position, whatever else was measured there."""

from opscope.analysis.tokens.ledger import LedgerRow, TokenLedger
from opscope.analysis.tokens.parts import TokenPart
from opscope.program.phases import phase_of
from opscope.reports.pictures.tokens import decode_over_position


def ledger(name: str, time_ns: float) -> TokenLedger:
    """A call whose time is all attention."""
    phase = phase_of(name)
    assert phase is not None
    row = LedgerRow(TokenPart.ATTENTION, 1, time_ns, 1.0, None, None, layer=0, bandwidth=None)
    return TokenLedger(name, phase, time_ns, 1.0, True, [row], [], 0, [], None, None, 0)  # noqa: FBT003 - fields


def test_bars_of_several_caches_are_not_stacked() -> None:
    """The size with the most positions is drawn, as if it were alone."""
    many = [ledger("decode_at_10_of_64", 100_000), ledger("decode_at_40_of_64", 200_000)]
    assert decode_over_position([*many, ledger("decode_at_10_of_128", 150_000)]) == decode_over_position(many)
    assert decode_over_position([]) is None
