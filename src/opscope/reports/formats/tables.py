"""Analyses, and kernels in the columns of the Arm kit's lists, as CSV files with documented columns.

``count`` is what the source counts: calls or lines of a log, of which the kit knows only the last. A number
that is not known is left empty. The other columns come from the names; for kernels of KleidiAI, which the kit's grammar
does not know, ``arch_chain`` is the instruction set alone.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from opscope.analysis.kernels.kernel_sources import KernelState
from opscope.program.kernels.symbols import SME_FAMILY, IsaClass, parse_kernel, parse_symbol
from opscope.reports.document.text import csv_cell, distinct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.kernels.kernel_sources import KernelColumn
    from opscope.analysis.kernels.kernels import KernelLine, KernelView


OPERATOR_COLUMNS = (
    "method instruction position name category kind backend calls time_ns p10_ns p90_ns share traced_ns uncertainty_ns "
    "attribution aten module source macs flops bytes"
).split()
"""Columns of a table of operators, as :class:`opscope.analysis.operators.operators.Operator` defines them."""
_MODULES = "method path type depth self_ns total_ns share operators macs".split()
_DELEGATES = "method instruction delegate backend events nodes operators_ns boundary_ns time_ns share profile".split()
_LAYOUT = "method instruction position name cause time_ns share uncertainty_ns bytes".split()
COLUMNS = (
    *("model_id", "kernel_name", "category", "count", "dtype", "xnn_op", "variant"),
    *("ukernel_shape", "arch_chain", "has_sme", "has_sme2"),
)
_NAMED = (KernelState.COUNTED, KernelState.PRESENT)
_PLAIN = re.compile(r"[^A-Za-z0-9_.+-]+")
_LONGEST = 100


def csv_files(analysis: Analysis) -> dict[str, str]:
    """Return name and content of each file: operators, categories, backends, latencies; modules and more if known."""
    views = {}
    if analysis.program is not None:
        views = {
            "modules.csv": _csv_of_fields(_MODULES, analysis.modules),
            "delegates.csv": _csv_of_fields(_DELEGATES, analysis.delegates),
            "layout.csv": _csv_of_fields(_LAYOUT, analysis.layout),
        }
    return {
        "operators.csv": _csv_of_fields(OPERATOR_COLUMNS, analysis.operators),
        **views,
        "categories.csv": _csv_text(
            ["category", "time_ns", "share"], ([row.category, row.time_ns, row.share] for row in analysis.categories)
        ),
        "backends.csv": _csv_text(
            ["backend", "time_ns", "share"], ([row.backend, row.time_ns, row.share] for row in analysis.backends)
        ),
        "latency.csv": _csv_text(["latency_ns"], ([sample] for sample in analysis.latency.samples_ns)),
    }


def variant_tables(results: Sequence[tuple[str, Analysis]]) -> dict[str, str]:
    """Return the operators and categories of several analyses; the first column names the analysis."""
    operators = (
        [name, *_field_values(row, OPERATOR_COLUMNS)] for name, analysis in results for row in analysis.operators
    )
    categories: Iterable[list[object]] = (
        [name, row.category, row.time_ns, row.share] for name, analysis in results for row in analysis.categories
    )
    return {
        "operators.csv": _csv_text(["variant", *OPERATOR_COLUMNS], operators),
        "categories.csv": _csv_text(["variant", "category", "time_ns", "share"], categories),
    }


def _csv_of_fields(columns: list[str], rows: Iterable[object]) -> str:
    return _csv_text(columns, (_field_values(row, columns) for row in rows))


def _field_values(row: object, columns: Sequence[str]) -> list[object]:
    return [getattr(row, column) for column in columns]


def _csv_text(header: list[str], rows: Iterable[list[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_value(value) for value in row] for row in rows)
    return text.getvalue()


def _csv_value(value: object) -> object:
    """Return a value for a cell: text guarded against formulas, null as an empty cell, enums as their text."""
    if value is None:
        return ""
    return csv_cell(str(getattr(value, "value", value))) if isinstance(value, str) else value


def kernel_csv(view: KernelView) -> dict[str, bytes]:
    """Return a file per column of a view, by name, with the kernels that the column names."""
    stems = distinct(_file_stem(column) for column in view.columns)
    return {f"{stem}_kernels.csv": _kernel_file(view, number) for number, stem in enumerate(stems)}


def _file_stem(column: KernelColumn) -> str:
    threads = "" if column.threads is None else f"_t{column.threads}"
    return f"{plain_stem(column.variant) or 'kernels'}{threads}"[:_LONGEST]


def plain_stem(name: str) -> str:
    """Return a name as a part of a file name: letters, digits, and little else."""
    return _PLAIN.sub("_", name).strip(".")[:_LONGEST]


def _kernel_file(view: KernelView, number: int) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    column = view.columns[number]
    for line in view.kernels:
        cell = line.cells[number]
        if cell.state in _NAMED and cell.amount != 0:
            writer.writerow(_kernel_cells(line, column, cell.amount))
    return text.getvalue().encode()


def _kernel_cells(line: KernelLine, column: KernelColumn, amount: int | None) -> list[str]:
    kernel, symbol = parse_kernel(line.name), parse_symbol(line.name)
    isa = symbol.isa if symbol else IsaClass.UNKNOWN
    chain = "_".join(kernel.isa_chain) or (isa.value if symbol else "")
    texts = (
        *(column.variant, line.name, column.categories.get(line.name) or line.operator or ""),
        *("" if amount is None else str(amount), line.types or "", line.operator or "", kernel.variant or ""),
        *(line.tile or "", chain, str(int(isa in SME_FAMILY)), str(int(isa is IsaClass.SME2))),
    )
    return [csv_cell(text) for text in texts]
