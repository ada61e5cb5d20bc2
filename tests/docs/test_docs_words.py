"""Words of outputs on pages: a heading, a column or a sentence that no command prints is found.

Blocks that the tests run are compared with what was printed (``test_docs_run``). The others are of machines and models
that are not here: each pair of neighbouring words in them must be one that some text of the program holds, and a word
that no text holds must be a name that is listed here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from documents import OUTPUT, ROOT, Block, blocks, documents

SOURCE = ROOT / "src" / "opscope"
RECORDED = ROOT / "docs" / "recorded"
NAMES = frozenset(
    """
    epyc mmac gmac ada desk lab bbe mb my toy test cpu board phone aa deb demo classifier registration sync pw act stem
    shift
    """.split()
)
"""Words of pages that are names: of models, layers, machines, variants, people's files, events of a runtime."""


@cache
def chunks() -> list[str]:
    """Every literal text of the program, without docstrings, and the texts between the fields of templates."""
    found = [text for path in sorted(SOURCE.rglob("*.py")) for text in _literals(path)]
    for path in sorted(SOURCE.rglob("*.j2")):
        found += re.split(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return found


def _literals(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


@cache
def known() -> tuple[frozenset[str], frozenset[tuple[str, str]], frozenset[str], frozenset[str]]:
    """Words; pairs of neighbours; words at the end of a text, and at its beginning, which stand next to anything."""
    words, pairs, last, first = set[str](), set[tuple[str, str]](), set[str](), set[str]()
    for chunk in chunks():
        own = [word.lower() for word in re.findall(r"[A-Za-z]+", chunk)]
        words.update(own)
        pairs.update(pairwise(own))
        last.update(own[-1:])
        first.update(own[:1])
    return frozenset(words), frozenset(pairs), frozenset(last), frozenset(first)


def problems(text: str, names: frozenset[str] = NAMES) -> list[str]:
    """Words and pairs of words of an output that the program does not hold."""
    words, pairs, last, first = known()
    found = []
    for line in text.splitlines():
        for run in re.split(r"[^A-Za-z ]+", line):
            own = [word.lower() for word in run.split()]
            unknown = [word for word in own if word not in words and word not in names]
            found += unknown
            for pair in pairwise(own):
                loose = (pair[0] in last and pair[1] in first) or set(pair) & (names | set(unknown))
                one_of_them = (pair[0], pair[1].removesuffix("s"))
                if pair not in pairs and one_of_them not in pairs and not loose:
                    found.append(" ".join(pair))
    return found


def _examples() -> list[tuple[str, Block]]:
    shown = [(document, block) for document in documents() for block in blocks(document)]
    return [
        (f"{document.relative_to(ROOT)}:{block.line}", block)
        for document, block in shown
        if block.language in OUTPUT and block.note == "example"
    ]


@pytest.mark.parametrize(("where", "block"), _examples(), ids=lambda value: value if isinstance(value, str) else "")
def test_an_example_has_the_words_of_the_program(where: str, block: Block) -> None:
    """Figures and names may be those of another machine; columns, headings and sentences may not."""
    assert problems(block.text) == [], where


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.txt")), ids=lambda path: path.stem)
def test_a_recording_has_the_words_of_the_program(path: Path) -> None:
    """When the program says something else, the pages are recorded again: python docs/record.py."""
    assert problems(path.read_text(encoding="utf-8").partition("\n")[2]) == []


def test_a_sentence_that_nobody_prints_is_found() -> None:
    """The one that the pages once had, beside today's."""
    assert problems("95 % interval 1.17x to 1.40x; 10 + 10 processes, paired; minimum detectable change: 13.1 %") == []
    assert problems("smallest change this could show: 4.2 %") == ["smallest change", "could show"]
    assert problems("category  baseline ms  ms  sluggishness") == ["sluggishness"]
