"""What devices tell about themselves, as text: Linux on Arm, macOS, Android, and one that tells nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.hosts.facts import conditions_of, environment_of, parts

BOARD = b"""Welcome to the board
@@system
Linux
@@machine
aarch64
@@kernel
6.6.31
@@os
Debian GNU/Linux 12 (bookworm)
@@cpuinfo
processor\t: 0
Features\t: fp asimd sme2
@@model
Some Board Rev 1.0

@@cpus
4
@@usable
3
@@meminfo
MemTotal:        8245668 kB
@@memory

@@governor
ondemand
@@libc
glibc 2.36
@@firmware
2024/01/05 15:57:40
@@end
"""

MAC = b"""
@@system
Darwin
@@machine
arm64
@@kernel
24.1.0
@@os
15.1
@@cpuinfo

@@model
Apple M4
@@cpus
10
@@usable
10
@@meminfo

@@memory
17179869184
@@governor

@@libc

@@end
"""


def test_a_board_is_known_by_its_device_tree() -> None:
    """Linux on Arm tells no name of the CPU in /proc/cpuinfo; whether it is a virtual machine is not told either."""
    found = environment_of(parts(BOARD), ["sme2"], {"opscope": "1"})
    assert (found.system, found.machine, found.cpu) == ("Linux", "aarch64", "Some Board Rev 1.0")
    assert (found.logical_cpus, found.usable_cpus, found.memory_bytes) == (4, 3, 8245668 * 1024)
    assert (found.governor, found.hypervisor, found.firmware) == ("ondemand", None, "2024/01/05 15:57:40")
    assert found.versions == {"opscope": "1", "os": "Debian GNU/Linux 12 (bookworm)", "libc": "glibc 2.36"}


def test_a_mac_tells_by_other_means() -> None:
    """Its CPU and memory come from sysctl; what it does not have is null."""
    found = environment_of(parts(MAC), None, {})
    assert (found.system, found.cpu, found.memory_bytes) == ("Darwin", "Apple M4", 16 << 30)
    assert (found.governor, found.features) == (None, None)
    assert found.versions == {"os": "15.1"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            b"@@load\n0.52 0.4 0.3 1/200 77\n@@usable\n4\n@@khz\n600000\n1800000\n@@millicelsius\n41000\n52500\n",
            (0.52, 1800.0, 52.5, 4),
        ),
        (b"@@load\n{ 1.97 2.05 2.01 }\n@@usable\n10\n@@khz\n@@millicelsius\n@@end\n", (1.97, None, None, 10)),
        (b"", (None, None, None, None)),
        (b"@@load\nbusy\n@@usable\nmany\n@@khz\n9999999999999999\n@@millicelsius\nhot\n", (None, None, None, None)),
    ],
)
def test_the_state_is_what_was_told_and_nothing_else(
    output: bytes, expected: tuple[float | None, float | None, float | None, int | None]
) -> None:
    """Highest clock and temperature; Linux and macOS write the load in two ways; nonsense is null."""
    found = conditions_of(parts(output))
    assert (found.load_average, found.frequency_mhz, found.temperature_celsius, found.usable_cpus) == expected


@given(st.binary(max_size=300))
def test_no_output_is_an_error(output: bytes) -> None:
    """Whatever a device prints, there is an answer, of nulls if need be."""
    told = parts(BOARD[:60] + output)
    assert environment_of(told, None, {}) is not None
    assert conditions_of(told) is not None
