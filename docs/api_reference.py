"""The reference of the Python API, made of signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import opscope
from opscope.bundle.settings import ExperimentSettings, options_of
from opscope.fleet.store.schema import StoreEntry
from opscope.measurements.notebook import NotebookResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

FUNCTIONS = {
    "Functions": "read analyze compare profile check validate report preflight kernels count combined".split(),
    "Many runs": (
        "add_to_store store_entries query_store stored_history stored_fleet check_history remove_from_store"
    ).split(),
    "Traces of AI Engine tiles": "analyze_tiles compare_tiles check_tiles".split(),
}
"""Functions by section, in the order of the page."""
RESULTS: tuple[type[NotebookResult], ...] = (
    opscope.EventsResult,
    opscope.AnalysisResult,
    opscope.ComparisonResult,
    opscope.Profiled,
    opscope.GateResult,
    opscope.ValidationResult,
    opscope.PreflightResult,
    opscope.BisectionResult,
    opscope.WorkResult,
    opscope.KernelsResult,
    opscope.CombinedResult,
    opscope.AddReport,
    opscope.StoreEntries,
    opscope.QueryResult,
    opscope.HistoryResult,
    opscope.FleetResult,
    opscope.RemoveReport,
    opscope.Tiles,
    opscope.TilesComparisonResult,
    opscope.TilesGateResult,
)
PARTS = (StoreEntry, opscope.BundleLabels, opscope.Where, opscope.KernelFilter)
"""What functions take or give beside results; fields of all others are in schemas, or options of a command."""
_METHODS = ("to_polars", "with_layers", "by_layer", "plot")
_WIDEST = 100
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
_ITEM = re.compile(r"^(\*?\w+(?:, \w+)*): ", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr):`~?([^`]+)`")
_CODE = re.compile(r"``([^`]+)``")


def pages(schemas: Mapping[type, str]) -> dict[str, tuple[str, list[str]]]:
    """The pages by their names: a title and sections.

    Args:
        schemas: names of the published schemas, by the types that they describe.
    """
    made = {
        _page_name(title): (
            f"Python API: {title.lower()}",
            [_function(getattr(opscope, name), f"opscope.{name}", "##") for name in names],
        )
        for title, names in FUNCTIONS.items()
    }
    shared = _function(NotebookResult.to_pandas, "to_pandas", "##")
    results = [_EVERY, shared, *(_result(kind, schemas) for kind in RESULTS)]
    values = [_VALUES, *(_described(kind, "##") for kind in PARTS)]
    return made | {
        "results": ("Python API: results", results),
        "values": ("Python API: values that functions take and give", values),
    }


def overview(names: Iterable[str]) -> list[str]:
    """The page that leads to the others."""
    functions = [
        f"- [{title}](api/{_page_name(title)}.md): {', '.join(f'`opscope.{name}`' for name in names)}\n"
        for title, names in FUNCTIONS.items()
    ]
    others = [f"- [{name.capitalize()}](api/{name}.md)\n" for name in names if name in {"results", "values"}]
    return [_INTRO, "".join([*functions, *others])]


def _page_name(title: str) -> str:
    return title.lower().replace(" ", "-")


_INTRO = (
    "`import opscope` gives these names. It loads neither torch nor a table library; both come when they are "
    "needed.\nEvery error is an `opscope.core.errors.OpscopeError`: [errors](errors.md) says what each means.\n"
)
_EVERY = (
    "Every result has a `repr` of one line, tables in a notebook (`_repr_html_`), `to_polars()`, and the same\n"
    "frame for pandas. Fields are those of the JSON, which a schema describes.\n"
)
_VALUES = (
    "Fields of `opscope.Settings` are the options of [`opscope profile`](../cli/profile.md) and the keys of the\n"
    "[configuration](../schemas/config.schema.json), those of `opscope.TilesRequest` the options of\n"
    "[`opscope aie`](../cli/aie.md).\n"
)


def _function(function: Callable[..., Any], name: str, marks: str) -> str:
    head = f"{marks} {name}\n\n```python\n{name.rpartition('.')[2]}{_signature(function)}\n```\n\n"
    return head + prose(inspect.getdoc(function) or "")


def _signature(function: Callable[..., Any]) -> str:
    """The signature, a line a parameter where it would be long."""
    signature = inspect.signature(function)
    parameters = [_parameter(one) for one in signature.parameters.values() if one.name != "self"]
    kinds = [one.kind for one in signature.parameters.values() if one.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    short = f"({', '.join(parameters)}) -> {signature.return_annotation}"
    if len(short) <= _WIDEST:
        return short
    lines = "".join(f"    {one},\n" for one in parameters)
    return f"(\n{lines}) -> {signature.return_annotation}"


def _parameter(one: inspect.Parameter) -> str:
    """Name, type and default; a default that is no plain value is left out."""
    if one.default is inspect.Parameter.empty:
        return f"{one.name}: {one.annotation}"
    plain = isinstance(one.default, str | int | float | tuple | None)
    return f"{one.name}: {one.annotation} = {one.default!r}" if plain else f"{one.name}: {one.annotation} = ..."


def _result(kind: type[NotebookResult], schemas: Mapping[type, str]) -> str:
    """A result: what it is, its methods, and its fields or the schema that has them."""
    plain = [base for base in kind.__mro__[2:3] if base.__module__.startswith("opscope.") and base.__doc__]
    told = [base for base in plain if not base.__name__.startswith("_")]
    name = next((schemas[base] for base in (kind, *told) if base in schemas), None)
    link = [f"Fields: [{name}](../schemas/{name}.schema.json).\n"] if name else []
    fields = link or [prose(inspect.getdoc(base) or "") for base in told]
    wanted = [name for name in _METHODS if name in vars(kind)]
    methods = [_function(vars(kind)[name], f"{kind.__name__}.{name}", "###") for name in wanted]
    described = _described(kind, "##")
    return "\n".join([_without_fields(described) if name else described, *fields, *methods])


def _without_fields(text: str) -> str:
    """A description without its table of fields."""
    return re.sub(r"\| field \| meaning \|\n(?:\|.*\n?)+", "", text)


def _described(kind: type, marks: str) -> str:
    settings = options_of(kind) if issubclass(kind, ExperimentSettings) else {}
    rows = "".join(f"| `{name}` | {_cell(said.text)} |\n" for name, said in settings.items())
    table = f"\n| field | meaning |\n|---|---|\n{rows}" if rows else ""
    return f"{marks} {kind.__name__}\n\n" + prose(inspect.getdoc(kind) or "") + table


def documented(kind: type) -> str:
    """The docstring of a record, with what its bases say of the fields that it has from them before its own."""
    told = [inspect.cleandoc(each.__doc__ or "").partition("\n\nAttributes:\n") for each in kind.__mro__[:-3]]
    fields = [attributes for _, _, attributes in reversed(told) if attributes]
    return "\n\nAttributes:\n".join(filter(None, (told[0][0], "\n".join(fields))))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


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
    if title == "Raises":
        return f"Raises: {', '.join(f'`{name}`' for name, _ in _items(body))}.\n"
    heads = {"Args": "argument", "Attributes": "field"}
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in _items(body))
    return f"| {heads[title]} | meaning |\n|---|---|\n{rows}"


def _items(body: str) -> Iterator[tuple[str, str]]:
    pieces = _ITEM.split(body)
    for name, meaning in zip(pieces[1::2], pieces[2::2], strict=True):
        yield name, _cell(" ".join(meaning.split()))


def _paragraphs(text: str) -> str:
    """Paragraphs as they are, examples fenced."""
    listed = text.strip().split("\n\n")
    return "\n\n".join(f"```pycon\n{one}\n```" if one.startswith(">>>") else one for one in listed) + "\n"
