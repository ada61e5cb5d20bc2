"""Documents of a stranger are data: no value of theirs becomes a program, a command line, an address or a path.

Each document is a real one in which one text was replaced. Commands run on it in one process under an audit hook.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kit_files
from fakes import FakeClock, FakeTarget
from opscope.api import (
    Settings,
    add_to_store,
    count_kernels,
    install_skills,
    profile,
    query_store,
    run,
    store_entries,
)
from opscope.core.errors import OverwriteError, UsageError
from opscope.workflows.measure.counting import verify_work
from programs import write_tiny_program

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
WATCHED = ROOT / "tests" / "support" / "watched.py"
READING = (
    ("analyze", "{document}", "--quiet"),
    ("report", "{document}", "--out", "out", "--quiet"),
    ("validate", "{document}", "--quiet"),
    ("check", "{document}", "--against", "clean", "--force", "--quiet"),
    ("store", "add", "{document}", "--store", "store", "--quiet"),
    ("kernels", "{document}", "--quiet"),
    ("convert", "{document}", "--to", "csv", "--out", "events.csv", "--force"),
)
"""Commands that read a bundle or a kit directory."""
RUNNING = (
    ("profile", "model.tflite", "--out", "{document}", "--resume", "--quiet"),
    ("mcp-profile", '{{"program": "model.tflite", "out": "{document}", "seconds": 60, "resume": true}}'),
    ("kernels", "{document}", "--count", "--quiet"),
)
"""Commands that run the program of a bundle."""
PARTS_OF_A_RUN = ("target", "targets", "model", "request", "plan", "variants")
"""Parts of a manifest that a run could take a program, a path or an address from."""


class Replaced(NamedTuple):
    """A document with one text replaced by a hostile one."""

    place: tuple[str | int, ...]
    content: Any


def hostile_texts(victim: Path) -> dict[str, str]:
    """Texts that lead to a file or run a command wherever a text is taken for more than a text."""
    return {
        "absolute": str(victim),
        "relative": f"../{victim.parent.name}/{victim.name}",
        "uri": f"file://{victim}",
        "target": f"native:{victim.with_name('program')}",
        "option": f"-oProxyCommand={victim.with_name('program')}",
    }


def text_places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of every text and null in a document; of a list the first entry stands for all."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from text_places(inner, (*place, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:1]):
            yield from text_places(inner, (*place, number))
    elif isinstance(value, str) or value is None:
        yield place


def replaced_documents(document: Any, text: str) -> Iterator[Replaced]:
    """Yield a copy of a document for each of its texts, with this text in its place."""
    for place in text_places(document):
        copy = json.loads(json.dumps(document))
        holder = copy
        for name in place[:-1]:
            holder = holder[name]
        holder[place[-1]] = text
        yield Replaced(place, copy)


def write_program(path: Path, log: Path) -> None:
    """Write a program that leaves a file when it is started."""
    path.write_text(f'#!/bin/sh\necho "$0 $@" >> {log}\n')
    path.chmod(0o755)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file outside of everything that a user names, and a program beside it."""
    home = tmp_path_factory.mktemp("victim")
    write_program(home / "program", home / "started")
    (home / "secret.json").write_text('{"secret": 1}')
    return home / "secret.json"


def run_watched(
    commands: list[list[str]], directory: Path, named: list[Path], cache: Path
) -> tuple[Counter[str], Counter[str]]:
    """Run commands under the audit hook; return how often each exit code and each event came."""
    listed = directory / "commands.json"
    listed.write_text(json.dumps(commands))
    scratch = cache / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "OPSCOPE_CACHE": str(cache),
        "TMPDIR": str(scratch),
        "OPSCOPE_LOCK": str(cache / "lock"),
    }
    words = [sys.executable, str(WATCHED), str(listed), *map(str, named)]
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line[2:].partition(" ") for line in done.stdout.splitlines() if line.startswith("@@")]
    codes = Counter(code for code, _, _ in lines if code != "events")
    assert codes.total() == len(commands)
    assert "70" not in codes, done.stderr[-3000:]
    (events,) = (json.loads(text) for code, _, text in lines if code == "events")
    return codes, Counter(events)


def write_bundles(directory: Path, documents: list[Replaced], source: Path) -> list[str]:
    """Write a copy of a bundle for each manifest."""
    names = []
    for number, (_, content) in enumerate(documents):
        names.append(f"document-{number}")
        shutil.copytree(source, directory / names[-1])
        (directory / names[-1] / "manifest.json").write_text(json.dumps(content))
    return names


def commands_for(names: list[str], patterns: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    """Return the words of every command on every document."""
    return [[word.format(document=name) for word in words] for name in names for words in patterns]


def read_hostile_bundles(
    victim: Path, directory: Path, kind: str, commands: tuple[tuple[str, ...], ...], fields: set[str] | None = None
) -> Counter[str]:
    """Run commands over a bundle's manifest with each text replaced, or those of some fields; return the events."""
    work, source = directory / "work", DATA / "bundles" / "with-ceilings"
    work.mkdir()
    manifest = json.loads((source / "manifest.json").read_bytes())
    shutil.copytree(source, work / "clean")
    documents = list(replaced_documents(manifest, hostile_texts(victim)[kind]))
    names = write_bundles(work, [one for one in documents if fields is None or one.place[-1] in fields], source)
    _, events = run_watched(commands_for(names, commands), work, [work], directory / "cache")
    assert not (victim.parent / "started").exists()
    assert events["open"] > len(names)
    sys.stdout.write(f"{len(names)} manifests x {len(commands)} commands: {dict(events)}\n")
    return events


def test_a_strangers_manifest_opens_and_starts_nothing(victim: Path, tmp_path: Path) -> None:
    """Take paths in a few fields that name files or targets; the nightly test takes every text of a manifest."""
    fields = {"program", "etrecord", "trace", "directory", "address", "source", "values"}
    read_hostile_bundles(victim, tmp_path, "absolute", READING[:3], fields)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["absolute", "relative", "uri", "target", "option"])
def test_no_text_of_a_manifest_is_more_than_a_text(kind: str, victim: Path, tmp_path: Path) -> None:
    """Take every text of a manifest, and every command that reads."""
    pytest.importorskip("duckdb")
    events = read_hostile_bundles(victim, tmp_path, kind, READING)
    assert set(events) <= {"open", "ctypes.dlopen", "subprocess.Popen", "os.posix_spawn"}


@pytest.mark.nightly
def test_no_text_of_a_kit_run_is_more_than_a_text(victim: Path, tmp_path: Path) -> None:
    """A run directory of the Arm kit with a configuration beside it."""
    pytest.importorskip("duckdb")
    work = tmp_path / "work"
    work.mkdir()
    shutil.copytree(DATA / "bundles" / "with-ceilings", work / "clean")
    pairs = [{"name": "pair", "baseline": "alpha", "candidate": "beta"}]
    kit = kit_files.write_run(work / "kit", pairs=pairs)
    names = []
    for file in ("manifest.json", "metrics.json", "toy.json"):
        document = json.loads((kit / file).read_bytes())
        for text in hostile_texts(victim).values():
            for one in replaced_documents(document, text):
                names.append(f"document-{len(names)}")
                shutil.copytree(kit, work / names[-1])
                (work / names[-1] / file).write_text(json.dumps(one.content))
    _, events = run_watched(commands_for(names, READING), work, [work], tmp_path / "cache")
    assert not (victim.parent / "started").exists()
    sys.stdout.write(f"{len(names)} kit runs x {len(READING)} commands: {dict(events)}\n")


@pytest.mark.nightly
@pytest.mark.runtime
def test_resuming_a_strangers_run_starts_nothing_of_theirs(victim: Path, tmp_path: Path) -> None:
    """A real run of LiteRT that lacks a repetition; texts that name targets, programs and options are replaced."""
    pytest.importorskip("ai_edge_litert")
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(DATA / "litert" / "partial.tflite", work / "model.tflite")
    begin = ["profile", "model.tflite", "--rounds", "2", "--runs", "3", "--no-ceilings", "--out", "begun", "--quiet"]
    codes, _ = run_watched([begin], work, [work], tmp_path / "cache")
    assert codes.keys() <= {"0", "20"}
    manifest = json.loads((work / "begun" / "manifest.json").read_bytes())
    manifest |= {"status": "incomplete", "repetitions": manifest["repetitions"][:2]}
    targets = [{"kind": kind, "address": str(victim.with_name("program"))} for kind in ("native", "local", "runner")]
    targets += [{"kind": "ssh", "address": f"-oProxyCommand={victim.with_name('program')}"}]
    targets += [{"kind": "adb", "address": "127.0.0.1:9"}, {"kind": "qemu-aarch64", "address": ""}]
    documents = [Replaced(("target",), {**manifest, "target": {**target, "emulated": False}}) for target in targets]
    option = {"CACHE_DIR": str(victim.parent), "session.model_external_initializers_file_folder_path": str(victim)}
    variants = [{**variant, "options": option} for variant in manifest["variants"]]
    documents.append(Replaced(("variants",), {**manifest, "variants": variants}))
    text = hostile_texts(victim)["absolute"]
    parts = [one for one in replaced_documents(manifest, text) if one.place[0] in PARTS_OF_A_RUN]
    names = write_bundles(work, [*documents, *parts], work / "begun")
    _, events = run_watched(commands_for(names, RUNNING), work, [work], tmp_path / "cache")
    assert not (victim.parent / "started").exists()
    sys.stdout.write(f"{len(names)} manifests x {len(RUNNING)} commands: {dict(events)}\n")


@pytest.mark.parametrize(
    "trap",
    ["open(victim)", "subprocess.run([program])", "__import__('socket').create_connection(('127.0.0.1', 9))"],
)
def test_the_watch_sees_what_it_watches_for(trap: str, victim: Path, tmp_path: Path) -> None:
    """Without this the tests above could not fail."""
    source = f"import sys, os, subprocess; sys.path.append({str(WATCHED.parent)!r}); import watched\n"
    source += f"victim, program = {str(victim)!r}, {str(victim.with_name('program'))!r}\n"
    source += f"sys.addaudithook(watched.Watch(({str(tmp_path)!r},), (sys.prefix, sys.base_prefix)))\n"
    done = subprocess.run([sys.executable, "-c", source + trap], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 99, done.stderr
    assert not (victim.parent / "started").exists()


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run that is not finished, as if begun on a target with an address."""
    program = write_tiny_program(tmp_path)
    settings = Settings(rounds=2, runs=2, warmup=1, ceilings=False)
    profile(program, settings=settings, out=tmp_path / "out", target=FakeTarget(), clock=FakeClock())
    return tmp_path


def change_manifest(bundle: Path, change: Callable[[Any], object]) -> None:
    """Edit the manifest of a bundle as a stranger would."""
    document = json.loads((bundle / "manifest.json").read_bytes())
    change(document)
    (bundle / "manifest.json").write_text(json.dumps(document))


ADDRESSES = ("native:/bin/true", "local:/bin/true", "runner:/bin/true", "ssh:board", "adb:1234")


@pytest.mark.parametrize("recorded", ADDRESSES)
def test_a_recorded_address_must_be_named_again(recorded: str, begun: Path) -> None:
    """Resuming and counting kernels start nothing that only the manifest names; the hint says what to type."""
    kind, _, address = recorded.partition(":")
    change_manifest(begun / "out", lambda manifest: manifest["target"].update(kind=kind, address=address))
    for use in (
        lambda: profile(begun / "tiny.pte", settings=Settings(rounds=2, runs=2), out=begun / "out", resume=True),
        lambda: count_kernels(begun / "out"),
        lambda: count_kernels(begun / "out", stated=kind if kind == "native" else "native:/bin/other"),
    ):
        with pytest.raises(UsageError) as refused:
            use()
        assert refused.value.where == "--target"
        assert recorded in str(refused.value.hint)


@pytest.mark.parametrize(
    ("change", "option", "named"),
    [
        (
            lambda manifest: manifest.update(
                targets={"baseline": {"kind": "native", "address": "/bin/true", "emulated": False}}
            ),
            "--target",
            "native:/bin/true",
        ),
        (
            lambda manifest: manifest["variants"][0].update(options={"CACHE_DIR": "/elsewhere"}),
            "--session-option",
            "CACHE_DIR",
        ),
    ],
    ids=["the address of one variant", "a path among options"],
)
def test_what_a_runtime_would_start_or_open_must_be_named_again(
    change: Callable[[Any], object], option: str, named: str, begun: Path
) -> None:
    """Variants may have run elsewhere than the others; a runtime opens or writes what an option names."""
    change_manifest(begun / "out", change)
    with pytest.raises(UsageError, match=named) as refused:
        profile(begun / "tiny.pte", settings=Settings(rounds=2, runs=2), out=begun / "out", resume=True)
    assert refused.value.where == option


def test_a_run_of_a_file_takes_no_address_from_a_bundle(begun: Path) -> None:
    """An experiment on `auto` is finished where it began, unless that is a program or a device."""
    bundle = begun / "runs" / "tiny-auto"
    bundle.parent.mkdir()
    (begun / "out").rename(bundle)
    change_manifest(bundle, lambda manifest: manifest["target"].update(kind="native", address="/bin/true"))
    (begun / "lab.toml").write_text('schema = "opscope.config/1"\nmodel = "tiny.pte"\ntarget = "auto"\n')
    with pytest.raises(UsageError, match="native:/bin/true"):
        run(begun / "lab.toml", resume=True, out=begun / "runs")


def test_a_receipt_names_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt of a target with an address is verified only on that target, named by the user."""
    import msgspec

    from opscope.analysis.work.receipt import CountRequest, receipt_of
    from opscope.analysis.work.work import RestWork, Work
    from opscope.core.json import to_json
    from opscope.workflows.measure import counting

    work = Work("tiny.pte", "00", "ExecuTorch", "x86-64", "Valgrind", [], [], [], RestWork(3, 2, 1))
    request = CountRequest(target="native:/bin/true", sve_bits=128, sme_bits=128)
    (tmp_path / "receipt.json").write_bytes(to_json(receipt_of(work, request)))
    monkeypatch.setattr(counting, "count", lambda *_words, **_settings: work)
    with pytest.raises(UsageError, match="native:/bin/true"):
        verify_work("model.pte", tmp_path / "receipt.json")
    assert verify_work("model.pte", tmp_path / "receipt.json", "native:/bin/true") == ([], [])
    plain = msgspec.structs.replace(request, target="native")
    (tmp_path / "plain.json").write_bytes(to_json(receipt_of(work, plain)))
    assert verify_work("model.pte", tmp_path / "plain.json") == ([], [])


@pytest.mark.parametrize("linked", ["opscope-export-model", "opscope-export-model/SKILL.md"])
def test_a_skill_is_not_written_through_a_link(linked: str, tmp_path: Path) -> None:
    """What a link leads to is somebody's file, also with --overwrite."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "SKILL.md").write_text("---\nname: opscope-mine\n---\nmine\n")
    place = tmp_path / "skills" / linked
    place.parent.mkdir(parents=True)
    place.symlink_to(mine / "SKILL.md" if linked.endswith(".md") else mine)
    with pytest.raises(OverwriteError, match="a link"):
        install_skills(tmp_path / "skills", ["opscope-export-model"], overwrite=True)
    assert "mine" in (mine / "SKILL.md").read_text()


@pytest.mark.parametrize("version", [None, "0.1.9"])
def test_a_store_takes_no_edited_record_of_any_version(version: str | None, begun: Path) -> None:
    """Hashes of records are compared whatever the manifest says of itself."""
    pytest.importorskip("duckdb")

    def divide_times(manifest: Any) -> None:
        for repetition in manifest["repetitions"]:
            repetition["measurement"]["load_ns"] = 1
        manifest.update({"opscope": version} if version else {})

    change_manifest(begun / "out", divide_times)
    added = add_to_store([begun / "out"], begun / "store")
    assert added.added == []
    assert "was changed after it was measured" in added.skipped[0].problem


@pytest.mark.parametrize(("version", "checked"), [("0.1.9", False), (None, True)])
def test_a_store_says_which_figures_it_checked(version: str | None, checked: bool, begun: Path) -> None:
    """Another version may have computed other figures: they are stored as not checked, unless computed again."""
    pytest.importorskip("duckdb")

    change_manifest(begun / "out", lambda manifest: manifest.update({"opscope": version} if version else {}))
    assert len(add_to_store([begun / "out"], begun / "store").added) == 1
    (entry,) = store_entries(begun / "store")
    assert entry.checked is checked
    assert add_to_store([begun / "out"], begun / "again", recompute=True).added[0].checked
    assert query_store("SELECT checked FROM bundles", begun / "store").rows == [(checked,)]
