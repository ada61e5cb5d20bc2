"""Manifests that somebody edited: damaged ones are called so, newer ones newer, and none leads out of its bundle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle_damage import state_hashes_of_records
from opscope.bundle.bundle import Bundle
from opscope.core.errors import BundleError, StorageError, TraceFormatError
from opscope.workflows.analyze.sides import side_of
from texts import NO_REGULAR_FILE

KEPT = Path(__file__).parents[1] / "data" / "bundles" / "flat-rooms"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of a bundle."""
    return Path(shutil.copytree(KEPT, tmp_path / "bundle"))


def edit(bundle: Path, change: Callable[[Any], object]) -> None:
    """Change what the manifest holds."""
    file = bundle / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def traced(manifest: Any) -> Any:
    """The record of the first traced repetition of the variant that is analysed."""
    return next(one for one in manifest["repetitions"] if one["trace"] and one["variant"] == "accelerated")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda manifest: manifest["environment"].update(usable_cpus=0), r"Expected `int` >= 1.*usable_cpus"),
        (lambda manifest: manifest["environment"].update(logical_cpus=-4), r"Expected `int` >= 1.*logical_cpus"),
        (lambda manifest: traced(manifest)["before"].update(usable_cpus=0), r"Expected `int` >= 1.*before"),
        (lambda manifest: manifest.update(variants=[]), "it has no variants"),
        (lambda manifest: manifest["plan"].update(rounds="many"), "Expected `int`, got `str`"),
    ],
    ids=["no usable CPU", "fewer than no CPUs", "no CPU before a repetition", "no variants", "words for numbers"],
)
def test_an_impossible_manifest_is_damaged(change: Callable[[Any], object], problem: str, bundle: Path) -> None:
    """With what is impossible in it, and what to do."""
    edit(bundle, change)
    with pytest.raises(TraceFormatError, match=f"the manifest is damaged: .*{problem}") as caught:
        Bundle.open(bundle)
    assert "opscope validate" in str(caught.value.hint)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"schema": 7}'])
def test_what_is_no_manifest_is_damaged(content: bytes, bundle: Path) -> None:
    """Whatever it is instead."""
    (bundle / "manifest.json").write_bytes(content)
    with pytest.raises(TraceFormatError, match="the manifest is damaged"):
        Bundle.open(bundle)


def test_a_manifest_of_a_newer_schema_is_newer_and_not_damaged(bundle: Path) -> None:
    """Even where nothing else in it can be understood."""
    (bundle / "manifest.json").write_text('{"schema": "opscope.bundle/9", "all": "new"}')
    with pytest.raises(BundleError, match=r"written as opscope.bundle/9; this opscope reads") as caught:
        Bundle.open(bundle)
    assert caught.value.hint == "upgrade opscope"


@pytest.mark.parametrize("created", ["1970-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
def test_years_far_away_change_no_figure(created: str, bundle: Path) -> None:
    """A clock can be wrong; latencies do not come from it."""
    edit(bundle, lambda manifest: manifest.update(created=created))
    assert side_of(bundle, None).table.inferences().height > 0


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/etc/passwd", "is not a path within the bundle"),
        ("../../../../../etc/passwd", "points outside the bundle"),
        ("a\0b", "is not a path"),
        ("", "is not a path"),
    ],
)
@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("trace", lambda manifest, path: traced(manifest).update(trace=path)),
        ("directory", lambda manifest, path: traced(manifest).update(directory=path)),
        ("model.program", lambda manifest, path: manifest["model"].update(program=path)),
        (r"variants\[0\].name", lambda manifest, path: manifest["variants"][0].update(name=path)),
    ],
    ids=["trace", "directory", "program", "variant"],
)
def test_a_path_that_leads_out_of_a_bundle_is_refused(
    path: str, fault: str, place: str, change: Callable[[Any, str], object], bundle: Path
) -> None:
    """Nothing there is read, not even to hash it."""
    edit(bundle, lambda manifest: change(manifest, path))
    with pytest.raises(TraceFormatError, match=f"the manifest is damaged: .*{place} {fault}"):
        Bundle.open(bundle)


def test_the_name_of_a_trace_that_is_too_long_is_an_error_of_the_disk(bundle: Path) -> None:
    """As the system says it."""
    edit(bundle, lambda manifest: traced(manifest).update(trace="x" * 5000))
    state_hashes_of_records(bundle)
    with pytest.raises(StorageError, match="File name too long"):
        _ = side_of(bundle, None).table


def test_a_pipe_in_place_of_a_trace_is_not_waited_for(bundle: Path) -> None:
    """Nobody writes to it."""
    path = bundle / traced(json.loads((bundle / "manifest.json").read_text()))["trace"]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TraceFormatError, match=f"a pipe, {NO_REGULAR_FILE}"):
        _ = side_of(bundle, None).table
