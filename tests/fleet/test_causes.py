"""What changed on a device, from the manifests of its runs to the sentence that names it; columns that were added."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from many_bundles import Made, Mint
from opscope.api import add_to_store, check_fleet, query_store
from opscope.bundle.manifest import Manifest, Phone
from opscope.fleet import bundles
from opscope.fleet.analysis.causes import CauseKind
from opscope.fleet.bundles import BundleLabels
from opscope.fleet.reports.fleet_gate import fleet_text
from opscope.fleet.reports.words import cause_text
from opscope.fleet.store import schema
from opscope.machine.environment import capture, host, host_digest
from opscope.reports.gate import gate_markdown

NIGHTS, DEVICES, MODELS = 14, ("board 1", "board 2", "board 3"), ("detector", "tracker", "words")
PHONE = Phone("Maker", "P1", "SoC", "14", "build/1", "performance", {})

Change = Callable[[Manifest], Manifest]


def environment(**fields: Any) -> Change:
    """Another environment."""
    return lambda one: msgspec.structs.replace(one, environment=msgspec.structs.replace(one.environment, **fields))


def phone(**fields: Any) -> Change:
    """Another phone."""
    return environment(phone=msgspec.structs.replace(PHONE, **fields))


def variants(**fields: Any) -> Change:
    """Other variants."""
    return lambda one: msgspec.structs.replace(
        one, variants=[msgspec.structs.replace(variant, **fields) for variant in one.variants]
    )


CAUSES: dict[str, tuple[Change, str]] = {
    "kernel": (environment(kernel="6.12"), "kernel 6.1 -> 6.12"),
    "governor": (environment(governor="powersave"), "clock governor performance -> powersave"),
    "microcode": (environment(revision="0x2b"), "microcode or core revision 0x1a -> 0x2b"),
    "firmware": (environment(firmware="SeaBIOS 1.17"), "firmware SeaBIOS 1.16 -> SeaBIOS 1.17"),
    "usable CPUs": (environment(usable_cpus=1), "usable CPUs 2 -> 1"),
    "machine": (environment(host="beef"), "machine cafe -> beef"),
    "variable": (environment(variables={"OMP_NUM_THREADS": "1"}), "variable OMP_NUM_THREADS not known -> 1"),
    "Android": (phone(android="15", build="build/2"), "Android 14 -> 15"),
    "build": (phone(build="build/2"), "system build build/1 -> build/2"),
    "power": (phone(power="battery saver"), "power settings performance -> battery saver"),
    "option": (variants(options={"enable_cpu_mem_arena": "0"}), "option enable_cpu_mem_arena not known -> 0"),
    "delegate": (variants(delegate="none"), "delegate xnnpack -> none"),
    "runtime": (
        lambda one: environment(versions={**one.environment.versions, "executorch": "1.6.0"})(one),
        "executorch 1.5.1 -> 1.6.0",
    ),
}


@pytest.fixture(scope="module")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Mint:
    """Bundles of a small program."""
    return Mint(tmp_path_factory.mktemp("mint"))


def usual(one: Manifest) -> Manifest:
    """What all bundles have before anything changes."""
    one = environment(phone=PHONE, revision="0x1a", firmware="SeaBIOS 1.16", host="cafe")(one)
    one = environment(governor="performance", variables={})(one)
    return variants(delegate="xnnpack", options={})(one)


@pytest.mark.nightly  # a store for each cause
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named(cause: str, mint: Mint, tmp_path: Path) -> None:
    """One board is 15 % slower in the last night, with one fact that is another one in its manifests."""
    change, told = CAUSES[cause]
    number, store, noise = 0, tmp_path / "store", random.Random(1)
    for device in DEVICES:
        paths = []
        for model in MODELS:
            for night in range(NIGHTS):
                number += 1
                moved = device == DEVICES[0] and night == NIGHTS - 1
                factor = (1.15 if moved else 1.0) * (1 + 0.002 * noise.randrange(5))
                path = mint.make(tmp_path / f"{number}", Made(number, model, hours=24 * night, factor=factor))
                file = path / "manifest.json"
                manifest = usual(msgspec.json.decode(file.read_bytes(), type=Manifest))
                file.write_bytes(msgspec.json.encode(change(manifest) if moved else manifest))
                paths.append(path)
        add_to_store(paths, store, given=BundleLabels(device=device))
    (move,) = check_fleet(f"2026-01-{NIGHTS}", store).evidence.causes
    assert (move.kind, move.name, move.changed) == (CauseKind.DEVICE, DEVICES[0], 2 * len(MODELS))
    assert told in cause_text(move)


def stored(mint: Mint, tmp_path: Path, changes: list[Change]) -> Path:
    """A store with a run in each night, each manifest changed as told; nobody names the machine."""
    for night, change in enumerate(changes):
        path = mint.make(tmp_path / f"{night}", Made(night, hours=24 * night, factor=1 + 0.06 * (night > 9)))
        file = path / "manifest.json"
        manifest = change(msgspec.json.decode(file.read_bytes(), type=Manifest))
        file.write_bytes(msgspec.json.encode(manifest))
        add_to_store([path], tmp_path / "store")
    return tmp_path / "store"


def test_a_machine_keeps_its_name(mint: Mint, tmp_path: Path) -> None:
    """With another system its text is another one; with another CPU it is another machine."""
    first, later = (environment(host="cafe", system=system, cpu="A") for system in ("Linux", "Other"))
    store = stored(mint, tmp_path, [first, first, later, environment(host="cafe", cpu="B"), environment(cpu="A")])
    names = query_store("SELECT device FROM runs WHERE role = 'baseline' ORDER BY placed", store).rows
    assert [name for (name,) in names] == ["A, Linux x86_64"] * 3 + ["B, Linux x86_64", "A, Linux x86_64"]


def test_a_device_that_vanished_is_told(mint: Mint, tmp_path: Path) -> None:
    """Nothing tells that it is the same machine: its text changes with its system, and 6 % would not be seen."""
    store = stored(mint, tmp_path, [environment(system="Linux")] * 10 + [environment(system="Other")])
    found = check_fleet("2026-01-11", store)
    (gone,) = found.evidence.vanished
    assert (gone.device, gone.appeared) == ("Test CPU, Linux x86_64", ["Test CPU, Other x86_64"])
    told = " ".join(gate_markdown(found, fleet_text(found)).split()).replace("\\_", "_")
    assert "device Test CPU, Linux x86_64 vanished, Test CPU, Other x86_64 with the same CPU appeared" in told
    assert check_fleet("2026-01-10", store).evidence.vanished == []


def test_columns_are_added_to_a_store_that_is_there(
    mint: Mint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows from before have null there; nothing else changes for queries."""
    store, own = tmp_path / "store", bundles._run_cells
    add_to_store([mint.make(tmp_path / "1", Made(1))], store)

    runs = schema.TABLES["runs"]
    more = runs._replace(columns=(*runs.columns, schema.StoreColumn("later", schema.Type.TEXT, "a later column")))
    for tables in (schema.TABLES, schema.EVERY):
        monkeypatch.setitem(tables, "runs", more)
    monkeypatch.setitem(schema.STORED, "later", schema.Type.TEXT)
    monkeypatch.setattr(bundles, "_run_cells", lambda *asked: (*own(*asked), "7"))
    asked = "SELECT later, latency_ns > 0 FROM runs ORDER BY ALL"
    assert query_store(asked, store).rows == [(None, True)] * 2
    add_to_store([mint.make(tmp_path / "2", Made(2))], store)
    assert query_store(asked, store).rows == [("7", True)] * 2 + [(None, True)] * 2
    assert query_store("SELECT count(DISTINCT bundle) FROM operators", store).rows == [(2,)]


def test_an_environment_tells_the_machine() -> None:
    """Without its name, and by nothing that could be guessed from it: a machine without a number is not told."""
    found, (name, _, number) = capture(None).host, host().partition("\n")
    assert (found is not None) == bool(number)
    assert host_digest(f"{name}\n") is host_digest("") is None
    told = host_digest(f"{name}\n0123456789abcdef")
    assert told is not None
    assert name not in told
    assert told != host_digest(f"{name}\n0123456789abcdee")
