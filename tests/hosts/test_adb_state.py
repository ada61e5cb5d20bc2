"""What an Android device tells of itself and of its state; the formats are Android's, from its documents and source."""

from __future__ import annotations

from pathlib import Path

import pytest

from adb_bench import adb_server, needs_adb, plugged
from opscope.bundle.manifest import Phone, PhoneState
from opscope.hosts.adb.adb import AdbShell
from opscope.hosts.adb.device import device_of, read_device, read_state, state_of
from opscope.hosts.facts import environment_of

BIG = "\tTemperature{{mValue={}, mType=0, mName=BIG, mStatus=0}}\n"
SKIN = "\tTemperature{mValue=60.0, mType=3, mName=skin, mStatus=0}\n"


@needs_adb
def test_a_phone_is_read_into_the_manifest(tmp_path: Path) -> None:
    """Maker, chip, system, settings as they were found; load, temperature, battery and every CPU's clock."""
    with adb_server(tmp_path), plugged(tmp_path / "phone") as device:
        device.phone.put("low_power", "1")
        shell = AdbShell(device.address)
        found = read_device(shell, "boost", ["sme2"], {"executorch": "1.5.1"})
        state = read_state(shell)
    assert (found.system, found.cpu, found.logical_cpus) == ("Android", "Example Silicon ES9001", 2)
    assert (found.features, found.versions["executorch"]) == (["sme2"], "1.5.1")
    assert found.phone == Phone(
        manufacturer="Example",
        model="Phone 1",
        soc="Example Silicon ES9001",
        android="15",
        build="example/phone1/phone1:15/AB1.250101.001/1:user/release-keys",
        power="boost",
        settings={
            "low_power": "1",
            "stay_on_while_plugged_in": None,
            "window_animation_scale": None,
            "transition_animation_scale": None,
            "animator_duration_scale": None,
        },
    )
    assert (state.frequency_mhz, state.temperature_celsius, state.usable_cpus) == (3000.0, 47.25, 2)
    assert state.phone == PhoneState(
        thermal_status=1,
        battery_percent=83,
        battery_celsius=31.2,
        plugged=True,
        frequencies_mhz=[1800.0, 3000.0],
        limits_mhz=[2000.0, 3300.0],
    )


def test_a_device_that_tells_nothing() -> None:
    """Null everywhere, never a guess."""
    state = state_of({})
    assert (state.load_average, state.frequency_mhz, state.temperature_celsius, state.usable_cpus) == (None,) * 4
    assert state.phone == PhoneState(None, None, None, None, [], [])
    found = device_of({}, None, environment_of({}, None, {}))
    assert found.phone == Phone(None, None, None, None, None, None, {})
    assert (found.system, found.cpu, found.logical_cpus) == (None, None, None)


@pytest.mark.parametrize(
    ("thermal", "celsius"),
    [
        (f"Cached temperatures:\n{BIG.format(99.0)}", 99.0),
        (f"Cached temperatures:\n{BIG.format(99.0)}Current temperatures from HAL:\n{BIG.format(28.5)}{SKIN}", 28.5),
        (f"Current temperatures from HAL:\n{SKIN}", 60.0),
        ("HAL Ready: false\n", None),
    ],
)
def test_the_temperature_is_that_of_the_cpus_now(thermal: str, celsius: float | None) -> None:
    """What the sensors tell now goes before what was cached, CPUs before other sensors."""
    assert state_of({"thermal": thermal}).temperature_celsius == celsius


def test_cpus_stand_in_the_order_of_their_numbers() -> None:
    """The shell lists cpu10 before cpu2; a CPU that is off tells no clock."""
    told = state_of({"cpufreq": "0 300000 1800000\n10 900000 3000000\n2  \n", "online": "0-1,10"})
    assert told.phone.frequencies_mhz == [300.0, None, 900.0]
    assert told.phone.limits_mhz == [1800.0, None, 3000.0]
    assert told.usable_cpus == 3


@pytest.mark.parametrize(
    "hostile",
    [
        {
            "thermal": "Thermal Status: 999999999999999999999\nTemperature{mValue=..., mType=0,",
            "battery": "level: -5\n",
        },
        {"cpufreq": "x y z\n99999999999999999999 1 2\n\n", "online": "0-99999999999999999999999"},
        {"online": "5-1", "battery": "  temperature: hot\n  AC powered: maybe\n"},
    ],
)
def test_output_that_is_no_state_breaks_nothing(hostile: dict[str, str]) -> None:
    """A device is not to be trusted; what makes no sense is null."""
    told = state_of(hostile)
    assert (told.phone.thermal_status, told.phone.battery_percent, told.phone.battery_celsius) == (None, None, None)
    assert told.temperature_celsius is None
    assert told.usable_cpus is None


def test_the_longest_word_of_a_device_is_cut() -> None:
    """A manifest stays readable."""
    told = device_of({"properties": f"[ro.product.model]: [{'x' * 9000}]"}, None, environment_of({}, None, {}))
    assert told.phone.model == "x" * 200
