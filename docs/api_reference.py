"""The reference of the Python API, made of signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import opscope
from opscope.analysis.compare.compare import Comparison, EndToEnd, OperatorChange
from opscope.analysis.latency.latency import Latency
from opscope.analysis.operators.operators import CategoryTime, Operator
from opscope.core.table import EventTable
from opscope.measurements.results import AnalysisResult, ComparisonResult, EventsResult, Pandas, Profiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FUNCTIONS = ("read", "analyze", "compare", "profile", "check", "validate", "report")
RESULTS = (EventsResult, AnalysisResult, ComparisonResult, Profiled)
PARTS = (opscope.Settings, Latency, CategoryTime, Operator, EndToEnd, OperatorChange)
_BASES = {
    EventsResult: EventTable,
    AnalysisResult: AnalysisResult.__mro__[1],
    ComparisonResult: Comparison,
}
_WIDEST = 100
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
_ITEM = re.compile(r"^(\*?\w+(?:, \w+)*): ", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr):`~?([^`]+)`")
_CODE = re.compile(r"``([^`]+)``")


def sections() -> list[str]:
    """The page below its title."""
    intro = (
        "`import opscope` gives these names. It loads neither torch nor a table library; both come when they are "
        "needed.\nEvery error is an `opscope.core.errors.OpscopeError`: [errors](errors.md).\n"
    )
    functions = [_function(getattr(opscope, name), f"opscope.{name}", "###") for name in FUNCTIONS]
    results = [_result(kind) for kind in RESULTS]
    parts = [_described(kind, "###") for kind in PARTS]
    return [intro, "## Functions\n", *functions, "## Results\n", *results, "## What they hold\n", *parts]


def _function(function: Callable[..., Any], name: str, marks: str) -> str:
    head = f"{marks} {name}\n\n```python\n{name.rpartition('.')[2]}{_signature(function)}\n```\n\n"
    return head + prose(inspect.getdoc(function) or "")


def _signature(function: Callable[..., Any]) -> str:
    """The signature, a line a parameter where it would be long."""
    signature = inspect.signature(function)
    parameters = [re.sub(r"'", "", str(one)) for one in signature.parameters.values() if one.name != "self"]
    kinds = [one.kind for one in signature.parameters.values() if one.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    shown = [re.sub(r"<function \w+ at 0x[0-9a-f]+>", "...", one) for one in parameters]
    short = f"({', '.join(shown)}) -> {str(signature.return_annotation).strip(chr(39))}"
    if len(short) <= _WIDEST:
        return short
    lines = "".join(f"    {one},\n" for one in shown)
    return f"(\n{lines}) -> {str(signature.return_annotation).strip(chr(39))}"


def _result(kind: type) -> str:
    """A result: what it is, its fields, its methods."""
    base = _BASES.get(kind)
    fields = prose(inspect.getdoc(base) or "") if base else ""
    own = {**vars(Pandas), **vars(kind)}
    wanted = [name for name in ("to_polars", "to_pandas") if name in own]
    methods = [_function(own[name], f"{kind.__name__}.{name}", "####") for name in wanted]
    return "\n".join([_described(kind, "###"), *([fields] if fields else []), *methods])


def _described(kind: type, marks: str) -> str:
    return f"{marks} {kind.__name__}\n\n" + prose(inspect.getdoc(kind) or "")


def prose(docstring: str) -> str:
    """A docstring in Google's style as Markdown: sections become tables, examples blocks of code."""
    pieces = _SECTION.split(_CODE.sub(r"`\1`", _ROLE.sub(r"`\1`", docstring)))
    text = _paragraphs(pieces[0])
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        section, after = _split(body)
        text += "\n" + _table(title, dedent(section)) + (f"\n{_paragraphs(after)}" if after.strip() else "")
    return text.strip() + "\n"


def _split(body: str) -> tuple[str, str]:
    """What is indented belongs to the section; what follows does not."""
    lines = body.strip("\n").splitlines()
    end = next((n for n, line in enumerate(lines) if line.strip() and not line.startswith(" ")), len(lines))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def _table(title: str, body: str) -> str:
    if title == "Returns":
        return f"Returns: {' '.join(body.split())}\n"
    heads = {"Args": "argument", "Attributes": "field", "Raises": "error"}
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in _items(body))
    return f"| {heads[title]} | meaning |\n|---|---|\n{rows}"


def _items(body: str) -> Iterator[tuple[str, str]]:
    pieces = _ITEM.split(body)
    for name, meaning in zip(pieces[1::2], pieces[2::2], strict=True):
        yield name, " ".join(meaning.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    """Paragraphs as they are, examples fenced."""
    listed = text.strip().split("\n\n")
    return "\n\n".join(f"```pycon\n{one}\n```" if one.startswith(">>>") else one for one in listed) + "\n"
