"""Hashes of records: the same for the same facts, whichever opscope wrote them, and another for any other fact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opscope
from bundle_damage import rehash
from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.consistency import record_hashes
from opscope.bundle.manifest import Measurement, Repetition
from opscope.core.errors import InvalidBundleError, TraceFormatError
from programs import write_tiny_program


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of the tiny program with an untraced arm."""
    program = str(write_tiny_program(tmp_path))
    settings = Settings(rounds=2, runs=2, warmup=1, ceilings=False)
    profile(program, settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    return tmp_path / "out"


def manifest(bundle: Path) -> Any:
    """The manifest as it stands on disk."""
    return json.loads((bundle / "manifest.json").read_text())


def leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of all values in a document that are no list and no object."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for name, own in pairs for leaf in leaves(own, (*place, name))]
    return [place]


def test_every_fact_of_a_record_is_covered(bundle: Path) -> None:
    """Whatever a field is called and whenever it was added: another value gives another hash."""
    record = manifest(bundle)["repetitions"][0]
    places = [place for place in leaves(record) if place != ("record_sha256",)]
    assert ("measurement", "wall_ns", 0) in places
    for place in places:
        other = json.loads(json.dumps(record))
        holder = other
        for name in place[:-1]:
            holder = holder[name]
        holder[place[-1]] = "another"
        (found,) = record_hashes({"repetitions": [other]})
        assert found.changed, place


def test_a_field_that_came_later_changes_no_hash() -> None:
    """An opscope that knows more fields writes them as null or empty when it goes on with a bundle."""
    old = {"variant": "a", "measurement": {"wall_ns": [1, 2]}}
    new = {"measurement": {"wall_ns": [1, 2], "faults": None, "marks": [], "clock": {}}, "variant": "a", "later": None}
    assert next(record_hashes({"repetitions": [old]})).true == next(record_hashes({"repetitions": [new]})).true


@pytest.mark.parametrize("kind", [Measurement, Repetition])
def test_defaults_of_added_fields_are_null_or_empty(kind: type[msgspec.Struct]) -> None:
    """So that they are left out of the hash; the arm is older than the hashes and always written."""
    added = [field for field in msgspec.structs.fields(kind) if not field.required and field.name != "arm"]
    defaults = [field.default_factory() if field.default is msgspec.NODEFAULT else field.default for field in added]
    assert all(default in (None, "", (), [], {}) for default in defaults)


def test_a_resumed_run_keeps_the_hashes(bundle: Path) -> None:
    """The manifest is written whole after each repetition, with the records of before."""
    found = list(record_hashes(manifest(bundle)))
    assert len(found) == 8
    assert all(one.stated and not one.changed for one in found)
    opened = Bundle.open(bundle)
    opened.set_status(opened.manifest.status)
    assert list(record_hashes(manifest(bundle))) == found


@pytest.mark.parametrize("arm", ["timed", "traced"])
def test_an_edited_time_is_refused(arm: str, bundle: Path) -> None:
    """By what computes figures of that variant, with the record; other variants are as they were."""
    document = manifest(bundle)
    at = next(n for n, r in enumerate(document["repetitions"]) if (r["arm"], r["variant"]) == (arm, "baseline"))
    document["repetitions"][at]["measurement"]["wall_ns"][1] += 1_000_000
    (bundle / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(InvalidBundleError, match=rf"repetitions\[{at}\] was changed after it was measured") as told:
        opscope.analyze(f"{bundle}#baseline")
    assert told.value.where == str(bundle / "manifest.json")
    with pytest.raises(InvalidBundleError, match="was changed"):
        opscope.report(bundle)
    assert opscope.analyze(f"{bundle}#accelerated").latency.source == "untraced"


def test_who_states_new_hashes_is_not_found(bundle: Path) -> None:
    """Hashes within a bundle protect from accidents and careless hands only, and the documentation says so."""
    document = manifest(bundle)
    document["repetitions"][0]["measurement"]["wall_ns"][1] += 1_000_000
    (bundle / "manifest.json").write_text(json.dumps(document))
    rehash(bundle)
    opscope.report(bundle)
    assert opscope.validate(bundle).valid


@pytest.mark.parametrize("content", [b'{"schema":"\xff"}', b"[" * 100_000, b'{"a":' * 100_000])
def test_a_damaged_manifest_is_said_in_words(content: bytes, tmp_path: Path) -> None:
    """What fuzzing found: bytes that are no text, and nesting without end."""
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(TraceFormatError, match="the manifest is damaged"):
        Bundle.open(tmp_path)
