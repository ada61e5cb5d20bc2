"""The promises of the published documents, row by row: docs/promises.toml, and the page that is made of it.

The documents that describe what a profile should hold are not part of this repository. What they quote is found in
their text by ``quotes``: commands, checks, options, files and fields. Each has a row that says what became of it here,
and statements of their prose have rows too. ``python docs/promises.py DIRECTORY`` compares rows and documents, exits
with 1 where a document quotes what no row has or a row what no document says, and prints both; where there is nothing
of that, it notes the hash of the quotations, by which a later misquotation is found without the documents.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = Path(__file__).with_name("promises.toml")
Answer: TypeAlias = Literal["kept", "differs", "wrong", "untried", "missing"]
WORDS: dict[Answer, str] = {
    "kept": "kept",
    "differs": "differs, with the reason",
    "wrong": "the document is wrong",
    "untried": "could not be tried",
    "missing": "missing",
}
KINDS = {
    "command": "Commands",
    "check": "Checks",
    "option": "Options",
    "file": "Files",
    "field": "Fields",
    "statement": "Statements",
}
TESTS = {
    "command": "kit/test_promises.py::test_the_command_here_runs",
    "check": "kit/test_promises.py::test_a_quoted_check_passes",
    "option": "kit/test_promises.py::test_options_that_rows_name_are_there",
    "file": "kit/test_promises.py::test_a_quoted_file_is_written",
    "field": "kit/test_promises.py::test_a_quoted_field_is_in_its_file",
}
"""The test of a row that names none of its own."""
_SHELL = re.compile(r"(?:python3?|test|grep|cat|source|cd|git|bash|cp) \S")
_OWN_SCRIPT = re.compile(r"[\w/]+/(\w+\.(?:py|sh))")
_FILE = re.compile(r"[\w<>*.{},-]*\.(?:json|csv|md|log|pte|etrecord|etdump|sh|py)\b")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_KEY = re.compile(r'^\s*"(\w+)": |(?:summ|row)\["(\w+)"\] = ', re.MULTILINE)
_IDENTIFIER = re.compile(r"[a-z]+(?:_[a-z]+)+|__neonsme2|sme2|neon")
_COLUMN = re.compile(r"^  • ((?!DELEGATE)[a-z_]+): ", re.MULTILINE)
_PROGRAM = "#!/usr/bin/env python3"
_INSIDE_A_PROGRAM = {"name", "starts", "ends", "lock_stall_B", "lock_stall_E"}


class Row(msgspec.Struct, frozen=True, array_like=True):
    """What became of something that a document says.

    Attributes:
        quote: the document's own words.
        answer: key of ``WORDS``.
        here: what there is, in Markdown; of a command the first code is what runs in its place.
        test: what tries it, below ``tests``; empty: the test of all rows of its kind. Statements name theirs.
    """

    quote: str
    answer: Answer
    here: str
    test: str = ""


class Document(msgspec.Struct, frozen=True):
    """A published document and its rows, by kind.

    Attributes:
        key: word for it.
        title: what the page calls it.
        source: where it was published, with its licence.
        sha256: hash of its text.
        quoted: hash of the quotations of its rows, written when they were last found in the text.
        rows: by the keys of ``KINDS``.
    """

    key: str
    title: str
    source: str
    sha256: str
    quoted: str
    rows: dict[str, list[Row]]

    def hash_of_quotations(self) -> str:
        """What ``quoted`` must be: it differs once a quotation was changed."""
        quotations = [[kind, row.quote] for kind, rows in self.rows.items() for row in rows]
        return hashlib.sha256(msgspec.json.encode(quotations)).hexdigest()


class Promises(msgspec.Struct, frozen=True):
    """All documents."""

    documents: list[Document]

    def rows(self) -> Iterator[tuple[Document, str, Row]]:
        """Every row with its document and kind."""
        for document in self.documents:
            for kind, rows in document.rows.items():
                for row in rows:
                    yield document, kind, row


def promises() -> Promises:
    """What docs/promises.toml holds.

    Raises:
        msgspec.ValidationError: it is not as described here.
    """
    return msgspec.toml.decode(ROWS.read_bytes(), type=Promises)


def quotes(text: str) -> dict[str, list[str]]:
    """What a document quotes, by kind, each once and in the document's order; of a program its interface."""
    program = _PROGRAM in text
    text = text.partition(_PROGRAM)[2] if program else text
    spans = [] if program else _SPAN.findall(text)
    commands = [] if program else [*_commands(text), *filter(_SHELL.match, spans)]
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for command in commands:
        script = _OWN_SCRIPT.search(command)
        asks = not script and re.match(r"test |grep |cat |python3? -[cm]", command) and "Inspector" not in command
        found["check" if asks else "command"].append(command)
        if script:
            found["option"] += [f"{script[1]} {option}" for option in re.findall(r" (--[a-z][\w-]*)", command)]
    if program:
        found["option"] = [
            f"postprocess_aie_trace.py {option}" for option in re.findall(r'add_argument\("(--\w+)"', text)
        ]
    found["file"] = _FILE.findall(text)
    keys = [first or second for first, second in _KEY.findall(text)]
    found["field"] = [key for key in keys if not (program and key in _INSIDE_A_PROGRAM)]
    found["field"] += [span for span in spans if _IDENTIFIER.fullmatch(span)] + _COLUMN.findall(text)
    return {kind: list(dict.fromkeys(quoted)) for kind, quoted in found.items()}


def _commands(text: str) -> Iterator[str]:
    """Command lines, those that go over several lines in one; code in quotes keeps its lines."""
    lines = iter(text.splitlines())
    for line in lines:
        command = line.strip()
        if not _SHELL.match(command):
            continue
        while command.endswith("\\"):
            command = f"{command[:-1].rstrip()} {next(lines).strip()}"
        while command.count('"') % 2:
            command += "\n" + next(lines)
        yield command


def differences(document: Document, text: str) -> list[str]:
    """What the rows of a document and its text do not have in common, as lines to read."""
    found = []
    for kind, quoted in quotes(text).items():
        rows = [row.quote for row in document.rows.get(kind, [])]
        if kind == "statement":
            flat = " ".join(text.split())
            found += [f"{document.key}: not said: {quote!r}" for quote in rows if " ".join(quote.split()) not in flat]
            continue
        found += [f"{document.key}: no row for the {kind} {quote!r}" for quote in quoted if quote not in rows]
        found += [f"{document.key}: no such {kind}: {quote!r}" for quote in rows if quote not in quoted]
        found += [f"{document.key}: twice: {quote!r}" for quote in set(rows) if rows.count(quote) > 1]
    return found


def texts(directory: Path) -> dict[str, str]:
    """The documents of a directory by the SHA-256 of their text."""
    files = [path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.txt"))]
    return {hashlib.sha256(text.encode()).hexdigest(): text for text in files}


def sections() -> Iterator[str]:
    """The page of all rows in parts: how many of each kind came to what, then document by document."""
    found = promises()
    yield _INTRODUCTION
    yield "\n".join([*_counts(found), ""])
    for document in found.documents:
        yield f"## {document.title}\n\n{document.source}.\n"
        for kind, rows in document.rows.items():
            lines = [f"| {kind} | | here | tried by |", "|---|---|---|---|"]
            lines += [f"| {_quoted(row.quote)} | {row.answer} | {row.here} | {_test(row, kind)} |" for row in rows]
            yield "\n".join([f"### {document.title}: {KINDS[kind].lower()}", "", *lines, ""])


def _counts(found: Promises) -> list[str]:
    counts: dict[tuple[str, str], int] = {}
    for _, kind, row in found.rows():
        counts[kind, row.answer] = counts.get((kind, row.answer), 0) + 1
    answers = [answer for answer in WORDS if any(told == answer for _, told in counts)]
    lines = [f"| | {' | '.join(WORDS[answer] for answer in answers)} | all |", f"|---|{'---:|' * (len(answers) + 1)}"]
    for kind, title in KINDS.items():
        cells = [counts.get((kind, answer), 0) for answer in answers]
        lines.append(f"| {title} | {' | '.join(str(cell) for cell in [*cells, sum(cells)])} |")
    sums = [sum(counts.get((kind, answer), 0) for kind in KINDS) for answer in answers]
    return [*lines, f"| All | {' | '.join(str(cell) for cell in [*sums, sum(sums)])} |"]


def _quoted(quote: str) -> str:
    """A quotation in a cell."""
    lines = [f"`{line}`" for line in quote.replace("|", "\\|").splitlines() if line.strip()]
    return "<br>".join(lines) if "\n" in quote else lines[0]


def _test(row: Row, kind: str) -> str:
    return f"`{(row.test or TESTS[kind]).rpartition('::')[2].rpartition('/')[2].removesuffix('.py')}`"


_INTRODUCTION = """What opscope should be was first described by five documents: of the
[Arm SME2 profiling kit for ExecuTorch](https://github.com/ArmDeveloperEcosystem/sme-executorch-profiling) its README,
two skills and a page of its learning path, and the post-processor for AMD AI Engine traces in a fork of KU Leuven
MICAS' [Stream](https://github.com/KULeuven-MICAS/stream). Each command, check, option, file and field that they quote
has a row here, found in their text by `docs/promises.py`, and so have the statements of their prose that can be kept
or broken. A quotation that is not in the document, or one without a row, fails a test wherever the documents are.

`kept` means that it is here, if by another name; `differs` gives the reason; `wrong` means that the document does not
describe its own tool, or contradicts itself. `test_the_command_here_runs` and `test_a_quoted_check_passes` run in one
directory, one after the other, with the names that the documents have; other tests run what needs a runtime or a
phone. A section such as `## Kernel Insights` is one of `report.md`, with its tables.

To read directories that the kit filled, see [move from the Arm kit](../how-to/move-from-the-arm-kit.md); the files of
the post-processor, field by field, are in [aie-published-files](aie-published-files.md).
"""


def main() -> int:
    """Compare rows and documents."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path, help="directory of the documents, as text")
    known = texts(parser.parse_args().directory)
    found, rows = [], ROWS.read_text(encoding="utf-8")
    for document in promises().documents:
        text = known.get(document.sha256)
        found += [f"{document.key}: not there"] if text is None else differences(document, text)
        rows = rows.replace(f"quoted = '{document.quoted}'", f"quoted = '{document.hash_of_quotations()}'")
    print("\n".join(found) if found else f"{len(list(promises().rows()))} rows, no difference")
    if not found:
        ROWS.write_text(rows, encoding="utf-8")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
