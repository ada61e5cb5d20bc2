"""Files of a model in a bundle: records without their weights, which tell the same as with them."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

import opscope
from etrecords import GRAPH, SMALL, archive, graph, node
from fakes import FakeClock, FakeTarget
from opscope.api import Settings, default_directory, profile
from opscope.core.errors import NotFoundError, UsageError
from opscope.core.files import place_beside
from opscope.runtimes.executorch.etrecord import slim_etrecord
from opscope.runtimes.executorch.program_files import kept_files, program_files
from opscope.workflows.measure.program_inputs import program_source
from programs import write_tiny_program

WEIGHTS = {f"{GRAPH}_state_dict": b"\x80\x04weights" * 1000}


def test_only_the_record_changes_on_its_way_into_a_bundle(tmp_path: Path) -> None:
    """Keep its name beside the program, and the file that was given; one that cannot be opened is an error."""
    program = write_tiny_program(tmp_path)
    record = program.with_suffix(".etrecord")
    full = archive({GRAPH: graph(node(debug_handle="1")), **WEIGHTS})
    record.write_bytes(full)
    found = kept_files([program, record], tmp_path / "work")
    assert found == [program, tmp_path / "work" / "tiny.etrecord"]
    assert found[1].read_bytes() == slim_etrecord(record)
    assert record.read_bytes() == full
    thrown_away = kept_files([program, record], tmp_path)
    assert [place_beside(file, program) for file in thrown_away] == ["tiny.pte", "tiny.etrecord"]
    with pytest.raises(NotFoundError, match="no such file"):
        kept_files([tmp_path / "gone.etrecord"], tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", SMALL[:-1]])
def test_a_damaged_record_costs_no_analysis(tmp_path: Path, content: bytes) -> None:
    """It lies in the bundle as it was given, its hash is stated, and a warning says that layers are missing."""
    program = write_tiny_program(tmp_path)
    program.with_suffix(".etrecord").write_bytes(content)
    settings = Settings(rounds=2, runs=2)
    done = profile(program, settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    assert (tmp_path / "out" / "model" / "tiny.etrecord").read_bytes() == content
    assert done.content.manifest.model.etrecord_sha256 == hashlib.sha256(content).hexdigest()
    assert done.content.shown is not None


@pytest.mark.parametrize("name", ["tiny.etrecord", "tiny.pte.etrecord"])
def test_a_record_is_found_beside_its_program(name: str, tmp_path: Path) -> None:
    """In place of the program's suffix, or behind it; the former first."""
    program = write_tiny_program(tmp_path)
    (tmp_path / "tiny.pte.etrecord").write_bytes(b"other")
    (tmp_path / name).write_bytes(SMALL)
    assert program_files(program) == [program, tmp_path / name]


def test_a_directory_stands_for_the_program_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an export has one; none, several, and a bundle are told apart; a known name stands before a directory."""
    program = write_tiny_program(tmp_path)
    assert program_source(str(tmp_path)) == program
    monkeypatch.chdir(tmp_path)
    assert program_source(".") == Path(program.name)
    (tmp_path / "toy_cnn").mkdir()
    assert program_source("toy_cnn") is None
    with pytest.raises(NotFoundError, match="no program"):
        program_source("./toy_cnn")
    done = profile(".", settings=Settings(rounds=1, runs=2), out="out", target=FakeTarget(), clock=FakeClock())
    assert done.content.manifest.model.name == "tiny"
    with pytest.raises(UsageError, match="a bundle, not a model"):
        program_source("out")
    shutil.copy(program, tmp_path / "second.pte")
    with pytest.raises(UsageError, match=r"2 programs in the directory: second.pte, tiny.pte"):
        program_source(".")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("toy_cnn", "toy_cnn"),
        ("some/net.v2.pte", "net.v2"),
        ("my.py:Net", "my-Net"),
        ("pkg.models:Net", "pkg.models-Net"),
        ("transformers:BertConfig", "transformers-BertConfig"),
    ],
)
def test_a_bundle_is_named_after_the_model_as_it_was_called(model: str, name: str) -> None:
    """Without the suffix of a file, whose name may have dots."""
    moment = datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert default_directory(model, moment) == Path("opscope-out") / f"{name}-20260102-000000"


@pytest.fixture(scope="module")
def bundle(exported_toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of a model that was exported with its full record."""
    out = tmp_path_factory.mktemp("records") / "out"
    opscope.profile(exported_toy, settings=Settings(rounds=2, runs=3, warmup=1, ceilings=False), out=out)
    return out


@pytest.mark.runtime
def test_a_bundle_tells_the_same_as_with_the_full_record(
    bundle: Path, exported_toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure, layer and source line of both analyses, and the report, to the letter."""
    record = exported_toy.with_suffix(".etrecord")
    told = {}
    for kind in ("slim", "full"):
        (tmp_path / kind).mkdir()
        monkeypatch.chdir(tmp_path / kind)  # so that paths are the same
        shutil.copytree(bundle, "out")
        if kind == "full":
            shutil.copyfile(record, Path("out/model") / record.name)
            text = Path("out/manifest.json").read_text()
            stated = json.loads(text)["model"]["etrecord_sha256"]
            Path("out/manifest.json").write_text(text.replace(stated, hashlib.sha256(record.read_bytes()).hexdigest()))
        told[kind] = told_by("out")
    slim, full = (Path(tmp_path / kind / "out/model" / record.name).stat().st_size for kind in ("slim", "full"))
    assert slim < full / 10
    assert "stem.0" in told["slim"]
    assert "toy_cnn.py" in told["slim"]
    assert told["slim"] == told["full"]


def told_by(bundle: str) -> str:
    """What a bundle says: analyses of both variants, without the hash of the record, and the report."""
    analyses = [opscope.analyze(f"{bundle}#{name}") for name in ("accelerated", "baseline")]
    documents = [json.loads(msgspec.json.encode(analysis)) for analysis in analyses]
    for document in documents:
        assert document["program"].pop("etrecord_sha256")
    (report,) = opscope.report(bundle, formats=("md",))
    return json.dumps(documents) + report.read_text()


@pytest.mark.runtime
def test_validation_notices_another_record(bundle: Path, exported_toy: Path, tmp_path: Path) -> None:
    """State the hash of the record as it lies in the bundle."""
    other = shutil.copytree(bundle, tmp_path / "other")
    assert opscope.validate(other).valid
    record = exported_toy.with_suffix(".etrecord")
    shutil.copyfile(record, other / "model" / record.name)
    problems = opscope.validate(other).check("hashes").problems
    assert [problem.file for problem in problems] == [f"model/{record.name}"]
