"""What a report says about where its ceilings come from."""

from __future__ import annotations

import msgspec
import pytest

from fakes import at_speed, round_ceilings
from opscope.program.ceilings import Ceilings, Origin, drift_of
from opscope.reports.sections.program import ceilings_text

KEPT = msgspec.structs.replace(round_ceilings(), measured_at="2026-01-02T10:15:00+00:00")
LATER = "2026-01-03T08:00:00+01:00"


def probed(speed: float, *, seconds: float = 0.3) -> Ceilings:
    """Kept ceilings with the probe of a machine at this speed."""
    again = msgspec.structs.replace(at_speed(KEPT, speed), seconds=seconds)
    return msgspec.structs.replace(KEPT, drift=drift_of(KEPT, [again], LATER))


REUSED = msgspec.structs.replace(probed(0.96), origin=Origin.CACHE)
REPLACED = msgspec.structs.replace(probed(0.5), measured_at=LATER)


MEASURED = "Ceilings were measured after these runs, on 2026-01-02 10:15 UTC."


@pytest.mark.parametrize(
    ("ceilings", "sentences"),
    [
        (round_ceilings(), ["Ceilings were measured after these runs."]),
        (KEPT, [MEASURED]),
        (
            REUSED,
            [
                "Ceilings were measured for an earlier run on this machine, on 2026-01-02 10:15 UTC.",
                "A probe of 0.3 s after these runs agrees:",
                "3 of them reached 96 % of their stored rates (tolerance 10 to 30 %).",
            ],
        ),
        (
            REPLACED,
            [
                "Ceilings were measured after these runs, on 2026-01-03 07:00 UTC.",
                "Those of 2026-01-02 10:15 UTC no longer held:",
                "f32 with avx512f 50 %, copy of 32.0 KiB 50 %, copy of 1.00 MiB 50 % of the stored rate.",
            ],
        ),
        (
            msgspec.structs.replace(KEPT, cpu_share=0.4, notes=["not kept for later runs"]),
            [
                MEASURED,
                "They may be too low: other programs used the CPU for 60.0 % of the time.",
                "Note: not kept for later runs.",
            ],
        ),
    ],
)
def test_the_report_says_when_ceilings_were_measured_and_what_showed_that_they_hold(
    ceilings: Ceilings, sentences: list[str]
) -> None:
    """In an old file, for this run, for an earlier one, in the place of an earlier one, in a bad minute."""
    assert ceilings_text(ceilings) == " ".join(sentences)
