"""Bundles: nothing that was recorded is lost, and nothing is claimed that did not happen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fakes import FakeClock, FakeTarget
from opscope.api import Settings, profile
from opscope.bundle.bundle import Bundle, check_free
from opscope.bundle.manifest import BUILD, Failure, FailureKind, PlanSlot, Status, TracingMode
from opscope.core.errors import BundleError, NotFoundError, StorageError, TraceFormatError
from opscope.core.writing import write_atomically
from opscope.experiment.protocol import OUTPUTS
from opscope.readers.compressed import content_sha256
from opscope.readers.outputs import read_outputs, values_sha256
from programs import write_tiny_program
from texts import HOLDS_A_BUNDLE

SMALL = Settings(rounds=2, runs=2, warmup=1)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A finished bundle of two rounds."""
    program = write_tiny_program(tmp_path)
    profile(str(program), settings=SMALL, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    return Bundle.open(tmp_path / "out")


def test_a_manifest_reads_back_as_it_was_written(bundle: Bundle) -> None:
    """Writing and reading gives the same value, with the schema named in the file."""
    content = json.loads((bundle.path / "manifest.json").read_text())
    assert content["schema"] == "opscope.bundle/1"
    assert Bundle.open(bundle.path).manifest == bundle.manifest


def test_roles_are_fields_and_traces_are_where_the_manifest_says(bundle: Bundle) -> None:
    """Each variant has a role, each traced repetition its trace with its hash; a timed one has none."""
    assert [(v.name, v.role.value) for v in bundle.manifest.variants] == [
        ("accelerated", "accelerated"),
        ("baseline", "baseline"),
    ]
    timed, traced = ([r for r in bundle.manifest.repetitions if r.arm is arm] for arm in TracingMode)
    assert len(timed) == len(traced)
    assert {repetition.trace for repetition in timed} == {None}
    for repetition in traced:
        assert content_sha256(bundle.path / str(repetition.trace)) == repetition.trace_sha256


def test_equal_outputs_of_a_variant_are_kept_once(bundle: Bundle) -> None:
    """Those of the first process; every repetition states the hash by which they are found."""
    kept = sorted(bundle.relative(path) for path in bundle.path.rglob(OUTPUTS))
    assert kept == [f"variants/{name}/timed-00/{OUTPUTS}" for name in ("accelerated", "baseline")]
    for repetition in bundle.manifest.repetitions:
        file = bundle.outputs_file(repetition, OUTPUTS)
        assert repetition.variant in file
        assert values_sha256(read_outputs(bundle.path / file) or []) == repetition.output_sha256


def test_other_outputs_are_kept_beside_them(tmp_path: Path) -> None:
    """A process that computed something else has a file of its own."""
    program, target = write_tiny_program(tmp_path), FakeTarget()
    target.outputs = lambda _: np.full(4, len(target.jobs) > 4, np.float32)  # other ones from the fifth process on
    done = profile(str(program), settings=SMALL, out=tmp_path / "out", target=target, clock=FakeClock())
    bundle = Bundle.open(done.path)
    hashes = {(one.variant, one.output_sha256) for one in bundle.manifest.repetitions}
    assert len(hashes) == len(list(bundle.path.rglob(OUTPUTS))) == 4
    for repetition in bundle.manifest.repetitions:
        arrays = read_outputs(bundle.path / bundle.outputs_file(repetition, OUTPUTS)) or []
        assert values_sha256(arrays) == repetition.output_sha256


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path, bundle: Bundle) -> None:
    """Neither a bundle nor a stranger's files are overwritten, and a file is not a directory."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("keep")
    with pytest.raises(BundleError, match="not empty"):
        check_free(tmp_path / "other")
    with pytest.raises(BundleError, match=HOLDS_A_BUNDLE) as caught:
        check_free(bundle.path)
    assert "--resume" in (caught.value.hint or "")
    with pytest.raises(BundleError, match="is a file"):
        check_free(tmp_path / "tiny.pte")


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    """A directory that was made beforehand is fine."""
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")


def test_two_runs_cannot_hold_one_bundle(bundle: Bundle) -> None:
    """The second run is told that another one writes there."""
    with (
        bundle.locked(),
        pytest.raises(BundleError, match="another run is writing here"),
        Bundle.open(bundle.path).locked(),
    ):
        pass
    with bundle.locked():
        pass


def test_each_attempt_gets_a_directory_of_its_own(bundle: Bundle) -> None:
    """A directory without a record, left by a run that was killed, is not written into again."""
    place = PlanSlot(7, "baseline", TracingMode.TRACED)
    first, number = bundle.attempt_directory(place)
    second, again = bundle.attempt_directory(place)
    timed, _ = bundle.attempt_directory(place._replace(arm=TracingMode.TIMED))
    assert (number, again) == (1, 2)
    assert len({first, second, timed}) == 3


@pytest.mark.parametrize("name", [".lock", ".reserve", "manifest.json"])
def test_links_in_a_bundle_lead_no_write_out_of_it(bundle: Bundle, tmp_path: Path, name: str) -> None:
    """A bundle from elsewhere may hold links to the user's own files."""
    victim = tmp_path / "victim"
    own = bundle.path / name
    victim.write_bytes(own.read_bytes() if own.exists() else b"mine")
    before = victim.read_bytes()
    own.unlink(missing_ok=True)
    own.symlink_to(victim)
    with bundle.locked():
        bundle.set_status(Status.INCOMPLETE)
    assert victim.read_bytes() == before
    assert Bundle.open(bundle.path).manifest.status is Status.INCOMPLETE


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """A write that cannot succeed leaves the old content and no temporary file."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(StorageError, match="file is not a directory"):
        write_atomically(path / "below", b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_last_record_is_written_from_the_reserve(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full, the space held back is given up, and the manifest is still written."""
    real_open = Path.open

    def full_disk(path: Path, mode: str = "r", *args: object, **kwargs: object) -> object:
        if "x" in mode and path.name.startswith(".manifest") and (bundle.path / ".reserve").exists():
            raise OSError(28, "No space left on device")
        return real_open(path, mode, *args, **kwargs)

    with bundle.locked():
        monkeypatch.setattr(Path, "open", full_disk)
        bundle.set_status(Status.INCOMPLETE)
        assert not (bundle.path / ".reserve").exists()
    assert Bundle.open(bundle.path).manifest.status is Status.INCOMPLETE


def test_what_is_no_bundle_is_told_so(tmp_path: Path) -> None:
    """A directory without a manifest is not found; a damaged manifest is a format error."""
    with pytest.raises(NotFoundError, match=r"no manifest\.json"):
        Bundle.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": "opscope.bundle/1", "model": 3}')
    with pytest.raises(TraceFormatError, match="damaged"):
        Bundle.open(tmp_path)


def test_a_bundle_of_a_newer_opscope_is_refused(tmp_path: Path) -> None:
    """The error names both schemas and says to upgrade."""
    (tmp_path / "manifest.json").write_text('{"schema": "opscope.bundle/9"}')
    with pytest.raises(BundleError, match=r"opscope\.bundle/9; this opscope reads"):
        Bundle.open(tmp_path)


def test_a_failed_repetition_is_pending_until_an_attempt_succeeds(tmp_path: Path) -> None:
    """The third job fails: it is recorded as failed, the others count, and resuming runs only that one."""
    program = write_tiny_program(tmp_path)
    crash = Failure(FailureKind.SIGNAL, "ended by SIGSEGV", signal="SIGSEGV")
    target = FakeTarget(fail=lambda job: crash if job == 3 else None)
    done = profile(str(program), settings=SMALL, out=tmp_path / "out", target=target, clock=FakeClock())
    manifest = done.content.manifest
    assert manifest.status is Status.INCOMPLETE
    assert len(manifest.pending()) == len(manifest.failures()) == 1

    again = FakeTarget()
    done = profile(str(program), out=tmp_path / "out", resume=True, target=again, clock=FakeClock())
    assert len(again.jobs) == 1
    assert done.content.manifest.status is Status.COMPLETE
    assert [rep.attempt for rep in done.content.manifest.repetitions] == [1] * 8 + [2]
    assert done.content.manifest.failures() == []


@pytest.mark.parametrize(
    ("versions", "known"),
    [
        ({"executorch": "1.5.1"}, True),
        ({"executorch": "1.5.1", BUILD: "ab12"}, False),
        ({"litert": "2.1"}, False),
        ({}, False),
    ],
)
def test_a_runtime_is_known_unless_the_user_built_it(versions: dict[str, str], known: bool) -> None:
    """A build of executor_runner may be a debug build, whatever its version says."""
    bundle = Path(__file__).parents[1] / "data" / "bundles" / "flat-rooms"
    environment = replace(Bundle.open(bundle).manifest.environment, versions=versions)
    assert environment.known_runtime is known
