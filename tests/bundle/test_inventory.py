"""What lies in a bundle: files that cannot be read, and directories of attempts that a record explains."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle
from opscope.bundle.inventory import leftovers, path_problems, read_inventory
from opscope.bundle.manifest import Manifest, Status
from programs import write_tiny_program

OWN = "variants/accelerated"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A finished bundle of two rounds."""
    settings = Settings(rounds=2, runs=2, warmup=1, ceilings=False)
    profile(
        write_tiny_program(tmp_path), settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock()
    )
    return Bundle.open(tmp_path / "out")


def left(bundle: Bundle, manifest: Manifest | None = None, homes: str = "accelerated baseline") -> list[str]:
    """Paths that no run that ended well leaves."""
    found = read_inventory(bundle.path)
    return [problem.file for problem in leftovers(manifest or bundle.manifest, found, homes.split())]


def test_all_of_a_finished_bundle_is_known(bundle: Bundle) -> None:
    """Nothing is left over, and no path is at fault."""
    found = read_inventory(bundle.path)
    assert (left(bundle), list(path_problems(bundle.manifest, found)), found.unusable) == ([], [], {})
    assert found.fault("manifest.json") is None
    assert found.sizes["manifest.json"] == (bundle.path / "manifest.json").stat().st_size
    assert str(found.fault("nothing.json")) == "is missing"


def test_a_directory_that_cannot_be_read_hides_its_files(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's reason is told of it and of what should be in it; the rest is read."""
    scandir, closed = os.scandir, bundle.path / OWN / "round-01"

    def refused(path: Path) -> object:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)  # root may read everything
    found = read_inventory(bundle.path)
    assert list(found.unusable) == [f"{OWN}/round-01"]
    assert "Permission denied" in str(found.fault(f"{OWN}/round-01"))
    assert "Permission denied" in str(found.fault(f"{OWN}/round-01/trace.etdump.zst"))
    assert found.fault(f"{OWN}/round-00/trace.etdump.zst") is None
    assert [problem.file for problem in path_problems(bundle.manifest, found)] == [f"{OWN}/round-01"]


def test_only_regular_files_within_the_bundle_are_usable(bundle: Bundle, tmp_path: Path) -> None:
    """A link within it is one; a link out of it, a broken one and a pipe are not."""
    (tmp_path / "outside").write_text("x")
    for name, to in {"in": "manifest.json", "out": str(tmp_path / "outside"), "broken": "nothing"}.items():
        (bundle.path / name).symlink_to(to)
    os.mkfifo(bundle.path / "pipe")
    found = read_inventory(bundle.path)
    assert sorted(found.unusable) == ["broken", "out", "pipe"]
    assert "in" in found.sizes
    assert len(set(found.unusable.values())) == 3


@pytest.mark.parametrize(
    ("made", "explained"),
    [
        ("round-01", True),
        ("timed-00", True),
        ("round-01-attempt-2", False),
        ("round-03", False),
        ("timed-03", False),
        ("notes", False),
    ],
)
def test_an_attempt_is_explained_by_a_record(bundle: Bundle, made: str, *, explained: bool) -> None:
    """Of its own directory, or of a later attempt at the same place."""
    (bundle.path / OWN / made).mkdir(exist_ok=True)
    assert left(bundle) == ([] if explained else [f"{OWN}/{made}"])


def test_a_killed_attempt_is_explained_by_the_one_that_followed_it(bundle: Bundle) -> None:
    """The second attempt is recorded: the first was left by a run that was killed, a third by nobody."""
    records = [
        msgspec.structs.replace(one, attempt=2, directory=f"{one.directory}-attempt-2")
        if one.directory == f"{OWN}/round-01"
        else one
        for one in bundle.manifest.repetitions
    ]
    manifest = msgspec.structs.replace(bundle.manifest, repetitions=records)
    for name in ("round-01-attempt-2", "round-01-attempt-3"):
        (bundle.path / OWN / name).mkdir()
    found = left(bundle, manifest)
    assert f"{OWN}/round-01-attempt-3" in found
    assert {f"{OWN}/round-01", f"{OWN}/round-01-attempt-2"}.isdisjoint(found)


def test_a_killed_attempt_is_explained_by_a_place_that_is_still_open(bundle: Bundle) -> None:
    """The run goes on there; a round that is not planned is nobody's."""
    kept = [one for one in bundle.manifest.repetitions if one.directory != f"{OWN}/round-00"]
    manifest = msgspec.structs.replace(bundle.manifest, repetitions=kept, status=Status.INCOMPLETE)
    (bundle.path / OWN / "round-03").mkdir()
    assert left(bundle, manifest) == [f"{OWN}/round-03"]


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (Status.COMPLETE, [".manifest.json.1f3a5b7c.tmp", ".reserve", "request.json"]),
        (Status.INCOMPLETE, [".manifest.json.1f3a5b7c.tmp", "request.json"]),
        (Status.RUNNING, [".manifest.json.1f3a5b7c.tmp"]),
    ],
)
def test_what_passes_while_a_run_goes_on_is_left_over_when_it_has_ended(
    bundle: Bundle, status: Status, found: list[str]
) -> None:
    """A half-written file is always."""
    for name in (".manifest.json.1f3a5b7c.tmp", ".reserve", "request.json"):
        (bundle.path / name).write_text("")
    assert left(bundle, msgspec.structs.replace(bundle.manifest, status=status)) == found


def test_directories_and_traces_of_nobody(bundle: Bundle) -> None:
    """A variant that is not in the manifest, and a trace that no record names."""
    (bundle.path / OWN / "round-01" / "second.etdump").write_bytes(b"")
    (bundle.path / "trace.etdump").write_bytes(b"")  # not in a repetition's directory, so it is none of one
    assert left(bundle) == [f"{OWN}/round-01/second.etdump"]
    assert "variants/baseline" in left(bundle, homes="accelerated")


@pytest.mark.parametrize("name", [".native", ".switch"])
@pytest.mark.parametrize(("status", "is_left"), [(Status.COMPLETE, True), (Status.INCOMPLETE, False)])
def test_scratch_is_left_over_in_a_complete_bundle(name: str, status: Status, *, is_left: bool, bundle: Bundle) -> None:
    """An incomplete run still has that of the process that was killed, which --resume removes."""
    (bundle.path / OWN / "round-01" / name).mkdir()
    found = left(bundle, msgspec.structs.replace(bundle.manifest, status=status))
    assert found == ([f"{OWN}/round-01/{name}"] if is_left else [])
