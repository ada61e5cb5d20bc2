"""Validation of bundles: a good one passes, every damage fails the checks it concerns and no others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import zstandard

from bundle_damage import (
    ACCELERATED,
    ANALYSIS,
    BASELINE,
    DAMAGES,
    TRACE,
    Damage,
    HashingTarget,
    cut,
    delete,
    edit,
    manifest,
    put,
    rehash,
    up,
    write,
)
from fakes import FakeClock
from opscope.api import Settings, profile, report, run, to_json, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.documents import find_differences, read_document
from opscope.bundle.manifest import Failure, FailureKind
from opscope.bundle.validation import CheckStatus, Validation
from opscope.core.errors import BundleError, InterruptedRunError, NotFoundError, StorageError
from opscope.core.version import __version__
from opscope.experiment import engine
from opscope.program.ceilings import Ceilings, NoCeilings
from opscope.reports.document.markdown import markdown_document
from opscope.reports.document.terminal import terminal_document
from opscope.reports.validation import answer, validation_document
from opscope.workflows.measure.experiments import Means
from programs import write_tiny_program
from terminal_text import text_of
from texts import HASHES_FIT

SMALL = Settings(rounds=3, runs=2, warmup=1)
SCHEMA = msgspec.json.schema(Validation)


def made(directory: Path, settings: Settings = SMALL, target: HashingTarget | None = None) -> Path:
    """A bundle of the tiny program."""
    directory.mkdir(exist_ok=True)
    program = write_tiny_program(directory)
    profile(str(program), settings=settings, out=directory / "out", target=target or HashingTarget(), clock=FakeClock())
    return directory / "out"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle that nobody may change."""
    return made(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def bundle(sound: Path, tmp_path: Path) -> Path:
    """A copy of it, in another place."""
    return shutil.copytree(sound, tmp_path / "out")


def failed(validation: Validation) -> list[str]:
    """Names of the checks that failed."""
    return [check.name for check in validation.failed()]


def told(validation: Validation) -> list[str]:
    """All problems, each on a line."""
    return [f"{p.file} {p.at}: {p.message}" for check in validation.failed() for p in check.problems]


def message(validation: Validation, name: str) -> str:
    """What a check says of all that it looked at."""
    return validation.check(name).message


def test_every_check_of_a_finished_bundle_passes(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip none and say what was compared, wherever the bundle stands; no file is written, renamed or touched."""

    def state() -> dict[Path, tuple[int, str]]:
        files = [path for path in bundle.rglob("*") if path.is_file()]
        return {f: (f.stat().st_mtime_ns, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files}

    before = state()
    found = validate(bundle)
    assert state() == before
    assert [check.name for check in found.checks if check.status is not CheckStatus.PASSED] == []
    assert len(found.checks) == 12
    assert message(found, "complete") == "12 of 12 planned repetitions succeeded"
    assert message(found, "hashes") == f"11 files and 12 records {HASHES_FIT}"
    assert message(found, "traces") == "6 traces decoded, 18 inferences as stated"
    assert message(found, "analyses") == "2 files match the traces: byte by byte"
    assert message(found, "comparisons") == "1 file matches the traces: byte by byte"
    for directory, path in ((bundle.parent, "out"), (bundle, ".")):
        monkeypatch.chdir(directory)
        assert validate(path).valid


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damage_is_found(damage: Damage, bundle: Path) -> None:
    """Fail the checks that it concerns and no others, and tell the place with what to do, as the schema says."""
    damage.do(bundle)
    found = validate(bundle)
    assert set(damage.fails.split()) <= set(failed(found)) <= set(f"{damage.fails} {damage.may}".split())
    assert any(damage.told in line for line in told(found)), told(found)
    assert all(check.action and check.total >= 1 for check in found.failed())
    document = json.loads(to_json(found))
    jsonschema.validate(document, SCHEMA)
    assert (document["schema"], document["valid"]) == ("opscope.validation/1", False)


def test_rewriting_the_derived_files_makes_them_true(bundle: Path) -> None:
    """Name a figure that is another one, with what to do, which is enough.

    Another order of additions is accepted, as machines differ in it.
    """
    put(ANALYSIS, "headline_ns", lambda value: value * (1 + 1e-12))(bundle)
    assert message(validate(bundle), "analyses") == "2 files match the traces: 1 byte by byte, 1 in figures"
    put(ANALYSIS, "headline_ns", lambda value: value * (1 + 1e-6))(bundle)
    put("comparison.json", "end_to_end.speedup", 9.5)(bundle)
    found = validate(bundle)
    assert failed(found) == ["analyses", "comparisons"]
    assert [problem.at for problem in found.check("analyses").problems] == ["headline_ns"]
    assert f"`opscope report {bundle}`" in str(found.failed()[0].action)
    report(bundle, ("json", "md"))
    assert validate(bundle).valid


def test_what_another_opscope_estimated_is_a_note_and_what_it_measured_is_not(bundle: Path) -> None:
    """Estimates, findings and paths may be others; times of operators and samples are those of the traces."""
    manifest("opscope", "0.0.9")(bundle)
    for name in ("report.html", "report.md"):
        page = bundle / name
        page.write_text(page.read_text().replace(f"opscope {__version__}", "opscope 0.0.9"))
    put("comparison.json", "end_to_end.speedup", 9.5)(bundle)
    put(ANALYSIS, "trace.path", "/where/it/was/variants/accelerated")(bundle)
    found = validate(bundle)
    assert found.valid, told(found)
    assert "comparison.json not recomputed, computed by opscope 0.0.9" in message(found, "comparisons")
    put(ANALYSIS, "operators.0.time_ns", up)(bundle)
    put(ANALYSIS, "latency.samples_ns.3", up)(bundle)
    assert {line.partition(":")[0] for line in told(validate(bundle))} == {
        f"{ANALYSIS} operators[0].time_ns",
        f"{ANALYSIS} latency.samples_ns[3]",
    }


def test_derived_files_of_damaged_traces_are_not_checked(bundle: Path) -> None:
    """Name the checks that failed in place of a result."""
    cut(TRACE)(bundle)
    put(f"{BASELINE}/analysis.json", "latency.samples_ns.3", up)(bundle)
    found = validate(bundle)
    assert failed(found) == ["hashes", "traces"]
    skipped = {check.name: check.message for check in found.with_status(CheckStatus.SKIPPED)}
    assert skipped == dict.fromkeys(("analyses", "comparisons", "reports"), "not checked, see hashes, traces")


@pytest.mark.parametrize("content", [bytes(1 << 28), b"", b"x" * 100], ids=["bomb", "empty", "no trace"])
def test_a_trace_that_inflates_to_something_else_is_told(content: bytes, bundle: Path) -> None:
    """No more memory is taken than may be, and nothing else stops."""
    (bundle / TRACE).write_bytes(zstandard.ZstdCompressor().compress(content))
    found = validate(bundle)
    assert failed(found) == ["hashes", "traces"]
    assert {problem.file for check in found.failed() for problem in check.problems} == {TRACE}


def test_without_room_for_both_a_trace_stays_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose no repetition to a full disk.

    A run without an untraced arm passes as well.
    """

    def full(path: Path) -> Path:
        raise StorageError("no space left on the device", where=path)

    monkeypatch.setattr(engine, "keep_compressed", full)
    out = made(tmp_path, Settings(rounds=2, runs=2, warmup=0, untraced=False, ceilings=False))
    found = validate(out)
    assert found.valid
    assert found.with_status(CheckStatus.SKIPPED) == []
    assert {path.name for path in out.rglob("trace.*")} == {"trace.etdump"}


@pytest.mark.parametrize("damage", [delete("model/tiny.pte"), cut(f"{ACCELERATED}/ceilings.json")])
def test_derived_files_do_not_tell_where_the_bundle_is(
    damage: Callable[[Path], None], bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written in two places, by an absolute and a relative path, they are the same to the byte, messages too."""
    damage(bundle)
    edit("manifest.json", lambda document: document.pop("ceilings_sha256", None))(bundle)
    moved = shutil.copytree(bundle, tmp_path / "far" / "away" / "moved")
    report(bundle)
    monkeypatch.chdir(moved.parent)
    report("moved")
    for path in (path for path in bundle.rglob("*") if path.suffix in {".json", ".md", ".html"}):
        content = path.read_bytes()
        assert content == (moved / path.relative_to(bundle)).read_bytes(), path
        if path.name in {"analysis.json", "comparison.json"}:
            assert str(tmp_path).encode() not in content


def test_optional_fields_of_an_earlier_opscope_may_be_absent(bundle: Path) -> None:
    """The manifest passes, and the message names what is not stated."""

    def older(document: Any) -> None:
        for variant in document["variants"]:
            del variant["affinity"]
        for repetition in document["repetitions"]:
            del repetition["measurement"]["write_ns"]

    edit("manifest.json", older)(bundle)
    rehash(bundle)
    edit(ANALYSIS, lambda document: document.pop("ceilings"))(bundle)
    found = validate(bundle)
    assert found.valid
    fields = "2 optional fields missing, written by an earlier opscope: repetitions[].measurement.write_ns"
    assert fields in message(found, "manifest")


def test_an_interrupted_run_is_incomplete_and_nothing_else(tmp_path: Path) -> None:
    """Name the command that finishes it."""

    def interrupt(job: int) -> None:
        if job == 7:
            raise InterruptedRunError("interrupted")

    with pytest.raises(InterruptedRunError):
        made(tmp_path, target=HashingTarget(fail=interrupt))
    out = tmp_path / "out"
    found = validate(out)
    assert failed(found) == ["complete"]
    check = found.failed()[0]
    assert check.message == "6 of 12 planned repetitions succeeded; the run is incomplete"
    assert check.action == f"finish it with `opscope profile {tmp_path}/tiny.pte --out {out} --resume`"


def test_a_run_that_is_at_work_is_waited_for(bundle: Path) -> None:
    """Take what it is about to clear away for no leftover.

    Of a run that was given more rounds and then killed, what was written before is not compared with it.
    """
    manifest("status", "running")(bundle)
    with Bundle.open(bundle).locked():
        found = validate(bundle)
    assert failed(found) == ["complete"]
    assert found.failed()[0].action == "wait until the current run finishes writing"
    edit("manifest.json", lambda document: document["repetitions"].pop())(bundle)
    found = validate(bundle)
    assert failed(found) == ["complete"]
    assert message(found, "comparisons") == "not checked, see complete"


def test_attempts_that_failed_or_were_killed_are_no_fault(tmp_path: Path) -> None:
    """One crashed and was repeated, one left a directory without a record: the bundle is complete."""
    crash = Failure(FailureKind.SIGNAL, "ended by SIGSEGV", signal="SIGSEGV")
    out = made(tmp_path, target=HashingTarget(fail=lambda job: crash if job == 4 else None))
    assert failed(validate(out)) == ["complete"]
    place = next(r for r in Bundle.open(out).manifest.repetitions if not r.ok)
    (out / f"{place.directory}-attempt-2").mkdir()
    profile(f"{tmp_path}/tiny.pte", out=out, resume=True, target=HashingTarget(), clock=FakeClock())
    assert (out / f"{place.directory}-attempt-3").is_dir()
    assert validate(out).valid


CONFIG = """
model = "tiny.pte"
rounds = 2
runs = 2
warmup = 0
ceilings = false
[[variants]]
name = "full"
[[variants]]
name = "no-avx512"
ablate = ["avx512"]
[[variants]]
name = "sse"
ablate = ["avx"]
[[comparisons]]
baseline = "no-avx512"
candidate = "full"
[[comparisons]]
baseline = "sse"
candidate = "no-avx512"
"""


def test_an_experiment_from_a_file_passes(tmp_path: Path) -> None:
    """Check every comparison that the file asks for; one with another bundle is left out, and that is said."""
    write_tiny_program(tmp_path)
    (tmp_path / "experiments.toml").write_text(CONFIG)
    means = Means(lambda *_: None, HashingTarget(), FakeClock(), lambda _: None)
    run(tmp_path / "experiments.toml", out=tmp_path / "out", means=means)
    from_file = tmp_path / "out" / "tiny-local"
    found = validate(from_file)
    assert found.valid, told(found)
    asked = from_file / "comparisons" / "full-against-no-avx512.json"
    foreign = json.loads(asked.read_text())
    foreign["baseline"]["path"] = "/elsewhere/variants/no-avx512"
    asked.with_name("foreign.json").write_text(json.dumps(foreign))
    told_of = message(validate(from_file), "comparisons")
    assert "comparisons/foreign.json not checked: its other side is another bundle" in told_of
    put("comparisons/full-against-no-avx512.json", "end_to_end.speedup", 9.5)(from_file)
    assert failed(validate(from_file)) == ["comparisons"]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda _: None, NotFoundError, "nothing exists there"),
        (lambda path: path.write_text("x"), BundleError, "not a bundle"),
        (lambda path: path.mkdir(), BundleError, "not a bundle"),
        (lambda path: (path / "manifest.json").mkdir(parents=True), BundleError, "manifest.json is missing"),
        (made, BundleError, "validate the bundles in it, one by one: out"),
    ],
    ids=["nothing", "a file", "an empty directory", "a directory for a manifest", "a directory of bundles"],
)
def test_what_is_no_bundle_is_refused(
    make: Callable[[Path], object], error: type[Exception], words: str, tmp_path: Path
) -> None:
    """Say what stands there instead, and name the bundles in a directory."""
    make(tmp_path / "thing")
    with pytest.raises(error) as caught:
        validate(tmp_path / "thing")
    assert words in f"{caught.value.problem} {caught.value.hint}"


def test_nothing_outside_is_opened(bundle: Path) -> None:
    """Pipes stand wherever a manifest could point: reading one would wait for ever."""
    os.mkfifo(bundle.parent / "pipe")
    for place in ("model.program", "model.etrecord"):
        manifest(place, "../pipe")(bundle)
    for name in (ANALYSIS, f"{ACCELERATED}/ceilings.json", "report.md", f"{ACCELERATED}/timed-00/outputs.npz"):
        (bundle / name).unlink()
        (bundle / name).symlink_to(bundle.parent / "pipe")
    found = validate(bundle)
    assert failed(found) == ["paths"]
    assert len(told(found)) == 6


def test_names_cannot_speak_to_the_terminal(bundle: Path) -> None:
    """Keep control and direction characters of names out of the summary and of the Markdown."""
    write(f"{ACCELERATED}/round-00/.\x1b[31m\u202e|<b>.1f3a5b7c.tmp")(bundle)
    manifest("opscope", "\x1b]0;x\x07")(bundle)
    put(ANALYSIS, "operators.0.name", "\x1b[2J")(bundle)
    found = validate(bundle)
    assert set(failed(found)) >= {"leftovers", "analyses"}
    document = validation_document(found)
    for text in (text_of(terminal_document(document)), markdown_document(document), answer(found)):
        assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "<b>" not in markdown_document(document)


def test_a_bundle_is_like_one_of_another_size(bundle: Path, sound: Path) -> None:
    """Take numbers of rounds and findings for no structure."""

    def shorter(document: Any) -> None:
        plan = document["plan"]
        plan.update(rounds=2, order=plan["order"][:2], timed_order=plan["timed_order"][:2])
        document["repetitions"] = [one for one in document["repetitions"] if one["round"] < 2]

    edit("manifest.json", shorter)(bundle)
    for name in ("round-02", "timed-02"):
        for variant in ("accelerated", "baseline"):
            shutil.rmtree(bundle / "variants" / variant / name)
    report(bundle, ("json", "md"))
    found = validate(bundle, like=sound)
    assert [(check.name, check.status) for check in found.checks[-2:]] == [
        ("like_files", CheckStatus.PASSED),
        ("like_fields", CheckStatus.PASSED),
    ], told(found)


@pytest.mark.parametrize(
    ("change", "fails", "words"),
    [
        (
            delete(f"{ACCELERATED}/ceilings.json"),
            "like_files",
            "variants/(accelerated)/ceilings.json : is not in the good",
        ),
        (
            edit("manifest.json", lambda d: d["model"].pop("planned_bytes")),
            "like_fields",
            "model.planned_bytes: is not",
        ),
        (manifest("plan.colour", 1), "like_fields", "plan.colour: is missing; the good bundle has it (integer)"),
        (manifest("plan.rounds", "six"), "", "the manifest of the good bundle cannot be read"),
        (put("comparison.json", "schema", "opscope.comparison/0"), "like_fields", "schema: is opscope.comparison/2"),
        (
            put("comparison.json", "schema", 1),
            "like_fields",
            "schema: is opscope.comparison/2; in the good bundle integer",
        ),
        (put("comparison.json", "end_to_end", 1), "like_fields", "end_to_end: is object; in the good bundle integer"),
        (manifest("environment.memory_bytes", None), "", "match"),
        (manifest("environment.versions", {"other": "1"}), "", "match"),
        (manifest("environment.features", []), "", "match"),
        (
            edit("manifest.json", lambda d: [variant.pop("affinity") for variant in d["variants"]]),
            "like_fields",
            "variants[].affinity: is not in the good bundle",
        ),
    ],
)
def test_another_structure_than_the_good_one_is_told(
    change: Callable[[Path], None], fails: str, words: str, bundle: Path, sound: Path
) -> None:
    """Name what is missing, extra, or of another type or schema than in the good bundle, which is changed here.

    What one machine cannot tell and what did not happen tell nothing about fields, nor do names of versions.
    """
    change(bundle)
    found = validate(sound, like=bundle)
    assert " ".join(failed(found)) == fails
    assert any(words in line for line in (*told(found), *(check.message for check in found.checks)))


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (b"", [("", "not valid JSON: Input data was truncated")]),
        (b"[1]", [("", "not a JSON object")]),
        (b"{}", [("schema", "has no schema; expected opscope.ceilings/2")]),
        (b'{"schema": ["x"]}', [("schema", "has ['x']; expected opscope.ceilings/2 or opscope.no-ceilings/1")]),
        (
            b'{"schema": "other.ceilings/2"}',
            [("schema", "has 'other.ceilings/2'; expected opscope.ceilings/2 or opscope.no-ceilings/1")],
        ),
        (b'{"schema": 1}', [("schema", "has 1; expected opscope.ceilings/2 or opscope.no-ceilings/1")]),
        (
            b'{"schema": "opscope.ceilings/9"}',
            [("schema", "written as opscope.ceilings/9; this opscope reads opscope.ceilings/2: upgrade opscope")],
        ),
        (b'{"schema": "opscope.no-ceilings/1"}', [("", "Object missing required field `reason`")]),
        (b'{"schema": "opscope.no-ceilings/1", "reason": 1}', [("reason", "Expected `str`, got `int`")]),
        (b'{"schema": "opscope.no-ceilings/1", "reason": "x"}', []),
        (
            b'{"schema": "opscope.no-ceilings/1", "reason": "x", "y": {"z": 1}}',
            [("y", "a field unknown to this opscope")],
        ),
    ],
)
def test_documents_are_checked_against_their_schema(content: bytes, faults: list[tuple[str, str]]) -> None:
    """Each fault with its place."""
    assert NoCeilings.__struct_config__.tag == "opscope.no-ceilings/1"
    assert read_document(content, Ceilings, NoCeilings).faults == faults


@pytest.mark.parametrize(
    ("stated", "computed", "at"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, []),
        ({"a": 1.0}, {"a": 1.0 + 1e-6}, ["a"]),
        ({"saved_ns": 1e-8}, {"saved_ns": 0.0}, []),
        ({"share": 1e-8}, {"share": 0.0}, ["share"]),
        ({"a": 2**60}, {"a": 2**60 + 1}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": 1}, {"a": 1.0}, ["a"]),
        ({"a": None}, {"a": {"b": 1}}, ["a"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, ["a[0].b"]),
    ],
)
def test_two_documents_differ_where_they_do(stated: Any, computed: Any, at: list[str]) -> None:
    """Compare whole numbers and texts exactly, others to a relative 1e-9, times to a millionth of a nanosecond."""
    assert [place for place, _ in find_differences(stated, computed)] == at


def test_long_texts_are_shown_from_where_they_differ() -> None:
    """Show the difference, not the common beginning."""
    _, message = next(find_differences("the same " * 20 + "end", "the same " * 20 + "END"))
    assert "end'" in message
    assert "END'" in message
    assert len(message) < 150
