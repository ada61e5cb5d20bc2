"""What is read of macOS: power, the processor's name, memory, identity and Rosetta, without a Mac."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opscope.analysis.findings.message import Grade, MessageKind, grade_left
from opscope.analysis.quality.quality_machine import Circumstances, not_throttled
from opscope.machine.macos import parse_power

DARWIN = Path(__file__).parents[1] / "support" / "darwin"
THERMAL = """
Note: No thermal warning level has been recorded
2026-11-29 10:00:00 +0000 CPU Power notify
\tCPU_Scheduler_Limit \t= 100
\tCPU_Available_CPUs \t= 8
\tCPU_Speed_Limit \t= {}
"""
SETTINGS = "System-wide power settings:\nCurrently in use:\n standby              1\n {}\n sleep                1\n"


NO_LIMIT = "Note: No performance warning level has been recorded"


@pytest.mark.parametrize(
    ("thermal", "settings", "expected"),
    [
        (THERMAL.format(100), SETTINGS.format("lowpowermode         0"), (1.0, False)),
        (THERMAL.format(67), SETTINGS.format("lowpowermode         1"), (0.67, True)),
        (NO_LIMIT, SETTINGS.format("powermode            1"), (None, True)),
        (NO_LIMIT, SETTINGS.format("powermode            2"), (None, False)),
        ("", "", (None, None)),
    ],
)
def test_power_is_read_as_pmset_prints_it(
    thermal: str, settings: str, expected: tuple[float | None, bool | None]
) -> None:
    """Intel states a limit always, Apple silicon only while there is one; both names of the mode are known."""
    assert parse_power(thermal, settings) == expected


@pytest.mark.parametrize(
    ("state", "grade"),
    [
        ({"speed_limit": 1.0, "low_power": False}, None),
        ({"speed_limit": 0.67, "low_power": False}, Grade.DO_NOT_TRUST),
        ({"speed_limit": None, "low_power": True}, Grade.USABLE),
        ({"speed_limit": 0.9, "low_power": True}, Grade.DO_NOT_TRUST),
    ],
)
def test_a_mac_that_is_held_back_limits_the_grade(state: dict[str, Any], grade: Grade | None) -> None:
    """Heat makes times wrong; the low power mode makes them those of that mode."""
    unknown = dict.fromkeys(Circumstances._fields[:8])
    message = not_throttled(Circumstances(**unknown | {"known": True}, planned=2, failed=0, missing=0, **state))
    assert (message.kind is MessageKind.PASSED) is (grade is None)
    if grade:
        assert grade_left(message) is grade


def test_the_environment_of_a_mac_tells_machines_apart() -> None:
    """Its processor by name, its memory, a hash of its identity, and that nothing translates it."""
    script = "import msgspec, opscope.machine.environment as e; print(msgspec.json.encode(e.capture(None)).decode())"
    environment = {**os.environ, "PYTHONPATH": f"{DARWIN}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    found = msgspec.json.decode(done.stdout)
    assert (found["system"], found["cpu"], found["memory_bytes"]) == ("Darwin", "Apple M4", 16 << 30)
    assert len(found["host"]) == 16
    assert found["emulator"] is None
