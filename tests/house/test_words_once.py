"""A sentence of a message or report is looked for in one file of tests, or stands in ``tests/support/texts.py``.

So a change of wording touches the sentence and one place in the tests. Pages that are compared as a whole are goldens.
"""

from __future__ import annotations

import ast
import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS, LETTERS = 3, 15
"""The shortest part of a sentence that tells it from others."""
_CUTS = re.compile(r"%|\.\*|\.\+|\[[^\]]*\]|\d[\d.,]*|\(\?|[\"'`]")
_MARKUP = re.compile(r"\{[{%].*?[%}]\}|<[^>]*>")


def sentences() -> Iterator[str]:
    """Texts of several words in the program, without docstrings, and in its templates."""
    for path in sorted((ROOT / "src" / "opscope").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone:
                yield node.value
    for path in sorted((ROOT / "src" / "opscope").rglob("*.j2")):
        yield from _MARKUP.split(path.read_text("utf-8"))


def looked_for(path: Path) -> Iterator[str]:
    """Parts of sentences that a file of tests looks for, in assertions and in messages of errors."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        asserted = node.test if isinstance(node, ast.Assert) else None
        matched = node.value if isinstance(node, ast.keyword) and node.arg == "match" else None
        for inner in ast.walk(asserted or matched or ast.Pass()):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                parts = _CUTS.split(re.sub(r"\\(.)", r"\1", inner.value))
                yield from (part for part in (one.strip(" .,:;") for one in parts) if _tells(part))


def _tells(part: str) -> bool:
    return len(part) >= LETTERS and len(part.split()) >= WORDS and "_" not in part


def repeated(texts: list[str], files: dict[str, list[str]]) -> dict[str, set[str]]:
    """Sentences that several files look for, with these files; each part counts that is in no more than two sentences.

    Args:
        texts: all sentences.
        files: parts that each file looks for.
    """
    joined, ends = "\0".join(texts), list(itertools.accumulate(len(text) + 1 for text in texts))
    users: dict[str, set[str]] = defaultdict(set)
    for file, parts in files.items():
        for part in set(parts):
            if 1 <= joined.count(part) <= 2:
                users[texts[bisect.bisect(ends, joined.index(part))]].add(file)
    return {text: names for text, names in users.items() if len(names) > 1}


def test_a_sentence_is_looked_for_in_one_place() -> None:
    """Name it in tests/support/texts.py, or assert the kind of error, the rule, the figure."""
    files = {str(path.relative_to(ROOT)): list(looked_for(path)) for path in (ROOT / "tests").rglob("test_*.py")}
    found = repeated(list(sentences()), files)
    assert found == {}


def test_two_files_with_one_sentence_are_noticed() -> None:
    """Also by different parts of it; a part of many sentences tells nothing."""
    texts = ["there is no such place for it", "it was not found", "it was not found", "it was not found"]
    files = {"a": ["there is no such"], "b": ["such place for it", "it was not found"], "c": ["it was not found"]}
    assert repeated(texts, files) == {texts[0]: {"a", "b"}}
