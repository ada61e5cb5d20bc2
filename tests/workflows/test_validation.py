"""Validation of bundles: a good one passes, every damage fails the checks it concerns and no others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from io import StringIO
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
    up,
    write,
)
from fakes import FakeClock
from opscope.api import Settings, profile, report, run, to_json, validate
from opscope.bundle.bundle import Bundle
from opscope.bundle.documents import differences, examined, shape, shape_problems
from opscope.bundle.manifest import Failure, FailureKind, Manifest, Plan
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
from texts import HASHES_FIT, NO_CEILINGS

SMALL = Settings(rounds=3, runs=2, warmup=1)


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


def test_every_check_of_a_finished_bundle_passes(sound: Path) -> None:
    """None fails, none is skipped, and each says what it compared."""
    found = validate(sound)
    assert [check.name for check in found.checks if check.status is not CheckStatus.PASSED] == []
    assert len(found.checks) == 21
    messages = {check.name: check.message for check in found.checks}
    assert messages["complete"] == "12 of 12 planned repetitions succeeded"
    assert messages["hashes"] == f"6 of 6 traces and 12 of 12 records {HASHES_FIT}"
    assert messages["self_times"] == "self times add up to Method::execute in all 18 inferences in 6 traces"
    assert messages["analyses"] == "2 files match the traces, byte by byte"
    assert messages["comparisons"] == "1 file matches the traces, byte by byte"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damage_is_found(damage: Damage, bundle: Path) -> None:
    """The checks that it concerns fail, no others do, and the place is told with what to do."""
    damage.do(bundle)
    found = validate(bundle)
    assert set(damage.fails.split()) <= set(failed(found)) <= set(f"{damage.fails} {damage.may}".split())
    assert any(damage.told in line for line in told(found)), told(found)
    assert all(check.action and check.total >= 1 for check in found.failed())
    assert not found.valid


def test_nothing_is_changed(bundle: Path) -> None:
    """No file is written, renamed or touched."""

    def state() -> dict[Path, tuple[int, str]]:
        files = [path for path in bundle.rglob("*") if path.is_file()]
        return {f: (f.stat().st_mtime_ns, hashlib.sha256(f.read_bytes()).hexdigest()) for f in files}

    before = state()
    validate(bundle)
    assert state() == before


def test_where_a_bundle_stands_does_not_matter(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written elsewhere; a relative path, and that of the directory itself, are fine too."""
    monkeypatch.chdir(bundle.parent)
    assert validate("out").valid
    monkeypatch.chdir(bundle)
    assert validate(".").valid


def test_rewriting_the_derived_files_makes_them_true(bundle: Path) -> None:
    """What the action of a wrong figure proposes is enough."""
    put(ANALYSIS, "latency.median_ns", 1.5)(bundle)
    put("comparison.json", "end_to_end.speedup", 9.5)(bundle)
    found = validate(bundle)
    assert failed(found) == ["analyses", "comparisons"]
    assert f"`opscope report {bundle}`" in str(found.failed()[0].action)
    report(bundle, ("json", "md"))
    assert validate(bundle).valid


def test_json_that_was_written_otherwise_is_compared_by_its_figures(bundle: Path) -> None:
    """The order of additions differs between machines; a figure that is another one is named all the same."""

    def later(document: Any) -> None:
        document["headline_ns"] *= 1 + 1e-12

    edit(ANALYSIS, later)(bundle)
    check = validate(bundle).check("analyses")
    assert check is not None
    assert check.message == "2 files match the traces: 1 byte by byte, 1 in figures"
    put(ANALYSIS, "headline_ns", lambda value: value * (1 + 1e-6))(bundle)
    assert [problem.at for check in validate(bundle).failed() for problem in check.problems] == ["headline_ns"]


def by_another(bundle: Path) -> None:
    """Make the bundle one of another opscope, its reports too."""
    manifest("opscope", "0.0.9")(bundle)
    for name in ("report.html", "report.md"):
        page = bundle / name
        page.write_text(page.read_text().replace(f"opscope {__version__}", "opscope 0.0.9"))


def test_what_another_opscope_estimated_is_a_note_and_what_it_measured_is_not(bundle: Path) -> None:
    """Estimates, findings and paths may be others; times of operators and samples are those of the traces."""
    by_another(bundle)
    put("comparison.json", "end_to_end.speedup", 9.5)(bundle)
    put(ANALYSIS, "trace.path", "/where/it/was/variants/accelerated")(bundle)
    found = validate(bundle)
    assert found.valid, told(found)
    check = found.check("comparisons")
    assert check is not None
    assert check.message.endswith("; estimates in comparison.json not recomputed, computed by opscope 0.0.9")
    put(ANALYSIS, "operators.0.time_ns", up)(bundle)
    put(ANALYSIS, "latency.samples_ns.3", up)(bundle)
    assert {line.partition(":")[0] for line in told(validate(bundle))} == {
        f"{ANALYSIS} operators[0].time_ns",
        f"{ANALYSIS} latency.samples_ns[3]",
    }


def test_a_damaged_variant_leaves_the_other_to_be_checked(bundle: Path) -> None:
    """What rests on both is skipped with the reason."""
    cut(TRACE)(bundle)
    put(f"{BASELINE}/analysis.json", "latency.samples_ns.3", up)(bundle)
    found = validate(bundle)
    assert failed(found) == ["hashes", "traces", "analyses"]
    (only,) = (one for check in found.failed() if check.name == "analyses" for one in check.problems)
    assert (only.file, only.at) == (f"{BASELINE}/analysis.json", "latency.samples_ns[3]")
    skipped = {check.name: check.message for check in found.with_status(CheckStatus.SKIPPED)}
    assert skipped["reports"] == "its traces cannot be read, see traces and files"
    assert "comparisons" in skipped


@pytest.mark.parametrize("content", [bytes(1 << 28), b"", b"x" * 100], ids=["bomb", "empty", "no trace"])
def test_a_trace_that_inflates_to_something_else_is_told(content: bytes, bundle: Path) -> None:
    """No more memory is taken than may be, and nothing else stops."""
    (bundle / TRACE).write_bytes(zstandard.ZstdCompressor().compress(content))
    found = validate(bundle)
    assert failed(found) == ["hashes", "traces"]
    assert {problem.file for check in found.failed() for problem in check.problems} == {TRACE}


def test_without_room_for_both_a_trace_stays_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs no repetition."""

    def full(path: Path) -> Path:
        raise StorageError("no space left on the device", where=path)

    monkeypatch.setattr(engine, "keep_compressed", full)
    out = made(tmp_path)
    assert validate(out).valid
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


def test_a_run_without_an_untraced_arm_passes(tmp_path: Path) -> None:
    """The check of ceilings has nothing to check, and says so."""
    found = validate(made(tmp_path, Settings(rounds=2, runs=2, warmup=0, untraced=False, ceilings=False)))
    assert {check.name: check.message for check in found.with_status(CheckStatus.SKIPPED)} == {
        "ceilings": NO_CEILINGS,
    }
    assert found.valid


def test_optional_fields_of_an_earlier_opscope_may_be_absent(bundle: Path) -> None:
    """The manifest passes, and the message names what is not stated."""

    def older(document: Any) -> None:
        for variant in document["variants"]:
            del variant["affinity"]
        for repetition in document["repetitions"]:
            del repetition["measurement"]["write_ns"]
            del repetition["record_sha256"]

    edit("manifest.json", older)(bundle)
    edit(ANALYSIS, lambda document: document.pop("ceilings"))(bundle)
    found = validate(bundle)
    assert found.valid
    check = found.check("manifest")
    assert check is not None
    assert (
        "3 optional fields missing, written by an earlier opscope: repetitions[].measurement.write_ns" in check.message
    )
    check = found.check("hashes")
    assert check is not None
    expected = f"6 of 6 traces and 0 of 12 records {HASHES_FIT}; an earlier opscope recorded no hash for the others"
    assert check.message == expected


class Stopping(HashingTarget):
    """A target at which the user loses patience."""

    def execute(self, *arguments: Any) -> Any:
        """Run six jobs, then be interrupted."""
        if len(self.jobs) == 6:
            raise InterruptedRunError("interrupted")
        return super().execute(*arguments)


def test_an_interrupted_run_is_incomplete_and_nothing_else(tmp_path: Path) -> None:
    """The command that finishes it is told."""
    with pytest.raises(InterruptedRunError):
        made(tmp_path, target=Stopping())
    out = tmp_path / "out"
    found = validate(out)
    assert failed(found) == ["complete"]
    check = found.failed()[0]
    assert check.message == "6 of 12 planned repetitions succeeded; the run is incomplete"
    assert check.action == f"finish it with `opscope profile {tmp_path}/tiny.pte --out {out} --resume`"


def test_a_run_that_is_at_work_is_waited_for(bundle: Path) -> None:
    """What it is about to clear away is not a leftover."""
    manifest("status", "running")(bundle)
    with Bundle.open(bundle).locked():
        found = validate(bundle)
    assert failed(found) == ["complete"]
    assert found.failed()[0].action == "wait until the current run finishes writing"


def test_reports_of_fewer_repetitions_are_not_false(bundle: Path) -> None:
    """A run that was given more rounds and then killed: what was written before is not compared with it."""
    edit("manifest.json", lambda document: document["repetitions"].pop())(bundle)
    found = validate(bundle)
    assert failed(found) == ["complete"]
    check = found.check("comparisons")
    assert check is not None
    assert check.message == "comparison.json not checked: the run is not finished, see complete"
    check = found.check("analyses")
    assert check is not None
    assert "it is based on other repetitions" in check.message


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


@pytest.fixture
def from_file(tmp_path: Path) -> Path:
    """A bundle of an experiment from a file, with a comparison that the file asks for."""
    write_tiny_program(tmp_path)
    (tmp_path / "experiments.toml").write_text(CONFIG)
    means = Means(lambda *_: None, HashingTarget(), FakeClock(), lambda _: None)
    run(tmp_path / "experiments.toml", out=tmp_path / "out", means=means)
    return tmp_path / "out" / "tiny-local"


def test_an_experiment_from_a_file_passes(from_file: Path) -> None:
    """Every comparison is checked; one with another bundle is left out, and that is said."""
    found = validate(from_file)
    assert found.valid, told(found)
    asked = from_file / "comparisons" / "full-against-no-avx512.json"
    foreign = json.loads(asked.read_text())
    foreign["baseline"]["path"] = "/elsewhere/variants/no-avx512"
    asked.with_name("foreign.json").write_text(json.dumps(foreign))
    check = validate(from_file).check("comparisons")
    assert check is not None
    assert "comparisons/foreign.json not checked: its other side is another bundle" in check.message
    put("comparisons/full-against-no-avx512.json", "end_to_end.speedup", 9.5)(from_file)
    assert failed(validate(from_file)) == ["comparisons"]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda _: None, NotFoundError, "nothing exists there"),
        (lambda path: path.write_text("x"), BundleError, "not a bundle"),
        (lambda path: path.mkdir(), BundleError, "not a bundle"),
        (lambda path: (path / "manifest.json").mkdir(parents=True), BundleError, "manifest.json is missing"),
    ],
)
def test_what_is_no_bundle_is_refused(
    make: Callable[[Path], object], error: type[Exception], words: str, tmp_path: Path
) -> None:
    """A path that is not there, a file, a directory of something else."""
    make(tmp_path / "thing")
    with pytest.raises(error, match=words):
        validate(tmp_path / "thing")


def test_a_directory_of_bundles_names_them(bundle: Path) -> None:
    """The hint says what to give instead."""
    with pytest.raises(BundleError) as caught:
        validate(bundle.parent)
    assert caught.value.hint == "validate the bundles in it, one by one: out"


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
    """Control and direction characters of names stay out of the summary and of the Markdown."""
    write(f"{ACCELERATED}/round-00/.\x1b[31m\u202e|<b>.1.tmp")(bundle)
    manifest("opscope", "\x1b]0;x\x07")(bundle)
    put(ANALYSIS, "operators.0.name", "\x1b[2J")(bundle)
    found = validate(bundle)
    assert set(failed(found)) >= {"leftovers", "analyses"}
    from rich.console import Console

    console = Console(width=80, record=True, file=StringIO())
    console.print(terminal_document(validation_document(found)))
    for text in (console.export_text(), markdown_document(validation_document(found)), answer(found)):
        assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "<b>" not in markdown_document(validation_document(found))


def test_the_result_obeys_its_schema(bundle: Path) -> None:
    """As it is published, with the schema named."""
    delete(ANALYSIS)(bundle)
    document = json.loads(to_json(validate(bundle, like=bundle)))
    jsonschema.validate(document, msgspec.json.schema(Validation))
    assert document["schema"] == "opscope.validation/1"
    assert document["valid"] is False


def shorter(document: Any) -> None:
    """A manifest of two rounds."""
    plan = document["plan"]
    plan.update(rounds=2, order=plan["order"][:2], timed_order=plan["timed_order"][:2])
    document["repetitions"] = [repetition for repetition in document["repetitions"] if repetition["round"] < 2]


def test_a_bundle_is_like_one_of_another_size(bundle: Path, sound: Path) -> None:
    """Numbers of rounds and findings are not structure."""
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
    ],
)
def test_another_structure_than_the_good_one_is_told(
    change: Callable[[Path], None], fails: str, words: str, bundle: Path, sound: Path
) -> None:
    """What is missing, what is extra, what has another type or schema; the good bundle was changed."""
    change(bundle)
    found = validate(sound, like=bundle)
    assert " ".join(failed(found)) == fails
    assert any(words in line for line in (*told(found), *(check.message for check in found.checks)))


def test_null_and_empty_lists_are_no_structure() -> None:
    """What one machine cannot tell and what did not happen tell nothing about fields."""
    good = shape([{"a": 1, "b": [{"c": 1, "versions": {"x": "1"}}], "d": {"e": 1}}])
    assert not list(shape_problems("f", shape([{"a": None, "b": [], "d": None}]), good))
    other = shape([{"a": "1", "b": [{"versions": {"y": "1"}}], "d": {"e": 1, "f": 2}}])
    assert [
        problem[1:] if isinstance(problem, tuple) else (problem.at, problem.message)
        for problem in shape_problems("f", other, good)
    ] == [
        ("b[].c", "is missing; the good bundle has it (integer)"),
        ("d.f", "is not in the good bundle (integer)"),
        ("a", "is text; in the good bundle integer"),
    ]


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (b"", [("", "not valid JSON: Input data was truncated")]),
        (b"[1]", [("", "not a JSON object")]),
        (b"{}", [("schema", "has no schema; expected opscope.ceilings/1")]),
        (b'{"schema": 1}', [("schema", "has 1; expected opscope.ceilings/1 or opscope.no-ceilings/1")]),
        (
            b'{"schema": "opscope.ceilings/9"}',
            [("schema", "written as opscope.ceilings/9; this opscope reads opscope.ceilings/1: upgrade opscope")],
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
    assert examined(content, Ceilings, NoCeilings).faults == faults


def test_absent_fields_are_listed_once() -> None:
    """With any entry of a list under one name."""
    plan = {"rounds": 1, "runs": 1, "warmup": 0, "seed": 0, "order": [["a"]], "timeout_seconds": 1.0}
    typed = msgspec.convert(plan, Plan)
    assert typed.timed_order == []
    kept = {**plan, "schema": Manifest.__struct_config__.tag}
    assert examined(json.dumps(kept).encode(), Manifest).faults == [("", "Object missing required field `opscope`")]


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
    """Whole numbers and texts exactly, others to a relative 1e-9; times to a millionth of a nanosecond."""
    assert [place for place, _ in differences(stated, computed)] == at


def test_long_texts_are_shown_from_where_they_differ() -> None:
    """A reader sees the difference, not the common beginning."""
    _, message = next(differences("the same " * 20 + "end", "the same " * 20 + "END"))
    assert message == "states …'e same the same the same end'"[:9] + message[9:]
    assert "end'" in message
    assert "END'" in message
    assert len(message) < 150
