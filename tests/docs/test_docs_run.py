"""Documents that run: every block of the README, the tutorial, the how-tos and the skills does what its page says.

A page is run from its top in a directory of its own, with what it takes as given. Blocks that need a phone, a Mac or a
network say so and are checked: syntax, commands, options. A page stops, skipped, at a command that does not exist yet.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from _pytest.mark.structures import ParameterSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import opscope
from documents import OUTPUT, ROOT, SHELL, Block, blocks, documents, shape
from documents_given import GIVEN, Store, give
from opscope.cli.main import app
from opscope.core.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK, UntrustedError, kinds
from opscope.machine.isa import GROUPS
from waiting import HANG

QUICK = opscope.Settings(rounds=6, runs=8, warmup=1, ceilings=False)
SUBSTITUTIONS = (
    (r"opscope profile toy_cnn ", "opscope profile {program} "),
    (r"opscope profile demo/mobilenet_v3_small_xnnpack_fp32\.pte", "opscope profile {program}"),
    (r"opscope export mobilenet_v3_small", "opscope export toy_cnn"),
    (r"opscope profile mobilenet_v3_small --dtype int8", "opscope profile {program}"),
    (r"positions=\(10, 500, 1000\)", "positions=(10,)"),
    (r"opscope profile mobilenet_v3_small(?!.*--resume)", "opscope profile {program}"),
    (r"opscope profile ((?:(?!--rounds|--resume)[^\n#|])*?)(?= *(?:#|$))", r"opscope profile \1 --rounds 2"),
    (r"--rounds (?:10|6|12)\b", "--rounds 2"),
    (r"opscope profile ((?:(?!--runs|--resume)[^\n#|])*?)(?= *(?:#|$))", r"opscope profile \1 --runs 3 --warmup 1"),
    (
        r"opscope check new --against old(?! *--)",
        "opscope check new --against old --threshold 99% --inconclusive pass",
    ),
    (r"^rounds = \d+", "rounds = 2"),
    (r"^runs = \d+", "runs = 3"),
    (r"^# ceilings = \w+", "ceilings = false"),
    (r"^ceilings = false.*\n(?!untraced)", "ceilings = false\nuntraced = false\n"),
    (r"(opscope profile [^\n]*--target local)(?! --traced)", r"\1 --traced-only"),
    (r'^models? = .*"mobilenet_v3_small".*', 'model = "{program}"'),
    (r"opscope profile ((?:(?!--resume)[^\n#|])*?)(?= *(?:#|$))", r"opscope profile \1 --no-ceilings"),
)
"""The registered model becomes the same small program, exported once; measurements become short. All else is as is."""
_GROUP = f"(?:{'|'.join(group.name for groups in GROUPS.values() for group in groups)})"
NAMES = (
    (r"(?:mobilenet_v3_small_xnnpack_fp32|toy_cnn)(?: fp32)? on [^\n]*, (?:local|native)", "MODEL on MACHINE"),
    (r"(?:ok|note) +(?=load|disk|machine|clock)", "LEVEL "),
    (r", (?:un)?traced(?=;)", ""),
    (rf"(acceleration switch +){_GROUP}(?:, {_GROUP})*; --ablate {_GROUP}", r"\1GROUPS; --ablate GROUP"),
    (rf"(?m)^({_GROUP} +)(?:yes|no )", r"\1HAS"),
    (rf"default of --ablate: {_GROUP}", "default of --ablate: GROUP"),
    (rf"--ladder: all on(?: -> without {_GROUP})+", "--ladder: STEPS"),
)
"""What differs between the model and machine of a page and those of this run."""
VARIES = (
    (r"#x faster|#x, inconclusive: add rounds \(--rounds #\)", "VERDICT"),
    (
        (
            r"(?:candidate )?(?:faster|slower)|no difference detected(?:; a change beyond # % is ruled out)?"
            r"|inconclusive(?:: add rounds|: between-process spread unknown)?"
        ),
        "VERDICT",
    ),
    (r"Measurement quality of [a-z:, ]+", "Measurement quality: GRADE"),
    # Beside other processes the ratio is withheld, with the reason in its place.
    (r"no ratio: .*?(?= withheld: )", "VERDICT"),
    (r"Do not trust: (?=# unit with acceleration)", ""),
    (
        r"(?:# % interval #x to #x;|withheld:|no interval:) (# \+ # processes, paired)(?:, untraced)?(?:; minimum)?",
        r"INTERVAL; \1",
    ),
)
"""Answers that may come out otherwise here, in shapes of lines."""
DEVICE = re.compile(r"--target[ =]\"?(?:ssh|adb|qemu)|--remote-device|^(?:adb|ssh) ", re.MULTILINE)
"""Commands that need another machine: they are checked, whatever the comment before them says."""
_RUNTIME = pytest.mark.runtime


@pytest.fixture(scope="session")
def store(toy_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A program and bundles, measured here."""
    place = tmp_path_factory.mktemp("given")
    program = place / "toy_cnn.pte"
    shutil.copyfile(toy_program, program)
    shutil.copyfile(toy_program.with_suffix(".etrecord"), program.with_suffix(".etrecord"))
    for name in ("bundle", "other"):
        opscope.profile(program, settings=QUICK, out=place / name)
    shutil.copytree(place / "bundle", place / "unfinished")
    _interrupt(place / "unfinished" / "manifest.json")
    return Store(program, place / "bundle", place / "other", place / "unfinished")


def _interrupt(manifest: Path) -> None:
    """Make a bundle one whose last repetition did not run."""
    content = json.loads(manifest.read_bytes())
    lost = content["repetitions"].pop()
    content["status"] = "incomplete"
    content["model"]["source"] = "mobilenet_v3_small"
    shutil.rmtree(manifest.parent / lost["directory"])
    manifest.write_text(json.dumps(content))


@functools.cache
def commands() -> dict[tuple[str, ...], frozenset[str]]:
    """Every command by its words, with its options."""
    found: dict[tuple[str, ...], frozenset[str]] = {}

    def visit(command: object, words: tuple[str, ...]) -> None:
        options = (word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts))
        found[words] = frozenset({*(word for word in options if word.startswith("-")), "--help", "-h"})
        for name, inner in getattr(command, "commands", {}).items():
            visit(inner, (*words, name))

    visit(typer.main.get_command(app), ())
    return found


def command_of(words: list[str]) -> tuple[str, ...] | None:
    """The command that a line calls; None when there is none of that name."""
    plain = [word for word in words[1:] if not word.startswith("-")]
    if not plain:
        return ()
    if (plain[0],) not in commands():
        return None
    return tuple(plain[:2]) if tuple(plain[:2]) in commands() else (plain[0],)


def unknown(block: Block) -> str | None:
    """The first command of a block that does not exist."""
    calls = block.commands() if block.language in SHELL else []
    return next((words[1] for words in calls if command_of(words) is None), None)


def wrong_options(block: Block) -> list[str]:
    """Options of a block that its commands do not have."""
    return [
        f"opscope {' '.join(command)} {word}"
        for words in block.commands()
        if (command := command_of(words)) is not None
        for word in (word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word))
        if word not in commands()[command]
    ]


class Page:
    """A page that is being run in a directory of its own."""

    def __init__(self, document: Path, place: Path, store: Store) -> None:
        self.document, self.place, self.store = document, place, store
        path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
        self.variables = {"NO_COLOR": "1", "TERM": "dumb", "PATH": path}
        self.output = ""

    def do(self, block: Block) -> None:
        """Run a block, write it, or compare it with what the page has printed so far."""
        file = block.told("file")
        if file is not None:
            (self.place / file).write_text(self.shortened(block.text))
        elif block.language in SHELL:
            self.shell(block)
        elif block.language == "python" and block.told("check only") is not None:
            compile(block.text, self.where(block), "exec")
        elif block.language == "python":
            script = self.place / "block.py"
            script.write_text(block.text)
            self.run([sys.executable, str(script)], block, {0})
        elif block.language in OUTPUT and block.told("example") is None and block.told("recorded") is None:
            self.compare(block)

    def shell(self, block: Block) -> None:
        """Run a block of commands; where that is not possible here, check it."""
        self.check(block)
        if block.told("check only") is not None or DEVICE.search(block.text):
            return
        codes = {int(word) for word in re.findall(r"\d+", block.told("exits") or "0")}
        if "opscope check" in block.text:
            codes.add(UntrustedError.exit_code)  # as busy as this machine may be
        self.run(["bash", "-euo", "pipefail", "-c", self.shortened(block.text)], block, codes)

    def check(self, block: Block) -> None:
        """The syntax of a block of commands, and whether its options exist."""
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
        assert wrong_options(block) == [], f"{self.where(block)}: options that do not exist"

    def shortened(self, text: str) -> str:
        """The text with the substitutions above."""
        program = os.path.relpath(self.store.program, self.place)
        for pattern, instead in SUBSTITUTIONS:
            text = re.sub(pattern, instead.replace("{program}", program), text, flags=re.MULTILINE)
        return text

    def run(self, command: list[str], block: Block, codes: set[int]) -> None:
        """Run a command here and keep what it prints."""
        environment = os.environ | self.variables
        done = subprocess.run(
            command, cwd=self.place, env=environment, capture_output=True, text=True, check=False, timeout=HANG
        )
        assert done.returncode in codes, f"{self.where(block)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{self.where(block)}\n{done.stderr}"
        self.output += done.stdout
        for file in self.place.glob("*.toml"):
            file.write_text(self.shortened(file.read_text()))

    def compare(self, block: Block) -> None:
        """Every line of the shown output is of the same shape as something that was printed."""
        printed = figureless(self.output)
        for line in block.text.splitlines():
            assert figureless(line) in printed, f"{self.where(block)}: nothing like {line!r} in\n{self.output}"

    def where(self, block: Block) -> str:
        """Document and line."""
        return f"{self.document.relative_to(ROOT)}:{block.line}"


def figureless(text: str) -> str:
    """The shape of a text, without what differs between models and machines."""
    named = text
    for pattern, instead in NAMES:
        named = re.sub(pattern, instead, named)
    shaped = shape(named)
    for pattern, instead in VARIES:
        shaped = re.sub(pattern, instead, shaped)
    return shaped


def _name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def _pages() -> list[ParameterSet]:
    """All documents; the README every day, the others at night."""
    everyday, nightly = pytest.mark.everyday("the one page that is followed"), pytest.mark.nightly
    return [
        pytest.param(document, id=_name(document), marks=everyday if _name(document) == "README.md" else nightly)
        for document in documents()
    ]


@_RUNTIME
@pytest.mark.parametrize("document", _pages())
def test_a_page_does_what_it_says(document: Path, store: Store, tmp_path: Path) -> None:
    """Every block in order, as a reader would type it."""
    if _name(document) in _NEEDS_LITERT and find_spec("ai_edge_litert") is None:
        pytest.skip("needs ai-edge-litert: pip install 'opscope[litert]'")
    place = tmp_path / "page"
    place.mkdir()
    found = blocks(document)
    missing = next((name for block in found if (name := unknown(block)) is not None), None)
    if missing is None or _name(document) not in _NEEDS_COMMAND:
        give(store, GIVEN.get(_name(document), ""), place)
    page = Page(document, place, store)
    for block in found:
        name = unknown(block)
        if name is not None:
            pytest.skip(f"from line {block.line} on: there is no command `opscope {name}` yet")
        page.do(block)


@pytest.mark.parametrize("document", documents(), ids=_name)
def test_commands_of_a_page_are_well_formed(document: Path, tmp_path: Path) -> None:
    """The syntax of all blocks, and the options of the commands that exist."""
    page = Page(document, tmp_path, Store(*[tmp_path] * 4))
    for block in blocks(document):
        if block.language in SHELL and unknown(block) is None:
            page.check(block)


_NEEDS_LITERT = {"docs/how-to/compare-two-runtimes.md"}
_NEEDS_COMMAND = {name for name, words in GIVEN.items() if "trace.json" in words.split()}
"""Pages whose given files come from tests that arrive with their command."""


@pytest.mark.parametrize("document", documents(), ids=_name)
def test_blocks_of_data_are_valid(document: Path) -> None:
    """TOML, JSON and YAML parse."""
    for block in blocks(document):
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml" and find_spec("yaml"):
            import yaml

            yaml.safe_load(block.text)


LATER = {"docs/how-to/see-which-kernels-ran.md": "kernels", "docs/how-to/keep-many-runs.md": "store"}
"""Pages that come with a command, which must be there once the command is."""


def unknown_page(name: str) -> bool:
    """Whether a page should exist: all but those of commands that do not exist yet."""
    return name not in LATER or (LATER[name],) in commands()


def test_every_given_page_exists_and_every_note_is_known() -> None:
    """A page that is renamed, or a misspelt note, would silently not be run."""
    names = {_name(document) for document in documents()}
    assert {name for name in set(GIVEN) - names if unknown_page(name)} == set()
    notes = {block.note.partition(":")[0] for document in documents() for block in blocks(document) if block.note}
    assert notes <= {"check only", "exits", "file", "example", "recorded"}


def skill_files() -> Iterator[Path]:
    """The files of the skills."""
    return (document for document in documents() if document.name == "SKILL.md")


@pytest.mark.parametrize("document", list(skill_files()), ids=lambda path: path.parent.name)
def test_a_skill_has_its_parts(document: Path) -> None:
    """Front matter by the open format; prerequisites, steps, verification, outputs, failures, a checklist, in order."""
    from opscope.workflows.agent_skills import parsed

    text = document.read_text(encoding="utf-8")
    skill = parsed(text)
    assert skill.name == document.parent.name
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", skill.name)
    assert len(skill.name) <= 64
    assert 40 <= len(skill.description) <= 1024
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    parts = ["Prerequisites", "Steps", "Verify", "Expected outputs", "When it fails", "Checklist"]
    assert [head for head in heads if head in parts] == parts
    assert text.count("- [ ] ") >= 3


@pytest.mark.parametrize("document", list(skill_files()), ids=lambda path: path.parent.name)
def test_a_skill_names_real_exit_codes(document: Path) -> None:
    """The codes of the failure table are those of the error tree."""
    text = document.read_text(encoding="utf-8").partition("## When it fails")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+?)(?: \([^)]*\))? \|", text, re.MULTILINE)
    codes = {int(code) for row in rows for code in row.split(",")}
    known = {kind.exit_code for kind in kinds()} | {EXIT_OK, EXIT_INTERNAL, EXIT_INTERRUPTED, 127}
    assert codes
    assert codes <= known


def test_links_between_skills_lead_somewhere() -> None:
    """A skill that is named in another one exists."""
    names = {document.parent.name for document in skill_files()}
    for document in skill_files():
        mentioned = set(re.findall(r"\bopscope-[a-z]+(?:-[a-z0-9]+)+", document.read_text(encoding="utf-8")))
        assert mentioned - {"opscope-models"} <= names, document


def block(text: str, language: str = "sh", note: str = "") -> Block:
    """A block as a page would hold it."""
    return Block(1, language, text, note)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    """Also where the block is not run, behind a pipe, and of a command in a group."""
    assert wrong_options(block("opscope analyze x --json - | head\n")) == []
    assert wrong_options(block("cat x | opscope analyze x --jsn -\n")) == ["opscope analyze --jsn"]
    assert wrong_options(block("opscope skills install x --force\n")) == ["opscope skills install --force"]
    assert unknown(block("opscope doctor && opscope analyse x\n")) == "analyse"


def test_a_ratio_that_is_withheld_has_the_same_shape() -> None:
    """A machine that others use gives no ratio, and a page is not wrong by that."""
    told = "2.31 ms with acceleration, 3 ms without: 1.27x faster\n95 % interval 1.2x to 1.3x; 2 + 2 processes, paired"
    withheld = (
        "Do not trust: 2.31 ms with acceleration, 3 ms without: no ratio: other processes took 6 % of the CPU time\n"
        "withheld: 2 + 2 processes, paired, untraced"
    )
    assert figureless(told) == figureless(withheld)
    few = "no interval: 2 + 2 processes, paired, untraced"
    assert figureless(few) == figureless("withheld: 2 + 2 processes, paired, untraced")


def test_output_of_another_shape_is_noticed(tmp_path: Path) -> None:
    """Figures, units and verdicts may differ; words, rows and their order of cells may not."""
    page = Page(ROOT / "README.md", tmp_path, Store(*[tmp_path] * 4))
    page.do(block("printf 'baseline  2.31 ms  baseline\\nspeedup 1.27x [1.23x, 1.30x]: candidate faster\\n'\n"))
    page.do(block("baseline      783 µs  baseline\nspeedup 0.9x [0.8x, 1x]: candidate slower\n", "text"))
    with pytest.raises(AssertionError, match="nothing like 'baseline 3 ms candidate'"):
        page.do(block("baseline 3 ms candidate\n", "text"))


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    """Any exit code but the one that the page tells."""
    page = Page(ROOT / "README.md", tmp_path, Store(*[tmp_path] * 4))
    page.do(block("exit 3\n", note="exits: 1 or 3"))
    with pytest.raises(AssertionError, match="exit code 3"):
        page.do(block("exit 3\n"))


def test_a_command_for_a_phone_is_checked_and_not_run(tmp_path: Path) -> None:
    """Its syntax and its options count all the same."""
    page = Page(ROOT / "README.md", tmp_path, Store(*[tmp_path] * 4))
    page.do(block("opscope profile x.pte --target adb --out phone\n"))
    with pytest.raises(AssertionError, match="options that do not exist"):
        page.do(block("opscope profile x.pte --target adb --otu phone\n"))
    with pytest.raises(subprocess.CalledProcessError):
        page.do(block("opscope profile 'x.pte --target adb\n", note="check only: a phone"))
